"""The controller: decides on every change of the cluster's metadata.

`decide` looks at the image and answers with records; `apply` is a replay of records. Chance comes in as a function, the
offset of the next record as an argument. Decisions are made on the image of everything appended (`latest`); the host
makes their effects visible when they are committed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerCommand,
    BrokerHeartbeat,
    BrokerRegistered,
    CarriedOut,
    FenceBroker,
    FenceSilentBroker,
    FinalizeMetadataVersion,
    ProducerIdBlock,
    RegisterBroker,
    RegisterController,
    UnfenceBroker,
    UnregisterBroker,
    UpdateFeatures,
)
from tailrace.metadata.commands import (
    AlterConfigs,
    AlterPartition,
    AlterReassignments,
    AssignDirectories,
    BalanceLeaders,
    ControllerCommand,
    ControllerResponse,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
)
from tailrace.metadata.deciding.assignments import DirectoryAssignments, Reassignments
from tailrace.metadata.deciding.broker_lifecycle import BrokerLifecycle
from tailrace.metadata.deciding.config_changes import ConfigChanges
from tailrace.metadata.deciding.elections import LeaderElections
from tailrace.metadata.deciding.feature_updates import FeatureUpdates
from tailrace.metadata.deciding.in_sync_changes import InSyncChanges
from tailrace.metadata.deciding.leader_balance import LeaderBalance
from tailrace.metadata.deciding.placement import RandomBytes
from tailrace.metadata.deciding.topics import PartitionCreation, TopicCreation, TopicDeletions, TopicRules
from tailrace.metadata.derive import Steps
from tailrace.metadata.heartbeats import Heartbeats
from tailrace.metadata.image import ALL_BROKERS, EMPTY_IMAGE, BrokerImage, ClusterImage, ImageDelta
from tailrace.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
    AbortTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from tailrace.metadata.replay import BROKER_EVENTS, Foreseen, Replay, apply_all, derivation
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ProducerId
from tailrace.model.machines import Decision
from tailrace.model.settings import Table
from tailrace.model.steps import result_of
from tailrace.protocol.schema import replace

PRODUCER_ID_BLOCK_SIZE = 1000

ControllerDecision = Decision[MetadataRecord, ControllerResponse]


class ControllerMachine:
    """The replicated machine of the metadata log. Its state is `image`."""

    def __init__(
        self,
        *,
        random_bytes: RandomBytes,
        topic_rules: TopicRules,
        broker_settings: Table,
        founding_settings: Mapping[str, str],
        broker_session_timeout_ms: int,
    ) -> None:
        """`broker_settings`: what can be said of a broker; those that are dynamic can be said here.
        `founding_settings`: what a log that is new says of all brokers from its beginning."""
        self.image = EMPTY_IMAGE
        self.heartbeats = Heartbeats(broker_session_timeout_ms)
        """The contacts of this process with brokers: no part of the replicated state."""
        self._foreseen: Foreseen | None = None
        self._decided_for = 0
        """The offset that the records of the last decision were to have."""
        self._random_bytes = random_bytes
        self._topic_rules = topic_rules
        self._broker_settings = broker_settings
        self._founding_settings = founding_settings

    def apply(self, record: MetadataRecord) -> None:
        """Change the state by one record."""
        self.apply_all((record,))

    def apply_all(self, records: Iterable[MetadataRecord]) -> ImageDelta:
        """Change the state by the records of one batch: all of them, or none and an exception."""
        self.image, delta = apply_all(self.image, records)
        return delta

    def adopt(self, image: ClusterImage) -> None:
        """Take the image that `trial` has made of the present one and the records just appended."""
        self.image = image
        self._foreseen = None

    def decide(self, command: ControllerCommand, now_ms: int, *, next_offset: int = 0) -> ControllerDecision:
        """The records and the answer. `next_offset` is where the first record will stand in the log.

        Raises KafkaError if the command fails as a whole.
        """
        return result_of(self.deciding(command, now_ms, next_offset=next_offset))

    def deciding(self, command: ControllerCommand, now_ms: int, *, next_offset: int) -> Steps[ControllerDecision]:
        """`decide` in steps of about a millisecond, but for topics of very many partitions.

        The image must stay the same meanwhile: one command after the other.
        """
        decision = yield from self._decide(command, now_ms, next_offset)
        self._decided_for = next_offset
        event = next((record for record in decision.records if isinstance(record, BROKER_EVENTS)), None)
        if event is None:
            return decision
        assert len(decision.records) == 1, "what follows from an event is derived from the image before its batch"
        derived = yield from derivation(self.image, event)
        sealed = replace(event, derived_count=len(derived.changes), derived_crc=derived.crc)
        self._foreseen = Foreseen(sealed, derived)
        return Decision(records=(sealed,), response=decision.response)

    def at_offset(self, decision: ControllerDecision, offset: int) -> ControllerDecision:
        """The same decision when others have appended meanwhile: the epoch of a broker is where its record stands, and
        a broker that stops waits for the others to know the record that hands over its leaderships.
        """
        self.heartbeats.moved(self._decided_for, offset)
        self._decided_for = offset
        match decision.records:
            case (RegisterBrokerRecord() as record,):
                moved = replace(record, broker_epoch=offset)
                if self._foreseen is not None:
                    self._foreseen = self._foreseen._replace(record=moved)
                return Decision(records=(moved,), response=BrokerRegistered(broker_epoch=offset))
        return decision

    def trial(self, records: Iterable[MetadataRecord]) -> Steps[tuple[ClusterImage, ImageDelta]]:
        """Apply the records of a decision to this image, in steps. A record that does not fit raises.

        Changes that this machine has just derived are not derived again here; followers derive them."""
        replay = Replay(self.image, self._foreseen)
        yield from replay.steps(records)
        return (yield from replay.finishing())

    def _decide(self, command: ControllerCommand, now_ms: int, next_offset: int) -> Steps[ControllerDecision]:
        image = self.image
        match command:
            case CreateTopics():
                creation = TopicCreation(image, self._topic_rules, self._random_bytes)
                return (yield from creation.deciding(command))
            case DeleteTopics():
                return (yield from TopicDeletions(image).deciding(command))
            case CreatePartitions():
                return PartitionCreation(image, self._topic_rules, self._random_bytes).decide(command)
            case AlterConfigs():
                changes = ConfigChanges(
                    image,
                    topic_defaults=self._topic_rules.config,
                    broker_settings=self._broker_settings,
                    max_frame_bytes=self._topic_rules.max_frame_bytes,
                )
                return changes.decide(command)
            case AlterPartition():
                self._lifecycle(now_ms).sender(command)
                return InSyncChanges(image).decide(command)
            case ElectLeaders():
                return LeaderElections(image).decide(command)
            case BalanceLeaders():
                return (yield from LeaderBalance(image).deciding(command))
            case AlterReassignments():
                return Reassignments(image).decide(command)
            case AssignDirectories():
                self._lifecycle(now_ms).sender(command)
                return DirectoryAssignments(image).decide(command)
            case _:
                return self._decide_on_broker(command, now_ms, next_offset)

    def _decide_on_broker(self, command: BrokerCommand, now_ms: int, next_offset: int) -> ControllerDecision:
        brokers = self._lifecycle(now_ms)
        match command:
            case RegisterBroker():
                return brokers.register(command, broker_epoch=next_offset)
            case BrokerHeartbeat():
                return brokers.heartbeat(command, next_offset)
            case UnfenceBroker():
                broker = brokers.sender(command)
                return Decision(records=brokers.unfence(broker), response=_registered(broker))
            case FenceBroker():
                broker = brokers.known(command.broker_id, command.broker_epoch)
                return Decision(records=brokers.fence(broker), response=_registered(broker))
            case FenceSilentBroker():
                return brokers.fence_silent()
            case UnregisterBroker():
                return brokers.unregister(command)
            case RegisterController():
                return brokers.register_controller(command)
            case AllocateProducerIds():
                brokers.sender(command)
                return self._allocate_producer_ids(command)
            case FinalizeMetadataVersion():
                return self._finalize_metadata_version()
            case UpdateFeatures():
                return FeatureUpdates(self.image).decide(command)
            case _:
                assert_never(command)

    def _lifecycle(self, now_ms: int) -> BrokerLifecycle:
        return BrokerLifecycle(self.image, self.heartbeats, now_ms)

    def _allocate_producer_ids(self, command: AllocateProducerIds) -> Decision[MetadataRecord, ProducerIdBlock]:
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

    def _finalize_metadata_version(self) -> Decision[MetadataRecord, CarriedOut]:
        """The first records of a new controller; they also abort a transaction of the one before (KIP-868)."""
        aborted = (
            () if self.image.open_transaction is None else (AbortTransactionRecord(reason="the controller changed"),)
        )
        if METADATA_VERSION_FEATURE in self.image.features:
            return Decision(records=aborted, response=CarriedOut())
        records = (
            *aborted,
            FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION),
            FeatureLevelRecord(name=TRANSACTION_VERSION_FEATURE, feature_level=TRANSACTION_VERSION),
            *self._founding_records(),
        )
        return Decision(records=records, response=CarriedOut())

    def _founding_records(self) -> Iterator[ConfigRecord]:
        """This node's own settings, as those of all brokers: derived changes must not depend on a node."""
        if not self.image.topics and ALL_BROKERS not in self.image.configs:
            kind, name = ALL_BROKERS
            for setting, value in sorted(self._founding_settings.items()):
                yield ConfigRecord(resource_type=kind, resource_name=name, name=setting, value=value)


def _registered(broker: BrokerImage) -> BrokerRegistered:
    return BrokerRegistered(broker_epoch=broker.broker_epoch)
