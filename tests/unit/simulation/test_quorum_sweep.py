"""Many seeds of whole nodes: the sums, and that a failure is reported and not lost."""

import pytest

from simulation.harness.breach import Breach
from simulation.quorum.cluster import QuorumCluster
from simulation.quorum.sweep import NodesSweep, run_nodes_seed


def test_a_failure_is_in_the_summary_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: QuorumCluster) -> None:
        raise Breach("one leader per epoch", "epoch 3: 1 and 2")

    monkeypatch.setattr(QuorumCluster, "run", fail)
    total = NodesSweep()
    total.add(run_nodes_seed(17))
    total.add(run_nodes_seed(18))
    assert (total.seeds, total.counted, len(total.failures)) == (2, 0, 2)
    assert "seed 17 FAILED" in total.summary()
    assert "one leader per epoch: epoch 3: 1 and 2" in total.summary()
    assert "2 seeds, 0 count, 2 failed" in total.summary()


def test_a_failure_that_does_not_come_again_has_the_state_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[QuorumCluster] = []

    def fail_once(cluster: QuorumCluster) -> None:
        runs.append(cluster)
        if len(runs) == 1:
            raise Breach("one leader per epoch", "epoch 3: 1 and 2")

    monkeypatch.setattr(QuorumCluster, "run", fail_once)
    (failure,) = run_nodes_seed(17).failures
    assert len(runs) == 2
    assert failure.endswith(runs[0].describe())


def test_the_figures_of_runs_are_summed_up() -> None:
    total = NodesSweep(seconds=2.0)
    for counted in (1, 0):
        found = NodesSweep(seeds=1, counted=counted, events=10)
        found.faults["crash"] += 1
        found.sometimes["blackout"] += 3
        total.add(found)
    assert (total.counted, total.events, total.per_minute) == (1, 20, 60.0)
    assert (total.faults["crash"], total.sometimes["blackout"]) == (2, 6)
