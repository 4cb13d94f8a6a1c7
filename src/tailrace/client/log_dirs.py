"""How much of its disk each broker uses, and for which partitions; see `client.admin.Admin`."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.client.answers import check, code_of
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult


class PartitionSize(NamedTuple):
    """One replica on one disk."""

    size_bytes: int
    offset_lag: int
    """How far it is behind the high watermark."""
    is_future: bool
    """It is being moved here from another directory."""


class LogDirectorySize(NamedTuple):
    """One log directory of a broker."""

    path: str
    error: ErrorCode
    total_bytes: int
    """The size of its disk; -1 if the broker does not say."""
    usable_bytes: int
    partitions: Mapping[TopicPartition, PartitionSize]


async def describe_log_dirs(
    router: Router, brokers: Iterable[int] | None = None
) -> dict[BrokerId, list[LogDirectorySize]]:
    """The log directories of these brokers, or of all of them."""

    async def of(node_id: int) -> list[LogDirectorySize]:
        connection = await router.node_connection(node_id)
        response = await connection.ask(
            DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, timeout_ms=router.request_timeout_ms
        )
        check(response.error_code, f"the log directories of broker {node_id} cannot be described")
        return [_directory(result) for result in response.results]

    async def attempt() -> dict[BrokerId, list[LogDirectorySize]]:
        wanted = brokers
        if wanted is None:
            await router.refresh(())
            wanted = router.view.brokers
        node_ids = [BrokerId(node_id) for node_id in wanted]
        answers = await asyncio.gather(*map(of, node_ids))
        return dict(zip(node_ids, answers, strict=True))

    return await router.retry(attempt)


def _directory(result: DescribeLogDirsResult) -> LogDirectorySize:
    partitions = {
        TopicPartition(topic.name, each.partition_index): PartitionSize(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in result.topics
        for each in topic.partitions
    }
    return LogDirectorySize(
        path=result.log_dir,
        error=code_of(result.error_code),
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        partitions=partitions,
    )
