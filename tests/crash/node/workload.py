"""Mixed load on a node that dies again and again: the clients, each a process of its own, and the verdict at the end.

Producers with and without numbers, a compacted topic, a group that commits, an administrator (`crash.node.load`);
`testkit.verdicts.node_verdict` judges their answers. A node dies while more than a hundred produce requests are on the
wire.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crash.node import load
from crash.program import DEADLINE_S
from crash.worker import Worker
from tailrace.client.blocking import Admin, NewTopic
from tailrace.testing import Cluster
from testkit.verdicts.node_verdict import AtTheEnd, figures, node_faults
from testkit.verdicts.replica_history import ReplicaHistory

IN_FLIGHT = 100
WORKERS = ("idempotent", "plain", "own", "compacted", "group", "admin")
CONFIG = {
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}
SMALL_SEGMENTS = {"segment.bytes": "65536", "file.delete.delay.ms": "100"}
TOPICS = (
    NewTopic(name=load.TOPIC, partitions=load.PARTITIONS, configs=SMALL_SEGMENTS),
    NewTopic(
        name=load.COMPACTED,
        partitions=1,
        configs={**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    ),
    NewTopic(name=load.SETTINGS_TOPIC, partitions=1),
)


@contextmanager
def working(cluster: Cluster, directory: Path) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        workers = {}
        for role in WORKERS:
            workers[role] = Worker(role, directory, "crash.node.load", role, cluster.bootstrap_servers)
            stack.callback(workers[role].kill)
        yield workers


def wait_for_load(workers: Mapping[str, Worker], acknowledgements: int) -> None:
    """Wait until so many more records are acknowledged, every client has done something, and enough is in flight."""
    before = {role: worker.done for role, worker in workers.items()}
    deadline = time.monotonic() + DEADLINE_S
    producers = workers["idempotent"]
    while (
        producers.done < before["idempotent"] + acknowledgements
        or producers.in_flight < IN_FLIGHT
        or any(worker.done == before[role] for role, worker in workers.items())
    ):
        for worker in workers.values():
            worker.check()
        idle = [role for role, worker in workers.items() if worker.done == before[role]]
        assert time.monotonic() < deadline, f"the node does not get on; nothing done by {idle}"
        time.sleep(0.002)


def at_the_end(servers: str) -> AtTheEnd:
    with Admin(servers) as admin:
        topics = {topic.name: len(topic.partitions) for topic in admin.list_topics()}
        committed = admin.group_offsets(load.GROUP)
        settings = admin.describe_configs(2, load.SETTINGS_TOPIC)
    return AtTheEnd(
        topics=topics,
        committed={place.partition: found.offset for place, found in committed.items()},
        setting=next(int(entry.value or 0) for entry in settings if entry.name == "delete.retention.ms"),
    )


def put_to_the_test(
    directory: Path, chance: random.Random, deaths: int, die_and_start: Callable[[Cluster, random.Random], int]
) -> tuple[list[str], str]:
    """Every promise that a node broke which died so often under load, and how much was put to the test.

    `die_and_start` has the node die and starts it again; it says how many deaths that were.
    """
    history = ReplicaHistory()
    with Cluster(brokers=1, config=CONFIG, directory=directory / "cluster") as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(TOPICS)
        with working(cluster, directory) as workers:
            died = 0
            while died < deaths:
                wait_for_load(workers, chance.randrange(50, 3000))
                died += die_and_start(cluster, chance)
            for worker in workers.values():
                worker.ask_to_end()
            for worker in workers.values():
                worker.wait()
                history.add(worker.events())
        die_and_start(cluster, chance)
        reader = Worker("read", directory, "crash.node.load", "read", cluster.bootstrap_servers)
        try:
            reader.wait()
        finally:
            reader.kill()
        history.add(reader.events())
        end = at_the_end(cluster.bootstrap_servers)
    faults = node_faults(
        history, end, checker=load.CHECKER, compacted=load.COMPACTED, careful="ico", key_of=load.key_of
    )
    return faults, figures(history, died)
