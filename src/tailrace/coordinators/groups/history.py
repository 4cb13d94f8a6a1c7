"""The latest events of a group, with their causes: in the coordinator's memory, for `describe` (not replicated).

The last HISTORY_LENGTH events; a repetition of the last one only counts up, so that a client in a loop cannot push out
what led to it. It ends with the leadership over the group's partition.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.model.errors import ErrorCode

HISTORY_LENGTH = 100
_LONGEST_REASON = 255
"""Characters of a client's own words, and of its name."""
_LONGEST_SENTENCE = 1_000
"""Characters of a reason as a whole: clients choose the names in it, and they may be of 32,767 bytes each."""


class GroupEventKind(StrEnum):
    """The kind of event."""

    LOADED = "loaded"
    """This broker took the group over: earlier events are not known here."""
    JOIN = "join"
    LEAVE = "leave"
    EXPIRED = "expired"
    """The coordinator removed a member that was silent or late; the reason names the timeout."""
    FENCED = "fenced"
    """Another process came with the same group.instance.id, or the former one still calls."""
    REBALANCE = "rebalance"
    """All must join again; the reason names the cause."""
    GENERATION = "generation"
    """All have joined."""
    ASSIGNED = "assigned"
    """The assignment is committed and handed out."""
    CONVERTED = "converted"
    """From a classic group to a consumer group, or back."""
    REFUSED = "refused"
    """A member's request was refused; the reason names request and error."""


@dataclass(slots=True, kw_only=True)
class GroupEvent:
    """One event. Times in ms of the host's monotonic clock."""

    kind: GroupEventKind
    member_id: str
    """Empty: of the group as a whole."""
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
        """Oldest first."""
        return tuple(self._events)

    def note(self, kind: GroupEventKind, now_ms: int, reason: str, member_id: str = "") -> None:
        """This happened now."""
        member_id, reason = member_id[:_LONGEST_REASON], reason[:_LONGEST_SENTENCE]
        last = self._events[-1] if self._events else None
        if last is not None and (last.kind, last.member_id, last.reason) == (kind, member_id, reason):
            last.count += 1
            last.last_at_ms = now_ms
        else:
            self._events.append(
                GroupEvent(kind=kind, member_id=member_id, reason=reason, first_at_ms=now_ms, last_at_ms=now_ms)
            )

    def note_refusal(self, request: str, code: ErrorCode, now_ms: int, member_id: str) -> None:
        """A request was refused with this code; a fenced member is no mere refusal."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.note(GroupEventKind.FENCED, now_ms, f"{request}: its group.instance.id is another's now", member_id)
        else:
            self.note(GroupEventKind.REFUSED, now_ms, f"{request}: {code.name}", member_id)


def in_clients_words(reason: str | None) -> str:
    """A client's own reason as the end of a sentence; nothing if it gave none (KIP-800)."""
    return f": {reason[:_LONGEST_REASON]}" if reason else ""
