"""The controller: decides on every change of the cluster's metadata.

`decide` looks at the image and answers with records; `apply` is a replay of records. Chance comes in as a function, the
offset of the next record as an argument. Decisions are made on the image of everything appended (`latest`); the host
makes the effects of committed decisions visible.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
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
from tailrace.metadata.deciding.acls import AclChanges, CreateAcls, DeleteAcls
from tailrace.metadata.deciding.assignments import DirectoryAssignments, Reassignments
from tailrace.metadata.deciding.broker_lifecycle import BrokerLifecycle
from tailrace.metadata.deciding.config_changes import ConfigChanges
from tailrace.metadata.deciding.elections import LeaderElections
from tailrace.metadata.deciding.feature_updates import FeatureUpdates
from tailrace.metadata.deciding.in_sync_changes import InSyncChanges
from tailrace.metadata.deciding.leader_balance import LeaderBalance
from tailrace.metadata.deciding.placement import RandomBytes
from tailrace.metadata.deciding.quotas import AlterQuotas, QuotaChanges
from tailrace.metadata.deciding.topics import PartitionCreation, TopicCreation, TopicDeletions, TopicRules
from tailrace.metadata.deciding.users import UserChanges
from tailrace.metadata.derive import Steps
from tailrace.metadata.feature_levels import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
)
from tailrace.metadata.heartbeats import Heartbeats
from tailrace.metadata.image import ALL_BROKERS, EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.records.brokers import BrokerEvent, RegisterBrokerRecord
from tailrace.metadata.records.cluster import AbortTransactionRecord, FeatureLevelRecord, ProducerIdsRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord
from tailrace.metadata.records.users import UserScramCredentialRecord
from tailrace.metadata.replay import Foreseen, Replay, apply_all, derivation
from tailrace.metadata.user_commands import AlterScramCredentials
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
        founding_users: Sequence[UserScramCredentialRecord] = (),
    ) -> None:
        """`broker_settings`: the definitions of a broker's settings, of which AlterConfigs may set the dynamic
        settings. `founding_settings`: the settings of all brokers that the controller writes into a new log;
        `founding_users`: the credentials of users that it writes there."""
        self.image = EMPTY_IMAGE
        self.heartbeats = Heartbeats(broker_session_timeout_ms)
        """The contacts of brokers with this process, which are not part of the replicated state."""
        self._foreseen: Foreseen | None = None
        self._decided_for = 0
        """The offset for which the records of the last decision were made."""
        self._random_bytes = random_bytes
        self._topic_rules = topic_rules
        self._broker_settings = broker_settings
        self._founding_settings = founding_settings
        self._founding_users = tuple(founding_users)

    def apply(self, record: MetadataRecord) -> None:
        """Change the state by one record."""
        self.apply_all((record,))

    def apply_all(self, records: Iterable[MetadataRecord]) -> ImageDelta:
        """Change the state by the records of one batch: the whole batch, or nothing and an exception."""
        self.image, delta = apply_all(self.image, records)
        return delta

    def adopt(self, image: ClusterImage) -> None:
        """Take the image that `trial` has made of the present image and the records just appended."""
        self.image = image
        self._foreseen = None

    def decide(self, command: ControllerCommand, now_ms: int, *, next_offset: int = 0) -> ControllerDecision:
        """The records and the answer. `next_offset` is the offset of the first record in the log.

        Raises KafkaError if the command fails as a whole.
        """
        return result_of(self.deciding(command, now_ms, next_offset=next_offset))

    def deciding(self, command: ControllerCommand, now_ms: int, *, next_offset: int) -> Steps[ControllerDecision]:
        """`decide` in steps of about a millisecond; a step for a topic of very many partitions takes longer.

        The image must not change between the steps, so commands are decided one after the other.
        """
        decision = yield from self._decide(command, now_ms, next_offset)
        self._decided_for = next_offset
        event = next((record for record in decision.records if isinstance(record, BrokerEvent)), None)
        if event is None:
            return decision
        assert len(decision.records) == 1, "what follows from an event is derived from the image before its batch"
        derived = yield from derivation(self.image, event)
        sealed = replace(event, derived_count=len(derived.changes), derived_crc=derived.crc)
        self._foreseen = Foreseen(sealed, derived)
        return Decision(records=(sealed,), response=decision.response)

    def at_offset(self, decision: ControllerDecision, offset: int) -> ControllerDecision:
        """The decision changed for this offset, after other decisions were appended before it. The epoch of a broker is
        the offset of its record. A stopping broker waits until the other brokers have applied the record that hands
        over its leaderships, so the offset of this record changes too."""
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
        brokers = BrokerLifecycle(self.image, self.heartbeats, now_ms)
        situation = Situation(
            self.image,
            brokers,
            next_offset,
            self._random_bytes,
            self._topic_rules,
            self._broker_settings,
            self._founding_settings,
            self._founding_users,
        )
        decided = DECIDERS[type(command)](situation, command)
        return (yield from decided) if isinstance(decided, Generator) else decided


class Situation(NamedTuple):
    """The state and the rules that a decider reads."""

    image: ClusterImage
    brokers: BrokerLifecycle
    next_offset: int
    """The offset of the first record of the decision."""
    random_bytes: RandomBytes
    rules: TopicRules
    broker_settings: Table
    founding_settings: Mapping[str, str]
    founding_users: Sequence[UserScramCredentialRecord]


def _allocate_producer_ids(now: Situation, command: AllocateProducerIds) -> Decision[MetadataRecord, ProducerIdBlock]:
    now.brokers.sender(command)
    first = now.image.next_producer_id
    if first > 2**63 - 1 - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "this cluster has given away all producer ids")
    record = ProducerIdsRecord(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    block = ProducerIdBlock(first=ProducerId(first), size=PRODUCER_ID_BLOCK_SIZE)
    return Decision(records=(record,), response=block)


def _finalize_metadata_version(now: Situation, _: FinalizeMetadataVersion) -> Decision[MetadataRecord, CarriedOut]:
    """The first records of a new controller, which also abort an open transaction of the controller before
    (KIP-868)."""
    records: list[MetadataRecord] = []
    if now.image.open_transaction is not None:
        records.append(AbortTransactionRecord(reason="the controller changed"))
    if METADATA_VERSION_FEATURE not in now.image.features:
        records.append(FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION))
        records.append(FeatureLevelRecord(name=TRANSACTION_VERSION_FEATURE, feature_level=TRANSACTION_VERSION))
        if not now.image.topics and ALL_BROKERS not in now.image.configs:
            # This node's own settings become settings of all brokers: derived changes must not depend on a node's own
            # settings.
            kind, name = ALL_BROKERS
            records += (
                ConfigRecord(resource_type=kind, resource_name=name, name=setting, value=value)
                for setting, value in sorted(now.founding_settings.items())
            )
            records += now.founding_users
    return Decision(records=tuple(records), response=CarriedOut())


def _alter_configs(now: Situation, command: AlterConfigs) -> ControllerDecision:
    changes = ConfigChanges(
        now.image,
        topic_defaults=now.rules.config,
        broker_settings=now.broker_settings,
        max_frame_bytes=now.rules.max_frame_bytes,
    )
    return changes.decide(command)


def _alter_partition(now: Situation, command: AlterPartition) -> ControllerDecision:
    now.brokers.sender(command)
    return InSyncChanges(now.image).decide(command)


def _assign_directories(now: Situation, command: AssignDirectories) -> ControllerDecision:
    now.brokers.sender(command)
    return DirectoryAssignments(now.image).decide(command)


def _unfence(now: Situation, command: UnfenceBroker) -> ControllerDecision:
    broker = now.brokers.sender(command)
    return Decision(records=now.brokers.unfence(broker), response=BrokerRegistered(broker_epoch=broker.broker_epoch))


def _fence(now: Situation, command: FenceBroker) -> ControllerDecision:
    broker = now.brokers.known(command.broker_id, command.broker_epoch)
    return Decision(records=now.brokers.fence(broker), response=BrokerRegistered(broker_epoch=broker.broker_epoch))


Decider = Callable[[Situation, Any], ControllerDecision | Steps[ControllerDecision]]

DECIDERS: Final[dict[type[ControllerCommand], Decider]] = {
    CreateTopics: lambda now, command: TopicCreation(now.image, now.rules, now.random_bytes).deciding(command),
    DeleteTopics: lambda now, command: TopicDeletions(now.image).deciding(command),
    CreatePartitions: lambda now, command: PartitionCreation(now.image, now.rules, now.random_bytes).decide(command),
    AlterConfigs: _alter_configs,
    AlterPartition: _alter_partition,
    ElectLeaders: lambda now, command: LeaderElections(now.image).decide(command),
    BalanceLeaders: lambda now, command: LeaderBalance(now.image).deciding(command),
    AlterReassignments: lambda now, command: Reassignments(now.image).decide(command),
    AssignDirectories: _assign_directories,
    RegisterBroker: lambda now, command: now.brokers.register(command, broker_epoch=now.next_offset),
    BrokerHeartbeat: lambda now, command: now.brokers.heartbeat(command, now.next_offset),
    UnfenceBroker: _unfence,
    FenceBroker: _fence,
    FenceSilentBroker: lambda now, _: now.brokers.fence_silent(),
    UnregisterBroker: lambda now, command: now.brokers.unregister(command),
    RegisterController: lambda now, command: now.brokers.register_controller(command),
    AllocateProducerIds: _allocate_producer_ids,
    FinalizeMetadataVersion: _finalize_metadata_version,
    UpdateFeatures: lambda now, command: FeatureUpdates(now.image).decide(command),
    AlterScramCredentials: lambda now, command: UserChanges(now.image, now.random_bytes).decide(command),
    CreateAcls: lambda now, command: AclChanges(now.image, now.random_bytes).creating(command),
    DeleteAcls: lambda now, command: AclChanges(now.image, now.random_bytes).deleting(command),
    AlterQuotas: lambda now, command: QuotaChanges(now.image).deciding(command),
}
"""The decision on each command."""
