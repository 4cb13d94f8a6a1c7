"""The host of one `ConsumerMembership` (KIP-848): its heartbeats, the names of its topics, the release of partitions.

Effects are carried out at once, on the event loop. A heartbeat and a release take time, and run in tasks of their own:
heartbeats go on while partitions are released.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, Final
from uuid import uuid4

from tailrace.client.errors import code_of
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.group.consumer_member import (
    LEAVE_EPOCH,
    ConsumerEvent,
    ConsumerHeartbeatAnswered,
    ConsumerMembership,
    ConsumerState,
    Own,
    Partitions,
    Release,
    Released,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    TargetGiven,
    TopicIdPartition,
)
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
from tailrace.client.kept_tasks import kept_task
from tailrace.client.reader_settings import ReaderSettings
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.machines import Tick
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)

_FIRST_VERSION: Final = 1
"""The first version in which the member makes its own id, and subscribes by a regular expression: Apache Kafka 4.0."""

_log = logging.getLogger(__name__)


class ConsumerGroupMember(MemberHost):
    """A membership by KIP-848."""

    protocol: ClassVar[str] = "consumer"

    def __init__(
        self, router: Router, settings: ReaderSettings, listener: RebalanceListener, changed: asyncio.Event
    ) -> None:
        super().__init__(router, settings, listener, changed)
        self._member_id = str(uuid4())
        self._machine = ConsumerMembership(
            session_timeout_ms=settings.session_timeout_ms,
            retry_backoff_ms=router.retry_backoff_ms,
            is_static=settings.group_instance_id is not None,
        )
        self._subscription = TopicSubscription()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._naming: asyncio.Task[None] | None = None
        """Requests for the names of topics of which the coordinator has named the id alone."""
        self._names: dict[TopicId, str] = {}

    @property
    def is_stable(self) -> bool:
        """Whether the member is in the group. Its partitions may be read while other partitions come or leave."""
        return self._machine.state is ConsumerState.JOINED

    @property
    def identity(self) -> ConsumerGroupMetadata:
        """The author of commits now: the member in its epoch."""
        is_in = self._machine.state in (ConsumerState.JOINED, ConsumerState.LEAVING)
        return self._author(self._machine.member_epoch if is_in else -1, self._member_id)

    # the user

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Read these topics from the next poll on."""
        self._subscription = subscription
        self._topic_trouble = None
        self._next_refresh_ms = 0
        self._take(SubscriptionChanged())

    def on_poll(self) -> None:
        """Note a poll of the user. Partitions come and leave now."""
        if self._bug is not None:
            raise self._bug
        self._polled_at_ms = self._router.now_ms()
        self._take(Polled())
        self._wait.on_poll(self._member_id, is_waiting=not self._machine.owned)
        if self.is_stable and self._polled_at_ms >= self._next_refresh_ms and self._subscription.topics:
            self._plan_refresh(is_missing=False)
            self._refresh = self._start(self._refresh_topics())

    async def leave(self) -> None:
        """Release the partitions, leave the group, and stop."""
        self._take(Leave())
        try:
            while self._machine.state is ConsumerState.LEAVING and self._bug is None:
                self._changed.clear()
                await self._changed.wait()
            farewells = [task for task in self._tasks if task is not self._naming and task is not self._refresh]
            await asyncio.gather(*farewells, return_exceptions=True)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel all tasks, without leaving the group."""
        self._set_timer(None)
        self._wait.end()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # the machine

    def _take(self, event: ConsumerEvent) -> None:
        before = self._machine.state
        for effect in self._machine.step(event, self._router.now_ms()):
            self._carry_out(effect)
        if self._machine.state is not before:
            self._changed.set()
            self._listener.wake()
        deadline_ms = self._machine.next_deadline_ms
        if deadline_ms is not None and self.is_stable:
            deadline_ms = min(deadline_ms, self._polled_at_ms + self.max_poll_interval_ms + 1)
        self._set_timer(deadline_ms)

    def _set_timer(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            delay_s = max(deadline_ms - self._router.now_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        silence_ms = self._router.now_ms() - self._polled_at_ms
        is_overdue = self.is_stable and silence_ms > self.max_poll_interval_ms
        self._take(PollOverdue() if is_overdue else Tick())

    def _carry_out(self, effect: object) -> None:
        match effect:
            case SendConsumerHeartbeat():
                self._start(self._beat(effect))
            case SendConsumerLeave(member_epoch):
                self._start(self._send_leave(member_epoch))
            case Release(partitions):
                self._begin_release(partitions)
            case Own(partitions):
                held = self._named(partitions | self._machine.releasing)
                self._listener.assigned_by_group(tuple(sorted(held)))
            case Lost():
                for release in self._releases:
                    release.cancel()
                if self._naming is not None:
                    self._naming.cancel()
                self._listener.lost()
            case Removed(cause):
                self._warn_of_removal(cause)
            case ForgetCoordinator():
                self._router.forget_coordinator(self._group)
            case Failed(code):
                trouble = self._coordinator_trouble
                self.fault = trouble if trouble is not None and trouble.code is code else self._refusal(code)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task. If it fails, the next poll raises its exception."""
        task = kept_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._bug = fault
            self._changed.set()
            self._listener.wake()

    def _begin_release(self, partitions: Partitions) -> None:
        """Hold the partitions, and release them: a partition in which work runs keeps no other partition back."""
        by_name = {self._name_of(each): each for each in partitions}
        self._listener.hold(frozenset(by_name))
        for names in self._listener.apart(frozenset(by_name)):
            release = self._start(self._release(frozenset(by_name[name] for name in names), names))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    async def _release(self, partitions: Partitions, names: frozenset[TopicPartition]) -> None:
        await self._listener.revoke(names)
        self._take(Released(partitions))

    def _named(self, partitions: Iterable[TopicIdPartition]) -> frozenset[TopicPartition]:
        return frozenset(map(self._name_of, partitions))

    def _name_of(self, partition: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._names[partition.topic_id], partition.partition)

    # heartbeats

    async def _connection(self) -> Connection:
        connection = await self._router.coordinator_connection(self._group)
        if connection.version_of(ConsumerGroupHeartbeatRequest) < _FIRST_VERSION:
            detail = (
                f"{connection.address} has an early form of group.protocol=consumer; Apache Kafka has it from 4.0 on"
            )
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
        return connection

    async def _beat(self, effect: SendConsumerHeartbeat) -> None:
        try:
            connection = await self._connection()
            response = await connection.ask(
                self._request(effect), ConsumerGroupHeartbeatResponse, timeout_ms=self._heartbeat_timeout_ms
            )
        except KafkaError as fault:
            self._coordinator_trouble = fault
            self._take(ConsumerHeartbeatAnswered(code=fault.code))
            return
        code = code_of(response.error_code)
        self._coordinator_trouble = None if code is ErrorCode.NONE else self._refusal(code, response.error_message)
        self._take(
            ConsumerHeartbeatAnswered(
                code=code,
                member_epoch=response.member_epoch,
                heartbeat_interval_ms=response.heartbeat_interval_ms,
            )
        )
        self._listener.wake()  # a new partition may have waited for this answer
        if code is ErrorCode.NONE and response.assignment is not None:
            self._on_assignment(response.assignment.topic_partitions)

    def _request(self, effect: SendConsumerHeartbeat) -> ConsumerGroupHeartbeatRequest:
        owned = None if effect.owned is None else _by_topic(effect.owned)
        identity = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=effect.member_epoch,
            instance_id=self._settings.group_instance_id,
            topic_partitions=owned,
        )
        if not effect.is_full:
            return identity
        subscription = TopicSubscription() if effect.is_withdrawn else self._subscription
        return ConsumerGroupHeartbeatRequest(
            group_id=identity.group_id,
            member_id=identity.member_id,
            member_epoch=identity.member_epoch,
            instance_id=identity.instance_id,
            rack_id=self._settings.client_rack or None,
            rebalance_timeout_ms=self.max_poll_interval_ms,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex=subscription.pattern or "",
            server_assignor=self._settings.group_remote_assignor,
            topic_partitions=owned,
        )

    async def _send_leave(self, member_epoch: int) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=member_epoch,
            instance_id=self._settings.group_instance_id,
        )
        try:
            connection = await self._connection()
            await connection.ask(request, ConsumerGroupHeartbeatResponse, timeout_ms=LEAVE_TIMEOUT_MS)
        except KafkaError as fault:  # the session timeout of the group removes the member
            kind = "leaving" if member_epoch == LEAVE_EPOCH else "leaving for a while"
            _log.debug("%s group %r: %s", kind, self._group, fault.detail)

    # topics

    def _on_assignment(self, assigned: Iterable[HeartbeatTopicPartitions]) -> None:
        """Give the machine its target as soon as the names of all its topics are known."""
        target = frozenset(
            TopicIdPartition(TopicId(topic.topic_id), partition) for topic in assigned for partition in topic.partitions
        )
        if self._naming is not None:
            self._naming.cancel()
        if not self._give(target):
            self._naming = self._start(self._name(target))

    def _give(self, target: Partitions) -> bool:
        """Give the machine the part of the target whose topics have names; returns whether that is all of it."""
        for topic_id in {each.topic_id for each in target} - self._names.keys():
            name = self._router.view.topic_name(topic_id)
            if name is not None:
                self._names[topic_id] = name
        named = frozenset(each for each in target if each.topic_id in self._names)
        self._take(TargetGiven(named))
        self._listener.wake()
        return len(named) == len(target)

    async def _name(self, target: Partitions) -> None:
        """Ask for the names of the target's topics until all are known, or the coordinator gives another target."""
        pause_ms = self._router.retry_backoff_ms
        while True:
            unknown = {each.topic_id for each in target} - self._names.keys()
            try:
                await self._router.refresh((), topic_ids=unknown)
            except KafkaError as fault:
                _log.debug("names of topics of group %r: %s", self._group, fault.detail)
            if self._give(target):
                return
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, self._router.retry_backoff_max_ms)

    async def _refresh_topics(self) -> None:
        """Look whether the topics of the subscription exist."""
        topics = self._subscription.topics
        try:
            await self._router.refresh(topics)
        except KafkaError:
            return  # the next refresh tries again
        if topics == self._subscription.topics:
            self._note_missing(topics)


def _by_topic(partitions: Partitions) -> tuple[HeartbeatTopicPartitions, ...]:
    topics: dict[TopicId, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(partitions):
        topics[topic_id].append(partition)
    return tuple(
        HeartbeatTopicPartitions(topic_id=topic_id, partitions=tuple(indexes)) for topic_id, indexes in topics.items()
    )
