"""Own and foreign clients write transactions on three nodes under faults: no promise of transactions is broken.

Each client moves amounts between accounts and copies the records of a source, in a process that is started again when
it ends. TRANSACTION_FAULT_SECONDS in the environment says for how long; `make soak` takes half an hour. SEED=n chooses
the same faults again, LEDGER_CLIENTS="java aiokafka" these clients alone, LEDGER_FAULT_KINDS=kill,cut only
those with such a word in their names (in runs of a minute or more). In the end anomalies are planted into
what it has gathered: each must be found.
"""

import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from crash.ledger.programs import CLIENTS, WITH_KIP_890, absent
from crash.ledger.report import LedgerReport, figures
from crash.ledger.run import LedgerRun
from testkit.verdicts.client_errors import Excuses, explanation, unexplained
from testkit.verdicts.ledger import LedgerEvidence
from testkit.verdicts.ledger_verdict import broken_promises
from testkit.verdicts.planted_ledger import PLANTS

FAULT_SECONDS = float(os.environ.get("TRANSACTION_FAULT_SECONDS", "4"))
LEAST_FAULTS = 2
WANTED = os.environ.get("LEDGER_CLIENTS", " ".join(CLIENTS)).split()
TIMEOUT_MS = 10_000
"""The timeout of transactions."""
EXCUSES = Excuses(timeout_ns=TIMEOUT_MS * 10**6)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(7200)]


@dataclass(frozen=True)
class Outcome:
    """A run that has ended."""

    seed: int
    evidence: LedgerEvidence
    report: LedgerReport
    faults: list[str]
    """The broken promises."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run with all clients that are here."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    present = [client for client in WANTED if absent(client) is None]
    with ExitStack() as stack:
        ledger = LedgerRun(tmp_path_factory.mktemp("ledger"), present, FAULT_SECONDS, TIMEOUT_MS, stack)
        ledger.begin()
        ledger.inject(random.Random(seed), LEAST_FAULTS)
        evidence = ledger.finish()
    return Outcome(seed, evidence, ledger.report, [*broken_promises(evidence), *ledger.report.divergences])


def test_no_promise_is_broken_to_any_reader(outcome: Outcome) -> None:
    began_s = time.monotonic()
    reasons = Counter(
        (error.client, explanation(error, outcome.report.windows, EXCUSES))
        for error in outcome.report.errors
        if error.is_fatal
    )
    lines = [
        *figures(outcome.report, outcome.evidence),
        *(
            f"  {count} fatal errors of {client}: {reason}"
            for (client, reason), count in sorted(reasons.items(), key=str)
        ),
        f"  {len(outcome.faults)} broken promises, judged in {time.monotonic() - began_s:.1f} s",
    ]
    text = "\n".join(lines)
    sys.stdout.write(text + "\n")
    assert not outcome.faults, f"SEED={outcome.seed}\n{text}\n" + "\n".join(outcome.faults[:20])


@pytest.mark.parametrize("client", WANTED)
def test_a_client_gets_on_and_has_no_error_without_a_fault(outcome: Outcome, client: str) -> None:
    if why := absent(client):
        pytest.skip(why)
    report = outcome.report
    own = [error for error in report.errors if error.client == client]
    odd = list(unexplained(own, report.windows, EXCUSES))
    assert not odd, f"SEED={outcome.seed}\n" + "\n".join(odd[:20])
    assert report.quiet_commits[client]
    assert outcome.evidence.copied_to[client]
    transactions, epochs = report.epochs[client]
    assert (4 * epochs > transactions) is (client in WITH_KIP_890), f"{transactions} transactions, {epochs} epochs"


@pytest.mark.parametrize("anomaly", PLANTS)
def test_each_planted_anomaly_is_found(outcome: Outcome, anomaly: str) -> None:
    kind, plant = PLANTS[anomaly]
    found = {fault.partition(":")[0] for fault in broken_promises(plant(outcome.evidence))}
    assert kind in found, f"SEED={outcome.seed}: found {found}"
