"""A process with a member of a group: its polls, its handlers, its requests to the coordinator."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar

from simulation.harness.breach import Breach
from simulation.harness.network import Network
from simulation.harness.world import Action, Life, World
from simulation.members.laws import check_start
from simulation.members.plan import BACKOFF_MS, HEARTBEAT_MS, MAX_POLL_MS, REQUEST_MS, SESSION_MS, MemberPlan
from simulation.members.reader import IN_GROUP, SILENT, GroupReader
from simulation.members.requests import CommitSent, HeartbeatAnswer, HeartbeatSent
from tailrace.client.group.consumer_member import (
    ConsumerEffect,
    ConsumerEvent,
    ConsumerMembership,
    ConsumerState,
    Own,
    Partitions,
    Release,
    Released,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    TopicIdPartition,
)
from tailrace.client.group.membership import Leave, Lost, Polled, PollOverdue, Removed
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick

R = TypeVar("R")

CHANGES: Final = "partitions come or leave"

_COMMIT_MS = 2_000
"""The longest time for the commit of a release, with its retries."""
_LOST = (ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT)
_RETRIED = (ErrorCode.STALE_MEMBER_EPOCH, *_LOST)


class GroupCluster(Protocol):
    """The cluster of a process."""

    @property
    def world(self) -> World: ...

    @property
    def network(self) -> Network: ...

    @property
    def plan(self) -> MemberPlan: ...

    @property
    def is_calm(self) -> bool: ...

    @property
    def coordinator_id(self) -> int:
        """The broker that coordinates the group, as far as clients can find out."""
        ...

    @property
    def done(self) -> dict[TopicIdPartition, int]: ...

    @property
    def promised(self) -> dict[TopicIdPartition, int]: ...

    def committed(self, place: TopicIdPartition) -> int:
        """The committed offset."""
        ...

    def take_heartbeat(
        self, broker_id: int, sent: HeartbeatSent, number: int, reply: Callable[[HeartbeatAnswer], None]
    ) -> None:
        """The broker has a heartbeat; `number` counts the heartbeats of the process."""
        ...

    def take_commit(self, broker_id: int, sent: CommitSent, number: int, reply: Callable[[ErrorCode], None]) -> None:
        """The broker has a commit; `number` counts the commits of the process."""
        ...


class GroupProcess:
    """From its start to its end. Events of a process that is paused happen when it goes on."""

    def __init__(self, cluster: GroupCluster, node_id: int, name: str, instance: str | None) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.name = name
        self.instance = instance
        self.reader = GroupReader(
            name,
            ConsumerMembership(
                session_timeout_ms=SESSION_MS, retry_backoff_ms=BACKOFF_MS, is_static=instance is not None
            ),
        )
        self.is_over = False
        self.is_removed = False
        """Whether the coordinator has removed the member since its last join."""
        self.is_disordered = False
        """Whether the coordinator got a heartbeat after a later one since the last join."""
        self.last_number = 0
        """The number of the last heartbeat that the coordinator has decided."""
        self.last_commit = 0
        """The number of the last commit that the coordinator has decided."""
        self.lost_answers = 0
        """The heartbeats without an answer from the coordinator since its last answer."""
        self._world = cluster.world
        self._paused_until_ms = 0
        self._coordinator = cluster.coordinator_id
        self._polled_ms = self._heard_ms = self._world.now_ms
        self._numbers = self._commits = 0
        self._held = Life()
        """Over when the member has lost its partitions: releases end then."""
        self._alarm = Life()
        self._after(self._draw(0, 100, "start"), self._poll)
        self._after(self._draw(0, 500, "auto commit"), self._auto_commit)

    def _draw(self, low: int, high: int, what: str) -> int:
        return self._world.between(low, high, what, self.name)

    def _is_slow(self, what: str) -> bool:
        return not self.cluster.is_calm and self._world.chance(self.cluster.plan.slow_handlers, what, self.name)

    def _after(self, delay_ms: int, action: Action, life: Life | None = None) -> None:
        self._world.after(delay_ms, partial(self._run, action, life), life)

    def _run(self, action: Action, life: Life | None = None) -> None:
        if self.is_over:
            return
        if self._world.now_ms < self._paused_until_ms:
            self._world.after(self._paused_until_ms - self._world.now_ms, partial(self._run, action, life), life)
            return
        action()

    # faults

    def pause(self, duration_ms: int) -> None:
        """Nothing of the process runs for so long."""
        self._paused_until_ms = max(self._paused_until_ms, self._world.now_ms + duration_ms)

    def kill(self) -> None:
        """The process ends without a word."""
        self.is_over = self._held.is_over = True

    def close(self) -> None:
        """The user closes the consumer."""
        self._run(partial(self.step, Leave()))

    # the machine

    def step(self, event: ConsumerEvent) -> None:
        """Pass an event to the machine."""
        self._carry_out(self.reader.step(event, self._world.now_ms))

    def _carry_out(self, effects: Iterable[ConsumerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendConsumerHeartbeat(epoch, owned, is_full, is_withdrawn):
                    named = None if owned is None else tuple(sorted(owned))
                    self._send(HeartbeatSent(self.name, epoch, named, is_full, is_withdrawn, self.instance))
                case SendConsumerLeave(epoch):
                    self._leave(HeartbeatSent(self.name, epoch, instance=self.instance))
                case Release(partitions):
                    self._begin_release(partitions)
                case Own():
                    self._world.sometimes[CHANGES] += 1
                case Lost():
                    self._world.sometimes[CHANGES] += 1
                    self._held.is_over, self._held = True, Life()
                case Removed(cause):
                    self._world.sometimes[f"out of the group: {cause.name}"] += 1
                    self._world.note(f"{self.name} is out of the group: {cause.name}")
        self._begin_to_read()
        self._set_alarm()
        if self.reader.state in (ConsumerState.LEFT, ConsumerState.FAILED):
            self.is_over = True

    def _begin_to_read(self) -> None:
        cluster, reader = self.cluster, self.reader
        for place in sorted(reader.without_position):
            start = cluster.committed(place)
            check_start(place, start, cluster.promised, cluster.done.get(place, 0))
            self._world.sometimes["records come again"] += start < cluster.done.get(place, 0)
            reader.positions[place] = start

    def _set_alarm(self) -> None:
        self._alarm.is_over, self._alarm = True, Life()
        deadline_ms = self.reader.machine.next_deadline_ms
        if deadline_ms is None:
            return
        if self.reader.state is ConsumerState.JOINED:
            deadline_ms = min(deadline_ms, self._polled_ms + MAX_POLL_MS + 1)
        self._after(deadline_ms - self._world.now_ms, self._on_alarm, self._alarm)

    def _on_alarm(self) -> None:
        is_overdue = self._world.now_ms - self._polled_ms > MAX_POLL_MS
        self.step(PollOverdue() if is_overdue and self.reader.state is ConsumerState.JOINED else Tick())

    # the user

    def _poll(self) -> None:
        """The records of the poll before are processed."""
        if self.reader.state is ConsumerState.LEAVING:
            return
        for place in sorted(self.reader.reading - self.reader.leaving):
            self._process(place, self._draw(0, 3, "records"))
        self._polled_ms = self._world.now_ms
        self.step(Polled())
        is_slow = self._is_slow("slow handler")
        self._after(self._draw(10, MAX_POLL_MS * 5 // 4 if is_slow else 150, "poll"), self._poll)

    def _process(self, place: TopicIdPartition, count: int) -> None:
        positions, done = self.reader.positions, self.cluster.done
        positions[place] += count
        done[place] = max(done.get(place, 0), positions[place])

    def _auto_commit(self) -> None:
        places = sorted(self.reader.reading - self.reader.leaving)
        if places and self.reader.state in IN_GROUP:
            self._commit(places, lambda _: None)
        self._after(500, self._auto_commit)

    # releases

    def _begin_release(self, partitions: Partitions) -> None:
        """Plan the ends of the handlers: of all partitions together, or apart as in a consumer with handlers."""
        is_apart = self._world.chance(0.5, "releases apart", self.name)
        for part in map(frozenset, zip(sorted(partitions))) if is_apart else (partitions,):
            is_slow = self._is_slow("slow release")
            delay_ms = self._draw(0, MAX_POLL_MS * 5 // 4 if is_slow else 60, "release")
            self._after(delay_ms, partial(self._end_release, part, None), self._held)

    def _end_release(self, partitions: Partitions, began_ms: int | None) -> None:
        """Commit when the handlers have ended, and again until the commit is accepted or too late."""
        if began_ms is None:
            began_ms = self._world.now_ms
            for place in sorted(partitions):
                self._process(place, self._draw(0, 1, "last record"))
        self._commit(sorted(partitions), partial(self._released, partitions, began_ms))

    def _released(self, partitions: Partitions, began_ms: int, code: ErrorCode) -> None:
        if code in _RETRIED and self._world.now_ms - began_ms < _COMMIT_MS:
            self._world.sometimes[f"a commit is sent again: {code.name}"] += 1
            self._after(BACKOFF_MS, partial(self._end_release, partitions, began_ms), self._held)
            return
        if code is ErrorCode.NONE:
            for place in partitions:
                known = self.cluster.promised.get(place, 0)
                self.cluster.promised[place] = max(known, self.reader.positions[place])
        else:
            self._world.sometimes["a release ends without its commit"] += 1
        self.step(Released(partitions))

    def _commit(self, places: Iterable[TopicIdPartition], on_code: Callable[[ErrorCode], None]) -> None:
        offsets = tuple((place, self.reader.positions[place]) for place in places)
        sent = CommitSent(self.name, self.reader.machine.member_epoch, offsets, self.instance)
        self._commits += 1
        take = partial(self.cluster.take_commit, self._coordinator, sent, self._commits)
        self._ask(take, on_code, ErrorCode.REQUEST_TIMED_OUT, self._held)

    # requests

    def _send(self, sent: HeartbeatSent) -> None:
        self._numbers += 1
        take = partial(self.cluster.take_heartbeat, self._coordinator, sent, self._numbers)
        self._ask(take, self._on_answer, HeartbeatAnswer(ErrorCode.REQUEST_TIMED_OUT), Life())

    def _leave(self, sent: HeartbeatSent) -> None:
        self._numbers += 1
        take = partial(self.cluster.take_heartbeat, self._coordinator, sent, self._numbers, lambda _: None)
        self.cluster.network.send(self.node_id, self._coordinator, take)

    def _ask(
        self, take: Callable[[Callable[[R], None]], None], on_reply: Callable[[R], None], silent: R, life: Life
    ) -> None:
        """Send a request. The reply is `silent` if no answer comes in time; no reply comes when `life` is over."""
        network, broker_id, is_open = self.cluster.network, self._coordinator, [True]

        def end(answer: R) -> None:
            if is_open[0] and not life.is_over:
                is_open[0] = False
                on_reply(answer)

        def reply(answer: R) -> None:
            network.send(broker_id, self.node_id, lambda: self._run(partial(end, answer), life))

        network.send(self.node_id, broker_id, partial(take, reply))
        self._after(REQUEST_MS, partial(end, silent), life)

    def _on_answer(self, answer: HeartbeatAnswer) -> None:
        self.lost_answers = self.lost_answers + 1 if answer.code in _LOST else 0
        if answer.code is ErrorCode.NONE:
            self._heard_ms = self._world.now_ms
        elif answer.code in _LOST:
            self._world.sometimes["an answer is lost"] += answer.code is ErrorCode.REQUEST_TIMED_OUT
            self._coordinator = self.cluster.coordinator_id
        self._carry_out(
            self.reader.answer(answer.code, answer.epoch, answer.assigned, HEARTBEAT_MS, self._world.now_ms)
        )

    # laws

    def check(self) -> None:
        """A member that hears nothing for a session timeout stops reading."""
        is_running = not self.is_over and self._world.now_ms > self._paused_until_ms
        if is_running and self.reader.reading and self._world.now_ms - self._heard_ms > SESSION_MS:
            raise Breach(SILENT, f"{self.reader.told}, and has heard nothing since {self._heard_ms} ms")
