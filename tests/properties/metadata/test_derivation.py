"""Changes derived in steps, with remembered outcomes, equal the changes of the rules partition by partition.

The naive way stands here: every partition asked about, the changes sorted, the checksum taken field by field. Logs hold
its counts and checksums, so that they may never come out otherwise.
"""

from collections.abc import Callable, Iterator
from types import MappingProxyType
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata import derive, rules_26
from tailrace.metadata.derive import PartitionChange
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState
from tailrace.model.steps import result_of

BROKERS = tuple(map(BrokerId, range(1, 5)))
TOPICS = tuple(TopicId(bytes([number]) * 16) for number in (3, 1, 2))

ids = st.lists(st.sampled_from(BROKERS), max_size=3, unique=True).map(tuple)


@st.composite
def states(draw: st.DrawFn, topic_id: TopicId) -> PartitionState:
    replicas = tuple(draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True)))
    some = st.lists(st.sampled_from(replicas), unique=True).map(tuple)
    in_sync = draw(some)
    rest = [replica for replica in replicas if replica not in in_sync]
    eligible = tuple(draw(st.lists(st.sampled_from(rest), unique=True))) if rest else ()
    return PartitionState(
        topic_id=topic_id,
        replicas=replicas,
        in_sync_replicas=in_sync,
        leader=draw(st.sampled_from((*replicas, NO_LEADER))),
        leader_epoch=LeaderEpoch(draw(st.integers(0, 3))),
        partition_epoch=draw(st.integers(0, 3)),
        eligible_leader_replicas=eligible,
        last_known_leaders=tuple(draw(some)[:1]),
        adding_replicas=draw(some),
        removing_replicas=draw(some),
        is_recovering=draw(st.booleans()),
        unclean_epoch=draw(st.integers(-1, 3)),
        accepts_loss=draw(st.booleans()),
        directories=(bytes(16),) * len(replicas),
    )


Entry = tuple[TopicId, int, PartitionState]


@st.composite
def partitions(draw: st.DrawFn) -> list[Entry]:
    keys = draw(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), unique=True, max_size=20))
    return [(topic_id, number, draw(states(topic_id))) for topic_id, number in keys]


class Settings:
    def __init__(self, alive: frozenset[BrokerId], minimum: dict[TopicId, int], unclean: dict[TopicId, bool]) -> None:
        self._alive, self._minimum, self._unclean = alive, minimum, unclean

    def is_alive(self, broker_id: BrokerId, /) -> bool:
        return broker_id in self._alive

    def min_in_sync_replicas(self, topic_id: TopicId, /) -> int:
        return self._minimum[topic_id]

    def allows_unclean_election(self, topic_id: TopicId, /) -> bool:
        return self._unclean[topic_id]


settings = st.builds(
    Settings,
    st.frozensets(st.sampled_from(BROKERS)),
    st.fixed_dictionaries({topic_id: st.integers(1, 3) for topic_id in TOPICS}),
    st.fixed_dictionaries({topic_id: st.booleans() for topic_id in TOPICS}),
)


def naive(found: list[Entry], rule: Callable[[PartitionState], PartitionState | None]) -> tuple[PartitionChange, ...]:
    changes = (
        PartitionChange(topic_id, number, after)
        for topic_id, number, state in found
        if (after := rule(state)) is not None
    )
    return tuple(sorted(changes, key=lambda change: (change.topic_id, change.partition)))


def naive_checksum(changes: tuple[PartitionChange, ...]) -> int:
    crc = 0
    for topic_id, number, state in changes:
        in_sync = state.in_sync_replicas
        numbers = [number, state.leader, state.leader_epoch, state.partition_epoch, len(in_sync), *in_sync]
        eligible, last = state.eligible_leader_replicas, state.last_known_leaders
        if eligible or last or state.is_recovering:
            numbers += [int(state.is_recovering), len(eligible), *eligible, len(last), *last]
        for part in (topic_id, *(value.to_bytes(4, "big", signed=True) for value in numbers)):
            crc = crc32(part, crc)
    return crc


@pytest.fixture(autouse=True, params=[(1, 1), (3, 4), (500, 2_000)])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the steps are."""
    slice_size, run = request.param
    monkeypatch.setattr(derive, "SLICE", slice_size)
    monkeypatch.setattr(derive, "_RUN", run)


@given(partitions(), settings, st.sampled_from(BROKERS), st.booleans())
def test_a_departure(found: list[Entry], given: Settings, broker_id: BrokerId, unclean: bool) -> None:
    expected = naive(found, lambda state: rules_26.departure(broker_id, state, given, unclean=unclean))
    derived = result_of(derive.departure_steps(broker_id, found, given, unclean=unclean))
    assert derived.changes == expected
    assert derived.crc == naive_checksum(expected)


@given(partitions(), settings, st.sampled_from(BROKERS))
def test_an_arrival(found: list[Entry], given: Settings, broker_id: BrokerId) -> None:
    expected = naive(found, lambda state: rules_26.arrival(broker_id, state, given))
    derived = result_of(derive.arrival_steps(broker_id, found, given))
    assert derived.changes == expected
    assert derived.crc == naive_checksum(expected)


def test_more_kinds_than_are_remembered_come_out_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive, "_MOST_REMEMBERED", 2)
    given = Settings(frozenset(BROKERS), dict.fromkeys(TOPICS, 1), MappingProxyType(dict.fromkeys(TOPICS, False)))  # type: ignore[arg-type]

    def found() -> Iterator[Entry]:
        for number in range(12):
            replicas = BROKERS[number % 4 :] + BROKERS[: number % 4]
            yield (
                TOPICS[number % 3],
                number,
                PartitionState(
                    topic_id=TOPICS[number % 3],
                    replicas=replicas,
                    in_sync_replicas=replicas,
                    leader=replicas[0],
                    leader_epoch=LeaderEpoch(number),
                    partition_epoch=number,
                ),
            )

    expected = naive(list(found()), lambda state: rules_26.departure(BROKERS[0], state, given, unclean=False))
    assert len(expected) == 12
    assert result_of(derive.departure_steps(BROKERS[0], found(), given)).changes == expected
