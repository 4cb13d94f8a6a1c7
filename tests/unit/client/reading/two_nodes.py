"""A partition on two nodes, and a fetcher of the partition."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tailrace.protocol.records.record import Record, build_batch
from testkit.clients.scripted_nodes import TOPIC_ID, ScriptedNodes

PARTITION = TopicPartition("orders", 0)
LEADER, REPLICA = 1, 2
Answer = Callable[[int], Awaitable[PartitionData]]
"""The answer of the node with this number."""


class TwoNodeRouter(ScriptedNodes):
    """A partition that node 1 leads; a script answers its fetches."""

    def __init__(self, answer: Answer) -> None:
        async def respond(node_id: int, request: Any) -> FetchResponse:
            data = await answer(node_id)
            return FetchResponse(responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,)),))

        super().__init__(respond, {PARTITION: LEADER})

    @property
    def served(self) -> list[int]:
        """The nodes that were asked, in order."""
        return [node for node, _ in self.asked]


def data_of(*values: bytes, replica: int = -1) -> PartitionData:
    records = bytes(build_batch([Record(0, 1, None, value) for value in values])) if values else None
    return PartitionData(
        partition_index=0,
        high_watermark=9,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=records,
    )


def fetcher_of(router: Router, *, max_wait_ms: int = 500) -> Fetcher:
    """A fetcher of the partition, from its start on."""
    fetcher = Fetcher(
        router,
        FetchOptions(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1_000_000, isolation_level=0, rack="a"),
        max_partition_bytes=1_000_000,
    )
    fetcher.assign([PARTITION])
    fetcher.assigned.seek(PARTITION, 0)
    return fetcher


def refusal(code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=0, error_code=code, high_watermark=9, aborted_transactions=None, records=None)


async def until(fetcher: Fetcher, router: Router, holds: Callable[[], bool]) -> None:
    """Poll until this holds; there are no records."""
    async with asyncio.timeout(20):
        while not holds():
            assert fetcher.take(10) == []
            await fetcher.wait(router.now_ms() + 5)


async def values_of(fetcher: Fetcher, router: Router) -> list[bytes | None]:
    """Records that come within some seconds."""
    deadline_ms = router.now_ms() + 10_000
    while router.now_ms() < deadline_ms:
        taken = fetcher.take(10)
        if taken:
            return [record.value for _, record in taken]
        await fetcher.wait(deadline_ms)
    return []
