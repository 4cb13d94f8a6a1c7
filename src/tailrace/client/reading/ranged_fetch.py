"""Reads a range of offsets of one partition with plain fetches, without a group or a kept position.

1. The range ends by offset, never by counting: control records, aborted transactions and compaction leave gaps, and a
   gap is no loss.
2. Records below the log's start are lost. The error names the lost range, whether the records were deleted before the
   read or during it.
3. The next fetch is sent before the last answer is returned, so that network and reader work at the same time.
4. Records come from the replica that the leader names (KIP-392), for the rack or by a selector of its own, records of
   later ranges too, for metadata.max.age.ms at most. After a fault of that replica, or a few answers without records
   that the range must have, the leader serves for a minute, and is asked in a version in which it names no replica.
5. A topic is gone if it stays absent from metadata, or stays in metadata with another id, as it was created again. One
   answer is no proof: a node may not have applied the topic yet.
"""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import NamedTuple

from tailrace.client.construction import AsyncClient, made_of
from tailrace.client.hints.call_hints import hinted
from tailrace.client.offsets import EARLIEST, LATEST, list_offsets
from tailrace.client.partition_names import Pair, partition_named
from tailrace.client.reader_settings import RangedFetchSettings, parse_isolation
from tailrace.client.reading.consumer_metrics import MetricName, corrupt_metrics
from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.fetching import (
    LAST_BY_LEADER,
    NEWEST,
    STALE_LEADER,
    Fetched,
    FetchOptions,
    PartitionFetch,
    before,
    fetch,
)
from tailrace.client.reading.key_filter import filtered
from tailrace.client.reading.replica_leases import LEAST_LEASE_MS
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId, format_topic_id
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.net.silence import GivenUp, NodeHangs
from tailrace.protocol.schema import Buffer

_FIRST_FETCH_BYTES = 1_048_576
_SMALLEST_FETCH_BYTES = 65_536
_USE = "fetch"

_AVOIDANCE_MS = 60_000
_MOST_EMPTY_ANSWERS = 3
"""The answers in a row that a replica may give without records of a range, after max.wait.ms per answer."""

UNKNOWN_WAIT_MS = 5_000
"""The time for which a partition must be absent from metadata to count as gone."""

_FORGET_ABSENCE_MS = 30_000
"""The time without an answer after which earlier answers without the partition do not count any more."""


def _now_ms() -> int:
    """The time for log lines, also on threads without an event loop: Arrow is decoded on the caller's thread."""
    return int(monotonic() * 1000)


class Chunk(NamedTuple):
    """Some whole batches of a range, in order. The first and the last may reach over the range's ends."""

    buffers: list[Buffer]
    next_offset: int


class _Absences:
    """The topics and partitions that are absent from metadata, and since when.

    Ranges share the count: a task that reads a hundred partitions of a deleted topic waits once.
    """

    def __init__(self) -> None:
        self._first_and_last_ms: dict[str, tuple[int, int]] = {}

    def add(self, name: str, now_ms: int) -> int:
        """Note one more answer without this name. Returns for how many ms the name has been absent."""
        first_ms, last_ms = self._first_and_last_ms.get(name, (now_ms, now_ms))
        if now_ms - last_ms > _FORGET_ABSENCE_MS:
            first_ms = now_ms
        self._first_and_last_ms[name] = first_ms, now_ms
        return now_ms - first_ms

    def end(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._first_and_last_ms.pop(name, None)


class _NearReplicas:
    """The replicas that leaders have named for the rack, by partition. Ranges share this state, and ask no leader
    anew."""

    def __init__(self, *, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._nodes: dict[TopicPartition, tuple[int, int]] = {}
        """(node, end of the lease in ms)."""
        self._avoided_until_ms: dict[TopicPartition, int] = {}

    def name(self, partition: TopicPartition, node: int, now_ms: int) -> None:
        """Note that the leader has named this node."""
        self._nodes[partition] = node, now_ms + max(self._lease_ms, LEAST_LEASE_MS)

    def node_of(self, partition: TopicPartition, now_ms: int) -> int | None:
        """The node to read from; None for the leader."""
        node, end_ms = self._nodes.get(partition, (None, 0))
        return node if now_ms < end_ms else None

    def leave(self, partition: TopicPartition, now_ms: int) -> None:
        """Leave the replica, since it has a fault."""
        self._nodes.pop(partition, None)
        self._avoided_until_ms[partition] = now_ms + _AVOIDANCE_MS

    def may_be_named(self, partition: TopicPartition, now_ms: int) -> bool:
        """Whether the leader may name a replica; after a fault of the replica the leader would name it again, and has
        to answer itself for a while."""
        return now_ms >= self._avoided_until_ms.get(partition, now_ms)


@hinted
class AsyncRangedFetch(AsyncClient[RangedFetchSettings]):
    """A reader of ranges. A range fails after `timeout_ms` without progress.

    `rack` (client.rack) lets the cluster name a replica nearer than the leader (KIP-392). A batch that cannot be
    decoded raises CorruptRecords, or is left out with a line of log if `on_corrupt` is skip: where this reader decodes,
    as `RangedFetch.arrow` does. `fetch_range` gives batches as they are stored, if their headers can be read.
    """

    @made_of(RangedFetchSettings)
    def __init__(self, settings: RangedFetchSettings, router: Router | None = None) -> None:
        """`router`: owned and closed by another client."""
        self._router = Router(settings) if router is None else router
        self.corrupt = CorruptBatches(settings.on_corrupt, now_ms=_now_ms)
        """Decides about batches that cannot be decoded, and counts skipped batches."""
        self._absences = _Absences()
        self._near_replicas = _NearReplicas(lease_ms=self._router.view.max_age_ms)
        self._settings = settings
        self._options = FetchOptions(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=1,
            max_bytes=settings.max_bytes,
            isolation_level=parse_isolation(settings.isolation),
            rack=settings.rack,
        )

    async def close(self) -> None:
        """Finish and close the connections."""
        self.corrupt.flush()
        self._router.close()

    def metrics(self) -> dict[MetricName, int]:
        """The batches that this reader has skipped since it was made, as in the metrics of a consumer."""
        return corrupt_metrics(self.corrupt)

    async def fetch_range(
        self,
        topic_partition: Pair,
        start: int,
        end: int,
        *,
        topic_id: TopicId | None = None,
        key_ranges: tuple[KeyRange, ...] = (),
    ) -> AsyncIterator[Chunk]:
        """The batches that hold the offsets from `start` up to `end` (exclusive), of the topic with this id if given.

        With key ranges, in order and joined, the batches hold only the records of these hashes (KIP-X): the broker
        leaves out records of other keys, or, if it knows no key ranges, this reader does.

        Waits for records if `end` is above the log end. Raises KafkaError: OFFSET_OUT_OF_RANGE for deleted records,
        UNKNOWN_TOPIC_OR_PARTITION for a deleted partition, INCONSISTENT_TOPIC_ID if the topic was deleted and created
        again, REQUEST_TIMED_OUT after `timeout_ms` without progress, and other errors of the cluster.
        """
        name = partition_named(topic_partition)
        reading = _Reading(
            self._router,
            _Range(name, start, end, topic_id, key_ranges),
            self._options,
            self._settings.timeout_ms,
            self._absences,
            self._near_replicas,
        )
        next_fetch: asyncio.Task[Fetched] | None = None
        try:
            if not reading.is_done:
                next_fetch = asyncio.create_task(reading.fetch_next())
            while next_fetch is not None:
                fetched = await next_fetch
                next_fetch = None if reading.is_done else asyncio.create_task(reading.fetch_next())
                for corrupt in fetched.corrupt:
                    if corrupt.offset >= end or corrupt.next_offset <= start:
                        continue
                    if not self.corrupt.are_skipped and (sound := before(fetched.buffers, corrupt.offset)):
                        yield Chunk(sound, corrupt.offset)
                    self.corrupt.meet(name, corrupt)
                if fetched.buffers:
                    yield Chunk(fetched.buffers, fetched.next_offset)
        finally:
            if next_fetch is not None:
                next_fetch.cancel()
                await asyncio.gather(next_fetch, return_exceptions=True)


class _Range(NamedTuple):
    """The records to read."""

    topic_partition: TopicPartition
    start: int
    end: int
    topic_id: TopicId | None
    key_ranges: tuple[KeyRange, ...]


class _Reading:
    """The read of one range: its position, and the size of the next fetch."""

    def __init__(
        self,
        router: Router,
        wanted: _Range,
        options: FetchOptions,
        timeout_ms: int,
        absences: _Absences,
        near_replicas: _NearReplicas,
    ) -> None:
        self._router = router
        self._topic_partition = wanted.topic_partition
        self._topic_id = wanted.topic_id
        self._key_ranges = wanted.key_ranges
        self._start = wanted.start
        self._end = wanted.end
        self._options = options
        self._timeout_ms = timeout_ms
        self._absences = absences
        self._near_replicas = near_replicas
        self._offset = wanted.start
        self._may_wait = not wanted.key_ranges
        """Whether the next fetch waits for records. A fetch of key ranges would wait at the end of the log for records
        of its keys although the range is over: so such a fetch waits only after an answer that brought nothing."""
        self._bytes_read = 0
        self._node: int | None = None
        """The replica that the last fetch went to; None for the leader."""
        self._empty_answers = 0
        """Answers of a replica without records, in a row."""
        self._last_fault: KafkaError | None = None

    @property
    def is_done(self) -> bool:
        return self._offset >= self._end

    async def fetch_next(self) -> Fetched:
        """The next batches, after retries if necessary. Moves the position."""
        router = self._router
        deadline_ms = router.now_ms() + self._timeout_ms
        pause_ms = router.retry_backoff_ms
        while True:
            fetched = await self._attempt()
            self._may_wait = fetched is None or not self._key_ranges
            if fetched is not None:
                self._offset = fetched.next_offset
                self._bytes_read += fetched.size_bytes
                return self._filtered(fetched)
            if router.now_ms() >= deadline_ms:
                raise self._stalled()
            if self._last_fault is not None:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, router.retry_backoff_max_ms)

    def _filtered(self, fetched: Fetched) -> Fetched:
        """The records of the key ranges: the broker may have sent records of other keys."""
        if not self._key_ranges or fetched.is_filtered:
            return fetched
        parts, corrupt = filtered(fetched.buffers, self._key_ranges)
        corrupt.extend(fetched.corrupt)
        corrupt.sort(key=lambda batch: batch.offset)
        return fetched._replace(buffers=parts, corrupt=tuple(corrupt))

    async def _attempt(self) -> Fetched | None:
        """Fetch once; None if the answer brought nothing and the fetch may be repeated."""
        self._last_fault, self._node = None, None
        try:
            fetched = await self._ask()
            if fetched.fault is not None:
                raise fetched.fault
        except KafkaError as fault:
            await self._on_fault(fault)
            return None
        if fetched.preferred_read_replica >= 0 and not (
            fetched.buffers or fetched.corrupt
        ):  # a selector may choose without a rack, too
            replica = fetched.preferred_read_replica
            self._near_replicas.name(self._topic_partition, replica, self._router.now_ms())
            return None
        if fetched.next_offset > self._offset:
            self._empty_answers = 0
            return fetched
        self._count_empty_answer()
        return None

    def _count_empty_answer(self) -> None:
        """A replica that stands still has no fault: after a few empty answers the leader is asked."""
        if self._node is not None:
            self._empty_answers += 1
            if self._empty_answers >= _MOST_EMPTY_ANSWERS:
                self._empty_answers = 0
                self._near_replicas.leave(self._topic_partition, self._router.now_ms())

    async def _ask(self) -> Fetched:
        router, partition = self._router, self._topic_partition
        await router.ensure_fresh((partition.topic,))
        info = router.view.partition(partition)
        topic_id = router.view.topic(partition.topic).topic_id
        if self._is_another(topic_id):
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{partition.topic} has the id {format_topic_id(topic_id)}"
            )
        self._absences.end((partition.topic, str(partition)))
        wanted = PartitionFetch(
            topic_partition=partition,
            topic_id=topic_id,
            offset=self._offset,
            leader_epoch=info.leader_epoch,
            max_bytes=self._bytes_to_ask(),
            key_ranges=self._key_ranges,
        )
        options = self._options if self._may_wait else self._options._replace(max_wait_ms=0)
        max_version, now_ms = NEWEST, router.now_ms()
        self._node = self._near_replicas.node_of(partition, now_ms)
        if self._node is not None:
            answers = await self._ask_replica(self._node, wanted, options)
        else:
            connection = await router.leader_connection(partition, _USE)
            if not self._near_replicas.may_be_named(partition, now_ms):
                max_version = LAST_BY_LEADER
            answers = await fetch(
                connection, (wanted,), options, timeout_ms=router.request_timeout_ms, max_version=max_version
            )
        if not answers:
            node = "the leader" if self._node is None else f"node {self._node}"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{node} does not answer for {partition}")
        return answers[0]

    async def _ask_replica(self, node_id: int, wanted: PartitionFetch, options: FetchOptions) -> list[Fetched]:
        """Fetch from a follower; a follower that hangs is given up, for the leader can answer. Raises KafkaError."""
        router = self._router
        try:
            async with GivenUp(f"node {node_id}", wait_ms=options.max_wait_ms) as watch:
                connection = await router.node_connection(node_id, _USE)
                watch.use(connection)
                return await fetch(connection, (wanted,), options, timeout_ms=router.request_timeout_ms)
        except NodeHangs:
            router.pass_over(node_id)
            raise

    def _bytes_to_ask(self) -> int:
        """The estimated size of the rest of the range: a small range must not bring megabytes beyond its end."""
        done = self._offset - self._start
        if done <= 0 or not self._bytes_read:
            return min(_FIRST_FETCH_BYTES, self._options.max_bytes)
        estimate = (self._end - self._offset) * self._bytes_read * 9 // (done * 8) + _SMALLEST_FETCH_BYTES
        return min(estimate, self._options.max_bytes)

    async def _on_fault(self, fault: KafkaError) -> None:
        self._last_fault = fault
        if fault.code in STALE_LEADER:
            self._router.view.mark_stale(self._topic_partition.topic)
        if self._node is not None:
            self._near_replicas.leave(self._topic_partition, self._router.now_ms())  # the leader can answer
        elif fault.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            try:
                await self._explain_out_of_range()
            except KafkaError as answer:
                if answer.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                self._check_absence()
        elif fault.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID):
            self._check_absence()
        elif not fault.code.retriable:
            raise fault

    def _check_absence(self) -> None:
        """Raise KafkaError if the partition is gone. Returns if metadata has the partition, or has not had it for a
        moment only."""
        partition = self._topic_partition
        info = self._router.view.find(partition.topic)
        is_made_anew = info is not None and self._is_another(info.topic_id)
        if info is not None and partition.partition < len(info.partitions) and not is_made_anew:
            return
        # A topic that was created again may have fewer partitions: this partition may be absent alone.
        name = partition.topic if info is None else str(partition)
        if self._absences.add(name, self._router.now_ms()) < UNKNOWN_WAIT_MS:
            return
        lost = f"{partition}: offsets {self._offset} to {self._end - 1} are gone"
        if is_made_anew:
            detail = f"{lost}, the topic was deleted and created again"
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, detail)
        detail = f"{lost}, there is no such partition; was the topic deleted?"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)

    def _is_another(self, topic_id: TopicId) -> bool:
        """Whether this is the id of another topic with the same name; clusters before KIP-516 have no ids."""
        return self._topic_id not in (None, ZERO_TOPIC_ID, topic_id) and topic_id != ZERO_TOPIC_ID

    async def _explain_out_of_range(self) -> None:
        """Raise OFFSET_OUT_OF_RANGE with its cause. Returns if the log has the offset after all (a moved leader)."""
        partition, offset = self._topic_partition, self._offset
        isolation = self._options.isolation_level
        first = (await list_offsets(self._router, {partition: EARLIEST}, isolation_level=isolation))[partition].offset
        last = (await list_offsets(self._router, {partition: LATEST}, isolation_level=isolation))[partition].offset
        if offset < first:
            lost_end = min(first, self._end)
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition}: offsets {offset} to {lost_end - 1} are gone, the log starts at {first}; "
                "they were deleted by retention or by an administrator before they were read",
            )
        if offset > last:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition}: offset {offset} does not exist, the log ends at {last}; "
                "was the topic deleted and created again, or did it lose records in an unclean election?",
            )

    def _stalled(self) -> KafkaError:
        server = "the leader" if self._node is None else f"broker {self._node}"
        detail = (
            f"{self._topic_partition}: no record at or after offset {self._offset} (of a range up to {self._end}) "
            f"within {self._timeout_ms} ms, from {server} at last"
        )
        if self._last_fault is not None:
            detail += f"; last error {self._last_fault}"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
