"""Reads topics, alone or as a member of a group that shares them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, overload

from tailrace.client.errors import check_count, several
from tailrace.client.group.auto_commit import AutoCommit, Positions
from tailrace.client.group.committed_offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    commit_group_offsets,
    fetch_group_offsets,
)
from tailrace.client.group.member_host import GroupMember
from tailrace.client.group.range_progress import KeyProgress, RangeBudget, RangeProgress
from tailrace.client.offsets import parse_reset
from tailrace.client.reading.consumer_metrics import MetricName, consumer_metrics
from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.client.reading.position_validation import PositionValidator
from tailrace.client.reading.ranged_fetch import parse_isolation
from tailrace.client.reading.read_notices import ReadNotices
from tailrace.client.reading.records_ahead import ConsumerRecord, RecordsAhead
from tailrace.client.reading.start_search import StartSearch
from tailrace.client.reading.unpassed_records import UnpassedRecords
from tailrace.client.router import Router
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, fault_of, joined
from tailrace.model.partitions import TopicPartition

COMMIT_TIMEOUT_MS = 10_000
_CHECK_MS = 1_000
"""The interval at which a poll checks for a fault that keeps it from reading: while it waits, and before records."""


class AsyncConsumer:
    """An asyncio consumer. Names and defaults of settings are Kafka's.

    With `group` and `topics` it shares the topics' partitions with the group's other members and keeps its progress
    there; `assign` reads chosen partitions without sharing. Partitions change hands inside `poll` only. Without a
    committed offset it starts at auto_offset_reset: latest, earliest, or none, which is an error. At a batch that
    cannot be decoded each `poll` raises CorruptRecords; with on_corrupt="skip" it goes on behind it, and says so.

    A fault that keeps it from reading is retried; `trouble` has it, and the log `tailrace.client` warns of it, at once
    and every 30 s. `poll` raises when no broker at all has answered for bootstrap_timeout_ms of polling.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str | None = None,
        topics: Iterable[str] = (),
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        max_poll_records: int = 500,
        partition_assignment_strategy: Sequence[str] = ("range",),
        group_instance_id: str | None = None,
        isolation: str = "read_uncommitted",
        on_corrupt: str = "raise",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        metadata_max_age_ms: int = 300_000,
        bootstrap_timeout_ms: int = 10_000,
        client_rack: str = "",
        client_id: str = "tailrace-consumer",
    ) -> None:
        reset = parse_reset(auto_offset_reset)
        check_count("max.poll.records", max_poll_records)
        self._router = Router(
            bootstrap_servers,
            client_id=client_id,
            metadata_max_age_ms=metadata_max_age_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
        )
        self._notices = ReadNotices(group, client_id, bootstrap_timeout_ms=bootstrap_timeout_ms)
        self._group = group
        self._progress = None if group is None else RangeProgress(self._router, group)
        self._auto_commit = AutoCommit(
            self._router,
            partial(self._commit, timeout_ms=0),
            is_on=enable_auto_commit and group is not None,
            interval_ms=auto_commit_interval_ms,
        )
        self._max_poll_records = max_poll_records
        level = parse_isolation(isolation)
        options = FetchOptions(fetch_max_wait_ms, fetch_min_bytes, fetch_max_bytes, level, client_rack)
        corrupt = CorruptBatches(on_corrupt, now_ms=self._router.now_ms)
        self._fetcher = Fetcher(self._router, options, max_partition_bytes=max_partition_fetch_bytes, corrupt=corrupt)
        self._assigned = self._fetcher.assigned
        self._search = StartSearch(
            self._router, self._fetcher, group=group, reset=reset, isolation_level=level, notices=self._notices
        )
        self._validator = PositionValidator(
            self._router, self._fetcher, resets=reset is not None, notices=self._notices
        )
        self._ahead = RecordsAhead()
        """Records that an iteration has polled and not yielded: `poll` returns them first, no commit covers them."""
        self._unpassed = UnpassedRecords()
        self._next_check_ms = 0
        self._is_closed = False
        self._has_lost_partitions = False
        self._member: GroupMember | None = None
        if group is not None:
            self._member = GroupMember(
                self._router,
                group,
                self,
                assignors=partition_assignment_strategy,
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                group_instance_id=group_instance_id,
            )
        self._is_subscribed = False
        self._initial_topics = several(topics)
        self._knows_what_to_read = bool(self._initial_topics)
        if self._initial_topics and group is None:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "topics are shared in a group: give one, or use assign()")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.withhold_unpassed()
        await self.close()

    # partitions and positions

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Share these topics with the group, from the next poll on."""
        if self._member is None:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "topics are shared in a group: give one, or use assign()")
        wanted = several(topics)
        self._initial_topics = ()
        self._knows_what_to_read = self._is_subscribed = True
        self._member.subscribe(wanted)

    async def assign(self, partitions: Mapping[TopicPartition, Sequence[KeyRange]] | Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside any group's sharing.

        A mapping gives each partition the ranges of key hashes whose records are read; an empty one stands for the
        whole partition (KIP-X). A broker that does not know ranges sends all records, and they are left out here.
        Raises KafkaError INVALID_REQUEST for ranges that are none, or overlap.
        """
        if self._is_subscribed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "this consumer shares topics in a group; assign() is for others"
            )
        self._initial_topics = ()
        self._knows_what_to_read = True
        self._search.cancel()
        self._validator.cancel()
        wanted = dict(partitions) if isinstance(partitions, Mapping) else dict.fromkeys(partitions, ())
        for name, ranges in wanted.items():
            if (fault := fault_of(ranges)) is not None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}: {fault}")
        self._ahead.remove(self.assignment - wanted.keys())
        self._put_ahead_back({name for name in self.assignment & wanted.keys() if self._changes(name, wanted[name])})
        self._fetcher.assign(wanted)

    def _changes(self, name: TopicPartition, ranges: Sequence[KeyRange]) -> bool:
        """Whether the ranges of this partition become others: then its records that are at hand do not count."""
        partition = self._assigned.get(name)
        return partition is not None and partition.key_ranges != joined(ranges)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._assigned.by_name)

    async def seek(self, topic_partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read on from this offset. Raises KafkaError unless the partition is assigned.

        The leader epoch of an OffsetAndMetadata is that of the record before the offset: with it the position is
        compared with the leader's log, and a truncation is found.
        """
        at = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        self._assigned.seek(topic_partition, at.offset, at.leader_epoch)
        self._ahead.remove({topic_partition})

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch and return no records of these partitions until `resume`; records fetched already are kept.

        Polls go on, and with them the membership in the group. A rebalance forgets it for partitions that this consumer
        loses, be it for a moment. Raises KafkaError unless all are assigned.
        """
        wanted = frozenset(partitions)
        self._assigned.pause(wanted)
        self._put_ahead_back(wanted)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read on in these partitions. Raises KafkaError unless all are assigned."""
        self._assigned.resume(frozenset(partitions))
        self._fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._assigned.paused

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset of the next record that `poll` will return; None while it is not decided."""
        return self._ahead.next_offsets().get(topic_partition, self._assigned.position(topic_partition))

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps `poll` from returning all records, while it is retried: a node that is down, a damaged
        log, a group without a coordinator, a topic that does not exist. None without a fault."""
        of_group = None if self._member is None else self._member.trouble
        return of_group or self._search.trouble or self._validator.trouble or self._fetcher.trouble

    def metrics(self) -> dict[MetricName, int]:
        """Numbers about this consumer now; docs/python.md has the list."""
        requests = self._router.view.refreshes
        return consumer_metrics(self._fetcher, self._next_offsets(), metadata_requests=requests)

    # records

    async def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> list[ConsumerRecord]:  # noqa: ASYNC109 - running out of time is a result here
        """The next records, in order of offset per partition; an empty list after `timeout` seconds without any.

        The call declares the records of the call before as processed: they may be committed, and partitions may move
        to other members. Raises KafkaError for a fault that a retry does not cure, when no broker at all has answered
        for bootstrap.timeout.ms of polling, and for `max_records` below 1 (INVALID_CONFIG).
        """
        began_ms = self._router.now_ms()
        deadline_ms = began_ms + int(timeout * 1000)
        self._check_open()
        limit = self._max_poll_records if max_records is None else max_records
        check_count("max_records", limit)
        if not self._knows_what_to_read:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing to read: give a group and topics, or call assign()")
        if self._initial_topics:
            await self.subscribe(self._initial_topics)
        self._unpassed.pass_all()
        self._auto_commit.start_if_due(self._positions)
        self._notices.begin_poll(began_ms)
        while True:
            if await self._is_ready(deadline_ms):
                records = self._take(limit)
                if records:
                    self._unpassed.receive(records)
                    # Records of one partition must not hide the fault of another.
                    if self._router.now_ms() >= self._next_check_ms:
                        self._check_faults()
                    return records
                check_ms = self._router.now_ms() + _CHECK_MS
                due_ms = min(self._search.next_due_ms(deadline_ms), self._validator.next_due_ms(deadline_ms))
                await self._fetcher.wait(min(due_ms, check_ms))
            self._check_open()
            self._check_faults()
            if self._router.now_ms() >= deadline_ms:
                return []

    def _check_faults(self) -> None:
        now_ms = self._router.now_ms()
        self._next_check_ms = now_ms + _CHECK_MS
        router = self._router
        self._notices.check(
            self.trouble, now_ms, has_answered=router.has_answered, failed_attempt_ms=router.failed_attempt_ms
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "this consumer is closed")

    def _take(self, limit: int) -> list[ConsumerRecord]:
        if self._ahead:
            return self._ahead.take(limit)
        taken = self._fetcher.take(limit)
        self._validator.advance()
        return [ConsumerRecord(partition.topic, partition.partition, *record) for partition, record in taken]

    async def _is_ready(self, deadline_ms: int) -> bool:
        """Whether there are partitions to read; waits a moment for the group's assignment."""
        if self._is_subscribed and self._member is not None:
            self._member.changed.clear()
            self._member.on_poll()
            if self._member.fault is not None:
                raise self._member.fault
            if not self._member.is_stable:
                wait_ms = min(deadline_ms - self._router.now_ms(), self._router.retry_backoff_ms)
                try:
                    async with asyncio.timeout(max(wait_ms, 0) / 1000):
                        await self._member.changed.wait()
                except TimeoutError:
                    return False
                if not self._member.is_stable:
                    return False
        self._search.advance()
        self._validator.check()
        return True

    # iteration

    async def poll_ahead(self, timeout: float) -> None:  # noqa: ASYNC109 - as with poll
        """Poll for an iteration: `next_ahead` returns these records one by one."""
        self._ahead.add(await self.poll(timeout))
        self._unpassed.pass_all()  # the caller has none of them yet

    def next_ahead(self) -> ConsumerRecord | None:
        """The next record of an iteration, which counts as returned now; None: poll ahead. From any thread."""
        record = self._ahead.pop()
        self._unpassed.receive_next(record)
        return record

    def withhold_unpassed(self) -> None:
        """The caller has failed: `close` commits neither the records of the last poll nor an iteration's last one."""
        self._unpassed.withhold()

    def _put_ahead_back(self, partitions: Set[TopicPartition]) -> None:
        for name, records in self._ahead.remove(partitions).items():
            self._assigned.put_back(name, records)

    # progress

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        ranges: Mapping[TopicPartition, Iterable[Rectangle]] | None = None,
    ) -> dict[TopicPartition, RangeBudget]:
        """Commit these offsets (each of the next record to read), or by default the position in every partition.

        The default includes positions that have not moved: a group's offsets expire unless they are renewed. Raises
        KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or REBALANCE_IN_PROGRESS when this member is out of the group.

        With `ranges` no offset is committed: these offsets of these key hashes are done, beside all that was (KIP-X).
        Returns the ranges of the group in each of the partitions; raises as `RangeProgress.commit`.
        """
        self._check_open()
        progress = self._progress_of_group()
        if self._has_lost_partitions:
            raise self._not_a_member()
        if ranges is not None and offsets is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "commit offsets or ranges, not both at once")
        if ranges is not None:
            return await progress.commit(ranges, member=self.group_metadata(), timeout_ms=COMMIT_TIMEOUT_MS)
        if offsets is None:
            self._auto_commit.drop()
        else:
            await self._auto_commit.wait()
        wanted: Mapping[TopicPartition, OffsetAndMetadata | int] = self._positions() if offsets is None else offsets
        exact = {p: OffsetAndMetadata(o) if isinstance(o, int) else o for p, o in wanted.items()}
        await self._commit(exact)
        self._unpassed.commit({name: committed.offset for name, committed in exact.items()})
        return {}

    def _progress_of_group(self) -> RangeProgress:
        if self._progress is None:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a consumer without a group has no committed offsets")
        return self._progress

    async def takes_ranges(self) -> bool:
        """Whether the coordinator of the group takes commits of ranges (KIP-X)."""
        return await self._progress_of_group().is_supported()

    def _not_a_member(self) -> KafkaError:
        detail = (
            f"no member of group {self._group!r} now: others may have read these partitions; the next poll joins again"
        )
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)

    async def _commit(self, offsets: Positions, *, timeout_ms: int = COMMIT_TIMEOUT_MS) -> None:
        if offsets:
            member = ConsumerGroupMetadata(self._group or "") if self._initial_topics else self.group_metadata()
            await commit_group_offsets(self._router, member.group_id, offsets, member=member, timeout_ms=timeout_ms)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member of it, for `Producer.send_offsets_to_transaction`; no member with `assign`.

        Raises KafkaError: UNKNOWN_MEMBER_ID while this member is out of its group, INVALID_GROUP_ID without a group.
        """
        self._progress_of_group()
        member = self._member if self._is_subscribed else None
        identity = member.identity if member is not None else ConsumerGroupMetadata(self._group or "")
        if self._has_lost_partitions or self._initial_topics or (member and identity.generation_id < 0):
            raise self._not_a_member()  # to the coordinator it would be a client outside the group
        return identity

    def _next_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the next record to return, in each partition where it is decided."""
        return {**self._assigned.positions(), **self._ahead.next_offsets()}

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The same with the leader epoch of the record before it, up to the records that a failed caller withholds."""
        epoch_before = self._assigned.epoch_before
        offsets = self._unpassed.end_of(self._next_offsets())
        return {name: OffsetAndMetadata(offset, epoch_before(name, offset)) for name, offset in offsets.items()}

    async def _try_commit(self) -> None:
        """The last commit before partitions are revoked: after a failure records are read twice, and none is lost."""
        self._auto_commit.drop()
        with suppress(KafkaError):
            await self._commit(self._positions())

    @overload
    async def committed(self, partitions: TopicPartition) -> KeyProgress | None: ...

    @overload
    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition]
    ) -> KeyProgress | dict[TopicPartition, OffsetAndMetadata] | None:
        """The group's committed offsets; a partition without one is left out.

        Of a single partition, its progress with the ranges of offsets and key hashes that are done beyond its offset
        (KIP-X); None without any. Commits of ranges are made from there on.
        """
        progress = self._progress_of_group()
        if isinstance(partitions, TopicPartition):
            return await progress.fetch(partitions)
        assert self._group is not None, "it has progress"
        return await fetch_group_offsets(self._router, self._group, partitions)

    async def close(self) -> None:
        """Commit (with auto commit), leave the group, close the connections. May be called again.

        A cancelled call commits and leaves no more, but still closes the connections, within a second.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._member is not None and self._is_subscribed:
                await self._member.leave()
            elif self._auto_commit.is_on:
                await self._try_commit()
        finally:
            await self._close_connections()

    async def _close_connections(self) -> None:
        self._cancel_tasks()
        try:
            await self._fetcher.close()
        finally:
            self._router.close()

    def _cancel_tasks(self) -> None:
        """Cancel the search, the comparison and the commit that run beside the poll."""
        self._search.cancel()
        self._validator.cancel()
        self._auto_commit.drop()

    async def abandon(self) -> None:
        """Stop at once, without a commit and without leaving the group. For the end of the interpreter."""
        self._is_closed = True
        if self._member is not None:
            await self._member.stop()
        self._cancel_tasks()
        await self._fetcher.stop()
        self._router.close()
        await asyncio.sleep(0)  # cancelled tasks end now

    # callbacks of the group

    async def revoke(self) -> None:
        """The group rebalances: commit the positions, then stop reading."""
        if self._auto_commit.is_on:
            await self._try_commit()
        self.assigned(())

    def assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Read these partitions: the group has assigned them to this consumer."""
        self._has_lost_partitions = False
        self._cancel_tasks()
        self._ahead.clear()
        self._unpassed.pass_all()
        self._fetcher.assign(partitions)

    def lost(self) -> None:
        """Stop reading: the group has removed this consumer, and others may read its partitions already."""
        self.assigned(())
        self._has_lost_partitions = True
