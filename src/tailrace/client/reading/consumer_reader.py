"""The reading part of a consumer: assigned partitions, their positions, and what assigns partitions.

With a group a membership assigns; without a group whole topics are read, or the partitions of `assign`.

A consumer and a keyed consumer each hold a reader. It commits nothing: `on_revoke` may, before partitions leave.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from tailrace.client.errors import ClosedClient
from tailrace.client.group.committed_offsets import (
    COMMIT_TIMEOUT_MS,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    commit_group_offsets,
    commit_in_epoch,
    not_a_member,
    without_group,
)
from tailrace.client.group.group_member import GroupMember
from tailrace.client.group.membership import TopicSubscription
from tailrace.client.group.range_progress import RangeProgress
from tailrace.client.group.rebalance_callbacks import RebalanceCallbacks
from tailrace.client.group.topic_views import TopicViews
from tailrace.client.reader_settings import ReaderSettings, Until
from tailrace.client.reading.consumer_metrics import MetricName, consumer_metrics
from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.client.reading.read_notices import ReadNotices
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.client.reading.searches.position_validation import PositionValidator
from tailrace.client.reading.searches.reading_end import ReadingEnd
from tailrace.client.reading.searches.start_search import StartSearch
from tailrace.client.reading.searches.whole_topics import WholeTopics
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record

_CHECK_MS = 1_000
"""The interval at which a poll checks for a fault of reading: during waits, and before records."""


class ConsumerReader:
    """Reads chosen partitions, or the partitions that its group assigns. Callbacks run on its event loop.

    `on_revoke` gets partitions that leave, and ends before they are given up. `on_left` gets partitions that have left:
    after `on_revoke`, or without `on_revoke` when the group has removed this member. `apart` gets partitions that leave
    and returns the sets, for each of which `on_revoke` is called; calls may overlap.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        *,
        on_revoke: Callable[[frozenset[TopicPartition]], Awaitable[None]],
        on_left: Callable[[frozenset[TopicPartition]], None],
        apart: Callable[[frozenset[TopicPartition]], Iterable[frozenset[TopicPartition]]] = lambda leaving: (leaving,),
        until: Until | None = None,
        callbacks: RebalanceCallbacks | None = None,
    ) -> None:
        """`until`: the end of reading, without a group. `callbacks` get partitions that come or leave."""
        self._settings = settings
        self.router = Router(settings)
        self._on_revoke = on_revoke
        self._on_left = on_left
        self._apart = apart
        self._group = settings.group
        self._progress = (
            None if settings.group is None else RangeProgress(self.router, settings.group, self.group_metadata)
        )
        self._notices = ReadNotices(
            settings.group, settings.client_id, bootstrap_timeout_ms=settings.bootstrap_timeout_ms
        )
        options = FetchOptions(
            settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.isolation_number,
            settings.client_rack,
        )
        corrupt = CorruptBatches(settings.on_corrupt, now_ms=self.router.now_ms)
        self.fetcher = Fetcher(
            self.router, options, max_partition_bytes=settings.max_partition_fetch_bytes, corrupt=corrupt
        )
        self.assigned = self.fetcher.assigned
        """The assigned partitions, with their positions and the records at hand."""
        self._search = StartSearch(
            self.router,
            self.fetcher,
            group=settings.group,
            reset=settings.reset,
            isolation_level=settings.isolation_number,
            notices=self._notices,
            is_bounded=until is not None,
        )
        self._validator = PositionValidator(
            self.router, self.fetcher, resets=settings.reset is not None, notices=self._notices
        )
        self._member = None if settings.group is None else GroupMember(self.router, settings, self)
        self._callbacks = callbacks or RebalanceCallbacks()
        self._views = None
        if settings.group is not None and settings.shares_by_key:
            self._views = TopicViews(self.router, settings.group, settings.slots_of_a_partition)
        self._whole_topics: WholeTopics | None = None
        self._end: ReadingEnd | None = None
        if until is not None:
            self._end = ReadingEnd(self.router, self.fetcher, until, isolation_level=settings.isolation_number)
        self._next_check_ms = 0
        self._is_closed = False
        self._has_left = False
        """Whether `close` has left the group: nothing can be committed any more."""
        self._has_lost_partitions = False
        self._losses = 0
        """The number of times that the group has removed this member."""
        self._topics = frozenset(settings.topics)
        self._first_topics: tuple[str, ...] = tuple(settings.topics)
        """The topics of the constructor, until the first poll subscribes to these topics."""
        self._is_subscribed = False
        self._knows_what_to_read = bool(self._first_topics)

    # the assignment

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Share these topics with the group, from the next poll on, and topics whose names match the pattern. Without a
        group, read the topics whole."""
        if self._member is None:
            self._read_whole(topics, pattern)
            return
        if self._views is not None and pattern is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "members that share by key give the names of topics, not a pattern"
            )
        self._first_topics = ()
        self._knows_what_to_read = self._is_subscribed = True
        self._topics = frozenset(topics)
        names = tuple(sorted(self._topics))
        if self._views is None:
            self._member.subscribe(TopicSubscription(names, pattern))
        else:
            self._views.subscribe(names)

    def _read_whole(self, topics: Iterable[str], pattern: str | None) -> None:
        if pattern is not None:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID,
                "a pattern needs a group, whose coordinator compares it with names; or name topics",
            )
        left = self.names
        self.assign({})
        self._on_left(left)
        self._topics = frozenset(topics)
        self._whole_topics = WholeTopics(self.router, self.fetcher, self._topics, is_followed=self._end is None)

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the subscription, by name."""
        return self._topics

    async def unsubscribe(self) -> None:
        """Leave the group, after `on_revoke`, and read nothing until topics or partitions are chosen."""
        self.check_open()
        if self._member is not None and self._is_subscribed:
            await self._member.leave()
            self._member = GroupMember(self.router, self._settings, self)
        if self._views is not None:
            self._views.cancel()
        left = self.names
        self.assign({})
        self._on_left(left)
        self._is_subscribed = self._knows_what_to_read = self._has_lost_partitions = False

    def check_assignable(self) -> None:
        """Raise KafkaError after a `subscribe`: the group assigns the partitions then."""
        if self._is_subscribed:
            detail = "this consumer shares topics in a group: unsubscribe() comes before assign()"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)

    def assign(self, wanted: Mapping[TopicPartition, Sequence[KeyRange]]) -> None:
        """Read these partitions, in these ranges of key hashes, outside any group's sharing."""
        self._topics, self._first_topics = frozenset(), ()
        self._knows_what_to_read = True
        self._cancel_tasks()
        self._whole_topics = None
        self.fetcher.assign(wanted)

    @property
    def names(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self.assigned.by_name)

    def set_paused(self, names: Iterable[TopicPartition], is_paused: bool) -> None:
        """Stop or resume these partitions. Raises KafkaError unless all are assigned."""
        if is_paused:
            self.assigned.pause(names)
        else:
            self.assigned.resume(names)
            self.fetcher.wake()

    def start_over(self, name: TopicPartition) -> None:
        """Read this partition from its committed offset again, or by the reset policy without a committed offset."""
        names = self.names
        if name in names:
            self.fetcher.assign(names - {name})
            self.fetcher.assign(names)

    def doubt(self, name: TopicPartition) -> None:
        """Compare the position with the log: a fault shows that the log may have been cut."""
        self.assigned.doubt(name)
        self.router.view.mark_stale(name.topic)
        self.fetcher.wake()

    # records

    async def poll(self, deadline_ms: int, limit: int) -> list[ConsumerRecord]:
        """The next records, in order of offset per partition; an empty list at the deadline. Raises KafkaError."""
        taken = await self.take(deadline_ms, limit)
        return [ConsumerRecord(name.topic, name.partition, *record) for name, record in taken]

    async def take(self, deadline_ms: int, limit: int) -> list[tuple[TopicPartition, Record]]:
        """As `poll`, with the partition beside each record."""
        self.check_open()
        if not self._knows_what_to_read:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing to read: give topics, or call assign()")
        if self._first_topics:
            self.subscribe(self._first_topics)
        self._notices.begin_poll(self.router.now_ms())
        while True:
            if await self._is_ready(deadline_ms):
                taken = self.fetcher.take(limit)
                self._validator.advance()
                if taken:
                    # Records of one partition must not hide the fault of another.
                    if self.router.now_ms() >= self._next_check_ms:
                        self._check_faults()
                    return taken
                await self.fetcher.wait(min(self._next_due_ms(deadline_ms), self.router.now_ms() + _CHECK_MS))
            self.check_open()
            self._check_faults()
            if self.is_at_end or self.router.now_ms() >= deadline_ms:
                return []

    def _next_due_ms(self, deadline_ms: int) -> int:
        """The time of the next search or comparison, at most the deadline."""
        searches = (self._search, self._validator, self._whole_topics, self._end)
        return min(search.next_due_ms(deadline_ms) for search in searches if search is not None)

    @property
    def is_at_end(self) -> bool:
        """Whether every record up to the end of reading is returned."""
        if self._end is None or not self._knows_what_to_read or self._first_topics or self._search.is_under_way:
            return False
        return (self._whole_topics is None or self._whole_topics.are_found) and self._end.is_reached

    async def _is_ready(self, deadline_ms: int) -> bool:
        """Whether there are partitions to read; waits a moment for the group's assignment."""
        if self._is_subscribed and self._member is not None:
            if self._views is not None and not await self._has_views(self._views, self._member, deadline_ms):
                return False
            self._member.changed.clear()
            self._member.on_poll()
            if not self._member.is_stable:
                if self._views is not None:
                    self._views.forget_members()
                wait_ms = min(deadline_ms - self.router.now_ms(), self.router.retry_backoff_ms)
                try:
                    async with asyncio.timeout(max(wait_ms, 0) / 1000):
                        await self._member.changed.wait()
                except TimeoutError:
                    return False
                if not self._member.is_stable:
                    return False
            if self._views is not None and not await self._views.may_read(self._member.identity.member_id, deadline_ms):
                return False
            await self._callbacks.tell()
        if self._whole_topics is not None:
            self._whole_topics.advance()
        if self._end is not None:
            self._end.advance()
        self._search.advance()
        self._validator.check()
        return True

    async def _has_views(self, views: TopicViews, member: GroupMember, deadline_ms: int) -> bool:
        """Whether the member subscribes to the views of its topics; looks the views up until the deadline."""
        chosen = await views.chosen(deadline_ms)
        if chosen is not None:
            member.subscribe(TopicSubscription(chosen))
        return views.are_chosen

    def check_open(self) -> None:
        """Raise KafkaError after `close`."""
        if self._is_closed:
            raise ClosedClient("consumer")

    def _check_faults(self) -> None:
        router, now_ms = self.router, self.router.now_ms()
        self._next_check_ms = now_ms + _CHECK_MS
        self._notices.check(
            self.trouble, now_ms, has_answered=router.has_answered, failed_attempt_ms=router.failed_attempt_ms
        )

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps `poll` from returning all records while the consumer tries again; None without such a
        fault."""
        parts = (self._views, self._member, self._whole_topics, self._end, self._search, self._validator, self.fetcher)
        return next((fault for part in parts if part is not None and (fault := part.trouble)), None)

    def metrics(self, next_offsets: Mapping[TopicPartition, int]) -> dict[MetricName, int]:
        """Numbers about the reading now. `next_offsets`: the next record to return, by partition."""
        return consumer_metrics(self.fetcher, next_offsets, metadata_requests=self.router.view.refreshes)

    # the group

    @property
    def progress(self) -> RangeProgress:
        """The group's progress at its coordinator. Raises KafkaError INVALID_GROUP_ID without a group."""
        if self._progress is None:
            raise without_group()
        return self._progress

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: int = COMMIT_TIMEOUT_MS
    ) -> None:
        """Commit these offsets as this member; before the first poll, as a client outside the group."""
        if not offsets:
            return
        losses = self._losses

        async def commit() -> None:
            member = ConsumerGroupMetadata(self._group or "") if self._first_topics else self.group_metadata()
            await commit_group_offsets(self.router, member.group_id, offsets, member=member, timeout_ms=timeout_ms)

        # After a removal the partitions may have had other readers, which are further on.
        await commit_in_epoch(self.router, commit, timeout_ms=timeout_ms, may_repeat=lambda: losses == self._losses)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member of it; no member with `assign`.

        Raises KafkaError: UNKNOWN_MEMBER_ID while this member is out of its group, INVALID_GROUP_ID without a group.
        """
        self.check_member()
        member = self._member if self._is_subscribed else None
        identity = member.identity if member is not None else ConsumerGroupMetadata(self._group or "")
        if self._first_topics or (member and identity.generation_id < 0):
            raise not_a_member(self._group)  # for the coordinator the author would be a client outside the group
        return identity

    def epoch_before(self, name: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before this offset; -1: unknown."""
        return self.assigned.epoch_before(name, offset)

    @property
    def identity(self) -> ConsumerGroupMetadata:
        """The member in its group now, with generation -1 outside the group."""
        return ConsumerGroupMetadata("") if self._member is None else self._member.identity

    def check_member(self) -> None:
        """Raise KafkaError without a group, and while this member is out of it; after `close`, not while it runs."""
        if self._has_left:
            raise ClosedClient("consumer")
        if self._group is None:
            raise without_group()
        if self._has_lost_partitions:
            raise not_a_member(self._group)

    # callbacks of the membership

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Return no more records of these partitions: the group takes the partitions away."""
        self.assigned.hold(partitions)

    def apart(self, partitions: frozenset[TopicPartition]) -> Iterable[frozenset[TopicPartition]]:
        """The partitions in sets that leave apart from each other."""
        return self._apart(partitions)

    async def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Let the owner of this reader commit its progress in these partitions, which are held; then tell the user."""
        await self._on_revoke(partitions)
        await self._callbacks.revoke(partitions)

    def assigned_by_group(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Read these partitions: the group has assigned them to this member."""
        self._has_lost_partitions = False
        self._cancel_tasks()
        left = self.names.difference(partitions)
        self.fetcher.assign(partitions)
        self._callbacks.assign(partitions)
        self._on_left(left)

    def wake(self) -> None:
        """Let a poll that waits look at the member again."""
        self.fetcher.wake()

    def lost(self) -> None:
        """Stop reading: the group has removed this member, and other members may read its partitions already."""
        self._callbacks.lose(self.names)
        self.assigned_by_group(())
        self._has_lost_partitions = True
        self._losses += 1

    # the end

    async def close(self) -> None:
        """Leave the group, after `on_revoke`, and close the connections. May be called again.

        A call that is cancelled does not finish leaving the group, and still closes the connections, within a second.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._member is not None and self._is_subscribed:
                await self._member.leave()
            else:
                await self._on_revoke(self.names)
        finally:
            self._has_left = True
            self._cancel_tasks()
            if self._views is not None:
                self._views.cancel()
            try:
                await self.fetcher.close()
            finally:
                self.router.close()

    def _cancel_tasks(self) -> None:
        """Cancel the searches and the comparison that run beside the poll."""
        if self._whole_topics is not None:
            self._whole_topics.cancel()
        if self._end is not None:
            self._end.cancel()
        self._search.cancel()
        self._validator.cancel()

    async def abandon(self) -> None:
        """Stop at once, without leaving the group. For the end of the interpreter."""
        self._is_closed = True
        if self._member is not None:
            await self._member.stop()
        self._cancel_tasks()
        await self.fetcher.stop()
        self.router.close()
        await asyncio.sleep(0)  # cancelled tasks end now
