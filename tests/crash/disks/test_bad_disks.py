"""A bad disk of three: full, failing or hung. Writes go on without it, nothing is lost, and the node comes back.

BAD_DISKS in the environment says how many faults of each kind, BAD_DISK_KINDS which; `make soak` runs more.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.disks.orders import obeying
from crash.networks.racked_cluster import nodes_in
from crash.replicas.replicated_load import PARTITIONS, RESUMES_WITHIN_S, TOPIC, ReplicatedLoad, wait_until_whole
from tailrace.testing import Cluster

FAULTS = int(os.environ.get("BAD_DISKS", "1"))
KINDS = os.environ.get("BAD_DISK_KINDS", "hung full eio").split()
SIGNS = {"hung": "cause=flush-hangs", "full": "No space left on device", "eio": "Input/output error"}
"""The lines of a log that tell that a disk was so."""
FAULT_S = 0.5
"""A record that is acknowledged later than this after the begin of a fault was written in spite of it."""


def resumed_after(times: Sequence[Sequence[float]], began: float) -> float:
    """The time from the begin of a fault until each partition took writes again, by its times in order."""
    return max(each[bisect_right(each, began + FAULT_S)] for each in times) - began


def check(load: ReplicatedLoad, begins: list[tuple[str, int, float]]) -> None:
    acked = load.acknowledged()
    load.read_all(acked)
    times = [sorted(at for at, partition, *_ in acked if partition == number) for number in range(PARTITIONS)]
    for fault, node, began in begins:
        print(f"{fault} on node {node}: writes resumed after {resumed_after(times, began):.1f} s")  # noqa: T201
    print(f"{len(acked)} acknowledged through {len(begins)} bad disks")  # noqa: T201


def run_faults(
    cluster: Cluster, history: Path, begin: Callable[[str, int], None], end: Callable[[str, int], None], *faults: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(
        RESUMES_WITHIN_S
    )
    begins: list[tuple[str, int, float]] = []
    load = ReplicatedLoad(cluster.bootstrap_servers, history)
    with load.running():
        load.wait_for_each(time.monotonic())
        for fault in faults * FAULTS:
            node, began = random.choice(cluster.broker_ids), time.monotonic()
            begin(fault, node)
            begins.append((fault, node, began))
            load.wait_for_each(began + FAULT_S)
            end(fault, node)
            wait_until_whole(cluster.bootstrap_servers)
            load.wait_for_each(time.monotonic())
    check(load, begins)


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_writes_go_on_beside_one_disk_that_is_full_fails_or_hangs(tmp_path: Path) -> None:
    directory, orders = tmp_path / "cluster", tmp_path / "orders"

    def begin(fault: str, node: int) -> None:
        (orders / f"node-{node}.new").write_text(fault)
        (orders / f"node-{node}.new").rename(orders / f"node-{node}")

    def end(_: str, node: int) -> None:
        (orders / f"node-{node}").unlink()

    with obeying(orders, directory), nodes_in(None), Cluster(brokers=3, directory=directory) as cluster:
        run_faults(cluster, tmp_path / "history", begin, end, *KINDS)
        logs = "".join(map(cluster.log_text, cluster.node_ids))
    unnoticed = [kind for kind in KINDS if SIGNS[kind] not in logs]
    assert not unnoticed, "the disks were not as they should have been"


IDLE_S = 1.0
"""More than a fetch waits: by then a replica that is fetched on has shown its leader that it is caught up."""
NEVER_MS = "600000"


def written(producer: confluent_kafka.Producer, topic: str) -> float:
    """Writes one record with acks=all. Returns the seconds that this took."""
    began = time.monotonic()
    errors: list[object] = []
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    left = producer.flush(RESUMES_WITHIN_S)
    assert (left, errors) == (0, [None]), f"{topic} takes no write"
    return time.monotonic() - began


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_an_idle_partition_takes_writes_beside_a_disk_that_hangs(tmp_path: Path) -> None:
    """The leader has nothing else that the bad node could store: that node could ask it for ever, caught up.

    Leaders drop no replica here by themselves: a replica that is put back in sync stops acks=all for good.
    """
    directory, orders = tmp_path / "cluster", tmp_path / "orders"
    settings = {"replica.lag.time.max.ms": NEVER_MS}
    with obeying(orders, directory), nodes_in(None), Cluster(3, directory=directory, config=settings) as cluster:
        servers = cluster.bootstrap_servers
        bad, first, second = random.sample(cluster.broker_ids, 3)
        replicas = {"busy": [first, second, bad], "idle": [second, first, bad]}
        two = {"min.insync.replicas": "2"}
        topics = [NewTopic(name, 1, replica_assignment=[each], config=two) for name, each in replicas.items()]
        admin = AdminClient({"bootstrap.servers": servers})
        for created in admin.create_topics(topics).values():
            created.result(RESUMES_WITHIN_S)
        producer = confluent_kafka.Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
        for name in replicas:
            written(producer, name)
            wait_until_whole(servers, name)
        (orders / f"node-{bad}").write_text("hung")
        print(f"node {bad} hangs: a busy partition is written in {written(producer, 'busy'):.1f} s")  # noqa: T201
        left = time.monotonic()
        while time.monotonic() < left + IDLE_S:
            written(producer, "busy")
        print(f"and an idle partition in {written(producer, 'idle'):.1f} s")  # noqa: T201
        (orders / f"node-{bad}").unlink()
        for name in replicas:
            wait_until_whole(servers, name)


RESERVE_BYTES = 4 << 20
SIZE = "48m"


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of its own in this directory. Skips the test where it cannot be mounted."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tailrace-test", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.strip()}; run as root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path, free_bytes: int) -> None:
    """Leave so much free space."""
    with (directory / "filler").open("wb", buffering=0) as filler:
        while (spare_bytes := shutil.disk_usage(directory).free - free_bytes) > 0:
            try:
                filler.write(bytes(min(spare_bytes, 1 << 20)))
            except OSError:
                return


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="mounting takes root, on Linux")
def test_writes_go_on_beside_one_small_disk_that_is_filled(tmp_path: Path) -> None:
    """To the last byte, and to less than the reserve."""
    settings = {"log.dir.reserve.bytes": str(RESERVE_BYTES), "log.segment.bytes": str(1 << 20)}
    cluster = Cluster(brokers=3, directory=tmp_path / "cluster", config=settings)
    cluster.prepare()

    def begin(fault: str, node: int) -> None:
        fill(cluster.data_dir(node), 0 if fault == "full" else RESERVE_BYTES // 2)

    def end(_: str, node: int) -> None:
        (cluster.data_dir(node) / "filler").unlink()

    with ExitStack() as stack:
        for node in cluster.node_ids:
            stack.enter_context(small_disk(cluster.data_dir(node)))
        with cluster:
            run_faults(cluster, tmp_path / "history", begin, end, "full", "short of space")
