"""The controller's state is its records, nothing else: after any commands, in any grouping, through the wire format."""

from collections.abc import Iterator
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata.commands import (
    AllocateProducerIds,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ControllerCommand,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FenceBroker,
    FinalizeMetadataVersion,
    MorePartitions,
    NewTopic,
    RegisterBroker,
    ResourceChanges,
    TopicReference,
    UnfenceBroker,
)
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ConfigResource, ResourceType, confusable_form
from tailrace.metadata.records import MetadataRecord, decode_record, encode_record
from tailrace.metadata.replay import apply_all
from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.node.settings import BROKER_SETTINGS

names = st.sampled_from(["a", "b", "a.b", "a_b", "c-1", "bad name", "__consumer_offsets"])
broker_ids = st.integers(1, 3).map(BrokerId)
new_topics = st.builds(
    NewTopic,
    name=names,
    num_partitions=st.integers(-1, 3),
    replication_factor=st.integers(-1, 3),
    configs=st.lists(st.sampled_from([("retention.ms", "5"), ("nonsense", "1")]), max_size=1).map(tuple),
)
resource_changes = st.builds(
    ResourceChanges,
    resource=st.builds(ConfigResource, st.just(ResourceType.TOPIC), names)
    | st.builds(ConfigResource, st.just(ResourceType.BROKER), st.sampled_from(["", "1", "2"])),
    changes=st.builds(
        ConfigChange,
        name=st.sampled_from(["retention.ms", "cleanup.policy", "log.retention.ms"]),
        operation=st.sampled_from(ConfigOperation),
        value=st.sampled_from([None, "7", "compact", "delete"]),
    ).map(lambda change: (change,)),
    replaces_all=st.booleans(),
)
more_partitions = st.builds(
    MorePartitions,
    name=names,
    count=st.integers(-1, 5),
    assignments=st.none() | st.lists(st.lists(broker_ids, max_size=2).map(tuple), max_size=2).map(tuple),
)
commands = st.one_of(
    st.builds(CreateTopics, topics=st.lists(new_topics, max_size=3).map(tuple), validate_only=st.booleans()),
    st.builds(DeleteTopics, topics=st.lists(st.builds(TopicReference, name=names), max_size=2).map(tuple)),
    st.builds(
        RegisterBroker,
        broker_id=broker_ids,
        incarnation_id=st.binary(min_size=16, max_size=16),
        endpoints=st.just(()),
        rack=st.sampled_from([None, "a", "b"]),
    ),
    st.builds(UnfenceBroker, broker_id=broker_ids, broker_epoch=st.just(-1)),
    st.builds(FenceBroker, broker_id=broker_ids, broker_epoch=st.just(-1)),
    st.builds(AllocateProducerIds, broker_id=broker_ids, broker_epoch=st.just(-1)),
    st.builds(AlterConfigs, resources=st.lists(resource_changes, max_size=2).map(tuple), validate_only=st.booleans()),
    st.builds(CreatePartitions, topics=st.lists(more_partitions, max_size=2).map(tuple), validate_only=st.booleans()),
    st.just(FinalizeMetadataVersion()),
)


def with_present_epoch(command: ControllerCommand, image: ClusterImage) -> ControllerCommand:
    """Commands of brokers name the epoch of the present registration, else they are only ever refused."""
    if isinstance(command, (UnfenceBroker, FenceBroker, AllocateProducerIds)):
        broker = image.brokers.get(command.broker_id)
        if broker is not None:
            return type(command)(broker_id=command.broker_id, broker_epoch=broker.broker_epoch)
    return command


def batches(machine: ControllerMachine, wanted: list[ControllerCommand]) -> Iterator[tuple[MetadataRecord, ...]]:
    """Carry the commands out; give the records of each."""
    offset = 0
    for command in wanted:
        try:
            decision = machine.decide(with_present_epoch(command, machine.image), 0, next_offset=offset)
        except KafkaError:
            continue
        machine.apply_all(decision.records)
        offset += len(decision.records)
        if decision.records:
            yield decision.records


def check(image: ClusterImage) -> None:
    """What holds in every image."""
    assert {topic.topic_id: name for name, topic in image.topics.items()} == image.topic_names
    forms = {form: name for name in image.topics if (form := confusable_form(name)) is not None}
    assert forms == image.confusable_names
    for resource in image.configs:
        if resource.type == ResourceType.TOPIC:
            assert resource.name in image.topics
        else:
            assert not resource.name or BrokerId(int(resource.name)) in image.brokers
    for topic in image.topics.values():
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        for state in topic.partitions.values():
            assert state.topic_id == topic.topic_id
            assert state.in_sync_replicas
            assert set(state.in_sync_replicas) <= set(state.replicas)
            if state.leader == NO_LEADER:
                assert not any(image.brokers[broker_id].is_alive for broker_id in state.in_sync_replicas)
            else:
                assert state.leader in state.in_sync_replicas
                assert image.brokers[state.leader].is_alive


def machine_with_random_bytes() -> ControllerMachine:
    numbers = count(1)
    return ControllerMachine(
        random_bytes=lambda size: (2**64 + next(numbers)).to_bytes(16, "big")[-size:], broker_settings=BROKER_SETTINGS
    )


@given(st.lists(commands, max_size=25))
def test_the_state_is_a_replay_of_the_records_after_every_step(wanted: list[ControllerCommand]) -> None:
    machine = machine_with_random_bytes()
    replica = EMPTY_IMAGE
    log: list[bytes] = []
    for records in batches(machine, wanted):
        written = [encode_record(record) for record in records]
        log += written
        replica, _ = apply_all(replica, [decode_record(value) for value in written])
        assert replica == machine.image
        check(replica)
    restarted, _ = apply_all(EMPTY_IMAGE, [decode_record(value) for value in log])
    assert restarted == machine.image


@given(st.lists(commands, max_size=25))
def test_deltas_lead_from_each_image_to_the_next(wanted: list[ControllerCommand]) -> None:
    """Whoever keeps only topics and partitions up to date from deltas has what the image has."""
    machine = machine_with_random_bytes()
    image = EMPTY_IMAGE
    kept: dict[tuple[str, int], object] = {}
    for records in batches(machine, wanted):
        image, delta = apply_all(image, records)
        for topic in delta.deleted_topics:
            for number in topic.partitions:
                del kept[topic.name, number]
        for topic in delta.created_topics:
            kept.update({(topic.name, number): state for number, state in topic.partitions.items()})
        for topic_partition, state in delta.changed_partitions:
            assert topic_partition in kept
            kept[topic_partition] = state
        assert kept == {
            (topic.name, number): state for topic in image.topics.values() for number, state in topic.partitions.items()
        }
