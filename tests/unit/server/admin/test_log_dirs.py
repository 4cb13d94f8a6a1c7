"""DescribeLogDirs (35): the sizes of the logs on the disk of this node."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from tailrace.testing.disk import TOTAL_SPACE, SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.ports import LedElsewhere


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders", partitions=2)
    node.create_topics("empty")
    node.produce("orders", b"value")
    return node


def describe(
    node: AdminPath, *topics: DescribableLogDirTopic, everything: bool = False, version: int = 4
) -> DescribeLogDirsResult:
    response = node.send(DescribeLogDirsRequest(topics=None if everything else topics), version).response
    assert response.error_code == 0
    (result,) = response.results
    assert isinstance(result, DescribeLogDirsResult)
    assert (result.error_code, result.log_dir) == (0, "/data")
    return result


@pytest.mark.parametrize("version", range(1, 5))
def test_null_asks_for_every_partition_with_its_size(node: AdminPath, version: int) -> None:
    result = describe(node, everything=True, version=version)
    sizes = {
        (topic.name, each.partition_index): each.partition_size for topic in result.topics for each in topic.partitions
    }
    written = node.table.get("orders", 0).log.size_bytes
    assert written > 0
    assert sizes == {("orders", 0): written, ("orders", 1): 0, ("empty", 0): 0}
    assert {(each.offset_lag, each.is_future_key) for topic in result.topics for each in topic.partitions} == {
        (0, False)
    }


def test_only_named_partitions_that_are_here_are_described_once(node: AdminPath) -> None:
    asked = DescribableLogDirTopic(topic="orders", partitions=(1, 1, 7))
    missing = DescribableLogDirTopic(topic="missing", partitions=(0,))
    (topic,) = describe(node, asked, missing, asked).topics
    assert (topic.name, [each.partition_index for each in topic.partitions]) == ("orders", [1])
    assert describe(node).topics == ()


@pytest.mark.parametrize(("version", "is_told"), [(3, False), (4, True)])
def test_the_size_of_the_disk_is_given_from_version_4_on(node: AdminPath, version: int, is_told: bool) -> None:
    result = describe(node, everything=True, version=version)
    disk = node.files
    assert isinstance(disk, SimulatedDisk)
    expected = (TOTAL_SPACE, disk.free_space) if is_told else (-1, -1)
    assert (result.total_bytes, result.usable_bytes) == expected


def test_log_ends_are_in_the_answer_on_request(node: AdminPath) -> None:
    orders = DescribableLogDirTopic(topic="orders", partitions=(0, 1))
    (plain,) = describe(node, orders).topics
    assert {(each.good_end_offset, each.acknowledged_end_offset, each.log_fault) for each in plain.partitions} == {
        (-1, -1, "")
    }
    node.table.get("orders", 0).log.condemn("bytes are others", offset=0)
    request = DescribeLogDirsRequest(topics=(orders,), wants_log_ends=True)
    response = node.send(request, 4).response
    assert response.has_log_ends
    (topic,) = response.results[0].topics
    assert [(each.good_end_offset, each.acknowledged_end_offset, each.log_fault) for each in topic.partitions] == [
        (0, 1, "bytes are others"),
        (0, 0, ""),
    ]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "partition", "error"),
    [
        ("/data", 0, ErrorCode.NONE),
        ("/data", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("/elsewhere", 0, ErrorCode.LOG_DIR_NOT_FOUND),
    ],
)
def test_a_replica_is_only_moved_to_where_it_is(version: int, path: str, partition: int, error: ErrorCode) -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders")
    assert move(node, path, partition, version=version) == error


def move(node: AdminPath, path: str, partition: int, *, version: int = 2) -> int:
    """The code for moving a partition of `orders` to this directory."""
    topic = AlterReplicaLogDirTopic(name="orders", partitions=(partition,))
    request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=path, topics=(topic,)),))
    (result,) = node.send(request, version).response.results
    ((index, code),) = ((each.partition_index, each.error_code) for each in result.partitions)
    assert index == partition
    return int(code)


def test_a_partition_that_others_have_has_no_replica_here() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.table.leaders = LedElsewhere()
    assert move(node, "/data", 0) == ErrorCode.REPLICA_NOT_AVAILABLE


def test_a_replica_whose_log_cannot_be_opened_is_a_storage_error() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    node.produce("orders", b"a")
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit("/data/orders-0/00000000000000000000.log", 65)
    assert move(AdminPath("/data", files=files, start=2), "/data", 0) == ErrorCode.KAFKA_STORAGE_ERROR
