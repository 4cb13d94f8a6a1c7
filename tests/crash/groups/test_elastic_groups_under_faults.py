"""Members of our clients, of librdkafka and of Java share one topic by slots, while members and brokers die (KIP-X).

ELASTIC_FAULT_SECONDS in the environment says for how long, ELASTIC_QUIET_SECONDS how long members come and leave
without a fault then; `make soak` takes half an hour and ten minutes. SEED=n chooses the same faults again. In the end
anomalies are planted into the evidence of the run: each must be found.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from crash.groups.elastic_processes import kinds
from crash.groups.elastic_run import ElasticRun
from crash.judge import Judge
from testkit.verdicts.elastic_verdict import ElasticEvidence, ElasticJudgement
from testkit.verdicts.planted_elastic import ELASTIC_PLANTS

FAULT_SECONDS = float(os.environ.get("ELASTIC_FAULT_SECONDS", "10"))
QUIET_SECONDS = float(os.environ.get("ELASTIC_QUIET_SECONDS", "6"))


def _figures(run: ElasticRun, evidence: ElasticEvidence, judged: ElasticJudgement) -> Iterator[str]:
    handled: Counter[str] = Counter()
    quiet: Counter[str] = Counter()
    for ledger in evidence.ledgers.values():
        handled[ledger.kind] += len(ledger.handlings)
        quiet[ledger.kind] += sum(handling.begin_ns >= evidence.quiet[0] for handling in ledger.handlings)
    commits = sum(attempt.is_acknowledged for ledger in evidence.ledgers.values() for attempt in ledger.attempts)
    yield f"{FAULT_SECONDS:.0f} s of faults, {QUIET_SECONDS:.0f} s without: {dict(run.faults)}"
    yield (
        f"  {len(evidence.produced)} records acknowledged, {handled.total()} handlings {dict(handled)}, "
        f"{quiet.total()} of them in quiet times {dict(quiet)}"
    )
    yield (
        f"  {len(evidence.slots.ownerships)} moves of slots over {len(evidence.ledgers)} processes, {commits} commits "
        f"of slots acknowledged, {len(evidence.coordinator)} records in the coordinator's log"
    )
    yield (
        f"  {judged.repeats.total()} repeats {dict(judged.repeats)}, in quiet times {dict(judged.quiet_repeats) or 0}; "
        f"{judged.zombies.total()} records handled by "
        f"{len(judged.zombies)} zombies, {max(judged.zombies.values(), default=0)} at most"
    )
    yield f"  {len(judged.faults)} broken promises"


@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_slots_have_one_owner_each_and_repeats_have_a_cause(
    tmp_path: Path, chance: random.Random, judge: Judge
) -> None:
    with ExitStack() as stack:
        run = ElasticRun(tmp_path, chance, stack)
        run.inject(FAULT_SECONDS)
        run.be_quiet(QUIET_SECONDS)
        evidence = run.finish()
    judged = ElasticJudgement(evidence)
    judge(judged.faults, "\n".join(_figures(run, evidence, judged)))
    assert evidence.produced
    workers = {ledger.kind for ledger in evidence.ledgers.values() if ledger.handlings}
    assert workers == set(kinds()), "members of each client have handled records"
    for law, plant in ELASTIC_PLANTS.items():
        found = {fault.partition(":")[0] for fault in ElasticJudgement(plant(evidence)).faults}
        assert law in found, f"the planted anomaly of {law!r} is not found: {found}"
