"""Anomalies that are planted into the evidence of an elastic group without a fault: the verdict must name the law of
each anomaly.

Each planter takes evidence and returns a changed copy. The evidence has a slot that moved with its progress, a key with
two records under one owner, and a member that was removed after a kill or a stop.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupRecord,
    CurrentMemberAssignmentValue,
)
from tailrace.coordinators.groups.records import OffsetCommitValue, OffsetRecord
from tailrace.model.committed_progress import Rectangle
from testkit.verdicts.elastic_verdict import (
    AGAIN,
    CLOCK_NS,
    DISORDER,
    FENCED,
    HOARD,
    KEYED,
    LOST,
    OVERLAP,
    REPEATED,
    RESTLESS,
    SHARED,
    STRAY,
    UNCOMMITTED,
    UNKEPT,
    CommitAttempt,
    ElasticEvidence,
    Handling,
    ProcessLedger,
    SlotRecord,
)
from testkit.verdicts.slot_ownership import CoordinatorRecord, Ownership

PlantElastic = Callable[[ElasticEvidence], ElasticEvidence]

_PLANTED: Final = "planted"
_FAR: Final = 10**12


def _handlings(evidence: ElasticEvidence) -> list[Handling]:
    found = (handling for ledger in evidence.ledgers.values() for handling in ledger.handlings)
    return sorted(found, key=lambda handling: handling.begin_ns)


def _with_ledger(evidence: ElasticEvidence, process: str, ledger: ProcessLedger) -> ElasticEvidence:
    return replace(evidence, ledgers={**evidence.ledgers, process: ledger})


def _with_handlings(evidence: ElasticEvidence, process: str, *added: Handling) -> ElasticEvidence:
    """The evidence with these handlings of the process too."""
    ledger = evidence.ledgers[process]
    return _with_ledger(evidence, process, replace(ledger, handlings=[*ledger.handlings, *added]))


def _exchanged(evidence: ElasticEvidence, changes: Mapping[Handling, Handling | None]) -> ElasticEvidence:
    """The evidence with other handlings in place of these; None: without the handling."""
    ledgers = {}
    for process, ledger in evidence.ledgers.items():
        kept = [changes.get(handling, handling) for handling in ledger.handlings]
        ledgers[process] = replace(ledger, handlings=[handling for handling in kept if handling is not None])
    return replace(evidence, ledgers=ledgers)


def _owner_of(evidence: ElasticEvidence, handling: Handling) -> Ownership | None:
    """The ownership in which the handling lies, from its begin to its end."""
    for ownership in evidence.slots.of_processes().get((handling.process, handling.slot), ()):
        end_ns = _FAR * 10**9 if ownership.to_ns is None else ownership.to_ns
        if handling.end_ns is not None and ownership.from_ns <= handling.begin_ns <= handling.end_ns <= end_ns:
            return ownership
    return None


def _pair(evidence: ElasticEvidence) -> tuple[Handling, Handling]:
    """Two first handlings of a key in a row, in one ownership."""
    by_key: dict[str, list[Handling]] = {}
    seen: set[SlotRecord] = set()
    for handling in _handlings(evidence):
        if handling.record not in seen:
            seen.add(handling.record)
            by_key.setdefault(handling.key, []).append(handling)
    pairs = (pair for handlings in by_key.values() for pair in pairwise(handlings))
    for first, second in pairs:
        owner = _owner_of(evidence, first)
        if owner is not None and owner is _owner_of(evidence, second) and first.number < second.number:
            return first, second
    raise AssertionError("no key has two records under one owner")


def _give_a_slot_twice(evidence: ElasticEvidence) -> ElasticEvidence:
    for place, (at_ns, record) in enumerate(evidence.coordinator):
        if (
            isinstance(record, ConsumerGroupRecord)
            and isinstance(record.value, CurrentMemberAssignmentValue)
            and record.value.assigned_partitions
        ):
            twin = CoordinatorRecord(at_ns, replace(record, member_id=_PLANTED))
            log = [*evidence.coordinator[: place + 1], twin, *evidence.coordinator[place + 1 :]]
            return replace(_with_ledger(evidence, _PLANTED, ProcessLedger(KEYED)), coordinator=log)
    raise AssertionError("no slot is assigned")


def _handle_without_the_slot(evidence: ElasticEvidence) -> ElasticEvidence:
    stray = _handlings(evidence)[0]._replace(process=_PLANTED)
    return _with_ledger(evidence, _PLANTED, ProcessLedger(KEYED, [stray]))


def _hoard(evidence: ElasticEvidence) -> ElasticEvidence:
    """Let a process go on handling after the removal of its member."""
    killed = evidence.killed.keys() | evidence.stopped.keys()
    for ownership in evidence.slots.ownerships:
        if ownership.is_removed and ownership.process in killed and ownership.to_ns is not None:
            begin_ns = ownership.to_ns + 2 * CLOCK_NS
            ledger = evidence.ledgers[ownership.process]
            if ledger.leaving_ns is None or ledger.leaving_ns > ownership.to_ns:
                made = [
                    Handling(ownership.process, ownership.slot, _FAR + n, f"far-{n}", 0, begin_ns + n, begin_ns + n)
                    for n in range(evidence.most_in_hand + 1)
                ]
                return _with_handlings(evidence, ownership.process, *made)
    raise AssertionError("no member was removed")


def _overlap(evidence: ElasticEvidence) -> ElasticEvidence:
    first, second = _pair(evidence)
    return _exchanged(evidence, {first: first._replace(end_ns=second.begin_ns + 1)})


def _swap(evidence: ElasticEvidence) -> ElasticEvidence:
    first, second = _pair(evidence)
    swapped = {
        first: first._replace(begin_ns=second.begin_ns, end_ns=second.end_ns),
        second: second._replace(begin_ns=first.begin_ns, end_ns=first.end_ns),
    }
    return _exchanged(evidence, swapped)


def _repeat_a_committed_record(evidence: ElasticEvidence) -> ElasticEvidence:
    handlings = _handlings(evidence)
    for ownership in evidence.slots.ownerships:
        if ownership.process not in evidence.ledgers:
            continue
        for handling in handlings:
            is_done = handling.slot == ownership.slot and handling.offset < ownership.progress.stable_offset
            if is_done and handling.begin_ns < ownership.from_ns:
                at_ns = ownership.from_ns + 1
                again = handling._replace(process=ownership.process, begin_ns=at_ns, end_ns=at_ns)
                return _with_handlings(evidence, ownership.process, again)
    raise AssertionError("no slot has moved with its progress")


def _repeat_without_a_fault(evidence: ElasticEvidence) -> ElasticEvidence:
    first, _ = _pair(evidence)
    end_ns = first.end_ns or first.begin_ns
    return _with_handlings(evidence, first.process, first._replace(begin_ns=end_ns + 1, end_ns=end_ns + 1))


def _repeat_in_a_quiet_time(evidence: ElasticEvidence) -> ElasticEvidence:
    first = _handlings(evidence)[0]
    at_ns = evidence.quiet[0] + 1
    return _with_handlings(evidence, first.process, first._replace(begin_ns=at_ns, end_ns=at_ns))


def _lose(evidence: ElasticEvidence) -> ElasticEvidence:
    lost = next(iter(evidence.produced))
    return _exchanged(evidence, {each: None for each in _handlings(evidence) if each.record == lost})


def _forget_the_progress(evidence: ElasticEvidence) -> ElasticEvidence:
    slot = next(iter(evidence.produced)).slot
    value = OffsetCommitValue(offset=0, metadata="", commit_timestamp=0)
    at_ns = evidence.coordinator[-1].at_ns
    forgotten = CoordinatorRecord(at_ns, OffsetRecord(group_id="", topic="", partition=slot, value=value))
    return replace(evidence, coordinator=[*evidence.coordinator, forgotten])


def _acknowledged(evidence: ElasticEvidence) -> tuple[str, CommitAttempt]:
    """An acknowledged commit, with its process."""
    for process, ledger in evidence.ledgers.items():
        for attempt in ledger.attempts:
            if attempt.is_acknowledged:
                return process, attempt
    raise AssertionError("no commit was acknowledged")


def _invent_a_commit(evidence: ElasticEvidence) -> ElasticEvidence:
    process, attempt = _acknowledged(evidence)
    ledger = evidence.ledgers[process]
    invented = attempt._replace(rectangles=(Rectangle(0, _FAR),))
    return _with_ledger(evidence, process, replace(ledger, attempts=[*ledger.attempts, invented]))


def _commit_without_the_slot(evidence: ElasticEvidence) -> ElasticEvidence:
    _, attempt = _acknowledged(evidence)
    return _with_ledger(evidence, _PLANTED, ProcessLedger(KEYED, [], [attempt]))


ELASTIC_PLANTS: Final[Mapping[str, PlantElastic]] = {
    SHARED: _give_a_slot_twice,
    STRAY: _handle_without_the_slot,
    HOARD: _hoard,
    OVERLAP: _overlap,
    DISORDER: _swap,
    AGAIN: _repeat_a_committed_record,
    REPEATED: _repeat_without_a_fault,
    RESTLESS: _repeat_in_a_quiet_time,
    LOST: _lose,
    UNCOMMITTED: _forget_the_progress,
    UNKEPT: _invent_a_commit,
    FENCED: _commit_without_the_slot,
}
"""The planter of each broken promise."""
