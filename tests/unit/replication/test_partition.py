from pathlib import Path
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.replication.outcomes import READ_COMMITTED, READ_UNCOMMITTED, Appended
from tailrace.replication.partition import Partition
from tailrace.replication.staging import MOST_UNWRITTEN
from tailrace.replication.verification import UNVERIFIED
from tailrace.replication.watchers import Change
from tailrace.storage import ReadLimits
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of, records_of
from testkit.nodes.ports import EVERY_CHANGE, DeferredDisk, RecordingWatcher

Outcomes = list[Appended | KafkaError]


class PartitionBench:
    """A partition whose disk flushes when the test says so."""

    def __init__(self, *, is_flushed: bool = True) -> None:
        self.files = SimulatedDisk()
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        settings = {"log.durability": "flushed" if is_flushed else "page-cache"}
        self.node = DataPath("/logs", files=self.files, clock=self.clock, disk=self.disk, settings=settings)
        self.partition = self.node.create()
        self.disk.run()
        self.outcomes: Outcomes = []

    def stage(self, *values: bytes, acks: int = 1, **options: Any) -> None:
        self.partition.append_as_leader(
            batch_of(*values, **options),
            acks=acks,
            produce_version=9,
            now_ms=self.clock.now_ms(),
            on_done=self.outcomes.append,
        )

    def write(self) -> None:
        self.node.table.write_staged()


@pytest.fixture
def bench() -> PartitionBench:
    return PartitionBench()


def codes(outcomes: Outcomes) -> list[int]:
    return [outcome.code if isinstance(outcome, KafkaError) else 0 for outcome in outcomes]


def test_no_callback_comes_before_the_batch_is_written(bench: PartitionBench) -> None:
    bench.stage(b"a")
    assert bench.outcomes == []
    assert bench.partition.log.log_end_offset == 0
    bench.write()
    assert bench.outcomes == [Appended(0, 0, -1, 0)]


def test_the_batches_of_one_turn_are_written_with_one_operation_and_answered_in_order(bench: PartitionBench) -> None:
    before = bench.files.operations
    bench.stage(b"a", b"b")
    bench.stage(b"c")
    bench.stage(b"d", b"e", b"f")
    bench.write()
    assert bench.files.operations == before + 1
    assert [(done.base_offset, done.last_offset) for done in bench.outcomes if isinstance(done, Appended)] == [
        (0, 1),
        (2, 2),
        (3, 5),
    ]


def test_under_flushed_durability_the_high_watermark_waits_for_the_flush(bench: PartitionBench) -> None:
    bench.stage(b"a")
    bench.write()
    assert (bench.partition.high_watermark, bench.partition.log.log_end_offset) == (0, 1)
    bench.disk.run()
    assert bench.partition.high_watermark == 1


def test_under_page_cache_durability_the_high_watermark_follows_the_log_end() -> None:
    bench = PartitionBench(is_flushed=False)
    bench.stage(b"a")
    bench.write()
    assert bench.partition.high_watermark == 1
    assert bench.disk.waiting == []


def test_a_flush_covers_only_what_was_written_before_it_began(bench: PartitionBench) -> None:
    bench.stage(b"a")
    bench.write()
    log, done = bench.disk.waiting.pop()
    ticket = log.flushes.begin()
    bench.stage(b"b")
    bench.write()
    ticket.sync()
    log.flushes.finish(ticket)
    done()
    assert bench.partition.high_watermark == 1
    bench.disk.run()
    assert bench.partition.high_watermark == 2


def test_a_failed_write_fails_every_batch_of_the_turn_and_leaves_the_log_as_it_was(bench: PartitionBench) -> None:
    bench.stage(b"before", producer_id=3, producer_epoch=0, base_sequence=0)
    bench.write()
    bench.outcomes.clear()
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=1)
    bench.stage(b"b")
    bench.stage(b"before", producer_id=3, producer_epoch=0, base_sequence=0)  # a retry of what is in the log
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=1)  # a retry of what is only staged
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert codes(bench.outcomes) == [storage_error, storage_error, 0, storage_error]
    assert bench.partition.log.log_end_offset == 1
    bench.outcomes.clear()
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=1)
    bench.write()
    assert bench.outcomes == [Appended(1, 1, -1, 0)]


@pytest.mark.parametrize("stored", [0, 1])
def test_behind_a_batch_that_was_not_written_the_next_ones_get_its_error(bench: PartitionBench, stored: int) -> None:
    for sequence in range(stored):
        bench.stage(b"stored", producer_id=3, producer_epoch=0, base_sequence=sequence)
        bench.write()
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=stored)
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    for _ in range(2):  # an answer of 45 has librdkafka raise its epoch, and store again what waits for its replicas
        with pytest.raises(KafkaError, match=f"batch with sequence {stored} was not written") as caught:
            bench.stage(b"b", producer_id=3, producer_epoch=0, base_sequence=stored + 1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    bench.stage(b"other", producer_id=4, producer_epoch=0, base_sequence=0)
    for sequence in range(stored + 2):  # retries of what is stored succeed
        bench.stage(b"again", producer_id=3, producer_epoch=0, base_sequence=sequence)
    bench.write()
    assert codes(bench.outcomes) == [0] * stored + [ErrorCode.KAFKA_STORAGE_ERROR] + [0] * (stored + 3)
    assert bench.partition.log.log_end_offset == stored + 3


def test_a_batch_before_the_unwritten_one_is_no_batch_behind_it(bench: PartitionBench) -> None:
    bench.stage(b"b", producer_id=3, producer_epoch=0, base_sequence=1)  # sequence 0 was refused before it was staged
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    for sequence in (0, 1):
        bench.stage(b"again", producer_id=3, producer_epoch=0, base_sequence=sequence)
        bench.write()
    assert codes(bench.outcomes) == [ErrorCode.KAFKA_STORAGE_ERROR, 0, 0]


def test_sequences_that_have_begun_again_at_0_are_behind_the_unwritten_one_too(bench: PartitionBench) -> None:
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=0x7FFFFFFF)
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    with pytest.raises(KafkaError, match="was not written"):
        bench.stage(b"b", producer_id=3, producer_epoch=0, base_sequence=0)


def test_a_failed_write_keeps_no_buffer_of_a_sender_and_knows_so_many_producers(bench: PartitionBench) -> None:
    batch = bytearray(batch_of(b"a", producer_id=3, producer_epoch=0, base_sequence=0))
    now_ms = bench.clock.now_ms()
    bench.partition.append_as_leader(batch, acks=1, produce_version=9, now_ms=now_ms, on_done=bench.outcomes.append)
    for producer_id in range(MOST_UNWRITTEN + 5):
        bench.stage(b"a", producer_id=10 + producer_id, producer_epoch=0, base_sequence=0)
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    batch.extend(b"the buffer is free again")
    bench.stage(b"b", producer_id=3, producer_epoch=0, base_sequence=1)  # the oldest is forgotten
    with pytest.raises(KafkaError, match="was not written"):
        bench.stage(b"b", producer_id=10 + MOST_UNWRITTEN, producer_epoch=0, base_sequence=1)


def test_a_late_batch_of_an_older_epoch_does_not_end_the_wait_for_the_unwritten_one(bench: PartitionBench) -> None:
    bench.stage(b"a", producer_id=3, producer_epoch=1, base_sequence=0)
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    bench.stage(b"late", producer_id=3, producer_epoch=0, base_sequence=7)
    with pytest.raises(KafkaError, match="was not written"):
        bench.stage(b"b", producer_id=3, producer_epoch=1, base_sequence=1)


def test_a_new_epoch_of_a_producer_may_begin_behind_a_batch_that_was_not_written(bench: PartitionBench) -> None:
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=0)
    bench.files.fail_at(bench.files.operations + 1)
    bench.write()
    bench.stage(b"a", producer_id=3, producer_epoch=1, base_sequence=0)
    bench.write()
    bench.stage(b"b", producer_id=3, producer_epoch=1, base_sequence=1)
    bench.write()
    assert codes(bench.outcomes) == [ErrorCode.KAFKA_STORAGE_ERROR, 0, 0]


def test_a_retry_is_answered_with_the_offsets_of_the_first_try(bench: PartitionBench) -> None:
    for _ in range(2):
        bench.stage(b"a", b"b", producer_id=3, producer_epoch=0, base_sequence=0)
    bench.write()
    bench.stage(b"a", b"b", producer_id=3, producer_epoch=0, base_sequence=0)
    bench.write()
    assert bench.outcomes == [Appended(0, 1, -1, 0)] * 3
    assert bench.partition.log.log_end_offset == 2


def test_a_gap_in_the_sequence_is_refused_at_once_also_behind_a_staged_batch(bench: PartitionBench) -> None:
    bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=0)
    with pytest.raises(KafkaError) as caught:
        bench.stage(b"c", producer_id=3, producer_epoch=0, base_sequence=2)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_transactional_batch_is_refused_if_its_transaction_is_not_verified(bench: PartitionBench) -> None:
    with pytest.raises(KafkaError) as caught:
        bench.stage(b"a", producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def test_a_partition_that_is_not_led_refuses_and_names_the_leader(bench: PartitionBench) -> None:
    bench.node.create(leader=2, leader_epoch=1)
    with pytest.raises(KafkaError, match="broker 2") as caught:
        bench.stage(b"a")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_acks_all_needs_enough_in_sync_replicas_and_acks_one_does_not(bench: PartitionBench) -> None:
    from tailrace.model.topic_config import TopicConfig

    partition = bench.node.create("two", replicas=(1, 2), config=TopicConfig(min_insync_replicas=2))
    batch = batch_of(b"a")
    with pytest.raises(KafkaError) as caught:
        partition.append_as_leader(batch, acks=-1, produce_version=9, now_ms=0, on_done=bench.outcomes.append)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    now_ms = bench.clock.now_ms()
    partition.append_as_leader(batch, acks=1, produce_version=9, now_ms=now_ms, on_done=bench.outcomes.append)
    bench.write()
    bench.disk.run()
    assert codes(bench.outcomes) == [0]
    assert partition.high_watermark == 0, "below min.insync.replicas nothing is committed (KIP-966)"


def test_a_waiter_is_called_when_the_high_watermark_is_there_or_with_why_it_never_will(bench: PartitionBench) -> None:
    outcomes: list[KafkaError | None] = []
    bench.stage(b"a", b"b")
    bench.write()
    bench.partition.replica.when_high_watermark_reaches(2, outcomes.append)
    bench.partition.replica.when_high_watermark_reaches(3, outcomes.append)
    bench.disk.run()
    assert outcomes == [None]
    bench.partition.replica.when_high_watermark_reaches(1, outcomes.append)
    assert outcomes == [None, None]
    bench.partition.step_down()
    assert outcomes[2] is not None
    assert outcomes[2].code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_watcher_of_the_high_watermark_is_notified_until_it_is_removed(
    bench: PartitionBench,
) -> None:
    changes: list[tuple[Partition, int]] = []
    watcher = RecordingWatcher(changes)
    for _ in range(2):
        bench.partition.watch(watcher, Change.HIGH_WATERMARK)
    bench.stage(b"a")
    bench.write()
    assert changes == []
    bench.disk.run()
    assert changes == [(bench.partition, Change.HIGH_WATERMARK)]
    bench.stage(b"b")
    bench.write()
    bench.disk.run()
    assert len(changes) == 2
    bench.partition.unwatch(watcher)
    bench.stage(b"c")
    bench.write()
    bench.disk.run()
    assert len(changes) == 2


def test_a_watcher_is_notified_of_each_kind_of_change(bench: PartitionBench) -> None:
    changes: list[tuple[Partition, int]] = []
    bench.partition.watch(RecordingWatcher(changes), EVERY_CHANGE)

    def kinds() -> list[int]:
        found = [kinds for _, kinds in changes]
        changes.clear()
        return found

    bench.stage(b"a", b"b")
    bench.write()
    bench.disk.run()
    assert kinds() == [Change.LOG_END, Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET]
    bench.partition.delete_records(1)
    bench.partition.delete_records(1)
    assert kinds() == [Change.LOG_START]
    bench.partition.log.condemn("a flipped bit")
    assert kinds() == [Change.ERROR]
    bench.partition.step_down()
    assert kinds() == [Change.ROLE]


def test_open_transactions_hold_the_last_stable_offset_and_its_watchers_back(bench: PartitionBench) -> None:
    changes: list[tuple[Partition, int]] = []
    bench.partition.watch(RecordingWatcher(changes), Change.LAST_STABLE_OFFSET)
    bench.partition.staging.append_records(
        [(b"k", b"v")], now_ms=0, on_done=lambda _: None, producer_id=7, producer_epoch=0, verification=UNVERIFIED
    )
    for _ in range(2):
        bench.stage(b"a")
        bench.write()
        bench.disk.run()
    assert changes == []
    marker = EndTransactionMarker(ControlType.COMMIT, 0)
    bench.partition.staging.append_marker(marker, producer_id=7, producer_epoch=0, now_ms=0, on_done=lambda _: None)
    bench.write()
    bench.disk.run()
    assert changes == [(bench.partition, Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET)]


def test_nothing_at_or_above_the_high_watermark_is_read(bench: PartitionBench) -> None:
    bench.stage(b"a", b"b")
    bench.write()
    bench.disk.run()
    bench.stage(b"c")
    bench.write()
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        read = bench.partition.read(ReadLimits(0, 1 << 20, isolation=isolation))
        assert [record.value for record in records_of(read.records)] == [b"a", b"b"]
        for offset in (2, 3):
            empty = bench.partition.read(ReadLimits(offset, 1 << 20, isolation=isolation))
            assert (empty.records, empty.size_bytes) == (b"", 0)
        with pytest.raises(KafkaError) as caught:
            bench.partition.read(ReadLimits(4, 1 << 20, isolation=isolation))
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_records_of_a_coordinator_are_done_when_committed_and_never_within_the_call(bench: PartitionBench) -> None:
    done: Outcomes = []
    bench.partition.staging.append_records(
        [(b"k", b"v"), (b"k", None)],
        now_ms=5,
        on_done=done.append,
        producer_id=-1,
        producer_epoch=-1,
        verification=UNVERIFIED,
    )
    assert (done, bench.partition.log.log_end_offset) == ([], 0)
    bench.write()
    assert (done, bench.partition.log.log_end_offset) == ([], 2)
    bench.disk.run()
    assert done == [Appended(0, 1, -1, 0)]


def test_a_coordinator_without_its_partition_gets_the_error_and_not_within_the_call(bench: PartitionBench) -> None:
    done: Outcomes = []
    bench.partition.step_down()
    bench.partition.staging.append_records(
        [(b"k", b"v")], now_ms=5, on_done=done.append, producer_id=-1, producer_epoch=-1, verification=UNVERIFIED
    )
    assert done == []
    bench.write()
    assert codes(done) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_records_in_the_log_are_readable_after_a_crash_and_a_restart(tmp_path: Path) -> None:
    node = DataPath(str(tmp_path))
    node.create()
    node.produce("orders", b"a")
    again = DataPath(str(tmp_path))  # the first node was never closed
    again.create()
    again.end_turn()
    assert again.values("orders") == [b"a"]
    assert again.table.get("orders", 0).high_watermark == 1
