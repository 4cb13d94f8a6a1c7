"""Committed and latest, as one log moves through both."""

from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    ConsumerValue,
    CurrentMemberAssignmentValue,
    RegularExpressionValue,
    StoredTopicPartitions,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
)
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitValue,
    OffsetRecord,
    encode_record,
)
from tailrace.coordinators.groups.store import GroupStore, LatestGroups, belongs_to
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId

GROUPS = ("g", "h")


def _offset(group_id: str, partition: int, offset: int | None) -> OffsetRecord:
    value = None if offset is None else OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)
    return OffsetRecord(group_id=group_id, topic="t", partition=partition, value=value)


def _group(group_id: str, generation: int | None) -> GroupRecord:
    value = None
    if generation is not None:
        value = GroupMetadataValue(protocol_type="", generation=generation, protocol=None, leader=None, members=())
    return GroupRecord(group_id=group_id, value=value)


K = ConsumerRecordKind


def _consumer(group_id: str, kind: ConsumerRecordKind, member_id: str, number: int | None) -> ConsumerGroupRecord:
    """A record of a consumer group; another number makes another value, None a tombstone."""
    value: ConsumerValue | None = None
    if number is not None:
        some = (StoredTopicPartitions(topic_id=b"t" * 16, partitions=(number,)),)
        values: dict[ConsumerRecordKind, ConsumerValue] = {
            K.GROUP: ConsumerGroupMetadataValue(epoch=number + 1),
            K.MEMBER: ConsumerGroupMemberMetadataValue(client_id="c", client_host=f"host-{number}"),
            K.TARGET: TargetAssignmentMetadataValue(assignment_epoch=number + 1),
            K.TARGET_MEMBER: TargetAssignmentMemberValue(topic_partitions=some),
            K.CURRENT: CurrentMemberAssignmentValue(
                member_epoch=number + 1,
                previous_member_epoch=number,
                state=0,
                assigned_partitions=some,
                partitions_pending_revocation=(),
            ),
            K.EXPRESSION: RegularExpressionValue(topics=(f"t{number}",), timestamp=0),
        }
        value = values[kind]
    if kind is K.EXPRESSION:
        return ConsumerGroupRecord(kind=kind, group_id=group_id, regular_expression=member_id, value=value)
    return ConsumerGroupRecord(
        kind=kind, group_id=group_id, member_id="" if kind in (K.GROUP, K.TARGET) else member_id, value=value
    )


RECORDS: st.SearchStrategy[GroupLogRecord] = st.one_of(
    st.builds(_offset, st.sampled_from(GROUPS), st.integers(0, 2), st.none() | st.integers(0, 3)),
    st.builds(_group, st.sampled_from(GROUPS), st.none() | st.integers(0, 3)),
    st.builds(
        _consumer, st.sampled_from(GROUPS), st.sampled_from(K), st.sampled_from("ab"), st.none() | st.integers(0, 3)
    ),
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
    is_open = True  # writes commit in order: behind a pending write, none is committed
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
    appended = _replayed([r for records, _ in kept for r in records]).groups
    assert {name: group for name in GROUPS if (group := latest.get(name)) is not None} == appended
    in_topic = {name: group for name, group in latest.groups_in({"t": None}) if group.offsets}
    assert in_topic == {name: group for name, group in appended.items() if group.offsets}


A_MOVED: list[GroupLogRecord] = [
    _consumer("g", K.MEMBER, "a", 0),
    _consumer("g", K.CURRENT, "a", 1),
    _consumer("g", K.MEMBER, "a", 2),
]
"""A member that has its place, and comes from another host later."""


def _whole_ends(records: list[GroupLogRecord]) -> list[GroupLogRecord]:
    """The records, with all three tombstones of a member where there is a tombstone for its subscription."""
    found: list[GroupLogRecord] = []
    for record in records:
        if isinstance(record, ConsumerGroupRecord) and record.kind is K.MEMBER and record.value is None:
            kinds = (K.CURRENT, K.TARGET_MEMBER, K.MEMBER)
            found += [_consumer(record.group_id, kind, record.member_id, None) for kind in kinds]
        else:
            found.append(record)
    return found


@given(st.lists(RECORDS, max_size=20).map(_whole_ends), st.frozensets(st.integers(0, 30)))
@example(A_MOVED, frozenset({0}))
@example([_consumer("g", K.TARGET, "", 0), _consumer("g", K.GROUP, "", 0)], frozenset())
def test_a_compacted_log_says_what_the_whole_one_does(records: list[GroupLogRecord], taken: frozenset[int]) -> None:
    """Compaction takes any records whose key a later record has, and keeps the other records in place."""
    last = {encode_record(record)[0]: index for index, record in enumerate(records)}
    kept = [r for index, r in enumerate(records) if index not in taken or last[encode_record(r)[0]] == index]
    whole = _replayed(records).groups
    assert _replayed(kept).groups == whole
    if set(last.values()) == set(range(len(records))):
        assert _replayed(records[::-1]).groups == whole, "each record is about a key of its own"


def test_a_member_is_where_it_was_though_its_first_record_is_gone() -> None:
    store = _replayed(A_MOVED[1:])
    consumer = store.groups["g"].consumer
    assert consumer is not None
    member = consumer.members["a"]
    assert (member.epoch, member.assigned, member.subscription.client_host) == (
        2,
        Assignment.of({b"t" * 16: (1,)}),
        "host-2",
    )


def test_of_a_member_without_a_subscription_nothing_is_seen() -> None:
    store = _replayed([_consumer("g", K.GROUP, "", 0), _consumer("g", K.CURRENT, "a", 1)])
    consumer = store.groups["g"].consumer
    assert consumer is not None
    assert (consumer.members, consumer.topics, consumer.state) == ({}, frozenset(), "Empty")
    assert consumer.held_by_others("b") == NOTHING
    store.apply(_consumer("g", K.CURRENT, "a", None))
    store.apply(_consumer("g", K.GROUP, "", None))
    assert store.groups == {}


def test_a_group_is_there_as_long_as_it_has_metadata_or_an_offset() -> None:
    store = GroupStore()
    store.apply(_offset("g", 0, 7))
    store.apply(_group("g", 1))
    store.apply(_offset("g", 0, None))
    assert store.groups.get("g") is not None
    store.apply(_group("g", None))
    assert store.groups.get("g") is None
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


ID, OTHER_ID = TopicId(b"a" * 16), TopicId(b"b" * 16)


def _value(topic_id: bytes) -> OffsetCommitValue:
    return OffsetCommitValue(offset=1, metadata="", commit_timestamp=0, topic_id=topic_id)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(GROUPS),
            st.sampled_from(["t", "u"]),
            st.integers(0, 2),
            st.none() | st.sampled_from([ID, OTHER_ID, ZERO_TOPIC_ID]),
        ),
        max_size=20,
    )
)
def test_the_topic_index_finds_what_a_look_at_all_offsets_would(
    writes: list[tuple[str, str, int, TopicId | None]],
) -> None:
    store = GroupStore()
    for group_id, topic, partition, topic_id in writes:
        value = None if topic_id is None else _value(topic_id)
        store.apply(OffsetRecord(group_id=group_id, topic=topic, partition=partition, value=value))
    offsets = [(name, tp, value) for name, group in store.groups.items() for tp, value in group.offsets.items()]
    assert store.topics.names == {tp.topic for _, tp, _ in offsets}
    for wanted in (None, ID):
        beside = {name for name, tp, value in offsets if tp.topic == "t" and not belongs_to(value.topic_id, wanted)}
        assert set(store.topics.groups_beside({"t": wanted})) == beside
