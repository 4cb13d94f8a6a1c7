"""Three brokers in three racks under load, with a fault every few seconds: no promise is broken.

REPLICA_FAULT_SECONDS in the environment says for how long, REPLICA_QUIET_SECONDS how long without faults; `make soak`
takes half an hour and ten minutes. SEED=n chooses the same faults again, REPLICA_FAULT_KINDS=disk,rack only those with
such a word in their names. After a short run anomalies are planted into what it has gathered: each must be found.
"""

import os
import random
import time
from pathlib import Path

import pytest

from crash.judge import Judge
from crash.replicas.run import NO_FAULTS, Report, run
from testkit.verdicts.planted_anomalies import PLANTS
from testkit.verdicts.replica_verdict import Evidence, broken_promises

FAULT_SECONDS = float(os.environ.get("REPLICA_FAULT_SECONDS", "12"))
QUIET_SECONDS = float(os.environ.get("REPLICA_QUIET_SECONDS", "3"))
LEAST_FAULTS = 4
ENOUGH_S = 60.0
"""After so long most fetches of a reader go to its rack, however long the first ones took to find it."""
PLANTED_WITHIN_S = 60.0
"""Longer runs have too much evidence to judge it once for each anomaly."""


def passed(evidence: Evidence, report: Report, judge: Judge) -> None:
    """Judge a run, which must not have been idle."""
    began_s = time.monotonic()
    faults = broken_promises(evidence)
    judged_s = time.monotonic() - began_s
    lines = [*report.lines(evidence), f"  {len(faults)} broken promises, judged in {judged_s:.1f} s"]
    judge(faults, "\n".join(lines))
    assert evidence.history.acknowledged
    assert evidence.history.polled


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_no_promise_is_broken_under_faults_and_each_planted_anomaly_is_found(
    tmp_path: Path, chance: random.Random, judge: Judge
) -> None:
    evidence, report = run(tmp_path, chance, FAULT_SECONDS, LEAST_FAULTS)
    passed(evidence, report, judge)
    if FAULT_SECONDS <= PLANTED_WITHIN_S:
        for anomaly, (kind, plant) in PLANTS.items():
            found = {fault.partition(":")[0] for fault in broken_promises(plant(evidence))}
            assert kind in found, f"{anomaly}: found {found}"


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_no_promise_is_broken_without_faults(tmp_path: Path, judge: Judge) -> None:
    evidence, report = run(tmp_path, random.Random(), QUIET_SECONDS, NO_FAULTS)
    passed(evidence, report, judge)
    assert len(report.fetches) == 6
    for reader, (at_own, at_others) in report.fetches.items():
        assert at_own > at_others or QUIET_SECONDS < ENOUGH_S, f"{reader} reads from other racks: {report.fetches}"
