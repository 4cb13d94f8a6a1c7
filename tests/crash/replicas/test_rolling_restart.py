"""Three nodes are restarted one after the other under acks=all load: no produce fails, and no record is there twice.

Each stop hands the leaderships over first; the next node stops when all replicas are in sync again, as an operator has
it. ROLLING_RESTARTS in the environment says how many rounds; `make soak` runs twenty.
"""

import os
from pathlib import Path

import pytest

from crash.replicas.two_loads import TOPICS, TwoLoads
from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

ROUNDS = int(os.environ.get("ROLLING_RESTARTS", "1"))


def all_are_in_sync(servers: str) -> bool:
    try:
        with Admin(servers) as admin:
            topics = admin.describe_topics(TOPICS)
    except KafkaError:
        return False  # the node that was asked has only just come back
    return all(len(partition.in_sync_replicas) == 3 for topic in topics for partition in topic.partitions)


@pytest.mark.crash
@pytest.mark.in_turn(0)
@pytest.mark.timeout(900)
def test_no_produce_fails_while_every_node_is_restarted(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path / "cluster") as cluster:
        servers = cluster.bootstrap_servers
        loads = TwoLoads(cluster, tmp_path / "history")
        with loads.running():
            for _ in range(ROUNDS):
                for node in cluster.node_ids:
                    cluster.restart(node)
                    wait_until(lambda: all_are_in_sync(servers), f"all are in sync after the restart of node {node}")
        figures = loads.check()
        logs = "\n".join(map(cluster.log_text, cluster.node_ids))
    for node in (1, 2, 3):
        handovers = logs.count(f"event=broker-shutting-down broker={node} ")
        assert handovers == ROUNDS, f"node {node} has handed over {handovers} times in {ROUNDS} stops"
    print(f"{figures}, {ROUNDS} rounds")  # noqa: T201
