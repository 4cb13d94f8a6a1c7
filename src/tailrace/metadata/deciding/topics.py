"""Topics created, enlarged and deleted, as records (pure). The codes and the order of the checks are Kafka's."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from tailrace.metadata.commands import (
    DEFAULT_COUNT,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    PartitionIncrease,
    PartitionsCreated,
    TopicCreated,
    TopicDeletion,
    TopicOutcome,
    TopicReference,
    TopicRefused,
    TopicsCreated,
    TopicsDeleted,
    TopicSpec,
)
from tailrace.metadata.deciding.config_changes import refuse_uncarried, stated_value
from tailrace.metadata.deciding.placement import (
    MAX_PARTITIONS_PER_REQUEST,
    NewPartitions,
    RandomBytes,
    Replicas,
    bad_assignment,
)
from tailrace.metadata.derive import Steps
from tailrace.metadata.image import ClusterImage, ResourceType, TopicImage, confusable_form
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord, RemoveTopicRecord, TopicRecord
from tailrace.metadata.views import view_refusal, view_refusal_by_id
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import METADATA_TOPIC_ID, ZERO_TOPIC_ID, TopicId, format_topic_id
from tailrace.model.machines import Decision
from tailrace.model.partitions import INTERNAL_TOPICS, METADATA_TOPIC, topic_name_fault
from tailrace.model.settings import find
from tailrace.model.topic_config import TOPIC_SETTINGS, TopicConfig
from tailrace.model.views import family_of, parse_view

_STEP: Final = 64
"""Topics that are decided on in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """Defaults and limits of new topics."""

    num_partitions: int
    replication_factor: int
    config: TopicConfig
    max_partitions_per_topic: int
    max_partitions_per_broker: int
    """The most replicas on a broker, leaders and followers."""
    max_frame_bytes: int
    """socket.request.max.bytes: the size of the largest Produce request."""


def _new_partitions(image: ClusterImage, rules: TopicRules, random_bytes: RandomBytes) -> NewPartitions:
    return NewPartitions(
        image,
        random_bytes,
        max_per_topic=rules.max_partitions_per_topic,
        max_per_broker=rules.max_partitions_per_broker,
    )


def _check_size(counts: Iterable[int]) -> None:
    # A negative count is refused later; here it must not reduce the sum of the other topics' counts.
    total = sum(max(count, 0) for count in counts)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{total} partitions in one request are more than {MAX_PARTITIONS_PER_REQUEST}; ask in several",
        )


class TopicCreation:
    """The decision on a CreateTopics command."""

    def __init__(self, image: ClusterImage, rules: TopicRules, random_bytes: RandomBytes) -> None:
        self._image = image
        self._rules = rules
        self._random_bytes = random_bytes
        self._partitions = _new_partitions(image, rules, random_bytes)
        self._new_forms: dict[str, str] = {}
        self._new_ids: set[TopicId] = set()

    def deciding(self, command: CreateTopics) -> Steps[Decision[MetadataRecord, TopicsCreated]]:
        """Records of the topics that can be created, and a result for every name.

        Raises KafkaError(POLICY_VIOLATION) for more partitions than one request may create.
        """
        _check_size(self._partition_count(topic) for topic in command.topics)
        times_named = Counter(topic.name for topic in command.topics)
        records: list[MetadataRecord] = []
        results: dict[str, TopicCreated | TopicRefused] = {}
        for number, topic in enumerate(command.topics, 1):
            if not number % _STEP:
                yield
            try:
                if times_named[topic.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice in one request")
                results[topic.name] = self._create(topic, records)
            except KafkaError as refusal:
                results[topic.name] = TopicRefused(name=topic.name, error=refusal)
        response = TopicsCreated(results=tuple(results.values()))
        return Decision(records=() if command.validate_only else tuple(records), response=response)

    def _partition_count(self, topic: TopicSpec) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return self._rules.num_partitions if topic.num_partitions == DEFAULT_COUNT else topic.num_partitions

    def _create(self, topic: TopicSpec, records: list[MetadataRecord]) -> TopicCreated:
        self._check_name(topic.name)
        overrides = self._checked_configs(topic)
        replicas = self._manual_placement(topic) if topic.assignments else self._placement(topic)
        self._partitions.check_limits(replicas)
        topic_id = self._fresh_id()
        partitions = [self._partitions.record(topic_id, number, wanted) for number, wanted in enumerate(replicas)]
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
            # Kafka's code for the cluster's own log, too: no client is authorized to create that log.
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} is the cluster's own log, not a topic")
        if name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        view = parse_view(name)
        if view is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name!r} is the name of a view of topic {view.topic!r}, which is there without being created",
            )
        form = confusable_form(name)
        if form is None:
            return
        known = self._image.confusable_names.get(form)
        other = known[0] if known else self._new_forms.get(form)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with {other!r}: names that differ only in '.' and '_' have the same metrics",
            )

    def _checked_configs(self, topic: TopicSpec) -> dict[str, str]:
        overrides: dict[str, str] = {}
        for name, value in topic.configs:
            if value is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} of a new topic cannot be null")
            setting = find(TOPIC_SETTINGS, name, kind="topic")
            overrides[setting.name] = stated_value(setting, value)
            refuse_uncarried(setting.name, overrides[setting.name], self._rules.max_frame_bytes)
        self._rules.config.with_overrides(overrides)
        return overrides

    def _placement(self, topic: TopicSpec) -> tuple[Replicas, ...]:
        factor = topic.replication_factor
        if factor == DEFAULT_COUNT:
            factor = self._rules.replication_factor
        if factor <= 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}: a topic has at least 1 (-1 asks for default.replication.factor)",
            )
        partitions = self._partition_count(topic)
        if partitions <= 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.num_partitions} partitions: a topic has at least 1 (-1 asks for num.partitions)",
            )
        return self._partitions.placed(partitions, factor)

    def _manual_placement(self, topic: TopicSpec) -> tuple[Replicas, ...]:
        if topic.num_partitions != DEFAULT_COUNT or topic.replication_factor != DEFAULT_COUNT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "with an assignment of replicas, both counts must be -1: it says them itself"
            )
        by_partition = {assignment.partition: assignment for assignment in topic.assignments}
        if len(by_partition) < len(topic.assignments):
            raise bad_assignment("a partition is assigned twice")
        if set(by_partition) != set(range(len(by_partition))):
            raise bad_assignment(f"partitions are numbered from 0 on without gaps, not {sorted(by_partition)}")
        factor = len(topic.assignments[0].broker_ids)
        for assignment in topic.assignments:
            self._partitions.check_assignment(assignment.partition, assignment.broker_ids, factor)
        return tuple(by_partition[number].broker_ids for number in range(len(by_partition)))

    def _fresh_id(self) -> TopicId:
        """A random id that no topic and no view of a topic has. Kafka's reserved ids, which are small numbers, are
        excluded."""
        while True:
            topic_id = TopicId(self._random_bytes(16))
            family = family_of(topic_id)
            taken = any(member in self._image.topic_names or member in self._new_ids for member in family)
            reserved = ZERO_TOPIC_ID in family or METADATA_TOPIC_ID in family
            # As in Kafka: a command line would take a name with a leading '-' for an option.
            if not taken and not reserved and not format_topic_id(topic_id).startswith("-"):
                self._new_ids.add(topic_id)
                return topic_id


class PartitionCreation:
    """The decision on a CreatePartitions command."""

    def __init__(self, image: ClusterImage, rules: TopicRules, random_bytes: RandomBytes) -> None:
        self._image = image
        self._partitions = _new_partitions(image, rules, random_bytes)

    def decide(self, command: CreatePartitions) -> Decision[MetadataRecord, PartitionsCreated]:
        """Records of the partitions that can be created, and an outcome for every name.

        Raises KafkaError(POLICY_VIOLATION) for more partitions than one request may create.
        """
        topics = self._image.topics
        _check_size(
            topic.count - len(topics[topic.name].partitions) for topic in command.topics if topic.name in topics
        )
        times_named = Counter(topic.name for topic in command.topics)
        records: list[MetadataRecord] = []
        outcomes: dict[str, TopicOutcome] = {}
        for topic in command.topics:
            error = None
            try:
                if times_named[topic.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice in one request")
                records += self._create(topic)
            except KafkaError as refusal:
                error = refusal.without_frames()
            outcomes[topic.name] = TopicOutcome(name=topic.name, error=error)
        response = PartitionsCreated(outcomes=tuple(outcomes.values()))
        return Decision(records=() if command.validate_only else tuple(records), response=response)

    def _create(self, wanted: PartitionIncrease) -> list[MetadataRecord]:
        topic = self._image.topics.get(wanted.name)
        if topic is None:
            raise view_refusal(self._image, wanted.name) or KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name!r}"
            )
        if wanted.name in INTERNAL_TOPICS:
            # Kafka accepts more partitions of such a topic, and then loses every group or transaction that another
            # partition keeps now.
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{wanted.name}: the partition of each key depends on their number"
            )
        existing = len(topic.partitions)
        if wanted.count <= existing:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {wanted.name} has {existing} partitions; {wanted.count} would not be more",
            )
        replicas = self._replicas(wanted, topic, wanted.count - existing)
        self._partitions.check_limits(replicas, existing=existing)
        return [
            self._partitions.record(topic.topic_id, number, each)
            for number, each in enumerate(replicas, start=existing)
        ]

    def _replicas(self, wanted: PartitionIncrease, topic: TopicImage, count: int) -> tuple[Replicas, ...]:
        replication_factor = len(topic.partitions[0].replicas)
        if wanted.assignments is None:
            return self._partitions.placed(count, replication_factor)
        if len(wanted.assignments) != count:
            raise bad_assignment(f"{count} new partitions, and replicas for {len(wanted.assignments)} of them")
        for number, replicas in enumerate(wanted.assignments, start=len(topic.partitions)):
            self._partitions.check_assignment(number, replicas, replication_factor)
        return wanted.assignments


class TopicDeletions:
    """The decision on a DeleteTopics command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def deciding(self, command: DeleteTopics) -> Steps[Decision[MetadataRecord, TopicsDeleted]]:
        """A record per topic that goes, and a result for every reference, in order."""
        found: list[TopicDeletion] = []
        for number, reference in enumerate(command.topics, 1):
            if not number % _STEP:
                yield
            found.append(self._deletion(reference))
        times_named = Counter(deletion.topic_id for deletion in found if deletion.error is None)
        results = tuple(
            replace(deletion, error=KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named twice"))
            if deletion.error is None and times_named[deletion.topic_id] > 1
            else deletion
            for deletion in found
        )
        records = tuple(
            RemoveTopicRecord(topic_id=deletion.topic_id)
            for deletion in results
            if deletion.error is None and deletion.topic_id is not None
        )
        return Decision(records=records, response=TopicsDeleted(results=results))

    def _deletion(self, reference: TopicReference) -> TopicDeletion:
        """The outcome for one reference, without the other references."""
        try:
            topic = self._referenced(reference)
        except KafkaError as refusal:
            return TopicDeletion(name=reference.name, topic_id=reference.topic_id, error=refusal)
        return TopicDeletion(name=topic.name, topic_id=topic.topic_id)

    def _referenced(self, reference: TopicReference) -> TopicImage:
        if (reference.name is None) == (reference.topic_id is None):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not both or neither"
            )
        if reference.name is not None:
            topic = self._image.topics.get(reference.name)
            if topic is None:
                raise view_refusal(self._image, reference.name) or KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {reference.name!r}"
                )
        else:
            assert reference.topic_id is not None
            topic = self._image.topic_by_id(reference.topic_id)
            if topic is None:
                shown = format_topic_id(reference.topic_id)
                raise view_refusal_by_id(self._image, reference.topic_id) or KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {shown}"
                )
        return topic
