"""kill -9 of any node of three, again and again, while clients change metadata: no acknowledged change is lost.

QUORUM_SECONDS in the environment says for how long; `make soak` takes ten minutes.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
def test_no_acknowledged_change_is_lost(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    end = time.monotonic() + SECONDS
    faults, figures = put_to_the_test(
        tmp_path, random.Random(seed), lambda deaths: deaths < 3 or time.monotonic() < end, kill_one
    )
    record_property("figures", figures)
    print(figures)  # noqa: T201
    assert not faults, f"{len(faults)} promises broken with SEED={seed} ({figures}):\n" + "\n".join(faults[:20])
