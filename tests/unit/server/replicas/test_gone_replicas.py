"""Replicas that were moved away or deleted while their node was down, on a simulated disk."""

from collections.abc import Collection

import pytest

from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, topic_id_of

OTHER_ID = TopicId(b"o" * 16)


def image(*replicas: int, topic_id: TopicId | None = None) -> ClusterImage:
    brokers = tuple(map(BrokerId, replicas))
    state = PartitionState(
        topic_id=topic_id or topic_id_of("orders"),
        replicas=brokers,
        in_sync_replicas=brokers,
        leader=brokers[0],
        leader_epoch=LeaderEpoch(1),
        partition_epoch=1,
    )
    topic = TopicImage(name="orders", topic_id=state.topic_id, partitions={0: state})
    return ClusterImage(topics={"orders": topic}, topic_names={state.topic_id: "orders"})


def restarted(*, is_clean: bool) -> tuple[DataPath, SimulatedDisk]:
    """A node with one replica of `orders`, after a stop or a kill, and its disk."""
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    node.create()
    node.produce("orders", b"a")
    if is_clean:
        node.table.close()
    return DataPath("/logs", files=files), files


def directories(files: SimulatedDisk) -> list[str]:
    return [name for name in files.list_dir("/logs") if name.startswith("orders-")]


def stays(node: DataPath, files: SimulatedDisk, known: ClusterImage, removed: Collection[TopicId]) -> None:
    """The directory is there long after the look for gone replicas."""
    node.broker.replicas.remove_gone(known, removed)
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]


def is_removed(node: DataPath, files: SimulatedDisk, known: ClusterImage, removed: Collection[TopicId]) -> None:
    """The directory is renamed at once, and removed after a minute."""
    node.broker.replicas.remove_gone(known, removed)
    node.clock.advance(0)
    (name,) = directories(files)
    assert name.endswith("-delete")
    node.clock.advance(60_000)
    assert directories(files) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_gone_replica_that_others_have_is_removed(is_clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    node, files = restarted(is_clean=is_clean)
    is_removed(node, files, image(2, 3), ())
    assert sum("event=moved-replicas-removed partitions=1 first=orders-0" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "known", [ClusterImage(), image(2, 3, topic_id=OTHER_ID)], ids=["no such topic", "another topic of its name"]
)
def test_a_directory_whose_topic_is_not_known_stays(
    known: ClusterImage, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata may be another cluster's, or lost."""
    node, files = restarted(is_clean=is_clean)
    stays(node, files, known, ())
    assert sum("event=directories-unclaimed partitions=1 first=orders-0" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "known",
    [ClusterImage(), image(2, 3, topic_id=OTHER_ID), image(BROKER, topic_id=OTHER_ID)],
    ids=["no such topic", "another topic of its name", "another topic of its name, not open"],
)
def test_a_directory_whose_topics_deletion_is_proven_is_removed(
    known: ClusterImage, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    node, files = restarted(is_clean=is_clean)
    is_removed(node, files, known, {OTHER_ID, topic_id_of("orders")})
    assert sum("event=deleted-replicas-removed partitions=1 first=orders-0:" in line for line in caplog.messages) == 1
    assert not any("event=directories-unclaimed" in line for line in caplog.messages)


def test_a_replica_of_a_topic_that_is_there_stays_whatever_is_said_to_be_removed() -> None:
    node, files = restarted(is_clean=False)
    stays(node, files, image(BROKER, 2), {topic_id_of("orders")})


def test_a_directory_without_a_topic_id_stays(caplog: pytest.LogCaptureFixture) -> None:
    node, files = restarted(is_clean=False)
    files.unlink("/logs/orders-0/partition.metadata")
    stays(node, files, ClusterImage(), {topic_id_of("orders")})
    assert sum("event=directories-unclaimed partitions=1 first=orders-0" in line for line in caplog.messages) == 1


def test_a_line_about_gone_replicas_names_five_directories_at_most(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    for number in range(7):
        node.create(partition=number)
    node = DataPath("/logs", files=files)
    node.broker.replicas.remove_gone(ClusterImage(), {topic_id_of("orders")})
    (line,) = (line for line in caplog.messages if "event=deleted-replicas-removed" in line)
    assert "partitions=7 first=orders-0,orders-1,orders-2,orders-3,orders-4: " in line


def test_a_replica_of_this_broker_is_not_gone_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    node, files = restarted(is_clean=False)
    node.create(topic_id=topic_id_of("orders"))
    stays(node, files, image(BROKER, 2), ())
    assert node.values("orders") == [b"a"]
    assert not any("event=moved" in line or "event=directories" in line for line in caplog.messages)


def test_a_gone_replica_that_comes_back_begins_anew() -> None:
    node, files = restarted(is_clean=False)
    node.broker.replicas.remove_gone(image(2, 3), ())
    node.clock.advance(0)
    assert node.create().log.log_end_offset == 0
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]
