"""Whether a topic may have more partitions, and as which records (pure). Codes and the order of checks are Kafka's."""

from collections import Counter

from tailrace.metadata.commands import CreatePartitions, MorePartitions, PartitionsCreated, TopicOutcome
from tailrace.metadata.deciding.new_partitions import (
    MAX_PARTITIONS_PER_REQUEST,
    NewPartitions,
    RandomBytes,
    bad_assignment,
)
from tailrace.metadata.deciding.placement import Replicas
from tailrace.metadata.deciding.topic_creation import TopicRules
from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.metadata.records import MetadataRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.partitions import INTERNAL_TOPICS


class PartitionCreation:
    """One CreatePartitions command on its way to a decision."""

    def __init__(self, image: ClusterImage, rules: TopicRules, random_bytes: RandomBytes) -> None:
        self._image = image
        self._partitions = NewPartitions(
            image,
            random_bytes,
            max_per_topic=rules.max_partitions_per_topic,
            max_per_broker=rules.max_partitions_per_broker,
        )

    def decide(self, command: CreatePartitions) -> Decision[MetadataRecord, PartitionsCreated]:
        """Records of the partitions that can be created, and an outcome for every name.

        Raises KafkaError(POLICY_VIOLATION) for more partitions than one request may create.
        """
        self._check_size(command)
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
                error = refusal
            outcomes[topic.name] = TopicOutcome(name=topic.name, error=error)
        response = PartitionsCreated(outcomes=tuple(outcomes.values()))
        return Decision(records=() if command.validate_only else tuple(records), response=response)

    def _check_size(self, command: CreatePartitions) -> None:
        topics = self._image.topics
        total = sum(max(t.count - len(topics[t.name].partitions), 0) for t in command.topics if t.name in topics)
        if total > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{total} partitions in one request are more than {MAX_PARTITIONS_PER_REQUEST}; ask in several",
            )

    def _create(self, wanted: MorePartitions) -> list[MetadataRecord]:
        topic = self._image.topics.get(wanted.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name!r}")
        if wanted.name in INTERNAL_TOPICS:
            # Kafka lets this pass, and loses every group or transaction that another partition keeps from then on.
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

    def _replicas(self, wanted: MorePartitions, topic: TopicImage, count: int) -> tuple[Replicas, ...]:
        replication_factor = len(topic.partitions[0].replicas)
        if wanted.assignments is None:
            return self._partitions.placed(count, replication_factor)
        if len(wanted.assignments) != count:
            raise bad_assignment(f"{count} new partitions, and replicas for {len(wanted.assignments)} of them")
        for number, replicas in enumerate(wanted.assignments, start=len(topic.partitions)):
            self._partitions.check_assignment(number, replicas, replication_factor)
        return wanted.assignments
