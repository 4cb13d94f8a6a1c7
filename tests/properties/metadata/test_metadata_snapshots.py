"""Any image to a snapshot file and back is the same image, however the writer and the reader are sliced."""

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata.image import (
    BrokerImage,
    ClusterImage,
    ConfigResource,
    ControllerImage,
    Endpoint,
    ResourceType,
    SupportedFeature,
    TopicImage,
    confusable_form,
)
from tailrace.metadata.snapshot_image import SnapshotLoader, snapshot_values
from tailrace.model.acls.bindings import AclBinding
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import OffsetAndEpoch, PartitionState
from tailrace.storage.snapshots.format import SnapshotHeader
from tailrace.storage.snapshots.store import SnapshotStore
from tailrace.storage.snapshots.writer import Publication
from tailrace.testing.disk import SimulatedDisk

ROOT = "/log"
ID = OffsetAndEpoch(100, LeaderEpoch(4))

texts = st.text(max_size=12)
int32 = st.integers(0, 2**31 - 1)
uuids = st.binary(min_size=16, max_size=16)
broker_ids = int32.map(BrokerId)
endpoints = st.lists(
    st.builds(
        Endpoint, listener_name=texts, host=texts, port=st.integers(0, 65535), security_protocol=st.integers(0, 3)
    ),
    max_size=2,
).map(tuple)
features = st.lists(
    st.builds(SupportedFeature, name=texts, min_version=st.integers(0, 30), max_version=st.integers(0, 30)), max_size=2
).map(tuple)
int8 = st.integers(-128, 127)
acl_bindings = st.builds(AclBinding, int8, texts, int8, texts, texts, int8, int8)
acls: st.SearchStrategy[dict[Hashable, object]] = st.dictionaries(uuids, acl_bindings, max_size=3)
names = st.text("abc._-", min_size=1, max_size=6)


@st.composite
def partition_states(draw: st.DrawFn, topic_id: TopicId) -> PartitionState:
    replicas = tuple(draw(st.lists(broker_ids, min_size=1, max_size=4, unique=True)))
    some = st.lists(st.sampled_from(replicas), unique=True).map(tuple)
    is_recovering = draw(st.booleans())
    return PartitionState(
        topic_id=topic_id,
        replicas=replicas,
        in_sync_replicas=draw(some),
        leader=draw(st.sampled_from((*replicas, NO_LEADER))),
        leader_epoch=LeaderEpoch(draw(int32)),
        partition_epoch=draw(int32),
        eligible_leader_replicas=draw(some),
        last_known_leaders=draw(some),
        adding_replicas=draw(some),
        removing_replicas=draw(some),
        is_recovering=is_recovering,
        unclean_epoch=draw(int32 if is_recovering else st.integers(-1, 2**31 - 1)),
        directories=tuple(draw(uuids) for _ in replicas),
    )


@st.composite
def images(draw: st.DrawFn) -> ClusterImage:
    topic_names = draw(st.lists(names, max_size=4, unique_by=lambda name: confusable_form(name) or name))
    topic_ids = draw(st.lists(uuids, min_size=len(topic_names), max_size=len(topic_names), unique=True))
    topics = {}
    for name, topic_id in zip(topic_names, map(TopicId, topic_ids), strict=True):
        numbers = draw(st.sets(st.integers(0, 5), max_size=3))
        partitions = {number: draw(partition_states(topic_id)) for number in numbers}
        topics[name] = TopicImage(name=name, topic_id=topic_id, partitions=partitions)
    states = [state for topic in topics.values() for state in topic.partitions.values()]
    resources = st.builds(ConfigResource, st.sampled_from(ResourceType), texts)
    return ClusterImage(
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        confusable_names={form: (name,) for name in topics if (form := confusable_form(name)) is not None},
        configs=draw(st.dictionaries(resources, st.dictionaries(texts, texts, min_size=1, max_size=2), max_size=3)),
        brokers={
            broker_id: draw(
                st.builds(
                    BrokerImage,
                    broker_id=st.just(broker_id),
                    incarnation_id=uuids,
                    broker_epoch=st.integers(0, 2**63 - 1),
                    endpoints=endpoints,
                    rack=st.none() | texts,
                    fenced=st.booleans(),
                    in_controlled_shutdown=st.booleans(),
                    log_directories=st.lists(uuids, max_size=2).map(tuple),
                    features=features,
                )
            )
            for broker_id in draw(st.sets(broker_ids, max_size=3))
        },
        controllers={
            controller_id: draw(
                st.builds(
                    ControllerImage,
                    controller_id=st.just(controller_id),
                    incarnation_id=uuids,
                    endpoints=endpoints,
                    features=features,
                )
            )
            for controller_id in draw(st.sets(broker_ids, max_size=3))
        },
        features=draw(
            st.dictionaries(texts.filter(lambda name: name != "metadata.version"), st.integers(1, 30), max_size=2)
        )
        | draw(st.dictionaries(st.just("metadata.version"), st.integers(26, 27), max_size=1)),
        next_producer_id=draw(st.integers(0, 2**62)),
        replica_counts=Counter(broker_id for state in states for broker_id in state.replicas),
        leader_counts=Counter(state.leader for state in states if state.leader != NO_LEADER),
        tables={"acls": rules} if (rules := draw(acls)) else {},
    )


def write(store: SnapshotStore, image: ClusterImage, slice_sizes: Iterator[int]) -> None:
    writer = store.begin_writing(ID, SnapshotHeader(1_700_000_000_000))
    values = snapshot_values(image)
    while part := list(islice(values, next(slice_sizes))):
        writer.append(part)
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    store.finish(publication)


@given(images(), st.lists(st.integers(1, 10), min_size=1))
def test_any_image_comes_back_from_its_snapshot(image: ClusterImage, sizes: list[int]) -> None:
    disk = SimulatedDisk()
    disk.make_dirs(ROOT)
    write(SnapshotStore.open(ROOT, files=disk), image, (sizes[at % len(sizes)] for at in range(10**6)))
    reader = SnapshotStore.open(ROOT, files=disk).open_reader(ID)
    loader = SnapshotLoader()
    for content in reader.batches():
        loader.load(content)
    reader.close()
    assert loader.image() == image
