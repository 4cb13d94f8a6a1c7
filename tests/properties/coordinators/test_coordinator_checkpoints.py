"""A coordinator that is loaded from a checkpoint and the log behind it has the state that the whole log gives.

The model has every batch that is in the log. The log itself is compacted, cut, closed, killed and led by others; the
checkpoint is written at any point, over and over, and sometimes damaged.
"""

from dataclasses import dataclass

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitValue,
    OffsetRecord,
    encode_record,
)
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.control import ControlType, EndTransactionMarker, build_marker
from tailrace.protocol.records.record import Record, build_batch
from tailrace.replication.partition import Partition
from tailrace.server.coordination.checkpoint_keeper import CheckpointConfig, CheckpointKeeper
from tailrace.server.coordination.load import Load
from tailrace.server.groups.host import decode_log_record
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.coordinator_states import GroupStoreReceiver, groups_seen
from testkit.nodes.data_path import DataPath
from testkit.records.compaction import compact

OFFSETS = TopicPartition(GROUP_OFFSETS_TOPIC, 0)
DIRECTORY = f"/data/{OFFSETS}"
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
    retention_ms=-1,
    file_delete_delay_ms=0,
)
LEADER = 2
PLAIN = 0
"""A producer id that writes without transactions."""
PRODUCERS = (1, 2)
GROUPS = ("g", "h")
ACTIONS = st.sampled_from(
    (
        *(f"offset {producer_id}" for producer_id in (PLAIN, PLAIN, *PRODUCERS)),
        *(f"{end} {producer_id}" for end in ("commit", "commit", "abort") for producer_id in PRODUCERS),
        *("deletion", "deletion", "generation", "dissolution"),
        *("checkpoint 0", "checkpoint 0", "checkpoint 1", "compaction", "compaction"),
    )
)


@dataclass(frozen=True)
class LoggedBatch:
    """A batch of the log: records of a producer, or the end of its transaction."""

    base_offset: int
    records: tuple[Record, ...] = ()
    producer_id: int = PLAIN
    marker: EndTransactionMarker | None = None


class CoordinatorCheckpoints(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.starts = self.epoch = self.values = self.committed_end = self.compacted_end = 0
        self.model: list[LoggedBatch] = []
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.clock = ManualClock()
        self.node = DataPath("/data", files=self.disk, clock=self.clock, start=self.starts)
        self.partition = self.follow()
        keeper = CheckpointConfig(min_log_bytes=1, min_size_ratio=0, look_interval_ms=1_000, retry_ms=1)
        self.keeper = CheckpointKeeper(
            self.node.table, names=lambda: [OFFSETS], disk=self.node.disk, clock=self.clock, config=keeper
        )
        self.keeper.start()

    def follow(self) -> Partition:
        """Follow the leader of the present epoch."""
        return self.node.create(
            OFFSETS.topic, leader=LEADER, leader_epoch=self.epoch, replicas=(LEADER, 1), config=CONFIG
        )

    @property
    def end_offset(self) -> int:
        return self.partition.log.log_end_offset

    def append(self, batch: LoggedBatch, content: bytes | bytearray) -> None:
        self.partition.following.append(content)
        self.model.append(batch)

    @rule(script=st.lists(st.tuples(ACTIONS, st.sampled_from(GROUPS)), min_size=1, max_size=15))
    def act(self, script: list[tuple[str, str]]) -> None:
        """Records and markers of the leader, and work of this replica between them."""
        for action, group_id in script:
            match action.split():
                case ["commit" | "abort" as end, producer]:
                    self.end_transaction(int(producer), is_commit=end == "commit")
                case ["offset", producer]:
                    self.write_offset(group_id, int(producer))
                case ["deletion"]:
                    self.write_offset(group_id, PLAIN, is_deletion=True)
                case ["generation" | "dissolution" as change]:
                    self.write_generation(group_id, is_deletion=change == "dissolution")
                case ["checkpoint", lag]:
                    self.make_a_checkpoint(int(lag))
                case ["compaction"]:
                    self.compact()

    def write_offset(self, group_id: str, producer_id: int, *, is_deletion: bool = False) -> None:
        self.values += 1
        value = OffsetCommitValue(offset=self.values, metadata="", commit_timestamp=1)
        record = OffsetRecord(group_id=group_id, topic="orders", partition=0, value=None if is_deletion else value)
        self.write_record(encode_record(record), producer_id)

    def write_generation(self, group_id: str, *, is_deletion: bool) -> None:
        self.values += 1
        value = GroupMetadataValue(
            protocol_type="consumer", generation=self.values, protocol=None, leader=None, members=()
        )
        self.write_record(encode_record(GroupRecord(group_id=group_id, value=None if is_deletion else value)), PLAIN)

    def write_record(self, record: tuple[bytes, bytes | None], producer_id: int) -> None:
        records = [Record(self.end_offset, 1, *record)]
        is_transactional = producer_id != PLAIN
        content = build_batch(
            records,
            base_offset=self.end_offset,
            leader_epoch=self.epoch,
            producer_id=producer_id if is_transactional else -1,
            producer_epoch=0 if is_transactional else -1,
            base_sequence=self.end_offset if is_transactional else -1,
            is_transactional=is_transactional,
        )
        self.append(LoggedBatch(self.end_offset, tuple(records), producer_id), content)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        marker = EndTransactionMarker(ControlType.COMMIT if is_commit else ControlType.ABORT, self.epoch)
        content = build_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=1,
            base_offset=self.end_offset,
            leader_epoch=self.epoch,
        )
        self.append(LoggedBatch(self.end_offset, producer_id=producer_id, marker=marker), content)

    def commit(self, lag: int) -> None:
        """The log is stored, and the leader tells how far it is committed: up to a batch near its end."""
        self.partition.following.flush(lambda failure: None)
        self.clock.advance(0)
        boundaries = [0, *(batch.base_offset for batch in self.model), self.end_offset]
        high_watermark = boundaries[max(len(boundaries) - 1 - lag, 0)]
        self.partition.following.take_leader_offsets(high_watermark=high_watermark, log_start_offset=0)
        self.committed_end = max(self.committed_end, self.partition.high_watermark)

    # The replica's own work

    def make_a_checkpoint(self, lag: int) -> None:
        self.commit(lag)
        self.clock.advance(3_000)
        assert not self.partition.log.is_offline, self.partition.log.failure

    def compact(self) -> None:
        log = self.partition.log
        log.flush()
        compaction = compact(log, self.clock.now_ms(), end_offset=self.partition.last_stable_offset)
        if compaction is not None:
            self.compacted_end = max(self.compacted_end, compaction.end_offset)
        self.node.table.checkpoints.write_cleaner_offsets()
        self.clock.advance(0)

    @rule(
        disturbance=st.sampled_from(("clean election", "unclean election", "stop", "power cut", "flipped bit")),
        number=st.integers(0, 1_000),
    )
    def disturb(self, disturbance: str, number: int) -> None:
        match disturbance:
            case "clean election" | "unclean election":
                self.get_another_leader(1 + number % 6, is_unclean=disturbance.startswith("unclean"))
            case "stop":
                self.stop_cleanly()
            case "power cut":
                self.lose_power()
            case "flipped bit":
                self.flip_a_bit(number)

    def get_another_leader(self, back: int, *, is_unclean: bool) -> None:
        """Elect a leader whose log ends earlier; below the high watermark if the election was unclean.

        Not below what was compacted: the last record of a key may be cut off there, when those before it are gone.
        """
        boundaries = [batch.base_offset for batch in self.model]
        cut = boundaries[max(len(boundaries) - back, 0)] if boundaries else 0
        cut = max(cut, self.compacted_end if is_unclean else self.partition.high_watermark)
        self.epoch += 1
        self.follow()
        cut, following = min(cut, self.end_offset), self.partition.following
        self.node.table.checkpoints.lower_recovery_point(self.partition, cut, lambda fault: following.truncate_to(cut))
        self.clock.advance(0)
        assert self.end_offset <= cut
        self.committed_end = min(self.committed_end, self.end_offset)
        self.model = [batch for batch in self.model if batch.base_offset < self.end_offset]

    def stop_cleanly(self) -> None:
        self.keeper.stop()
        self.clock.advance(0)
        self.node.table.close()
        self.start()

    def lose_power(self) -> None:
        self.disk.power_cut()
        self.disk.reboot()
        self.start()
        self.model = [batch for batch in self.model if batch.base_offset < self.end_offset]

    @property
    def checkpoint_path(self) -> str | None:
        checkpoint = self.partition.log.checkpoint
        assert checkpoint is not None
        return None if checkpoint.id is None else checkpoint.path_of(checkpoint.id)

    def flip_a_bit(self, number: int) -> None:
        path = self.checkpoint_path
        if path is not None:
            self.disk.flip_bit(path, number % self.disk.size_of(path), number % 8)

    # The law

    @invariant()
    def a_load_gives_what_the_committed_log_gives(self) -> None:
        end_offset = self.partition.high_watermark
        if end_offset < self.compacted_end:
            return  # after a restart: a load is not complete before the leader has told more
        loaded, expected = GroupStoreReceiver(decode_log_record), GroupStoreReceiver(decode_log_record)
        done: list[bool] = []
        load = Load[GroupLogRecord](
            self.partition,
            clock=self.clock,
            decode=decode_log_record,
            apply=loaded.store.apply,
            on_marker=loaded.on_marker,
            on_done=lambda: done.append(True),
            on_failed=lambda fault: self.fail_with(fault),
        )
        load.begin()
        self.clock.advance(0)
        load.close()
        assert done or end_offset < self.end_offset, "all is committed, so the load comes to its end"
        assert load.from_offset <= self.committed_end
        for batch in self.model:
            if batch.base_offset < max(end_offset, load.from_offset):
                if batch.marker is not None:
                    expected.on_marker(batch.producer_id, batch.marker)
                for record in batch.records:
                    expected.on_record(record, -1 if batch.producer_id == PLAIN else batch.producer_id, 0)
        assert groups_seen(loaded.store, PRODUCERS) == groups_seen(expected.store, PRODUCERS)

    def fail_with(self, fault: Exception) -> None:
        raise AssertionError(f"the load failed: {fault}")


TestCoordinatorCheckpoints = CoordinatorCheckpoints.TestCase
TestCoordinatorCheckpoints.settings = settings(
    max_examples=150,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
