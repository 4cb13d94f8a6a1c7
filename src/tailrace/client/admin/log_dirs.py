"""The log directories of brokers: their sizes by partition, and the ends of replicas' logs."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.client.errors import check, code_of
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)

_FIRST_WITH_TAGGED_FIELDS: Final = 2


class PartitionSize(NamedTuple):
    """A replica on a disk."""

    size_bytes: int
    offset_lag: int
    """The number of records between its log end and the high watermark."""
    is_future: bool
    """Whether the replica is moving here from another directory."""


class LogDirectorySize(NamedTuple):
    """A log directory of a broker."""

    path: str
    error: ErrorCode
    total_bytes: int
    """The size of its disk; -1 if the broker does not report the size."""
    usable_bytes: int
    partitions: Mapping[TopicPartition, PartitionSize]


class ReplicaLog(NamedTuple):
    """The ends of one replica's log; -1 if unknown."""

    good_end_offset: int
    """The end offset of the log; of a damaged log the end of the good part."""
    acknowledged_end_offset: int
    """The offset up to which the log was flushed or committed, according to the checkpoints."""
    fault: str
    """The reason why the log cannot be used; empty if the log can be used."""


async def describe_replica_logs(
    router: Router, partitions: Mapping[BrokerId, Sequence[TopicPartition]]
) -> dict[BrokerId, Mapping[TopicPartition, ReplicaLog] | KafkaError]:
    """The log ends of these partitions on these brokers, also of logs that cannot be used.

    A KafkaError stands for a broker without an answer: UNSUPPORTED_VERSION of a broker that does not report log ends,
    as Apache Kafka's, or the fault of an unreachable broker. A replica that a broker does not have is left out.
    """

    async def of(node_id: BrokerId) -> Mapping[TopicPartition, ReplicaLog] | KafkaError:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, index in partitions[node_id]:
            by_topic[topic].append(index)
        topics = tuple(
            DescribableLogDirTopic(topic=topic, partitions=tuple(indexes)) for topic, indexes in by_topic.items()
        )
        try:
            connection = await router.node_connection(node_id)
            if connection.version_of(DescribeLogDirsRequest) < _FIRST_WITH_TAGGED_FIELDS:
                return _without_log_ends(node_id)
            response = await router.ask(
                connection, DescribeLogDirsRequest(topics=topics, wants_log_ends=True), DescribeLogDirsResponse
            )
            check(response.error_code, f"the logs of broker {node_id} cannot be described")
        except KafkaError as fault:
            return fault
        return _replica_logs(response) if response.has_log_ends else _without_log_ends(node_id)

    await router.refresh(())
    answers = await asyncio.gather(*map(of, partitions))
    return dict(zip(partitions, answers, strict=True))


def _without_log_ends(node_id: BrokerId) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node_id} does not tell how far its logs are good")


def _replica_logs(response: DescribeLogDirsResponse) -> Mapping[TopicPartition, ReplicaLog]:
    return {
        TopicPartition(topic.name, each.partition_index): ReplicaLog(
            each.good_end_offset, each.acknowledged_end_offset, each.log_fault
        )
        for result in response.results
        for topic in result.topics
        for each in topic.partitions
    }


async def describe_log_dirs(
    router: Router, brokers: Iterable[int] | None = None
) -> dict[BrokerId, list[LogDirectorySize]]:
    """The log directories of these brokers, or of every broker."""

    async def of(node_id: int) -> list[LogDirectorySize]:
        connection = await router.node_connection(node_id)
        response = await router.ask(connection, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
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
