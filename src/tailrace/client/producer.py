"""The producer: gathers records into batches, sends them to the leaders, and returns their offsets."""

import asyncio
import logging
from collections.abc import Iterable
from random import randrange
from types import TracebackType
from typing import Any, Generic, Self, cast
from weakref import WeakMethod

from tailrace.client.cluster_view import TopicInfo
from tailrace.client.construction import StartableClient, made_of
from tailrace.client.errors import ClosedClient
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata, exact_offsets
from tailrace.client.hints.call_hints import hinted
from tailrace.client.hints.time_outs import seconds_of
from tailrace.client.kept_tasks import end_tasks, kept_task
from tailrace.client.partition_names import ByPartition, by_partition
from tailrace.client.router import Router
from tailrace.client.serialization import K, V, serialized
from tailrace.client.transactions.host import TransactionHost
from tailrace.client.transactions.producer_transaction import Identity, TransactionPhase
from tailrace.client.transactions.scope import TransactionScope
from tailrace.client.writer_settings import ProducerSettings, parse_codec
from tailrace.client.writing.accumulator import Accumulator
from tailrace.client.writing.buffer_memory import BufferMemory
from tailrace.client.writing.delivery import AwaitedDelivery, WriteFailures
from tailrace.client.writing.outgoing import Headers, PrebuiltBatch, RecordMetadata, RecordNotWritten, Unsent
from tailrace.client.writing.parked_records import ParkedRecords
from tailrace.client.writing.partition_choice import PartitionChoice, StickyPartitioner, existing
from tailrace.client.writing.record_checks import (
    CheckedRecord,
    check_partition,
    check_record,
    check_topic,
    stamp_of,
)
from tailrace.client.writing.sender import Sender
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.schema import Buffer

_log = logging.getLogger("tailrace.client")

UNKNOWN_TOPIC_WAIT_MS = 5_000
"""The longest wait for an unknown topic: a broker that creates topics does so soon after the first request."""


@hinted
class AsyncProducer(StartableClient[ProducerSettings[K, V]], Generic[K, V]):
    """An asyncio producer. Names and defaults of settings are Kafka's.

    Idempotent by default, with acks=all: every record is written once and in the order of `send` within its partition,
    also after retries. `buffer_memory` bounds the unsent records; `send` waits for space.

    A failed record is reported once: by its future if that is awaited, otherwise by the next `flush` or `close`, also
    at the end of an `async with` block, as one KafkaError for all of them. The log `tailrace.client` has warnings.

    With key_serializer and value_serializer `send` takes what these functions take; None stays None.

    With `transactional_id` all records belong to transactions: `init_transactions` once, then `async with
    producer.transaction()` for each. The coordinator aborts a transaction after `transaction_timeout_ms`. Errors are
    AbortableTransactionError (abort, and go on), FatalTransactionError (close; also ProducerFenced), or a KafkaError
    INVALID_TXN_STATE for calls in a wrong order. A call that runs out of time (max.block.ms) or is cancelled is called
    again: `transaction_phase` tells which call.
    """

    @made_of(ProducerSettings[K, V])
    def __init__(self, settings: ProducerSettings[K, V]) -> None:
        self._settings = settings
        self._serializes = settings.key_serializer is not None or settings.value_serializer is not None
        self._router = Router(settings)
        self._accumulator = Accumulator(
            batch_size=settings.batch_size,
            linger_ms=settings.linger_ms,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            max_request_size=settings.max_request_size,
            codec=parse_codec(settings.compression),
        )
        self._choice = PartitionChoice(settings.partitioner, StickyPartitioner(randrange, settings.batch_size))
        self.memory = BufferMemory(settings, self.situation)
        self._parked = ParkedRecords(self._router, self._accept_parked, self._refuse)
        self._sender: Sender | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: KafkaError | None = None
        """The error after which no record is taken any more."""
        self._is_closing = False
        self.failures = WriteFailures(WeakMethod(self.situation), settings.pending)
        """The failed records whose futures have not been read."""
        self._transactions: TransactionHost | None = None
        if settings.transactional_id is not None:
            self._transactions = TransactionHost(
                self._router,
                settings.transactional_id,
                transaction_timeout_ms=settings.transaction_timeout_ms,
                max_block_ms=settings.max_block_ms,
                settle=self.settle,
                drop=self._drop_parked,
                forget_failures=self.failures.pop_all,
            )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is None:
            await self.close()
            return
        try:
            await self.close()
        except KafkaError as unreported:
            fault.add_note(f"also, by this producer: {unreported}")

    def _begin(self) -> None:
        if self._sender is None:
            self._sender = Sender(
                self._router,
                self._accumulator,
                acks=self._settings.acks_number,
                idempotent=self._settings.is_idempotent,
                on_release=self.memory.release,
                transactions=self._transactions,
            )
            task = kept_task(self._run(self._sender))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, sender: Sender) -> None:
        try:
            await sender.run()
        except asyncio.CancelledError:
            if self.memory.used_bytes and not self._is_closing:
                _log.error("records were not written before the event loop ended: use `async with`, or call close()")
            raise
        except Exception as bug:
            # A bug: raise it for the log, and fail all futures, so that no caller waits for ever.
            self._fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"this producer has failed: {bug!r}")
            sender.collapse(self._fault)
            raise

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = (),
        timestamp: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Hand over a record; the result of the future is its place, or KafkaError.

        Without `partition` the key decides (murmur2, as in every Kafka client); without a key, one partition is filled
        after another. `timestamp` (or `timestamp_ms`) is ms since 1970, now by default. Waits while buffer.memory is
        full, max.block.ms at most, then raises KafkaError(REQUEST_TIMED_OUT). Raises TypeError, or KafkaError
        (MESSAGE_TOO_LARGE, INVALID_TOPIC_EXCEPTION, ...), for a record that no cluster accepts, or the exception of a
        serializer; with a transactional id also outside of a transaction (INVALID_TXN_STATE), and in a transaction that
        has failed.
        """
        self.check_ready()
        record = self.checked(topic, partition, key, value, headers)
        stamp = stamp_of(timestamp, timestamp_ms)
        completion = AwaitedDelivery(self.failures, loop=asyncio.get_running_loop())
        await self.memory.wait_for_space(record.cost)
        self.enqueue(Unsent(topic, partition, record.key, record.value, record.headers, stamp, record.cost, completion))
        return completion

    async def send_and_wait(
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
        return await (
            await self.send(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers,
                timestamp=timestamp,
                timestamp_ms=timestamp_ms,
            )
        )

    def checked(
        self, topic: str, partition: int | None, key: K | None, value: V | None, headers: Headers | None
    ) -> CheckedRecord:
        """The record as bytes, checked as far as a client can; raises the errors of `send`. From any thread."""
        settings, key_data, value_data = self._settings, cast("Any", key), cast("Any", value)
        if self._serializes:
            key_data = serialized(key, settings.key_serializer, "key_serializer")
            value_data = serialized(value, settings.value_serializer, "value_serializer")
        return check_record(topic, partition, key_data, value_data, headers, max_request_size=settings.max_request_size)

    def check_ready(self) -> None:
        """Raises KafkaError while this producer takes no records. From any thread."""
        self._check_started()
        if self._transactions is not None:
            self._transactions.machine.check_send()

    def _check_started(self) -> None:
        if self._sender is None:
            detail = "this producer has not been started: use `async with Producer(...)`, or call start()"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)

    async def send_batch(self, topic: str, partition: int, payload: Buffer) -> "asyncio.Future[RecordMetadata]":
        """Hand over a whole record batch (format v2, offsets from 0, at most max.request.size).

        The future's offset is the offset of the batch's first record. Order with single records is kept.
        """
        self.check_ready()
        check_topic(topic)
        check_partition(partition)
        completion = AwaitedDelivery(self.failures, loop=asyncio.get_running_loop())
        await self.memory.wait_for_space(len(payload))
        self.enqueue(PrebuiltBatch(topic, partition, payload, len(payload), completion))
        return completion

    async def partition_count(self, topic: str) -> int:
        """The number of partitions of the topic now; while no node answers, the last known number.

        The request creates the topic if the cluster auto-creates topics. Waits for the first answer max.block.ms at
        most, and a few seconds for a topic that does not exist.
        """
        return await self._router.partition_count(
            topic, timeout_ms=self._settings.max_block_ms, unknown_timeout_ms=UNKNOWN_TOPIC_WAIT_MS
        )

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps records from being written while the producer tries again; None without such a fault."""
        return None if self._sender is None else self._sender.trouble or self._parked.trouble

    def situation(self) -> str:
        """The addresses of the cluster and the reason for which records wait, for texts about time-outs."""
        return self._router.situation(self.trouble)

    def enqueue(self, item: Unsent | PrebuiltBatch) -> None:
        """Accept a record without waiting; a fault goes to its future."""
        self._check_started()
        assert self._sender is not None, "checked"
        self.memory.take(item.cost)
        if self._fault is not None:
            self._refuse(item, self._fault)
            return
        if self._transactions is not None and self._transactions.machine.phase is not TransactionPhase.IN_TRANSACTION:
            self._fail(item, self._transactions.machine.refusal("send"))  # the record belongs to no transaction
            return
        info = None if item.topic in self._parked.by_topic else self._router.view.find(item.topic)
        if info is None:
            self._parked.park(item, timeout_ms=UNKNOWN_TOPIC_WAIT_MS)
        elif self._accept(item, info):
            self._sender.wake()

    def _accept_parked(self, items: Iterable[Unsent | PrebuiltBatch], info: TopicInfo) -> None:
        assert self._sender is not None, "start() comes before the first record"
        if sum(self._accept(item, info) for item in items):
            self._sender.wake()

    def _accept(self, item: Unsent | PrebuiltBatch, info: TopicInfo) -> bool:
        """Add the item to the accumulator. Returns whether to wake the sender."""
        now_ms = self._router.now_ms()
        try:
            if isinstance(item, PrebuiltBatch):
                partition = TopicPartition(item.topic, existing(item.partition, info))
                self._accumulator.append_prebuilt(partition, item.payload, item.completion, now_ms)
                return True
            topic, _, key, value, headers, timestamp, cost, completion = item
            partition = TopicPartition(topic, self._choice.partition_of(item, info))
            return self._accumulator.append(partition, timestamp, key, value, headers, cost, completion, now_ms)
        except KafkaError as fault:
            self._refuse(item, fault)
            return False
        except Exception as mistake:  # noqa: BLE001  # a partitioner that raises
            # Fail this record only.
            detail = f"a record for topic {item.topic!r} cannot be written: {mistake}"
            self._refuse(item, KafkaError(ErrorCode.INVALID_RECORD, detail))
            return False

    def _refuse(self, item: Unsent | PrebuiltBatch, fault: KafkaError) -> None:
        """Fail an item of the open transaction."""
        if self._transactions is not None:
            self._transactions.machine.batch_failed(fault, is_numbered=False)
        self._fail(item, fault)

    def _fail(self, item: Unsent | PrebuiltBatch, fault: KafkaError) -> None:
        if not item.completion.done():
            partition = -1 if item.partition is None else item.partition
            records = item.records_count if isinstance(item, PrebuiltBatch) else 1
            item.completion.set_exception(RecordNotWritten(fault, item.topic, partition, records=records))
        self.memory.release(item.cost)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - running out of time has its own error
        """Return when every record handed over so far is written; linger.ms is suspended meanwhile.

        Raises KafkaError if records have failed whose futures were never read: their number, and the first fault. Each
        failure is reported once. Raises KafkaError REQUEST_TIMED_OUT after `timeout` seconds: the records go on.
        """
        try:
            async with asyncio.timeout(seconds_of(timeout, call="flush")):
                await self.settle()
        except TimeoutError:
            waiting = f"{self.memory.used_bytes} bytes of records are not written after {timeout} s"
            detail = f"{waiting}; {self._settings.pending(self.situation())}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail) from None
        self.failures.raise_unreported()

    async def settle(self) -> None:
        """Return when every record handed over so far is written or failed; raises nothing."""
        if self._sender is None or self.memory.used_bytes == 0:
            return
        parked = self._parked.items
        batches = self._accumulator.begin_flush()
        self._sender.wake()

        def has_none_open() -> bool:
            while batches and batches[-1].is_complete:
                batches.pop()
            while parked and parked[-1].completion.done():
                parked.pop()
            return not batches and not parked

        try:
            await self.memory.wait_until(has_none_open)
        finally:
            self._accumulator.end_flush()

    # transactions

    @property
    def transaction_phase(self) -> TransactionPhase | None:
        """The phase of a transactional producer; None without a transactional id."""
        return None if self._transactions is None else self._transactions.machine.phase

    def _transactional(self) -> TransactionHost:
        if self._transactions is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "this producer has no transactions: give it a transactional_id")
        self._check_started()
        return self._transactions

    async def init_transactions(self) -> None:
        """Register the transactional id: once, before the first transaction.

        An open transaction of another producer with this id is aborted, the end of a transaction is awaited, and
        that producer is fenced. Raises KafkaError after max.block.ms: call it again.
        """
        await self._transactional().initialize()

    async def begin_transaction(self) -> None:
        """Open a transaction; records that are sent from now on belong to the transaction."""
        await self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: ByPartition[OffsetAndMetadata | int], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets of a consumer's group with the transaction: of each partition the next record to read.

        `group_metadata` comes from the consumer that has read the records. Raises AbortableTransactionError when the
        consumer is no member of its group any more (KIP-447), and when the call is not done within max.block.ms; a
        cancelled call too leaves a transaction that can only be aborted.
        """
        if not isinstance(group_metadata, ConsumerGroupMetadata):
            raise TypeError(f"group_metadata is consumer.group_metadata(), not {group_metadata!r}")
        await self._transactional().send_offsets(exact_offsets(by_partition(offsets)), group_metadata)

    async def commit_transaction(self) -> None:
        """Commit all records and offsets of the transaction, when all its records are written.

        Raises AbortableTransactionError if a record is not. After another KafkaError (max.block.ms is over, no
        coordinator), and after a cancelled call, the outcome is open: call `commit_transaction` again, with nothing
        else in between.
        """
        await self._transactional().commit()

    async def hand_over_transaction(self) -> Identity | None:
        """Write all records of the open transaction, and leave the transaction to another process, which ends it.

        Returns the identity with which the other process ends the transaction; None if nothing was added to the
        transaction. The producer takes no further call except `close`. Raises the errors of `commit_transaction`.
        """
        return await self._transactional().hand_over()

    async def abort_transaction(self) -> None:
        """Abort the transaction: drop its unsent records, whose futures fail, and wait for answers under way.

        The transaction's failed records are not reported anywhere else. Raises KafkaError after max.block.ms: call it
        again.
        """
        await self._transactional().abort()

    def transaction(self) -> TransactionScope:
        """A transaction for an `async with` block: committed at its end, aborted by an exception, which is raised
        again.

        A commit that fails with AbortableTransactionError is aborted too, and raised.
        """
        return TransactionScope(self)

    def _drop_parked(self) -> None:
        assert self._transactions is not None, "only a transaction is aborted"
        for item in self._parked.drop():
            self._fail(item, self._transactions.machine.error())
        if self._sender is not None:
            self._sender.wake()

    async def close(self, timeout: float | None = None, *, timeout_ms: int | None = None) -> None:  # noqa: ASYNC109
        """Flush, then close the connections; then raises the errors of `flush`. May be called again.

        An open transaction is aborted first, as by Kafka's clients. After `timeout` seconds, or `timeout_ms`, which
        counts before it, the records that are not written fail with REQUEST_TIMED_OUT, and are reported as by `flush`:
        such a record may still be written if it was sent. Without a time the wait ends with delivery.timeout.ms.
        """
        limit_s = seconds_of(timeout, timeout_ms, call="close")
        if self._is_closing:
            return
        self._is_closing = True
        self._fault = self._fault or ClosedClient("producer")
        try:
            async with asyncio.timeout(limit_s):
                if self._transactions is not None and self._sender is not None:
                    await self._transactions.close()
                await self.settle()
        except TimeoutError:
            await self._give_up()
        if self._sender is not None:
            self._sender.stop()
        await asyncio.gather(*self._tasks, *self._parked.tasks)
        self._router.close()
        self.failures.raise_unreported()

    async def _give_up(self) -> None:
        """Fail the records that are not written, and end the tasks that write them."""
        detail = f"the producer was closed before the record was written; {self.situation()}"
        fault = KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
        for item in self._parked.drop():
            self._fail(item, fault)
        if self._sender is not None:
            self._sender.collapse(fault)
        await end_tasks((*self._tasks, *self._parked.tasks))
