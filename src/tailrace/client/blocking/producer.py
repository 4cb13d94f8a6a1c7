"""The producer without asyncio: records come from any thread, in a queue of its own."""

import asyncio
import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial, wraps
from types import TracebackType
from typing import Any, Generic, TypeVar

from tailrace.client.construction import made_of
from tailrace.client.facade import Facade, blocking, face_of
from tailrace.client.hints.time_outs import seconds_of
from tailrace.client.loop_thread import loop_thread
from tailrace.client.producer import AsyncProducer
from tailrace.client.serialization import K, V
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.client.transactions.scope import BlockingTransactionScope
from tailrace.client.writer_settings import ProducerSettings
from tailrace.client.writing.delivery import DeliveryFuture
from tailrace.client.writing.outgoing import Headers, PrebuiltBatch, RecordMetadata, Unsent
from tailrace.client.writing.record_checks import check_partition, check_topic, stamp_of
from tailrace.model.errors import KafkaError
from tailrace.protocol.schema import Buffer

T = TypeVar("T")

_log = logging.getLogger(__name__)

EXIT_FLUSH_S = 5.0
"""The longest wait for records that were not flushed, at the end of the interpreter."""

_ENQUEUE_AT_ONCE = 2_000
"""The most records that one turn of the loop passes on, so that answers do not wait long."""


def _in_order(method: Callable[[AsyncProducer[Any, Any]], Awaitable[T]]) -> "Callable[[Producer[Any, Any]], T]":
    """The method for the blocking producer: the call is made after all records that were handed over before."""

    @wraps(method, updated=())  # without the mark of a coroutine function
    def call(producer: "Producer[Any, Any]", /) -> T:
        return producer.call_in_order(partial(method, producer._client.get()))

    return call


@face_of(AsyncProducer)
class Producer(Facade[AsyncProducer[K, V]], Generic[K, V]):
    """See `tailrace.client.producer.AsyncProducer`, whose settings it takes.

    The end of a `with` block, `flush` and `close` raise KafkaError if records have failed whose futures were never
    read. An exception of the block itself is raised unchanged, with a note of the records.
    """

    @made_of(ProducerSettings[K, V])
    def __init__(self, settings: ProducerSettings[K, V]) -> None:
        self._settings = settings
        self._reset()

        released = weakref.WeakMethod(self._released)  # so that a producer may be dropped before its client

        def note_release(cost: int) -> None:
            if (note := released()) is not None:
                note(cost)

        def make() -> AsyncProducer[K, V]:
            self._reset()
            client = AsyncProducer[K, V].of(settings)
            client.memory.on_release = note_release
            client.start()
            return client

        super().__init__(make)
        _producers.add(self)

    def _reset(self) -> None:
        self._space = threading.Condition(threading.Lock())
        self._buffered_bytes = 0
        self._waiters = 0
        self._inbox: deque[Unsent | PrebuiltBatch] = deque()
        self._is_scheduled = False

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = (),
        timestamp: int | None = None,
        timestamp_ms: int | None = None,
    ) -> DeliveryFuture:
        """Hand over a record; `result(timeout)` of the future is its place, or raises KafkaError.

        After `timeout` seconds without an outcome it raises TimeoutError with the reason, and the producer tries on.

        Blocks only while buffer.memory is full, max.block.ms at most. A future cannot be cancelled. Raises TypeError,
        or KafkaError (MESSAGE_TOO_LARGE, INVALID_TOPIC_EXCEPTION, ...), for a record that no cluster accepts; with a
        transactional id also outside of a transaction (INVALID_TXN_STATE), and in a transaction that has failed.
        """
        client = self._client.get()
        client.check_ready()
        record = client.checked(topic, partition, key, value, headers)
        stamp = stamp_of(timestamp, timestamp_ms)
        completion = DeliveryFuture(client.failures, topic)
        self._hand_over(
            client, Unsent(topic, partition, record.key, record.value, record.headers, stamp, record.cost, completion)
        )
        return completion

    def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = (),
        timestamp: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its place once it is written. Raises the errors of `send`, and of its future."""
        sent = self.send(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp, timestamp_ms=timestamp_ms
        )
        return sent.result()

    def send_batch(self, topic: str, partition: int, payload: Buffer) -> "Future[RecordMetadata]":
        """Hand over a whole record batch (format v2, offsets from 0, at most max.request.size).

        The future's offset is the offset of the batch's first record. Order with single records is kept.
        """
        check_topic(topic)
        check_partition(partition)
        client = self._client.get()
        client.check_ready()
        completion = DeliveryFuture(client.failures, topic)
        self._hand_over(client, PrebuiltBatch(topic, partition, payload, len(payload), completion))
        return completion

    partition_count = blocking(AsyncProducer[K, V].partition_count)

    def _hand_over(self, client: AsyncProducer[K, V], item: Unsent | PrebuiltBatch) -> None:
        with self._space:
            is_full = self._buffered_bytes + item.cost > self._settings.buffer_memory and self._buffered_bytes
            # A callback of a future runs on the loop's thread, and this thread frees the space: so a callback may not
            # wait.
            if is_full and not loop_thread().is_current:
                self._wait_for_space(item.cost)
            self._buffered_bytes += item.cost
            self._inbox.append(item)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        loop_thread().loop.call_soon_threadsafe(self._take_over, client)

    def _wait_for_space(self, cost: int) -> None:
        self._waiters += 1
        has_space = self._space.wait_for(
            lambda: not self._buffered_bytes or self._buffered_bytes + cost <= self._settings.buffer_memory,
            timeout=self._settings.max_block_ms / 1000,
        )
        self._waiters -= 1
        if not has_space:
            raise self._settings.buffer_full(self._client.get().situation())

    def _take_over(self, client: AsyncProducer[K, V]) -> None:
        """Pass records on to the asyncio producer, in order. Runs on the loop."""
        self._is_scheduled = False
        inbox = self._inbox
        for _ in range(min(len(inbox), _ENQUEUE_AT_ONCE)):
            client.enqueue(inbox.popleft())
        if inbox and not self._is_scheduled:
            self._is_scheduled = True
            loop_thread().loop.call_soon(self._take_over, client)

    def _released(self, cost: int) -> None:
        """Note that these bytes of buffer.memory are free again. Runs on the loop."""
        with self._space:
            self._buffered_bytes -= cost
            if self._waiters:
                self._space.notify_all()

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps records from being written while the producer tries again; None without such a fault."""
        return self._client.get().trouble

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is None:
            self.close()
            return
        try:
            self.close()
        except KafkaError as unreported:
            fault.add_note(f"also, by this producer: {unreported}")

    def flush(self, timeout: float | None = None) -> None:
        """Return when every record handed over so far is written; linger.ms is suspended meanwhile.

        Raises KafkaError if records have failed whose futures were never read: their number, and the first fault. Each
        failure is reported once. Raises KafkaError REQUEST_TIMED_OUT after `timeout` seconds: the records go on.
        """
        client = self._client.get()
        self.call_in_order(partial(client.flush, timeout))

    async def _settle(self, client: AsyncProducer[K, V]) -> None:
        self._take_over_all(client)
        await client.settle()

    def _take_over_all(self, client: AsyncProducer[K, V]) -> None:
        while self._inbox:
            client.enqueue(self._inbox.popleft())

    # transactions

    @property
    def transaction_phase(self) -> TransactionPhase | None:
        """The phase of a transactional producer; None without a transactional id."""
        return self._client.get().transaction_phase

    init_transactions = blocking(AsyncProducer[K, V].init_transactions)
    send_offsets_to_transaction = blocking(AsyncProducer[K, V].send_offsets_to_transaction)
    begin_transaction = _in_order(AsyncProducer.begin_transaction)
    commit_transaction = _in_order(AsyncProducer.commit_transaction)
    hand_over_transaction = _in_order(AsyncProducer.hand_over_transaction)
    abort_transaction = _in_order(AsyncProducer.abort_transaction)

    def transaction(self) -> BlockingTransactionScope:
        """A transaction for a `with` block: committed at its end, aborted by an exception, which is raised again."""
        return BlockingTransactionScope(self._client.get(), self.call_in_order)

    def call_in_order(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of this call, made after all records that were handed over before."""
        client = self._client.get()

        async def ordered() -> T:
            self._take_over_all(client)
            return await call()

        return loop_thread().call(ordered())

    def close(self, timeout: float | None = None, *, timeout_ms: int | None = None) -> None:
        """Flush, then close the connections; then raises the errors of `flush`. May be called again.

        An open transaction is aborted first, as by Kafka's clients. After `timeout` seconds, or `timeout_ms`, which
        counts before it, the records that are not written fail with REQUEST_TIMED_OUT, and are reported as by `flush`:
        such a record may still be written if it was sent. Without a time the wait ends with delivery.timeout.ms.
        """
        limit_s = seconds_of(timeout, timeout_ms, call="close")
        self._client.close(partial(self._closed, timeout=limit_s))

    async def _closed(self, client: AsyncProducer[K, V], **limits: Any) -> None:
        self._take_over_all(client)
        await client.close(**limits)

    def close_at_exit(self) -> None:
        """Flush for a few seconds: the interpreter ends, and the background thread ends with the interpreter."""
        client = self._client.existing()
        if client is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._finish(client), loop_thread().loop).result(EXIT_FLUSH_S)
        except TimeoutError:
            what = f"{self._buffered_bytes} bytes of records"
            _log.error("%s were not written before the interpreter ended: call flush() or close()", what)
        except KafkaError as unreported:
            _log.error("%s", unreported)

    async def _finish(self, client: AsyncProducer[K, V]) -> None:
        await self._settle(client)
        await client.close()


_producers: "weakref.WeakSet[Producer[Any, Any]]" = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for producer in list(_producers):
        producer.close_at_exit()
