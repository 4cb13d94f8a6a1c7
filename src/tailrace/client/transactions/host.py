"""The host of one `ProducerTransaction`: asks the coordinators for what the machine needs, within max.block.ms."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeVar

from tailrace.client.errors import AbortableTransactionError, FatalTransactionError
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from tailrace.client.router import Router
from tailrace.client.transactions.producer_transaction import EndStep, Identity, ProducerTransaction, TransactionPhase
from tailrace.client.transactions.requests import TransactionRequests
from tailrace.client.transactions.verdicts import TransactionCall
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

T = TypeVar("T")

_ADDITION_PAUSE_S: Final = 0.02
"""The pause before partitions are asked for again while the last transaction is still being ended (KAFKA-5482)."""

_logger = logging.getLogger("tailrace.client")


class TransactionHost:
    """The calls of one transactional producer. They exclude each other, and none takes longer than max.block.ms.

    `settle` returns when every record handed over is written or failed; `drop` fails the records that the sender does
    not have yet; `forget_failures` drops their unreported failures, which the end of the transaction reports.
    """

    def __init__(
        self,
        router: Router,
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        max_block_ms: int,
        settle: Callable[[], Awaitable[None]],
        drop: Callable[[], None],
        forget_failures: Callable[[], object],
    ) -> None:
        self._router = router
        self.machine = ProducerTransaction(transactional_id)
        self._requests = TransactionRequests(
            router, transactional_id, transaction_timeout_ms=transaction_timeout_ms, timeout_ms=max_block_ms
        )
        self._max_block_ms = max_block_ms
        self._settle = settle
        self._drop = drop
        self._forget_failures = forget_failures
        self._calling = asyncio.Lock()
        self._adding = asyncio.Lock()
        """Held while partitions are asked for: an abort comes after the answer."""

    @asynccontextmanager
    async def _call(self, name: str) -> AsyncIterator[None]:
        async with self._calling:
            try:
                async with asyncio.timeout(self._max_block_ms / 1000):
                    yield
            except TimeoutError:
                detail = (
                    f"{name}() took longer than max.block.ms {self._max_block_ms}: call it again;"
                    f" {self._router.situation()}"
                )
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail) from None

    async def _asked(self, call: TransactionCall, answer: Awaitable[T]) -> T | None:
        """The answer; None for an error after which the abort goes on."""
        try:
            return await answer
        except KafkaError as fault:
            error = self.machine.refused(call, fault)
        if error is not None:
            raise error
        return None

    # calls

    async def initialize(self) -> None:
        """Get the first identity; the coordinator ends the open transaction of another producer with the transactional
        id."""
        async with self._call("init_transactions"):
            self.machine.begin_initialization()
            await self._renew(None)
            self.machine.finish()

    async def begin(self) -> None:
        """Open a transaction. No request is sent."""
        async with self._calling:
            self.machine.begin()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: ConsumerGroupMetadata
    ) -> None:
        """Let the group's coordinator commit the member's offsets with the transaction.

        A call that is cut short leaves a transaction that can only be aborted: the offsets may be in it or not.
        """
        async with self._calling:
            self.machine.check_send("send_offsets_to_transaction")
            if not offsets:
                return
            try:
                async with asyncio.timeout(self._max_block_ms / 1000):
                    await self._send_offsets(offsets, member)
            except TimeoutError:
                self.machine.cut_short(f"max.block.ms {self._max_block_ms} is over; {self._router.situation()}")
                raise self.machine.error() from None
            except asyncio.CancelledError:
                self.machine.cut_short("the call was cancelled")
                raise

    async def _send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: ConsumerGroupMetadata
    ) -> None:
        machine = self.machine
        machine.begin_group(member.group_id)
        if machine.must_add_group:
            await self._asked(TransactionCall.GROUP, self._add_group(member.group_id))
        committing = self._requests.commit_offsets(self._identity, offsets, member, version=machine.version)
        await self._asked(TransactionCall.OFFSETS, committing)

    async def commit(self) -> None:
        """Commit the transaction when all its records are written. Raises AbortableTransactionError for a record that
        failed."""
        async with self._call("commit_transaction"):
            self.machine.begin_commit()
            await self._settle()
            with self._reporting_once():
                self.machine.check_commit()
            await self._end(committed=True)

    async def hand_over(self) -> Identity | None:
        """Leave the open transaction, when all its records are written, to the process that ends the transaction."""
        async with self._call("hand_over_transaction"):
            self.machine.begin_hand_over()
            await self._settle()
            with self._reporting_once():
                return self.machine.hand_over()

    @contextmanager
    def _reporting_once(self) -> Iterator[None]:
        """Raise the failure of the transaction here, and report it nowhere else."""
        try:
            yield
        except (AbortableTransactionError, FatalTransactionError):
            self._forget_failures()
            raise

    async def abort(self) -> None:
        """Drop unsent records, wait for the answers to requests under way, and abort the transaction."""
        async with self._call("abort_transaction"):
            self.machine.begin_abort()
            try:
                self._drop()
                await self._settle()
            finally:
                self._forget_failures()
            async with self._adding:
                await self._end(committed=False)

    async def close(self) -> None:
        """Abort the open transaction, as Kafka's clients do, and go on with an end that was cut short.

        A failure is logged: the coordinator aborts the transaction after transaction.timeout.ms.
        """
        machine = self.machine
        try:
            if machine.phase is TransactionPhase.COMMITTING:
                with suppress(AbortableTransactionError):
                    await self.commit()
            if machine.is_open or machine.phase is TransactionPhase.ABORTING:
                await self.abort()
        except KafkaError as fault:
            _logger.warning(
                "transactional.id %r is closed with an open transaction: %s", machine.transactional_id, fault
            )

    # the end of a transaction

    async def _end(self, *, committed: bool) -> None:
        machine = self.machine
        while (step := machine.next_step()) is not EndStep.DONE:
            match step:
                case EndStep.ADD_AGAIN:
                    await self._add_again()
                case EndStep.END:
                    ending = self._requests.end(self._identity, committed=committed, version=machine.version)
                    answer = await self._asked(TransactionCall.END, ending)
                    if answer is not None:
                        machine.ended(answer.identity, version=answer.version)
                case EndStep.RENEW:
                    await self._renew(self._identity)
        machine.finish()

    async def _add_again(self) -> None:
        machine = self.machine
        partitions, group = machine.take_wanted(), machine.unanswered_group
        if partitions:
            # Only for half the time of the call: if a partition stays unknown, the rest is for the next epoch, which
            # ends the transaction too.
            adding = self._add(partitions, timeout_ms=self._max_block_ms // 2)
            await self._asked(TransactionCall.PARTITIONS, adding)
        elif group is not None:
            await self._asked(TransactionCall.GROUP, self._add_group(group))

    async def add_partitions(self) -> None:
        """Ask the coordinator to add the partitions that batches wait for. Raises KafkaError for an error that is to be
        retried."""
        async with self._adding:
            while self.machine.has_wanted:
                try:
                    await self._add(self.machine.take_wanted(), timeout_ms=0)
                except KafkaError as fault:
                    if fault.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                        await asyncio.sleep(_ADDITION_PAUSE_S)
                    elif fault.code.retriable:
                        raise
                    else:
                        self.machine.refused(TransactionCall.PARTITIONS, fault)

    async def _add(self, partitions: frozenset[TopicPartition], *, timeout_ms: int | None = None) -> None:
        await self._requests.add_partitions(self._identity, partitions, timeout_ms=timeout_ms)
        self.machine.added(partitions)

    async def _add_group(self, group: str) -> None:
        await self._requests.add_group(self._identity, group)
        self.machine.group_added()

    async def _renew(self, present: Identity | None) -> None:
        answer = await self._asked(TransactionCall.INITIALIZATION, self._requests.init_producer_id(present))
        if answer is not None and answer.identity is not None:
            self.machine.renewed(answer.identity, version=answer.version)

    @property
    def _identity(self) -> Identity:
        assert self.machine.identity is not None, "a transaction is begun with an identity"
        return self.machine.identity
