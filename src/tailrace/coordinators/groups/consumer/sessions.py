"""Deadlines of members of consumer groups: of the next heartbeat, and of a requested revocation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.coordinators.groups.schedule import Schedule


class MemberKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


@dataclass(slots=True)
class _Session:
    heard_at_ms: int
    ends_at_ms: int
    end: str
    """The reason for removal at `ends_at_ms`."""
    act_by_ms: int | None = None
    fault: str = ""
    """The reason for removal at `act_by_ms`."""

    @property
    def deadline_ms(self) -> int:
        return self.ends_at_ms if self.act_by_ms is None else min(self.ends_at_ms, self.act_by_ms)


class Sessions:
    """Deadlines in ms of the host's monotonic clock. A heartbeat costs no heap operation: an alarm is moved only when
    it is due."""

    def __init__(self, timeout_ms_of: Callable[[str], int]) -> None:
        """`timeout_ms_of` returns the present session timeout of a group by its id."""
        self._timeout_ms_of = timeout_ms_of
        self._sessions: dict[MemberKey, _Session] = {}
        self._alarms: Schedule[MemberKey] = Schedule()
        """An alarm for each member, not later than the member's deadlines."""

    def __len__(self) -> int:
        """The number of alarms, including replaced alarms."""
        return len(self._alarms)

    @property
    def next_deadline_ms(self) -> int | None:
        """A time that is not later than the next deadline."""
        return self._alarms.next_deadline_ms

    def heard(self, key: MemberKey, now_ms: int, classic_timeout_ms: int | None) -> None:
        """Start the session again. `classic_timeout_ms` is the timeout of a member with the classic protocol."""
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
        """Set a deadline for an action of the member, unless a deadline is set; `fault` is the reason for the removal
        if the deadline passes."""
        session = self._sessions.get(key)
        if session is not None and session.act_by_ms is None:
            session.act_by_ms = now_ms + timeout_ms
            session.fault = f"{fault} within its rebalance timeout of {timeout_ms} ms (max.poll.interval.ms)"
            self._set_alarm(key, session)

    def expect_nothing(self, key: MemberKey) -> None:
        """Remove the deadline: the member has done the expected action."""
        session = self._sessions.get(key)
        if session is not None:
            session.act_by_ms = None

    def forget(self, key: MemberKey) -> None:
        self._sessions.pop(key, None)
        self._alarms.set(key, None)

    def silent_ms(self, key: MemberKey, now_ms: int) -> int | None:
        """The time since the member's last heartbeat."""
        session = self._sessions.get(key)
        return None if session is None else now_ms - session.heard_at_ms

    def take_due(self, now_ms: int) -> list[tuple[MemberKey, str]]:
        """Forget and return the members that have timed out, with the reason."""
        due = []
        for key in self._alarms.take_due(now_ms):
            session = self._sessions[key]
            if session.deadline_ms > now_ms:
                self._set_alarm(key, session)
            else:
                del self._sessions[key]
                due.append((key, session.end if session.ends_at_ms <= now_ms else session.fault))
        return due

    def _set_alarm(self, key: MemberKey, session: _Session) -> None:
        alarm_at_ms = self._alarms.get(key)
        if alarm_at_ms is None or session.deadline_ms < alarm_at_ms:
            self._alarms.set(key, session.deadline_ms)
