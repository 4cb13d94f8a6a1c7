"""The controller: decides what becomes of the cluster.

`decide` looks at the image and answers with records; `apply` is a replay of records. Chance comes in as a function, the
offset of the next record as an argument. Decisions are made on the image of everything appended (`latest`); who may see
their effects, and when, is the host's business.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace as replace_value
from types import MappingProxyType
from typing import assert_never

from tailrace.metadata import derive
from tailrace.metadata.commands import (
    AllocateProducerIds,
    AlterConfigs,
    BrokerRegistered,
    ControllerCommand,
    ControllerResponse,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Done,
    FenceBroker,
    FinalizeMetadataVersion,
    ProducerIdBlock,
    RegisterBroker,
    TopicDeletion,
    TopicReference,
    TopicsDeleted,
    UnfenceBroker,
)
from tailrace.metadata.config_changes import ConfigChanges
from tailrace.metadata.image import EMPTY_IMAGE, BrokerImage, ClusterImage, ImageDelta, TopicImage
from tailrace.metadata.new_partitions import RandomBytes
from tailrace.metadata.partition_creation import PartitionCreation
from tailrace.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    BrokerEndpoint,
    BrokerFeature,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    UnfenceBrokerRecord,
)
from tailrace.metadata.replay import BrokerEvent, apply_all, derived_changes
from tailrace.metadata.topic_creation import TopicCreation, TopicRules
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, ProducerId, format_topic_id
from tailrace.model.machines import Decision
from tailrace.model.settings import Table
from tailrace.protocol.schema import replace

PRODUCER_ID_BLOCK_SIZE = 1000
NO_SETTINGS: Table = MappingProxyType({})

ControllerDecision = Decision[MetadataRecord, ControllerResponse]


class ControllerMachine:
    """The replicated machine of the metadata log. Its state is `image`."""

    def __init__(
        self,
        *,
        random_bytes: RandomBytes,
        topic_rules: TopicRules | None = None,
        broker_settings: Table = NO_SETTINGS,
        image: ClusterImage = EMPTY_IMAGE,
    ) -> None:
        """`broker_settings`: what can be said of a broker; those that are dynamic can be said here."""
        self.image = image
        self._random_bytes = random_bytes
        self._topic_rules = topic_rules or TopicRules()
        self._broker_settings = broker_settings

    def apply(self, record: MetadataRecord) -> None:
        """Change the state by one record."""
        self.apply_all((record,))

    def apply_all(self, records: Iterable[MetadataRecord]) -> ImageDelta:
        """Change the state by the records of one batch: all of them, or none and an exception."""
        self.image, delta = apply_all(self.image, records)
        return delta

    def adopt(self, image: ClusterImage) -> None:
        """Take the image that `apply_all` has made of the present one and the records just appended."""
        self.image = image

    def decide(self, command: ControllerCommand, now_ms: int, *, next_offset: int = 0) -> ControllerDecision:
        """The records and the answer. `next_offset` is where the first record will stand in the log.

        Raises KafkaError if the command fails as a whole.
        """
        match command:
            case CreateTopics():
                creation = TopicCreation(self.image, self._topic_rules, self._random_bytes).decide(command)
                return Decision(records=creation.records, response=creation.response)
            case DeleteTopics():
                return self._delete_topics(command)
            case RegisterBroker():
                return self._register_broker(command, broker_epoch=next_offset)
            case UnfenceBroker():
                broker = self._broker(command.broker_id, command.broker_epoch)
                record = UnfenceBrokerRecord(id=broker.broker_id, epoch=broker.broker_epoch)
                return self._broker_event(record, broker, needed=broker.fenced)
            case FenceBroker():
                broker = self._broker(command.broker_id, command.broker_epoch)
                fence = FenceBrokerRecord(id=broker.broker_id, epoch=broker.broker_epoch)
                return self._broker_event(fence, broker, needed=not broker.fenced)
            case AllocateProducerIds():
                return self._allocate_producer_ids(command)
            case CreatePartitions():
                more = PartitionCreation(self.image, self._topic_rules, self._random_bytes).decide(command)
                return Decision(records=more.records, response=more.response)
            case AlterConfigs():
                altered = ConfigChanges(
                    self.image, topic_defaults=self._topic_rules.config, broker_settings=self._broker_settings
                ).decide(command)
                return Decision(records=altered.records, response=altered.response)
            case FinalizeMetadataVersion():
                return self._finalize_metadata_version()
            case _:
                assert_never(command)

    def _delete_topics(self, command: DeleteTopics) -> ControllerDecision:
        found = [self._deletion(reference) for reference in command.topics]
        times_named = Counter(deletion.topic_id for deletion in found if deletion.error is None)
        results = tuple(
            replace_value(deletion, error=KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named twice"))
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
        """What can be said of one reference alone."""
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
            topic = self.image.topics.get(reference.name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {reference.name!r}")
        else:
            assert reference.topic_id is not None
            topic = self.image.topic_by_id(reference.topic_id)
            if topic is None:
                shown = format_topic_id(reference.topic_id)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {shown}")
        return topic

    def _register_broker(self, command: RegisterBroker, broker_epoch: int) -> ControllerDecision:
        known = self.image.brokers.get(command.broker_id)
        if known is not None and known.incarnation_id == command.incarnation_id:
            # The same process asks again, since it has missed the answer.
            return Decision(records=(), response=BrokerRegistered(broker_epoch=known.broker_epoch))
        record = RegisterBrokerRecord(
            broker_id=command.broker_id,
            incarnation_id=command.incarnation_id,
            broker_epoch=broker_epoch,
            end_points=tuple(
                BrokerEndpoint(name=e.listener_name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in command.endpoints
            ),
            features=(
                BrokerFeature(
                    name=METADATA_VERSION_FEATURE,
                    min_supported_version=METADATA_VERSION,
                    max_supported_version=METADATA_VERSION,
                ),
            ),
            rack=command.rack,
            fenced=True,
            log_dirs=tuple(sorted(command.log_directories)),
        )
        return Decision(records=(self._sealed(record),), response=BrokerRegistered(broker_epoch=broker_epoch))

    def _broker_event(self, record: BrokerEvent, broker: BrokerImage, *, needed: bool) -> ControllerDecision:
        response = BrokerRegistered(broker_epoch=broker.broker_epoch)
        return Decision(records=(self._sealed(record),) if needed else (), response=response)

    def _sealed(self, record: BrokerEvent) -> BrokerEvent:
        """The record with the count and the checksum of what follows from it."""
        changes = derived_changes(self.image, record)
        return replace(record, derived_count=len(changes), derived_crc=derive.checksum(changes))

    def _broker(self, broker_id: BrokerId, broker_epoch: int) -> BrokerImage:
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} has been registered again with epoch {broker.broker_epoch}, not {broker_epoch}",
            )
        return broker

    def _allocate_producer_ids(self, command: AllocateProducerIds) -> ControllerDecision:
        self._broker(command.broker_id, command.broker_epoch)
        first = self.image.next_producer_id
        if first > 2**63 - 1 - PRODUCER_ID_BLOCK_SIZE:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "this cluster has given away all producer ids")
        record = ProducerIdsRecord(
            broker_id=command.broker_id,
            broker_epoch=command.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
        )
        block = ProducerIdBlock(first=ProducerId(first), size=PRODUCER_ID_BLOCK_SIZE)
        return Decision(records=(record,), response=block)

    def _finalize_metadata_version(self) -> ControllerDecision:
        if METADATA_VERSION_FEATURE in self.image.features:
            return Decision(records=(), response=Done())
        record = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
        return Decision(records=(record,), response=Done())
