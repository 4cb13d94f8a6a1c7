"""The latest events of a group with their causes, and the latest moves of its committed offsets, for `describe`.

Events are only in the memory of the coordinator: the last HISTORY_LENGTH events of each group, until the coordinator's
leadership of the group's partition ends. A repetition of the last event only raises the count of this event, so that a
client in a loop does not displace the events that led to the loop.

The moves of offsets are a function of the log, with the times of the commits, in ms since 1970. After compaction and a
restart only the last commit of each offset is known, and counts as the last move.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tailrace.coordinators.groups.records import OffsetRecord
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition

HISTORY_LENGTH = 100
_LONGEST_REASON = 255
"""Characters of a reason that a client has sent, and of a member id."""
_LONGEST_SENTENCE = 1_000
"""Characters of a whole reason, which contains names that clients choose, of up to 32,767 bytes per name."""


class GroupEventKind(StrEnum):
    """The kind of event."""

    LOADED = "loaded"
    """This broker took the group over: earlier events are not known here."""
    JOIN = "join"
    LEAVE = "leave"
    EXPIRED = "expired"
    """The coordinator removed a member that was silent or late; the reason names the timeout."""
    FENCED = "fenced"
    """Another process came with the same group.instance.id, or the former process still sends requests."""
    REBALANCE = "rebalance"
    """The members must join again; the reason names the cause."""
    GENERATION = "generation"
    """The members have joined."""
    ASSIGNED = "assigned"
    """The assignment is committed and handed out."""
    CONVERTED = "converted"
    """The group was converted from a classic group to a consumer group, or back."""
    REFUSED = "refused"
    """A member's request was refused; the reason names request and error."""


@dataclass(slots=True, kw_only=True)
class GroupEvent:
    """An event. Times in ms of the host's monotonic clock."""

    kind: GroupEventKind
    member_id: str
    """The member of the event; empty: the event is about the group as a whole."""
    reason: str
    first_at_ms: int
    last_at_ms: int
    count: int = 1


class GroupHistory:
    """The last events of one group."""

    def __init__(self) -> None:
        self._events: deque[GroupEvent] = deque(maxlen=HISTORY_LENGTH)

    @property
    def events(self) -> Sequence[GroupEvent]:
        """The events, oldest first."""
        return tuple(self._events)

    def add(self, kind: GroupEventKind, now_ms: int, reason: str, member_id: str = "") -> None:
        """Add an event; a repetition of the last event raises the count of that event."""
        member_id, reason = member_id[:_LONGEST_REASON], reason[:_LONGEST_SENTENCE]
        last = self._events[-1] if self._events else None
        if last is not None and (last.kind, last.member_id, last.reason) == (kind, member_id, reason):
            last.count += 1
            last.last_at_ms = now_ms
        else:
            self._events.append(
                GroupEvent(kind=kind, member_id=member_id, reason=reason, first_at_ms=now_ms, last_at_ms=now_ms)
            )

    def add_refusal(self, request: str, code: ErrorCode, now_ms: int, member_id: str) -> None:
        """Add the refusal of a request with this code; for a fenced member, add an event of kind FENCED."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.add(GroupEventKind.FENCED, now_ms, f"{request}: its group.instance.id is another's now", member_id)
        else:
            self.add(GroupEventKind.REFUSED, now_ms, f"{request}: {code.name}", member_id)


def in_clients_words(reason: str | None) -> str:
    """The reason that a client has sent, as the end of a sentence; empty without a reason (KIP-800)."""
    return f": {reason[:_LONGEST_REASON]}" if reason else ""


WINDOW_MS = 30_000
"""The least time over which the pace is measured, once the commits reach back that far. The measured time is mostly
less than twice as long."""


class OffsetProgress:
    """The moves of one committed offset."""

    __slots__ = ("_next_at_ms", "_next_offset", "earlier_at_ms", "earlier_offset", "moved_at_ms", "offset")

    def __init__(self, offset: int, at_ms: int) -> None:
        self._start(offset, at_ms)

    def _start(self, offset: int, at_ms: int) -> None:
        self.offset = offset
        self.moved_at_ms = at_ms
        """The time when the offset last advanced, or was first committed."""
        self.earlier_offset = self._next_offset = offset
        """The offset of an earlier commit, for the pace; the last commit if there is no earlier commit."""
        self.earlier_at_ms = self._next_at_ms = at_ms

    def commit(self, offset: int, at_ms: int) -> None:
        """Take another commit of the offset."""
        if offset < self.offset:
            # The offset was set back on purpose: earlier moves say nothing about the pace from here.
            self._start(offset, at_ms)
        elif offset > self.offset:
            self.offset, self.moved_at_ms = offset, at_ms
            if at_ms - self._next_at_ms >= WINDOW_MS:
                self.earlier_offset, self.earlier_at_ms = self._next_offset, self._next_at_ms
                self._next_offset, self._next_at_ms = offset, at_ms


_NONE: Mapping[TopicPartition, OffsetProgress] = MappingProxyType({})


class ProgressBook:
    """The progress of all groups of a coordinator."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetProgress]] = {}

    def apply(self, record: OffsetRecord) -> None:
        """Take an offset that was committed or deleted."""
        partition = TopicPartition(record.topic, record.partition)
        if record.value is None:
            self._forget(record.group_id, partition)
            return
        offsets = self._groups.setdefault(record.group_id, {})
        progress = offsets.get(partition)
        if progress is None:
            offsets[partition] = OffsetProgress(record.value.offset, record.value.commit_timestamp)
        else:
            progress.commit(record.value.offset, record.value.commit_timestamp)

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self._groups.get(group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._groups[group_id]

    def of(self, group_id: str) -> Mapping[TopicPartition, OffsetProgress]:
        """The group's progress by partition."""
        return self._groups.get(group_id, _NONE)
