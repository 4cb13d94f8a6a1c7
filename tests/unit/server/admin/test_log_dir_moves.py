"""AlterReplicaLogDirs (34): a replica can only be moved to the directory where it is."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, TopicId
from tailrace.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tailrace.server.partitions.table import KnownLeader
from tailrace.testing.disk import SimulatedDisk
from testkit.admin_path import AdminPath


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
    (told,) = node.send(request, version).response.results
    ((index, code),) = ((each.partition_index, each.error_code) for each in told.partitions)
    assert index == partition
    return int(code)


class Elsewhere:
    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        return KnownLeader(BrokerId(2), 5)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return None


def test_a_partition_that_others_have_has_no_replica_here() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.table.leaders = Elsewhere()
    assert move(node, "/data", 0) == ErrorCode.REPLICA_NOT_AVAILABLE


def test_a_replica_whose_log_cannot_be_opened_is_told_so() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    node.produce("orders", b"a")
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit("/data/orders-0/00000000000000000000.log", 65)
    assert move(AdminPath("/data", files=files, start=2), "/data", 0) == ErrorCode.KAFKA_STORAGE_ERROR
