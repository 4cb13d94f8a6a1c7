"""The metadata log of a stopped node, in its directory: the node's identity, and a reset to one voter."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId, format_topic_id
from tailrace.model.security.scram import ScramMechanism
from tailrace.model.topic_config import TopicConfig
from tailrace.node.data_directory import DirectoryLock
from tailrace.node.founding_users import FoundingUsers, upsertion_of_password
from tailrace.node.settings.config import NodeConfig, load_config
from tailrace.raft.effects import AppendAsLeader, KRaftVersion, Voters
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.assembly.metadata_replica import open_metadata_log
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import (
    MetadataDirectory,
    StoredQuorumState,
)
from tailrace.storage import OsFiles
from tailrace.storage.checkpoints import read_meta_properties


def controller_of(file: Path) -> Voter:
    """The controller that this file configures: its id, its directory's id, and its listeners.

    Raises KafkaError if the node is no controller or has never run, or if the directory belongs to another node.
    """
    config = _config_of(file)
    if not config.quorum.is_controller:
        raise _refusal(f"{file}: the node is no controller; say process.roles=broker,controller")
    properties = read_meta_properties(OsFiles(), str(config.data_directory))
    if properties is None or properties.directory_id is None:
        raise _refusal(f"{config.data_directory} has no directory id yet: start the node once")
    if properties.node_id != config.node_id:
        raise _refusal(
            f"{config.data_directory} belongs to node {properties.node_id}, not to node {config.node_id}, which"
            f" {file} configures: set node.id={properties.node_id}, or name the right file"
        )
    addresses = [
        config.addresses.address_of(listener.name, taken_port=listener.port) for listener in config.controller_listeners
    ]
    endpoints = tuple(VoterListener(listener.name, listener.host, listener.port) for listener in addresses)
    return Voter(ReplicaKey(config.node_id, bytes(properties.directory_id)), endpoints)


class OfflineQuorum:
    """The replica of one stopped node, locked so that the node cannot start meanwhile."""

    def __init__(self, controller: Voter, directory: MetadataDirectory, log: QuorumLog) -> None:
        self.controller = controller
        self._directory = directory
        self._log = log
        self._state = directory.read_quorum_state()

    @property
    def voters(self) -> VoterSet:
        """The last voters in this node's log."""
        stated = self._log.voters_in_log
        if stated:
            return stated[-1].voters
        return self._log.founding_voters or VoterSet(())

    @property
    def others(self) -> tuple[ReplicaKey, ...]:
        return tuple(key for key in self.voters.keys if key != self.controller.key)

    def what_will_be_lost(self) -> Iterator[str]:
        """The losses that `make_only_voter` causes, for the administrator to read first."""
        log, key = self._log, self.controller.key
        unknown = log.end_offset - log.high_watermark
        yield f"node {key.id} has the metadata up to offset {log.end_offset}, epoch {log.last_epoch}"
        yield f"  what the other voters have committed behind offset {log.end_offset} will be lost"
        if unknown > 0:
            yield (
                f"  the last {unknown} records, from offset {log.high_watermark} on, are not known to be committed;"
                " they will count as committed, also changes that a client saw fail"
            )
        for other in self.others:
            directory_id = format_topic_id(TopicId(other.directory_id))
            yield f"  node {other.id} will not vote any more (directory {directory_id}); its metadata must be removed"
        if not self.others:
            yield f"  nothing else: node {key.id} is the only voter already"

    def make_only_voter(self) -> int:
        """Make this replica the only voter; durable when it returns. Returns its new epoch.

        Raises StorageError. An interrupted call has used up an epoch, and changed nothing else.
        """
        log = self._log
        epoch = max(self._state.leader_epoch, log.last_epoch) + 1
        # The epoch is written before any record of it, so that no later leader uses the epoch again.
        self._directory.write_quorum_state(StoredQuorumState(leader_epoch=epoch))
        control = (KRaftVersion(1), Voters(VoterSet.of([self.controller])))
        log.append_as_leader(
            AppendAsLeader(base_offset=log.end_offset, leader_epoch=epoch, control=control), now_ms=_now_ms()
        )
        flush = log.begin_flush()
        flush.sync()
        log.finish_flush(flush)
        return epoch


@contextmanager
def opened_quorum(file: Path) -> Iterator[OfflineQuorum]:
    """The replica of the node that this file configures. Raises KafkaError if the node runs, or if its log is
    damaged."""
    controller = controller_of(file)
    config = _config_of(file)
    files = OsFiles()
    with DirectoryLock(config.data_directory):
        directory = MetadataDirectory(str(config.data_directory), files=files)
        log = open_metadata_log(directory, segment_bytes=TopicConfig().segment_bytes, now_ms=_now_ms())
        try:
            yield OfflineQuorum(controller, directory, log)
        finally:
            log.close()


def add_founding_user(file: Path, user: str, password: str, *, mechanism: ScramMechanism, iterations: int) -> None:
    """Add a first user of a new cluster in the directory of the controller that this file configures.

    Raises KafkaError if the node is no controller or runs, or if its directory belongs to a cluster already.
    """
    config = _config_of(file)
    if not config.quorum.is_controller:
        raise _refusal(f"{file}: the node is no controller, and founds no cluster; name the file of a controller")
    with DirectoryLock(config.data_directory):
        change = upsertion_of_password(user, password, mechanism=mechanism, iterations=iterations)
        FoundingUsers(str(config.data_directory), files=OsFiles()).set(change)


def _config_of(file: Path) -> NodeConfig:
    """The settings as `tailrace serve` reads its settings, without the check of exposed listeners: no listener opens
    here."""
    return load_config(file=file, environment=os.environ, flags={"listener.insecure.allow": "true"})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
