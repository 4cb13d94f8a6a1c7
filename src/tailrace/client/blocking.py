"""The clients without asyncio: for Spark, the command line, notebooks and tests. Calls block; all are thread-safe.

The work is done by the asyncio clients on this process's background loop (see loop_thread). A client made before a fork
works in the child too: it makes its connections anew there, when first used.
"""

import asyncio
import atexit
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from tailrace.client import admin as _admin
from tailrace.client import consumer as _consumer
from tailrace.client import producer as _producer
from tailrace.client import ranged_fetch as _ranged_fetch
from tailrace.client.admin import ClusterDescription, ConfigEntry, NewTopic
from tailrace.client.brokers import BrokerListing
from tailrace.client.cluster_changes import MorePartitions
from tailrace.client.cluster_view import TopicInfo
from tailrace.client.consumer import ConsumerRecord
from tailrace.client.delivery import DeliveryFuture
from tailrace.client.facade import Facade
from tailrace.client.features import FeatureDescription, UpgradeType
from tailrace.client.group_health import PartitionHealth
from tailrace.client.group_offsets import OffsetAndMetadata
from tailrace.client.group_queries import GroupDescription, GroupListing
from tailrace.client.log_dirs import LogDirectorySize
from tailrace.client.loop_thread import loop_thread
from tailrace.client.offsets import OffsetAt
from tailrace.client.outgoing import Headers, RecordMetadata, record_cost
from tailrace.client.producer import PrebuiltBatch, Unsent, stamp_of
from tailrace.client.quorum import QuorumDescription, QuorumEndpoint
from tailrace.client.ranged_fetch import Chunk
from tailrace.client.replicas import ElectionType, PartitionReassignment
from tailrace.client.transactions import TransactionDescription, TransactionListing
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.group_details import GroupDetails
from tailrace.protocol.schema import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = (
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "NewTopic",
    "OffsetAndMetadata",
    "Producer",
    "RangedFetch",
    "RecordMetadata",
)

_log = logging.getLogger(__name__)

EXIT_FLUSH_S = 5.0
"""How long the interpreter's end waits for records that nobody flushed."""

_ENQUEUE_AT_ONCE = 2_000
"""Records that one turn of the loop takes over, so that answers are not kept waiting."""


class Admin(Facade[_admin.Admin]):
    """See `tailrace.client.admin.Admin`."""

    def __init__(
        self, bootstrap_servers: str, *, client_id: str = "tailrace-admin", bootstrap_timeout_ms: int = 10_000
    ) -> None:
        super().__init__(
            lambda: _admin.Admin(bootstrap_servers, client_id=client_id, bootstrap_timeout_ms=bootstrap_timeout_ms)
        )

    def create_topics(
        self,
        topics: Iterable[NewTopic] | Mapping[str, int],
        *,
        timeout_ms: int = 30_000,
        validate_only: bool = False,
    ) -> None:
        """Create them all and wait until they can be used; short: `{name: partitions}`."""
        client = self._client.get()
        loop_thread().call(client.create_topics(topics, timeout_ms=timeout_ms, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Delete them all."""
        loop_thread().call(self._client.get().delete_topics(names, timeout_ms=timeout_ms))

    def create_partitions(
        self, topics: Mapping[str, int | MorePartitions], *, timeout_ms: int = 30_000, validate_only: bool = False
    ) -> None:
        """Give each of these topics so many partitions, all told, and wait until the new ones can be used."""
        client = self._client.get()
        loop_thread().call(client.create_partitions(topics, timeout_ms=timeout_ms, validate_only=validate_only))

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, int]:
        """Give up the records below these offsets, -1 for all of them; where each log starts then."""
        return loop_thread().call(self._client.get().delete_records(offsets, timeout_ms=timeout_ms))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics, by name."""
        return loop_thread().call(self._client.get().list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | None = None, *, include_internal: bool = False) -> list[TopicInfo]:
        """The topics of these names in their order, or all by name."""
        return loop_thread().call(self._client.get().describe_topics(names, include_internal=include_internal))

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAt]:
        """-1 latest, -2 earliest, -3 largest timestamp, else the first record at or after a time in ms."""
        client = self._client.get()
        return loop_thread().call(client.list_offsets(specs, isolation_level=isolation_level, timeout_ms=timeout_ms))

    def describe_cluster(self) -> ClusterDescription:
        """The brokers and the controller."""
        return loop_thread().call(self._client.get().describe_cluster())

    def describe_configs(self, resource_type: int, name: str) -> list[ConfigEntry]:
        """The settings of a topic (type 2) or a broker (type 4)."""
        return loop_thread().call(self._client.get().describe_configs(resource_type, name))

    def alter_configs(
        self, resource_type: int, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic (type 2) or a broker (type 4); None: back to the default. All of them or none."""
        client = self._client.get()
        loop_thread().call(client.alter_configs(resource_type, name, changes, validate_only=validate_only))

    def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> dict[BrokerId, list[LogDirectorySize]]:
        """The log directories of these brokers, or of all, with the size of every partition."""
        return loop_thread().call(self._client.get().describe_log_dirs(brokers))

    def describe_topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The settings of each of these topics."""
        return loop_thread().call(self._client.get().describe_topic_configs(names))

    def list_brokers(self) -> list[BrokerListing]:
        """All registered brokers, by id, those that are fenced too."""
        return loop_thread().call(self._client.get().list_brokers())

    def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that will not come back."""
        loop_thread().call(self._client.get().unregister_broker(broker_id))

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """The transactional ids that pass every filter, by name; empty and -1 let all pass."""
        client = self._client.get()
        return loop_thread().call(
            client.list_transactions(states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms)
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id."""
        return loop_thread().call(self._client.get().describe_transaction(transactional_id))

    def abort_transaction(self, topic_partition: TopicPartition, start_offset: int) -> None:
        """End the transaction that began at this offset of the partition and hangs."""
        loop_thread().call(self._client.get().abort_transaction(topic_partition, start_offset))

    def describe_quorum(self) -> QuorumDescription:
        """Who keeps the cluster's metadata log, and how far each is."""
        return loop_thread().call(self._client.get().describe_quorum())

    def add_voter(self, voter_id: int, directory_id: bytes, endpoints: Sequence[QuorumEndpoint]) -> None:
        """Have a controller vote that follows the quorum already."""
        loop_thread().call(self._client.get().add_voter(voter_id, directory_id, endpoints))

    def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Have a controller vote no more."""
        loop_thread().call(self._client.get().remove_voter(voter_id, directory_id))

    def describe_features(self) -> FeatureDescription:
        """Which levels of features a node supports, and which the cluster has agreed on."""
        return loop_thread().call(self._client.get().describe_features())

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> None:
        """Give features these levels, all or none; 0 removes one."""
        client = self._client.get()
        loop_thread().call(
            client.update_features(
                levels, upgrade_type=upgrade_type, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        election_type: ElectionType = ElectionType.PREFERRED,
        timeout_ms: int = 30_000,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders; partition by partition None or why not. No partitions: all that need it."""
        client = self._client.get()
        return loop_thread().call(client.elect_leaders(partitions, election_type=election_type, timeout_ms=timeout_ms))

    def alter_partition_reassignments(
        self,
        replicas_of: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allows_replication_factor_change: bool = True,
        timeout_ms: int = 30_000,
    ) -> None:
        """Begin to move partitions to these replicas, the preferred leader first; None takes back a move."""
        client = self._client.get()
        loop_thread().call(
            client.alter_partition_reassignments(
                replicas_of,
                allows_replication_factor_change=allows_replication_factor_change,
                timeout_ms=timeout_ms,
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that go on, of these partitions or of all."""
        return loop_thread().call(self._client.get().list_partition_reassignments(partitions, timeout_ms=timeout_ms))

    def list_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        return loop_thread().call(self._client.get().list_groups())

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The groups with their members and assignments."""
        return loop_thread().call(self._client.get().describe_groups(groups))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members."""
        loop_thread().call(self._client.get().delete_groups(groups))

    def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, of these partitions or of all."""
        return loop_thread().call(self._client.get().group_offsets(group, partitions))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Set the offsets of a group without members, from outside."""
        loop_thread().call(self._client.get().commit_offsets(group, offsets))

    def partition_health(
        self, committed: Mapping[TopicPartition, int | None], details: GroupDetails | None, *, timeout_ms: int
    ) -> dict[TopicPartition, PartitionHealth]:
        """How a group with these committed offsets gets on in these partitions, all of which exist."""
        return loop_thread().call(self._client.get().partition_health(committed, details, timeout_ms=timeout_ms))

    def group_lag(self, group: str) -> dict[TopicPartition, tuple[OffsetAndMetadata, int]]:
        """Committed offset and end of the log, per partition with a committed offset."""
        return loop_thread().call(self._client.get().group_lag(group))


class Producer(Facade[_producer.Producer]):
    """See `tailrace.client.producer.Producer`, whose settings it takes."""

    def __init__(self, bootstrap_servers: str, *, max_block_ms: int = 60_000, **settings: Any) -> None:
        # Refuse bad settings here and not at the first record.
        made = _producer.Producer(bootstrap_servers, max_block_ms=max_block_ms, **settings)
        self._buffer_memory = made.buffer_memory
        self._max_block_ms = max_block_ms
        self._reset()

        def make() -> _producer.Producer:
            self._reset()
            client = _producer.Producer(bootstrap_servers, max_block_ms=max_block_ms, **settings)
            client.on_release = self._released
            client.start()
            return client

        super().__init__(make)
        _producers.add(self)

    def _reset(self) -> None:
        self._room = threading.Condition(threading.Lock())
        self._buffered_bytes = 0
        self._waiters = 0
        self._inbox: deque[Unsent | PrebuiltBatch] = deque()
        self._is_scheduled = False

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> "Future[RecordMetadata]":
        """Hand over a record; the future tells where it was written, or raises KafkaError.

        Blocks only while buffer.memory is full, max.block.ms at most. A future cannot be cancelled.
        """
        client = self._client.get()
        completion = DeliveryFuture()
        stamp = stamp_of(timestamp)
        cost = record_cost(key, value, headers)
        self._hand_over(client, Unsent(topic, partition, key, value, headers, stamp, cost, completion))
        return completion

    def send_batch(self, topic: str, partition: int, payload: Buffer) -> "Future[RecordMetadata]":
        """Hand over a whole record batch (format v2, offsets from 0); the future's offset is its first record's."""
        client = self._client.get()
        completion = DeliveryFuture()
        self._hand_over(client, PrebuiltBatch(topic, partition, payload, len(payload), completion))
        return completion

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has now; asking for a topic creates it where the cluster does that."""
        return loop_thread().call(self._client.get().partition_count(topic))

    def _hand_over(self, client: _producer.Producer, item: Unsent | PrebuiltBatch) -> None:
        with self._room:
            is_full = self._buffered_bytes + item.cost > self._buffer_memory and self._buffered_bytes
            # A callback of a future runs where the room is made: it may not wait for it.
            if is_full and not loop_thread().is_current:
                self._wait_for_room(item.cost)
            self._buffered_bytes += item.cost
            self._inbox.append(item)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        loop_thread().loop.call_soon_threadsafe(self._take_over, client)

    def _wait_for_room(self, cost: int) -> None:
        self._waiters += 1
        has_room = self._room.wait_for(
            lambda: not self._buffered_bytes or self._buffered_bytes + cost <= self._buffer_memory,
            timeout=self._max_block_ms / 1000,
        )
        self._waiters -= 1
        if not has_room:
            detail = f"buffer.memory {self._buffer_memory} stayed full for max.block.ms {self._max_block_ms}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)

    def _take_over(self, client: _producer.Producer) -> None:
        """On the loop: pass records on, in order."""
        self._is_scheduled = False
        inbox = self._inbox
        for _ in range(min(len(inbox), _ENQUEUE_AT_ONCE)):
            client.enqueue(inbox.popleft())
        if inbox and not self._is_scheduled:
            self._is_scheduled = True
            loop_thread().loop.call_soon(self._take_over, client)

    def _released(self, cost: int) -> None:
        """On the loop: this many bytes have been settled."""
        with self._room:
            self._buffered_bytes -= cost
            if self._waiters:
                self._room.notify_all()

    @property
    def trouble(self) -> KafkaError | None:
        """What keeps records from being written, while it is retried; None while all goes well."""
        return self._client.get().trouble

    def flush(self) -> None:
        """Return when every record handed over so far is written or has failed."""
        loop_thread().call(self._flush(self._client.get()))

    async def _flush(self, client: _producer.Producer) -> None:
        while self._inbox:
            client.enqueue(self._inbox.popleft())
        await client.flush()

    def close(self) -> None:
        """Flush, then close the connections. May be called again."""
        if self._inbox:
            self.flush()
        super().close()

    def close_at_exit(self) -> None:
        """The interpreter ends, and with it the background thread: write what can be written soon."""
        client = self._client.made()
        if client is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._finish(client), loop_thread().loop).result(EXIT_FLUSH_S)
        except TimeoutError:
            what = f"{self._buffered_bytes} bytes of records"
            _log.error("%s were not written before the interpreter ended: call flush() or close()", what)

    async def _finish(self, client: _producer.Producer) -> None:
        await self._flush(client)
        await client.close()


_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for producer in list(_producers):
        producer.close_at_exit()


class RangedFetch(Facade[_ranged_fetch.RangedFetch]):
    """See `tailrace.client.ranged_fetch.RangedFetch`, whose settings it takes."""

    def __init__(self, bootstrap_servers: str, **settings: Any) -> None:
        super().__init__(lambda: _ranged_fetch.RangedFetch(bootstrap_servers, **settings))

    def fetch_range(self, topic_partition: TopicPartition, start: int, end: int) -> Iterator[list[Buffer]]:
        """Stretches of whole batches that hold the offsets from `start` up to `end` (exclusive), in order.

        The first and the last may reach over the ends. The next fetch is on its way while one is looked at.
        """
        thread = loop_thread()
        process_id = os.getpid()
        generator = self._client.get().fetch_range(topic_partition, start, end)
        try:
            while True:
                chunk = thread.call(_next_chunk(generator))
                if chunk is None:
                    return
                yield chunk.buffers
        finally:
            # At the interpreter's end the background thread has stopped already, and with it everything of ours.
            if os.getpid() == process_id and not sys.is_finalizing():
                thread.call(_close(generator))

    def arrow(
        self,
        topic_partition: TopicPartition,
        start: int,
        end: int,
        *,
        columns: Sequence[str] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    ) -> Iterator["pa.RecordBatch"]:
        """The records of the range as Arrow, in the columns of Spark's Kafka source; needs `tailrace[arrow]`."""
        from tailrace.client.arrow import record_batches

        stretches = self.fetch_range(topic_partition, start, end)
        return record_batches(
            chain.from_iterable(stretches),
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            from_offset=start,
            until_offset=end,
            columns=columns,
        )


async def _next_chunk(generator: Any) -> Chunk | None:
    return await anext(generator, None)


async def _close(generator: Any) -> None:
    with suppress(RuntimeError):  # it is running: an interrupted call has been cancelled and is about to end it
        await generator.aclose()


class Consumer(Facade[_consumer.Consumer]):
    """See `tailrace.client.consumer.Consumer`, whose settings it takes."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str | None = None,
        topics: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        wanted = tuple(topics)
        super().__init__(lambda: _consumer.Consumer(bootstrap_servers, group=group, topics=wanted, **settings))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records as they come, without end."""
        while True:
            yield from self.poll(1.0)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics together with the group."""
        loop_thread().call(self._client.get().subscribe(topics))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside any group's sharing."""
        loop_thread().call(self._client.get().assign(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """What this consumer reads now."""
        return self._client.get().assignment

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records in order of offset per partition; none if none came within `timeout` seconds."""
        return loop_thread().call(self._client.get().poll(timeout, max_records=max_records))

    @property
    def trouble(self) -> KafkaError | None:
        """What keeps `poll` from giving all there is, while it is retried; None while all goes well."""
        return self._client.get().trouble

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Read on from this offset."""
        loop_thread().call(self._client.get().seek(topic_partition, offset))

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset of the next record that `poll` will give, None while it is not decided."""
        return self._client.get().position(topic_partition)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit these offsets, or what `poll` has given so far."""
        loop_thread().call(self._client.get().commit(offsets))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets."""
        return loop_thread().call(self._client.get().committed(partitions))
