"""The power of three brokers goes at once, again and again, under load: nothing is lost, doubled, reordered, skipped.

Of every node's data only what it had synced is left (`crash.power`). REPLICA_POWER_CUTS in the environment says how
often; `make soak` runs fifty.
"""

import os
import random
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.power import Power
from crash.replicas.run import run_power_cuts, run_to_a_power_cut
from crash.replicas.test_replica_faults import passed
from testkit.verdicts.replica_verdict import broken_promises

CUTS = int(os.environ.get("REPLICA_POWER_CUTS", "1"))


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_no_promise_is_broken_by_power_cuts_of_all_nodes(
    tmp_path: Path, power: Power, chance: random.Random, judge: Judge
) -> None:
    passed(*run_power_cuts(tmp_path, chance, power, CUTS), judge)


@pytest.mark.crash
@pytest.mark.parametrize("lies", [False, True], ids=["syncs", "syncs that do nothing"])
def test_a_power_cut_loses_acknowledged_records_only_when_syncs_do_nothing(
    tmp_path: Path, power: Power, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """Else the test above would prove nothing."""
    monkeypatch.setenv("PLATTER_LIES", str(int(lies)))
    evidence = run_to_a_power_cut(tmp_path, power)
    kinds = {fault.partition(":")[0] for fault in broken_promises(evidence)}
    assert evidence.history.acknowledged
    assert kinds == ({"lost"} if lies else set())
