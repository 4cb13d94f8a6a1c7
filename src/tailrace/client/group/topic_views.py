"""The views through which the members of a group share partitions by key (decisions 0057, 0102).

1. A partition has the same number of slots for all members: each slot is a partition of the topic's view. Without a
   number the topic's partitions choose it, so that a topic has 512 slots at most.
2. The progress of a group is under the name of the view. A group that has progress in the topic itself, or in a view of
   another number, would begin anew: it is refused, with the command that moves the progress.
3. Members with other numbers would read every record twice. A member looks at the other members each time that it has
   joined, before it reads. The coordinator takes members one after the other, and shows their subscriptions: of two
   members the later finds the earlier, even if both look when both have joined, and is refused. The earlier stays.
"""

import asyncio
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tailrace.client.cluster_view import AbsentTopic
from tailrace.client.group.committed_offsets import fetch_group_offsets
from tailrace.client.group.described_groups import DescribedMember, GroupDescription, describe_groups
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import FAN_OUTS, View, parse_view

MOST_SLOTS: Final = 512
"""The most slots of all partitions of a topic, unless the caller gives a number: each slot is assigned, fetched and
committed like a partition."""
USUAL_SLOTS: Final = 64
_LOOKS: Final = 3
"""The looks for a view that is missing."""


class Slot(NamedTuple):
    """A partition of a view, as a part of the topic's own partition."""

    topic: str
    partition: int
    """The topic's own partition."""
    slot: int
    """The number among the slots of the partition, from 0."""


@lru_cache(maxsize=4096)
def slot_of(name: TopicPartition) -> Slot | None:
    """The slot of a partition of a view; None for any other partition."""
    view = parse_view(name.topic)
    return None if view is None else Slot(view.topic, *divmod(name.partition, view.fan_out))


def check_slots(offsets: Iterable[TopicPartition], assignment: Iterable[TopicPartition]) -> None:
    """Raise KafkaError for an offset of a topic's own partition, by a member that shares by key: records of other slots
    come in another order. `assignment`: the slots of the member, for the text."""
    for name in offsets:
        if slot_of(name) is None:
            detail = (
                f"{name} is shared by key: commit() covers all records that were returned; an offset is committed"
                f" for a slot, a partition of the view, such as {min(assignment, default='T.shared-64-0')}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)


def usual_slots(partitions: int) -> int:
    """The number of slots of each partition of a topic with so many partitions."""
    fitting = [fan_out for fan_out in FAN_OUTS if fan_out <= USUAL_SLOTS and partitions * fan_out <= MOST_SLOTS]
    return max(fitting, default=FAN_OUTS[0])


class TopicViews:
    """The views that a member of a group reads. On its event loop only."""

    def __init__(self, router: Router, group: str, slots: int | None) -> None:
        """`slots`: the slots of each partition; None: by the number of partitions."""
        self._router = router
        self._group = group
        self._slots = slots
        self._topics: tuple[str, ...] = ()
        self._names: tuple[str, ...] | None = None
        self._choice: asyncio.Task[tuple[str, ...]] | None = None
        self._check: asyncio.Task[KafkaError | None] | None = None
        self.trouble: KafkaError | None = None
        """The fault that keeps the views from being chosen, while the choice is tried again."""

    def subscribe(self, topics: Iterable[str]) -> None:
        """Choose the views of these topics."""
        self._topics, self._names = tuple(topics), None
        self.cancel()

    @property
    def are_chosen(self) -> bool:
        return self._names is not None

    async def chosen(self, deadline_ms: int) -> tuple[str, ...] | None:
        """The names of the views, once: None if the views were chosen before, or cannot be chosen now.

        Raises KafkaError: INVALID_REQUEST for a topic without views, and for a group with other progress.
        """
        if self._names is not None:
            return None
        if self._choice is None:
            self._choice = asyncio.get_running_loop().create_task(self._choose())
        choice = self._choice
        if not await self._is_done(choice, deadline_ms):
            return None
        self._choice = None
        self._names = choice.result()
        return self._names

    async def _choose(self) -> tuple[str, ...]:
        while True:
            try:
                committed = await fetch_group_offsets(self._router, self._group, None)
                held = {name.topic for name in committed}
                names = tuple([await self._name(topic, held) for topic in self._topics])
            except KafkaError as fault:
                if not fault.code.retriable:
                    raise
                self.trouble = fault
            else:
                self.trouble = None
                return names
            await asyncio.sleep(self._router.retry_backoff_ms / 1000)

    async def may_read(self, member_id: str, deadline_ms: int) -> bool:
        """Whether the member, which is in its group, has looked at the other members since it joined.

        Raises KafkaError INCONSISTENT_GROUP_PROTOCOL if an earlier member reads another view of these topics, or a
        topic itself.
        """
        if self._check is None:
            look = self._look_at_members(self._names or (), member_id)
            self._check = asyncio.get_running_loop().create_task(look)
        check = self._check
        soon_ms = self._router.now_ms() + self._router.retry_backoff_ms  # the member is polled meanwhile
        if not await self._is_done(check, min(deadline_ms, soon_ms)):
            return False
        fault = check.result()
        if fault is not None:
            raise fault
        return True

    def forget_members(self) -> None:
        """The member is outside of its group: look at the other members again once the member has joined."""
        if self._check is not None:
            self._check.cancel()
            self._check = None

    async def _is_done(self, task: "asyncio.Task[Any]", deadline_ms: int) -> bool:
        """Whether the task is done by the deadline, and was not cancelled."""
        if not task.done():
            await asyncio.wait((task,), timeout=max(deadline_ms - self._router.now_ms(), 0) / 1000)
        return task.done() and not task.cancelled()

    def cancel(self) -> None:
        """Cancel the choice, and the look at the other members."""
        for task in (self._choice, self._check):
            if task is not None:
                task.cancel()
        self._choice = self._check = None

    async def _name(self, topic: str, held: set[str]) -> str:
        if parse_view(topic) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic!r} is a view already: give the topic, or no slots")
        info = await self._router.topic(topic)
        views = [view for view in map(parse_view, held) if view is not None and view.topic == topic]
        slots = self._slots
        if slots is None:
            slots = views[0].fan_out if len(views) == 1 else usual_slots(len(info.partitions))
        name = View(topic, slots).name
        if parse_view(name) is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"topic {topic!r} has no views: its name is too long, or internal"
            )
        others = {*(view.name for view in views), *held.intersection((topic,))} - {name}
        if others and name not in held:
            raise self._has_progress(min(others), name)
        await self._check_exists(topic, name)
        return name

    def _has_progress(self, other: str, name: str) -> KafkaError:
        detail = (
            f"group {self._group!r} has progress in {other!r}, and would begin anew in {name!r}: move it with"
            f" `tailrace groups move {self._group} {other} {name}`, or use another group"
        )
        return KafkaError(ErrorCode.INVALID_REQUEST, detail)

    async def _check_exists(self, topic: str, name: str) -> None:
        for _ in range(_LOOKS):
            try:
                await self._router.topic(name)
            except AbsentTopic:
                await asyncio.sleep(self._router.retry_backoff_ms / 1000)  # a broker that lags may have answered
            else:
                return
        detail = (
            f"topic {topic!r} has no view {name!r}: its setting key.ranges.enable is false, or the server, such as"
            " Apache Kafka, has no views"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)

    async def _look_at_members(self, names: tuple[str, ...], member_id: str) -> KafkaError | None:
        while True:
            try:
                (group,) = await describe_groups(self._router, (self._group,))
            except KafkaError as fault:
                if fault.code is ErrorCode.GROUP_ID_NOT_FOUND:
                    return None  # the next heartbeat tells the member that it is out
                if not fault.code.retriable:
                    return fault
            else:
                return contradiction(group, names, member_id)
            await asyncio.sleep(self._router.retry_backoff_ms / 1000)


def contradiction(group: GroupDescription, names: Iterable[str], member_id: str) -> KafkaError | None:
    """The fault of the member that reads these views, if a member before it reads another view of the topics, or a
    topic itself."""
    own = frozenset(names)
    topics = {view.topic for view in map(parse_view, own) if view is not None}
    for member in group.members:
        for topic in sorted(_read_by(member) - own):
            view = parse_view(topic)
            if (topic if view is None else view.topic) in topics and not _is_later(group, member.member_id, member_id):
                return KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"member {member.client_id!r} of group {group.group!r} reads {topic!r}, this member"
                    f" {', '.join(sorted(own))}: all members of a group have the same slots",
                )
    return None


def _read_by(member: DescribedMember) -> frozenset[str]:
    return member.topics.union(name.topic for name in member.assignment)


def _is_later(group: GroupDescription, member_id: str, than: str) -> bool:
    """Whether the coordinator knows that the member has joined after the other member."""
    events = () if group.details is None else group.details.events
    joined = {event.member_id: place for place, event in enumerate(events) if event.kind == "join"}
    return than in joined and joined.get(member_id, -1) > joined[than]
