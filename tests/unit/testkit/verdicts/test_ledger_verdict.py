"""The verdict on a ledger: a good one passes, and each planted anomaly is named."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from testkit.verdicts.ledger import (
    ABORTED,
    ACCOUNTS,
    COMMITTED,
    COPIES,
    UNKNOWN,
    Attempt,
    Entry,
    LedgerEvidence,
    Observation,
    Place,
    Sight,
    entry_of,
)
from testkit.verdicts.ledger_verdict import CYCLE, DIFFERS, DIRTY, KINDS, LOST, TORN, broken_promises, write_cycles
from testkit.verdicts.planted_ledger import PLANTS

ONE, TWO, COPY = Place(ACCOUNTS, 0), Place(ACCOUNTS, 1), Place(COPIES, 0)


def transfer(name: str, at_ns: int, saw: Sequence[Observation] = ()) -> list[Entry]:
    """The three records of a transfer."""
    return [
        Entry(name, 0, 3, amount=-5),
        Entry(name, 1, 3, amount=4, sight=Sight(at_ns, tuple(saw))),
        Entry(name, 2, 3, amount=1),
    ]


def attempt(client: str, number: int, outcome: str, commit_ns: int | None) -> Attempt:
    return Attempt(f"{client}-1-{number}", client, 1, number, 10 * number, commit_ns, outcome)


A1, A2, B1 = transfer("a-1-1", 12), transfer("a-1-2", 25), transfer("b-1-1", 31, [Observation(0, 0, "a-1-1")])
C1 = [Entry("a-1-3", index, 2, copied=("a", index)) for index in range(2)]
C2 = [Entry("a-1-4", 0, 1, copied=("a", 2))]
B2 = transfer("b-1-2", 50, [Observation(0, 3, "a-1-2"), Observation(0, 5, "a-1-2"), Observation(1, 6, "b-1-1")])
READING = {
    ONE: [(0, A1[0]), (1, A1[2]), (3, A2[0]), (5, A2[2]), (6, B1[1]), (9, B2[0]), (10, B2[2])],
    TWO: [(0, A1[1]), (2, A2[1]), (4, B1[0]), (6, B1[2]), (8, B2[1])],
    COPY: [(0, C1[0]), (1, C1[1]), (3, C2[0])],
}
GOOD = LedgerEvidence(
    attempts={
        attempt.name: attempt
        for attempt in (
            attempt("a", 1, COMMITTED, 15),
            attempt("a", 2, COMMITTED, 28),
            attempt("a", 3, COMMITTED, 35),
            attempt("a", 4, COMMITTED, 45),
            attempt("a", 5, ABORTED, None),
            attempt("a", 6, UNKNOWN, 65),
            attempt("b", 1, COMMITTED, 33),
            attempt("b", 2, UNKNOWN, 55),
        )
    },
    readings={"one": READING, "two": dict(READING)},
    copied_to={"a": 3, "b": 0},
)


def kinds(evidence: LedgerEvidence) -> set[str]:
    return {fault.partition(":")[0] for fault in broken_promises(evidence)}


def test_a_good_ledger_breaks_no_promise() -> None:
    assert broken_promises(GOOD) == []


@pytest.mark.parametrize("anomaly", PLANTS)
def test_each_planted_anomaly_is_named(anomaly: str) -> None:
    kind, plant = PLANTS[anomaly]
    assert kind in kinds(plant(GOOD))


def test_each_kind_has_its_anomaly() -> None:
    assert {kind for kind, _ in PLANTS.values()} == set(KINDS)


def test_a_transaction_of_unknown_outcome_is_there_whole_or_not_at_all() -> None:
    gone = {
        place: [record for record in records if record[1].transaction != "b-1-2"] for place, records in READING.items()
    }
    assert broken_promises(replace(GOOD, readings={"one": gone})) == []
    part = {**READING, TWO: gone[TWO]}
    assert TORN in kinds(replace(GOOD, readings={"one": part}))


def test_a_transaction_that_one_reader_misses_is_lost_for_it() -> None:
    gone = {
        place: [record for record in records if record[1].transaction != "a-1-4"] for place, records in READING.items()
    }
    assert {LOST, DIFFERS} <= kinds(replace(GOOD, readings={"one": READING, "two": gone}))


def test_a_circle_of_three_is_found() -> None:
    names = ("a-1-1", "a-1-2", "b-1-1")
    entries = [
        Entry(name, 0, 1, sight=Sight(100, (Observation(0, (number + 1) % 3, names[(number + 1) % 3]),)))
        for number, name in enumerate(names)
    ]
    reading = {ONE: list(enumerate(entries))}
    found = broken_promises(replace(GOOD, readings={"one": reading}, copied_to={}))
    (cycle,) = [fault for fault in found if fault.startswith(CYCLE)]
    assert all(name in cycle for name in names)


def test_a_record_that_is_at_another_offset_than_it_was_read_at_was_read_dirty() -> None:
    moved = {**READING, ONE: [(offset + 100, entry) for offset, entry in READING[ONE]]}
    assert DIRTY in kinds(replace(GOOD, readings={"one": moved}))


def test_writes_may_interleave() -> None:
    first, second = transfer("a-1-1", 12), transfer("b-1-1", 12)
    reading = {ONE: [(0, first[0]), (1, second[0])], TWO: [(0, second[1]), (1, first[1])]}
    assert write_cycles(reading) == 2
    assert write_cycles(READING) == 0


def test_values_of_records_are_read() -> None:
    value = b'{"t": "a-1-1", "i": 1, "of": 3, "amount": 4, "at": 12, "saw": [[0, 7, "b-1-1"]]}'
    assert entry_of(value) == Entry("a-1-1", 1, 3, amount=4, sight=Sight(12, (Observation(0, 7, "b-1-1"),)))
    assert entry_of('{"t": "a-1-3", "i": 0, "of": 1, "copied": ["a", 4]}') == Entry("a-1-3", 0, 1, copied=("a", 4))
