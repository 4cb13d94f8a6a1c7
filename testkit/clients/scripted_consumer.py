"""A consumer whose two nodes are scripted. A poll returns the records that have come; `read` polls until it has so many
records."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from tailrace.client.consumer import AsyncConsumer
from tailrace.client.reading import consumer_reader
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchRequest
from testkit.clients.scripted_nodes import ScriptedNodes, ScriptedReplica

ORDERS = TopicPartition("orders", 0)


class ConsumerBench:
    """A consumer of partitions that node 1 leads, and the replicas of both nodes."""

    def __init__(self, partitions: Sequence[TopicPartition], **settings: Any) -> None:
        self.replicas = {1: ScriptedReplica(), 2: ScriptedReplica()}
        for replica in self.replicas.values():
            replica.epochs = [0, 0, 0, 0]
        self.nodes = ScriptedNodes(self._answer, dict.fromkeys(partitions, 1))
        with patch.object(consumer_reader, "Router", lambda *_, **__: self.nodes):
            self.consumer = AsyncConsumer(
                "127.0.0.1:1", fetch_max_wait_ms=1, **{"auto_offset_reset": "none", **settings}
            )

    async def _answer(self, node_id: int, request: Any) -> Any:
        return await self.replicas[node_id].answer(request)

    def elect(self, node_id: int, epoch: int) -> None:
        """Name another leader in the metadata from now on."""
        self.nodes.leaders[ORDERS], self.nodes.epochs[ORDERS] = node_id, epoch
        self.nodes.describe()

    async def read(self, count: int) -> list[int]:
        """The offsets of so many records."""
        offsets: list[int] = []
        async with asyncio.timeout(60):
            while len(offsets) < count:
                offsets += [record.offset for record in await self.consumer.poll(0.05)]
        return offsets

    async def until(self, holds: Callable[[], bool]) -> None:
        """Poll until this condition holds."""
        async with asyncio.timeout(60):
            while not holds():
                await self.consumer.poll(0.01)

    def fetched_offsets(self, node_id: int) -> list[int]:
        """The offsets that fetches have named at this node, in order."""
        return [
            partition.fetch_offset
            for request in self.nodes.requests(FetchRequest, node_id)
            for topic in request.topics
            for partition in topic.partitions
        ]


@asynccontextmanager
async def consumer_bench(
    *, partitions: Sequence[TopicPartition] = (ORDERS,), **settings: Any
) -> AsyncIterator[ConsumerBench]:
    """A consumer to which these partitions are assigned; it begins at offset 0 of every partition."""
    bench = ConsumerBench(partitions, **settings)
    await bench.consumer.assign(partitions)
    for partition in partitions:
        await bench.consumer.seek(partition, 0)
    yield bench
    await bench.consumer.close()
