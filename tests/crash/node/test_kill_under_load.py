"""kill -9 under mixed load, again and again: what was acknowledged is there, once, in order.

KILLS in the environment says how often; `make soak` runs fifty.
"""

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.node.workload import put_to_the_test
from tailrace.testing import Cluster
from tailrace.testing.node_process import ClusterError

KILLS = int(os.environ.get("KILLS", "4"))
STARTS_CUT_SHORT = 0.25


def kill_and_start(cluster: Cluster, chance: random.Random) -> int:
    """Kill the node and start it again; some starts are killed too. How many kills it were."""
    cluster.kill()
    kills = 1
    while chance.random() < STARTS_CUT_SHORT:
        starting = threading.Thread(target=_start_in_vain, args=(cluster,))
        starting.start()
        while not cluster.is_running():
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.6))
        os.killpg(cluster.process_id(), signal.SIGKILL)
        starting.join()
        cluster.kill()  # takes notice
        kills += 1
    cluster.restart()
    return kills


def _start_in_vain(cluster: Cluster) -> None:
    with suppress(ClusterError):
        cluster.restart()


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(
    tmp_path: Path, chance: random.Random, judge: Judge
) -> None:
    judge(*put_to_the_test(tmp_path, chance, KILLS, kill_and_start))
