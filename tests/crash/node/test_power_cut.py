"""The power of a real node goes under mixed load: what was acknowledged is there, once, in order.

A kill loses nothing that the operating system has. Here the node keeps a copy of what it has synced (`crash.power`);
when the power goes it is killed, and the copy takes the place of its data.

REAL_POWER_CUTS in the environment says how often; `make soak` runs twenty.
"""

import os
import random
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.node.workload import put_to_the_test
from crash.power import Power
from tailrace.client.blocking import Admin, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

CUTS = int(os.environ.get("REAL_POWER_CUTS", "2"))
LATEST = -1


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(
    tmp_path: Path, power: Power, chance: random.Random, judge: Judge
) -> None:
    def cut_and_start(cluster: Cluster, _: random.Random) -> int:
        power.cut(cluster)
        cluster.restart()
        return 1

    judge(*put_to_the_test(tmp_path, chance, CUTS, cut_and_start))


@pytest.mark.crash
@pytest.mark.parametrize("lies", [False, True], ids=["syncs", "syncs that do nothing"])
def test_records_that_were_not_synced_are_gone_after_a_power_cut_and_others_are_not(
    tmp_path: Path, power: Power, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """Else the test above would prove nothing."""
    monkeypatch.setenv("PLATTER_LIES", str(int(lies)))
    with Cluster(directory=tmp_path / "cluster") as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({"orders": 1})
        with Producer(cluster.bootstrap_servers) as producer:
            for sent in [producer.send("orders", b"v") for _ in range(100)]:
                sent.result()
        power.cut(cluster)
        cluster.restart()
        with Admin(cluster.bootstrap_servers) as admin:
            there = "orders" in {topic.name for topic in admin.list_topics()}
            assert there is not lies
            if there:
                (end,) = admin.list_offsets({TopicPartition("orders", 0): LATEST}).values()
                assert end.offset == 100
