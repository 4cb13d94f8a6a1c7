"""The controller adds partitions to topics, as a table."""

from typing import Any

from scenarios.controller.decision_table import (
    ONE,
    ORDERS,
    THREE,
    WITH_ORDERS,
    ControllerScenario,
    alive,
    check_decision,
    ids,
    partition,
    registered,
    table,
)
from tailrace.metadata.commands import CreatePartitions, PartitionIncrease, PartitionsCreated, TopicOutcome
from tailrace.metadata.records.topics import TopicRecord
from tailrace.model.errors import ErrorCode
from testkit.quorum.controller_commands import create_partitions
from testkit.quorum.controllers import topic_rules


def more(
    name: str, count: int, *replicas: tuple[int, ...], assigned: bool = False, validate_only: bool = False
) -> CreatePartitions:
    assignments = tuple(ids(*wanted) for wanted in replicas) if replicas or assigned else None
    topic = PartitionIncrease(name=name, count=count, assignments=assignments)
    return create_partitions(topic, validate_only=validate_only)


def all_created(*names: str) -> PartitionsCreated:
    return PartitionsCreated(outcomes=tuple(TopicOutcome(name=name) for name in names))


def not_more(name: str, error: ErrorCode, when: CreatePartitions, **given: Any) -> ControllerScenario:
    return ControllerScenario(name=name, when=when, error=error, **{"given": WITH_ORDERS, **given})


PARTITIONS = [
    ControllerScenario(
        name="partitions are added behind those there are, with as many replicas",
        given=[*THREE, TopicRecord(name="orders", topic_id=ORDERS), partition(ORDERS, 0, 1, 2)],
        when=more("orders", 3),
        then=[partition(ORDERS, 1, 2, 3), partition(ORDERS, 2, 3, 1)],
        response=all_created("orders"),
    ),
    ControllerScenario(
        name="new partitions go where a person wants them",
        given=[*THREE, TopicRecord(name="orders", topic_id=ORDERS), partition(ORDERS, 0, 1, 2)],
        when=more("orders", 3, (3, 1), (2, 3)),
        then=[partition(ORDERS, 1, 3, 1), partition(ORDERS, 2, 2, 3)],
        response=all_created("orders"),
    ),
    ControllerScenario(
        name="a partition can be added that only one of its brokers can lead",
        given=[
            *alive(1),
            registered(2),
            TopicRecord(name="orders", topic_id=ORDERS),
            partition(ORDERS, 0, 1, 2, isr=(1,)),
        ],
        when=more("orders", 2, (2, 1)),
        then=[partition(ORDERS, 1, 2, 1, isr=(1,))],
        response=all_created("orders"),
    ),
    ControllerScenario(
        name="more partitions are only validated",
        given=WITH_ORDERS,
        when=more("orders", 2, validate_only=True),
        response=all_created("orders"),
    ),
    not_more("as many partitions as there are are not more", ErrorCode.INVALID_PARTITIONS, more("orders", 1)),
    not_more("partitions cannot be taken away", ErrorCode.INVALID_PARTITIONS, more("orders", 0)),
    not_more("partitions cannot be taken away by a negative number", ErrorCode.INVALID_PARTITIONS, more("orders", -1)),
    not_more("partitions of a topic that is not there", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, more("lost", 2)),
    not_more(
        "replicas for fewer partitions than are added",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        more("orders", 3, (1,)),
    ),
    not_more(
        "replicas for more partitions than are added",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        more("orders", 2, (1,), (1,)),
    ),
    not_more(
        "an assignment that is there and empty", ErrorCode.INVALID_REPLICA_ASSIGNMENT, more("orders", 2, assigned=True)
    ),
    not_more("a new partition without replicas", ErrorCode.INVALID_REPLICA_ASSIGNMENT, more("orders", 2, ())),
    not_more(
        "a new partition with more replicas than the others",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        more("orders", 2, (1, 2)),
        given=[*WITH_ORDERS, *alive(2)],
    ),
    not_more("a new partition twice on a broker", ErrorCode.INVALID_REPLICA_ASSIGNMENT, more("orders", 2, (1, 1))),
    not_more(
        "a new partition on a broker that is not there", ErrorCode.INVALID_REPLICA_ASSIGNMENT, more("orders", 2, (9,))
    ),
    not_more(
        "a new partition on a fenced broker",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        more("orders", 2, (2,)),
        given=[*WITH_ORDERS, registered(2)],
    ),
    not_more(
        "a topic named twice gets no partitions",
        ErrorCode.INVALID_REQUEST,
        create_partitions(PartitionIncrease(name="orders", count=2), PartitionIncrease(name="orders", count=3)),
    ),
    not_more(
        "which partition keeps a group depends on their number",
        ErrorCode.INVALID_REQUEST,
        more("__consumer_offsets", 2),
        given=[*ONE, TopicRecord(name="__consumer_offsets", topic_id=ORDERS), partition(ORDERS, 0, 1)],
    ),
    not_more(
        "partitions that are there count against max.partitions.per.topic",
        ErrorCode.INVALID_PARTITIONS,
        more("orders", 3),
        rules=topic_rules(max_partitions_per_topic=2),
    ),
    not_more(
        "replicas that are there count against max.partitions.per.node",
        ErrorCode.POLICY_VIOLATION,
        more("orders", 3),
        rules=topic_rules(max_partitions_per_broker=2),
    ),
    not_more("more partitions than one request may add", ErrorCode.POLICY_VIOLATION, more("orders", 10_002)),
    not_more(
        "more replicas than there are brokers now",
        ErrorCode.INVALID_REPLICATION_FACTOR,
        more("orders", 2),
        given=[
            *alive(1),
            registered(2),
            TopicRecord(name="orders", topic_id=ORDERS),
            partition(ORDERS, 0, 1, 2, isr=(1,)),
        ],
    ),
]


@table(*PARTITIONS)
def test_the_controller_adds_partitions(scenario: ControllerScenario) -> None:
    check_decision(scenario)
