"""The records that a caller has received and not passed: a failed caller has them withheld from a commit."""

from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.client.reading.unpassed_records import UnpassedRecords
from tailrace.model.partitions import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def _record(partition: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(*partition, offset, 0, None, b"v", ())


def _unpassed(*records: ConsumerRecord) -> UnpassedRecords:
    unpassed = UnpassedRecords()
    unpassed.receive(records)
    return unpassed


def test_a_caller_that_has_not_failed_has_processed_all() -> None:
    assert _unpassed(_record(A, 3)).end_of({A: 4, B: 9}) == {A: 4, B: 9}


def test_a_failed_caller_withholds_from_the_first_record_of_each_partition_on() -> None:
    unpassed = _unpassed(_record(A, 3), _record(B, 7), _record(A, 4), _record(B, 8))
    unpassed.withhold()
    assert unpassed.end_of({A: 5, B: 9}) == {A: 3, B: 7}


def test_records_are_passed_when_the_caller_asks_for_more() -> None:
    unpassed = _unpassed(_record(A, 3))
    unpassed.pass_all()
    unpassed.receive([_record(A, 4)])
    unpassed.withhold()
    assert unpassed.end_of({A: 5, B: 9}) == {A: 4, B: 9}


def test_a_record_of_an_iteration_passes_the_records_before_it() -> None:
    unpassed = _unpassed(_record(A, 3), _record(B, 7))
    unpassed.receive_next(_record(A, 4))
    unpassed.receive_next(_record(A, 5))
    unpassed.withhold()
    assert unpassed.end_of({A: 9, B: 8}) == {A: 5, B: 8}


def test_a_commit_of_the_caller_says_what_is_processed() -> None:
    unpassed = _unpassed(_record(A, 3), _record(B, 7))
    unpassed.commit({A: 6})
    unpassed.withhold()
    assert unpassed.end_of({A: 9, B: 8}) == {A: 6, B: 7}


def test_a_commit_of_an_iteration_covers_its_record() -> None:
    unpassed = UnpassedRecords()
    unpassed.receive_next(_record(A, 4))
    unpassed.commit({A: 5, B: 1})
    unpassed.withhold()
    assert unpassed.end_of({A: 5, B: 1}) == {A: 5, B: 1}


def test_a_position_that_was_sought_below_stays() -> None:
    unpassed = _unpassed(_record(A, 3))
    unpassed.withhold()
    assert unpassed.end_of({A: 1}) == {A: 1}


def test_a_partition_that_is_not_read_any_more_is_not_committed() -> None:
    unpassed = _unpassed(_record(A, 3))
    unpassed.withhold()
    assert unpassed.end_of({B: 1}) == {B: 1}
