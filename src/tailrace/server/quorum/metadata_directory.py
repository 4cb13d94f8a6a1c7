"""The directory `__cluster_metadata-0`: the metadata log, `quorum-state`, and how far the log is on disk."""

from typing import Final

from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.quorum.state import StoredQuorumState, format_quorum_state, parse_quorum_state
from tailrace.storage import FileSystem, Log
from tailrace.storage.checkpoints import RECOVERY_POINTS, read_offsets, replace_file, write_offsets
from tailrace.storage.files import join, parent

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC, 0)
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Kafka's limit for a batch of this log."""
QUORUM_STATE: Final = "quorum-state"

_LOG_CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1, max_message_bytes=MAX_BATCH_BYTES)


class MetadataDirectory:
    """The files of one voter, below its metadata directory. Every write is durable when the call returns."""

    def __init__(self, metadata_directory: str, *, files: FileSystem) -> None:
        self.path = join(metadata_directory, str(METADATA_PARTITION))
        self._files = files

    def open_log(self, *, now_ms: int) -> Log:
        """The metadata log, made if it is not there.

        Raises CorruptRecords for damage in what was flushed: a damaged log is not a short log, and must not be cut.
        """
        self._files.make_dirs(self.path)
        recovery_point = read_offsets(self._files, self.path, RECOVERY_POINTS).get(METADATA_PARTITION, 0)
        log = Log.open(self.path, files=self._files, config=_LOG_CONFIG, now_ms=now_ms, recovery_point=recovery_point)
        # A process that was killed may have left names that no sync has covered yet.
        self._files.sync_dir(self.path)
        self._files.sync_dir(parent(self.path))
        return log

    def write_recovery_point(self, offset: int) -> None:
        """Remember that the log is on disk below this offset."""
        write_offsets(self._files, self.path, RECOVERY_POINTS, {METADATA_PARTITION: offset})

    def read_quorum_state(self) -> StoredQuorumState:
        """The state that was written last; a new directory has no leader yet. Raises CorruptRecords if illegible."""
        path = join(self.path, QUORUM_STATE)
        if not self._files.exists(path):
            return StoredQuorumState()
        return parse_quorum_state(self._files.read_bytes(path), path=path)

    def write_quorum_state(self, state: StoredQuorumState) -> None:
        """Write the leader, and the vote of this voter."""
        replace_file(self._files, join(self.path, QUORUM_STATE), format_quorum_state(state))
