"""The coordinator of a group in a simulated world: the product's machine, and the records of the group.

Records are committed some time after the decision, in order; another coordinator begins with the committed records, and
perhaps with some of the records that were under way.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from simulation.harness.world import Life, World
from simulation.members.laws import check_commit, check_given_on, check_one_owner
from simulation.members.plan import HEARTBEAT_MS, MAX_POLL_MS, SESSION_MS
from simulation.members.requests import (
    CommitSent,
    EncodedLog,
    FixedTopics,
    HeartbeatAnswer,
    HeartbeatSent,
    as_answer,
    commit_command,
    decoded,
    encoded,
    heartbeat_command,
    new_machine,
    view_of,
    with_records,
)
from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.events import MemberExpired
from tailrace.coordinators.groups.records import GroupLogRecord
from tailrace.model.errors import ErrorCode, KafkaError

Done = Callable[[ErrorCode], None]
CONFIG = GroupConfig(group_consumer_session_timeout_ms=SESSION_MS, group_consumer_heartbeat_interval_ms=HEARTBEAT_MS)


class AppendedDecision(NamedTuple):
    """Records that are not committed yet."""

    records: Sequence[GroupLogRecord]
    bytes: EncodedLog
    on_done: Done


class HeartbeatOutcome(NamedTuple):
    """The decision on a heartbeat."""

    code: ErrorCode
    is_change: bool = False
    """Whether the decision has records."""


class SimulatedCoordinator:
    """From the load of the log to the next coordinator."""

    def __init__(
        self,
        world: World,
        log: EncodedLog,
        topics: FixedTopics,
        *,
        slow_ms: int,
        on_removed: Callable[[str], None],
    ) -> None:
        """`on_removed` is called for every member that leaves the log."""
        self.log = log
        """The committed records."""
        self.latest = log
        """With the records that are appended."""
        self.life = Life()
        self._world = world
        self._slow_ms = slow_ms
        self._on_removed = on_removed
        self._machine = new_machine(CONFIG, topics)
        for record in log:
            self._machine.apply(decoded(record))
        self._machine.begin(world.now_ms)
        self._staged: deque[AppendedDecision] = deque()
        self._alarm_ms: int | None = None
        self._set_alarm()

    def heartbeat(
        self, sent: HeartbeatSent, topics: Sequence[str], assignor: str, reply: Callable[[HeartbeatAnswer], None]
    ) -> HeartbeatOutcome:
        """Decide a heartbeat of a member that subscribes to these topics."""
        try:
            command = heartbeat_command(sent, topics, MAX_POLL_MS, assignor)
            decision, _ = self._machine.heartbeat(command, self._world.now_ms)
        except KafkaError as refusal:
            reply(HeartbeatAnswer(refusal.code))
            return HeartbeatOutcome(refusal.code)

        def done(code: ErrorCode) -> None:
            reply(as_answer(decision.response) if code is ErrorCode.NONE else HeartbeatAnswer(code))

        self._append(decision.records, done, sent)
        self._set_alarm()
        return HeartbeatOutcome(ErrorCode.NONE, bool(decision.records))

    def commit(self, sent: CommitSent, reply: Done) -> None:
        """Decide a commit."""
        try:
            decision = self._machine.decide(commit_command(sent), self._world.now_ms)
        except KafkaError as refusal:
            reply(refusal.code)
            return
        check_commit(view_of(self.latest), sent)
        self._append(decision.records, reply)

    def _append(
        self,
        records: Sequence[GroupLogRecord],
        on_done: Done,
        word: HeartbeatSent | None = None,
        removed: tuple[str, ...] = (),
    ) -> None:
        written = encoded(records)
        before, self.latest = view_of(self.latest), with_records(self.latest, written)
        after = view_of(self.latest)
        check_one_owner(after)
        check_given_on(before, after, word, removed)
        for name in sorted(before.members - after.members):
            self._on_removed(name)
        if not records and not self._staged:
            on_done(ErrorCode.NONE)
            return
        self._machine.stage(records)
        self._staged.append(AppendedDecision(records, written, on_done))
        delay_ms = self._world.between(0, self._slow_ms, "replication", "group")
        self._world.after(delay_ms, self._commit_oldest, self.life)

    def _commit_oldest(self) -> None:
        staged = self._staged.popleft()
        self._machine.commit(staged.records)
        self.log = with_records(self.log, staged.bytes)
        staged.on_done(ErrorCode.NONE)

    def close(self, survivors: int) -> EncodedLog:
        """The records of the next coordinator: so many of the decisions under way are among them. All requests under
        way are answered with NOT_COORDINATOR."""
        self.life.is_over = True
        waiting, self._staged = list(self._staged), deque()
        for staged in waiting[:survivors]:
            self.log = with_records(self.log, staged.bytes)
        for staged in waiting:
            staged.on_done(ErrorCode.NOT_COORDINATOR)
        if waiting:
            self._world.sometimes["records survive their coordinator"] += bool(survivors)
            self._world.sometimes["records are lost with their coordinator"] += survivors < len(waiting)
        return self.log

    @property
    def under_way(self) -> int:
        """The number of decisions that are not committed."""
        return len(self._staged)

    # time

    def _set_alarm(self) -> None:
        deadline_ms = self._machine.next_deadline_ms
        if deadline_ms is not None and (self._alarm_ms is None or deadline_ms < self._alarm_ms):
            self._alarm_ms = deadline_ms
            self._world.after(deadline_ms - self._world.now_ms, partial(self._tick, deadline_ms), self.life)

    def _tick(self, alarm_ms: int) -> None:
        if alarm_ms != self._alarm_ms:
            return
        self._alarm_ms = None
        for effect in self._machine.tick(self._world.now_ms):
            assert isinstance(effect, MemberExpired), effect
            decision = self._machine.remove_expired(effect, self._world.now_ms)
            if decision is not None:
                what = "a session ends" if "heartbeat" in effect.reason else "a release outlasts its time"
                self._world.sometimes[what] += 1
                self._world.note(f"{effect.member_id} is removed: {effect.reason}")
                self._append(decision.records, lambda _: None, removed=(effect.member_id,))
        self._set_alarm()
