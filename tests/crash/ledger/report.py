"""The report of a run of the ledger: its figures beside the evidence."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from testkit.verdicts.client_errors import ClientError, FaultWindow
from testkit.verdicts.ledger import ABORTED, ACCOUNTS, COMMITTED, UNKNOWN, LedgerEvidence
from testkit.verdicts.ledger_verdict import write_cycles


@dataclass(slots=True)
class LedgerReport:
    """The figures of a run."""

    seconds: float = 0
    faults: Counter[str] = field(default_factory=Counter)
    windows: Sequence[FaultWindow] = ()
    errors: list[ClientError] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)
    quiet_commits: dict[str, int] = field(default_factory=dict)
    """The commits of each client in times without faults."""
    longest_s: dict[str, float] = field(default_factory=dict)
    """The longest time from the begin of a fault until all clients had committed again, by kind."""
    divergences: list[str] = field(default_factory=list)
    """Between the copies of the ledger."""
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By client, the number of its transactions in the logs, and of the epochs that they had."""


def figures(report: LedgerReport, evidence: LedgerEvidence) -> list[str]:
    """The report of a run, in lines."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for attempt in evidence.attempts.values():
        outcomes[attempt.client][attempt.outcome] += 1
    total = sum((counts for counts in outcomes.values()), Counter())
    reading = next(iter(evidence.readings.values()))
    visible = sum(len(records) for records in reading.values())
    accounts = sum(len(records) for place, records in reading.items() if place.topic == ACCOUNTS)
    ended = ", ".join(f"{total[outcome]} {outcome}" for outcome in (COMMITTED, ABORTED, UNKNOWN))
    read = f"{visible} records read by each of {len(evidence.readings)} readers, {accounts} of them of accounts"
    lines = [
        f"{report.seconds:.0f} s, {report.faults.total()} faults, {total.total()} transactions ({ended}), {read}",
        f"  {write_cycles(reading)} pairs of transactions whose writes interleave (G0, legal)",
    ]
    for kind, count in sorted(report.faults.items()):
        lines.append(
            f"  {count} x {kind}; all clients had committed within {report.longest_s[kind]:.1f} s of its begin"
        )
    for client, counts in outcomes.items():
        errors = [error for error in report.errors if error.client == client]
        fatal = sum(error.is_fatal for error in errors)
        transactions, epochs = report.epochs[client]
        lines.append(
            f"  {client} ({transactions} transactions in {epochs} epochs): {counts[COMMITTED]} committed, "
            f"{counts[ABORTED]} aborted, {counts[UNKNOWN]} unknown, {evidence.copied_to[client]} records copied, "
            f"{report.lives[client]} lives, {fatal} fatal errors, {len(errors) - fatal} others, "
            f"{report.quiet_commits.get(client, 0)} commits in quiet times"
        )
    return lines
