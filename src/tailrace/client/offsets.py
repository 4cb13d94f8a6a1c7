"""ListOffsets: the start and end of a partition's log, and the offset of a time, from the leaders."""

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import code_of
from tailrace.client.partition_names import ByPartition, Pair, by_partition, partitions_named
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.net.silence import GivenUp
from tailrace.protocol.messages.list_offsets import (
    EXACT_COUNT,
    NOT_COUNTED,
    UNFINISHED_COUNT,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
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

NO_COUNTS: Mapping[TopicPartition, int] = {}
"""No records are to be counted."""

_CONSUMER = -1
_OF_REPLICA = -2
"""The replica id of a request that any replica answers, not the leader alone (KIP-392)."""


class RecordCount(NamedTuple):
    """The number of records of a view partition from an offset on."""

    records: int
    is_exact: bool
    has_more_steps: bool
    """Whether the answer to the same question will be better."""


class OffsetAt(NamedTuple):
    """An answer of ListOffsets. Offset -1: no record has this timestamp or a later timestamp."""

    offset: int
    timestamp: int
    """ms; -1 for LATEST and EARLIEST."""
    leader_epoch: int
    """The epoch of the record at the offset; the epoch of the leader for LATEST."""
    current_epoch: int = -1
    """The leader epoch in the request, under which the leader has answered; -1 if no epoch was known."""
    record_count: RecordCount | None = None
    """The records up to the end, of a view partition for which a count was wanted."""


class OffsetAndTimestamp(NamedTuple):
    """The first record of a time: its offset, its timestamp in ms since 1970, its leader epoch (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


def milliseconds_of(time: int | datetime) -> int:
    """The time in ms since 1970; a datetime without a zone is local time. Raises KafkaError INVALID_TIMESTAMP.

    A datetime before 1970 counts as 1970: a negative time would stand for an end of the log.
    """
    if isinstance(time, datetime):
        return max(int(time.timestamp() * 1000), 0)
    if not isinstance(time, int) or isinstance(time, bool) or time < 0:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"time {time!r}; say milliseconds since 1970, or a datetime")
    return time


async def list_offsets(
    router: Router,
    specs: ByPartition[int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    timeout_ms: int | None = None,
    count_from: Mapping[TopicPartition, int] = NO_COUNTS,
) -> dict[TopicPartition, OffsetAt]:
    """For each partition the offset that its spec names: LATEST, EARLIEST, MAX_TIMESTAMP, or of a time in ms.

    A time stands for the first record at or after that time. Requests are repeated until `timeout_ms` while a leader
    moves. `count_from` names view partitions whose records from an offset up to LATEST are to be counted. Raises
    KafkaError, UNKNOWN_TOPIC_OR_PARTITION at once for a topic that does not exist.
    """
    found: dict[TopicPartition, OffsetAt] = {}
    wanted = by_partition(specs)
    final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)

    async def attempt() -> None:
        missing = {partition: spec for partition, spec in wanted.items() if partition not in found}
        faults = await request_offsets(
            router, missing, found.update, isolation_level=isolation_level, count_from=count_from
        )
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
    count_from: Mapping[TopicPartition, int] = NO_COUNTS,
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
            good, bad = await _ask(router, leader, wanted, isolation_level, _CONSUMER, count_from)
        except KafkaError as fault:
            faults.update(dict.fromkeys(wanted, fault))
        else:
            take(good)
            faults.update(bad)

    await asyncio.gather(*(ask(leader, wanted) for leader, wanted in by_leader.items()))
    for partition in faults:
        router.view.mark_stale(partition.topic)
    return faults


async def request_end(router: Router, partition: TopicPartition) -> int:
    """The end of the log, as its leader says. Raises KafkaError."""
    found: dict[TopicPartition, OffsetAt] = {}
    faults = await request_offsets(router, {partition: LATEST}, found.update)
    if partition in faults:
        raise faults[partition]
    return found[partition].offset


async def request_log_starts(
    router: Router, node_id: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAt]:
    """The log start of each partition in the replica of this node; a partition that the node refuses is left out."""
    try:
        if node_id not in router.view.brokers:
            return {}
        node = router.view.brokers[BrokerId(node_id)]
        async with GivenUp(f"node {node_id}"):
            good, _ = await _ask(router, node, dict.fromkeys(partitions, EARLIEST), READ_UNCOMMITTED, _OF_REPLICA)
    except KafkaError:
        return {}
    return good


async def _ask(
    router: Router,
    leader: BrokerAddress,
    specs: Mapping[TopicPartition, int],
    isolation_level: int,
    replica_id: int,
    count_from: Mapping[TopicPartition, int] = NO_COUNTS,
) -> tuple[dict[TopicPartition, OffsetAt], dict[TopicPartition, KafkaError]]:
    connection = await router.broker_connection(leader)
    version = connection.version_of(ListOffsetsRequest)
    if version < 7 and MAX_TIMESTAMP in specs.values():
        detail = (
            f"{connection.address} cannot tell the largest timestamp (it needs ListOffsets v7 and offers v{version})"
        )
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    # A leader of another epoch refuses (KIP-320). A follower's answer depends on no leader.
    epochs = {name: router.view.partition(name).leader_epoch if replica_id == _CONSUMER else -1 for name in specs}
    for partition, spec in specs.items():
        topics[partition.topic].append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=epochs[partition],
                timestamp=spec,
                count_from=count_from.get(partition, NOT_COUNTED),
            )
        )
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level if version >= 2 else 0,
        topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()),
    )
    response = await router.ask(connection, request, ListOffsetsResponse)
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
                good[partition] = OffsetAt(
                    answer.offset, answer.timestamp, answer.leader_epoch, epochs.get(partition, -1), _count_in(answer)
                )
    return good, bad


def _count_in(answer: ListOffsetsPartitionResponse) -> RecordCount | None:
    if answer.records < 0:
        return None
    quality = answer.count_quality
    return RecordCount(answer.records, quality == EXACT_COUNT, quality == UNFINISHED_COUNT)


class LogOffsets(ABC):
    """A client that asks the leaders of partitions where their logs begin and end."""

    _router: Router
    _isolation_level: int

    @abstractmethod
    async def close(self) -> None:
        """Finish and close the connections."""

    async def beginning_offsets(self, partitions: Iterable[Pair]) -> dict[TopicPartition, int]:
        """The log starts of any partitions, assigned or not. Raises KafkaError."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[Pair]) -> dict[TopicPartition, int]:
        """The ends of any partitions, assigned or not: the offsets of the next records that will be written, or with
        read_committed the last stable offsets. Raises KafkaError."""
        return await self._offsets(partitions, LATEST)

    async def _offsets(self, partitions: Iterable[Pair], spec: int) -> dict[TopicPartition, int]:
        listed = await self._list_offsets(dict.fromkeys(partitions_named(partitions), spec))
        return {name: found.offset for name, found in listed.items()}

    async def offsets_for_times(
        self, timestamps: ByPartition[int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at this time (ms since 1970, or a datetime) or later, in each partition; None without such
        a record. Raises KafkaError."""
        specs = {name: milliseconds_of(time) for name, time in by_partition(timestamps).items()}
        listed = await self._list_offsets(specs)
        return {
            name: OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch) if found.offset >= 0 else None
            for name, found in listed.items()
        }

    async def partitions_for_topic(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions. Raises KafkaError for a topic that does not exist."""
        return [info.partition for info in (await self._router.topic(topic)).partitions]

    async def _list_offsets(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAt]:
        if not specs:
            return {}
        return await list_offsets(self._router, specs, isolation_level=self._isolation_level)
