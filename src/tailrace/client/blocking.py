"""The clients without asyncio: for Spark, the command line, notebooks and tests. Calls block, and are thread-safe.

The asyncio clients do the work, on this process's background loop (see loop_thread). A client made before a fork works
in the child too: it makes new connections there when it is first used.
"""

import asyncio
import atexit
import logging
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking_producer import Producer
from tailrace.client.construction import made_of
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    LogTruncation,
    ProducerFenced,
    RecordDeserializationError,
)
from tailrace.client.facade import Facade, blocking, called_in_thread, face_of
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from tailrace.client.group.range_progress import KeyProgress, RangeBudget
from tailrace.client.group.rebalance_callbacks import ConsumerRebalanceListener
from tailrace.client.keyed.blocking_consumer import KeyedConsumer
from tailrace.client.keyed.breaker import BreakerState
from tailrace.client.keyed.keyed_metrics import HeldKey, KeyedMetrics, RunningKey
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry, Skip
from tailrace.client.loop_thread import loop_thread
from tailrace.client.names import Names
from tailrace.client.partition_names import Pair, partition_named
from tailrace.client.reader_settings import ConsumerSettings, RangedFetchSettings
from tailrace.client.reading.consumer_metrics import MetricName
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch, Chunk
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.client.serialization import K, V
from tailrace.client.settings import ClientSettings
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.schema import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = (
    "AbortableTransactionError",
    "Admin",
    "BreakerState",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "CorruptRecords",
    "Done",
    "ErrorCode",
    "FatalTransactionError",
    "HeldKey",
    "KafkaError",
    "KeyProgress",
    "KeyRange",
    "KeyedConsumer",
    "KeyedMetrics",
    "KeyedRecord",
    "LogTruncation",
    "MetricName",
    "NewTopic",
    "OffsetAndMetadata",
    "Outcome",
    "Producer",
    "ProducerFenced",
    "RangeBudget",
    "RangedFetch",
    "RecordDeserializationError",
    "RecordMetadata",
    "Rectangle",
    "Retry",
    "RunningKey",
    "Skip",
    "TopicPartition",
    "TransactionPhase",
)

_log = logging.getLogger(__name__)

_EXIT_STOP_S = 2.0
"""The longest wait for a consumer to stop at the end of the interpreter; the stop needs no answer from a server."""


@face_of(AsyncAdmin)
class Admin(Facade[AsyncAdmin]):
    """See `tailrace.client.admin.admin.AsyncAdmin`."""

    @made_of(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(partial(AsyncAdmin.of, settings))

    create_topics = blocking(AsyncAdmin.create_topics)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    delete_records = blocking(AsyncAdmin.delete_records)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    existing_topics = blocking(AsyncAdmin.existing_topics)
    topic_partitions = blocking(AsyncAdmin.topic_partitions)
    describe_eligible_leaders = blocking(AsyncAdmin.describe_eligible_leaders)
    list_offsets = blocking(AsyncAdmin.list_offsets)

    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    list_brokers = blocking(AsyncAdmin.list_brokers)
    unregister_broker = blocking(AsyncAdmin.unregister_broker)
    describe_features = blocking(AsyncAdmin.describe_features)
    update_features = blocking(AsyncAdmin.update_features)

    describe_configs = blocking(AsyncAdmin.describe_configs)
    describe_topic_configs = blocking(AsyncAdmin.describe_topic_configs)
    alter_configs = blocking(AsyncAdmin.alter_configs)

    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)
    describe_replica_logs = blocking(AsyncAdmin.describe_replica_logs)
    describe_fetch_sessions = blocking(AsyncAdmin.describe_fetch_sessions)

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)

    check_sinks_are_supported = blocking(AsyncAdmin.check_sinks_are_supported)
    initialize_sink_member = blocking(AsyncAdmin.initialize_sink_member)
    write_sink_records = blocking(AsyncAdmin.write_sink_records)
    abort_sink_member = blocking(AsyncAdmin.abort_sink_member)
    commit_sink = blocking(AsyncAdmin.commit_sink)
    renew_sink_run = blocking(AsyncAdmin.renew_sink_run)
    describe_sinks = blocking(AsyncAdmin.describe_sinks)

    describe_quorum = blocking(AsyncAdmin.describe_quorum)
    add_voter = blocking(AsyncAdmin.add_voter)
    remove_voter = blocking(AsyncAdmin.remove_voter)

    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    alter_partition_reassignments = blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = blocking(AsyncAdmin.list_partition_reassignments)
    replication_factors = blocking(AsyncAdmin.replication_factors)
    describe_leaderless = blocking(AsyncAdmin.describe_leaderless)

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_groups = blocking(AsyncAdmin.describe_groups)
    delete_groups = blocking(AsyncAdmin.delete_groups)
    group_offsets = blocking(AsyncAdmin.group_offsets)
    group_progress = blocking(AsyncAdmin.group_progress)
    delete_offsets = blocking(AsyncAdmin.delete_offsets)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    move_group = blocking(AsyncAdmin.move_group)
    group_lag = blocking(AsyncAdmin.group_lag)
    partition_health = blocking(AsyncAdmin.partition_health)
    first_records = blocking(AsyncAdmin.first_records)
    commit_offsets = blocking(AsyncAdmin.commit_offsets)


@face_of(AsyncRangedFetch)
class RangedFetch(Facade[AsyncRangedFetch]):
    """See `tailrace.client.reading.ranged_fetch.AsyncRangedFetch`, whose settings it takes."""

    @made_of(RangedFetchSettings)
    def __init__(self, settings: RangedFetchSettings) -> None:
        super().__init__(partial(AsyncRangedFetch.of, settings))

    def fetch_range(
        self,
        topic_partition: Pair,
        start: int,
        end: int,
        *,
        topic_id: TopicId | None = None,
        key_ranges: tuple[KeyRange, ...] = (),
    ) -> Iterator[list[Buffer]]:
        """The batches with the offsets from `start` up to `end` (exclusive), in order, as buffers of whole batches.

        The first and the last may reach over the ends. The next fetch is in flight while the caller uses a chunk.
        See `AsyncRangedFetch.fetch_range`.
        """
        thread = loop_thread()
        process_id = os.getpid()
        client = self._client.get()
        generator = client.fetch_range(topic_partition, start, end, topic_id=topic_id, key_ranges=key_ranges)
        try:
            while True:
                chunk = thread.call(_next_chunk(generator))
                if chunk is None:
                    return
                yield chunk.buffers
        finally:
            # At the end of the interpreter the background thread has stopped already.
            if os.getpid() == process_id and not sys.is_finalizing():
                # The garbage collector may free an abandoned generator on any thread, inside any lock, also on the
                # loop's own thread. So this code does not wait for the close.
                thread.finish_later(partial(_close, generator))

    def arrow(
        self,
        topic_partition: Pair,
        start: int,
        end: int,
        *,
        columns: Sequence[str] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        topic_id: TopicId | None = None,
        key_ranges: tuple[KeyRange, ...] = (),
    ) -> Iterator["pa.RecordBatch"]:
        """The records of the range as Arrow, in the columns of Spark's Kafka source; needs `tailrace[arrow]`."""
        from tailrace.client.arrow import record_batches

        name = partition_named(topic_partition)
        stretches = self.fetch_range(name, start, end, topic_id=topic_id, key_ranges=key_ranges)
        return record_batches(
            chain.from_iterable(stretches),
            topic=name.topic,
            partition=name.partition,
            from_offset=start,
            until_offset=end,
            columns=columns,
            corrupt=self._client.get().corrupt,
        )

    def metrics(self) -> dict[MetricName, int]:
        """The batches that this reader has skipped since it was made, as in the metrics of a consumer."""
        return self._client.get().metrics()


async def _next_chunk(generator: Any) -> Chunk | None:
    return await anext(generator, None)


async def _close(generator: Any) -> None:
    with suppress(RuntimeError):  # the generator is running: a cancelled call is about to end it
        await generator.aclose()


class ThreadedListener(ConsumerRebalanceListener):
    """A listener whose methods run in a thread, so that they may make blocking calls."""

    def __init__(self, listener: ConsumerRebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        await called_in_thread(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await called_in_thread(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        await called_in_thread(self._listener.on_partitions_lost, partitions)


@face_of(AsyncConsumer)
class Consumer(Facade[AsyncConsumer[K, V]], Generic[K, V]):
    """See `tailrace.client.consumer.AsyncConsumer`, whose settings it takes."""

    @made_of(ConsumerSettings[K, V])
    def __init__(self, settings: ConsumerSettings[K, V]) -> None:
        super().__init__(partial(AsyncConsumer[K, V].of, settings), AsyncConsumer[K, V].finish_dropped)
        _consumers.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._client.existing()
        if kind is not None and client is not None:
            client.withhold_unpassed()
        self.close()

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Records without end, as they come, or up to the setting `until`. A commit covers all records yielded so far,
        also the last record: but not the last record when the `with` block ends by an exception."""
        while True:
            client = self._client.get()
            record = client.next_ahead()
            if record is not None:
                yield record
            elif client.is_at_end:
                return
            else:
                loop_thread().call(client.poll_ahead(1.0))

    def subscribe(
        self,
        topics: Names = (),
        *,
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """See `AsyncConsumer.subscribe`. The methods of the listener run in a thread."""
        if isinstance(listener, ConsumerRebalanceListener):
            listener = ThreadedListener(listener)
        loop_thread().call(self._client.get().subscribe(topics, pattern=pattern, listener=listener))

    assign = blocking(AsyncConsumer[K, V].assign)
    poll = blocking(AsyncConsumer[K, V].poll)
    getone = blocking(AsyncConsumer[K, V].getone)
    getmany = blocking(AsyncConsumer[K, V].getmany)
    seek = blocking(AsyncConsumer[K, V].seek)
    seek_to_beginning = blocking(AsyncConsumer[K, V].seek_to_beginning)
    seek_to_end = blocking(AsyncConsumer[K, V].seek_to_end)
    beginning_offsets = blocking(AsyncConsumer[K, V].beginning_offsets)
    end_offsets = blocking(AsyncConsumer[K, V].end_offsets)
    offsets_for_times = blocking(AsyncConsumer[K, V].offsets_for_times)
    partitions_for_topic = blocking(AsyncConsumer[K, V].partitions_for_topic)
    pause = blocking(AsyncConsumer[K, V].pause)
    resume = blocking(AsyncConsumer[K, V].resume)
    commit = blocking(AsyncConsumer[K, V].commit)
    committed = blocking(AsyncConsumer[K, V].committed)
    takes_ranges = blocking(AsyncConsumer[K, V].takes_ranges)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._client.get().assignment()

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps `poll` from returning all records while the consumer tries again: a node that is down, a
        damaged log, a group without a coordinator, a topic that does not exist. None without such a fault."""
        return self._client.get().trouble

    def position(self, topic_partition: Pair) -> int | None:
        """The offset of the next record that `poll` will return; None while undecided."""
        return self._client.get().position(topic_partition)

    @property
    def is_at_end(self) -> bool:
        """Whether every record up to the setting `until` is returned: then `poll` returns no record, at once."""
        return self._client.get().is_at_end

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member of it, for `Producer.send_offsets_to_transaction`; no member with `assign`.

        Raises KafkaError: UNKNOWN_MEMBER_ID while this member is out of its group, INVALID_GROUP_ID without a group.
        """
        return self._client.get().group_metadata()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._client.get().paused()

    def metrics(self) -> dict[MetricName, int]:
        """Numbers about this consumer now; docs/python.md has the list."""
        return loop_thread().call(_metrics(self._client.get()))

    def abandon_at_exit(self) -> None:
        """Stop all tasks: the interpreter ends, and the background thread ends with the interpreter."""
        client = self._client.existing()
        if client is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(client.abandon(), loop_thread().loop).result(_EXIT_STOP_S)


async def _metrics(client: AsyncConsumer[Any, Any]) -> dict[MetricName, int]:
    """The metrics, taken on the loop: the loop changes the state that they count."""
    return client.metrics()


_consumers: "weakref.WeakSet[Consumer[Any, Any]]" = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for consumer in list(_consumers):
        consumer.abandon_at_exit()
