"""Records of topics, their partitions and settings, and their rows in the table of record kinds."""

from collections.abc import Iterator
from typing import cast

from tailrace.metadata.image import PARTITION_RECORD, TOPIC_RECORD, ClusterImage, ConfigResource, ResourceType
from tailrace.metadata.image_draft import ImageDraft
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, accepts_loss_after, unclean_epoch_after
from tailrace.model.settings import current_name
from tailrace.protocol.schema import Int8, Int32, Uuid, field, message

_BrokerIds = tuple[BrokerId, ...]

UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
"""The value in place of a directory id: the broker of the replica has not chosen a log directory yet (KIP-858)."""
NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1
RECOVERING = 1


@message(name="TopicRecord", versions="0", flexible="0+")
class TopicRecord(MetadataRecord):
    """A new topic; its partitions follow in the same batch."""

    name: str
    topic_id: Uuid


def _write_topics(image: ClusterImage) -> Iterator[MetadataRecord]:
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for number, state in topic.partitions.items():
            yield partition_record(number, state)


KINDS.add(
    RecordKind(
        number=TOPIC_RECORD,
        record=TopicRecord,
        apply=lambda draft, record: draft.topics.create(record.name, TopicId(record.topic_id)),
        key=lambda record: (TOPIC_RECORD, record.topic_id),
        write=_write_topics,
        place=3,
    )
)


@message(name="PartitionRecord", versions="0-2", flexible="0+")
class PartitionRecord(MetadataRecord):
    """A new partition."""

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    leader: Int32 = -1
    leader_recovery_state: Int8 = field(versions="0+", tag=0, default=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: tuple[Uuid, ...] = field(versions="1+", default=())
    """A directory per replica, in the same order."""
    eligible_leader_replicas: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=1, default=None)
    last_known_elr: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=2, default=None)
    unclean_epoch: Int32 = field(versions="0+", tag=10000, default=-1)
    """The leader epoch that began with the last unclean election. Only snapshots need this field: a log has the change
    records."""
    accepts_loss: bool = field(versions="0+", tag=10001, default=False)
    """Whether an administrator has given up the records that this leader does not have, and the leader has not
    recovered yet."""


def created_partition(topic_id: TopicId, record: PartitionRecord) -> PartitionState:
    """A new partition."""
    is_recovering = record.leader_recovery_state == RECOVERING
    # A snapshot of Kafka states nothing else about a recovery.
    is_known_by_state = is_recovering and record.unclean_epoch < 0 and record.leader != NO_LEADER
    return PartitionState(
        topic_id=topic_id,
        replicas=cast(_BrokerIds, record.replicas),
        in_sync_replicas=cast(_BrokerIds, record.isr),
        leader=BrokerId(record.leader),
        leader_epoch=LeaderEpoch(record.leader_epoch),
        partition_epoch=record.partition_epoch,
        eligible_leader_replicas=cast(_BrokerIds, record.eligible_leader_replicas or ()),
        last_known_leaders=cast(_BrokerIds, record.last_known_elr or ()),
        adding_replicas=cast(_BrokerIds, record.adding_replicas),
        removing_replicas=cast(_BrokerIds, record.removing_replicas),
        is_recovering=is_recovering,
        unclean_epoch=record.leader_epoch if is_known_by_state else record.unclean_epoch,
        accepts_loss=record.accepts_loss and is_recovering and record.leader != NO_LEADER,
        directories=record.directories,
    )


def partition_record(number: int, state: PartitionState) -> PartitionRecord:
    """The record that states this partition in full."""
    return PartitionRecord(
        partition_id=number,
        topic_id=state.topic_id,
        replicas=state.replicas,
        isr=state.in_sync_replicas,
        removing_replicas=state.removing_replicas,
        adding_replicas=state.adding_replicas,
        leader=state.leader,
        leader_recovery_state=RECOVERING if state.is_recovering else 0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        directories=state.directories,
        eligible_leader_replicas=state.eligible_leader_replicas or None,
        last_known_elr=state.last_known_leaders or None,
        unclean_epoch=state.unclean_epoch,
        accepts_loss=state.accepts_loss,
    )


KINDS.add(
    RecordKind(
        number=PARTITION_RECORD,
        record=PartitionRecord,
        version=2,
        apply=lambda draft, record: draft.topics.create_partition(
            record.partition_id, created_partition(TopicId(record.topic_id), record)
        ),
        key=lambda record: (PARTITION_RECORD, record.topic_id, record.partition_id),
    )
)


@message(name="PartitionChangeRecord", versions="0-2", flexible="0+")
class PartitionChangeRecord(MetadataRecord):
    """Changes of a partition: null and -2 mean "as before"."""

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=0, default=None)
    leader: Int32 = field(versions="0+", tag=1, default=NO_LEADER_CHANGE)
    replicas: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=2, default=None)
    removing_replicas: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=3, default=None)
    adding_replicas: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=4, default=None)
    leader_recovery_state: Int8 = field(versions="0+", tag=5, default=NO_RECOVERY_CHANGE)
    directories: tuple[Uuid, ...] | None = field(versions="1+", nullable="1+", tag=8, default=None)
    eligible_leader_replicas: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=6, default=None)
    last_known_elr: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=7, default=None)
    accepts_loss: bool = field(versions="0+", tag=10000, default=False)
    """Whether an administrator has named this leader, and has given up the records that its log does not have."""


def changed_partition(state: PartitionState, record: PartitionChangeRecord) -> PartitionState:
    """The partition after a change; both epochs rise as in Kafka."""

    def new(ids: tuple[int, ...] | None, before: _BrokerIds) -> _BrokerIds:
        return before if ids is None else cast(_BrokerIds, ids)

    elected = record.leader != NO_LEADER_CHANGE
    leader = BrokerId(record.leader) if elected else state.leader
    leader_epoch = LeaderEpoch(state.leader_epoch + 1) if elected else state.leader_epoch
    recovery = record.leader_recovery_state
    is_recovering = state.is_recovering if recovery == NO_RECOVERY_CHANGE else recovery == RECOVERING
    is_named = record.accepts_loss and is_recovering and leader != NO_LEADER
    # Written in full: `replace` costs several times as much, and most records of a log are changes of partitions.
    return PartitionState(
        topic_id=state.topic_id,
        replicas=new(record.replicas, state.replicas),
        in_sync_replicas=new(record.isr, state.in_sync_replicas),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=state.partition_epoch + 1,
        eligible_leader_replicas=new(record.eligible_leader_replicas, state.eligible_leader_replicas),
        last_known_leaders=new(record.last_known_elr, state.last_known_leaders),
        adding_replicas=new(record.adding_replicas, state.adding_replicas),
        removing_replicas=new(record.removing_replicas, state.removing_replicas),
        is_recovering=is_recovering,
        unclean_epoch=unclean_epoch_after(state, leader, leader_epoch, is_recovering=is_recovering),
        accepts_loss=is_named or accepts_loss_after(state, leader, is_recovering=is_recovering),
        directories=state.directories if record.directories is None else record.directories,
    )


KINDS.add(
    RecordKind(
        number=5,
        record=PartitionChangeRecord,
        version=2,
        apply=lambda draft, record: draft.topics.change_partition(
            TopicId(record.topic_id), record.partition_id, changed_partition, record
        ),
    )
)


@message(name="RemoveTopicRecord", versions="0", flexible="0+")
class RemoveTopicRecord(MetadataRecord):
    """A topic was deleted, with its partitions and settings."""

    topic_id: Uuid


def _remove_topic(draft: ImageDraft, record: RemoveTopicRecord) -> None:
    resource = ConfigResource(ResourceType.TOPIC, draft.topics.remove(TopicId(record.topic_id)))
    if resource in draft.configs:
        draft.superseded.update((_SETTING, resource, name) for name in draft.configs.pop(resource))
        draft.changed_configs.add(resource)


KINDS.add(RecordKind(number=9, record=RemoveTopicRecord, apply=_remove_topic))


@message(name="ClearElrRecord", versions="0", flexible="0+")
class ClearElrRecord(MetadataRecord):
    """Ends the eligibility of all replicas of a topic that are not in sync; an empty name means every topic
    (KIP-966)."""

    topic_name: str


KINDS.add(
    RecordKind(
        number=28,
        record=ClearElrRecord,
        apply=lambda draft, record: draft.topics.clear_eligible_leaders(record.topic_name),
    )
)


@message(name="ConfigRecord", versions="0", flexible="0+")
class ConfigRecord(MetadataRecord):
    """A setting of a topic or broker; a null value removes the setting."""

    resource_type: Int8
    resource_name: str
    name: str
    value: str | None


def _set_config(draft: ImageDraft, record: ConfigRecord) -> None:
    resource = ConfigResource(record.resource_type, record.resource_name)
    overrides = dict(draft.overrides(resource))
    name = current_name(record.name)  # a log may have settings under their former names
    if record.value is None:
        overrides.pop(name, None)
    else:
        overrides[name] = record.value
    if overrides:
        draft.configs[resource] = overrides
    elif resource in draft.configs:
        del draft.configs[resource]
    draft.changed_configs.add(resource)


def _key_of_config(record: ConfigRecord) -> tuple[int, ConfigResource, str]:
    return _SETTING, ConfigResource(record.resource_type, record.resource_name), current_name(record.name)


def _write_configs(image: ClusterImage) -> Iterator[ConfigRecord]:
    for resource, settings in image.configs.items():
        for name, value in settings.items():
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)


_SETTING = 4
KINDS.add(
    RecordKind(
        number=_SETTING,
        record=ConfigRecord,
        apply=_set_config,
        key=_key_of_config,
        value=lambda state, key: state.overrides(key[1]).get(key[2]),
        write=_write_configs,
        place=4,
    )
)
