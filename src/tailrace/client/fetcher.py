"""Keeps one fetch per leader in flight for the assigned partitions, and returns the records in order.

A partition is fetched when it has a position and all its fetched records have been returned. An answer is used only if
the partition is still assigned and its position is the offset of the fetch: after a seek or a rebalance it is dropped.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.fetching import STALE_LEADER, Fetched, FetchOptions, PartitionFetch, fetch
from tailrace.client.router import Router
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, read_records
from tailrace.protocol.schema import Buffer

_USE = "fetch"


class _Partition:
    """One assigned partition: its position, and the records fetched from there."""

    __slots__ = ("batches", "is_out_of_range", "next_offset", "node", "position", "records")

    def __init__(self) -> None:
        self.position: int | None = None
        """The offset of the next record to return; None until it is decided."""
        self.next_offset = 0
        """The offset of the next fetch."""
        self.batches: deque[Buffer] = deque()
        self.records: deque[Record] = deque()
        self.is_out_of_range = False
        self.node: int | None = None
        """A replica nearer than the leader (KIP-392)."""

    @property
    def is_drained(self) -> bool:
        return not self.batches and not self.records

    def move_to(self, offset: int) -> None:
        self.position = self.next_offset = offset
        self.batches.clear()
        self.records.clear()
        self.is_out_of_range = False


class Fetcher:
    """The reading side of a consumer; on its event loop only."""

    def __init__(self, router: Router, options: FetchOptions, *, max_partition_bytes: int) -> None:
        self._router = router
        self._options = options
        self._max_partition_bytes = max_partition_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._fault: KafkaError | None = None
        self._troubles: dict[TopicPartition | None, KafkaError] = {}  # None: of a whole fetch

    @property
    def trouble(self) -> KafkaError | None:
        """A fault that is being retried; None without one."""
        return next(iter(self._troubles.values()), None)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those assigned before keep their positions."""
        before = self._partitions
        self._partitions = {partition: before.get(partition) or _Partition() for partition in sorted(partitions)}
        self._troubles.clear()
        self._changed.set()

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Read on from this offset; fetched records are dropped."""
        if topic_partition not in self._partitions:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic_partition} is not assigned to this consumer")
        self._partitions[topic_partition].move_to(offset)

    def start_at(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Set the position of an undecided partition; False if it was revoked or sought meanwhile."""
        partition = self._partitions.get(topic_partition)
        if partition is None or not (partition.position is None or partition.is_out_of_range):
            return False
        partition.move_to(offset)
        return True

    def undecided(self) -> dict[TopicPartition, bool]:
        """The partitions without a usable position; True for those whose offset is out of range."""
        return {
            name: partition.is_out_of_range
            for name, partition in self._partitions.items()
            if partition.position is None or partition.is_out_of_range
        }

    def position(self, topic_partition: TopicPartition) -> int | None:
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.position

    def positions(self) -> dict[TopicPartition, int]:
        """All positions that are decided."""
        return {
            name: partition.position for name, partition in self._partitions.items() if partition.position is not None
        }

    def take(self, limit: int) -> list[tuple[TopicPartition, Record]]:
        """Up to `limit` fetched records; sends the next fetches. Raises KafkaError from the cluster."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        taken: list[tuple[TopicPartition, Record]] = []
        for name, partition in list(self._partitions.items()):
            try:
                while len(taken) < limit and not partition.is_drained:
                    self._take_from(name, partition, limit - len(taken), taken)
            except KafkaError:
                # Records of other partitions are returned first; the next turn of this one meets the damage again.
                self._partitions[name] = self._partitions.pop(name)
                if not taken:
                    raise
        if taken:
            # The partition that was served first comes last next time.
            first = taken[0][0]
            self._partitions[first] = self._partitions.pop(first)
        self._send_fetches()
        return taken

    @staticmethod
    def _take_from(
        name: TopicPartition, partition: _Partition, limit: int, taken: list[tuple[TopicPartition, Record]]
    ) -> None:
        assert partition.position is not None, "records come from a position"
        if not partition.records:
            position = partition.position
            records = _records(name, partition.batches[0])
            partition.batches.popleft()
            partition.records.extend(record for record in records if record.offset >= position)
        while partition.records and limit:
            record = partition.records.popleft()
            partition.position = record.offset + 1
            taken.append((name, record))
            limit -= 1
        if partition.is_drained:
            partition.position = max(partition.position, partition.next_offset)

    def wake(self) -> None:
        """End a wait: a position has been decided, or a search has failed."""
        self._changed.set()

    async def wait(self, deadline_ms: int) -> None:
        """Return when there are records, a fault or a wake-up, or at the deadline."""
        if any(not partition.is_drained for partition in self._partitions.values()) or self._fault is not None:
            return
        self._changed.clear()
        wait_ms = min(deadline_ms - self._router.now_ms(), 1_000)
        try:
            async with asyncio.timeout(max(wait_ms, 0) / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    # fetches

    def _send_fetches(self) -> None:
        topics = {name.topic for name in self._partitions}
        if self._router.view.needs_refresh(topics, self._router.now_ms()):
            self._start(-1, partial(self._refresh, topics))
        by_node: dict[int, list[PartitionFetch]] = defaultdict(list)
        for name, partition in self._partitions.items():
            if partition.position is None or partition.is_out_of_range or not partition.is_drained:
                continue
            leader = self._leader(name)
            if leader is None:
                continue
            node = leader.node_id if partition.node is None else partition.node
            if node not in self._fetches:
                by_node[node].append(self._wanted(name, partition))
        # While some partitions still have records to return, the fetch for the other partitions must not wait at the
        # broker: a node gets one fetch at a time, and the former will soon need it.
        is_busy = any(not partition.is_drained for partition in self._partitions.values())
        options = self._options._replace(max_wait_ms=0) if is_busy else self._options
        for node, wanted in by_node.items():
            self._start(node, partial(self._fetch, node, wanted, options))

    def _leader(self, name: TopicPartition) -> BrokerAddress | None:
        try:
            return self._router.view.leader(name)
        except KafkaError as fault:
            self._troubles[name] = fault
            return None

    def _wanted(self, name: TopicPartition, partition: _Partition) -> PartitionFetch:
        view = self._router.view
        return PartitionFetch(
            topic_partition=name,
            topic_id=view.topic(name.topic).topic_id,
            offset=partition.next_offset,
            leader_epoch=view.partition(name).leader_epoch,
            max_bytes=self._max_partition_bytes,
        )

    def _start(self, node: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
        if node in self._fetches:
            return
        # The task itself makes its coroutine: a coroutine made here would stay unawaited if `close` came before the
        # first step of the task.
        self._fetches[node] = asyncio.get_running_loop().create_task(self._guarded(node, work))

    async def _guarded(self, node: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
            self._troubles.pop(None, None)
        except KafkaError as fault:
            if fault.code.retriable or fault.code == ErrorCode.BROKER_NOT_AVAILABLE:
                self._troubles[None] = fault
                for name in self._partitions:
                    self._router.view.mark_stale(name.topic)
                await asyncio.sleep(self._router.retry_backoff_ms / 1000)
            else:
                self._fault = fault
        except Exception as bug:
            # A bug: raise it for the log, and fail the next poll, so that no caller polls for ever.
            self._fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"this consumer has failed: {bug!r}")
            raise
        finally:
            self._fetches.pop(node, None)
            self._changed.set()

    async def _refresh(self, topics: Iterable[str]) -> None:
        await self._router.ensure_fresh(topics)
        if self._router.view.needs_refresh(topics, self._router.now_ms()):
            await asyncio.sleep(self._router.retry_backoff_ms / 1000)  # a topic or a leader is still missing

    async def _fetch(self, node: int, wanted: list[PartitionFetch], options: FetchOptions) -> None:
        try:
            connection = await self._router.node_connection(node, _USE)
            answers = await fetch(connection, wanted, options, timeout_ms=self._router.request_timeout_ms)
        except KafkaError:
            self._leave_replicas(wanted)
            raise
        has_failed = False
        for fetched in answers:
            has_failed |= self._store(fetched)
        if has_failed:
            await asyncio.sleep(self._router.retry_backoff_ms / 1000)

    def _leave_replicas(self, wanted: Iterable[PartitionFetch]) -> None:
        """Fetch from the leader again: this node does not answer. The leader may name another near replica."""
        for want in wanted:
            partition = self._partitions.get(want.topic_partition)
            if partition is not None:
                partition.node = None

    def _store(self, fetched: Fetched) -> bool:
        """Keep the answer for one partition; True if it must be fetched again after a pause."""
        partition = self._partitions.get(fetched.topic_partition)
        if partition is None or partition.position is None or not partition.is_drained:
            return False
        if partition.next_offset != fetched.offset:
            return False
        if fetched.fault is not None:
            return self._on_fault(fetched.topic_partition, partition, fetched.fault)
        self._troubles.pop(fetched.topic_partition, None)
        if fetched.preferred_read_replica >= 0 and not fetched.buffers:
            partition.node = fetched.preferred_read_replica
        for buffer in fetched.buffers:
            for position, header in iter_batches(buffer):
                partition.batches.append(memoryview(buffer)[position : position + header.size_bytes])
        partition.next_offset = fetched.next_offset
        if partition.is_drained:
            partition.position = partition.next_offset
        return False

    def _on_fault(self, name: TopicPartition, partition: _Partition, fault: KafkaError) -> bool:
        was_elsewhere, partition.node = partition.node is not None, None
        if fault.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            partition.is_out_of_range = not was_elsewhere
            return False
        if fault.code in STALE_LEADER:
            self._router.view.mark_stale(name.topic)
        if fault.code.retriable:
            self._troubles[name] = fault
        else:
            self._fault = fault
        return True

    async def close(self) -> None:
        """Cancel the fetches in flight."""
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _records(name: TopicPartition, batch: Buffer) -> list[Record]:
    try:
        return read_records(batch)
    except CorruptRecords as damage:
        raise CorruptRecords(f"{name}: {damage.detail}") from None
