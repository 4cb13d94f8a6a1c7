"""KIP-227: incremental fetch sessions, sentence by sentence. The requester's end: tests/unit/fetch_session."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, records_of
from testkit.nodes.ports import RecordingConnection
from testkit.nodes.session_reader import SessionReader, answers, numbers

SLOTS = "max.incremental.fetch.session.cache.slots"
EVICTION_MS = 120_000


def new_node(*, slots: int = 1_000, partitions: int = 4) -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk(), settings={SLOTS: str(slots)})
    for number in range(partitions):
        node.create(partition=number)
    return node


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table 'FetchRequest Metadata meaning'."""

    sentence: str
    names_session: bool
    epoch: int
    error: ErrorCode = ErrorCode.NONE
    creates: bool = False
    keeps_old: bool = True
    is_full: bool = True


TABLE = (
    Row(
        sentence="0, -1: 'Make a full FetchRequest that does not use or create a session'",
        names_session=False,
        epoch=-1,
    ),
    Row(
        sentence="0, 0: 'Make a full FetchRequest. Create a new incremental fetch session if possible'",
        names_session=False,
        epoch=0,
        creates=True,
    ),
    Row(
        sentence="$ID, 0: 'Close the incremental fetch session identified by $ID ... Create a new' one",
        names_session=True,
        epoch=0,
        creates=True,
        keeps_old=False,
    ),
    Row(
        sentence="$ID, $EPOCH: 'If the ID and EPOCH are correct, make an incremental fetch request'",
        names_session=True,
        epoch=1,
        is_full=False,
    ),
    Row(
        sentence="$ID, another epoch: InvalidFetchSessionEpoch, 'different than what it expected'",
        names_session=True,
        epoch=2,
        error=ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        is_full=False,
    ),
    Row(
        sentence="an unknown id: FetchSessionIdNotFound, 'a fetch session that the server does not know about'",
        names_session=False,
        epoch=1,
        error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        is_full=False,
    ),
    Row(
        sentence="$ID, -1: 'Close the incremental fetch session identified by $ID. Make a full FetchRequest'",
        names_session=True,
        epoch=-1,
        keeps_old=False,
    ),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.sentence)
@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_id_and_epoch_mean_what_the_table_says(row: Row, version: int) -> None:
    node = new_node()
    reader = SessionReader(node, version=version)
    reader.open({0: 0, 1: 0, 2: 0})
    old_id = reader.session_id
    reader.session_id, reader.epoch = old_id if row.names_session else 0, row.epoch
    if row.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        reader.session_id = old_id + 1
    response: FetchResponse = reader.send({0: 0, 1: 0} if row.is_full else None).response
    assert response.error_code == row.error
    if row.error:
        assert (response.session_id, response.responses) == (0, ())
    elif row.is_full:
        assert numbers(answers(response)) == [0, 1]
        assert (response.session_id not in (0, old_id)) == row.creates
    else:
        assert response.session_id == old_id
    open_ids = {session.session_id for session in node.broker.fetch_sessions.cache.sessions()}
    assert (old_id in open_ids) == row.keeps_old
    assert len(open_ids) == row.keeps_old + row.creates


def test_a_new_session_starts_at_epoch_1_and_after_request_n_expects_n_plus_1() -> None:
    """'If a new fetch session is created, it will start at epoch 1'; 'After processing request N, the broker expects to
    receive request N+1'."""
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0})
    for epoch in (1, 2, 3):
        reader.epoch = epoch
        assert reader.send().response.error_code == 0
    for epoch in (1, 3, 5):
        reader.epoch = epoch
        assert reader.send().response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    reader.epoch = 4
    assert reader.send().response.error_code == 0


def test_the_epoch_after_the_largest_is_1() -> None:
    """'Once it reaches MAX_INT, the next epoch is 1.'"""
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0})
    (session,) = node.broker.fetch_sessions.cache.sessions()
    session.epoch = reader.epoch = 0x7FFFFFFF
    assert reader.send().response.error_code == 0
    reader.epoch = 1
    assert reader.send().response.error_code == 0


def test_session_ids_are_random_unique_and_positive() -> None:
    """'It simply has to be unique on the leader'; a request with an id below 1 has no session."""
    node = new_node(slots=50)
    ids = set()
    for _ in range(50):
        reader = SessionReader(node)
        reader.open({0: 0})
        ids.add(reader.session_id)
    assert len(ids) == 50
    assert all(0 < session_id < 1 << 31 for session_id in ids)
    for session_id in (0, -1, -(1 << 31)):
        reader.session_id, reader.epoch = session_id, 1
        assert reader.send().response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_wrong_epoch_changes_nothing() -> None:
    """'It ensures that if a message is duplicated or lost, the server will always notice.'"""
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0, 1: 0})
    reader.epoch = 9
    assert reader.send({2: 0}, forgotten=[0]).response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    node.produce("orders", b"a", partition=0)
    node.produce("orders", b"a", partition=2)
    reader.epoch = 1
    assert numbers(reader.next()) == [0]


def test_a_repeated_request_is_noticed() -> None:
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0})
    assert reader.send().response.error_code == 0
    assert reader.send().response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_request_may_name_no_partition_at_all() -> None:
    """'If the client doesn't want to change anything, the client does not need to include any partitions'."""
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0, 1: 0})
    node.produce("orders", b"a", partition=1)
    assert numbers(reader.next()) == [1]


def test_a_request_names_what_changes_is_added_or_removed() -> None:
    """'A partition is only included if: ... a change to the partition's maxBytes, fetchOffset, or logStart; ... the
    client wants to add it; ... the client wants to remove it.'"""
    node = new_node()
    for number in range(4):
        node.produce("orders", b"v" * 100, b"w" * 100, partition=number)
        node.produce("orders", b"x" * 100, partition=number)
    reader = SessionReader(node)
    reader.open({0: 3, 1: 3})
    assert reader.next() == []
    (added,) = reader.next({2: 2})
    assert (added.partition_index, records_of(added.records)[0].offset) == (2, 2)
    (moved,) = reader.next({2: 3, 0: 0}, partition_max_bytes=1)
    assert (moved.partition_index, [record.offset for record in records_of(moved.records)]) == (0, [0, 1])
    (larger,) = reader.next({0: 0})
    assert [record.offset for record in records_of(larger.records)] == [0, 1, 2]
    assert reader.next(forgotten=[0]) == []
    node.produce("orders", b"y", partition=0)
    assert reader.next() == []


def test_an_answer_has_changes_and_records_alone() -> None:
    """'A partition is only included in an incremental FetchResponse if: ... a change to the partition's highWatermark
    or broker logStartOffset; There is new data available for a partition'."""
    node = new_node()
    node.produce("orders", b"a", b"b", partition=1)
    reader = SessionReader(node)
    reader.open({0: 0, 1: 5, 2: 0, 3: 0})  # 5 is out of range: an error is always in the answer
    assert [data.error_code for data in reader.next()] == [ErrorCode.OFFSET_OUT_OF_RANGE]
    (data,) = reader.next({1: 2})
    assert (data.partition_index, data.high_watermark, data.records) == (1, 2, b"")
    assert reader.next() == []
    node.table.get("orders", 1).delete_records(1)
    (data,) = reader.next()
    assert (data.partition_index, data.log_start_offset, data.records) == (1, 1, b"")
    node.produce("orders", b"c", partition=3)
    (data,) = reader.next()
    assert (data.partition_index, data.high_watermark) == (3, 1)


def test_top_level_errors_come_without_partitions() -> None:
    """'... the caller should assume that all the partitions in the fetch received the given error.'"""
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0})
    node.produce("orders", b"a")
    reader.epoch = 7
    response = reader.send().response
    assert (response.error_code, response.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())


def test_an_answer_has_one_message_however_small_the_limit_and_partitions_take_turns() -> None:
    """'the response will always return at least one message'; 'When data is returned for a partition, that partition is
    moved to the end of the list. This ensures that we eventually return data about all partitions'."""
    node = new_node()
    for number in range(4):
        node.produce("orders", b"v" * 100, partition=number)
    reader = SessionReader(node)
    reader.open(dict.fromkeys(range(4), 0), max_bytes=1)
    seen = [numbers(reader.next(max_bytes=1)) for _ in range(8)]
    assert all(len(found) == 1 for found in seen)
    assert seen[:4] == [[number] for number in (0, 1, 2, 3)]
    assert seen[4:] == seen[:4]


def test_a_partition_that_is_named_again_keeps_its_turn() -> None:
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0, 1: 0, 2: 0})
    reader.next()
    for number in range(3):
        node.produce("orders", b"v", partition=number)
    assert numbers(reader.next({2: 0, 0: 0}, max_bytes=1)) == [0]
    assert numbers(reader.next({0: 1}, max_bytes=1)) == [1]


def evict(node: DataPath, *, old: int, new: int, old_age_ms: int, used_before_ms: int) -> bool:
    """Whether a session of `new` partitions takes the one slot from one of `old` partitions."""
    holder, other = SessionReader(node), SessionReader(node)
    holder.open(dict.fromkeys(range(old), 0))
    node.clock.advance(old_age_ms - used_before_ms)
    holder.next()
    node.clock.advance(used_before_ms)
    return bool(other.send(dict.fromkeys(range(new), 0)).response.session_id)


@dataclass(frozen=True, kw_only=True)
class Eviction:
    sentence: str
    old: int = 2
    new: int = 2
    old_age_ms: int
    used_before_ms: int
    evicts: bool


EVICTIONS = (
    Eviction(
        sentence="2: 'inactive for more than min.incremental.fetch.session.eviction.ms'",
        new=1,
        old_age_ms=EVICTION_MS + 1,
        used_before_ms=EVICTION_MS + 1,
        evicts=True,
    ),
    Eviction(sentence="2: not more", new=2, old_age_ms=EVICTION_MS, used_before_ms=EVICTION_MS, evicts=False),
    Eviction(
        sentence="3: 'existed for more than ..., AND the new session has more partitions'",
        new=3,
        old_age_ms=EVICTION_MS + 1,
        used_before_ms=1,
        evicts=True,
    ),
    Eviction(sentence="3: not more partitions", old_age_ms=EVICTION_MS + 1, used_before_ms=1, evicts=False),
    Eviction(sentence="3: not longer", new=3, old_age_ms=EVICTION_MS, used_before_ms=1, evicts=False),
)


@pytest.mark.parametrize("case", EVICTIONS, ids=lambda case: case.sentence)
def test_a_session_is_evicted_if_and_only_if_a_rule_holds(case: Eviction) -> None:
    node = new_node(slots=1)
    evicted = evict(node, old=case.old, new=case.new, old_age_ms=case.old_age_ms, used_before_ms=case.used_before_ms)
    assert evicted == case.evicts
    assert node.broker.fetch_sessions.cache.evictions == case.evicts


def test_two_slots_are_two_and_none_disable_sessions() -> None:
    """'max.incremental.fetch.session.cache.slots, which set the number of incremental fetch session cache slots'."""
    two, none = new_node(slots=2), new_node(slots=0)
    assert [bool(SessionReader(two).send({0: 0}).response.session_id) for _ in range(3)] == [True, True, False]
    response = SessionReader(none).send({0: 0}).response
    assert (response.session_id, numbers(answers(response))) == (0, [0])


def test_the_eviction_time_is_no_setting() -> None:
    """'There is one new constant for fetch session caching: min.incremental.fetch.session.eviction.ms'."""
    with pytest.raises(Exception, match=r"min\.incremental\.fetch\.session\.eviction\.ms"):
        DataPath("/logs", files=SimulatedDisk(), settings={"min.incremental.fetch.session.eviction.ms": "1"})


def test_metrics_count_sessions_partitions_and_evictions_and_no_closes() -> None:
    """'This metric is not increased when a client closes its own incremental fetch session'."""
    node = new_node(slots=2)
    cache = node.broker.fetch_sessions.cache
    first, second = SessionReader(node), SessionReader(node)
    first.open({0: 0, 1: 0})
    second.open({0: 0})
    assert (len(cache), cache.partition_count, cache.evictions) == (2, 3, 0)
    first.epoch = -1
    first.send()
    assert (len(cache), cache.partition_count, cache.evictions) == (1, 1, 0)
    second.next({1: 0, 2: 0})
    assert cache.partition_count == 3
    second.next(forgotten=[1])
    assert cache.partition_count == 2


def test_requests_of_versions_before_sessions_are_untouched() -> None:
    """'existing brokers can continue to use the old FetchRequest as before'."""
    node = new_node()
    assert node.fetch("orders", 0, version=6).fetched.error_code == 0
    assert len(node.broker.fetch_sessions.cache) == 0


def test_a_session_has_its_topics_by_name_or_by_id_for_its_whole_life() -> None:
    """Fetch v13 names topics by their ids (KIP-516): a session does not change between the two (106)."""
    node = new_node()
    reader = SessionReader(node, version=12)
    reader.open({0: 0})
    reader.version = 13
    response = reader.send({1: 0}).response
    assert (response.error_code, response.session_id) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0)
    reader.version = 11
    node.produce("orders", b"a", partition=1)
    assert reader.next() == []


OTHERS: dict[str, Callable[[], RecordingConnection]] = {
    "another principal": lambda: RecordingConnection(principal="User:mallory"),
    "another listener": lambda: RecordingConnection(listener="INTERNAL"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_session_of_another_reader_does_not_exist(other: str) -> None:
    """'It is also very hard for a malicious client to guess the fetch session ID': and a guess is of no use."""
    node = new_node()
    reader = SessionReader(node)
    reader.open({0: 0})
    thief = SessionReader(node, connection=OTHERS[other]())
    thief.session_id, thief.epoch = reader.session_id, 1
    assert thief.send(forgotten=[0]).response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    thief.epoch = -1
    assert thief.send().response.error_code == 0  # nothing to close, and that is no error
    node.produce("orders", b"a")
    assert numbers(reader.next()) == [0]
