"""The host of one `ClassicMembership`, in a task beside the consumer: sends its requests and passes it the answers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, assert_never

from tailrace.client.errors import code_of
from tailrace.client.group import classic_member as events
from tailrace.client.group.assignors import ASSIGNORS
from tailrace.client.group.classic_member import (
    ClassicMembership,
    State,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.group.member_host import LEAVE_TIMEOUT_MS, MemberHost
from tailrace.client.group.membership import (
    Failed,
    ForgetCoordinator,
    Leave,
    Lost,
    Polled,
    PollOverdue,
    RebalanceListener,
    Removed,
    SubscriptionChanged,
    TopicSubscription,
)
from tailrace.client.kept_tasks import end_tasks, kept_task
from tailrace.client.reader_settings import ReaderSettings
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Tick
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

_USE = "group"
"""A connection of its own: joins wait for the other members, up to minutes, and hold back later requests."""
_HEARTBEAT_USE = ""


class ClassicGroupMember(MemberHost):
    """A membership by the classic protocol."""

    protocol: ClassVar[str] = "classic"

    def __init__(
        self, router: Router, settings: ReaderSettings, listener: RebalanceListener, changed: asyncio.Event
    ) -> None:
        super().__init__(router, settings, listener, changed)
        self._assignors = tuple(settings.partition_assignment_strategy)
        self._machine = ClassicMembership(
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            retry_backoff_ms=router.retry_backoff_ms,
            is_static=settings.group_instance_id is not None,
        )
        self._topics: tuple[str, ...] = ()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._revoking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._assigned_counts: dict[str, int] | None = None
        """The numbers of partitions in the assignment that this member made as leader; 0 for a missing topic."""

    @property
    def is_stable(self) -> bool:
        return self._machine.state is State.STABLE

    @property
    def identity(self) -> ConsumerGroupMetadata:
        return self._author(self._machine.generation_id, self._machine.member_id)

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Read these topics from the next poll on. Raises KafkaError for a pattern."""
        if subscription.pattern is not None:
            detail = "a pattern needs group.protocol=consumer, with a server that has it: give the names of the topics"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
        self._topics = subscription.topics
        self._topic_trouble = None
        self._events.put_nowait(SubscriptionChanged())

    def on_poll(self) -> None:
        self._polled_at_ms = self._router.now_ms()
        if self._task is None:
            self._task = kept_task(self._run())
        if self._bug is not None:
            raise self._bug
        if self._task.done():
            self._task.result()  # raises, unless the group has refused this member
        if not self.is_stable and self._events.empty():
            self._events.put_nowait(Polled())
        self._wait.on_poll(self._machine.member_id, is_waiting=not self.is_stable)
        if self.is_stable and self._polled_at_ms >= self._next_refresh_ms:
            self._plan_next_refresh()
            self._refresh = asyncio.get_running_loop().create_task(self._refresh_topics(self._assigned_counts))

    async def leave(self) -> None:
        """As MemberHost. Heartbeats go on until the user has given the partitions up."""
        was_beating = self._machine.is_beating
        await end_tasks((self._task, self._refresh))  # else a JoinGroup would wait for other members
        try:
            if was_beating:
                await self._step(events.HeartbeatAnswered(ErrorCode.REQUEST_TIMED_OUT))
            self._events.put_nowait(Leave())
            await self._run()
            if self._bug is not None:
                raise self._bug
        finally:
            await self.stop()

    async def stop(self) -> None:
        self._wait.end()
        await end_tasks((self._task, self._refresh, self._revoking))

    async def _run(self) -> None:
        while self._machine.state not in (State.LEFT, State.FAILED):
            event = await self._next_event()
            before = self._machine.state
            await self._step(event)
            if self._machine.state is not before:
                self._changed.set()

    async def _next_event(self) -> events.Event:
        deadline_ms = self._machine.next_deadline_ms
        now_ms = self._router.now_ms()
        if deadline_ms is None:
            return await self._events.get()
        is_polled = self._machine.state is not State.LEAVING
        if is_polled and now_ms - self._polled_at_ms > self.max_poll_interval_ms:
            return PollOverdue()
        try:
            async with asyncio.timeout(max(deadline_ms - now_ms, 0) / 1000):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    async def _step(self, event: events.Event) -> None:
        for effect in self._machine.step(event, self._router.now_ms()):
            answer = await self._carry_out(effect)
            if answer is not None:
                await self._step(answer)

    async def _carry_out(self, effect: events.Effect) -> events.Event | None:
        match effect:
            case events.Revoke():
                self._revoking = asyncio.get_running_loop().create_task(self._revoke())
                self._revoking.add_done_callback(self._on_revoked)
            case Lost():
                if self._revoking is not None:
                    self._revoking.cancel()
                self._listener.lost()
            case Removed(cause):
                self._warn_of_removal(cause)
            case events.Assigned(partitions):
                if self._assigned_counts is None:  # another member leads: this member has not refreshed the topics yet
                    self._next_refresh_ms = self._router.now_ms()
                self._assigned = frozenset(partitions)
                self._listener.assigned_by_group(partitions)
            case ForgetCoordinator():
                self._router.forget_coordinator(self._group)
            case Failed(code):
                self.fault = self._refusal(code)
            case events.MakeAssignment(protocol_name, members):
                return await self._make_assignment(protocol_name, members)
            case events.SendJoin():
                return await self._outcome(self._join(effect), lambda code: events.JoinAnswered(code=code))
            case events.SendSync():
                return await self._outcome(self._sync(effect), lambda code: events.SyncAnswered(code=code))
            case events.SendHeartbeat():
                return await self._outcome(self._heartbeat(effect), events.HeartbeatAnswered)
            case events.SendLeave(member_id):
                await self._send_leave(member_id)
            case _:
                assert_never(effect)
        return None

    async def _revoke(self) -> None:
        """Give all partitions up (eager rebalance)."""
        self._listener.hold(self._assigned)
        await self._listener.revoke(self._assigned)
        self._assigned = frozenset()
        self._listener.assigned_by_group(())

    def _on_revoked(self, revoking: "asyncio.Task[None]") -> None:
        if revoking is self._revoking:
            self._revoking = None
        if not revoking.cancelled():
            self._bug = revoking.exception()
            self._events.put_nowait(events.Revoked())

    async def _join(self, effect: events.SendJoin) -> events.Event:
        self._assigned_counts = None
        metadata = encode_subscription(self._topics)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self.max_poll_interval_ms,
            member_id=effect.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self._assignors),
        )
        connection = await self._router.coordinator_connection(self._group, _USE)
        response = await connection.ask(
            request, JoinGroupResponse, timeout_ms=self.max_poll_interval_ms + self._router.request_timeout_ms
        )
        return events.JoinAnswered(
            code=code_of(response.error_code),
            member_id=response.member_id,
            generation_id=response.generation_id,
            protocol_name=response.protocol_name or "",
            leader=response.leader,
            members=tuple((member.member_id, member.metadata) for member in response.members),
        )

    async def _make_assignment(self, protocol_name: str, members: tuple[tuple[str, bytes], ...]) -> events.Event:
        subscriptions = {member_id: decode_subscription(metadata) for member_id, metadata in members}
        wanted = sorted({topic for topics in subscriptions.values() for topic in topics})
        try:
            await self._router.refresh(wanted, allow_auto_create=True)
        except KafkaError:
            # Handled as a refused assignment: this member joins again, and so do the other members.
            return events.SyncAnswered(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        counts = self._assigned_counts = self._partition_counts(wanted)
        self._plan_next_refresh()
        assigned = ASSIGNORS[protocol_name](subscriptions, counts)
        return events.AssignmentMade(
            tuple((member_id, encode_assignment(partitions)) for member_id, partitions in assigned.items())
        )

    def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        described = {topic: self._router.view.find(topic) for topic in topics}
        return {topic: 0 if info is None else len(info.partitions) for topic, info in described.items()}

    def _plan_next_refresh(self) -> None:
        is_missing = self._topic_trouble is not None or not all((self._assigned_counts or {}).values())
        self._plan_refresh(is_missing=is_missing)

    async def _refresh_topics(self, assigned_counts: dict[str, int] | None) -> None:
        """Refresh the topics and note missing topics. On the leader: rejoin if a number of partitions has changed."""
        try:
            await self._router.refresh(self._topics if assigned_counts is None else {*assigned_counts, *self._topics})
        except KafkaError:
            return  # the next refresh tries again
        self._note_missing(self._topics)
        if assigned_counts is not None and self._partition_counts(assigned_counts) != assigned_counts:
            self._events.put_nowait(SubscriptionChanged())

    async def _sync(self, effect: events.SendSync) -> events.Event:
        connection = await self._router.coordinator_connection(self._group, _USE)
        response = await connection.ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=effect.generation_id,
                member_id=effect.member_id,
                group_instance_id=self._settings.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=effect.protocol_name,
                assignments=tuple(
                    SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in effect.assignments
                ),
            ),
            SyncGroupResponse,
            timeout_ms=self.max_poll_interval_ms,
        )
        return events.SyncAnswered(code=code_of(response.error_code), assignment=response.assignment)

    async def _heartbeat(self, effect: events.SendHeartbeat) -> events.Event:
        connection = await self._router.coordinator_connection(self._group, _HEARTBEAT_USE)
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=effect.generation_id,
            member_id=effect.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        response = await connection.ask(request, HeartbeatResponse, timeout_ms=self._heartbeat_timeout_ms)
        return events.HeartbeatAnswered(code_of(response.error_code))

    async def _send_leave(self, member_id: str) -> None:
        request = LeaveGroupRequest(
            group_id=self._group,
            member_id=member_id,
            members=(MemberIdentity(member_id=member_id, reason="the consumer is being closed"),),
        )
        try:
            connection = await self._router.coordinator_connection(self._group, _HEARTBEAT_USE)
            await connection.ask(request, LeaveGroupResponse, timeout_ms=LEAVE_TIMEOUT_MS)
        except KafkaError:
            return  # the session timeout removes the member

    async def _outcome(
        self, answer: Awaitable[events.Event], refused: Callable[[ErrorCode], events.Event]
    ) -> events.Event:
        """The answer, or the event of a failed request."""
        try:
            event = await answer
        except KafkaError as fault:
            self._coordinator_trouble = fault
            return refused(fault.code)
        self._coordinator_trouble = None
        return event
