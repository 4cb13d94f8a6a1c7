"""The progress of a group that splits a partition by key, as `groups describe` shows it (KIP-X)."""

import json
import threading
from typing import Any
from uuid import uuid4

import pytest

from tailrace.client.blocking import (
    Admin,
    Consumer,
    KeyedConsumer,
    OffsetAndMetadata,
    Producer,
    Rectangle,
    TopicPartition,
)
from tailrace.client.group.running_notes import RunningNote
from tailrace.client.keyed import handler_work
from tailrace.model.key_ranges import HASH_SPACE, hash_of
from tailrace.testing import Cluster
from testkit.programs.commands import run_command
from testkit.programs.waiting import wait_until

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
    assert head.split()[-7:] == ["VERDICT", "AHEAD", "RANGES", "OLDEST-GAP", "GAP-MS", "EPOCH", "FIRST-KEY"]
    cells = dict(zip(head.split(), row.split(), strict=True))
    assert (cells["CURRENT-OFFSET"], cells["LAG"]) == ("2", "18")
    assert (cells["AHEAD"], cells["RANGES"], cells["OLDEST-GAP"]) == ("4", "1/4096", f"{HALF}-{HASH_SPACE - 1}")
    assert int(cells["GAP-MS"]) >= 0
    (found,) = json.loads(run_command(("groups", "describe", shared[0], "-o", "json", *where), capfdbinary).out)
    assert (found["AHEAD"], found["OLDEST-GAP"]) == (4, f"{HALF}-{HASH_SPACE - 1}")
    not_done = next(n for n in range(2, 20) if n > 9 or hash_of(b"%d" % n, n) >= HALF)
    assert found["FIRST-KEY"] == str(not_done)


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
    assert head.split()[-4:] == ["VERDICT", "SLOWEST-OF", "EPOCH", "FIRST-KEY"]
    assert [row.split()[-3] == f"{name}-0" for row in rows] == [True, False]
    found = json.loads(run_command(("groups", "describe", name, "-o", "json", *where), capfdbinary).out)
    assert [row["SLOWEST-OF"] for row in found] == [f"{name}-0", None]


def test_describe_shows_the_owner_of_a_slot_and_the_key_that_its_handler_works_on(
    tailrace_cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers hold the first record of each key. The first slot has an offset from the note of its handler alone."""
    monkeypatch.setattr(handler_work, "LONG_MS", 0)
    name = f"working-{uuid4()}"
    keys = [b"key-%d" % number for number in range(40)]
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(name, b"value", key=key, partition=0)
        producer.flush()
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    is_over = threading.Event()
    consumer = KeyedConsumer(
        tailrace_cluster.bootstrap_servers, group=name, topics=[name], slots=4, auto_commit_interval_ms=20
    )
    run = threading.Thread(target=consumer.run, args=(lambda record: is_over.wait(60),), kwargs={"concurrency": 40})
    run.start()
    described: list[dict[str, Any]] = []

    def are_seen() -> bool:
        result = run_command(("groups", "describe", name, "-o", "json", *where), capfdbinary)
        described[:] = json.loads(result.out) if not result.code else []  # there is no group at first
        return bool(described) and all(row["RUNNING-KEY"] for row in described)

    try:
        wait_until(are_seen, lambda: f"a running handler in each slot: {described}")
        head, *_ = run_command(("groups", "describe", name, *where), capfdbinary).out.splitlines()
    finally:
        is_over.set()
        consumer.close()
        run.join()
    assert head.split()[-5:] == ["SLOWEST-OF", "EPOCH", "FIRST-KEY", "RUNNING-MS", "RUNNING-KEY"]
    first = {slot: next(key for key in keys if hash_of(key, 0) * 4 // HASH_SPACE == slot) for slot in range(4)}
    assert {row["PARTITION"]: row["RUNNING-KEY"] for row in described} == {n: key.decode() for n, key in first.items()}
    assert [row["FIRST-KEY"] for row in described] == [row["RUNNING-KEY"] for row in described]
    assert {row["EPOCH"] for row in described} == {described[0]["EPOCH"]}
    assert described[0]["EPOCH"] >= 1
    assert all(0 <= row["RUNNING-MS"] < 120_000 for row in described)
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        left = admin.group_offsets(name)
    assert {at.metadata for at in left.values()} == {""}, "the note goes with its member"


def test_a_note_that_no_owner_has_written_is_not_shown(
    tailrace_cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = f"noted-{uuid4()}"
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for key in (b"a", b"b", bytes(range(128, 228)), b""):
            producer.send(name, b"value", key=key, partition=0)
        producer.flush()
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    forged = RunningNote(1, 5, "another-member").text()
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.commit_offsets(name, {TopicPartition(name, 0): OffsetAndMetadata(0, metadata=forged)})
    (row,) = json.loads(run_command(("groups", "describe", name, "-o", "json", *where), capfdbinary).out)
    assert (row["RUNNING-MS"], row["RUNNING-KEY"], row["FIRST-KEY"]) == (None, None, "a")
