"""kill -9 of any node of three, again and again, while clients change metadata: no acknowledged change is lost.

QUORUM_SECONDS in the environment says for how long; `make soak` takes ten minutes.
"""

import os
import random
import time
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.quorum.workload import put_to_the_test
from tailrace.testing import Cluster

SECONDS = float(os.environ.get("QUORUM_SECONDS", "12"))


def kill_one(cluster: Cluster, chance: random.Random) -> None:
    """A node dies, every second time the node that leads, and comes back after a while."""
    node = cluster.controller_id if chance.random() < 0.5 else chance.choice(cluster.node_ids)
    cluster.kill(node)
    time.sleep(chance.choice((0, 0.2, 1, 3)))
    cluster.start(node)


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_no_acknowledged_change_is_lost(tmp_path: Path, chance: random.Random, judge: Judge) -> None:
    end = time.monotonic() + SECONDS
    judge(*put_to_the_test(tmp_path, chance, lambda deaths: deaths < 3 or time.monotonic() < end, kill_one))
