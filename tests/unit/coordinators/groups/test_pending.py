"""Offsets that wait for the end of a transaction."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.groups.consumer_records import ConsumerGroupRecord
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    OffsetCommitValue,
    OffsetRecord,
    PendingOffset,
    TransactionEnd,
    decode_record,
    encode_record,
    pending_offset,
)
from tailrace.coordinators.groups.store import GroupStore, LatestGroups, PendingOffsets, TopicIndex
from tailrace.model.partitions import TopicPartition

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)


def value(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)


def test_an_offset_counts_when_its_transaction_commits() -> None:
    pending = PendingOffsets()
    pending.add(7, ORDERS, value(1))
    pending.add(8, BILLS, value(2))
    assert pending.partitions == {ORDERS, BILLS}
    assert pending.end(7, is_committed=True) == [(ORDERS, value(1))]
    assert pending.end(8, is_committed=False) == []
    assert not pending
    assert pending.end(9, is_committed=True) == []


def test_the_last_one_to_be_written_counts() -> None:
    pending = PendingOffsets()
    pending.add(7, ORDERS, value(1))
    pending.add(8, ORDERS, value(2))
    assert pending.end(8, is_committed=True) == [(ORDERS, value(2))]
    assert pending.has(ORDERS), "the other transaction is open all the same"
    assert pending.end(7, is_committed=True) == []


def test_one_that_was_written_later_counts_although_it_ends_later() -> None:
    pending = PendingOffsets()
    pending.add(7, ORDERS, value(1))
    pending.add(8, ORDERS, value(2))
    assert pending.end(7, is_committed=True) == [(ORDERS, value(1))]
    assert pending.end(8, is_committed=True) == [(ORDERS, value(2))]


def test_forgotten_offsets_of_a_partition_wait_for_no_marker() -> None:
    pending = PendingOffsets()
    pending.add(7, ORDERS, value(1))
    pending.add(7, BILLS, value(2))
    pending.add(8, ORDERS, value(3))
    pending.forget(ORDERS)
    assert pending.partitions == {BILLS}
    assert list(pending.waiting()) == [(BILLS, value(2))]
    assert pending.end(8, is_committed=True) == []
    assert pending.end(7, is_committed=True) == [(BILLS, value(2))]
    assert not pending


def test_topics_of_offsets_that_wait_are_the_stores_too() -> None:
    store = GroupStore()
    store.apply(PendingOffset(group_id="g", producer_id=7, topic="orders", partition=0, value=value(1)))
    store.apply(OffsetRecord(group_id="g", topic="bills", partition=0, value=value(2)))
    assert store.topic_names == {"orders", "bills"}
    store.apply(OffsetRecord(group_id="g", topic="orders", partition=0, value=None))
    assert store.topic_names == {"bills"}
    store.apply(OffsetRecord(group_id="g", topic="bills", partition=0, value=None))
    assert not store.groups
    store.apply(TransactionEnd(group_id="g", producer_id=7, is_committed=True))
    assert not store.groups
    assert not store.topic_names


def test_a_plain_commit_takes_the_place_of_those_of_before() -> None:
    pending = PendingOffsets()
    pending.add(7, ORDERS, value(1))
    pending.supersede(ORDERS)
    pending.add(8, ORDERS, value(3))
    assert pending.end(7, is_committed=True) == []
    assert pending.end(8, is_committed=True) == [(ORDERS, value(3))]


def test_a_producer_may_change_its_mind() -> None:
    pending = PendingOffsets()
    pending.add(7, ORDERS, value(1))
    pending.add(7, ORDERS, value(2))
    assert pending.end(7, is_committed=True) == [(ORDERS, value(2))]


groups, producers = st.sampled_from(["a", "b"]), st.integers(1, 3)
topics, offsets = st.sampled_from(["orders", "bills"]), st.integers(0, 9)
records = st.lists(
    st.one_of(
        st.builds(
            OffsetRecord,
            group_id=groups,
            topic=topics,
            partition=st.just(0),
            value=st.none() | st.builds(value, offsets),
        ),
        st.builds(
            PendingOffset,
            group_id=groups,
            producer_id=producers,
            topic=topics,
            partition=st.just(0),
            value=st.builds(value, offsets),
        ),
        st.tuples(producers, st.booleans()),
    ),
    max_size=20,
)


def applied(steps: list[OffsetRecord | PendingOffset | tuple[int, bool]]) -> tuple[GroupStore, dict[object, object]]:
    """The store, and what it should have: per group and partition the last write that counts."""
    store = GroupStore()
    latest = LatestGroups(store)
    writes: dict[tuple[str, str], list[tuple[int | None, OffsetCommitValue | None]]] = {}
    for step in steps:
        made: list[GroupLogRecord] = []
        if isinstance(step, tuple):
            producer_id, is_committed = step
            made += [
                TransactionEnd(group_id=group_id, producer_id=producer_id, is_committed=is_committed)
                for group_id in sorted(latest.groups_waiting_for(producer_id))
            ]
            for at, log in writes.items():
                left = [entry for entry in log if is_committed or entry[0] != producer_id]
                writes[at] = [(None if entry[0] == producer_id else entry[0], entry[1]) for entry in left]
        else:
            made.append(step)
            producer = step.producer_id if isinstance(step, PendingOffset) else None
            writes.setdefault((step.group_id, step.topic), []).append((producer, step.value))
        latest.stage(made)
        latest.commit(made)
    counting = {at: [written for producer, written in log if producer is None][-1:] for at, log in writes.items()}
    return store, {at: found[0] for at, found in counting.items() if found and found[0] is not None}


@given(records)
def test_the_store_has_the_last_write_that_counts(
    steps: list[OffsetRecord | PendingOffset | tuple[int, bool]],
) -> None:
    store, expected = applied(steps)
    found = {
        (group_id, partition.topic): offset
        for group_id, group in store.groups.items()
        for partition, offset in group.offsets.items()
    }
    assert found == expected
    index = TopicIndex()
    for (group_id, topic), offset in found.items():
        index.replace(group_id, topic, None, offset)
    assert store.topics.names == index.names
    assert all(not group.is_empty for group in store.groups.values())


def test_a_pending_offset_is_an_offset_in_a_transactional_batch() -> None:
    record = PendingOffset(group_id="g", producer_id=7, topic="orders", partition=0, value=value(4))
    decoded = decode_record(*encode_record(record))
    assert isinstance(decoded, OffsetRecord)
    assert decoded.value is not None
    assert not isinstance(decoded, ConsumerGroupRecord)
    assert pending_offset(decoded, 7, decoded.value) == record
