"""The slots of fetch sessions, and the three rules by which a session makes room for another (KIP-227)."""

from functools import cache
from itertools import count
from typing import Any

import pytest

from tailrace.fetch_session import session_cache, session_places
from tailrace.fetch_session.session import FetchSession, SessionOwner
from tailrace.fetch_session.session_cache import MAX_PARTITIONS, FetchSessionCache
from tailrace.fetch_session.session_places import MIN_EVICTION_MS, Newcomer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.fetch import FetchPartition, FetchTopic

CONSUMER = SessionOwner("User:ANONYMOUS", "PLAINTEXT", -1)
FOLLOWER = SessionOwner("User:ANONYMOUS", "PLAINTEXT", 2)
LATER = MIN_EVICTION_MS + 1


class Bench:
    def __init__(self, slots: int = 2) -> None:
        numbers = count(1)
        self.removed: list[FetchSession] = []
        self.cache = FetchSessionCache(
            slots=slots, random_bytes=lambda size: next(numbers).to_bytes(size, "big"), on_removed=self.removed.append
        )

    def open(
        self,
        partitions: int = 1,
        *,
        follower: bool = False,
        now_ms: int = 0,
        client: str = "a client",
        missing: int = 0,
    ) -> FetchSession | None:
        """`partitions` exist, and so many are missing."""
        session = self.cache.open(
            FOLLOWER if follower else CONSUMER,
            Newcomer(client, partitions, missing, follower),
            uses_topic_ids=False,
            client_id="c",
            client_host="h",
            now_ms=now_ms,
        )
        if session is not None:
            wanted = [
                FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(partitions + missing)
            ]
            for entry in session.name([FetchTopic(topic="t", partitions=tuple(wanted))])[partitions:]:
                session.is_known_to_miss(entry)
            assert self.cache.resized(session)
        return session

    def must_open(self, partitions: int = 1, **options: Any) -> FetchSession:
        session = self.open(partitions, **options)
        assert session is not None
        return session


@cache
def wanted(count: int) -> FetchTopic:
    """So many partitions of one topic."""
    partitions = (FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(count))
    return FetchTopic(topic="t", partitions=tuple(partitions))


def refusal(
    bench: Bench, session_id: int, epoch: int, owner: SessionOwner = CONSUMER, *, uses_topic_ids: bool = False
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        bench.cache.check(session_id, epoch, owner, uses_topic_ids=uses_topic_ids)
    return refused.value.code


def test_slots_are_exactly_as_many_as_configured() -> None:
    bench = Bench(slots=2)
    assert [bench.open() is not None for _ in range(3)] == [True, True, False]
    assert (len(bench.cache), bench.cache.partition_count, bench.cache.evictions) == (2, 2, 0)


def test_zero_slots_mean_no_session() -> None:
    assert Bench(slots=0).open() is None


def test_a_fetch_of_nothing_gets_no_session() -> None:
    assert Bench().open(0) is None


def test_ids_are_positive_random_and_never_used_twice_at_once() -> None:
    drawn = iter([b"\0\0\0\0", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x05"])
    cache = FetchSessionCache(slots=3, random_bytes=lambda _: next(drawn), on_removed=lambda _: None)
    bench = Bench()
    bench.cache = cache
    assert [bench.must_open().session_id for _ in range(2)] == [0x7FFFFFFF, 5]


def test_an_unknown_id_comes_before_a_wrong_epoch_and_that_before_the_form_of_topics() -> None:
    bench = Bench()
    session_id = bench.must_open().session_id
    assert refusal(bench, session_id + 1, 9, uses_topic_ids=True) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(bench, session_id, 9, uses_topic_ids=True) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(bench, session_id, 1, uses_topic_ids=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert bench.cache.check(session_id, 1, CONSUMER, uses_topic_ids=False).session_id == session_id


@pytest.mark.parametrize(
    "other",
    [
        CONSUMER._replace(principal="User:bob"),
        CONSUMER._replace(listener_name="INTERNAL"),
        CONSUMER._replace(replica_id=3),
    ],
)
def test_a_session_exists_for_its_owner_alone(other: SessionOwner) -> None:
    bench = Bench()
    session = bench.must_open()
    assert refusal(bench, session.session_id, 1, other) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert bench.cache.find(session.session_id, other) is None
    assert bench.cache.find(session.session_id, CONSUMER) is session


def test_a_follower_evicts_a_consumer_at_once_and_never_the_other_way() -> None:
    bench = Bench(slots=1)
    consumer = bench.must_open(9)
    bench.must_open(1, follower=True)
    assert bench.removed == [consumer]
    assert bench.cache.evictions == 1
    assert bench.open(50_000) is None


def test_the_smallest_consumer_makes_room_for_a_follower() -> None:
    bench = Bench(slots=2)
    bench.must_open(5)
    small = bench.must_open(2)
    bench.must_open(1, follower=True)
    assert bench.removed == [small]


@pytest.mark.parametrize("follower", [False, True])
def test_an_inactive_session_makes_room_even_for_a_smaller_consumer(follower: bool) -> None:
    bench = Bench(slots=1)
    old = bench.must_open(9, follower=follower)
    assert bench.open(1, now_ms=MIN_EVICTION_MS) is None
    bench.must_open(1, now_ms=LATER)
    assert bench.removed == [old]


@pytest.mark.parametrize("follower", [False, True])
def test_inactive_sessions_make_room_for_the_partitions_of_others(
    follower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else readers that have vanished would keep other readers from a session for ever, though slots are free."""
    monkeypatch.setattr(session_places, "MAX_CONSUMER_PARTITIONS", 0 if follower else 20)
    monkeypatch.setattr(session_places, "MAX_FOLLOWER_PARTITIONS", 20)
    bench = Bench(slots=5)
    first, second, third = (bench.must_open(size, follower=follower) for size in (5, 6, 9))
    others = [] if follower else [bench.must_open(3, follower=True)]
    bench.cache.used(second, MIN_EVICTION_MS)
    assert bench.open(1, follower=follower, now_ms=MIN_EVICTION_MS) is None
    bench.must_open(8, follower=follower, now_ms=LATER)
    assert bench.removed == [first, third], "those that were inactive for longest, as few as it takes"
    assert bench.open(20, follower=follower, now_ms=LATER) is None
    assert bench.cache.evictions == 2
    assert all(other.is_open for other in others)


def test_a_session_that_is_used_or_waits_is_not_inactive() -> None:
    class DeafListener:
        def changed(self, subject: object, kinds: int, /) -> None: ...

    bench = Bench(slots=2)
    used, waiting = bench.must_open(9), bench.must_open(9)
    waiting.listen(DeafListener())
    bench.cache.used(used, LATER)
    assert bench.open(9, now_ms=LATER) is None
    waiting.listen(None)
    bench.must_open(9, now_ms=LATER)
    assert bench.removed == [waiting]


def test_a_larger_session_evicts_an_older_smaller_one_when_that_has_existed_for_long() -> None:
    bench = Bench(slots=1)
    old = bench.must_open(5)
    bench.cache.used(old, LATER)
    assert bench.open(6, now_ms=MIN_EVICTION_MS) is None
    assert bench.open(5, now_ms=LATER) is None
    bench.must_open(6, now_ms=LATER)
    assert bench.removed == [old]


def test_among_followers_a_larger_session_evicts_a_smaller_one_too() -> None:
    bench = Bench(slots=1)
    old = bench.must_open(5, follower=True)
    bench.cache.used(old, LATER)
    assert bench.open(100, now_ms=LATER) is None  # a consumer
    assert bench.open(5, follower=True, now_ms=LATER) is None
    bench.must_open(6, follower=True, now_ms=LATER)
    assert bench.removed == [old]


def test_a_session_that_its_reader_closes_is_no_eviction() -> None:
    bench = Bench()
    session = bench.must_open(3)
    bench.cache.remove(session)
    bench.cache.remove(session)
    assert bench.removed == [session]
    assert not session.is_open
    assert (len(bench.cache), bench.cache.partition_count, bench.cache.evictions) == (0, 0, 0)


def test_a_session_too_large_is_refused_and_so_is_one_that_grows_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Bench().open(MAX_PARTITIONS + 1) is None
    monkeypatch.setattr(session_cache, "MAX_PARTITIONS", 3)
    bench = Bench()
    session = bench.must_open(3)
    wanted = FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)
    session.name([FetchTopic(topic="t", partitions=(wanted,))])
    assert not bench.cache.resized(session)
    bench.cache.remove(session)
    assert bench.cache.partition_count == 0


def test_consumers_together_have_a_limit_that_followers_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_places, "MAX_CONSUMER_PARTITIONS", 4)
    bench = Bench(slots=9)
    bench.must_open(3)
    assert bench.open(2) is None
    bench.must_open(1)
    bench.must_open(9, follower=True)
    assert bench.cache.partition_count == 13


def places(monkeypatch: pytest.MonkeyPatch, *, consumers: int, followers: int = 100, missing: int = 100) -> Bench:
    monkeypatch.setattr(session_places, "MAX_CONSUMER_PARTITIONS", consumers)
    monkeypatch.setattr(session_places, "MAX_FOLLOWER_PARTITIONS", followers)
    monkeypatch.setattr(session_places, "MAX_MISSING", missing)
    return Bench(slots=1_000)


def test_sixty_consumers_of_5000_partitions_have_places() -> None:
    bench = Bench(slots=1_000)
    for number in range(60):
        bench.must_open(5_000, client=f"host {number}")


def test_consumers_beyond_the_places_get_sessions_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal sessions do not displace each other; a larger session takes the places of older and resting sessions."""
    bench = places(monkeypatch, consumers=200)
    opened = [bench.open(5, client=f"host {number}") for number in range(60)]
    assert [session is not None for session in opened] == [True] * 40 + [False] * 20
    for session in opened[:40]:
        assert session is not None
        bench.cache.used(session, LATER)
    assert bench.open(6, client="host 60", now_ms=MIN_EVICTION_MS) is None
    bench.must_open(6, client="host 60", now_ms=LATER)
    assert bench.removed == opened[:2], "two of five make room for six"
    bench.must_open(5, client="host 61", now_ms=2 * LATER + 1)
    assert bench.removed == opened[:3], "four places were left, and a resting session gives its own"


def test_the_client_with_the_most_places_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = places(monkeypatch, consumers=100)
    small, large = (bench.must_open(size, client="greedy") for size in (40, 60))
    assert bench.open(1, client="greedy") is None, "its own smaller ones do not count"
    modest = bench.must_open(30, client="modest")
    assert bench.removed == [small], "the smallest that is large enough, though it is young and active"
    again = bench.open(40, client="greedy")
    assert (again, modest.is_open) == (None, True), "else the two would displace each other for ever"
    assert bench.open(35, client="third") is not None
    assert (bench.removed, large.is_open) == ([small, large], False)


def test_clients_with_equal_shares_displace_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = places(monkeypatch, consumers=10)
    bench.must_open(5, client="a")
    bench.must_open(5, client="b")
    assert bench.open(5, client="c") is None
    assert bench.open(4, client="c") is not None
    assert len(bench.removed) == 1


def test_a_follower_takes_the_places_of_consumers_and_never_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = places(monkeypatch, consumers=10, followers=20)
    first, second = bench.must_open(4, client="a"), bench.must_open(5, client="b")
    bench.must_open(20, follower=True)
    bench.must_open(1, follower=True)
    assert bench.removed == [], "a place of consumers was free"
    bench.must_open(2, follower=True)
    assert bench.removed == [first], "the smallest consumer"
    assert bench.open(6, client="c") is None
    assert second.is_open


def test_partitions_that_do_not_exist_take_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = places(monkeypatch, consumers=10, missing=50)
    bench.must_open(0, missing=50)
    bench.must_open(10)
    assert bench.removed == []


def test_sessions_with_the_most_missing_partitions_make_room_for_those_with_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = places(monkeypatch, consumers=10, missing=50)
    most, less = bench.must_open(1, missing=30), bench.must_open(1, missing=20)
    assert bench.open(1, missing=30) is None
    bench.must_open(1, missing=21)
    assert bench.removed == [most]
    bench.must_open(2)
    assert less.is_open


def test_rule_3_compares_partitions_that_exist() -> None:
    bench = Bench(slots=1)
    old = bench.must_open(5)
    bench.cache.used(old, LATER)
    assert bench.open(5, missing=90, now_ms=LATER) is None
    bench.must_open(6, now_ms=LATER)
    assert bench.removed == [old]


def test_a_session_that_grows_takes_places_of_the_client_with_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = places(monkeypatch, consumers=10)
    greedy = bench.must_open(7, client="greedy")
    modest = bench.must_open(3, client="modest")
    wanted = FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)
    modest.name([FetchTopic(topic="t", partitions=(wanted,))])
    assert bench.cache.resized(modest)
    assert (bench.removed, bench.cache.partition_count) == ([greedy], 4)
    greedy = bench.must_open(6, client="greedy")
    greedy.name([FetchTopic(topic="u", partitions=(wanted,))])
    assert not bench.cache.resized(greedy), "it has the most itself"


def test_a_large_session_displaces_hundreds_of_small_ones_without_looking_at_all_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places(monkeypatch, consumers=1_000)
    bench = Bench(slots=1_000)
    for _ in range(500):
        bench.must_open(2, client="many small ones")
    looks: list[FetchSession] = []
    places_of = session_places._places_of

    def counted(session: FetchSession) -> int:
        looks.append(session)
        return places_of(session)

    monkeypatch.setattr(session_places, "_places_of", counted)
    bench.must_open(490, client="another")
    assert len(bench.removed) == 245
    assert len(looks) < 10_000


def test_a_session_that_goes_while_it_is_filled_leaves_no_places_behind() -> None:
    """A session of many partitions is filled in several turns, in which a follower may take its slot."""
    bench = Bench(slots=1)
    session = bench.cache.open(
        CONSUMER,
        Newcomer("a client", 2, 1, False),
        uses_topic_ids=False,
        client_id="c",
        client_host="h",
        now_ms=0,
    )
    assert session is not None
    *_, missing = session.name([wanted(3)])
    follower = bench.must_open(1, follower=True)
    assert bench.removed == [session]
    session.is_known_to_miss(missing)
    assert not bench.cache.resized(session)
    bench.cache.remove(session)
    assert bench.cache.partition_count == 1
    bench.cache.remove(follower)
    assert bench.cache.partition_count == 0
