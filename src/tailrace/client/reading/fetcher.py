"""Keeps one fetch per node in flight for the assigned partitions, and returns the records in order.

1. A partition is fetched when it has a valid position and all its fetched records have been returned. An answer is used
   only if the partition is still read from that node and its position is the offset of the fetch: after a seek, a
   rebalance or a change of leader the answer is dropped. During a pause the answer is kept until the pause is over.
2. A turn costs as much as has changed, see `reading.assigned_partitions`; all partitions are looked at only if there
   are new metadata.
3. Each node has a fetch session (KIP-227): a fetch names the changes since the last fetch, see `reading.node_fetches`.
4. The leader may name a replica to read from (KIP-392), see `reading.replica_leases`. A follower that hangs is left
   after two seconds, and so is a follower that has nothing new and is not in sync. The fetch of a node that hangs stays
   in flight: its answer does not count for partitions that have left the node, so that no record is read twice.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from tailrace.client.reading.assigned_partitions import AssignedPartitions
from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.fetch_sessions import CLOSE_MS, USE, end_session, fetch_changes
from tailrace.client.reading.fetching import STALE_LEADER, Fetched, FetchOptions, PartitionFetch
from tailrace.client.reading.node_fetches import NodeFetches
from tailrace.client.reading.position import PositionState, Recourse
from tailrace.client.reading.replica_leases import ReplicaLeases
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.model.throttle import Throttle
from tailrace.net.silence import SILENCE_MS, SilenceWatch
from tailrace.protocol.records.record import Record

_WARNING_PERIOD_MS: Final = 30_000
_logger = logging.getLogger("tailrace.client")

_METADATA = -1
"""Stands for a node in the table of tasks: the refresh of metadata."""


class Fetcher:
    """The reading side of a consumer; on its event loop only."""

    def __init__(
        self,
        router: Router,
        options: FetchOptions,
        *,
        max_partition_bytes: int,
        corrupt: CorruptBatches | None = None,
    ) -> None:
        """`corrupt` decides about batches that cannot be decoded; without `corrupt` such a batch raises."""
        self._router = router
        self._options = options
        self._max_partition_bytes = max_partition_bytes
        self.assigned: Final = AssignedPartitions(corrupt)
        self.bytes_consumed = 0
        """The size of the batches whose records were kept for `take`."""
        self._nodes: dict[int, NodeFetches] = {}
        self._places: dict[TopicPartition, int] = {}
        """The node at which each partition is read now."""
        self._paused_places: dict[TopicPartition, int] = {}
        """The node at which a partition was read when it was paused, until reading goes on. A fetch from this node may
        be in flight, and its answer counts."""
        self._unknown_replicas: set[BrokerId] = set()
        """Replicas that leaders have named, missing in the metadata."""
        self._leases = ReplicaLeases(lease_ms=router.view.max_age_ms)
        self._seen_generation = -1
        self._seen_version: tuple[int, int] | None = None
        self._refresh_due_ms: int | None = 0
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._fault: KafkaError | None = None
        self._troubles: dict[TopicPartition | int, KafkaError] = {}
        """Faults during retries: by partition, by node for a whole fetch, and by `_METADATA`. A success removes the
        fault under its own key only."""
        self._doubted: set[TopicPartition] = set()
        """Partitions whose followers have brought nothing new for a while: new metadata decide whether to leave the
        follower."""
        self._warnings: Throttle = Throttle(_WARNING_PERIOD_MS)

    @property
    def trouble(self) -> KafkaError | None:
        """The fault because of which the consumer tries again; None without a fault."""
        return next(iter(self._troubles.values()), None)

    @property
    def nodes(self) -> Mapping[int, NodeFetches]:
        """The nodes that were read from, by id. Only to look at."""
        return self._nodes

    def assign(self, partitions: Mapping[TopicPartition, Sequence[KeyRange]] | Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Of a partition with key ranges, only the records of the ranges are read
        (KIP-X).

        Partitions that were assigned before keep their positions.
        """
        ranges = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, ())
        for name in self.assigned.assign(ranges):
            self._leases.forget(name)
            self._doubted.discard(name)
            self._paused_places.pop(name, None)
        self._seen_version = None
        self._troubles.clear()
        self._changed.set()

    def take(self, limit: int) -> list[tuple[TopicPartition, Record]]:
        """Up to `limit` fetched records; sends the next fetches. Raises KafkaError from the cluster."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        taken = self.assigned.take(limit)
        self._send_fetches()
        return taken

    def reset_at_leader(self, name: TopicPartition) -> None:
        """Take the leader's log start for the earliest offset: the follower does not tell its own."""
        partition = self.assigned.get(name)
        if partition is not None:
            partition.reset_replica = None
            self._leave_replica(partition)

    def wake(self) -> None:
        """End a wait: a position has been decided, or a search has failed."""
        self._changed.set()

    async def wait(self, deadline_ms: int) -> None:
        """Return when there are records, a fault or a wake-up, or at the deadline."""
        if self.assigned.has_ready or self._fault is not None:
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
        now_ms = self._router.now_ms()
        self._follow_metadata(now_ms)
        for partition in self._leases.end_expired(now_ms):
            self.assigned.note(partition.name)
        for partition in self._leases.still(now_ms):
            if partition.name in self._places:
                self._doubted.add(partition.name)
                self._router.view.mark_stale(partition.name.topic)
        for name in self.assigned.take_changed():
            self._place(name)
        for node_id, node in self._nodes.items():
            if node.partition_count and node_id not in self._fetches:
                self._start(node_id, partial(self._fetch, node_id, node))

    def _follow_metadata(self, now_ms: int) -> None:
        view = self._router.view
        if view.generation != self._seen_generation:
            self._seen_generation = view.generation
            self.assigned.note_all()
        if view.version != self._seen_version:
            self._seen_version = view.version
            self._refresh_due_ms = view.refresh_due_ms(self.assigned.topics)
        if self._refresh_due_ms is not None and now_ms >= self._refresh_due_ms:
            self._start(_METADATA, partial(self._refresh, self.assigned.topics))

    def _place(self, name: TopicPartition) -> None:
        """Put this partition into the next fetch of its serving node."""
        partition = self.assigned.get(name)
        found = None
        if partition is not None and _is_to_be_fetched(partition):
            self._paused_places.pop(name, None)
            found = self._next_fetch(partition)
        else:
            self._troubles.pop(name, None)  # no fetch would end it
        before = self._places.get(name)
        if before is not None and (found is None or found[0] != before):
            self._nodes[before].drop(name)
            del self._places[name]
            if not self._nodes[before].partition_count:
                self._troubles.pop(before, None)  # no fetch would end it
            if partition is not None and not partition.may_be_read:
                self._paused_places[name] = before
        if found is not None:
            node_id, wanted = found
            self._places[name] = node_id
            if node_id not in self._nodes:
                self._nodes[node_id] = NodeFetches()
            self._nodes[node_id].want(wanted)

    def _next_fetch(self, partition: ConsumedPartition) -> tuple[int, PartitionFetch] | None:
        name, view = partition.name, self._router.view
        if not view.has_answer(name.topic):
            return None  # the first metadata are on their way
        try:
            leader = view.leader(name)
        except KafkaError as fault:
            self._troubles[name] = fault
            return None
        if partition.replica is not None and partition.replica not in view.brokers:
            view.mark_stale(name.topic)
            self._leave_replica(partition)
        if name in self._doubted and not view.is_stale(name.topic):
            self._judge_replica(partition)
        leader_epoch = view.partition(name).leader_epoch
        if not self.assigned.check_leader(partition, leader_epoch):
            self._troubles.pop(name, None)  # from now on the comparison reports its own faults
            return None
        wanted = PartitionFetch(
            topic_partition=name,
            topic_id=view.topic(name.topic).topic_id,
            offset=partition.position.offset,
            leader_epoch=leader_epoch,
            max_bytes=self._max_partition_bytes,
            key_ranges=partition.key_ranges,
        )
        return leader.node_id if partition.replica is None else partition.replica, wanted

    def _start(self, node: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
        if node in self._fetches:
            return
        # The task itself makes its coroutine: a coroutine made here would stay unawaited if `close` came before the
        # first step of the task.
        self._fetches[node] = asyncio.get_running_loop().create_task(self._guarded(node, work))

    async def _guarded(self, node: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
            self._troubles.pop(node, None)
        except KafkaError as fault:
            if fault.code.retriable or fault.code == ErrorCode.BROKER_NOT_AVAILABLE:
                if self._is_needed(node):  # else no next fetch or refresh would end the trouble
                    self._troubles[node] = fault
                for topic in self.assigned.topics:
                    self._router.view.mark_stale(topic)
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

    def _is_needed(self, node: int) -> bool:
        """Whether there is a next fetch of this node, or for `_METADATA` a next refresh."""
        return bool(self.assigned.topics) and (node == _METADATA or self._nodes[node].partition_count > 0)

    async def _refresh(self, topics: Iterable[str]) -> None:
        await self._router.ensure_fresh(topics)
        if self._router.view.needs_refresh(topics, self._router.now_ms()):
            await asyncio.sleep(self._router.retry_backoff_ms / 1000)  # a topic or a leader is still missing

    async def _fetch(self, node_id: int, node: NodeFetches) -> None:
        if not node.partition_count:
            return
        router = self._router
        options = self._options_for(node_id)
        watch = SilenceWatch(partial(self._on_silence, node_id), wait_ms=options.max_wait_ms)
        try:
            with watch:
                connection = await router.node_connection(node_id, USE)
                watch.use(connection)
                answers = await fetch_changes(connection, node_id, node, options, timeout_ms=router.request_timeout_ms)
        except KafkaError:
            for name in node.partitions:
                partition = self.assigned.get(name)
                if partition is not None and partition.replica == node_id:
                    self._leave_replica(partition)
            raise
        has_failed = answers is None and node.was_full
        for fetched in answers or ():
            has_failed |= self._store(node_id, fetched)
        if self._unknown_replicas:
            await self._look_for_replicas(node_id)
        if has_failed:
            await asyncio.sleep(router.retry_backoff_ms / 1000)

    def _options_for(self, node: int) -> FetchOptions:
        options = self._options
        if not self._leases.tells_rack(node, self._router.now_ms()):
            options = options._replace(rack="")
        # While some partitions still have records to return, the fetch for the other partitions must not wait at the
        # broker: a node gets one fetch at a time, and the partitions with records will soon need a fetch.
        return options._replace(max_wait_ms=0) if self.assigned.has_ready else options

    # answers

    def _store(self, node: int, fetched: Fetched) -> bool:
        """Keep the answer for one partition; True if the partition must be fetched again after a pause."""
        name = fetched.topic_partition
        partition = self.assigned.get(name)
        if partition is None or not self._is_read_at(node, partition):
            return False
        if partition.position.state is not PositionState.FETCHING or partition.position.offset != fetched.offset:
            return False
        if partition.key_ranges != fetched.key_ranges:
            return False  # the ranges have changed since the fetch: its end does not hold for the new ranges
        if fetched.fault is not None:
            # Without a place the partition is paused: a fault that outlasts the pause meets the next fetch too.
            return name in self._places and self._on_fault(partition, fetched, fetched.fault)
        self._troubles.pop(name, None)
        partition.strikes = 0
        partition.readable_end, partition.log_start_offset = fetched.readable_end, fetched.log_start_offset
        has_batches = bool(fetched.buffers or fetched.corrupt)
        if fetched.preferred_read_replica >= 0 and not has_batches:
            self._follow_replica(partition, node, fetched.preferred_read_replica)
        elif partition.replica is not None:
            self._leases.served(partition, self._router.now_ms())
        if fetched.next_offset != fetched.offset or has_batches:
            partition.store(fetched)
            self.bytes_consumed += fetched.size_bytes
            self.assigned.note(name)
        return False

    def _is_read_at(self, node: int, partition: ConsumedPartition) -> bool:
        """Whether an answer of this node counts: the partition is read there, or would be if it were not paused."""
        name, view = partition.name, self._router.view
        if name in self._places:
            return self._places[name] == node
        if self._paused_places.get(name) != node:
            return False
        try:
            leader, leader_epoch = view.leader(name).node_id, view.partition(name).leader_epoch
        except KafkaError:
            return False
        serves = node == (leader if partition.replica is None else partition.replica)
        return serves and partition.position.is_valid_under(leader_epoch)

    def _on_fault(self, partition: ConsumedPartition, fetched: Fetched, fault: KafkaError) -> bool:
        name, code = partition.name, fault.code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(partition, fetched)
            return False
        strikes, partition.strikes = partition.strikes, partition.strikes + 1
        # A replica that lags behind answers so every half a second. New metadata help, but not as often.
        if code in STALE_LEADER and (code != ErrorCode.OFFSET_NOT_AVAILABLE or strikes & (strikes - 1) == 0):
            self._router.view.mark_stale(name.topic)
        if self._leases.is_enough(partition, code):
            self._leave_replica(partition)
        if code.retriable:
            self._troubles[name] = fault
        else:
            self._fault = fault
        return True

    def _on_out_of_range(self, partition: ConsumedPartition, fetched: Fetched) -> None:
        """The steps of KIP-392; the leader and the reset policy decide in `PositionValidator` and `StartSearch`."""
        replica = partition.replica
        recourse = partition.position.refused(fetched.log_start_offset, by_leader=replica is None)
        if recourse is Recourse.RESET_AT_REPLICA:
            partition.reset_replica = replica
        elif replica is not None:
            self._router.view.mark_stale(partition.name.topic)
            self._leave_replica(partition)
        self.assigned.note(partition.name)

    # replicas

    def _follow_replica(self, partition: ConsumedPartition, leader: int, replica: int) -> None:
        """The leader names a replica to read from."""
        if replica in (leader, partition.replica):
            return
        if BrokerId(replica) in self._router.view.brokers:
            self._leases.begin(partition, replica, self._router.now_ms())
            self.assigned.note(partition.name)
        else:
            self._unknown_replicas.add(BrokerId(replica))

    async def _look_for_replicas(self, leader: int) -> None:
        """Refresh the brokers: a broker that has just started is only in new metadata. Then the leader names the broker
        again."""
        unknown, self._unknown_replicas = self._unknown_replicas, set()
        await self._router.refresh(())
        if not unknown <= self._router.view.brokers.keys():
            self._leases.avoid(leader, self._router.now_ms())

    def _leave_replica(self, partition: ConsumedPartition) -> None:
        """Read from the leader: the replica has a fault."""
        leader: int | None = None
        with suppress(KafkaError):
            leader = self._router.view.leader(partition.name).node_id
        self._leases.leave(partition, leader, self._router.now_ms())
        self.assigned.note(partition.name)

    def _judge_replica(self, partition: ConsumedPartition) -> None:
        """Leave a follower that has brought no new records, if it is out of sync: it may be cut off from its leader."""
        name, replica = partition.name, partition.replica
        self._doubted.discard(name)
        if replica is not None and replica not in self._router.view.partition(name).in_sync_replicas:
            detail = f"node {replica} has nothing new of {name} and is not in sync: it is read from its leader"
            self._troubles[name] = KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, detail)
            self._warn(f"not in sync: {replica}", detail)
            self._leave_replica(partition)

    def _on_silence(self, node_id: int) -> None:
        """A node owes an answer and sends nothing: ask other nodes for metadata, and read partitions that this node
        follows from their leaders."""
        router, node = self._router, self._nodes[node_id]
        router.pass_over(node_id)
        detail = f"node {node_id} has not answered a fetch for {SILENCE_MS // 1000} s"
        left = 0
        for name in node.partitions:
            router.view.mark_stale(name.topic)
            partition = self.assigned.get(name)
            if partition is not None and partition.replica == node_id:
                self._leave_replica(partition)
                left += 1
        if node.partition_count:
            self._troubles[node_id] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
        if left:
            self._warn(f"hangs: {node_id}", f"{detail}: {left} of its partitions are read from their leaders")
        self._changed.set()

    def _warn(self, subject: str, line: str) -> None:
        if self._warnings.admits(subject, self._router.now_ms()):
            _logger.warning("%s: %s", self._router.client_id, line)

    async def stop(self) -> None:
        """Cancel the fetches in flight."""
        self.assigned.corrupt.flush()
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel the fetches in flight, and ask the brokers to close the sessions, a second at most."""
        await self.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_MS / 1000):
                ends = (end_session(self._router, node_id, node) for node_id, node in self._nodes.items())
                await asyncio.gather(*ends, return_exceptions=True)


def _is_to_be_fetched(partition: ConsumedPartition) -> bool:
    """Whether the next records of the partition must come from a node."""
    return partition.is_drained and partition.may_be_read and partition.position.state is PositionState.FETCHING
