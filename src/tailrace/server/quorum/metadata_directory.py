"""The directory `__cluster_metadata-0`: the file `quorum-state`, and the checkpoints beside the metadata log.

The checkpoints are the log's start and its recovery point: the smaller of the flushed offset and the high watermark. A
replica never cuts its log below the high watermark, so no truncation has to lower the recovery point; only a log that a
snapshot has replaced may be shorter.
"""

import base64
import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import METADATA_PARTITION, TopicPartition
from tailrace.storage import FileSystem, FlushTicket
from tailrace.storage.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_offsets, replace_file, write_offsets
from tailrace.storage.file_system import join

_STATIC_VERSION = 0
_DYNAMIC_VERSION = 1
_DIRECTORY_BYTES = 16
_NO_DIRECTORY = "A" * 22


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuorumState:
    """The leader and its epoch, the vote of this voter, and the voters.

    Version 0 has the voters, which are static. In version 1 the log has the voters, and the file has the directory of
    the candidate that got the vote (KIP-853). The state is durable before any request or answer of its epoch leaves.
    """

    leader_id: BrokerId = NO_LEADER
    leader_epoch: int = 0
    voted_id: BrokerId = NO_LEADER
    voters: tuple[BrokerId, ...] = ()
    """The voters of a static quorum; empty: the log has the voters."""
    voted_directory_id: bytes = bytes(_DIRECTORY_BYTES)
    """The directory of the candidate that got the vote; stored only if the log has the voters. Zeros: not known."""


def format_quorum_state(state: StoredQuorumState) -> bytes:
    """The content of the file."""
    content: dict[str, object] = {"leaderId": state.leader_id, "leaderEpoch": state.leader_epoch}
    content["votedId"] = state.voted_id
    if state.voters:
        content = {"clusterId": "", **content, "appliedOffset": 0}
        content["currentVoters"] = [{"voterId": voter} for voter in state.voters]
        content["data_version"] = _STATIC_VERSION
    else:
        directory = base64.urlsafe_b64encode(state.voted_directory_id).decode("ascii").rstrip("=")
        content["votedDirectoryId"] = directory
        content["data_version"] = _DYNAMIC_VERSION
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def parse_quorum_state(data: bytes, *, path: str) -> StoredQuorumState:
    """The inverse of `format_quorum_state`. Raises CorruptRecords that names the file."""
    try:
        content = json.loads(data)
        version = content["data_version"]
        if version not in (_STATIC_VERSION, _DYNAMIC_VERSION):
            raise ValueError(f"data_version {version} is not known")
        voters = content["currentVoters"] if version == _STATIC_VERSION else ()
        directory = content["votedDirectoryId"] if version == _DYNAMIC_VERSION else _NO_DIRECTORY
        return StoredQuorumState(
            leader_id=BrokerId(int(content["leaderId"])),
            leader_epoch=int(content["leaderEpoch"]),
            voted_id=BrokerId(int(content["votedId"])),
            voters=tuple(BrokerId(int(voter["voterId"])) for voter in voters),
            voted_directory_id=_parse_directory(directory),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as fault:
        why = f"it has no {fault}" if isinstance(fault, KeyError) else fault
        raise CorruptRecords(
            f"{path} is not a quorum-state file: {why}. It has this node's vote. If the node is the only voter, remove"
            " the file; else empty the directory and let the other nodes bring this one up to date"
        ) from None


def _parse_directory(text: str) -> bytes:
    directory = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(directory) != _DIRECTORY_BYTES:
        raise ValueError(f"{text!r} is not the id of a directory")
    return directory


MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Kafka's limit for a batch of this log."""
QUORUM_STATE: Final = "quorum-state"


class MetadataDirectory:
    """The files of one voter, below its metadata directory. Every write is durable when the call returns."""

    def __init__(self, metadata_directory: str, *, files: FileSystem) -> None:
        self.path = join(metadata_directory, str(METADATA_PARTITION))
        self.files = files

    def read_quorum_state(self) -> StoredQuorumState:
        """The state that was written last; a new directory has no leader yet. Raises CorruptRecords if the file cannot
        be read."""
        path = join(self.path, QUORUM_STATE)
        if not self.files.exists(path):
            return StoredQuorumState()
        return parse_quorum_state(self.files.read_bytes(path), path=path)

    def write_quorum_state(self, state: StoredQuorumState) -> None:
        """Write the leader, and the vote of this voter."""
        replace_file(self.files, join(self.path, QUORUM_STATE), format_quorum_state(state))


RECOVERY_POINT_INTERVAL: Final = 1_000
"""The number of records between two writes of the recovery point: damage above the last written point would be taken
for a torn end."""


class Checkpoints:
    """The recovery point and the log start, in two files beside the log."""

    def __init__(self, directory: str, partition: TopicPartition, *, files: FileSystem) -> None:
        self._directory = directory
        self._partition = partition
        self._files = files
        self.recovery_point = read_offsets(files, directory, RECOVERY_POINTS).get(partition, 0)
        """The recovery point on the disk after all writes that were begun."""
        self.log_start_offset = read_offsets(files, directory, LOG_STARTS).get(partition, 0)

    def write(self, name: str, offset: int) -> None:
        """Write one checkpoint, durably. On any thread."""
        write_offsets(self._files, self._directory, name, {self._partition: offset})

    def due(self, *, log_start_offset: int, recovery_point: int, interval: int) -> tuple[tuple[str, int], ...]:
        """The checkpoints for the flush that begins: the log start if it has risen, the recovery point once in
        `interval` records."""
        offsets = []
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset
            offsets.append((LOG_STARTS, log_start_offset))
        if recovery_point >= self.recovery_point + interval:
            self.recovery_point = recovery_point
            offsets.append((RECOVERY_POINTS, recovery_point))
        return tuple(offsets)

    def lower_log_start(self, offset: int) -> None:
        """Write a lower log start than on the disk: the log begins there again."""
        if offset < self.log_start_offset:
            self.write(LOG_STARTS, offset)
            self.log_start_offset = offset

    def forget_recovery_point(self) -> None:
        """Write recovery point 0: the log may become shorter."""
        if self.recovery_point:
            self.write(RECOVERY_POINTS, 0)
            self.recovery_point = 0


class QuorumFlush(NamedTuple):
    """A flush of the log, with the checkpoints that are written afterwards."""

    ticket: FlushTicket
    checkpoints: Checkpoints
    offsets: tuple[tuple[str, int], ...]

    def sync(self) -> None:
        """Flush, then write the checkpoints. On any thread. A StorageError is final for the disk."""
        self.ticket.sync()
        for name, offset in self.offsets:
            self.checkpoints.write(name, offset)
