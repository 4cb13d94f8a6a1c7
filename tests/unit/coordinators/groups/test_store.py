"""Committed and latest, as one log moves through both."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitValue,
    OffsetRecord,
)
from tailrace.coordinators.groups.store import GroupStore, LatestGroups

GROUPS = ("g", "h")


def _offset(group_id: str, partition: int, offset: int | None) -> OffsetRecord:
    value = None if offset is None else OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)
    return OffsetRecord(group_id=group_id, topic="t", partition=partition, value=value)


def _group(group_id: str, generation: int | None) -> GroupRecord:
    value = None
    if generation is not None:
        value = GroupMetadataValue(protocol_type="", generation=generation, protocol=None, leader=None, members=())
    return GroupRecord(group_id=group_id, value=value)


RECORDS: st.SearchStrategy[GroupLogRecord] = st.one_of(
    st.builds(_offset, st.sampled_from(GROUPS), st.integers(0, 2), st.none() | st.integers(0, 3)),
    st.builds(_group, st.sampled_from(GROUPS), st.none() | st.integers(0, 3)),
)
FATES = st.sampled_from(["committed", "discarded", "pending"])


def _replayed(records: list[GroupLogRecord]) -> GroupStore:
    store = GroupStore()
    for record in records:
        store.apply(record)
    return store


@given(st.lists(st.tuples(st.lists(RECORDS, max_size=4), FATES), max_size=8))
def test_both_states_are_replays_of_what_they_stand_for(writes: list[tuple[list[GroupLogRecord], str]]) -> None:
    committed = GroupStore()
    latest = LatestGroups(committed)
    for records, _ in writes:
        latest.stage(records)
    is_open = True  # writes commit in order: behind one that is pending, none is committed
    kept: list[tuple[list[GroupLogRecord], bool]] = []
    for records, fate in writes:
        is_open = is_open and fate != "pending"
        if fate == "discarded":
            latest.discard(records)
        elif is_open:
            latest.commit(records)
            kept.append((records, True))
        else:
            kept.append((records, False))
    assert committed.groups == _replayed([r for records, done in kept if done for r in records]).groups
    assert dict(latest.items()) == _replayed([r for records, _ in kept for r in records]).groups


def test_a_group_is_there_as_long_as_it_has_metadata_or_an_offset() -> None:
    store = GroupStore()
    store.apply(_offset("g", 0, 7))
    store.apply(_group("g", 1))
    store.apply(_offset("g", 0, None))
    assert store.get("g") is not None
    store.apply(_group("g", None))
    assert store.get("g") is None
    assert store.groups == {}


def test_equal_records_settle_one_by_one() -> None:
    store = GroupStore()
    latest = LatestGroups(store)
    first, second = _offset("g", 0, 7), _offset("g", 0, 7)
    latest.stage((first, second))
    latest.discard((second,))
    assert latest.get("g") is not None
    latest.discard((first,))
    assert latest.get("g") is None
