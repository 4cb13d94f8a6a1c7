"""Whether a topic may be created, and as which records (pure). The order of the checks is Kafka's."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.metadata.commands import (
    DEFAULT_COUNT,
    CreateTopics,
    NewTopic,
    ReplicaAssignment,
    TopicCreated,
    TopicRefused,
    TopicsCreated,
)
from tailrace.metadata.image import BrokerImage, ClusterImage, ResourceType, confusable_form
from tailrace.metadata.placement import Replicas, UsableBroker, place
from tailrace.metadata.records import (
    UNASSIGNED_DIRECTORY,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import METADATA_TOPIC_ID, ZERO_TOPIC_ID, BrokerId, TopicId, format_topic_id
from tailrace.model.machines import Decision
from tailrace.model.partitions import METADATA_TOPIC, topic_name_fault
from tailrace.model.topic_config import TopicConfig

MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's limit too: one request is one batch in the log."""

RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """What a topic gets when the request does not say, and what it may have at most."""

    num_partitions: int = 1
    replication_factor: int = 1
    config: TopicConfig = field(default_factory=TopicConfig)
    max_partitions_per_topic: int | None = None
    max_partitions_per_broker: int | None = None
    """Counts replicas, not leaders."""


class TopicCreation:
    """One CreateTopics command on its way to a decision."""

    def __init__(self, image: ClusterImage, rules: TopicRules, random_bytes: RandomBytes) -> None:
        self._image = image
        self._rules = rules
        self._random_bytes = random_bytes
        self._new_forms: dict[str, str] = {}
        self._replicas_per_broker: Counter[BrokerId] = Counter()
        if rules.max_partitions_per_broker is not None:
            # As many steps as there are partitions, and that limit says how many those are at most.
            self._replicas_per_broker.update(
                broker_id for _, _, state in image.partitions() for broker_id in state.replicas
            )
        self._new_ids: set[TopicId] = set()

    def decide(self, command: CreateTopics) -> Decision[MetadataRecord, TopicsCreated]:
        """Records of the topics that can be created, and a result for every name.

        Raises KafkaError(POLICY_VIOLATION) for more partitions than one request may create.
        """
        self._check_size(command)
        times_named = Counter(topic.name for topic in command.topics)
        records: list[MetadataRecord] = []
        results: dict[str, TopicCreated | TopicRefused] = {}
        for topic in command.topics:
            try:
                if times_named[topic.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice in one request")
                results[topic.name] = self._create(topic, records)
            except KafkaError as refusal:
                results[topic.name] = TopicRefused(name=topic.name, error=refusal)
        response = TopicsCreated(results=tuple(results.values()))
        return Decision(records=() if command.validate_only else tuple(records), response=response)

    def _check_size(self, command: CreateTopics) -> None:
        total = sum(self._partition_count(topic) for topic in command.topics)
        if total > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{total} partitions in one request are more than {MAX_PARTITIONS_PER_REQUEST}; ask in several",
            )

    def _partition_count(self, topic: NewTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return self._rules.num_partitions if topic.num_partitions == DEFAULT_COUNT else topic.num_partitions

    def _create(self, topic: NewTopic, records: list[MetadataRecord]) -> TopicCreated:
        self._check_name(topic.name)
        overrides = self._checked_configs(topic)
        replicas = self._manual_placement(topic) if topic.assignments else self._placement(topic)
        self._check_limits(replicas)
        topic_id = self._fresh_id()
        partitions = [self._partition_record(topic_id, number, wanted) for number, wanted in enumerate(replicas)]
        records.append(TopicRecord(name=topic.name, topic_id=topic_id))
        records += (
            ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
            for name, value in overrides.items()
        )
        records += partitions
        form = confusable_form(topic.name)
        if form is not None:
            self._new_forms[form] = topic.name
        return TopicCreated(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(replicas),
            replication_factor=len(replicas[0]),
            overrides=overrides,
        )

    def _check_name(self, name: str) -> None:
        fault = topic_name_fault(name)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name == METADATA_TOPIC:
            # Kafka's code for it too: nobody is authorized to create the cluster's own log.
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} is the cluster's own log, not a topic")
        if name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        form = confusable_form(name)
        if form is None:
            return
        other = self._image.confusable_names.get(form) or self._new_forms.get(form)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with {other!r}: names that differ only in '.' and '_' have the same metrics",
            )

    def _checked_configs(self, topic: NewTopic) -> dict[str, str]:
        overrides: dict[str, str] = {}
        for name, value in topic.configs:
            if value is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} of a new topic cannot be null")
            overrides[name] = value
        self._rules.config.with_overrides(overrides)
        return overrides

    def _placement(self, topic: NewTopic) -> tuple[Replicas, ...]:
        partitions = self._partition_count(topic)
        if partitions <= 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.num_partitions} partitions: a topic has at least 1 (-1 asks for num.partitions)",
            )
        factor = topic.replication_factor
        if factor == DEFAULT_COUNT:
            factor = self._rules.replication_factor
        if factor <= 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}: a topic has at least 1 (-1 asks for default.replication.factor)",
            )
        usable = [UsableBroker(broker_id=b.broker_id, rack=b.rack) for b in self._image.alive_brokers()]
        start = int.from_bytes(self._random_bytes(4), "big")
        return place(usable, num_partitions=partitions, replication_factor=factor, start=start)

    def _manual_placement(self, topic: NewTopic) -> tuple[Replicas, ...]:
        if topic.num_partitions != DEFAULT_COUNT or topic.replication_factor != DEFAULT_COUNT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "with an assignment of replicas, both counts must be -1: it says them itself"
            )
        by_partition = {assignment.partition: assignment for assignment in topic.assignments}
        if len(by_partition) < len(topic.assignments):
            raise _bad_assignment("a partition is assigned twice")
        if set(by_partition) != set(range(len(by_partition))):
            raise _bad_assignment(f"partitions are numbered from 0 on without gaps, not {sorted(by_partition)}")
        factor = len(topic.assignments[0].broker_ids)
        for assignment in topic.assignments:
            self._check_assignment(assignment, factor)
        return tuple(by_partition[number].broker_ids for number in range(len(by_partition)))

    def _check_assignment(self, assignment: ReplicaAssignment, factor: int) -> None:
        where = f"partition {assignment.partition}"
        replicas = assignment.broker_ids
        if not replicas:
            raise _bad_assignment(f"{where} has no replicas")
        if len(set(replicas)) < len(replicas):
            raise _bad_assignment(f"{where} names a broker twice: {list(replicas)}")
        unknown = [broker_id for broker_id in replicas if broker_id not in self._image.brokers]
        if unknown:
            raise _bad_assignment(f"{where} names brokers that are not registered: {unknown}")
        if len(replicas) != factor:
            raise _bad_assignment(f"{where} has {len(replicas)} replicas where another one has {factor}")
        if not any(self._image.brokers[broker_id].is_alive for broker_id in replicas):
            raise _bad_assignment(f"every broker of {where} is fenced: {list(replicas)}")

    def _check_limits(self, replicas: tuple[Replicas, ...]) -> None:
        """Refuse more than the cluster takes; count what it does take."""
        rules = self._rules
        if rules.max_partitions_per_topic is not None and len(replicas) > rules.max_partitions_per_topic:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{len(replicas)} partitions: max.partitions.per.topic is {rules.max_partitions_per_topic}",
            )
        if rules.max_partitions_per_broker is None:
            return
        wanted = self._replicas_per_broker + Counter(broker_id for each in replicas for broker_id in each)
        broker_id, most = max(wanted.items(), key=lambda item: item[1])
        if most > rules.max_partitions_per_broker:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"broker {broker_id} would keep {most} partitions:"
                f" max.partitions.per.node is {rules.max_partitions_per_broker}",
            )
        self._replicas_per_broker = wanted

    def _partition_record(self, topic_id: TopicId, number: int, replicas: Replicas) -> PartitionRecord:
        brokers = [self._image.brokers[broker_id] for broker_id in replicas]
        in_sync = tuple(broker.broker_id for broker in brokers if broker.is_alive)
        return PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=replicas,
            isr=in_sync,
            leader=in_sync[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=tuple(_directory(broker) for broker in brokers),
        )

    def _fresh_id(self) -> TopicId:
        """A random id that no topic has, and none of Kafka's reserved ones (all small numbers)."""
        while True:
            topic_id = TopicId(self._random_bytes(16))
            taken = topic_id in self._image.topic_names or topic_id in self._new_ids
            reserved = topic_id in (ZERO_TOPIC_ID, METADATA_TOPIC_ID)
            # As in Kafka: command lines take a leading '-' for an option.
            if not taken and not reserved and not format_topic_id(topic_id).startswith("-"):
                self._new_ids.add(topic_id)
                return topic_id


def _directory(broker: BrokerImage) -> bytes:
    """The broker's log directory if it has only one; else it will choose and tell."""
    return broker.log_directories[0] if len(broker.log_directories) == 1 else UNASSIGNED_DIRECTORY


def _bad_assignment(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
