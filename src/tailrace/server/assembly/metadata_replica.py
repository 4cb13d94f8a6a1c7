"""The replica of the metadata log on one node, whole and synchronous: log, host, snapshots, controller, registrations.

A caller first calls `open_metadata_log`, and then makes a `MetadataReplica`: between both a node finds or founds its
quorum, for which it needs the log. No timer or request begins before `start`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace.metadata.broker_commands import RegisterController
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.model.proofs import NO_SECRET, SECRET_BYTES, id_of_secret
from tailrace.model.security.security_protocol import SecurityProtocol
from tailrace.model.topic_config import TopicConfig
from tailrace.raft.node import RaftNode
from tailrace.raft.ports import Jitter, RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, VoterListener, VoterSet
from tailrace.server.controller_link.channel import ControllerLink
from tailrace.server.controller_link.controller_registration import ControllerRegistration
from tailrace.server.ports import Clock, Disk, Peer
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.duties import LeaderBalanceConfig
from tailrace.server.quorum.host import QuorumHost, read_quorum_state
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MAX_BATCH_BYTES, MetadataDirectory
from tailrace.server.quorum.queued_work import OnLongWork
from tailrace.server.quorum.raft_rpcs import VoterAddress

SLICE_PARTITIONS: Final = 200
"""Partitions whose changes a node carries out in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReplicaConfig:
    """The settings of one replica, and the facts of its quorum."""

    key: ReplicaKey
    cluster_id: str | None
    """None: the cluster id of requests and answers is not checked."""
    voters: VoterSet
    """The voters in force until the log states a voter set."""
    bootstrap_ids: Sequence[int]
    """Ids below -1, each for a bootstrap address that `MetadataReplicaPorts.peer` knows."""
    endpoints: Sequence[VoterListener]
    """The addresses of this node's listeners for controllers."""
    protocols: Mapping[str, SecurityProtocol] = field(default_factory=dict)
    """The security protocols of these listeners, by name; PLAINTEXT for a listener without an entry."""
    is_controller: bool
    """Whether the node has the controller role: a controller with `endpoints` registers."""
    raft: RaftConfig
    snapshot_trigger: SnapshotTrigger
    leader_balance: LeaderBalanceConfig = field(default_factory=LeaderBalanceConfig)
    slice_partitions: int = SLICE_PARTITIONS
    directory_secret: bytes = field(default=NO_SECRET, repr=False)
    """Proves to other nodes that a request comes from the replica with this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReplicaPorts:
    """The surroundings of one replica."""

    clock: Clock
    disk: Disk
    """Always flushes logs, whatever log.durability says."""
    peer: Peer
    """Sends requests to the other replicas."""
    jitter: Jitter
    random_bytes: Callable[[int], bytes]
    """Returns this many random bytes; the secret of this run of the node is made of random bytes."""
    on_long_work: OnLongWork
    on_storage_failed: Callable[[KafkaError], None]
    """Called when the replica gives up its log."""
    on_fatal: Callable[[BaseException], None]
    """Called with the fault if the Raft machine and the log are in different states, or if the cluster has features
    that this release does not know."""


def open_metadata_log(directory: MetadataDirectory, *, segment_bytes: int, now_ms: int) -> QuorumLog:
    """The metadata log in this directory. Raises CorruptRecords, StorageError: see `QuorumLog.open`."""
    return QuorumLog.open(
        directory.path,
        METADATA_PARTITION,
        files=directory.files,
        config=TopicConfig(max_message_bytes=MAX_BATCH_BYTES, segment_bytes=segment_bytes),
        now_ms=now_ms,
    )


def _raft_node(
    config: MetadataReplicaConfig, ports: MetadataReplicaPorts, directory: MetadataDirectory, log: QuorumLog
) -> RaftNode:
    log.set_clock_offset(wall_ahead_ms=ports.clock.now_ms() - ports.clock.monotonic_ms())
    return RaftNode(
        key=config.key,
        cluster_id=config.cluster_id,
        log=log,
        state=read_quorum_state(directory),
        initial_voters=config.voters,
        voters_in_log=log.voters_in_log,
        bootstrap_ids=config.bootstrap_ids,
        config=config.raft,
        jitter=ports.jitter,
        now_ms=ports.clock.monotonic_ms(),
    )


class MetadataReplica:
    """The replica of the metadata log. Call `start` once, then `stop`, then `close`."""

    def __init__(
        self,
        config: MetadataReplicaConfig,
        *,
        ports: MetadataReplicaPorts,
        machine: ControllerMachine,
        directory: MetadataDirectory,
        log: QuorumLog,
    ) -> None:
        """`log`: the log that was opened in `directory`. Raises CorruptRecords if `quorum-state` cannot be read."""
        self.host: Final = QuorumHost(
            node=_raft_node(config, ports, directory, log),
            cluster_id=config.cluster_id,
            log=log,
            directory=directory,
            clock=ports.clock,
            disk=ports.disk,
            peer=ports.peer,
            listeners=config.endpoints,
            secret=config.directory_secret,
            on_storage_failed=ports.on_storage_failed,
            on_broken_step=ports.on_fatal,
        )
        self.controller: Final = QuorumController(
            machine,
            host=self.host,
            clock=ports.clock,
            snapshot_trigger=config.snapshot_trigger,
            leader_balance=config.leader_balance,
            slice_partitions=config.slice_partitions,
            on_long_work=ports.on_long_work,
        )
        self.voter_address: Final = VoterAddress(
            self.host, endpoints=config.endpoints, peer=ports.peer, clock=ports.clock
        )
        self.registration: Final = (
            _RegisteredController(config, ports, self.controller) if config.is_controller and config.endpoints else None
        )

    def start(self) -> None:
        """Load the newest snapshot and take part in the quorum. Register this run of the node whenever the image does
        not have its registration."""
        self.controller.start()
        if self.registration is not None:
            self.registration.start()
        self.voter_address.start()

    def stop(self) -> None:
        """Stop registering this node as a controller, and updating its addresses as a voter."""
        self.voter_address.stop()
        if self.registration is not None:
            self.registration.close()

    def close(self) -> None:
        """Leave the quorum, and close the log. The caller has stopped the disk before."""
        self.controller.close()


class _RegisteredController:
    """A controller's registration with its own `ControllerLink` to the active controller, since the node may have no
    broker."""

    def __init__(self, config: MetadataReplicaConfig, ports: MetadataReplicaPorts, metadata: QuorumController) -> None:
        assert config.cluster_id is not None, "a controller knows its cluster"
        secret = ports.random_bytes(SECRET_BYTES)
        self._link = ControllerLink(
            metadata,
            node_id=config.key.id,
            cluster_id=config.cluster_id,
            sender_id=ports.random_bytes(16),
            secret=secret,
            peer=ports.peer,
            clock=ports.clock,
        )
        self._registration = ControllerRegistration(
            metadata=metadata,
            controller=self._link.channel,
            clock=ports.clock,
            registration=RegisterController(
                controller_id=BrokerId(config.key.id),
                incarnation_id=id_of_secret(secret),
                endpoints=tuple(
                    Endpoint(
                        listener_name=endpoint.name,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=config.protocols.get(endpoint.name, SecurityProtocol.PLAINTEXT),
                    )
                    for endpoint in config.endpoints
                ),
            ),
            on_fatal=ports.on_fatal,
        )

    def start(self) -> None:
        self._registration.start()

    def close(self) -> None:
        self._registration.close()
        self._link.close()
