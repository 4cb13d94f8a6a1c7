"""Deadlines of consumer group members: for the next heartbeat, and for the revocation they were asked for."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

_SPARE_ALARMS: Final = 64


class MemberKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


@dataclass(slots=True)
class _Session:
    heard_at_ms: int
    ends_at_ms: int
    end: str
    """The reason for removal then."""
    act_by_ms: int | None = None
    fault: str = ""
    """The reason for removal at `act_by_ms`."""
    alarm_at_ms: int | None = None
    """The earliest entry of the heap that is this member's: not later than either deadline."""

    @property
    def deadline_ms(self) -> int:
        return self.ends_at_ms if self.act_by_ms is None else min(self.ends_at_ms, self.act_by_ms)


class Sessions:
    """Deadlines in ms of the host's monotonic clock. A heartbeat costs no heap operation: an alarm is put off late."""

    def __init__(self, timeout_ms_of: Callable[[str], int]) -> None:
        """`timeout_ms_of` says how long a member of the group of this id may be silent now."""
        self._timeout_ms_of = timeout_ms_of
        self._sessions: dict[MemberKey, _Session] = {}
        self._heap: list[tuple[int, MemberKey]] = []
        """An alarm that was put off or forgotten stays until it comes up, or there are too many of them."""

    def __len__(self) -> int:
        """The number of alarms it keeps: at most twice as many as there are members, and some."""
        return len(self._heap)

    @property
    def next_deadline_ms(self) -> int | None:
        """Not later than the next deadline."""
        return self._heap[0][0] if self._heap else None

    def heard(self, key: MemberKey, now_ms: int, classic_timeout_ms: int | None = None) -> None:
        """The member lives. One with the classic protocol has said for how long it may be silent."""
        if classic_timeout_ms is None:
            timeout_ms, setting = self._timeout_ms_of(key.group_id), "group.consumer.session.timeout.ms"
        else:
            timeout_ms, setting = classic_timeout_ms, "session.timeout.ms"
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session(now_ms, now_ms + timeout_ms, "")
        session.heard_at_ms, session.ends_at_ms = now_ms, now_ms + timeout_ms
        session.end = f"no heartbeat within {setting}={timeout_ms}"
        self._set_alarm(key, session)

    def expect(self, key: MemberKey, timeout_ms: int, now_ms: int, fault: str) -> None:
        """It has to do something within this time, which goes on from when that began; `fault` says what it did not."""
        session = self._sessions.get(key)
        if session is not None and session.act_by_ms is None:
            session.act_by_ms = now_ms + timeout_ms
            session.fault = f"{fault} within its rebalance timeout of {timeout_ms} ms (max.poll.interval.ms)"
            self._set_alarm(key, session)

    def expect_nothing(self, key: MemberKey) -> None:
        """It has done what it had to."""
        session = self._sessions.get(key)
        if session is not None:
            session.act_by_ms = None

    def forget(self, key: MemberKey) -> None:
        self._sessions.pop(key, None)

    def silent_ms(self, key: MemberKey, now_ms: int) -> int | None:
        """The time since its last heartbeat."""
        session = self._sessions.get(key)
        return None if session is None else now_ms - session.heard_at_ms

    def take_due(self, now_ms: int) -> list[tuple[MemberKey, str]]:
        """The members that have timed out, with the reason; they are forgotten."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = heapq.heappop(self._heap)
            session = self._sessions.get(key)
            if session is None or session.alarm_at_ms != at_ms:
                continue
            session.alarm_at_ms = None
            if session.deadline_ms > now_ms:
                self._set_alarm(key, session)
                continue
            del self._sessions[key]
            due.append((key, session.end if session.ends_at_ms <= now_ms else session.fault))
        return due

    def _set_alarm(self, key: MemberKey, session: _Session) -> None:
        if session.alarm_at_ms is None or session.deadline_ms < session.alarm_at_ms:
            session.alarm_at_ms = session.deadline_ms
            heapq.heappush(self._heap, (session.deadline_ms, key))
            if len(self._heap) > 2 * len(self._sessions) + _SPARE_ALARMS:
                self._drop_old_alarms()

    def _drop_old_alarms(self) -> None:
        """Members that come and go do not pile up: what is dropped has paid for it."""
        alarms = ((session.alarm_at_ms, key) for key, session in self._sessions.items())
        self._heap = [(at_ms, key) for at_ms, key in alarms if at_ms is not None]
        heapq.heapify(self._heap)
