"""Topics: created, described, extended and deleted; their oldest records deleted."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from tailrace.client.cluster_view import BrokerAddress, TopicInfo
from tailrace.client.errors import check, code_of
from tailrace.client.names import Names, Several, several
from tailrace.client.partition_names import ByPartition, by_partition
from tailrace.client.router import GRACE_MS, Router
from tailrace.client.setting_fields import alias, resolve_aliases
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create: `NewTopic("orders", 3, 1)`. -1: the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    _: KW_ONLY
    num_partitions: int | None = alias("partitions")
    configs: Mapping[str, str] | None = None
    config: Mapping[str, str] | None = alias("configs")
    topic_configs: Mapping[str, str] | None = alias("configs")
    assignments: Mapping[int, Sequence[int]] | None = None
    """Partition -> replicas, in place of the two numbers."""

    def __post_init__(self) -> None:
        """Raise KafkaError INVALID_CONFIG for two numbers of partitions, TypeError for a wrong type."""
        resolve_aliases(self)
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a topic is a text, not {self.name!r}")
        for word in ("partitions", "replication_factor"):
            number = getattr(self, word)
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"topic {self.name!r}: {word} is a whole number, not {number!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """The number of partitions that a topic gets in total, perhaps with the replicas of each new partition."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


async def create_topics(
    router: Router,
    topics: Several[NewTopic | str] | Mapping[str, int],
    *,
    timeout_ms: int = 30_000,
    validate_only: bool = False,
) -> None:
    """Create the topics and wait until all of them can be used; names and `{name: partitions}` are short forms.

    Raises the first topic's KafkaError; every other topic is created nevertheless. A name alone gets the cluster's
    num.partitions. A topic that is there after an attempt whose answer was lost counts as created by this call if it
    has the wanted partitions, replicas and settings.
    """
    if isinstance(topics, Mapping):
        topics = [NewTopic(name, count) for name, count in topics.items()]
    elif isinstance(topics, NewTopic):
        raise TypeError(f"this takes several topics: say [{topics!r}] for one")
    items: tuple[NewTopic | str, ...] = several(topics)
    wanted = tuple(_creatable(topic if isinstance(topic, NewTopic) else NewTopic(topic)) for topic in items)
    request = CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms, validate_only=validate_only)
    done: set[str] = set()
    is_answer_lost = False

    async def attempt() -> None:
        nonlocal is_answer_lost
        connection = await router.controller_connection()
        try:
            response = await connection.ask(request, CreateTopicsResponse, timeout_ms=timeout_ms + GRACE_MS)
        except KafkaError:
            is_answer_lost = True
            raise
        for result in response.topics:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                if is_answer_lost and result.name not in done:
                    spec = next(spec for spec in wanted if spec.name == result.name)
                    done.update({result.name} if await _is_as_wanted(router, spec) else ())
                if result.name in done:
                    continue  # an earlier attempt created it
            check(result.error_code, result.error_message or f"topic {result.name!r}")
            done.add(result.name)

    await router.retry(attempt)
    if not validate_only:
        await _wait_until_described(router, [topic.name for topic in wanted])


async def _is_as_wanted(router: Router, wanted: CreatableTopic) -> bool:
    """Whether the topic of this name has the partitions, replicas and settings of the request."""
    await _wait_until_described(router, [wanted.name])
    partitions = router.view.topic(wanted.name).partitions
    replicas = {each.partition: tuple(map(int, each.replicas)) for each in partitions}
    from tailrace.client.admin.configs import TOPIC, describe_configs  # for answers that were lost alone

    given = {entry.name: entry.value for entry in await describe_configs(router, TOPIC, wanted.name)}
    return (
        wanted.num_partitions in (-1, len(partitions))
        and (wanted.replication_factor == -1 or {wanted.replication_factor} == set(map(len, replicas.values())))
        and all(replicas.get(each.partition_index) == tuple(each.broker_ids) for each in wanted.assignments)
        and (not wanted.assignments or len(wanted.assignments) == len(partitions))
        and all(given.get(setting.name) == setting.value for setting in wanted.configs)
    )


async def _wait_until_described(router: Router, names: Iterable[str]) -> None:
    """Wait until every broker knows the topics: a created topic reaches every broker a moment later, and callers expect
    to use it at once."""
    for name in names:
        router.view.mark_stale(name)
        await router.topic(name, allow_auto_create=False, wait_for_unknown=True)


def _creatable(topic: NewTopic) -> CreatableTopic:
    if topic.partitions == 0 or topic.partitions < -1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r}: a topic has at least one partition")
    assigned = topic.assignments or {}
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(nodes))
            for index, nodes in sorted(assigned.items())
        ),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in (topic.configs or {}).items()),
    )


async def list_topics(router: Router, *, include_internal: bool = False) -> list[TopicInfo]:
    """List all topics, by name."""
    return await describe_topics(router, include_internal=include_internal)


async def describe_topics(
    router: Router, names: Names | None = None, *, include_internal: bool = False
) -> list[TopicInfo]:
    """The topics of these names in their order, or every topic, sorted by name.

    Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) for a name that does not exist.
    """
    wanted = None if names is None else several(names)
    await router.retry(lambda: router.refresh(wanted, forget_others=wanted is None))
    if wanted is not None:
        return [router.view.topic(name) for name in wanted]
    return [topic for topic in router.view.topics if include_internal or not topic.is_internal]


async def existing_topics(router: Router, names: Names) -> list[TopicInfo]:
    """The topics with these names that exist, in the order of the names; views too, which no list of all topics has."""
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return []
    await router.retry(lambda: router.refresh(wanted))
    found: list[TopicInfo] = []
    for name in wanted:
        try:
            found.append(router.view.topic(name))
        except KafkaError as fault:
            if fault.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return found


async def topic_partitions(router: Router, name: str, numbers: Iterable[int] | None = None) -> list[TopicPartition]:
    """The partitions of the topic: every partition, or the given indexes. Raises
    KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
    (topic,) = await describe_topics(router, [name])
    chosen = range(len(topic.partitions)) if numbers is None else dict.fromkeys(numbers)
    for number in chosen:
        topic.check_number(number)
    return [TopicPartition(name, number) for number in chosen]


async def create_partitions(
    router: Router,
    topics: Mapping[str, int | MorePartitions],
    *,
    timeout_ms: int = 30_000,
    validate_only: bool = False,
) -> None:
    """Add partitions until every topic here has this number in total; wait until the new partitions can be used.

    Raises the first topic's KafkaError; the other topics get their partitions nevertheless.
    """
    wanted = {name: MorePartitions(total=total) if isinstance(total, int) else total for name, total in topics.items()}
    pending = {name: _more_partitions(name, more) for name, more in wanted.items()}

    async def attempt() -> None:
        connection = await router.controller_connection()
        request = CreatePartitionsRequest(
            topics=tuple(pending.values()), timeout_ms=timeout_ms, validate_only=validate_only
        )
        response = await connection.ask(request, CreatePartitionsResponse, timeout_ms=timeout_ms + GRACE_MS)
        for result in response.results:
            if not result.error_code:
                pending.pop(result.name, None)
        for result in response.results:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            check(result.error_code, result.error_message or f"topic {result.name!r} does not exist")

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    if not validate_only:
        await router.retry(lambda: _look_for_partitions(router, wanted))


async def _look_for_partitions(router: Router, topics: Mapping[str, MorePartitions]) -> None:
    """Look for the new partitions: they reach every broker a moment later, and callers expect to use them at once."""
    for name, wanted in topics.items():
        router.view.mark_stale(name)
        if len((await router.topic(name)).partitions) < wanted.total:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} does not show its new partitions yet")


def _more_partitions(name: str, wanted: MorePartitions) -> CreatePartitionsTopic:
    assignments = None
    if wanted.assignments is not None:
        assignments = tuple(CreatePartitionsAssignment(broker_ids=tuple(each)) for each in wanted.assignments)
    return CreatePartitionsTopic(name=name, count=wanted.total, assignments=assignments)


async def delete_topics(router: Router, names: Names, *, timeout_ms: int = 30_000) -> None:
    """Delete the topics. Raises the first topic's KafkaError; every other topic is deleted nevertheless."""
    wanted = several(names)

    async def attempt() -> None:
        connection = await router.controller_connection()
        if connection.version_of(DeleteTopicsRequest) >= 6:
            states = tuple(DeleteTopicState(name=name) for name in wanted)
            request = DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
        else:
            request = DeleteTopicsRequest(topic_names=wanted, timeout_ms=timeout_ms)
        response = await connection.ask(request, DeleteTopicsResponse, timeout_ms=timeout_ms + GRACE_MS)
        for result in response.responses:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            check(result.error_code, result.error_message or f"topic {result.name!r} does not exist")

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    for name in wanted:
        router.view.forget(name)


async def delete_records(
    router: Router, offsets: ByPartition[int], *, timeout_ms: int = 30_000
) -> dict[TopicPartition, int]:
    """Delete the records below these offsets (-1: below the high watermark). Returns the new start of each log.

    Raises the first partition's KafkaError; the records of the other partitions are deleted nevertheless.
    """
    starts: dict[TopicPartition, int] = {}
    wanted = by_partition(offsets)

    async def attempt() -> None:
        pending = {partition: offset for partition, offset in wanted.items() if partition not in starts}
        await router.ensure_fresh({partition.topic for partition in pending})
        by_leader: dict[BrokerAddress, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, offset in pending.items():
            by_leader[router.view.leader(partition)][partition] = offset
        faults: list[KafkaError] = []
        for leader, below in by_leader.items():
            faults += await _delete_at(router, leader, below, timeout_ms, starts)
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
    response = await connection.ask(request, DeleteRecordsResponse, timeout_ms=timeout_ms + GRACE_MS)
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
