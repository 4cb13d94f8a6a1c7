"""Records as values of the image (pure)."""

from collections.abc import Iterable
from typing import cast

from tailrace.metadata.image import BrokerImage, ControllerImage, Endpoint, SupportedFeature
from tailrace.metadata.records import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    RECOVERING,
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, accepts_loss_after, unclean_epoch_after


def registered_broker(record: RegisterBrokerRecord) -> BrokerImage:
    """The broker that a registration makes."""
    return BrokerImage(
        broker_id=BrokerId(record.broker_id),
        incarnation_id=record.incarnation_id,
        broker_epoch=record.broker_epoch,
        endpoints=_endpoints(record.end_points),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_directories=record.log_dirs,
        features=_features(record.features),
    )


def registered_controller(record: RegisterControllerRecord) -> ControllerImage:
    """The controller that a registration makes."""
    return ControllerImage(
        controller_id=BrokerId(record.controller_id),
        incarnation_id=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        features=_features(record.features),
    )


def _endpoints(endpoints: Iterable[BrokerEndpoint | ControllerEndpoint]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(listener_name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    )


def _features(features: Iterable[BrokerFeature | ControllerFeature]) -> tuple[SupportedFeature, ...]:
    return tuple(SupportedFeature(f.name, f.min_supported_version, f.max_supported_version) for f in features)


def created_partition(topic_id: TopicId, record: PartitionRecord) -> PartitionState:
    """A new partition."""
    is_recovering = record.leader_recovery_state == RECOVERING
    # A snapshot of Kafka's says no more than that.
    is_known_by_state = is_recovering and record.unclean_epoch < 0 and record.leader != NO_LEADER
    return PartitionState(
        topic_id=topic_id,
        replicas=_broker_ids(record.replicas),
        in_sync_replicas=_broker_ids(record.isr),
        leader=BrokerId(record.leader),
        leader_epoch=LeaderEpoch(record.leader_epoch),
        partition_epoch=record.partition_epoch,
        eligible_leader_replicas=_broker_ids(record.eligible_leader_replicas or ()),
        last_known_leaders=_broker_ids(record.last_known_elr or ()),
        adding_replicas=_broker_ids(record.adding_replicas),
        removing_replicas=_broker_ids(record.removing_replicas),
        is_recovering=is_recovering,
        unclean_epoch=record.leader_epoch if is_known_by_state else record.unclean_epoch,
        accepts_loss=record.accepts_loss and is_recovering and record.leader != NO_LEADER,
        directories=record.directories,
    )


def changed_partition(state: PartitionState, record: PartitionChangeRecord) -> PartitionState:
    """The partition after a change; both epochs rise as Kafka has it."""

    def new(ids: tuple[int, ...] | None, before: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        return before if ids is None else _broker_ids(ids)

    elected = record.leader != NO_LEADER_CHANGE
    leader = BrokerId(record.leader) if elected else state.leader
    leader_epoch = LeaderEpoch(state.leader_epoch + 1) if elected else state.leader_epoch
    recovery = record.leader_recovery_state
    is_recovering = state.is_recovering if recovery == NO_RECOVERY_CHANGE else recovery == RECOVERING
    is_named = record.accepts_loss and is_recovering and leader != NO_LEADER
    # Spelled out: `replace` costs several times as much, and a log is mostly these.
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


def changed_flag(flag: bool, change: int) -> bool:
    """A flag of a registration after a change of it."""
    return flag if change == 0 else change > 0


def _broker_ids(ids: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return cast("tuple[BrokerId, ...]", ids)
