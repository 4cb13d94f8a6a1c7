"""Changes of topics and settings that exist; see `AsyncAdmin`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import check, code_of
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

BROKER = 4
"""The resource type; its settings are changed at the broker itself."""

_SET, _DELETE = 0, 1

_GRACE_MS = 5_000
"""The margin of an answer beyond the time that the server was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """The total number of partitions that a topic is to have; perhaps with the replicas of each new one."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


async def create_partitions(
    router: Router, topics: Mapping[str, MorePartitions], *, timeout_ms: int, validate_only: bool
) -> None:
    """Add partitions to these topics. Raises the first topic's KafkaError; the others get theirs nevertheless."""
    pending = {name: _more_partitions(name, wanted) for name, wanted in topics.items()}

    async def attempt() -> None:
        connection = await router.controller_connection()
        request = CreatePartitionsRequest(
            topics=tuple(pending.values()), timeout_ms=timeout_ms, validate_only=validate_only
        )
        response = await connection.ask(request, CreatePartitionsResponse, timeout_ms=timeout_ms + _GRACE_MS)
        for result in response.results:
            if not result.error_code:
                pending.pop(result.name, None)
        for result in response.results:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            check(result.error_code, result.error_message or f"topic {result.name!r} does not exist")

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    if not validate_only:
        await router.retry(lambda: _look_for_partitions(router, topics))


async def _look_for_partitions(router: Router, topics: Mapping[str, MorePartitions]) -> None:
    """New partitions reach every broker a moment later; callers expect to use them at once."""
    for name, wanted in topics.items():
        router.view.mark_stale(name)
        if len((await router.topic(name)).partitions) < wanted.total:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} does not show its new partitions yet")


def _more_partitions(name: str, wanted: MorePartitions) -> CreatePartitionsTopic:
    assignments = None
    if wanted.assignments is not None:
        assignments = tuple(CreatePartitionsAssignment(broker_ids=tuple(each)) for each in wanted.assignments)
    return CreatePartitionsTopic(name=name, count=wanted.total, assignments=assignments)


async def alter_configs(
    router: Router, resource_type: int, name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Change settings of one topic or broker; None takes a setting back to its default. All of them or none."""
    configs = tuple(
        IncrementallyAlterableConfig(name=setting, config_operation=_DELETE if value is None else _SET, value=value)
        for setting, value in changes.items()
    )
    resource = IncrementalAlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)

    async def attempt() -> None:
        if resource_type == BROKER and name:
            connection = await router.node_connection(int(name))
        else:
            connection = await router.any_connection()
        response = await connection.ask(request, IncrementalAlterConfigsResponse, timeout_ms=router.request_timeout_ms)
        (result,) = response.responses
        check(result.error_code, result.error_message or f"the settings of {name!r} cannot be changed")

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))


async def delete_records(
    router: Router, offsets: Mapping[TopicPartition, int], *, timeout_ms: int
) -> dict[TopicPartition, int]:
    """Give up all records below these offsets (-1: below the high watermark); where each log starts then.

    Raises the first partition's KafkaError; the others are shortened nevertheless.
    """
    starts: dict[TopicPartition, int] = {}

    async def attempt() -> None:
        pending = {partition: offset for partition, offset in offsets.items() if partition not in starts}
        await router.ensure_fresh({partition.topic for partition in pending})
        by_leader: dict[BrokerAddress, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, offset in pending.items():
            by_leader[router.view.leader(partition)][partition] = offset
        faults: list[KafkaError] = []
        for leader, wanted in by_leader.items():
            faults += await _delete_at(router, leader, wanted, timeout_ms, starts)
        if faults:
            raise faults[0]

    await router.retry(attempt, timeout_ms=timeout_ms, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    return starts


async def _delete_at(
    router: Router,
    leader: BrokerAddress,
    offsets: Mapping[TopicPartition, int],
    timeout_ms: int,
    starts: dict[TopicPartition, int],
) -> list[KafkaError]:
    by_topic: dict[str, list[DeleteRecordsPartition]] = defaultdict(list)
    for partition, offset in offsets.items():
        by_topic[partition.topic].append(DeleteRecordsPartition(partition_index=partition.partition, offset=offset))
    topics = tuple(DeleteRecordsTopic(name=name, partitions=tuple(wanted)) for name, wanted in by_topic.items())
    connection = await router.broker_connection(leader)
    request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
    response = await connection.ask(request, DeleteRecordsResponse, timeout_ms=timeout_ms + _GRACE_MS)
    faults = []
    for topic in response.topics:
        for result in topic.partitions:
            partition = TopicPartition(topic.name, result.partition_index)
            if result.error_code:
                router.view.mark_stale(topic.name)
                detail = f"the records of {partition} below {offsets[partition]} cannot be deleted"
                faults.append(KafkaError(code_of(result.error_code), detail))
            else:
                starts[partition] = result.low_watermark
    return faults
