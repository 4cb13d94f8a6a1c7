"""The consumer without asyncio."""

import asyncio
import atexit
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic

from tailrace.client.construction import made_of
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.facade import Facade, blocking, called_in_thread, face_of
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.group.rebalance_callbacks import ConsumerRebalanceListener
from tailrace.client.hints.record_hints import note_called_field
from tailrace.client.loop_thread import loop_thread
from tailrace.client.names import Names
from tailrace.client.partition_names import Pair
from tailrace.client.reader_settings import ConsumerSettings
from tailrace.client.reading.consumer_metrics import MetricName
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.client.serialization import K, V
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition

_EXIT_STOP_S = 2.0
"""The longest wait for a consumer to stop at the end of the interpreter; the stop needs no answer from a server."""


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

    def close(self, timeout: float | None = None, *, timeout_ms: int | None = None) -> None:
        """Commit (with auto commit), leave the group, close the connections. May be called again.

        A call that has not ended after `timeout` seconds (`timeout_ms` counts before it) does not finish the commit or
        the leaving of the group, and still closes the connections, within a second.
        """
        note_called_field(sys.exception())
        self._client.close(lambda client: client.close(timeout, timeout_ms=timeout_ms))

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

    def __next__(self) -> ConsumerRecord[K, V]:
        """The next record of an iteration; waits without end for it, up to the setting `until`."""
        for record in self:
            return record
        raise StopIteration

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

    unsubscribe = blocking(AsyncConsumer[K, V].unsubscribe)
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

    def subscription(self) -> frozenset[str]:
        """The names of the topics of `topics` or `subscribe`; empty after `assign`. A pattern has no names here."""
        return self._client.get().subscription()

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
