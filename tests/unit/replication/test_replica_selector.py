import pytest

from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.replication.replica_selector import (
    ClientMetadata,
    LeaderSelector,
    PartitionView,
    RackAwareReplicaSelector,
    ReplicaNode,
    ReplicaSelector,
    ReplicaView,
)

ORDERS = TopicPartition("orders", 0)


def replica(broker_id: int, rack: str | None, *, end: int = 100, lag_ms: int = 0) -> ReplicaView:
    return ReplicaView(ReplicaNode(BrokerId(broker_id), "127.0.0.1", 9000 + broker_id, rack), end, lag_ms)


def client(rack_id: str) -> ClientMetadata:
    return ClientMetadata(rack_id, "app", "127.0.0.1", "User:ANONYMOUS", "PLAINTEXT")


def chosen(selector: ReplicaSelector, rack_id: str, leader: ReplicaView | None, *followers: ReplicaView) -> int | None:
    replicas = frozenset(followers if leader is None else (leader, *followers))
    found = selector.select(ORDERS, client(rack_id), PartitionView(replicas, leader))
    return None if found is None else found.endpoint.id


LEADER = replica(1, "a")


@pytest.mark.parametrize("rack_id", ["", "a", "b", "elsewhere"])
def test_the_leader_selector_chooses_the_leader(rack_id: str) -> None:
    assert chosen(LeaderSelector(), rack_id, LEADER, replica(2, "b")) == 1
    assert chosen(LeaderSelector(), rack_id, None, replica(2, "b")) is None


@pytest.mark.parametrize(
    ("rack_id", "followers", "expected"),
    [
        pytest.param("", (replica(2, ""), replica(3, "c")), 1, id="a client without a rack"),
        pytest.param("a", (replica(2, "a", end=200),), 1, id="the leader is in the rack"),
        pytest.param("z", (replica(2, "b"), replica(3, None)), 1, id="no replica is in the rack"),
        pytest.param("b", (replica(2, "b"), replica(3, "c")), 2, id="one is in the rack"),
        pytest.param("B", (replica(2, "b"),), 1, id="racks match exactly"),
        pytest.param("b", (replica(2, "b", end=99), replica(3, "b", end=100, lag_ms=9)), 3, id="the highest end"),
        pytest.param("b", (replica(2, "b", lag_ms=1), replica(3, "b", lag_ms=2)), 2, id="then the shortest lag"),
        pytest.param("b", (replica(3, "b"), replica(2, "b")), 3, id="then the highest id"),
    ],
)
def test_the_rack_aware_selector(rack_id: str, followers: tuple[ReplicaView, ...], expected: int) -> None:
    assert chosen(RackAwareReplicaSelector(), rack_id, LEADER, *followers) == expected


def test_the_rack_aware_selector_does_not_need_to_see_the_leader() -> None:
    assert chosen(RackAwareReplicaSelector(), "b", None, replica(2, "b")) == 2
    assert chosen(RackAwareReplicaSelector(), "z", None, replica(2, "b")) is None


def test_a_selector_of_users_needs_only_select() -> None:
    class First(ReplicaSelector):
        def select(
            self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
        ) -> ReplicaView | None:
            return min(partition.replicas)

    first = First()
    first.configure({})
    assert chosen(first, "", LEADER, replica(2, "b")) == 1
    first.close()


def test_a_selector_of_users_without_select_cannot_be_made() -> None:
    class Idle(ReplicaSelector):
        pass

    with pytest.raises(TypeError, match="select"):
        Idle()  # type: ignore[abstract]
