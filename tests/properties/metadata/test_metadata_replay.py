"""The controller's state is its records, nothing else: after any commands, in any grouping, through the wire format."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    FeatureUpdate,
    FenceBroker,
    FinalizeMetadataVersion,
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
    ConfigChange,
    ConfigOperation,
    ControllerCommand,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    InSyncChange,
    InSyncReplica,
    PartitionIncrease,
    Reassignment,
    ResourceChanges,
    TopicReference,
    TopicSpec,
)
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.image import (
    EMPTY_IMAGE,
    ClusterImage,
    ConfigResource,
    ImageDelta,
    RecordKey,
    ResourceType,
    confusable_form,
)
from tailrace.metadata.records.kinds import MetadataRecord, decode_record, encode_record, key_of
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import ChangedRecords, records_of
from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition
from testkit.quorum.controllers import controller_machine

names = st.sampled_from(["a", "b", "a.b", "a_b", "c-1", "bad name", "__consumer_offsets"])
broker_ids = st.integers(1, 3).map(BrokerId)
new_topics = st.builds(
    TopicSpec,
    name=names,
    num_partitions=st.integers(-1, 3),
    replication_factor=st.integers(-1, 3),
    configs=st.lists(
        st.sampled_from(
            [
                ("retention.ms", "5"),
                ("nonsense", "1"),
                ("min.insync.replicas", "2"),
                ("unclean.leader.election.enable", "true"),
            ]
        ),
        max_size=1,
    ).map(tuple),
)
resource_changes = st.builds(
    ResourceChanges,
    resource=st.builds(ConfigResource, st.just(ResourceType.TOPIC), names)
    | st.builds(ConfigResource, st.just(ResourceType.BROKER), st.sampled_from(["", "1", "2"]))
    | st.builds(ConfigResource, st.sampled_from([ResourceType.GROUP, ResourceType.CLIENT_METRICS]), names),
    changes=st.builds(
        ConfigChange,
        name=st.sampled_from(
            [
                "retention.ms",
                "cleanup.policy",
                "log.retention.ms",
                "min.insync.replicas",
                "metrics",
                "share.auto.offset.reset",
            ]
        ),
        operation=st.sampled_from(ConfigOperation),
        value=st.sampled_from([None, "7", "1", "2", "compact", "delete", "latest"]),
    ).map(lambda change: (change,)),
    replaces_all=st.booleans(),
)
more_partitions = st.builds(
    PartitionIncrease,
    name=names,
    count=st.integers(-1, 5),
    assignments=st.none() | st.lists(st.lists(broker_ids, max_size=2).map(tuple), max_size=2).map(tuple),
)
topic_partitions = st.builds(TopicPartition, names, st.integers(0, 2))
replica_lists = st.lists(broker_ids, min_size=1, max_size=3, unique=True).map(tuple)
commands = st.one_of(
    st.builds(CreateTopics, topics=st.lists(new_topics, max_size=3).map(tuple), validate_only=st.booleans()),
    st.builds(DeleteTopics, topics=st.lists(st.builds(TopicReference, name=names), max_size=2).map(tuple)),
    st.builds(
        RegisterBroker,
        broker_id=broker_ids,
        incarnation_id=st.binary(min_size=16, max_size=16),
        endpoints=st.just(()),
        rack=st.sampled_from([None, "a", "b"]),
        previous_broker_epoch=st.integers(-1, 20),
    ),
    st.builds(
        BrokerHeartbeat,
        broker_id=broker_ids,
        broker_epoch=st.just(-1),
        metadata_offset=st.just(10**6),
        wants_fence=st.booleans(),
        wants_shutdown=st.booleans(),
    ),
    st.builds(UnregisterBroker, broker_id=broker_ids),
    st.builds(
        RegisterController,
        controller_id=broker_ids,
        incarnation_id=st.binary(min_size=16, max_size=16),
        endpoints=st.just(()),
    ),
    st.builds(
        UpdateFeatures,
        updates=st.builds(
            FeatureUpdate,
            feature=st.just("metadata.version"),
            level=st.integers(25, 26),
            allows_downgrade=st.booleans(),
        ).map(lambda update: (update,)),
    ),
    st.builds(AlterPartition, broker_id=broker_ids, broker_epoch=st.just(-1), changes=st.just(())),
    st.builds(
        ElectLeaders,
        type=st.sampled_from(ElectionType),
        partitions=st.none() | st.lists(topic_partitions, max_size=2).map(tuple),
    ),
    st.builds(
        AlterReassignments,
        reassignments=st.builds(Reassignment, topic_partition=topic_partitions, replicas=st.none() | replica_lists).map(
            lambda move: (move,)
        ),
    ),
    st.builds(UnfenceBroker, broker_id=broker_ids, broker_epoch=st.just(-1)),
    st.builds(FenceBroker, broker_id=broker_ids, broker_epoch=st.just(-1)),
    st.builds(AllocateProducerIds, broker_id=broker_ids, broker_epoch=st.just(-1)),
    st.builds(AlterConfigs, resources=st.lists(resource_changes, max_size=2).map(tuple), validate_only=st.booleans()),
    st.builds(CreatePartitions, topics=st.lists(more_partitions, max_size=2).map(tuple), validate_only=st.booleans()),
    st.just(FinalizeMetadataVersion()),
)


def with_present_epoch(command: ControllerCommand, image: ClusterImage, choice: int) -> ControllerCommand:
    """Commands of brokers name the epoch of the present registration, else they are only ever refused."""
    if isinstance(command, (UnfenceBroker, FenceBroker, AllocateProducerIds, BrokerHeartbeat, AlterPartition)):
        broker = image.brokers.get(command.broker_id)
        if broker is not None:
            command = replace(command, broker_epoch=broker.broker_epoch)
    if isinstance(command, AlterPartition):
        return replace(command, changes=proposals(command.broker_id, image, choice))
    return command


def proposals(leader: BrokerId, image: ClusterImage, choice: int) -> tuple[InSyncChange, ...]:
    """For every partition that this broker leads, a possible set of in-sync replicas."""
    return tuple(
        InSyncChange(
            topic_id=topic_id,
            partition=number,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            in_sync_replicas=tuple(
                InSyncReplica(broker_id=replica)
                for position, replica in enumerate(state.replicas)
                if replica == leader or choice >> position & 1
            ),
        )
        for topic_id, number, state in image.partitions()
        if state.leader == leader
    )


def batches(machine: ControllerMachine, wanted: list[ControllerCommand]) -> Iterator[tuple[MetadataRecord, ...]]:
    """Carries the commands out. Yields the records of each command."""
    offset = 0
    for choice, command in enumerate(wanted):
        try:
            decision = machine.decide(with_present_epoch(command, machine.image, choice), 0, next_offset=offset)
        except KafkaError:
            continue
        machine.apply_all(decision.records)
        offset += len(decision.records)
        if decision.records:
            yield decision.records


def check(image: ClusterImage) -> None:
    """Invariants of every image."""
    assert {topic.topic_id: name for name, topic in image.topics.items()} == image.topic_names
    forms: dict[str, tuple[str, ...]] = {}
    for name in sorted(image.topics):
        form = confusable_form(name)
        if form is not None:
            forms[form] = (*forms.get(form, ()), name)
    assert forms == image.confusable_names
    states = [state for _, _, state in image.partitions()]
    assert image.replica_counts == Counter(broker_id for state in states for broker_id in state.replicas)
    assert image.leader_counts == Counter(state.leader for state in states if state.leader != NO_LEADER)
    for resource in image.configs:
        if resource.type == ResourceType.TOPIC:
            assert resource.name in image.topics
        elif resource.type == ResourceType.BROKER:
            assert not resource.name or BrokerId(int(resource.name)) in image.brokers
    for topic in image.topics.values():
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        for state in topic.partitions.values():
            assert state.topic_id == topic.topic_id
            check_partition(image, state)


def check_partition(image: ClusterImage, state: PartitionState) -> None:
    in_sync, eligible = set(state.in_sync_replicas), set(state.eligible_leader_replicas)
    assert len(in_sync) == len(state.in_sync_replicas)
    assert in_sync | eligible <= set(state.replicas)
    assert not in_sync & eligible
    assert set(state.adding_replicas) | set(state.removing_replicas) <= set(state.replicas)
    alive = {broker_id for broker_id, broker in image.brokers.items() if broker.is_alive}
    if state.leader == NO_LEADER:
        assert not in_sync & alive
        assert in_sync or not eligible & alive, "an eligible leader that lives is elected"
    else:
        assert state.leader in in_sync & alive


@given(st.lists(commands, max_size=25))
def test_the_state_is_a_replay_of_the_records_after_every_step(wanted: list[ControllerCommand]) -> None:
    machine = controller_machine()
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
    snapshot = [encode_record(record) for record in records_of(machine.image)]
    assert apply_all(EMPTY_IMAGE, [decode_record(value) for value in snapshot])[0] == machine.image


def keep_up(kept: dict[tuple[str, int], object], delta: ImageDelta) -> None:
    for topic in delta.deleted_topics:
        for number in topic.partitions:
            del kept[topic.name, number]
    for topic in delta.created_topics:
        kept.update({(topic.name, number): state for number, state in topic.partitions.items()})
    for topic_partition, state in delta.changed_partitions:
        assert topic_partition in kept
        kept[topic_partition] = state


@given(st.lists(commands, max_size=25), st.integers(1, 4))
def test_deltas_lead_from_each_image_to_the_next(wanted: list[ControllerCommand], size: int) -> None:
    """Topics and partitions kept up to date from deltas alone, in portions, equal the image's."""
    machine = controller_machine()
    image = EMPTY_IMAGE
    kept: dict[tuple[str, int], object] = {}
    for records in batches(machine, wanted):
        image, delta = apply_all(image, records)
        portions = list(delta.pieces(size))
        for portion in portions:
            assert len(portion.changed_partitions) <= size
            keep_up(kept, portion)
        assert sum((part.changed_brokers for part in portions), ()) == delta.changed_brokers
        assert sum((part.changed_configs for part in portions), ()) == delta.changed_configs
        assert kept == {
            (topic.name, number): state for topic in image.topics.values() for number, state in topic.partitions.items()
        }


def snapshot_of(image: ClusterImage) -> dict[RecordKey, MetadataRecord]:
    records = list(records_of(image))
    snapshot = {key_of(record): record for record in records}
    assert len(snapshot) == len(records), "each record has a name of its own"
    return snapshot


@given(st.lists(commands, min_size=4, max_size=25), st.integers(0, 12), st.integers(1, 4))
def test_changed_records_are_the_difference_of_two_snapshots(
    wanted: list[ControllerCommand], first: int, group: int
) -> None:
    """However many batches a node applies at once; and what came in between and changed again counts besides."""
    made = list(batches(controller_machine(), wanted))
    image, _ = apply_all(EMPTY_IMAGE, (record for batch in made[:first] for record in batch))
    base = before = snapshot_of(image)
    changed = ChangedRecords(image, snapshot_records=None)
    added_and_changed: set[RecordKey] = set()
    later = made[first:]
    for at in range(0, len(later), group):
        between = image
        for batch in later[at : at + group]:
            between, _ = apply_all(between, batch)
            after = snapshot_of(between)
            added_and_changed |= {key for key in before if key not in base and before[key] != after.get(key)}
            before = after
        image, delta = apply_all(image, (record for batch in later[at : at + group] for record in batch))
        changed.add(image, delta)
        differing = sum(after.get(key) != record for key, record in base.items())
        assert len(changed) == differing + len(added_and_changed)
