"""Reads topics, alone or as a member of a group that shares them."""

import asyncio
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, overload

from tailrace.client.construction import StartableClient, made_of
from tailrace.client.group.committed_offsets import (
    AutoCommit,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    exact_offsets,
    fetch_group_offsets,
)
from tailrace.client.group.range_progress import KeyProgress, RangeBudget
from tailrace.client.group.rebalance_callbacks import ConsumerRebalanceListener, RebalanceCallbacks
from tailrace.client.group.topic_views import check_slots
from tailrace.client.hints.call_hints import hinted
from tailrace.client.hints.record_hints import PolledRecords, note_called_field
from tailrace.client.hints.time_outs import doubted_seconds, poll_seconds, seconds_of
from tailrace.client.names import Names, several
from tailrace.client.offsets import EARLIEST, LATEST, LogOffsets
from tailrace.client.partition_names import (
    ByPartition,
    Pair,
    by_partition,
    is_pair,
    partition_named,
    partitions_named,
    ranges_by_partition,
)
from tailrace.client.reader_settings import ConsumerSettings
from tailrace.client.reading.consumer_metrics import MetricName
from tailrace.client.reading.consumer_reader import ConsumerReader
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.client.reading.returned_records import ReturnedRecords
from tailrace.client.serialization import K, V
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, joined
from tailrace.model.partitions import TopicPartition

_ITERATION_POLL_S: Final = 1.0

_logger = logging.getLogger("tailrace.client")


@hinted
class AsyncConsumer(StartableClient[ConsumerSettings[K, V]], LogOffsets, Generic[K, V]):
    """An asyncio consumer. Names and defaults of settings are Kafka's.

    With `group` and `topics` it shares the topics' partitions with the group's other members and keeps its progress
    there. Without a group it reads its topics whole, or the partitions of `assign`; with `until` up to an end: then an
    iteration ends there, and `is_at_end` is true. A partition is a TopicPartition, or a pair ("orders", 0).

    Partitions change hands inside `poll` only. Without a committed offset the consumer starts at auto_offset_reset:
    latest, earliest, or none, which is an error. At a batch that cannot be decoded each `poll` raises CorruptRecords;
    with on_corrupt="skip" the consumer goes on behind the batch, and logs a line.

    With allow_individual_commit the members of the group share partitions by key, through the views of the topics
    (KIP-X): more members than partitions have work, and a key has one reader at a time. Records have the names of the
    topics, `assignment` the slots.

    With key_deserializer and value_deserializer, functions of bytes, records have what the functions return; None stays
    None. RecordDeserializationError names a record that a function has refused.

    A fault that keeps it from reading is retried; `trouble` has it, and the log `tailrace.client` warns of it, at once
    and every 30 s. `poll` raises when no broker at all has answered for bootstrap_timeout_ms of polling.
    """

    @made_of(ConsumerSettings[K, V])
    def __init__(self, settings: ConsumerSettings[K, V]) -> None:
        self._callbacks = RebalanceCallbacks()
        self._reader = ConsumerReader(
            settings,
            on_revoke=self._on_revoke,
            on_left=self._on_left,
            until=settings.until,
            callbacks=self._callbacks,
        )
        self._router, self._isolation_level = self._reader.router, settings.isolation_number
        self._group = settings.group
        self._max_poll_records = settings.max_poll_records
        self._auto_commit = AutoCommit(
            self._router,
            partial(self._reader.commit, timeout_ms=0),
            is_on=settings.enable_auto_commit and settings.group is not None,
            interval_ms=settings.auto_commit_interval_ms,
        )
        self._returned: ReturnedRecords[K, V] = ReturnedRecords(
            self._reader.assigned.put_back,
            key_deserializer=settings.key_deserializer,
            value_deserializer=settings.value_deserializer,
            reads_views=settings.shares_by_key,
        )
        self._shares_by_key = settings.shares_by_key

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.withhold_unpassed()
        await self.close()

    # partitions and positions

    async def subscribe(
        self,
        topics: Names = (),
        *,
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Share these topics with the group, from the next poll on; without a group, read them whole.

        `listener` gets a call for partitions that come or leave, in place of an earlier subscription's listener.

        `pattern` is a regular expression (RE2) for the whole names of more topics, also of topics that are made later.
        The coordinator compares the names (KIP-848). Raises KafkaError UNSUPPORTED_VERSION with group.protocol=classic;
        with an older server `poll` raises the error.
        """
        if not topics and pattern is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "subscribe to the names of topics, or to a pattern")
        if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
            raise TypeError(
                f"listener is a ConsumerRebalanceListener, not {type(listener).__name__}: make it a subclass"
            )
        self._reader.subscribe(several(topics), pattern)
        self._callbacks.listener = listener

    async def unsubscribe(self) -> None:
        """Commit (with auto commit), leave the group, and read nothing until `subscribe` or `assign`."""
        await self._reader.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """The names of the topics of `topics` or `subscribe`; empty after `assign`. A pattern has no names here."""
        return self._reader.topics

    async def assign(self, partitions: ByPartition[Sequence[KeyRange]] | Iterable[Pair]) -> None:
        """Read exactly these partitions, outside any group's sharing.

        A mapping gives each partition the ranges of key hashes whose records are read; without ranges the whole
        partition is read (KIP-X). A broker that does not know ranges sends all records, and this consumer leaves out
        the rest. Raises KafkaError INVALID_REQUEST for ranges that are malformed, or overlap.
        """
        wanted = ranges_by_partition(partitions)
        self._reader.check_assignable()
        self._returned.drop_ahead(self.assignment() - wanted.keys())
        changed = {name for name in self.assignment() & wanted.keys() if self._changes(name, wanted[name])}
        self._returned.put_ahead_back(changed)
        self._reader.assign(wanted)

    def _changes(self, name: TopicPartition, ranges: Sequence[KeyRange]) -> bool:
        """Whether the partition gets other ranges: then its fetched records are not returned."""
        partition = self._reader.assigned.get(name)
        return partition is not None and partition.key_ranges != joined(ranges)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._reader.names

    async def seek(self, topic_partition: Pair, offset: OffsetAndMetadata | int) -> None:
        """Read on from this offset. Raises KafkaError unless the partition is assigned.

        The leader epoch of an OffsetAndMetadata is the epoch of the record before the offset: by this epoch the
        position is compared with the leader's log, and a truncation is found.
        """
        self._seek(partition_named(topic_partition), offset)

    def _seek(self, name: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        at = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        self._reader.assigned.seek(name, at.offset, at.leader_epoch)
        self._returned.drop_ahead({name})

    async def seek_to_beginning(self, partitions: Iterable[Pair] = ()) -> None:
        """Read on from the log starts of these partitions, by default of all assigned partitions. Raises KafkaError for
        a partition that is not assigned, and without any assigned partition."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[Pair] = ()) -> None:
        """Read on from the ends of these partitions, by default of all assigned partitions.

        With read_committed the end is the last stable offset.
        """
        await self._seek_to(partitions, LATEST)

    async def _seek_to(self, partitions: Iterable[Pair], spec: int) -> None:
        names = partitions_named(partitions) or sorted(self.assignment())
        if not names:
            detail = "no partition is assigned yet: poll() first, or assign(), or set auto_offset_reset"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
        for name in names:
            self._reader.assigned.check_assigned(name)
        for name, listed in (await self._list_offsets(dict.fromkeys(names, spec))).items():
            self._seek(name, listed.offset)

    async def pause(self, partitions: Iterable[Pair]) -> None:
        """Fetch and return no records of these partitions until `resume`; records fetched already are kept.

        Polls go on, and so does the membership in the group. A rebalance ends the pause of each partition that this
        consumer loses, even for a moment. Raises KafkaError unless all the partitions are assigned.
        """
        wanted = frozenset(partitions_named(partitions))
        self._reader.set_paused(wanted, True)
        self._returned.put_ahead_back(wanted)

    async def resume(self, partitions: Iterable[Pair]) -> None:
        """Read on in these partitions. Raises KafkaError unless all the partitions are assigned."""
        self._reader.set_paused(frozenset(partitions_named(partitions)), False)

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._reader.assigned.paused

    def position(self, topic_partition: Pair) -> int | None:
        """The offset of the next record that `poll` will return; None while undecided."""
        name = partition_named(topic_partition)
        return self._returned.next_offsets().get(name, self._reader.assigned.position(name))

    @property
    def is_at_end(self) -> bool:
        """Whether every record up to the setting `until` is returned: then `poll` returns no record, at once."""
        return self._reader.is_at_end and not self._returned

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps `poll` from returning all records while the consumer tries again: a node that is down, a
        damaged log, a group without a coordinator, a topic that does not exist. None without such a fault."""
        return self._reader.trouble

    def metrics(self) -> dict[MetricName, int]:
        """Numbers about this consumer now; docs/python.md has the list."""
        return self._reader.metrics(self._next_offsets())

    # records

    async def poll(
        self,
        timeout: float = 1.0,  # noqa: ASYNC109 - running out of time is a result here
        *,
        timeout_ms: int | None = None,
        max_records: int | None = None,
    ) -> list[ConsumerRecord[K, V]]:
        """The next records, in order of offset per partition; an empty list after `timeout` seconds without any, or
        after `timeout_ms`, which counts before it.

        The call declares the records of the call before as processed: they may be committed, and partitions may move
        to other members. Raises KafkaError for a fault that a retry does not cure, when no broker at all has answered
        for bootstrap.timeout.ms of polling, for a record that a deserializer has refused (RecordDeserializationError),
        and for `max_records` below 1 (INVALID_CONFIG).
        """
        wait_s = poll_seconds(timeout, timeout_ms)
        with doubted_seconds(timeout, timeout_ms):
            records = await self._poll(wait_s, max_records)
        return PolledRecords(self._returned.receive(records))

    async def getone(self) -> ConsumerRecord[K, V]:
        """The next record; waits without end for it. Other calls of `poll` count it as processed.

        Raises KafkaError as `poll`, and INVALID_REQUEST at the end of reading (`until`).
        """
        while (record := self.next_ahead()) is None:
            if self._reader.is_at_end:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "every record up to `until` is returned")
            await self.poll_ahead(_ITERATION_POLL_S)
        return record

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """The records of a `poll` by partition, in order of offset."""
        by_name: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        for record in await self.poll(timeout_ms=timeout_ms, max_records=max_records):
            by_name.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return by_name

    async def _poll(self, wait_s: float, max_records: int | None = None) -> list[ConsumerRecord]:
        """Do what `poll` does; records of views have the names of the views."""
        deadline_ms = self._router.now_ms() + int(wait_s * 1000)
        self._reader.check_open()
        limit = self._max_poll_records if max_records is None else max_records
        if limit < 1:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"max_records {limit}; a poll returns at least one record")
        self._returned.put_ahead_back()
        self._returned.pass_all()
        self._auto_commit.start_if_due(self._positions)
        return await self._reader.poll(deadline_ms, limit)

    # iteration

    def __aiter__(self) -> Self:
        """Records without end, as they come, or up to the setting `until`. A commit covers all records yielded so far,
        also the last record: but not the last record when the `async with` block ends by an exception."""
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        while (record := self.next_ahead()) is None:
            if self._reader.is_at_end:
                raise StopAsyncIteration
            await self.poll_ahead(_ITERATION_POLL_S)
        return record

    async def poll_ahead(self, timeout: float) -> None:  # noqa: ASYNC109 - as with poll
        """Poll for an iteration: `next_ahead` returns these records singly."""
        self._returned.receive_ahead(await self._poll(timeout))

    def next_ahead(self) -> ConsumerRecord[K, V] | None:
        """The next record of an iteration, which counts as returned now; None: poll ahead. From any thread."""
        return self._returned.next()

    def withhold_unpassed(self) -> None:
        """Note that the caller has failed: `close` commits neither the last poll's records nor an iteration's last
        record."""
        self._returned.withhold()

    # progress

    async def commit(
        self,
        offsets: ByPartition[OffsetAndMetadata | int] | None = None,
        *,
        ranges: ByPartition[Iterable[Rectangle]] | None = None,
    ) -> dict[TopicPartition, RangeBudget]:
        """Commit these offsets (each of the next record to read), or by default the position in every partition.

        The default includes positions that have not moved: a group's offsets expire unless they are renewed. Raises
        KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or REBALANCE_IN_PROGRESS when this member is out of the group.

        With `ranges` no offset is committed: the records with these offsets and key hashes become done, in addition to
        earlier commits (KIP-X). Returns the ranges of the group in each of the partitions; raises as
        `RangeProgress.commit`.
        """
        self._reader.check_member()
        if ranges is not None and offsets is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "commit offsets or ranges, not both at once")
        if ranges is not None:
            return await self._reader.progress.commit(by_partition(ranges))
        wanted: Mapping[TopicPartition, OffsetAndMetadata | int]
        if offsets is None:
            self._auto_commit.drop()
            wanted = self._positions()
        else:
            wanted = by_partition(offsets)
            await self._auto_commit.wait()
            if self._shares_by_key:
                check_slots(wanted, self.assignment())
        exact = exact_offsets(wanted)
        await self._reader.commit(exact)
        self._returned.commit({name: committed.offset for name, committed in exact.items()})
        return {}

    async def takes_ranges(self) -> bool:
        """Whether the coordinator of the group takes commits of ranges (KIP-X)."""
        return await self._reader.progress.takes_ranges()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member of it, for `Producer.send_offsets_to_transaction`; no member with `assign`.

        Raises KafkaError: UNKNOWN_MEMBER_ID while this member is out of its group, INVALID_GROUP_ID without a group.
        """
        return self._reader.group_metadata()

    def _next_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the next record to return, in each partition with a decided position."""
        return {**self._reader.assigned.positions(), **self._returned.next_offsets()}

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The next offsets and the leader epochs before them, without records that a failed caller withholds."""
        ends = self._returned.end_of(self._next_offsets()).items()
        return {name: OffsetAndMetadata(offset, self._reader.epoch_before(name, offset)) for name, offset in ends}

    @overload
    async def committed(self, partitions: Pair) -> KeyProgress | None: ...

    @overload
    async def committed(self, partitions: Iterable[Pair]) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def committed(
        self, partitions: Pair | Iterable[Pair]
    ) -> KeyProgress | dict[TopicPartition, OffsetAndMetadata] | None:
        """The group's committed offsets; a partition without an offset is left out. Waits for the end of transactions
        that have set an offset (KIP-447).

        For a single partition: the progress of the group, with the ranges of offsets and key hashes that are done
        beyond the offset (KIP-X); None without a commit. Later commits of ranges build on this progress.
        """
        progress = self._reader.progress
        if is_pair(partitions):
            return await progress.committed(partition_named(partitions))
        assert self._group is not None, "it has progress"
        names = partitions_named(partitions)
        return await fetch_group_offsets(self._router, self._group, names, require_stable=True)

    # the group's callbacks, and the end

    async def _on_revoke(self, leaving: frozenset[TopicPartition]) -> None:
        """Commit the positions in these partitions. After a failure records are read twice, and none is lost."""
        if self._auto_commit.is_on:
            self._auto_commit.drop()
            positions = {name: position for name, position in self._positions().items() if name in leaving}
            with suppress(KafkaError):
                await self._reader.commit(positions)

    def _on_left(self, left: frozenset[TopicPartition]) -> None:
        """Forget the records of partitions that have left."""
        if left:
            self._auto_commit.drop()
            self._returned.forget(left)

    async def close(self, timeout: float | None = None, *, timeout_ms: int | None = None) -> None:  # noqa: ASYNC109
        """Commit (with auto commit), leave the group, close the connections. May be called again.

        A call that is cancelled, or that has not ended after `timeout` seconds (`timeout_ms` counts before it), does
        not finish the commit or the leaving of the group, and still closes the connections, within a second.
        """
        note_called_field(sys.exception())
        limit_s = seconds_of(timeout, timeout_ms, call="close")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._reader.close()
        finally:
            self._auto_commit.drop()

    async def finish_dropped(self) -> None:
        """Close, for a caller that has dropped this consumer: of its last records none counts as processed."""
        self.withhold_unpassed()
        await self.close()

    async def abandon(self) -> None:
        """Stop at once, without a commit and without leaving the group. For the end of the interpreter."""
        held = len(self.assignment())
        if held and self._reader.identity.generation_id >= 0:
            _logger.warning(
                "a consumer of group %r ends without close(): %d of the partitions have no reader until its session is"
                " over (45 s by default); use `with Consumer(...)`, or call close()",
                self._group,
                held,
            )
        self._auto_commit.drop()
        await self._reader.abandon()
