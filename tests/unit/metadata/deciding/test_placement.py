"""Placement of replicas."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata.deciding.placement import UsableBroker, place
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId


def brokers(*racks: str | None) -> list[UsableBroker]:
    return [UsableBroker(broker_id=BrokerId(number), rack=rack) for number, rack in enumerate(racks, start=1)]


def test_leaders_are_dealt_out_in_turn_from_the_start() -> None:
    placed = place(brokers(None, None, None), num_partitions=4, replication_factor=1, start=1)
    assert placed == ((2,), (3,), (1,), (2,))


def test_followers_of_one_broker_are_spread() -> None:
    placed = place(brokers(None, None, None, None), num_partitions=12, replication_factor=2, start=0)
    assert {follower for leader, follower in placed if leader == 1} == {2, 3, 4}


def test_each_replica_is_on_a_rack_of_its_own_while_there_are_racks() -> None:
    cluster = brokers("a", "a", "b", "b", "c", "c")
    rack = {broker.broker_id: broker.rack for broker in cluster}
    placed = place(cluster, num_partitions=30, replication_factor=3, start=5)
    assert [{rack[broker_id] for broker_id in replicas} for replicas in placed] == [{"a", "b", "c"}] * 30


def test_fewer_brokers_than_replicas_are_refused() -> None:
    with pytest.raises(KafkaError) as refusal:
        place(brokers("a", "b"), num_partitions=1, replication_factor=3, start=0)
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    num_partitions=st.integers(1, 40),
    start=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_placement_is_legal_and_even(
    racks: list[str | None], num_partitions: int, start: int, data: st.DataObject
) -> None:
    cluster = brokers(*racks)
    factor = data.draw(st.integers(1, len(cluster)))
    placed = place(cluster, num_partitions=num_partitions, replication_factor=factor, start=start)
    assert len(placed) == num_partitions
    rack = {broker.broker_id: broker.rack for broker in cluster}
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({rack[broker_id] for broker_id in replicas}) == min(factor, len(set(racks)))
    leaders = Counter({broker.broker_id: 0 for broker in cluster})
    leaders.update(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1
