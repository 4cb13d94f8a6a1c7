"""ListOffsets: the start and end of a partition's log, and the offset of a time, from the leaders."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import code_of
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
    """An answer of ListOffsets. Offset -1: no record has this timestamp or a later one."""

    offset: int
    timestamp: int
    """ms; -1 for LATEST and EARLIEST."""
    leader_epoch: int


async def list_offsets(
    router: Router,
    specs: Mapping[TopicPartition, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAt]:
    """For each partition the offset that its spec names: LATEST, EARLIEST, MAX_TIMESTAMP, or of a time in ms.

    A time stands for the first record at or after it. Requests are repeated until `timeout_ms` while a leader moves.
    Raises KafkaError, UNKNOWN_TOPIC_OR_PARTITION at once for a topic that does not exist.
    """
    found: dict[TopicPartition, OffsetAt] = {}
    final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)

    async def attempt() -> None:
        missing = {partition: spec for partition, spec in specs.items() if partition not in found}
        faults = await request_offsets(router, missing, found.update, isolation_level=isolation_level)
        if faults:
            # An error that a retry does not cure comes first.
            raise min(faults.values(), key=lambda fault: fault.code.retriable and fault.code not in final)

    await router.retry(attempt, timeout_ms=timeout_ms, final=final)
    return found


async def request_offsets(
    router: Router,
    specs: Mapping[TopicPartition, int],
    take: Callable[[Mapping[TopicPartition, OffsetAt]], None],
    *,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, KafkaError]:
    """Send one request to every leader; `take` gets each answer as soon as it is there.

    Returns the faults by partition: a partition without a leader, or a node that is gone, does not hold back the other
    answers. Raises KafkaError if no node has metadata.
    """
    await router.ensure_fresh({partition.topic for partition in specs})
    faults: dict[TopicPartition, KafkaError] = {}
    by_leader: dict[BrokerAddress, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, spec in specs.items():
        try:
            by_leader[router.view.leader(partition)][partition] = spec
        except KafkaError as fault:
            faults[partition] = fault

    async def ask(leader: BrokerAddress, wanted: Mapping[TopicPartition, int]) -> None:
        try:
            good, bad = await _ask_leader(router, leader, wanted, isolation_level)
        except KafkaError as fault:
            faults.update(dict.fromkeys(wanted, fault))
        else:
            take(good)
            faults.update(bad)

    await asyncio.gather(*(ask(leader, wanted) for leader, wanted in by_leader.items()))
    for partition in faults:
        router.view.mark_stale(partition.topic)
    return faults


async def _ask_leader(
    router: Router, leader: BrokerAddress, specs: Mapping[TopicPartition, int], isolation_level: int
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
        topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()),
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
