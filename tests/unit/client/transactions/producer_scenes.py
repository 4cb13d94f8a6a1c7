"""Scenes of a transactional producer and a node that answers by script."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.producer import AsyncProducer
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.model.partitions import TopicPartition
from testkit.clients.scripted_transactions import ScriptedTransactions

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)
MEMBER = ConsumerGroupMetadata("g", 3, "member-1", "instance-1")
Play = Callable[..., AbstractAsyncContextManager[tuple[ScriptedTransactions, AsyncProducer]]]


@asynccontextmanager
async def begun(producer: AsyncProducer) -> AsyncIterator[None]:
    if producer.transaction_phase is TransactionPhase.UNINITIALIZED:
        await producer.init_transactions()
    await producer.begin_transaction()
    yield


async def committed(producer: AsyncProducer) -> None:
    """Commit a transaction with a record."""
    async with begun(producer):
        await producer.send("orders", b"v", partition=0)
        await producer.commit_transaction()


async def until_asked(nodes: ScriptedTransactions, kind: type[Any], call: Awaitable[None]) -> "asyncio.Task[None]":
    """The call as a task, whose request of this type has come and gets no answer."""
    nodes.hold(kind)
    task = asyncio.ensure_future(call)
    await nodes.arrival(kind)
    assert not task.done()
    return task


async def in_a_block(producer: AsyncProducer, *topics: str, fault: BaseException | None = None) -> None:
    """A transaction with a record for each of the topics; the block raises the fault when they are written."""
    async with producer.transaction():
        for topic in topics:
            await producer.send(topic, b"v", partition=0)
        if fault is not None:
            await producer.settle()
            raise fault


def identities(nodes: ScriptedTransactions) -> list[tuple[int, int, int]]:
    return [(each.producer_id, each.producer_epoch, each.base_sequence) for each in nodes.batches]
