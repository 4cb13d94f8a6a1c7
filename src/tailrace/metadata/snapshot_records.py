"""An image as the records of a snapshot: their replay onto nothing gives the same image (KIP-630).

Kafka's own order: features, brokers, controllers, topics with their partitions, settings, producer ids. No record here
derives anything: each states a value in full.
"""

from collections.abc import Iterator

from tailrace.metadata.image import BrokerImage, ClusterImage, ControllerImage
from tailrace.metadata.records import (
    RECOVERING,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)
from tailrace.model.partitions import PartitionState


def records_of(image: ClusterImage) -> Iterator[MetadataRecord]:
    """The records, one at a time: the writer may pause anywhere, since an image never changes."""
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield _broker(broker)
    for controller in image.controllers.values():
        yield _controller(controller)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for number, state in topic.partitions.items():
            yield partition_record(number, state)
    for resource, settings in image.configs.items():
        for name, value in settings.items():
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)


def _broker(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=tuple(
            BrokerEndpoint(name=e.listener_name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(name=f.name, min_supported_version=f.min_version, max_supported_version=f.max_version)
            for f in broker.features
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_directories,
    )


def _controller(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=False,
        end_points=tuple(
            ControllerEndpoint(name=e.listener_name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in controller.endpoints
        ),
        features=tuple(
            ControllerFeature(name=f.name, min_supported_version=f.min_version, max_supported_version=f.max_version)
            for f in controller.features
        ),
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
