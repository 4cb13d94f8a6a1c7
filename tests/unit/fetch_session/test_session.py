"""A fetch session at the broker: the partitions that are due, their order, and the data of them in answers."""

import sys
from itertools import permutations
from operator import attrgetter

import pytest

from tailrace.fetch_session.session import STATED_FIELDS, UNKNOWN, FetchSession, SessionOwner, SessionPartition
from tailrace.protocol.declaration import replace
from tailrace.protocol.messages.fetch import DivergingEpoch, FetchPartition, FetchTopic, ForgottenTopic, PartitionData

OWNER = SessionOwner("User:ANONYMOUS", "PLAINTEXT", -1)
ID = b"0123456789abcdef"


def new_session(*, uses_topic_ids: bool = False) -> FetchSession:
    return FetchSession(
        7,
        OWNER,
        client="host",
        is_privileged=False,
        uses_topic_ids=uses_topic_ids,
        client_id="",
        client_host="",
        now_ms=0,
    )


def topic(*partitions: int, offset: int = 0, name: str = "t") -> FetchTopic:
    return FetchTopic(
        topic=name,
        topic_id=ID,
        partitions=tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=100) for number in partitions
        ),
    )


def answer(high_watermark: int, log_start_offset: int, *, error_code: int = 0, records: bytes = b"") -> PartitionData:
    return PartitionData(
        partition_index=0,
        error_code=error_code,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        aborted_transactions=None,
        records=records,
    )


def clean_all(session: FetchSession) -> None:
    for entry in session.due_in_order():
        session.mark_clean(entry)


def due(session: FetchSession) -> list[int]:
    return [entry.partition for entry in session.due_in_order()]


def only(session: FetchSession, number: int, name: str = "t") -> SessionPartition:
    found = session.find(name, number)
    assert found is not None
    return found


def test_new_partitions_are_due_in_the_order_of_the_request() -> None:
    session = new_session()
    session.name([topic(3, 1), topic(2, name="u")])
    assert due(session) == [3, 1, 2]
    assert session.partition_count == 3


def test_a_clean_partition_is_due_again_when_it_is_named_or_changes() -> None:
    session = new_session()
    session.name([topic(0, 1, 2)])
    clean_all(session)
    assert due(session) == []
    session.name([topic(2, offset=5)])
    only(session, 0).changed(None, 1)
    assert due(session) == [0, 2]  # each in its own place
    assert only(session, 2).fetch_offset == 5


def test_a_large_session_at_rest_leaves_no_room_behind_that_each_later_fetch_would_walk_through() -> None:
    session = new_session()
    session.name([topic(*range(5_000))])
    clean_all(session)
    session.name([topic(7)])
    assert due(session) == [7]
    assert sys.getsizeof(session.due) < 1_000


def test_a_partition_that_is_named_twice_has_what_was_said_last() -> None:
    session = new_session()
    session.name([topic(0, offset=1), topic(0, offset=2)])
    assert session.partition_count == 1
    assert only(session, 0).fetch_offset == 2


def test_forgotten_partitions_are_gone_and_unknown_ones_do_no_harm() -> None:
    session = new_session()
    session.name([topic(0, 1)])
    gone = session.forget([ForgottenTopic(topic="t", partitions=(1, 1, 9)), ForgottenTopic(topic="u", partitions=(0,))])
    assert [entry.partition for entry in gone] == [1]
    assert due(session) == [0]
    assert [(entry.topic, entry.partition) for entry in session] == [("t", 0)]
    assert session.partition_count == 1
    assert session.find("t", 1) is None
    assert session.find("u", 0) is None


def test_a_session_with_topic_ids_knows_topics_by_these() -> None:
    session = new_session(uses_topic_ids=True)
    session.name([topic(0)])
    assert [(entry.topic, entry.partition) for entry in session] == [(ID, 0)]
    session.forget([ForgottenTopic(topic_id=ID, partitions=(0,))])
    assert session.partition_count == 0


def test_a_partition_of_which_an_answer_has_records_comes_behind_all_others() -> None:
    session = new_session()
    session.name([topic(0, 1)])
    session.answered([only(session, 0), only(session, 1)], [answer(1, 0, records=b"r"), answer(1, 0)])
    assert due(session) == [1, 0]
    session.name([topic(2)])
    assert due(session) == [1, 0, 2]


@pytest.mark.parametrize("named", list(permutations(range(3))))
@pytest.mark.parametrize("changed", [(), (3,), (0, 3)])
@pytest.mark.parametrize("forgotten", [(), (1,)])
def test_the_due_are_in_their_order_however_a_request_names_them(
    named: tuple[int, ...], changed: tuple[int, ...], forgotten: tuple[int, ...]
) -> None:
    session = new_session()
    session.name([topic(0, 1, 2, 3)])
    clean_all(session)
    session.name([topic(*named)])
    if forgotten:
        session.forget([ForgottenTopic(topic="t", partitions=forgotten)])
    for number in changed:
        only(session, number).changed(None, 1)
    expected = [number for number in range(4) if number in {*named, *changed} and number not in forgotten]
    assert due(session) == expected


def test_the_order_of_a_request_serves_its_first_reading_alone() -> None:
    session = new_session()
    session.name([topic(0, 1, 2, 3)])
    clean_all(session)
    session.name([topic(1, 2)])
    assert due(session) == [1, 2]
    session.mark_clean(only(session, 1))
    only(session, 0).changed(None, 1)
    assert due(session) == [0, 2]


def test_an_answer_may_be_committed_in_parts() -> None:
    session = new_session()
    session.name([topic(0, 1, 2)])
    session.answered([only(session, 0)], [answer(1, 0, records=b"r")])
    session.answered([only(session, 1)], [answer(1, 0, records=b"r")])
    assert due(session) == [2, 0, 1]
    assert [entry.partition for entry in session.begin()] == [0, 1]


def test_the_epoch_rises_with_each_fetch_and_wraps_to_1() -> None:
    session = new_session()
    assert session.epoch == 1
    session.begin()
    assert session.epoch == 2
    session.epoch = 0x7FFFFFFF
    session.begin()
    assert session.epoch == 1


def test_an_answer_is_acknowledged_by_the_next_fetch_once() -> None:
    session = new_session()
    session.name([topic(0, 1)])
    session.answered([only(session, 1)], [answer(1, 0)])
    assert [entry.partition for entry in session.begin()] == [1]
    assert list(session.begin()) == []


def test_a_request_under_other_conditions_makes_every_partition_due() -> None:
    session = new_session()
    session.name([topic(0, 1)])
    session.begin_under("a", "visits", may_redirect=True)
    assert (session.conditions, session.visits, session.may_redirect) == ("a", "visits", True)
    clean_all(session)
    assert due(session) == []
    session.begin_under("b", None, may_redirect=False)
    assert due(session) == [0, 1]
    assert (session.conditions, session.visits, session.may_redirect) == ("b", None, False)


def test_news_are_another_high_watermark_or_log_start_than_the_last_answer_had() -> None:
    session = new_session()
    (entry,) = session.name([topic(0)])
    data = answer(5, 2)
    assert entry.has_changed(data)
    session.answered([entry], [data], rotates=False)
    assert not entry.has_changed(data)
    assert entry.has_changed(answer(6, 2))
    assert entry.has_changed(answer(5, 3))
    session.answered([entry], [answer(5, 2, error_code=6)])
    assert (entry.known_high_watermark, entry.known_log_start_offset) == (UNKNOWN, UNKNOWN)
    assert entry.has_changed(data)  # after an error everything is said again
    session.answered([entry], [data])
    session.answered([entry], [replace(data, diverging_epoch=DivergingEpoch(epoch=1, end_offset=4))])
    assert (entry.known_high_watermark, entry.known_log_start_offset) == (UNKNOWN, UNKNOWN)


def test_a_partition_keeps_no_unknown_fields_of_the_request() -> None:
    session = new_session()
    wanted = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=100)
    (entry,) = session.name([FetchTopic(topic="t", partitions=(replace(wanted, unknown_tags=((9, b"x" * 60_000),)),))])
    stated = attrgetter(*STATED_FIELDS)
    assert stated(entry) == stated(wanted)
    assert not hasattr(entry, "unknown_tags")


class Listener:
    """A request that waits; it keeps what it hears."""

    def __init__(self, heard: list[tuple[object, int]]) -> None:
        self._heard = heard

    def changed(self, subject: object, kinds: int, /) -> None:
        self._heard.append((subject, kinds))


def test_a_change_reaches_the_request_that_waits() -> None:
    heard: list[tuple[object, int]] = []
    session = new_session()
    session.name([topic(0)])
    clean_all(session)
    session.listen(Listener(heard))
    only(session, 0).changed("subject", 4)
    assert heard == [("subject", 4)]
    assert due(session) == [0]


def test_a_new_fetch_notifies_the_request_that_still_waits() -> None:
    heard: list[tuple[object, int]] = []
    session = new_session()
    session.listen(Listener(heard))
    session.begin()
    assert heard == [(None, 0)]
    session.begin()
    assert heard == [(None, 0)]  # and it listens no more


class Subject:
    """A partition that is found; it counts its watchers."""

    def __init__(self) -> None:
        self.watchers: dict[object, int] = {}

    def watch(self, watcher: object, kinds: int) -> None:
        self.watchers[watcher] = kinds

    def unwatch(self, watcher: object) -> None:
        del self.watchers[watcher]


def test_a_partition_watches_the_subject_that_is_found_until_it_is_lost() -> None:
    session, subject = new_session(), Subject()
    (entry,) = session.name([topic(0)])
    session.is_known_to_miss(entry)
    entry.found(subject, 6)
    assert (entry.subject, subject.watchers, session.missing) == (subject, {entry: 6}, {})
    entry.lose()
    entry.lose()
    assert (entry.subject, subject.watchers) == (None, {})


def test_a_partition_of_a_closed_session_watches_nothing() -> None:
    session, subject = new_session(), Subject()
    (entry,) = session.name([topic(0)])
    session.close()
    entry.found(subject, 6)
    assert (entry.subject, subject.watchers) == (None, {})


def test_an_answer_of_high_watermarks_alone_leaves_once_in_a_pause() -> None:
    session = new_session()
    assert session.may_answer_idle(100, 5)
    assert not session.may_answer_idle(104, 5)
    assert session.idle_answer_ms == 105
    assert session.may_answer_idle(105, 5)
