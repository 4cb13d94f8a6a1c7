"""A consumer's partition with key ranges: what a broker leaves out, and what is left out here."""

import pytest

from tailrace.client.reading.assigned_partitions import AssignedPartitions
from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.fetching import (
    Fetched,
    FetchOptions,
    PartitionFetch,
    fetch_request,
    read_partition,
    wire_ranges,
)
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.model.key_ranges import KeyRange, contains, hash_of, of_slots
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import PartitionData
from tailrace.protocol.records.record import Record, build_batch

ORDERS = TopicPartition("orders", 0)
LOW = (of_slots(0, 127),)
OPTIONS = FetchOptions(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, rack="")
KEYS = [b"key-%d" % number for number in range(20)]
OF_LOW = [offset for offset, key in enumerate(KEYS) if contains(LOW, hash_of(key, offset))]


def partition_of(*ranges: KeyRange) -> ConsumedPartition:
    partition = ConsumedPartition(ORDERS)
    partition.start_at(0)
    partition.change_key_ranges(ranges)
    return partition


def fetched(*, is_filtered: bool, codec: int = 0) -> Fetched:
    batch = bytes(build_batch([Record(0, 1, key, b"v", ()) for key in KEYS], codec=codec))
    return Fetched(
        topic_partition=ORDERS,
        offset=0,
        next_offset=len(KEYS),
        buffers=[batch],
        size_bytes=len(batch),
        readable_end=len(KEYS),
        log_start_offset=0,
        preferred_read_replica=-1,
        fault=None,
        is_filtered=is_filtered,
    )


def offsets(partition: ConsumedPartition) -> list[int]:
    taken: list[tuple[TopicPartition, Record]] = []
    while not partition.is_drained:
        partition.take(100, taken)
    return [record.offset for _, record in taken]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_records_of_other_keys_are_left_out_here_if_the_broker_has_not(codec: int) -> None:
    partition = partition_of(*LOW)
    partition.store(fetched(is_filtered=False, codec=codec))
    assert offsets(partition) == OF_LOW
    assert partition.next_offset == len(KEYS)


def test_an_answer_without_a_wanted_record_moves_the_position() -> None:
    key_hash = next(h for h in range(100) if all(hash_of(key, 0) != h for key in KEYS))
    partition = partition_of(KeyRange(key_hash, key_hash))
    partition.store(fetched(is_filtered=False))
    assert partition.is_drained
    assert partition.next_offset == len(KEYS)


def test_the_broker_is_asked_for_the_ranges_and_believed_if_it_repeats_them() -> None:
    want = PartitionFetch(ORDERS, ZERO_TOPIC_ID, 5, 0, 1 << 20, LOW)
    ((topic,), _) = (fetch_request([want], OPTIONS).topics, None)
    assert topic.partitions[0].key_ranges == wire_ranges(LOW)
    data = PartitionData(
        partition_index=0,
        high_watermark=90,
        aborted_transactions=None,
        records=b"",
        applied_key_ranges=wire_ranges(LOW),
        scanned_to=70,
    )
    answer = read_partition(want, data, OPTIONS)
    assert (answer.is_filtered, answer.next_offset) == (True, 70)
    for other in ((), wire_ranges([of_slots(0, 126)])):
        data = PartitionData(
            partition_index=0,
            high_watermark=90,
            aborted_transactions=None,
            records=b"",
            applied_key_ranges=other,
            scanned_to=70,
        )
        answer = read_partition(want, data, OPTIONS)
        assert (answer.is_filtered, answer.next_offset) == (False, 5)


def test_other_ranges_begin_at_the_next_record_and_drop_those_that_were_fetched() -> None:
    assigned = AssignedPartitions()
    assigned.assign({ORDERS: LOW})
    assigned.seek(ORDERS, 0)
    partition = assigned.by_name[ORDERS]
    partition.store(fetched(is_filtered=False))
    assigned.note(ORDERS)
    assigned.take(2)
    assigned.assign([ORDERS])
    assert partition.key_ranges == ()
    assert partition.is_drained
    assert partition.position.offset == partition.next_offset == OF_LOW[1] + 1
