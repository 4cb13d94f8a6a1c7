"""The verdict finds every anomaly that is planted into the evidence of streams, and names its kind."""

from dataclasses import replace

import pytest

from testkit.verdicts.stream_verdict import StreamEvidence, broken_promises

GOOD = StreamEvidence(
    acknowledged=frozenset({b"1", b"2", b"3"}),
    aborted=frozenset({b"9"}),
    committed={0: [b"1", b"3"], 1: [b"2", b"4"]},  # whether 4 was committed is not known to its producer
    rows={0: [(0, b"1"), (2, b"3")], 1: [(0, b"2"), (1, b"4")]},
    copies=[b"4", b"1", b"2", b"3"],
)


def test_good_evidence_breaks_nothing() -> None:
    assert broken_promises(GOOD) == []


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("nothing", replace(GOOD, acknowledged=frozenset())),
        ("lost", replace(GOOD, acknowledged=frozenset({b"5"}))),
        ("aborted", replace(GOOD, aborted=frozenset({b"4"}))),
        ("written twice", replace(GOOD, committed={**GOOD.committed, 2: [b"1"]})),
        ("order of rows", replace(GOOD, rows={**GOOD.rows, 0: [(2, b"1"), (0, b"3")]})),
        ("order of rows", replace(GOOD, rows={**GOOD.rows, 0: [(0, b"1"), (2, b"3"), (2, b"3")]})),
        ("rows", replace(GOOD, rows={**GOOD.rows, 0: [(0, b"1")]})),
        ("rows", replace(GOOD, rows={0: GOOD.rows[0]})),
        ("rows", replace(GOOD, rows={**GOOD.rows, 1: [(0, b"4"), (1, b"2")]})),
        ("copies missing", replace(GOOD, copies=GOOD.copies[1:])),
        ("copies repeated", replace(GOOD, copies=[*GOOD.copies, b"1"])),
        ("copies repeated", replace(GOOD, copies=[*GOOD.copies, b"9"])),
    ],
)
def test_a_planted_anomaly_is_found(kind: str, bad: StreamEvidence) -> None:
    assert kind in {fault.partition(":")[0] for fault in broken_promises(bad)}
