"""Elections of leaders, and reassignments of replicas."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.client.admin.topics import describe_topics
from tailrace.client.errors import check, code_of
from tailrace.client.partition_names import ByPartition, Pair, by_partition, partitions_named
from tailrace.client.router import GRACE_MS, Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from tailrace.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)

_ANY = -1
_FIRST_WITH_TAGGED_FIELDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """The replicas of a partition while they move."""

    replicas: tuple[BrokerId, ...]
    """Replicas that stay, replicas being added, and replicas being removed."""
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]


async def elect_leaders(
    router: Router,
    partitions: Iterable[Pair] | None = None,
    *,
    election_type: ElectionType = ElectionType.PREFERRED,
    desired_leaders: ByPartition[int] | None = None,
    timeout_ms: int = 30_000,
) -> dict[TopicPartition, KafkaError | None]:
    """Elect leaders. Returns None or the error for each partition. Without `partitions`, leaders are elected wherever
    an election is needed, and no other partition is in the result.

    `desired_leaders` names the new leaders of an unclean election. Records that a named replica does not have are lost,
    and records behind damage in its log too. Apache Kafka takes no names: it elects any replica.

    Raises KafkaError if the request fails as a whole.
    """
    wanted = None if partitions is None else _by_topic(dict.fromkeys(partitions_named(partitions)))
    leaders = by_partition(desired_leaders or {})
    topics = None
    if wanted is not None:
        topics = tuple(
            ElectLeadersTopic(topic=topic, partitions=indexes, desired_leaders=_desired(leaders, topic, indexes))
            for topic, indexes in wanted.items()
        )
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=topics, timeout_ms=timeout_ms)

    async def attempt() -> dict[TopicPartition, KafkaError | None]:
        connection = await router.controller_connection()
        if election_type is not ElectionType.PREFERRED and connection.version_of(ElectLeadersRequest) < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this cluster elects preferred leaders only (KIP-460)")
        if desired_leaders and connection.version_of(ElectLeadersRequest) < _FIRST_WITH_TAGGED_FIELDS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this cluster does not elect replicas that are named")
        response = await connection.ask(request, ElectLeadersResponse, timeout_ms=timeout_ms + GRACE_MS)
        results = [
            (TopicPartition(topic.topic, each.partition_id), each)
            for topic in response.replica_election_results
            for each in topic.partition_result
        ]
        codes = {response.error_code, *(each.error_code for _, each in results)}
        if ErrorCode.NOT_CONTROLLER in codes:
            await router.refresh(())
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has moved")
        check(response.error_code, "no leaders can be elected")
        return {
            where: _fault(each.error_code, each.error_message or f"no leader of {where} was elected")
            for where, each in results
        }

    return await router.retry(attempt)


def _desired(leaders: Mapping[TopicPartition, int], topic: str, indexes: tuple[int, ...]) -> tuple[int, ...]:
    if not any(TopicPartition(topic, index) in leaders for index in indexes):
        return ()
    return tuple(leaders.get(TopicPartition(topic, index), _ANY) for index in indexes)


def _fault(number: int, detail: str) -> KafkaError | None:
    return KafkaError(code_of(number), detail) if number else None


async def alter_partition_reassignments(
    router: Router,
    replicas_of: ByPartition[Sequence[int] | None],
    *,
    allows_replication_factor_change: bool = True,
    timeout_ms: int = 30_000,
) -> None:
    """Begin to move partitions to these replicas, the preferred leader first; None instead of replicas cancels a move
    under way.

    Raises the first partition's KafkaError; the other partitions move nevertheless.
    """
    replicas = by_partition(replicas_of)
    topics = tuple(
        ReassignableTopic(
            name=topic,
            partitions=tuple(
                ReassignablePartition(
                    partition_index=index, replicas=_broker_ids(replicas[TopicPartition(topic, index)])
                )
                for index in indexes
            ),
        )
        for topic, indexes in _by_topic(replicas).items()
    )
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        allow_replication_factor_change=allows_replication_factor_change,
        topics=topics,
    )

    async def attempt() -> None:
        connection = await router.controller_connection()
        if not allows_replication_factor_change and connection.version_of(type(request)) < 1:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "this cluster has no option to keep the number of replicas (KIP-860)"
            )
        response = await connection.ask(request, AlterPartitionReassignmentsResponse, timeout_ms=timeout_ms + GRACE_MS)
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            await router.refresh(())
        check(response.error_code, response.error_message or "no replicas can be moved")
        for topic in response.responses:
            for each in topic.partitions:
                check(each.error_code, each.error_message or _why(each.error_code, topic.name, each.partition_index))

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))


def _why(number: int, topic: str, index: int) -> str:
    if number == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
        return f"no replicas of {topic}-{index} are being moved"
    return f"the replicas of {topic}-{index} cannot be moved"


def _broker_ids(replicas: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if replicas is None else tuple(replicas)


async def list_partition_reassignments(
    router: Router, partitions: Iterable[Pair] | None = None, *, timeout_ms: int = 30_000
) -> dict[TopicPartition, PartitionReassignment]:
    """The moves under way, of these partitions or of every partition."""
    topics = None
    if partitions is not None:
        topics = tuple(
            ListPartitionReassignmentsTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in _by_topic(dict.fromkeys(partitions_named(partitions))).items()
        )
    request = ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)

    async def attempt() -> dict[TopicPartition, PartitionReassignment]:
        connection = await router.controller_connection()
        response = await connection.ask(request, ListPartitionReassignmentsResponse, timeout_ms=timeout_ms + GRACE_MS)
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            await router.refresh(())
        check(response.error_code, response.error_message or "moves cannot be listed")
        return {
            TopicPartition(topic.name, each.partition_index): PartitionReassignment(
                replicas=tuple(map(BrokerId, each.replicas)),
                adding_replicas=tuple(map(BrokerId, each.adding_replicas)),
                removing_replicas=tuple(map(BrokerId, each.removing_replicas)),
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        found[topic].append(index)
    return {topic: tuple(indexes) for topic, indexes in found.items()}


async def replication_factors(router: Router, partitions: Iterable[Pair]) -> dict[TopicPartition, int]:
    """The number of replicas of each partition. During a move: without the replicas that are being removed."""
    wanted = set(partitions_named(partitions))
    moves = await list_partition_reassignments(router, wanted)
    factors: dict[TopicPartition, int] = {}
    for topic in await describe_topics(router, sorted({where.topic for where in wanted})):
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition)
            if where in wanted:
                # During a move `replicas` has the added replicas already, and the removed ones still.
                leaving = moves[where].removing_replicas if where in moves else ()
                factors[where] = len(partition.replicas) - len(leaving)
    return factors
