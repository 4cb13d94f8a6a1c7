"""The records of a coordinator's log that its checkpoint has."""

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.protocol.records.record import Record
from tailrace.server.coordination.latest_records import LatestRecords
from tailrace.storage.snapshots.format import CheckpointRecord

COMMIT = EndTransactionMarker(ControlType.COMMIT, 0)
ABORT = EndTransactionMarker(ControlType.ABORT, 0)
NO_PRODUCER = -1


class _Log:
    """Writes a log, and keeps the records of it that count."""

    def __init__(self) -> None:
        self._latest = LatestRecords()

    def write(self, key: bytes, value: bytes | None, *, producer_id: int = NO_PRODUCER, epoch: int = -1) -> None:
        self._latest.on_record(Record(0, 0, key, value), producer_id, epoch)

    def end(self, producer_id: int, marker: EndTransactionMarker) -> None:
        self._latest.on_marker(producer_id, marker)

    @property
    def kept(self) -> list[CheckpointRecord]:
        return list(self._latest.records())


def test_the_last_record_of_each_key_counts_in_the_order_of_the_log() -> None:
    log = _Log()
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"c", None)):
        log.write(key, value)
    assert log.kept == [CheckpointRecord(b"b", b"2"), CheckpointRecord(b"a", b"3")]


def test_records_of_an_open_transaction_stay_those_of_its_producer() -> None:
    log = _Log()
    log.write(b"a", b"1")
    log.write(b"a", b"2", producer_id=7, epoch=3)
    assert log.kept == [CheckpointRecord(b"a", b"1"), CheckpointRecord(b"a", b"2", 7, 3)]
    log.end(7, COMMIT)
    assert log.kept == [CheckpointRecord(b"a", b"2")]


def test_an_aborted_transaction_leaves_nothing() -> None:
    log = _Log()
    log.write(b"a", b"1")
    log.write(b"a", b"2", producer_id=7, epoch=0)
    log.end(7, ABORT)
    log.end(8, COMMIT)
    assert log.kept == [CheckpointRecord(b"a", b"1")]


def test_a_record_outside_is_not_replaced_by_one_that_was_written_before_it() -> None:
    log = _Log()
    log.write(b"a", b"1", producer_id=7, epoch=0)
    log.write(b"a", b"2")
    kept = [CheckpointRecord(b"a", b"1", 7, 0), CheckpointRecord(b"a", b"2")]
    assert log.kept == kept, "a replay must see that it is older"
    log.end(7, COMMIT)
    assert log.kept == [CheckpointRecord(b"a", b"2")]


def test_a_tombstone_removes_what_an_open_transaction_has_written_before() -> None:
    log = _Log()
    log.write(b"a", b"1", producer_id=7, epoch=0)
    log.write(b"b", b"1", producer_id=7, epoch=0)
    log.write(b"a", None)
    assert log.kept == [CheckpointRecord(b"b", b"1", 7, 0)]
    log.write(b"a", b"2", producer_id=7, epoch=0)
    log.end(7, COMMIT)
    assert log.kept == [CheckpointRecord(b"b", b"1"), CheckpointRecord(b"a", b"2")]


def test_a_tombstone_in_a_transaction_stays_while_an_older_record_may_still_be_committed() -> None:
    log = _Log()
    log.write(b"a", b"1", producer_id=7, epoch=0)
    log.write(b"a", None, producer_id=8, epoch=0)
    log.end(8, COMMIT)
    assert log.kept == [CheckpointRecord(b"a", b"1", 7, 0), CheckpointRecord(b"a", None)]
    log.end(7, COMMIT)
    assert log.kept == []


def test_of_two_transactions_the_later_record_counts_whichever_is_committed_first() -> None:
    for first, second in ((7, 8), (8, 7)):
        log = _Log()
        log.write(b"a", b"of 7", producer_id=7, epoch=0)
        log.write(b"a", b"of 8", producer_id=8, epoch=0)
        log.end(first, COMMIT)
        log.end(second, COMMIT)
        assert log.kept == [CheckpointRecord(b"a", b"of 8")]


def test_pending_records_keep_the_order_of_the_log_across_producers() -> None:
    log = _Log()
    for producer_id, key in ((7, b"a"), (8, b"b"), (7, b"c"), (8, b"a")):
        log.write(key, b"1", producer_id=producer_id, epoch=0)
    assert [(record.producer_id, record.key) for record in log.kept] == [(7, b"a"), (8, b"b"), (7, b"c"), (8, b"a")]


def test_a_record_without_a_key_is_refused() -> None:
    with pytest.raises(CorruptRecords, match="without a key"):
        LatestRecords().on_record(Record(0, 0, None, b"1"), NO_PRODUCER, -1)
