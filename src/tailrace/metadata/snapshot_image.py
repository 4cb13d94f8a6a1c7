"""An image to the records of a snapshot and back, in slices that leave time for other work; how two images differ.

writer.append(islice(values, 500))      as often as there are values
loader.load(batch)                      for each batch of the snapshot
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ChangedPartition,
    ClusterImage,
    ControllerImage,
    ImageDelta,
    TopicImage,
    sorted_resources,
)
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
    encode_record,
)
from tailrace.metadata.replay import Replay
from tailrace.metadata.stored_partitions import RecordReader
from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.steps import result_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records


def snapshot_values(image: ClusterImage) -> Iterator[bytes]:
    """The values of the records that state this image, one at a time: an image never changes, so pauses do no harm."""
    return map(encode_record, records_of(image))


_RECORDS_PER_STEP: Final = 1_000


class SnapshotLoader:
    """Makes the image that a snapshot states. Used once."""

    def __init__(self) -> None:
        self._replay = Replay(EMPTY_IMAGE)
        self._reader = RecordReader()
        self.records_count = 0

    def load(self, batches: Buffer) -> None:
        """Take the records of these whole batches; control batches say nothing of the image.

        Raises CorruptRecords, and KafkaError(UNSUPPORTED_VERSION) for records of a newer release.
        """
        result_of(self.steps(batches))

    def steps(self, batches: Buffer) -> Steps[None]:
        """`load`, in steps of a few milliseconds: Kafka writes batches of up to 8 MiB."""
        for position, header in iter_batches(batches):
            if header.is_control:
                continue
            for index, record in enumerate(read_records(batches, position), 1):
                if record.value is None:
                    raise CorruptRecords(f"record {record.offset} of a snapshot has no value")
                self._replay.apply(self._reader.read(record.value))
                self.records_count += 1
                if index % _RECORDS_PER_STEP == 0:
                    yield

    def image(self) -> ClusterImage:
        """The image, when all is loaded."""
        return self._replay.image()


def records_of(image: ClusterImage) -> Iterator[MetadataRecord]:
    """The records, one at a time: the writer may pause anywhere, since an image never changes.

    Kafka's own order: features, brokers, controllers, topics with their partitions, settings, producer ids. No record
    here derives anything: each states a value in full.
    """
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


def difference(before: ClusterImage, after: ClusterImage) -> ImageDelta:
    """The delta from one image to the other, for components that act on changes."""
    return result_of(difference_steps(before, after))


def difference_steps(before: ClusterImage, after: ClusterImage) -> Steps[ImageDelta]:
    """`difference`, in steps of about a millisecond."""
    created = tuple(_only_in(after, before))
    yield
    deleted = tuple(_only_in(before, after))
    changed: list[ChangedPartition] = []
    remaining = _compared(before, after)
    while part := tuple(islice(remaining, SLICE)):
        yield
        changed += (one for one in part if one is not None)
    resources = {*before.configs, *after.configs}
    brokers = {*before.brokers, *after.brokers}
    return ImageDelta(
        created_topics=created,
        deleted_topics=deleted,
        changed_partitions=tuple(changed),
        changed_configs=sorted_resources(one for one in resources if before.configs.get(one) != after.configs.get(one)),
        changed_brokers=tuple(sorted(one for one in brokers if before.brokers.get(one) != after.brokers.get(one))),
    )


def _only_in(image: ClusterImage, other: ClusterImage) -> Iterator[TopicImage]:
    return (topic for topic in image.topics.values() if topic.topic_id not in other.topic_names)


def _compared(before: ClusterImage, after: ClusterImage) -> Iterator[ChangedPartition | None]:
    """For each partition that both have: its state if that is another one, else None."""
    for topic in after.topics.values():
        name = before.topic_names.get(topic.topic_id)
        if name is None:
            continue
        known = before.topics[name].partitions
        for number, state in topic.partitions.items():
            is_same = known.get(number) == state
            yield None if is_same else ChangedPartition(TopicPartition(topic.name, number), state)
