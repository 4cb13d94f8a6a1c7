"""Contacts of brokers with the active controller, not replicated: a new controller starts afresh.

Times are of a clock that never jumps. A controller that has just become active gives every broker a whole session. Time
in which the controller itself did not run does not count as silence: heartbeats that came in that time may still wait
to be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.model.ids import BrokerId

DEFAULT_SESSION_TIMEOUT_MS: Final = 2_500
NEVER_APPLIED: Final = -1
WATCH_INTERVAL_MS: Final = 250
"""The interval at which a running controller notes that it runs."""
_LATE_MS: Final = 2 * WATCH_INTERVAL_MS
"""If the pause between two calls of `awake` is longer, the controller did not run in between."""


@dataclass(slots=True)
class _Contact:
    session_end_ms: int
    metadata_offset: int
    since_ms: int
    """The time of the broker's last heartbeat, or the start of this controller's watch."""
    gap_ms: int = 0
    """The longest recent time between two heartbeats. The value halves with each heartbeat that comes sooner."""
    is_heard: bool = True
    """Whether this controller has had a heartbeat of the broker. Without a heartbeat the broker counts as alive until
    its session ends."""


class Heartbeats:
    """The sessions of brokers. A session is prolonged by each heartbeat and ends by itself."""

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._contacts: dict[BrokerId, _Contact] = {}
        self._shutdowns: dict[BrokerId, int] = {}
        self._gone: dict[BrokerId, int] = {}
        self._awake_ms: int | None = None

    def restart(self, brokers: Iterable[BrokerId], now_ms: int) -> None:
        """Forget every contact; these brokers are alive until their sessions end."""
        end_ms = now_ms + self.session_timeout_ms
        self._contacts = {broker_id: _Contact(end_ms, NEVER_APPLIED, now_ms, is_heard=False) for broker_id in brokers}
        self._shutdowns.clear()
        self._gone.clear()
        self._awake_ms = now_ms

    def awake(self, now_ms: int) -> int:
        """Note that the controller runs; called every `WATCH_INTERVAL_MS`. Returns the time in which the controller did
        not run. Sessions of brokers are extended by this time, but not beyond a whole session from now."""
        before, self._awake_ms = self._awake_ms, now_ms
        if before is None or now_ms - before <= _LATE_MS:
            return 0
        asleep_ms = now_ms - before - WATCH_INTERVAL_MS
        for contact in self._contacts.values():
            if not contact.is_heard:
                contact.since_ms += asleep_ms
            contact.session_end_ms = min(contact.session_end_ms + asleep_ms, now_ms + self.session_timeout_ms)
        return asleep_ms

    def touch(self, broker_id: BrokerId, now_ms: int, metadata_offset: int = NEVER_APPLIED) -> None:
        """Note a heartbeat of a broker that has applied the metadata log up to this offset."""
        if not self._contacts:
            self._awake_ms = now_ms  # without brokers `awake` was not called
        before = self._contacts.get(broker_id)
        gap_ms = 0 if before is None else before.gap_ms
        self._contacts[broker_id] = _Contact(now_ms + self.session_timeout_ms, metadata_offset, now_ms, gap_ms)

    def prolong(self, broker_id: BrokerId, now_ms: int) -> None:
        """Prolong the session for a heartbeat that has come and is not decided on yet: the decisions before it may take
        long."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.session_end_ms = max(contact.session_end_ms, now_ms + self.session_timeout_ms)
            contact.gap_ms = max(now_ms - contact.since_ms, contact.gap_ms // 2) if contact.is_heard else 0
            contact.since_ms = now_ms
            contact.is_heard = True

    def shorten(self, broker_id: BrokerId, now_ms: int, timeout_ms: int) -> None:
        """Shorten the session of a broker whose connection was closed, to `timeout_ms` from now, or to more for a slow
        broker.

        A broker on a busy machine may have closed the connection itself: the session lasts at least twice the longest
        recent time between two of its heartbeats.
        """
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.session_end_ms = min(contact.session_end_ms, now_ms + max(timeout_ms, 2 * contact.gap_ms))

    def refused(self, broker_id: BrokerId, now_ms: int, timeout_ms: int) -> None:
        """Shorten the session of a broker whose node refuses connections: without a heartbeat since `restart`, the
        session ends `timeout_ms` after `restart`.

        The node may be the previous controller, which was killed, and has already been silent for the time of an
        election.
        """
        contact = self._contacts.get(broker_id)
        if contact is not None and not contact.is_heard:
            contact.session_end_ms = min(contact.session_end_ms, max(now_ms, contact.since_ms + timeout_ms))

    def forget(self, broker_id: BrokerId) -> None:
        """Forget a broker that is fenced, is unregistered or may stop: its silence is expected."""
        self._contacts.pop(broker_id, None)
        self._shutdowns.pop(broker_id, None)

    def end(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Note that a broker was allowed to stop: earlier heartbeats of this registration may still come."""
        self.forget(broker_id)
        self._gone[broker_id] = broker_epoch

    def has_ended(self, broker_id: BrokerId, broker_epoch: int) -> bool:
        """Whether this controller has allowed the broker in this registration to stop."""
        return self._gone.get(broker_id) == broker_epoch

    def begin_shutdown(self, broker_id: BrokerId, offset: int) -> int:
        """The offset of the record that took the broker's leaderships away: `offset`, unless an earlier call has noted
        another offset."""
        return self._shutdowns.setdefault(broker_id, offset)

    def moved(self, before: int, after: int) -> None:
        """Correct the noted offsets: the records of a decision have moved to another offset, perhaps with a record that
        hands leaderships over."""
        for broker_id, offset in self._shutdowns.items():
            if offset >= before:
                self._shutdowns[broker_id] = offset + after - before

    def has_session(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Whether this controller has had a heartbeat of the broker lately. A new controller has had no heartbeat: when
        the controller and all brokers were killed, a restarted broker need not wait for its session to end."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.is_heard and now_ms < contact.session_end_ms

    def is_awaited(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Whether the broker may be alive: its session has not ended, with or without a heartbeat."""
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms < contact.session_end_ms

    def lowest_offset(self, brokers: Iterable[BrokerId]) -> int:
        """The metadata offset that every broker of `brokers` has applied; -1 if a broker's offset is not known."""
        known = (self._contacts.get(broker_id) for broker_id in brokers)
        return min((NEVER_APPLIED if c is None else c.metadata_offset for c in known), default=NEVER_APPLIED)

    def silent(self, now_ms: int) -> list[BrokerId]:
        """The brokers whose sessions have ended, the longest silent first."""
        ended = [(c.session_end_ms, broker_id) for broker_id, c in self._contacts.items() if c.session_end_ms <= now_ms]
        return [broker_id for _, broker_id in sorted(ended)]

    def silent_for_ms(self, broker_id: BrokerId, now_ms: int) -> int:
        """The time since the broker's last heartbeat; 0 if unknown."""
        contact = self._contacts.get(broker_id)
        return 0 if contact is None else now_ms - contact.since_ms

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next session ends."""
        return min((contact.session_end_ms for contact in self._contacts.values()), default=None)
