"""A coordinator partition of one node, with a keeper of checkpoints that looks when the test says so."""

from tailrace.coordinators.groups.records import GroupLogRecord, OffsetCommitValue, OffsetRecord, encode_record
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from tailrace.server.coordination.checkpoint_keeper import CheckpointConfig, CheckpointKeeper
from tailrace.server.coordination.load import Load
from tailrace.server.groups.host import decode_log_record
from tailrace.storage import FileSystem
from tailrace.storage.log_checkpoint import LogCheckpoint
from tailrace.testing.clock import ManualClock
from testkit.coordinators.coordinator_states import GroupStoreReceiver
from testkit.nodes.data_path import DataPath
from testkit.records.compaction import compact

OFFSETS = TopicPartition(GROUP_OFFSETS_TOPIC, 0)
COMPACTED = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
    retention_ms=-1,
    file_delete_delay_ms=0,
)
LOOK_MS = 1_000
RETRY_MS = 60_000


class CheckpointPath:
    """A node that leads `__consumer_offsets-0`."""

    def __init__(self, files: FileSystem, *, start: int = 1, min_log_bytes: int = 1, leader_epoch: int = 0) -> None:
        self.clock = ManualClock()
        self.node = DataPath("/data", files=files, clock=self.clock, start=start)
        self.partition: Partition = self.node.create(OFFSETS.topic, config=COMPACTED, leader_epoch=leader_epoch)
        config = CheckpointConfig(
            min_log_bytes=min_log_bytes, min_size_ratio=0.5, look_interval_ms=LOOK_MS, retry_ms=RETRY_MS
        )
        self.keeper = CheckpointKeeper(
            self.node.table, names=lambda: [OFFSETS], disk=self.node.disk, clock=self.clock, config=config
        )
        self.keeper.start()

    @property
    def checkpoint(self) -> LogCheckpoint:
        checkpoint = self.partition.log.checkpoint
        assert checkpoint is not None, "it is a coordinator's log"
        return checkpoint

    @property
    def end_of_checkpoint(self) -> int | None:
        return None if self.checkpoint.id is None else self.checkpoint.id.offset

    @property
    def path_of_checkpoint(self) -> str:
        assert self.checkpoint.id is not None, "there is none"
        return self.checkpoint.path_of(self.checkpoint.id)

    def commit(self, group_id: str, *offsets: int | None, metadata: str = "") -> None:
        """Commit offsets of the group, a batch per offset; None: delete the offset."""
        for offset in offsets:
            value = None
            if offset is not None:
                value = OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=1)
            record = OffsetRecord(group_id=group_id, topic="orders", partition=0, value=value)
            self.partition.staging.append_records(
                (encode_record(record),),
                now_ms=1,
                on_done=lambda done: None,
                producer_id=-1,
                producer_epoch=-1,
                verification=None,
            )
            self.node.end_turn()

    def look(self) -> int | None:
        """Let the keeper check once, and do everything that is due. Returns the end of the checkpoint afterwards."""
        self.clock.advance(LOOK_MS)
        self.clock.advance(100)
        return self.end_of_checkpoint

    def compact(self, times: int = 2) -> None:
        """Compact the log twice: the second compaction removes the tombstones that the first compaction has kept."""
        for _ in range(times):
            compact(self.partition.log, self.clock.now_ms(), end_offset=self.partition.last_stable_offset)

    def load(self) -> tuple[dict[str, list[int]], int]:
        """Load; returns the offsets by group, and the offset from which the load has read the log."""
        found = GroupStoreReceiver(decode_log_record)
        done: list[bool] = []
        load = Load[GroupLogRecord](
            self.partition,
            clock=self.clock,
            decode=decode_log_record,
            apply=found.store.apply,
            on_marker=found.on_marker,
            on_done=lambda: done.append(True),
            on_failed=_fail,
        )
        load.begin()
        self.clock.advance(0)
        assert done, "the load comes to its end"
        offsets = {
            group_id: [value.offset for value in group.offsets.values()]
            for group_id, group in found.store.groups.items()
        }
        return offsets, load.from_offset


def _fail(fault: Exception) -> None:
    raise AssertionError(f"the load failed: {fault}")
