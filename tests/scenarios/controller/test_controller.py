"""The controller as a table: given these records, this command gives those records and that answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerRegistered,
    CarriedOut,
    FenceBroker,
    FinalizeMetadataVersion,
    ProducerIdBlock,
    RegisterBroker,
    UnfenceBroker,
)
from tailrace.metadata.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigsAltered,
    ControllerCommand,
    ControllerResponse,
    CreatePartitions,
    CreateTopics,
    PartitionIncrease,
    PartitionsCreated,
    ReplicaAssignment,
    ResourceChanges,
    TopicCreated,
    TopicDeletion,
    TopicOutcome,
    TopicReference,
    TopicRefused,
    TopicsCreated,
    TopicsDeleted,
    TopicSpec,
)
from tailrace.metadata.deciding.topics import TopicRules
from tailrace.metadata.image import ConfigResource, Endpoint, ResourceType
from tailrace.metadata.records.brokers import (
    FenceBrokerRecord,
    RecordedEndpoint,
    RecordedFeature,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
)
from tailrace.metadata.records.cluster import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import (
    UNASSIGNED_DIRECTORY,
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, ProducerId, TopicId
from tailrace.model.topic_config import TopicConfig
from testkit.quorum.controller_commands import alter_configs, create_partitions, create_topics, delete_topics
from testkit.quorum.controllers import controller_machine, topic_rules
from testkit.quorum.metadata_records import new_broker, new_partition

NEXT_OFFSET = 77


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def random_id(number: int) -> TopicId:
    return TopicId((2**64 + number).to_bytes(16, "big"))


def registered(broker_id: int, *, directories: tuple[bytes, ...] = (), rack: str | None = None) -> RegisterBrokerRecord:
    return new_broker(broker_id, rack=rack, log_dirs=directories)


def alive(broker_id: int, *, directories: tuple[bytes, ...] = ()) -> list[MetadataRecord]:
    return [registered(broker_id, directories=directories), UnfenceBrokerRecord(id=broker_id, epoch=broker_id)]


def partition(
    topic_id: bytes, number: int, *replicas: int, isr: tuple[int, ...] | None = None, directory: bytes | None = None
) -> PartitionRecord:
    directories = (directory or UNASSIGNED_DIRECTORY,) * len(replicas)
    return new_partition(topic_id, number, *replicas, isr=isr or replicas, directories=directories)


ORDERS = random_id(1000)
SET_RETENTION = ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="5")
ONE = alive(1)
THREE = [*alive(1), *alive(2), *alive(3)]
WITH_ORDERS = [*ONE, TopicRecord(name="orders", topic_id=ORDERS), partition(ORDERS, 0, 1)]
DIRECTORY = b"a log directory!"
ENDPOINT = Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9092)


def create(*topics: TopicSpec, validate_only: bool = False) -> CreateTopics:
    return create_topics(*topics, validate_only=validate_only)


def assigned(*replicas: tuple[int, ...]) -> tuple[ReplicaAssignment, ...]:
    return tuple(ReplicaAssignment(partition=n, broker_ids=ids(*wanted)) for n, wanted in enumerate(replicas))


def created(
    name: str, number: int, *, partitions: int = 1, factor: int = 1, overrides: dict[str, str] | None = None
) -> TopicCreated:
    return TopicCreated(
        name=name,
        topic_id=random_id(number),
        num_partitions=partitions,
        replication_factor=factor,
        overrides=overrides or {},
    )


DEFAULT_RULES = topic_rules()


@dataclass(frozen=True, kw_only=True)
class ControllerScenario:
    """`error` stands for a refusal of the whole command, or of the first topic in the answer."""

    name: str
    given: Sequence[MetadataRecord] = ()
    rules: TopicRules = DEFAULT_RULES
    founding_settings: Mapping[str, str] = field(default_factory=dict)
    when: ControllerCommand
    then: Sequence[MetadataRecord] = ()
    response: ControllerResponse | None = None
    error: ErrorCode | None = None


def refused(name: str, error: ErrorCode, *topics: TopicSpec, **given: Any) -> ControllerScenario:
    return ControllerScenario(name=name, when=create(*topics), error=error, **{"given": ONE, **given})


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


OF_ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
BROKER_1 = ConfigResource(ResourceType.BROKER, "1")
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
ALTERED = ConfigsAltered(errors=(None,))


def setting(name: str, value: str | None, of: ConfigResource = OF_ORDERS) -> ConfigRecord:
    return ConfigRecord(resource_type=of.type, resource_name=of.name, name=name, value=value)


def set_to(name: str, value: str) -> ConfigChange:
    return ConfigChange(name=name, value=value)


SEGMENT_AT_5 = set_to("segment.ms", "5")


def alter(
    *changes: ConfigChange,
    resource: ConfigResource = OF_ORDERS,
    replaces_all: bool = False,
    validate_only: bool = False,
) -> AlterConfigs:
    resources = (ResourceChanges(resource=resource, changes=changes, replaces_all=replaces_all),)
    return alter_configs(*resources, validate_only=validate_only)


def unaltered(
    name: str, error: ErrorCode, *changes: ConfigChange, resource: ConfigResource = OF_ORDERS, **given: Any
) -> ControllerScenario:
    return ControllerScenario(
        name=name, when=alter(*changes, resource=resource), error=error, **{"given": WITH_ORDERS, **given}
    )


SCENARIOS = [
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
        name="one bad topic does not harm the next",
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
    refused("the metadata log", ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicSpec(name="__cluster_metadata")),
    refused("an empty name", ErrorCode.INVALID_TOPIC_EXCEPTION, TopicSpec(name="")),
    refused(
        "a name that collides with a topic",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        TopicSpec(name="a.b_c"),
        given=[*ONE, TopicRecord(name="a_b.c", topic_id=ORDERS), partition(ORDERS, 0, 1)],
    ),
    refused("no partitions", ErrorCode.INVALID_PARTITIONS, TopicSpec(name="x", num_partitions=0)),
    refused(
        "the replicas are looked at first, as Kafka does",
        ErrorCode.INVALID_REPLICATION_FACTOR,
        TopicSpec(name="x", num_partitions=0, replication_factor=0),
    ),
    refused("-2 partitions", ErrorCode.INVALID_PARTITIONS, TopicSpec(name="x", num_partitions=-2)),
    refused("no replicas", ErrorCode.INVALID_REPLICATION_FACTOR, TopicSpec(name="x", replication_factor=0)),
    refused("too many replicas", ErrorCode.INVALID_REPLICATION_FACTOR, TopicSpec(name="x", replication_factor=2)),
    refused("no broker", ErrorCode.INVALID_REPLICATION_FACTOR, TopicSpec(name="x"), given=[]),
    refused("only fenced brokers", ErrorCode.INVALID_REPLICATION_FACTOR, TopicSpec(name="x"), given=[registered(1)]),
    refused("an unknown setting", ErrorCode.INVALID_CONFIG, TopicSpec(name="x", configs=(("retention", "1"),))),
    refused("a setting out of limits", ErrorCode.INVALID_CONFIG, TopicSpec(name="x", configs=(("segment.ms", "0"),))),
    refused("a null setting", ErrorCode.INVALID_CONFIG, TopicSpec(name="x", configs=(("segment.ms", None),))),
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
    refused("no brokers", ErrorCode.INVALID_REPLICA_ASSIGNMENT, TopicSpec(name="x", assignments=assigned(()))),
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
        name="a name that is not there",
        when=delete_topics(TopicReference(name="orders")),
        error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    ControllerScenario(
        name="an id that is not there",
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
    ControllerScenario(
        name="a broker's epoch is the offset of its registration",
        when=RegisterBroker(
            broker_id=BrokerId(1),
            incarnation_id=b"i" * 16,
            endpoints=(ENDPOINT,),
            rack="a",
            log_directories=(DIRECTORY,),
        ),
        then=[
            RegisterBrokerRecord(
                broker_id=1,
                incarnation_id=b"i" * 16,
                broker_epoch=NEXT_OFFSET,
                end_points=(RecordedEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9092, security_protocol=0),),
                features=(
                    RecordedFeature(name="metadata.version", min_supported_version=26, max_supported_version=27),
                    RecordedFeature(name="transaction.version", min_supported_version=0, max_supported_version=2),
                    RecordedFeature(name="tailrace.sinks", min_supported_version=1, max_supported_version=1),
                ),
                rack="a",
                fenced=True,
                log_dirs=(DIRECTORY,),
                derived_count=0,
            )
        ],
        response=BrokerRegistered(broker_epoch=NEXT_OFFSET),
    ),
    ControllerScenario(
        name="a registration that is repeated keeps its epoch",
        given=ONE,
        when=RegisterBroker(broker_id=BrokerId(1), incarnation_id=bytes(16), endpoints=()),
        response=BrokerRegistered(broker_epoch=1),
    ),
    ControllerScenario(
        name="fencing is one record, sealed with what follows from it",
        given=WITH_ORDERS,
        when=FenceBroker(broker_id=BrokerId(1), broker_epoch=1),
        then=[FenceBrokerRecord(id=1, epoch=1, derived_count=1, derived_crc=634458583)],
        response=BrokerRegistered(broker_epoch=1),
    ),
    ControllerScenario(
        name="a broker that is not fenced needs no unfencing",
        given=ONE,
        when=UnfenceBroker(broker_id=BrokerId(1), broker_epoch=1),
        response=BrokerRegistered(broker_epoch=1),
    ),
    ControllerScenario(
        name="an earlier registration is stale",
        given=ONE,
        when=FenceBroker(broker_id=BrokerId(1), broker_epoch=0),
        error=ErrorCode.STALE_BROKER_EPOCH,
    ),
    ControllerScenario(
        name="a broker that is not registered",
        when=UnfenceBroker(broker_id=BrokerId(1), broker_epoch=1),
        error=ErrorCode.BROKER_ID_NOT_REGISTERED,
    ),
    ControllerScenario(
        name="producer ids come in blocks of a thousand",
        given=[*ONE, ProducerIdsRecord(broker_id=1, next_producer_id=1000)],
        when=AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=1),
        then=[ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=2000)],
        response=ProducerIdBlock(first=ProducerId(1000), size=1000),
    ),
    ControllerScenario(
        name="an earlier process gets no producer ids",
        given=ONE,
        when=AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0),
        error=ErrorCode.STALE_BROKER_EPOCH,
    ),
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
        name="more partitions are only tried",
        given=WITH_ORDERS,
        when=more("orders", 2, validate_only=True),
        response=all_created("orders"),
    ),
    not_more("as many partitions as there are are not more", ErrorCode.INVALID_PARTITIONS, more("orders", 1)),
    not_more("partitions cannot be taken away", ErrorCode.INVALID_PARTITIONS, more("orders", 0)),
    not_more("and not by asking for a negative number", ErrorCode.INVALID_PARTITIONS, more("orders", -1)),
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
    ControllerScenario(
        name="only settings that change are written",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(set_to("retention.ms", "5"), set_to("segment.ms", "9")),
        then=[setting("segment.ms", "9")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a setting is taken back",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(ConfigChange(name="retention.ms", operation=ConfigOperation.DELETE)),
        then=[setting("retention.ms", None)],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a setting that was never given is taken back",
        given=WITH_ORDERS,
        when=alter(ConfigChange(name="retention.ms", operation=ConfigOperation.DELETE)),
        response=ALTERED,
    ),
    ControllerScenario(
        name="settings that a replacement does not name go",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(set_to("segment.ms", "9"), replaces_all=True),
        then=[setting("retention.ms", None), setting("segment.ms", "9")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a replacement that names what is there changes nothing",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(set_to("retention.ms", "5"), replaces_all=True),
        response=ALTERED,
    ),
    ControllerScenario(
        name="settings are only tried",
        given=WITH_ORDERS,
        when=alter(set_to("segment.ms", "9"), validate_only=True),
        response=ALTERED,
    ),
    ControllerScenario(
        name="words are added to the default of a list, each once",
        given=WITH_ORDERS,
        when=alter(ConfigChange(name="cleanup.policy", operation=ConfigOperation.APPEND, value="compact,delete")),
        then=[setting("cleanup.policy", "delete,compact")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="words are added to the list in force on all brokers",
        given=WITH_ORDERS,
        rules=topic_rules(config=TopicConfig(cleanup_policy=("compact",))),
        when=alter(ConfigChange(name="cleanup.policy", operation=ConfigOperation.APPEND, value="delete")),
        then=[setting("cleanup.policy", "compact,delete")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="words are taken from a list",
        given=[*WITH_ORDERS, setting("cleanup.policy", "delete,compact")],
        when=alter(ConfigChange(name="cleanup.policy", operation=ConfigOperation.SUBTRACT, value="delete")),
        then=[setting("cleanup.policy", "compact")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="the setting of all brokers",
        given=ONE,
        when=alter(set_to("log.retention.ms", "5"), resource=ALL_BROKERS),
        then=[ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="the setting of one broker",
        given=ONE,
        when=alter(set_to("log.retention.ms", "5"), resource=BROKER_1),
        then=[ConfigRecord(resource_type=4, resource_name="1", name="log.retention.ms", value="5")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="values are written down as Kafka writes them",
        given=WITH_ORDERS,
        when=alter(
            set_to("preallocate", " TRUE"), set_to("segment.ms", "+5"), set_to("cleanup.policy", "delete, compact")
        ),
        then=[setting("preallocate", "true"), setting("segment.ms", "5"), setting("cleanup.policy", "delete,compact")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="those of a new topic too",
        given=ONE,
        when=create(TopicSpec(name="orders", configs=(("retention.ms", " 5 "),))),
        then=[TopicRecord(name="orders", topic_id=random_id(2)), SET_RETENTION, partition(random_id(2), 0, 1)],
        response=TopicsCreated(results=(created("orders", 2, overrides={"retention.ms": "5"}),)),
    ),
    unaltered("a value that is too long", ErrorCode.INVALID_CONFIG, set_to("cleanup.policy", "delete," * 5_000)),
    refused(
        "a value of a new topic that is too long",
        ErrorCode.INVALID_CONFIG,
        TopicSpec(name="x", configs=(("cleanup.policy", "delete," * 5_000),)),
    ),
    unaltered(
        "a batch that no request can carry",
        ErrorCode.INVALID_CONFIG,
        set_to("max.message.bytes", "1001"),
        rules=topic_rules(max_frame_bytes=1_000),
    ),
    unaltered(
        "a batch that no request can carry, for all topics",
        ErrorCode.INVALID_REQUEST,
        set_to("message.max.bytes", "1001"),
        resource=ALL_BROKERS,
        rules=topic_rules(max_frame_bytes=1_000),
    ),
    refused(
        "a new topic whose batches no request can carry",
        ErrorCode.INVALID_CONFIG,
        TopicSpec(name="x", configs=(("max.message.bytes", "1001"),)),
        rules=topic_rules(max_frame_bytes=1_000),
    ),
    unaltered("one illegal setting refuses all", ErrorCode.INVALID_CONFIG, SEGMENT_AT_5, set_to("retention.ms", "x")),
    unaltered("a setting that does not exist", ErrorCode.INVALID_CONFIG, set_to("retention.minutes", "5")),
    unaltered("a value outside its limits", ErrorCode.INVALID_CONFIG, set_to("min.insync.replicas", "0")),
    unaltered("a word that a list does not take", ErrorCode.INVALID_CONFIG, set_to("cleanup.policy", "delete,burn")),
    unaltered(
        "settings that contradict each other",
        ErrorCode.INVALID_CONFIG,
        set_to("min.compaction.lag.ms", "10"),
        set_to("max.compaction.lag.ms", "9"),
    ),
    unaltered(
        "words cannot be added to a number",
        ErrorCode.INVALID_CONFIG,
        ConfigChange(name="retention.ms", operation=ConfigOperation.APPEND, value="5"),
    ),
    unaltered("a setting named twice", ErrorCode.INVALID_REQUEST, SEGMENT_AT_5, SEGMENT_AT_5),
    unaltered("null for a value", ErrorCode.INVALID_REQUEST, ConfigChange(name="segment.ms")),
    unaltered("settings of a topic that is not there", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, given=ONE),
    unaltered(
        "settings of what cannot be a topic",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        SEGMENT_AT_5,
        resource=ConfigResource(ResourceType.TOPIC, "a/b"),
    ),
    unaltered(
        "settings of what has none",
        ErrorCode.INVALID_REQUEST,
        SEGMENT_AT_5,
        resource=ConfigResource(ResourceType.BROKER_LOGGER, "1"),
    ),
    unaltered(
        "a broker's setting that holds from its start to its end",
        ErrorCode.INVALID_REQUEST,
        set_to("num.partitions", "5"),
        resource=BROKER_1,
    ),
    unaltered(
        "a broker's setting that does not exist", ErrorCode.INVALID_REQUEST, set_to("a.b", "5"), resource=BROKER_1
    ),
    unaltered(
        "a broker's setting outside its limits",
        ErrorCode.INVALID_REQUEST,
        set_to("log.retention.ms", "-2"),
        resource=ALL_BROKERS,
    ),
    unaltered(
        "settings of a broker that is not there",
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        set_to("log.retention.ms", "5"),
        resource=ConfigResource(ResourceType.BROKER, "7"),
    ),
    unaltered(
        "settings of what cannot be a broker",
        ErrorCode.INVALID_REQUEST,
        set_to("log.retention.ms", "5"),
        resource=ConfigResource(ResourceType.BROKER, "01"),
    ),
    ControllerScenario(
        name="the levels of a new cluster are written down first",
        when=FinalizeMetadataVersion(),
        then=[
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
        ],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="the founder's settings of elections become those of all brokers",
        when=FinalizeMetadataVersion(),
        founding_settings={"unclean.leader.election.enable": "true", "min.insync.replicas": "2"},
        then=[
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
            setting("min.insync.replicas", "2", of=ALL_BROKERS),
            setting("unclean.leader.election.enable", "true", of=ALL_BROKERS),
        ],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="a log that is not new keeps what it says of all brokers",
        given=WITH_ORDERS,
        when=FinalizeMetadataVersion(),
        founding_settings={"min.insync.replicas": "2"},
        then=[
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
        ],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="what the controller before has begun and not ended is taken back",
        given=[FeatureLevelRecord(name="metadata.version", feature_level=27), BeginTransactionRecord(name="import")],
        when=FinalizeMetadataVersion(),
        then=[AbortTransactionRecord(reason="the controller changed")],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="and once",
        given=[FeatureLevelRecord(name="metadata.version", feature_level=26)],
        when=FinalizeMetadataVersion(),
        response=CarriedOut(),
    ),
]


def first_error(response: ControllerResponse) -> ErrorCode | None:
    if isinstance(response, ConfigsAltered):
        return next((error.code for error in response.errors if error is not None), None)
    if isinstance(response, PartitionsCreated):
        return next((outcome.error.code for outcome in response.outcomes if outcome.error is not None), None)
    assert isinstance(response, (TopicsCreated, TopicsDeleted))
    for result in response.results:
        if isinstance(result, TopicRefused):
            return result.error.code
        if isinstance(result, TopicDeletion) and result.error is not None:
            return result.error.code
    return None


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_controller(scenario: ControllerScenario) -> None:
    machine = controller_machine(rules=scenario.rules, founding_settings=scenario.founding_settings)
    for record in scenario.given:
        machine.apply(record)
    before = machine.image
    try:
        decision = machine.decide(scenario.when, 0, next_offset=NEXT_OFFSET)
    except KafkaError as refusal:
        assert refusal.code is scenario.error
        assert refusal.detail
        assert not scenario.then
        return
    assert machine.image is before, "decide changes nothing"
    assert list(decision.records) == list(scenario.then)
    if scenario.error is not None:
        assert first_error(decision.response) is scenario.error
    if scenario.response is not None:
        assert decision.response == scenario.response
    machine.apply_all(decision.records)


def test_scenarios_have_distinct_names() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)


def test_a_reserved_or_taken_topic_id_is_drawn_again() -> None:
    draws = iter([bytes(4), bytes(16), bytes(15) + b"\1", b"\xf8" + bytes(15), ORDERS, random_id(5)])
    machine = controller_machine(random_bytes=lambda size: next(draws)[-size:])
    for record in WITH_ORDERS:
        machine.apply(record)
    response = machine.decide(create(TopicSpec(name="returns")), 0).response
    assert response == TopicsCreated(results=(created("returns", 5),))


def test_a_resource_named_twice_changes_in_neither_way_and_others_do() -> None:
    machine = controller_machine()
    machine.apply_all(WITH_ORDERS)
    twice = ResourceChanges(resource=OF_ORDERS, changes=(SEGMENT_AT_5,))
    other = ResourceChanges(resource=ALL_BROKERS, changes=(set_to("log.roll.ms", "5"),))
    decision = machine.decide(alter_configs(twice, other, twice), 0)
    assert isinstance(decision.response, ConfigsAltered)
    codes = [None if error is None else error.code for error in decision.response.errors]
    assert codes == [ErrorCode.INVALID_REQUEST, None, ErrorCode.INVALID_REQUEST]
    assert list(decision.records) == [ConfigRecord(resource_type=4, resource_name="", name="log.roll.ms", value="5")]
