"""The records of one partition that are put back, while its position moves."""

from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.fetching import Fetched
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record, build_batch

ORDERS = TopicPartition("orders", 0)


def _store(partition: ConsumedPartition, start: int, end: int, epoch: int) -> None:
    """The answer to a fetch has these records."""
    records = [Record(0, 1, None, b"%d" % offset) for offset in range(start, end)]
    batch = bytes(build_batch(records, base_offset=start, leader_epoch=epoch))
    partition.store(
        Fetched(
            topic_partition=ORDERS,
            offset=start,
            next_offset=end,
            buffers=[batch],
            size_bytes=len(batch),
            readable_end=end,
            log_start_offset=0,
            preferred_read_replica=-1,
            fault=None,
            last_epoch=epoch,
        )
    )


def _take(partition: ConsumedPartition, limit: int = 100) -> list[Record]:
    taken: list[tuple[TopicPartition, Record]] = []
    partition.take(limit, taken)
    return [record for _, record in taken]


def _offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def _read(start: int, end: int) -> tuple[ConsumedPartition, list[Record]]:
    """A partition that has returned these records."""
    partition = ConsumedPartition(ORDERS)
    partition.start_at(start)
    _store(partition, start, end, 3)
    return partition, _take(partition)


def test_a_record_that_is_put_back_is_the_next_one() -> None:
    partition, records = _read(10, 14)
    partition.put_back(records[1:])
    assert (partition.next_offset, partition.position.offset) == (11, 14)
    assert _offsets(_take(partition)) == [11, 12, 13]
    assert partition.next_offset == 14


def test_records_that_are_put_back_after_a_reset_to_a_lower_offset_hide_no_records_there() -> None:
    """The topic was created again: its log is shorter than what was read of the old log."""
    partition, records = _read(10, 14)
    partition.start_at(2, 0)
    partition.put_back(records[1:])
    assert _offsets(_take(partition)) == [11, 12, 13]
    assert partition.next_offset == 2
    _store(partition, 2, 5, 0)
    assert _offsets(_take(partition)) == [2, 3, 4]


def test_a_seek_drops_records_that_were_put_back() -> None:
    partition, records = _read(10, 14)
    partition.put_back(records)
    partition.start_at(12)
    assert partition.is_drained
    assert partition.next_offset == 12
