"""Clients that change a cluster's metadata while its nodes die, and the verdict at the end.

No acknowledged change is lost, and all nodes agree. The time without a possible change is measured, and is no verdict.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from crash.access import client_settings
from crash.program import DEADLINE_S
from crash.quorum.metadata_changes import SETTING, Expectation, TopicState
from crash.worker import Worker
from tailrace.client.blocking import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

NODES = 3
CLIENTS = {"own-a": "own", "own-b": "own", "theirs": "librdkafka"}
CONFIG = {
    "metadata.log.max.record.bytes.between.snapshots": "20000",
    "metadata.snapshot.min.changed_records.ratio": "0",
    "metadata.log.segment.bytes": "100000",
    "metadata.start.offset.lag.time.max.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "max.partitions.per.node": "100000",
}
"""Snapshots come often and logs are cut short, so that deaths meet them in every state."""
_APPLIES_WITHIN_S = 60.0


def controller_of(cluster: Cluster) -> int:
    """The running node that leads the quorum."""
    leader = 0

    def is_known() -> bool:
        nonlocal leader
        try:
            with Admin(client_settings(cluster.running_servers), bootstrap_timeout_ms=2_000) as admin:
                leader = int(admin.describe_quorum().leader_id)
        except KafkaError:
            return False
        return leader > 0 and cluster.is_running(leader)

    wait_until(is_known, "the quorum has a leader", deadline_s=DEADLINE_S)
    return leader


def kill_one(cluster: Cluster, chance: random.Random) -> None:
    """A node dies, every second time the node that leads, and comes back after a while."""
    node = controller_of(cluster) if chance.random() < 0.5 else chance.choice(cluster.node_ids)
    cluster.kill(node)
    time.sleep(chance.choice((0, 0.2, 1, 3)))
    cluster.start(node)


@contextmanager
def working(cluster: Cluster, directory: Path) -> Iterator[Sequence[Worker]]:
    with ExitStack() as stack:
        workers = []
        for name, client in CLIENTS.items():
            worker = Worker(name, directory, "crash.quorum.metadata_load", client, name, cluster.bootstrap_servers)
            stack.callback(worker.kill)
            workers.append(worker)
        yield workers


def wait_for_progress(workers: Sequence[Worker], changes: int) -> None:
    """Wait until every client has got so many changes through."""
    wanted = {worker.name: worker.done + changes for worker in workers}
    deadline = time.monotonic() + DEADLINE_S
    while late := [worker.name for worker in workers if worker.done < wanted[worker.name]]:
        for worker in workers:
            worker.check()
        assert time.monotonic() < deadline, f"the cluster does not get on; nothing done by {late}"
        time.sleep(0.005)


def fail_over_times(changes: Sequence[Mapping[str, Any]], deaths_s: Sequence[float]) -> list[float]:
    """Per death, how long it was until a change was acknowledged that was asked for afterwards, in seconds."""
    answers = sorted((change["asked_s"], change["answered_s"]) for change in changes if change["acknowledged"])
    times = []
    for death_s in deaths_s:
        later = [answered_s for asked_s, answered_s in answers if asked_s >= death_s]
        if later:
            times.append(min(later) - death_s)
    return sorted(times)


def told_by(address: str) -> dict[str, TopicState]:
    """The topics of the load, as one broker describes them."""
    with Admin(client_settings(address)) as admin:
        names = [topic.name for topic in admin.list_topics() if not topic.name.startswith("__")]
        settings = admin.describe_topic_configs(names) if names else {}
        described = {topic.name: len(topic.partitions) for topic in admin.describe_topics(names)} if names else {}
    return {
        name: TopicState(
            described[name],
            next((entry.value for entry in settings[name] if entry.name == SETTING and entry.source != 5), None),
        )
        for name in names
    }


def broken_by(cluster: Cluster, node: int, expectation: Expectation) -> list[str]:
    """Promises that are broken by this node's answers. It is asked again for a while: it gets a change a moment after
    the node that answered for it, and unanswered changes may still happen between two requests. A lost change stays
    lost."""
    deadline = time.monotonic() + _APPLIES_WITHIN_S
    while True:
        try:
            faults = expectation.broken(told_by(cluster.address(node)))
        except KafkaError as fault:
            if fault.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            faults = [f"a topic that is listed is not there: {fault}"]
        if not faults or time.monotonic() > deadline:
            return [f"node {node}: {fault}" for fault in faults]
        time.sleep(0.2)


def put_to_the_test(
    directory: Path,
    chance: random.Random,
    goes_on: Callable[[int], bool],
    die: Callable[[Cluster, random.Random], None],
    *,
    config: Mapping[str, str] | None = None,
    prepare: Callable[[Cluster], None] = lambda _: None,
) -> tuple[list[str], str]:
    """Every promise that was broken, and figures. `die` has nodes die and come back, as long as `goes_on(deaths)`.

    `config` has more settings of the nodes; `prepare` is called before clients connect.
    """
    deaths_s: list[float] = []
    expectation = Expectation()
    with Cluster(
        NODES, racks=["a", "b", "c"], config={**CONFIG, **(config or {})}, directory=directory / "cluster"
    ) as cluster:
        prepare(cluster)
        with working(cluster, directory) as workers:
            wait_for_progress(workers, 3)
            while goes_on(len(deaths_s)):
                deaths_s.append(time.monotonic())
                die(cluster, chance)
                wait_for_progress(workers, chance.randrange(1, 6))
            for worker in workers:
                worker.ask_to_end()
                worker.wait()
            changes = [change for worker in workers for change in worker.events()]
            for worker in workers:
                expectation.add(worker.events())
        faults: list[str] = []
        for node in cluster.node_ids:
            faults += broken_by(cluster, node, expectation)
    return faults, figures(expectation, fail_over_times(changes, deaths_s), len(deaths_s))


def figures(expectation: Expectation, times_s: Sequence[float], deaths: int) -> str:
    def at(share: float) -> str:
        return f"{times_s[min(len(times_s) - 1, int(share * len(times_s)))]:.2f} s" if times_s else "-"

    return (
        f"{deaths} deaths, {expectation.acknowledged} changes acknowledged, {expectation.unknown} unknown,"
        f" {len(expectation.possible)} topics; until the next acknowledgement: median {at(0.5)}, p99 {at(0.99)},"
        f" longest {at(1)}"
    )
