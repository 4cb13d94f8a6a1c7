"""Anomalies that are planted into the evidence of a ledger without a fault: the verdict must name the kind of every
anomaly.

Each planter takes evidence and returns a changed copy. It needs two readers, transfers that have read, and copies.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from testkit.verdicts.ledger import (
    ABORTED,
    ACCOUNTS,
    COMMITTED,
    COPIES,
    Attempt,
    Entry,
    LedgerEvidence,
    Observation,
    Place,
    Reading,
    Sight,
)
from testkit.verdicts.ledger_verdict import (
    ABORTED_READ,
    COPIED_AGAIN,
    CYCLE,
    DIFFERS,
    DIRTY,
    INTERMEDIATE,
    INVENTED,
    LOST,
    NOT_COPIED,
    REORDERED,
    REPEATED,
    SUM,
    TORN,
)

Plant = Callable[[LedgerEvidence], LedgerEvidence]
_Found = tuple[Place, int, Entry]
"""A record with its partition and its rank there."""


def _found(reading: Reading, topic: str = ACCOUNTS) -> Iterator[_Found]:
    for place, records in reading.items():
        if place.topic == topic:
            for rank, (_, entry) in enumerate(records):
                yield place, rank, entry


def _first(evidence: LedgerEvidence) -> Reading:
    return next(iter(evidence.readings.values()))


def _a_committed(evidence: LedgerEvidence, topic: str = ACCOUNTS) -> _Found:
    """A record of a transaction whose commit was acknowledged, in the middle."""
    all_ = [
        found
        for found in _found(_first(evidence), topic)
        if evidence.attempts[found[2].transaction].outcome == COMMITTED
    ]
    return all_[len(all_) // 2]


def _for_all(evidence: LedgerEvidence, change: Callable[[Reading], Reading]) -> LedgerEvidence:
    """The same change to all readings."""
    return replace(evidence, readings={name: change(reading) for name, reading in evidence.readings.items()})


def _without(reading: Reading, is_left_out: Callable[[Entry], bool]) -> Reading:
    return {place: [record for record in records if not is_left_out(record[1])] for place, records in reading.items()}


def _replaced(reading: Reading, place: Place, rank: int, entry: Entry) -> Reading:
    records = list(reading[place])
    records[rank] = records[rank][0], entry
    return {**reading, place: records}


def _with_attempt(evidence: LedgerEvidence, attempt: Attempt) -> LedgerEvidence:
    return replace(evidence, attempts={**evidence.attempts, attempt.name: attempt})


def _lose_a_transaction(evidence: LedgerEvidence) -> LedgerEvidence:
    name = _a_committed(evidence)[2].transaction
    return _for_all(evidence, lambda reading: _without(reading, lambda entry: entry.transaction == name))


def _tear_a_transaction(evidence: LedgerEvidence) -> LedgerEvidence:
    _, _, chosen = _a_committed(evidence)
    return _for_all(evidence, lambda reading: _without(reading, lambda entry: entry == chosen))


def _repeat_a_record(evidence: LedgerEvidence) -> LedgerEvidence:
    place, _, chosen = _a_committed(evidence)

    def repeat(reading: Reading) -> Reading:
        return {**reading, place: [*reading[place], (reading[place][-1][0] + 1, chosen)]}

    return _for_all(evidence, repeat)


def _show_an_aborted_transaction(evidence: LedgerEvidence) -> LedgerEvidence:
    attempt = evidence.attempts[_a_committed(evidence)[2].transaction]
    return _with_attempt(evidence, replace(attempt, outcome=ABORTED))


def _show_an_unfinished_transaction(evidence: LedgerEvidence) -> LedgerEvidence:
    attempt = evidence.attempts[_a_committed(evidence)[2].transaction]
    return _with_attempt(evidence, replace(attempt, commit_ns=None))


def _forget_a_transaction(evidence: LedgerEvidence) -> LedgerEvidence:
    name = _a_committed(evidence)[2].transaction
    return replace(evidence, attempts={kept: attempt for kept, attempt in evidence.attempts.items() if kept != name})


def _two_of_a_client(evidence: LedgerEvidence) -> tuple[Place, int, int]:
    """The ranks in a partition of records that one client has written in two transactions."""
    for place, records in _first(evidence).items():
        latest: dict[str, int] = {}
        for rank, (_, entry) in enumerate(records):
            client = evidence.attempts[entry.transaction].client
            if client in latest and records[latest[client]][1].transaction != entry.transaction:
                return place, latest[client], rank
            latest[client] = rank
    raise LookupError("no client has written to a partition in two transactions")


def _swap_records_of_a_client(evidence: LedgerEvidence) -> LedgerEvidence:
    place, early, late = _two_of_a_client(evidence)

    def swap(reading: Reading) -> Reading:
        first, second = reading[place][early][1], reading[place][late][1]
        return _replaced(_replaced(reading, place, early, second), place, late, first)

    return _for_all(evidence, swap)


def _hide_a_record_from_one_reader(evidence: LedgerEvidence) -> LedgerEvidence:
    _, _, chosen = _a_committed(evidence)
    name, reading = list(evidence.readings.items())[-1]
    without = _without(reading, lambda entry: entry == chosen)
    return replace(evidence, readings={**evidence.readings, name: without})


def _turn_two_records_for_one_reader(evidence: LedgerEvidence) -> LedgerEvidence:
    place, rank, _ = _a_committed(evidence)
    name, reading = list(evidence.readings.items())[-1]
    records = list(reading[place])
    rank = min(rank, len(records) - 2)
    records[rank : rank + 2] = reversed(records[rank : rank + 2])
    return replace(evidence, readings={**evidence.readings, name: {**reading, place: records}})


def _change_an_amount(evidence: LedgerEvidence) -> LedgerEvidence:
    place, rank, chosen = _a_committed(evidence)
    return _for_all(
        evidence, lambda reading: _replaced(reading, place, rank, replace(chosen, amount=chosen.amount + 1))
    )


def _a_sight(evidence: LedgerEvidence) -> tuple[Place, int, Entry, Sight]:
    """The transfer that has read the most records."""
    seen = [(*found, found[2].sight) for found in _found(_first(evidence)) if found[2].sight is not None]
    place, rank, entry, sight = max(seen, key=lambda seen_record: len(seen_record[3].observations))
    assert sight.observations, "a transfer has read"
    return place, rank, entry, sight


def _with_observations(sight: Sight, observations: list[Observation]) -> Sight:
    return sight._replace(observations=tuple(observations))


def _with_sight(evidence: LedgerEvidence, place: Place, rank: int, entry: Entry, sight: Sight) -> LedgerEvidence:
    return _for_all(evidence, lambda reading: _replaced(reading, place, rank, replace(entry, sight=sight)))


def _read_an_aborted_transaction(evidence: LedgerEvidence) -> LedgerEvidence:
    place, rank, entry, sight = _a_sight(evidence)
    name = "planted-1-1"
    aborted = Attempt(name, "planted", 1, 1, 0, 0, ABORTED)
    (partition, offset, _), *others = sight.observations
    seen = _with_observations(sight, [Observation(partition, offset, name), *others])
    return _with_attempt(_with_sight(evidence, place, rank, entry, seen), aborted)


def _read_before_the_commit(evidence: LedgerEvidence) -> LedgerEvidence:
    *_, sight = _a_sight(evidence)
    attempt = evidence.attempts[sight.observations[0].transaction]
    return _with_attempt(evidence, replace(attempt, commit_ns=sight.at_ns + 1))


def _read_itself(evidence: LedgerEvidence) -> LedgerEvidence:
    place, rank, entry, sight = _a_sight(evidence)
    own = next(
        Observation(where.partition, _first(evidence)[where][at][0], entry.transaction)
        for where, at, record in _found(_first(evidence))
        if record.transaction == entry.transaction
    )
    return _with_sight(evidence, place, rank, entry, _with_observations(sight, [*sight.observations, own]))


def _read_a_part(evidence: LedgerEvidence) -> LedgerEvidence:
    """Let a transfer read the records of a stretch except one record in the middle."""
    place, rank, entry, sight = _a_sight(evidence)
    where, records = max(
        ((where, records) for where, records in _first(evidence).items() if where.topic == ACCOUNTS),
        key=lambda entries: len(entries[1]),
    )
    names = [(offset, record.transaction) for offset, record in records if record.transaction != entry.transaction][:3]
    ends = [Observation(where.partition, *names[0]), Observation(where.partition, *names[2])]
    return _with_sight(evidence, place, rank, entry, _with_observations(sight, ends))


def _read_in_a_circle(evidence: LedgerEvidence) -> LedgerEvidence:
    """Let the first transaction that a transfer has read have read this transfer, too."""
    _, _, entry, sight = _a_sight(evidence)
    reading = _first(evidence)
    name = sight.observations[0].transaction
    place, rank, read = next(
        found for found in _found(reading) if found[2].transaction == name and found[2].sight is not None
    )
    where, at, _ = next(found for found in _found(reading) if found[2].transaction == entry.transaction)
    back = Observation(where.partition, reading[where][at][0], entry.transaction)
    assert read.sight is not None
    return _with_sight(evidence, place, rank, read, _with_observations(read.sight, [*read.sight.observations, back]))


def _skip_a_copy(evidence: LedgerEvidence) -> LedgerEvidence:
    name = _a_committed(evidence, COPIES)[2].transaction
    return _for_all(evidence, lambda reading: _without(reading, lambda entry: entry.transaction == name))


def _copy_again(evidence: LedgerEvidence) -> LedgerEvidence:
    place, rank, chosen = _a_committed(evidence, COPIES)
    other = next(found for found in _found(_first(evidence), COPIES) if found[2].copied != chosen.copied)
    changed = replace(chosen, copied=other[2].copied)
    return _for_all(evidence, lambda reading: _replaced(reading, place, rank, changed))


def _forget_an_offset(evidence: LedgerEvidence) -> LedgerEvidence:
    """Let copies be committed, but not the offset that belongs to them."""
    client = max(evidence.copied_to, key=lambda copier: evidence.copied_to[copier])
    return replace(evidence, copied_to={**evidence.copied_to, client: evidence.copied_to[client] - 1})


PLANTS: Final[Mapping[str, tuple[str, Plant]]] = {
    "a transaction is lost": (LOST, _lose_a_transaction),
    "a part of a transaction is lost": (TORN, _tear_a_transaction),
    "a record is there twice": (REPEATED, _repeat_a_record),
    "an aborted transaction is shown": (ABORTED_READ, _show_an_aborted_transaction),
    "a transaction is shown whose commit was not requested": (DIRTY, _show_an_unfinished_transaction),
    "a transaction is shown that was not begun": (INVENTED, _forget_a_transaction),
    "records of a client change places": (REORDERED, _swap_records_of_a_client),
    "one reader misses a record": (DIFFERS, _hide_a_record_from_one_reader),
    "one reader gets records in another order": (DIFFERS, _turn_two_records_for_one_reader),
    "an amount changes": (SUM, _change_an_amount),
    "a transfer reads an aborted transaction": (ABORTED_READ, _read_an_aborted_transaction),
    "a transfer reads a transaction before its commit": (DIRTY, _read_before_the_commit),
    "a transfer reads itself": (DIRTY, _read_itself),
    "a transfer reads a part of a stretch": (INTERMEDIATE, _read_a_part),
    "two transactions read of each other": (CYCLE, _read_in_a_circle),
    "copies are lost, and their offset is committed": (NOT_COPIED, _skip_a_copy),
    "a record is copied twice": (COPIED_AGAIN, _copy_again),
    "copies are there, and their offset is not committed": (COPIED_AGAIN, _forget_an_offset),
}
"""For each anomaly the kind that the verdict must name, and the planter."""
