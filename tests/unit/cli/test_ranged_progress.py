"""The progress of a group that splits a partition by key, as `groups describe` shows it (KIP-X)."""

import json
from uuid import uuid4

import pytest

from tailrace.client.blocking import Consumer, Producer, Rectangle, TopicPartition
from tailrace.model.key_ranges import HASH_SPACE, hash_of
from tailrace.testing import Cluster
from testkit.programs.commands import run_command

HALF = HASH_SPACE // 2


@pytest.fixture
def shared(tailrace_cluster: Cluster) -> tuple[str, TopicPartition]:
    """A group that has half of the hashes at offset 10 and the other half at 2, of 20 records."""
    name = f"shared-{uuid4()}"
    partition = TopicPartition(name, 0)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(name, b"value", key=b"%d" % number)
        producer.flush()
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit(ranges={partition: [Rectangle(0, 9, 0, HALF - 1), Rectangle(0, 1, HALF, HASH_SPACE - 1)]})
    return name, partition


def test_describe_shows_what_is_done_beyond_the_offset(
    shared: tuple[str, TopicPartition], tailrace_cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    head, row = run_command(("groups", "describe", shared[0], *where), capfdbinary).out.splitlines()
    assert head.split()[-5:] == ["VERDICT", "AHEAD", "RANGES", "OLDEST-GAP", "GAP-MS"]
    cells = dict(zip(head.split(), row.split(), strict=True))
    assert (cells["CURRENT-OFFSET"], cells["LAG"]) == ("2", "18")
    assert (cells["AHEAD"], cells["RANGES"], cells["OLDEST-GAP"]) == ("4", "1/4096", f"{HALF}-{HASH_SPACE - 1}")
    assert int(cells["GAP-MS"]) >= 0
    (found,) = json.loads(run_command(("groups", "describe", shared[0], "-o", "json", *where), capfdbinary).out)
    assert (found["AHEAD"], found["OLDEST-GAP"]) == (4, f"{HALF}-{HASH_SPACE - 1}")


def test_the_lag_of_a_view_partition_counts_its_own_records(
    tailrace_cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """16 view partitions share 400 records; at offset 100 each, the group has 300 records left in all."""
    name = f"counted-{uuid4()}"
    view = f"{name}.shared-16"
    keys = [b"%d" % number for number in range(400)]
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(name, b"value", key=key, partition=0)
        producer.flush()
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(view, number): 100 for number in range(16)})
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    described = run_command(("groups", "describe", name, "-o", "json", *where), capfdbinary)
    lags = {row["PARTITION"]: row["LAG"] for row in json.loads(described.out)}
    left = [hash_of(key, 0) * 16 // HASH_SPACE for key in keys[100:]]
    assert lags == {number: left.count(number) for number in range(16)}
    assert "estimated" not in described.err


def test_describe_names_the_slowest_view_partition_of_each_partition(
    tailrace_cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """View partitions 0 and 1 share 40 records of partition 0; the group has read the records of view partition 1."""
    name = f"viewed-{uuid4()}"
    view = f"{name}.shared-2"
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(40):
            producer.send(name, b"value", key=b"%d" % number, partition=0)
        producer.flush()
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(view, 0): 3, TopicPartition(view, 1): 40})
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    head, *rows = run_command(("groups", "describe", name, *where), capfdbinary).out.splitlines()
    assert head.split()[-2:] == ["VERDICT", "SLOWEST-OF"]
    assert [row.split()[-1] == f"{name}-0" for row in rows] == [True, False]
    found = json.loads(run_command(("groups", "describe", name, "-o", "json", *where), capfdbinary).out)
    assert [row["SLOWEST-OF"] for row in found] == [f"{name}-0", None]
