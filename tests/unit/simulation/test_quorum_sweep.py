"""Many seeds of whole nodes: the sums, and that a failure is reported and not lost."""

import logging
from collections.abc import Iterator

import pytest

from simulation.harness.breach import Breach
from simulation.quorum.cluster import QuorumCluster
from simulation.quorum.sweep import NodesSweep, run_seed


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A run silences its process."""
    yield
    logging.disable(logging.NOTSET)


def test_a_failure_is_in_the_summary_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: QuorumCluster) -> None:
        raise Breach("one leader per epoch", "epoch 3: 1 and 2")

    monkeypatch.setattr(QuorumCluster, "run", fail)
    total = NodesSweep()
    total.add(run_seed(17))
    total.add(run_seed(18))
    assert (total.seeds, total.counted, len(total.failures)) == (2, 0, 2)
    assert "seed 17 FAILED" in total.summary()
    assert "one leader per epoch: epoch 3: 1 and 2" in total.summary()
    assert "2 seeds, 0 count, 2 failed" in total.summary()


def test_the_figures_of_runs_are_summed_up() -> None:
    total = NodesSweep(seconds=2.0)
    for counted in (1, 0):
        one = NodesSweep(seeds=1, counted=counted, events=10)
        one.faults["crash"] += 1
        one.sometimes["blackout"] += 3
        total.add(one)
    assert (total.counted, total.events, total.per_minute) == (1, 20, 60.0)
    assert (total.faults["crash"], total.sometimes["blackout"]) == (2, 6)
