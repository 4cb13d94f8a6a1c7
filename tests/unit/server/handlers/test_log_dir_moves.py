"""AlterReplicaLogDirs (34): a replica can only be moved to the directory where it is."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tailrace.testing.admin_path import AdminPath
from tailrace.testing.disk import SimulatedDisk


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "partition", "error"),
    [
        ("/data", 0, ErrorCode.NONE),
        ("/data", 7, ErrorCode.REPLICA_NOT_AVAILABLE),
        ("/elsewhere", 0, ErrorCode.LOG_DIR_NOT_FOUND),
    ],
)
def test_a_replica_is_only_moved_to_where_it_is(version: int, path: str, partition: int, error: ErrorCode) -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders")
    topic = AlterReplicaLogDirTopic(name="orders", partitions=(partition,))
    request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=path, topics=(topic,)),))
    (told,) = node.send(request, version).response.results
    assert [(each.partition_index, each.error_code) for each in told.partitions] == [(partition, error)]
