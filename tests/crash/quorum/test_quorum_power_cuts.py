"""The power of a whole cluster of three goes while clients change metadata: no acknowledged change is lost.

Of every node's data only what it had synced is left (`crash.power`). QUORUM_POWER_CUTS in the environment says how
often; `make soak` runs fifty.
"""

import os
import random
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.power import Power
from crash.quorum.workload import put_to_the_test
from crash.topics import make_topic, topics_of
from tailrace.client.blocking import NewTopic
from tailrace.testing import Cluster

CUTS = int(os.environ.get("QUORUM_POWER_CUTS", "2"))


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_no_acknowledged_change_is_lost(tmp_path: Path, power: Power, chance: random.Random, judge: Judge) -> None:
    def cut_and_start(cluster: Cluster, _: random.Random) -> None:
        power.cut(cluster)
        cluster.start()

    judge(*put_to_the_test(tmp_path, chance, lambda deaths: deaths < CUTS, cut_and_start))


@pytest.mark.crash
@pytest.mark.parametrize("lies", [False, True], ids=["syncs", "syncs that do nothing"])
def test_a_power_cut_takes_a_topic_only_when_syncs_do_nothing(
    tmp_path: Path, power: Power, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """Else the test above would prove nothing."""
    monkeypatch.setenv("PLATTER_LIES", str(int(lies)))
    with Cluster(3, directory=tmp_path / "cluster") as cluster:
        make_topic(cluster.bootstrap_servers, NewTopic(name="orders", partitions=3, replication_factor=3))
        power.cut(cluster)
        cluster.start()
        for node in cluster.node_ids:
            assert ("orders" in topics_of(cluster, node)) is not lies
