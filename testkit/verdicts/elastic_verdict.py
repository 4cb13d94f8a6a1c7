"""The verdict on a group whose members of several clients share partitions by slots, under faults (KIP-848, KIP-X).

1. By the coordinator's log no slot has two owners at once.
2. A process handles records of slots that it owns. A process that was stopped, or cut off, for so long that the group
   has removed its member may not know that yet: it is a zombie, and handles at most the records in its hands.
3. No two owners handle records of a key at once. The handling of a zombie is left out.
4. The first handlings of the records of a key are in the order in which they were written.
5. A record that was committed when its owner got the slot is not handled by this owner. A client that knows no ranges
   of keys is bound by the offset alone.
6. A record is handled again only if its former owner was removed from the group before the record was committed, by a
   kill, a stop, or silence; or if the former owner has tried to commit in vain, as a member whose epoch is too old.
   In a time without faults no record is handled again, unless a client that is not ours has tried to commit in vain:
   it gives up by its own clock.
7. Each acknowledged record is handled to the end, and committed in the end.
8. An acknowledged commit is in the log by then, and its author owned the slot when the commit was sent.

All times are of one clock. Records of the coordinator have whole milliseconds: a comparison of such a time with a
process's time allows for that.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from tailrace.model.committed_progress import Rectangle
from tailrace.model.key_ranges import hash_of
from tailrace.model.views import key_range_of
from testkit.verdicts.slot_ownership import CoordinatorRecord, Ownership, SlotOwnerships, replay

SHARED: Final = "two owners"
STRAY: Final = "is handled without the slot"
HOARD: Final = "a zombie handles too much"
OVERLAP: Final = "two handle a key at once"
DISORDER: Final = "is out of order"
AGAIN: Final = "was committed, and is handled again"
REPEATED: Final = "is handled again without a fault"
RESTLESS: Final = "is handled again in a time without faults"
LOST: Final = "is not handled to the end"
UNCOMMITTED: Final = "is not committed"
UNKEPT: Final = "an acknowledged commit is not in the log"
FENCED: Final = "a commit without the slot is acknowledged"

KEYED: Final = "keyed"
"""The kind of client that knows ranges of keys: it leaves out records that are committed beyond the offset."""
PLAIN: Final = "plain"
OURS: Final = (KEYED, PLAIN)
FAILED_COMMIT: Final = "failed commit"
"""A cause of repeats."""
CLOCK_NS: Final = 3_000_000
"""Times of the coordinator's log may be so much lower than the time of the write, and clocks differ by less."""


class SlotRecord(NamedTuple):
    """The place of a record: a slot of a view, and the offset."""

    slot: int
    offset: int


class NumberedRecord(NamedTuple):
    """A record whose write was acknowledged: its key, and its number among the records of the key."""

    key: str
    number: int


class Handling(NamedTuple):
    """The work of a process on a record."""

    process: str
    slot: int
    offset: int
    key: str
    number: int
    begin_ns: int
    end_ns: int | None
    """None: the process was killed before the end."""

    @property
    def record(self) -> SlotRecord:
        return SlotRecord(self.slot, self.offset)


class CommitAttempt(NamedTuple):
    """A commit of a process in one slot, and its answer."""

    sent_ns: int
    at_ns: int
    slot: int
    rectangles: tuple[Rectangle, ...]
    is_acknowledged: bool


@dataclass(slots=True)
class ProcessLedger:
    """The content of the file of one process."""

    kind: str
    handlings: list[Handling] = field(default_factory=list)
    attempts: list[CommitAttempt] = field(default_factory=list)
    leaving_ns: int | None = None
    """The time at which the process was asked to leave the group."""


@dataclass(frozen=True, kw_only=True)
class ElasticEvidence:
    """The evidence of a run."""

    fan_out: int
    produced: Mapping[SlotRecord, NumberedRecord]
    """The acknowledged records."""
    ledgers: Mapping[str, ProcessLedger]
    """By process, which is the client id of its members."""
    coordinator: Sequence[CoordinatorRecord]
    """The records of the group in the coordinator's log, from the first record on."""
    killed: Mapping[str, int]
    """The times at which processes were killed."""
    stopped: Mapping[str, Sequence[tuple[int, int]]]
    """The times for which processes were stopped."""
    quiet: tuple[int, int]
    """The time without faults."""
    most_in_hand: int
    """The most records that a process may handle before it learns of the removal of its member."""

    @cached_property
    def slots(self) -> SlotOwnerships:
        """The owners of slots by the coordinator's log."""
        return replay(self.coordinator, self.fan_out)


class ElasticJudgement:
    """The judgement of a run: its broken promises, and its figures."""

    def __init__(self, evidence: ElasticEvidence) -> None:
        self._evidence = evidence
        self._owned = evidence.slots.of_processes()
        self.repeats: Counter[str] = Counter()
        """The records that were handled again, by the cause."""
        self.quiet_repeats: Counter[str] = Counter()
        """The repeats in the time without faults."""
        self.zombies: Counter[tuple[str, int]] = Counter()
        """The records that each process has handled after the removal of its member, by the time of the removal."""
        self._handlings = sorted(
            (handling for ledger in evidence.ledgers.values() for handling in ledger.handlings),
            key=lambda handling: handling.begin_ns,
        )
        self._owners = {id(handling): self._owner(handling) for handling in self._handlings}
        self.faults = list(self._judged())

    def _judged(self) -> Iterator[str]:
        for shared in self._evidence.slots.shared:
            yield f"{SHARED}: {shared}"
        yield from self._strays()
        yield from self._hoards()
        yield from self._overlaps()
        yield from self._disorder()
        yield from self._repeats()
        yield from self._lost()
        yield from self._commits()

    # owners

    def _latest(self, process: str, slot: int, at_ns: int) -> Ownership | None:
        """The process's ownership of the slot that has begun last at this time."""
        begun = [found for found in self._owned.get((process, slot), ()) if found.from_ns <= at_ns + CLOCK_NS]
        return begun[-1] if begun else None

    def _owner(self, handling: Handling) -> Ownership | None:
        """The ownership under which a record is handled; None for a zombie, and for a stray."""
        latest = self._latest(handling.process, handling.slot, handling.begin_ns)
        if latest is None or (latest.to_ns is not None and latest.to_ns + CLOCK_NS < handling.begin_ns):
            return None
        return latest

    def _is_in_order(self, ownership: Ownership) -> bool:
        """Whether the owner gave the slot up by itself: it was revoked, or the process was asked to leave."""
        leaving_ns = self._evidence.ledgers[ownership.process].leaving_ns
        has_left = leaving_ns is not None and ownership.to_ns is not None and leaving_ns <= ownership.to_ns
        return not ownership.is_removed or (has_left and not self._was_killed(ownership))

    def _was_killed(self, ownership: Ownership) -> bool:
        killed_ns = self._evidence.killed.get(ownership.process)
        return killed_ns is not None and (ownership.to_ns is None or killed_ns <= ownership.to_ns + CLOCK_NS)

    def _cause(self, ownership: Ownership) -> str:
        """The cause for which a member was removed."""
        if self._was_killed(ownership):
            return "kill"
        end_ns = ownership.to_ns
        stops = self._evidence.stopped.get(ownership.process, ())
        if any(end_ns is None or (begin <= end_ns and end >= ownership.from_ns) for begin, end in stops):
            return "stop"
        return "silence"

    # handlings

    def _strays(self) -> Iterator[str]:
        for handling in self._handlings:
            if self._owners[id(handling)] is not None:
                continue
            latest = self._latest(handling.process, handling.slot, handling.begin_ns)
            if latest is None or self._is_in_order(latest):
                yield f"{STRAY}: {_told(handling)}"
            else:
                assert latest.to_ns is not None, "the ownership has ended before the handling"
                self.zombies[handling.process, latest.to_ns] += 1

    def _hoards(self) -> Iterator[str]:
        for (process, removed_ns), count in self.zombies.items():
            if count > self._evidence.most_in_hand:
                yield f"{HOARD}: {count} records by {process}, which was removed at {removed_ns}"

    def _overlaps(self) -> Iterator[str]:
        running: dict[str, list[Handling]] = defaultdict(list)
        for handling in self._handlings:
            if self._owners[id(handling)] is None:
                continue
            earlier = [other for other in running[handling.key] if _lasts_beyond(other, handling.begin_ns)]
            for other in earlier:
                owner = self._owners[id(other)]
                assert owner is not None, "only the handlings of owners are running"
                is_over = owner.to_ns is not None and owner.to_ns <= handling.begin_ns + CLOCK_NS
                if not is_over or self._is_in_order(owner):
                    yield f"{OVERLAP}: {_told(handling)}, while {_told(other)}"
            running[handling.key] = [*earlier, handling]

    def _disorder(self) -> Iterator[str]:
        seen: set[SlotRecord] = set()
        latest: dict[str, int] = {}
        for handling in self._handlings:
            if handling.record in seen:
                continue
            seen.add(handling.record)
            before = latest.get(handling.key, -1)
            if handling.number < before:
                yield f"{DISORDER}: {_told(handling)} after number {before}"
            latest[handling.key] = max(before, handling.number)

    def _repeats(self) -> Iterator[str]:
        former: dict[SlotRecord, Handling] = {}
        first_ns, last_ns = self._evidence.quiet
        for handling in self._handlings:
            before = former.get(handling.record)
            former[handling.record] = handling
            if before is None:
                continue
            fault, cause = self._judge_repeat(before, handling)
            self.repeats[cause] += 1
            if fault is not None:
                yield f"{fault}: {_told(handling)} ({cause}), before that {_told(before)}"
            if first_ns <= handling.begin_ns <= last_ns:
                self.quiet_repeats[cause] += 1
                is_ours = self._evidence.ledgers[before.process].kind in OURS
                if is_ours or cause != FAILED_COMMIT:
                    yield f"{RESTLESS}: {_told(handling)} ({cause}), before that {_told(before)}"

    def _judge_repeat(self, before: Handling, handling: Handling) -> tuple[str | None, str]:
        """The broken promise, if there is any, and the cause."""
        owner, former = self._owners[id(handling)], self._owners[id(before)]
        if owner is None:
            return None, "by a zombie"
        if self._is_known_done(owner, handling):
            return AGAIN, "committed"
        if former is None:
            return None, "after a zombie"
        if former is not owner and not self._is_in_order(former):
            return None, self._cause(former)
        if self._has_failed_to_commit(before, handling.begin_ns):
            return None, FAILED_COMMIT
        if former is owner:
            return REPEATED, "by the same owner"
        if owner.progress.is_committed(handling.offset, _hash(handling)):
            return None, "committed by key, to a client without ranges"
        return REPEATED, "in order"

    def _is_known_done(self, owner: Ownership, handling: Handling) -> bool:
        """Whether the owner knew, when it got the slot, that the record is done."""
        if self._evidence.ledgers[handling.process].kind == KEYED:
            return owner.progress.is_committed(handling.offset, _hash(handling))
        return handling.offset < owner.progress.stable_offset

    def _has_failed_to_commit(self, before: Handling, until_ns: int) -> bool:
        return any(
            not attempt.is_acknowledged and attempt.slot == before.slot and before.begin_ns < attempt.at_ns < until_ns
            for attempt in self._evidence.ledgers[before.process].attempts
        )

    # the end, and commits

    def _lost(self) -> Iterator[str]:
        done = {handling.record for handling in self._handlings if handling.end_ns is not None}
        for record, (key, number) in self._evidence.produced.items():
            if record not in done:
                yield f"{LOST}: slot {record.slot} offset {record.offset}, number {number} of {key}"
            final = self._evidence.slots.progress[record.slot].last
            if not final.is_committed(record.offset, hash_of(key.encode(), record.offset)):
                yield f"{UNCOMMITTED}: slot {record.slot} offset {record.offset}; the group is at {final.stable_offset}"

    def _commits(self) -> Iterator[str]:
        for process, ledger in self._evidence.ledgers.items():
            for attempt in ledger.attempts:
                if attempt.is_acknowledged:
                    yield from self._judge_commit(process, attempt)

    def _judge_commit(self, process: str, attempt: CommitAttempt) -> Iterator[str]:
        progress = self._evidence.slots.progress[attempt.slot].at(attempt.at_ns)
        hashes = key_range_of(attempt.slot, self._evidence.fan_out)
        clipped = [
            rectangle._replace(
                first_hash=max(rectangle.first_hash, hashes.first), last_hash=min(rectangle.last_hash, hashes.last)
            )
            for rectangle in attempt.rectangles
            if rectangle.first_hash <= hashes.last and rectangle.last_hash >= hashes.first
        ]
        if progress.with_committed(clipped) != progress:
            yield f"{UNKEPT}: {process} in slot {attempt.slot}, {clipped[:3]}; the log has {progress.stable_offset}"
        owner = self._latest(process, attempt.slot, attempt.at_ns)
        if owner is None or (owner.to_ns is not None and owner.to_ns + CLOCK_NS < attempt.sent_ns):
            yield f"{FENCED}: {process} in slot {attempt.slot} at {attempt.sent_ns}"


def _lasts_beyond(handling: Handling, at_ns: int) -> bool:
    return handling.end_ns is None or handling.end_ns > at_ns


def _hash(handling: Handling) -> int:
    return hash_of(handling.key.encode(), handling.offset)


def _told(handling: Handling) -> str:
    return (
        f"slot {handling.slot} offset {handling.offset}, number {handling.number} of {handling.key}, by "
        f"{handling.process} at {handling.begin_ns}"
    )
