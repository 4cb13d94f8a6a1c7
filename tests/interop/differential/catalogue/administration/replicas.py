"""ElectLeaders, reassignments, AlterReplicaLogDirs, DescribeQuorum, ListConfigResources: a cluster of one node."""

from collections.abc import Sequence

from interop.differential.catalogue.preparation import LIMIT_MS, created
from interop.differential.script import Script, ask, every_version
from tailrace.protocol.messages.configs import ListConfigResourcesRequest
from tailrace.protocol.messages.log_dirs import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from tailrace.protocol.messages.quorum import DescribedQuorumPartition, DescribedQuorumTopic, DescribeQuorumRequest
from tailrace.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)

TOPIC = "replicas"


def replicas() -> Script:
    yield from created(TOPIC, 2)
    yield from _elections()
    yield from _reassignments()
    yield from _directories()
    yield from _quorum()
    yield from _resources()


def _elections() -> Script:
    def elect(topic: str, *indexes: int, kind: int = 0) -> ElectLeadersRequest:
        wanted = (ElectLeadersTopic(topic=topic, partitions=indexes),)
        return ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=LIMIT_MS)

    yield from ask("a preferred leader", elect(TOPIC, 0, 1), *every_version(ElectLeadersRequest))
    yield from ask("any leader at all", elect(TOPIC, 0, kind=1), 1, 2)
    yield from ask("leaders of unknown partitions", elect(TOPIC, 7, -1), 0, 2)
    yield from ask("a leader of an unknown topic", elect("nowhere", 0), 0, 2)
    yield from ask("a leader of a topic with an invalid name", elect("no/such", 0), 0, 2)
    yield from ask("leaders of nothing", ElectLeadersRequest(topic_partitions=(), timeout_ms=LIMIT_MS), 0, 2)


def _reassignments() -> Script:
    def move(topic: str, index: int, brokers: Sequence[int] | None) -> AlterPartitionReassignmentsRequest:
        partition = ReassignablePartition(partition_index=index, replicas=None if brokers is None else tuple(brokers))
        wanted = (ReassignableTopic(name=topic, partitions=(partition,)),)
        return AlterPartitionReassignmentsRequest(timeout_ms=LIMIT_MS, topics=wanted)

    to: dict[str, Sequence[int] | None] = {
        "to where it is": [1],
        "to no broker": [],
        "to a broker that is not there": [7],
        "to a broker twice": [1, 1],
        "to broker -1": [-1],
        "no more": None,
    }
    for what, brokers in to.items():
        request = move(TOPIC, 0, brokers)
        yield from ask(f"a partition is moved {what}", request, *every_version(AlterPartitionReassignmentsRequest))
    yield from ask("an unknown partition is moved", move(TOPIC, 7, [1]), 0, 1)
    yield from ask("an unknown topic is moved", move("nowhere", 0, [1]), 0, 1)
    yield from ask("all that is being moved", ListPartitionReassignmentsRequest(timeout_ms=LIMIT_MS))
    for topic, index in ((TOPIC, 0), (TOPIC, 7), ("nowhere", 0)):
        wanted = (ListPartitionReassignmentsTopic(name=topic, partition_indexes=(index,)),)
        question = ListPartitionReassignmentsRequest(timeout_ms=LIMIT_MS, topics=wanted)
        yield from ask(f"whether {topic}-{index} is being moved", question)


def _directories() -> Script:
    for topic, index in ((TOPIC, 0), (TOPIC, 7), ("nowhere", 0)):
        wanted = (AlterReplicaLogDirTopic(name=topic, partitions=(index,)),)
        request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path="/no/such/directory", topics=wanted),))
        yield from ask(f"{topic}-{index} is moved to an unknown directory", request, 1, 2)
    yield from ask("nothing is moved to another directory", AlterReplicaLogDirsRequest(dirs=()), 1, 2)


def _quorum() -> Script:
    for topic, index in (("__cluster_metadata", 0), ("__cluster_metadata", 1), (TOPIC, 0)):
        wanted = (
            DescribedQuorumTopic(topic_name=topic, partitions=(DescribedQuorumPartition(partition_index=index),)),
        )
        request = DescribeQuorumRequest(topics=wanted)
        yield from ask(f"the quorum of {topic}-{index}", request, *every_version(DescribeQuorumRequest))


def _resources() -> Script:
    yield from ask("resources of client metrics", ListConfigResourcesRequest(), 0)
    for types in ((), (2,), (4,), (8,), (16,), (32,), (2, 4), (0,), (99,)):
        yield from ask(f"resources of types {types}", ListConfigResourcesRequest(resource_types=types), 1)
