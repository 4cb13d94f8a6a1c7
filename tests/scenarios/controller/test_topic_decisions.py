"""The controller creates and deletes topics, as a table."""

from scenarios.controller.decision_table import (
    DIRECTORY,
    ONE,
    ORDERS,
    SET_RETENTION,
    THREE,
    WITH_ORDERS,
    ControllerScenario,
    alive,
    assigned,
    check_decision,
    create,
    created,
    ids,
    partition,
    random_id,
    refused,
    registered,
    table,
)
from tailrace.metadata.commands import (
    ReplicaAssignment,
    TopicDeletion,
    TopicReference,
    TopicsCreated,
    TopicsDeleted,
    TopicSpec,
)
from tailrace.metadata.records.topics import RemoveTopicRecord, TopicRecord
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from testkit.quorum.controller_commands import delete_topics
from testkit.quorum.controllers import controller_machine, topic_rules

TOPICS = [
    ControllerScenario(
        name="a topic is a topic record and its partitions",
        given=ONE,
        when=create(TopicSpec(name="orders", num_partitions=2, replication_factor=1)),
        then=[
            TopicRecord(name="orders", topic_id=random_id(2)),
            partition(random_id(2), 0, 1),
            partition(random_id(2), 1, 1),
        ],
        response=TopicsCreated(results=(created("orders", 2, partitions=2),)),
    ),
    ControllerScenario(
        name="counts of -1 are the cluster's defaults",
        given=THREE,
        rules=topic_rules(num_partitions=2, replication_factor=3),
        when=create(TopicSpec(name="orders")),
        then=[
            TopicRecord(name="orders", topic_id=random_id(2)),
            partition(random_id(2), 0, 2, 3, 1),
            partition(random_id(2), 1, 3, 1, 2),
        ],
        response=TopicsCreated(results=(created("orders", 2, partitions=2, factor=3),)),
    ),
    ControllerScenario(
        name="the only log directory of a broker holds its replicas",
        given=alive(1, directories=(DIRECTORY,)),
        when=create(TopicSpec(name="orders")),
        then=[TopicRecord(name="orders", topic_id=random_id(2)), partition(random_id(2), 0, 1, directory=DIRECTORY)],
        response=TopicsCreated(results=(created("orders", 2),)),
    ),
    ControllerScenario(
        name="settings stand between the topic and its partitions",
        given=ONE,
        when=create(TopicSpec(name="orders", configs=(("retention.ms", "5"),))),
        then=[TopicRecord(name="orders", topic_id=random_id(2)), SET_RETENTION, partition(random_id(2), 0, 1)],
        response=TopicsCreated(results=(created("orders", 2, overrides={"retention.ms": "5"}),)),
    ),
    ControllerScenario(
        name="an assignment is taken as it is, fenced brokers out of sync",
        given=[*ONE, registered(2)],
        when=create(TopicSpec(name="orders", assignments=assigned((2, 1), (1, 2)))),
        then=[
            TopicRecord(name="orders", topic_id=random_id(1)),
            partition(random_id(1), 0, 2, 1, isr=(1,)),
            partition(random_id(1), 1, 1, 2, isr=(1,)),
        ],
        response=TopicsCreated(results=(created("orders", 1, partitions=2, factor=2),)),
    ),
    ControllerScenario(
        name="a topic that is refused does not harm the next topic",
        given=ONE,
        when=create(TopicSpec(name="or ders"), TopicSpec(name="returns")),
        then=[TopicRecord(name="returns", topic_id=random_id(2)), partition(random_id(2), 0, 1)],
        error=ErrorCode.INVALID_TOPIC_EXCEPTION,
    ),
    ControllerScenario(
        name="validation creates nothing",
        given=ONE,
        when=create(TopicSpec(name="orders"), validate_only=True),
        response=TopicsCreated(results=(created("orders", 2),)),
    ),
    refused("a topic that exists", ErrorCode.TOPIC_ALREADY_EXISTS, TopicSpec(name="orders"), given=WITH_ORDERS),
    refused("a topic named twice", ErrorCode.INVALID_REQUEST, TopicSpec(name="x"), TopicSpec(name="x")),
    refused("the metadata log as a topic", ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicSpec(name="__cluster_metadata")),
    refused("a topic with an empty name", ErrorCode.INVALID_TOPIC_EXCEPTION, TopicSpec(name="")),
    refused(
        "a name that collides with a topic",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        TopicSpec(name="a.b_c"),
        given=[*ONE, TopicRecord(name="a_b.c", topic_id=ORDERS), partition(ORDERS, 0, 1)],
    ),
    refused("a topic of 0 partitions", ErrorCode.INVALID_PARTITIONS, TopicSpec(name="x", num_partitions=0)),
    refused(
        "the replicas are looked at first, as Kafka does",
        ErrorCode.INVALID_REPLICATION_FACTOR,
        TopicSpec(name="x", num_partitions=0, replication_factor=0),
    ),
    refused("a topic of -2 partitions", ErrorCode.INVALID_PARTITIONS, TopicSpec(name="x", num_partitions=-2)),
    refused("a topic of 0 replicas", ErrorCode.INVALID_REPLICATION_FACTOR, TopicSpec(name="x", replication_factor=0)),
    refused(
        "a topic of more replicas than brokers",
        ErrorCode.INVALID_REPLICATION_FACTOR,
        TopicSpec(name="x", replication_factor=2),
    ),
    refused("a topic without a broker", ErrorCode.INVALID_REPLICATION_FACTOR, TopicSpec(name="x"), given=[]),
    refused(
        "a topic with fenced brokers only",
        ErrorCode.INVALID_REPLICATION_FACTOR,
        TopicSpec(name="x"),
        given=[registered(1)],
    ),
    refused(
        "a topic with an unknown setting", ErrorCode.INVALID_CONFIG, TopicSpec(name="x", configs=(("retention", "1"),))
    ),
    refused(
        "a topic with a setting out of limits",
        ErrorCode.INVALID_CONFIG,
        TopicSpec(name="x", configs=(("segment.ms", "0"),)),
    ),
    refused(
        "a topic with a null setting", ErrorCode.INVALID_CONFIG, TopicSpec(name="x", configs=(("segment.ms", None),))
    ),
    refused(
        "an assignment and a count",
        ErrorCode.INVALID_REQUEST,
        TopicSpec(name="x", num_partitions=1, assignments=assigned((1,))),
    ),
    refused(
        "an assignment to an unknown broker",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=assigned((9,))),
    ),
    refused(
        "an assignment to a broker twice",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=assigned((1, 1))),
    ),
    refused(
        "an assignment to no broker",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=assigned(())),
    ),
    refused(
        "an assignment to fenced brokers only",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=assigned((1,))),
        given=[registered(1)],
    ),
    refused(
        "assignments of different sizes",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=assigned((1, 2), (3,))),
        given=THREE,
    ),
    refused(
        "a partition assigned twice",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=assigned((1,)) * 2),
    ),
    refused(
        "an assignment with a gap",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicSpec(name="x", assignments=(ReplicaAssignment(partition=1, broker_ids=ids(1)),)),
    ),
    refused(
        "more partitions than a topic may have",
        ErrorCode.INVALID_PARTITIONS,
        TopicSpec(name="x", num_partitions=3),
        rules=topic_rules(max_partitions_per_topic=2),
    ),
    refused(
        "more partitions than a broker keeps",
        ErrorCode.POLICY_VIOLATION,
        TopicSpec(name="x", num_partitions=2),
        given=WITH_ORDERS,
        rules=topic_rules(max_partitions_per_broker=2),
    ),
    ControllerScenario(
        name="a broker that keeps too many bars no other",
        given=[
            *alive(1),
            *alive(2),
            TopicRecord(name="full", topic_id=ORDERS),
            partition(ORDERS, 0, 1),
            partition(ORDERS, 1, 1),
        ],
        when=create(TopicSpec(name="x", assignments=(ReplicaAssignment(partition=0, broker_ids=(BrokerId(2),)),))),
        rules=topic_rules(max_partitions_per_broker=1),
        then=[TopicRecord(name="x", topic_id=random_id(1)), partition(random_id(1), 0, 2)],
    ),
    refused(
        "more partitions than one request creates",
        ErrorCode.POLICY_VIOLATION,
        TopicSpec(name="x", num_partitions=6000),
        TopicSpec(name="y", num_partitions=6000),
    ),
    ControllerScenario(
        name="two new names that collide with each other: the first wins",
        given=ONE,
        when=create(TopicSpec(name="a.b"), TopicSpec(name="a_b")),
        then=[TopicRecord(name="a.b", topic_id=random_id(2)), partition(random_id(2), 0, 1)],
        error=ErrorCode.INVALID_TOPIC_EXCEPTION,
    ),
    ControllerScenario(
        name="a topic is deleted by name",
        given=WITH_ORDERS,
        when=delete_topics(TopicReference(name="orders")),
        then=[RemoveTopicRecord(topic_id=ORDERS)],
        response=TopicsDeleted(results=(TopicDeletion(name="orders", topic_id=ORDERS),)),
    ),
    ControllerScenario(
        name="a topic is deleted by id",
        given=WITH_ORDERS,
        when=delete_topics(TopicReference(topic_id=ORDERS)),
        then=[RemoveTopicRecord(topic_id=ORDERS)],
        response=TopicsDeleted(results=(TopicDeletion(name="orders", topic_id=ORDERS),)),
    ),
    ControllerScenario(
        name="the name of an unknown topic is not deleted",
        when=delete_topics(TopicReference(name="orders")),
        error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    ControllerScenario(
        name="the id of an unknown topic is not deleted",
        when=delete_topics(TopicReference(topic_id=ORDERS)),
        error=ErrorCode.UNKNOWN_TOPIC_ID,
    ),
    ControllerScenario(
        name="a deletion with name and id",
        given=WITH_ORDERS,
        when=delete_topics(TopicReference(name="orders", topic_id=ORDERS)),
        error=ErrorCode.INVALID_REQUEST,
    ),
    ControllerScenario(
        name="a topic named twice is not deleted",
        given=WITH_ORDERS,
        when=delete_topics(TopicReference(name="orders"), TopicReference(topic_id=ORDERS)),
        error=ErrorCode.INVALID_REQUEST,
    ),
    ControllerScenario(
        name="an internal topic may be deleted, as in Kafka",
        given=[*ONE, TopicRecord(name="__consumer_offsets", topic_id=ORDERS), partition(ORDERS, 0, 1)],
        when=delete_topics(TopicReference(name="__consumer_offsets")),
        then=[RemoveTopicRecord(topic_id=ORDERS)],
        response=TopicsDeleted(results=(TopicDeletion(name="__consumer_offsets", topic_id=ORDERS),)),
    ),
]


def test_a_topic_id_that_is_reserved_or_taken_is_drawn_again() -> None:
    draws = iter([bytes(4), bytes(16), bytes(15) + b"\1", b"\xf8" + bytes(15), ORDERS, random_id(5)])
    machine = controller_machine(random_bytes=lambda size: next(draws)[-size:])
    for record in WITH_ORDERS:
        machine.apply(record)
    response = machine.decide(create(TopicSpec(name="returns")), 0).response
    assert response == TopicsCreated(results=(created("returns", 5),))


@table(*TOPICS)
def test_the_controller_creates_and_deletes_topics(scenario: ControllerScenario) -> None:
    check_decision(scenario)
