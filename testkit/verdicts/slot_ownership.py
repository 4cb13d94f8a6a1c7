"""The owners of slots by the log of a group's coordinator (KIP-848), and the group's progress in each slot. Pure.

A slot is a partition of a view, by its number. A member owns a slot from the record that assigns the slot to the member
up to the record without the slot: in between the slot is assigned, or waits for its revocation. A member that is
removed from the group loses all of its slots at once. The log has no names of processes; its records about members have
client ids, and each process of a test has a client id of its own.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    CurrentMemberAssignmentValue,
)
from tailrace.coordinators.groups.records import GroupLogRecord, OffsetCommitValue, OffsetRecord
from tailrace.coordinators.groups.stored_ranges import decode_ranges
from tailrace.model.committed_progress import CommittedProgress
from tailrace.model.views import key_range_of

NOTHING_COMMITTED: Final = CommittedProgress(0)


class CoordinatorRecord(NamedTuple):
    """A record of the group in the coordinator's log. The coordinator has written the record at this time or later."""

    at_ns: int
    record: GroupLogRecord


@dataclass(slots=True, kw_only=True)
class Ownership:
    """The time in which a member owns a slot."""

    process: str
    member_id: str
    slot: int
    from_ns: int
    progress: CommittedProgress
    """The progress of the group in the slot when the time begins: the owner's first record is not below it."""
    to_ns: int | None = None
    """None: the log ends before."""
    is_removed: bool = False
    """Whether the member was removed from the group. Otherwise the member has given the slot up."""


class SlotProgress:
    """The group's progress in one slot, over time."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._states: list[CommittedProgress] = []

    def add(self, at_ns: int, state: CommittedProgress) -> None:
        """Note the next state."""
        self._times.append(at_ns)
        self._states.append(state)

    def at(self, at_ns: int) -> CommittedProgress:
        """The state at this time."""
        place = bisect_right(self._times, at_ns)
        return self._states[place - 1] if place else NOTHING_COMMITTED

    @property
    def last(self) -> CommittedProgress:
        """The state at the end of the log."""
        return self._states[-1] if self._states else NOTHING_COMMITTED


@dataclass(slots=True)
class SlotOwnerships:
    """The content of a coordinator's log about the slots of one view."""

    ownerships: list[Ownership] = field(default_factory=list)
    """In order of their begin."""
    shared: list[str] = field(default_factory=list)
    """The records by which a slot has a second owner."""
    progress: dict[int, SlotProgress] = field(default_factory=lambda: defaultdict(SlotProgress))

    def of_processes(self) -> dict[tuple[str, int], list[Ownership]]:
        """The ownerships by process and slot, in order."""
        found: dict[tuple[str, int], list[Ownership]] = defaultdict(list)
        for ownership in self.ownerships:
            found[ownership.process, ownership.slot].append(ownership)
        return found


class _Replay:
    def __init__(self, fan_out: int) -> None:
        self.found = SlotOwnerships()
        self._fan_out = fan_out
        self._processes: dict[str, str] = {}
        self._held: dict[str, dict[int, Ownership]] = defaultdict(dict)
        self._owner_of: dict[int, Ownership] = {}

    def take(self, at_ns: int, record: GroupLogRecord) -> None:
        """Apply the next record of the log."""
        match record:
            case OffsetRecord(value=OffsetCommitValue() as value):
                self._commit(at_ns, record.partition, value)
            case ConsumerGroupRecord(value=ConsumerGroupMemberMetadataValue() as value):
                self._processes[record.member_id] = value.client_id
            case ConsumerGroupRecord(value=CurrentMemberAssignmentValue() as value):
                named = (*value.assigned_partitions, *value.partitions_pending_revocation)
                slots = {slot for topic in named for slot in topic.partitions}
                self._hold(at_ns, record.member_id, slots, is_removed=False)
            case ConsumerGroupRecord(kind=ConsumerRecordKind.CURRENT, value=None):
                self._hold(at_ns, record.member_id, set(), is_removed=True)

    def _commit(self, at_ns: int, slot: int, value: OffsetCommitValue) -> None:
        ranges = decode_ranges(value.offset, value.ranges)
        self.found.progress[slot].add(at_ns, ranges.of_hashes(key_range_of(slot, self._fan_out)))

    def _hold(self, at_ns: int, member_id: str, slots: set[int], *, is_removed: bool) -> None:
        held = self._held[member_id]
        for slot in held.keys() - slots:
            ended = held.pop(slot)
            ended.to_ns, ended.is_removed = at_ns, is_removed
            if self._owner_of.get(slot) is ended:
                del self._owner_of[slot]
        for slot in sorted(slots - held.keys()):
            owner = self._owner_of.get(slot)
            process = self._processes.get(member_id, member_id)
            if owner is not None:
                self.found.shared.append(f"slot {slot} goes to {process} while {owner.process} owns it")
            ownership = Ownership(
                process=process,
                member_id=member_id,
                slot=slot,
                from_ns=at_ns,
                progress=self.found.progress[slot].last,
            )
            held[slot] = self._owner_of[slot] = ownership
            self.found.ownerships.append(ownership)


def replay(records: Iterable[CoordinatorRecord], fan_out: int) -> SlotOwnerships:
    """The owners and the progress that the records of a whole log make, in the order of the log."""
    replayed = _Replay(fan_out)
    for at_ns, record in records:
        replayed.take(at_ns, record)
    return replayed.found
