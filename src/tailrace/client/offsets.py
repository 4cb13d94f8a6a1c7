"""Where a partition's log begins and ends, and which offset belongs to a time (ListOffsets, asked at the leaders)."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tailrace.client.answers import code_of
from tailrace.client.cluster_view import Broker
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST = -1
"""The end for readers: the high watermark, or the last stable offset under read_committed."""
EARLIEST = -2
MAX_TIMESTAMP = -3
"""The record with the largest timestamp (KIP-734)."""

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

_CONSUMER = -1


class OffsetAt(NamedTuple):
    """An answer of ListOffsets. Offset -1: no record is that young."""

    offset: int
    timestamp: int
    """ms; -1 where the question was not about a time."""
    leader_epoch: int


async def list_offsets(
    router: Router,
    specs: Mapping[TopicPartition, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAt]:
    """For each partition the offset that its spec names: LATEST, EARLIEST, MAX_TIMESTAMP, or of a time in ms.

    A time stands for the first record at or after it. Partitions whose leader is moving are asked again until
    `timeout_ms`. Raises KafkaError, UNKNOWN_TOPIC_OR_PARTITION at once for a topic that does not exist.
    """
    found: dict[TopicPartition, OffsetAt] = {}

    async def attempt() -> None:
        missing = {partition: spec for partition, spec in specs.items() if partition not in found}
        faults = await _ask_leaders(router, missing, isolation_level, found)
        for partition, fault in faults.items():
            router.view.mark_stale(partition.topic)
            raise fault

    await router.retry(attempt, timeout_ms=timeout_ms, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    return found


async def _ask_leaders(
    router: Router,
    specs: Mapping[TopicPartition, int],
    isolation_level: int,
    found: dict[TopicPartition, OffsetAt],
) -> dict[TopicPartition, KafkaError]:
    await router.ensure_fresh({partition.topic for partition in specs})
    by_leader: dict[Broker, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, spec in specs.items():
        by_leader[router.view.leader(partition)][partition] = spec
    answers = await asyncio.gather(
        *(_ask_leader(router, leader, asked, isolation_level) for leader, asked in by_leader.items())
    )
    faults: dict[TopicPartition, KafkaError] = {}
    for good, bad in answers:
        found |= good
        faults |= bad
    return faults


async def _ask_leader(
    router: Router, leader: Broker, specs: Mapping[TopicPartition, int], isolation_level: int
) -> tuple[dict[TopicPartition, OffsetAt], dict[TopicPartition, KafkaError]]:
    connection = await router.broker_connection(leader)
    version = connection.version_of(ListOffsetsRequest)
    if version < 7 and MAX_TIMESTAMP in specs.values():
        detail = (
            f"{connection.address} cannot tell the largest timestamp (it needs ListOffsets v7 and offers v{version})"
        )
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for partition, spec in specs.items():
        topics[partition.topic].append(ListOffsetsPartition(partition_index=partition.partition, timestamp=spec))
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation_level if version >= 2 else 0,
        topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(asked)) for name, asked in topics.items()),
    )
    response = await connection.ask(request, ListOffsetsResponse, timeout_ms=router.request_timeout_ms)
    good: dict[TopicPartition, OffsetAt] = {}
    bad: dict[TopicPartition, KafkaError] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if answer.error_code:
                bad[partition] = KafkaError(
                    code_of(answer.error_code), f"offsets of {partition} at {connection.address}"
                )
            else:
                good[partition] = OffsetAt(answer.offset, answer.timestamp, answer.leader_epoch)
    return good, bad
