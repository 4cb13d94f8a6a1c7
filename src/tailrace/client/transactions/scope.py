"""A transaction as a `with` block: committed at its end, aborted by an exception."""

from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Protocol

from tailrace.client.errors import AbortableTransactionError
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.model.errors import KafkaError

_ABORTED_BY_EXIT = (
    TransactionPhase.IN_TRANSACTION,
    TransactionPhase.ABORTABLE_ERROR,
    TransactionPhase.ABORTING,
)


class TransactionalProducer(Protocol):
    """A producer for asyncio."""

    @property
    def transaction_phase(self) -> TransactionPhase | None: ...

    async def begin_transaction(self) -> None: ...

    async def commit_transaction(self) -> None: ...

    async def abort_transaction(self) -> None: ...


class TransactionScope:
    """A transaction for `async with`."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> None:
        await self._producer.begin_transaction()

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None:
            await self._abort(fault)
            return
        try:
            await self._producer.commit_transaction()
        except AbortableTransactionError as refused:
            await self._abort(refused)
            raise

    async def _abort(self, fault: BaseException) -> None:
        if self._producer.transaction_phase in _ABORTED_BY_EXIT:
            try:
                await self._producer.abort_transaction()
            except KafkaError as other:
                fault.add_note(f"also, when its transaction was to be aborted: {other}")


class BlockingTransactionScope:
    """A transaction for `with`: the scope for `async with`, with calls that block."""

    def __init__(self, producer: TransactionalProducer, call: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """`call` runs a function of asyncio and returns at its end."""
        self._scope = TransactionScope(producer)
        self._call = call

    def __enter__(self) -> None:
        self._call(self._scope.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(partial(self._scope.__aexit__, kind, fault, trace))
