"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46): leaders and replicas."""

from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import BrokerRegistered, RegisterBroker
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
    OngoingPartitionReassignment,
    ReassignablePartition,
    ReassignableTopic,
)
from tailrace.server.admin.replicas import EXPLAINED
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import ENDPOINT, AdminPath
from testkit.nodes.data_path import BROKER

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders", partitions=2)
    return node


def elect(node: AdminPath, kind: int, *topics: ElectLeadersTopic, version: int = 2) -> dict[tuple[str, int], int]:
    response = node.send(ElectLeadersRequest(election_type=kind, topic_partitions=topics), version).response
    assert response.error_code == 0
    return {
        (topic.topic, each.partition_id): each.error_code
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


@pytest.mark.parametrize("kind", [PREFERRED, UNCLEAN])
def test_a_partition_that_its_only_replica_leads_needs_no_election(node: AdminPath, kind: int) -> None:
    wanted = ElectLeadersTopic(topic="orders", partitions=(0, 1, 2))
    assert elect(node, kind, wanted, ElectLeadersTopic(topic="missing", partitions=(0,))) == {
        ("orders", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_an_election_for_all_names_only_partitions_without_a_leader(node: AdminPath) -> None:
    response = node.send(ElectLeadersRequest(topic_partitions=None), 2).response
    assert (response.error_code, response.replica_election_results) == (0, ())


@pytest.mark.parametrize("version", [1, 2])
def test_an_unknown_kind_of_election_is_refused(node: AdminPath, version: int) -> None:
    topics = (ElectLeadersTopic(topic="orders", partitions=(0,)),)
    response = node.send(ElectLeadersRequest(election_type=2, topic_partitions=topics), version).response
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("partition", "replicas", "error"),
    [
        (0, (BROKER,), ErrorCode.NONE),
        (2, (BROKER,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, (BROKER, BROKER), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, (BROKER + 1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_partition_keeps_its_replica_and_gets_no_other(
    node: AdminPath, partition: int, replicas: tuple[int, ...] | None, error: ErrorCode
) -> None:
    wanted = ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="orders", partitions=(wanted,)),))
    response = node.send(request, 1).response
    ((result,),) = [topic.partitions for topic in response.responses]
    assert (response.error_code, result.partition_index, result.error_code) == (0, partition, error)


def test_a_partition_that_is_named_twice_is_refused(node: AdminPath) -> None:
    wanted = ReassignablePartition(partition_index=0, replicas=(BROKER,))
    topic = ReassignableTopic(name="orders", partitions=(wanted, wanted))
    response = node.send(AlterPartitionReassignmentsRequest(topics=(topic,)), 0).response
    assert (response.error_code, response.responses) == (ErrorCode.INVALID_REQUEST, ())


def test_a_replica_moves_to_another_broker_and_back(node: AdminPath) -> None:
    other = BrokerId(BROKER + 1)
    register = RegisterBroker(
        broker_id=other, incarnation_id=b"another process.", endpoints=(replace(ENDPOINT, port=9093),)
    )
    answers = node.submit(register)
    node.end_turn()
    (registered,) = answers
    assert isinstance(registered, BrokerRegistered)

    def move(*replicas: int) -> list[OngoingPartitionReassignment]:
        wanted = ReassignablePartition(partition_index=0, replicas=replicas or None)
        request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="orders", partitions=(wanted,)),))
        ((result,),) = [topic.partitions for topic in node.send(request, 1).response.responses]
        assert result.error_code == 0, result.error_message
        listed = node.send(ListPartitionReassignmentsRequest(topics=None), 0).response.topics
        return [partition for topic in listed for partition in topic.partitions]

    (ongoing,) = move(other)
    assert (ongoing.partition_index, ongoing.replicas) == (0, (other, BROKER))
    assert (ongoing.adding_replicas, ongoing.removing_replicas) == ((other,), (BROKER,))
    preferred = ElectLeadersTopic(topic="orders", partitions=(0, 0))
    assert elect(node, PREFERRED, preferred) == {("orders", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert move() == []


def test_moves_are_listed_for_every_place_at_which_a_topic_is_named(node: AdminPath) -> None:
    other = BrokerId(BROKER + 1)
    endpoints = (replace(ENDPOINT, port=9093),)
    node.submit(RegisterBroker(broker_id=other, incarnation_id=b"another process.", endpoints=endpoints))
    node.end_turn()
    wanted = ReassignablePartition(partition_index=0, replicas=(other,))
    request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="orders", partitions=(wanted,)),))
    ((result,),) = [topic.partitions for topic in node.send(request, 1).response.responses]
    assert result.error_code == 0

    def listed(*indexes: int) -> list[int]:
        topics = tuple(ListPartitionReassignmentsTopic(name="orders", partition_indexes=(index,)) for index in indexes)
        response = node.send(ListPartitionReassignmentsRequest(topics=topics), 0).response
        return [partition.partition_index for topic in response.topics for partition in topic.partitions]

    assert listed(0, 1) == listed(1, 0) == listed(0, 0) == [0]


def test_a_reassignment_may_keep_the_number_of_replicas_that_was_asked_for_last(node: AdminPath) -> None:
    """While a move is under way, that is the number it leads to, and not that of before."""
    for number in (1, 2, 3):
        endpoints = (replace(ENDPOINT, port=9092 + number),)
        broker_id = BrokerId(BROKER + number)
        node.submit(RegisterBroker(broker_id=broker_id, incarnation_id=bytes([number] * 16), endpoints=endpoints))
        node.end_turn()

    def move(*replicas: int, may_change: bool = False) -> int:
        wanted = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(name="orders", partitions=(wanted,)),), allow_replication_factor_change=may_change
        )
        ((result,),) = [topic.partitions for topic in node.send(request, 1).response.responses]
        return int(result.error_code)

    assert move(1, 2, may_change=True) == ErrorCode.NONE
    assert move(3) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(3, 4) == ErrorCode.NONE
    assert move(1, 2, 3) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(2, may_change=True) == ErrorCode.NONE
    assert move(3, 4) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert move(4) == ErrorCode.NONE


def test_the_first_refusals_say_why(node: AdminPath) -> None:
    wanted = ElectLeadersTopic(topic="orders", partitions=tuple(range(2, 2 + EXPLAINED + 1)))
    response = node.send(ElectLeadersRequest(topic_partitions=(wanted,)), 2).response
    messages = [each.error_message for topic in response.replica_election_results for each in topic.partition_result]
    assert all(messages[:EXPLAINED])
    assert messages[EXPLAINED:] == [None]


def test_no_reassignment_is_under_way(node: AdminPath) -> None:
    wanted = ListPartitionReassignmentsTopic(name="orders", partition_indexes=(0, 7))
    for topics in (None, (wanted,)):
        response = node.send(ListPartitionReassignmentsRequest(topics=topics), 0).response
        assert (response.error_code, response.topics) == (0, ())


@pytest.mark.parametrize(
    ("partitions", "desired", "expected"),
    [
        ((0,), (BROKER,), ErrorCode.ELECTION_NOT_NEEDED),
        ((0, 1), (-1, 7), ErrorCode.ELECTION_NOT_NEEDED),
        ((0, 1), (7, 7), ErrorCode.INVALID_REQUEST),
    ],
)
def test_desired_leaders_stand_beside_their_partitions(
    node: AdminPath, partitions: tuple[int, ...], desired: tuple[int, ...], expected: ErrorCode
) -> None:
    wanted = ElectLeadersTopic(topic="orders", partitions=partitions, desired_leaders=desired)
    assert elect(node, UNCLEAN, wanted)["orders", 0] == expected


def test_a_list_of_desired_leaders_that_is_too_short_is_refused(node: AdminPath) -> None:
    wanted = (ElectLeadersTopic(topic="orders", partitions=(0, 1), desired_leaders=(BROKER,)),)
    response = node.send(ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=wanted), 2).response
    assert response.error_code == ErrorCode.INVALID_REQUEST
