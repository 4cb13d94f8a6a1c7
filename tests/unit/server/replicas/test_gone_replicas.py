"""Replicas that were moved away or deleted while their node was down, on a simulated disk."""

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


def restarted(files: SimulatedDisk, *, is_clean: bool) -> DataPath:
    """A node with one replica of `orders`, after a stop or a kill."""
    node = DataPath("/logs", files=files)
    node.create()
    node.produce("orders", b"a")
    if is_clean:
        node.table.close()
    return DataPath("/logs", files=files)


def directories(files: SimulatedDisk) -> list[str]:
    return [name for name in files.list_dir("/logs") if name.startswith("orders-")]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_replica_that_others_have_is_removed(is_clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedDisk()
    node = restarted(files, is_clean=is_clean)
    node.broker.replicas.remove_gone(image(2, 3), ())
    node.clock.advance(0)
    (name,) = directories(files)
    assert name.endswith("-delete")
    node.clock.advance(60_000)
    assert directories(files) == []
    assert sum("event=moved-replicas-removed partitions=1 first=orders-0" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "known", [ClusterImage(), image(2, 3, topic_id=OTHER_ID)], ids=["no such topic", "another topic of its name"]
)
def test_a_directory_whose_topic_is_not_known_stays(
    known: ClusterImage, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata may be another cluster's, or lost."""
    files = SimulatedDisk()
    node = restarted(files, is_clean=is_clean)
    node.broker.replicas.remove_gone(known, ())
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]
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
    files = SimulatedDisk()
    node = restarted(files, is_clean=is_clean)
    node.broker.replicas.remove_gone(known, {OTHER_ID, topic_id_of("orders")})
    node.clock.advance(0)
    (name,) = directories(files)
    assert name.endswith("-delete")
    node.clock.advance(60_000)
    assert directories(files) == []
    assert sum("event=deleted-replicas-removed partitions=1 first=orders-0:" in line for line in caplog.messages) == 1
    assert not any("event=directories-unclaimed" in line for line in caplog.messages)


def test_a_replica_of_a_topic_that_is_there_stays_whatever_is_said_to_be_removed() -> None:
    files = SimulatedDisk()
    node = restarted(files, is_clean=False)
    node.broker.replicas.remove_gone(image(BROKER, 2), {topic_id_of("orders")})
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]


def test_a_directory_without_a_topic_id_stays(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedDisk()
    node = restarted(files, is_clean=False)
    files.unlink("/logs/orders-0/partition.metadata")
    node.broker.replicas.remove_gone(ClusterImage(), {topic_id_of("orders")})
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]
    assert sum("event=directories-unclaimed partitions=1 first=orders-0" in line for line in caplog.messages) == 1


def test_a_line_names_five_directories_at_most(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    for number in range(7):
        node.create(partition=number)
    node = DataPath("/logs", files=files)
    node.broker.replicas.remove_gone(ClusterImage(), {topic_id_of("orders")})
    (line,) = (line for line in caplog.messages if "event=deleted-replicas-removed" in line)
    assert "partitions=7 first=orders-0,orders-1,orders-2,orders-3,orders-4: " in line


def test_a_replica_of_this_broker_stays(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedDisk()
    node = restarted(files, is_clean=False)
    node.create(topic_id=topic_id_of("orders"))
    node.broker.replicas.remove_gone(image(BROKER, 2), ())
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]
    assert node.values("orders") == [b"a"]
    assert not any("event=moved" in line or "event=directories" in line for line in caplog.messages)


def test_a_replica_that_comes_back_begins_anew() -> None:
    files = SimulatedDisk()
    node = restarted(files, is_clean=False)
    node.broker.replicas.remove_gone(image(2, 3), ())
    node.clock.advance(0)
    assert node.create().log.log_end_offset == 0
    node.clock.advance(120_000)
    assert directories(files) == ["orders-0"]
