"""Topics that an administrator makes and deletes; see `AsyncAdmin`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_GRACE_MS = 5_000
"""The margin of an answer beyond the time that the server was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1: the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] | None = None
    assignments: Mapping[int, Sequence[int]] | None = None
    """Partition -> replicas, in place of the two numbers."""


async def create_topics(router: Router, topics: Iterable[NewTopic], *, timeout_ms: int, validate_only: bool) -> None:
    """Create them all and wait until they can be used. Raises the first topic's KafkaError; the others are created
    nevertheless."""
    wanted = tuple(_creatable(topic) for topic in topics)
    request = CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms, validate_only=validate_only)
    done: set[str] = set()

    async def attempt() -> None:
        connection = await router.controller_connection()
        response = await connection.ask(request, CreateTopicsResponse, timeout_ms=timeout_ms + _GRACE_MS)
        for result in response.topics:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and result.name in done:
                continue  # an earlier attempt made it
            check(result.error_code, result.error_message or f"topic {result.name!r}")
            done.add(result.name)

    await router.retry(attempt)
    if not validate_only:
        await _wait_until_described(router, [topic.name for topic in wanted])


async def _wait_until_described(router: Router, names: Iterable[str]) -> None:
    """A created topic reaches every broker a moment later; callers expect to use it at once."""
    for name in names:
        router.view.mark_stale(name)
        await router.topic(name, allow_auto_create=False, wait_for_unknown=True)


async def delete_topics(router: Router, wanted: tuple[str, ...], *, timeout_ms: int) -> None:
    """Delete them all. Raises the first topic's KafkaError; the others are deleted nevertheless."""

    async def attempt() -> None:
        connection = await router.controller_connection()
        if connection.version_of(DeleteTopicsRequest) >= 6:
            states = tuple(DeleteTopicState(name=name) for name in wanted)
            request = DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
        else:
            request = DeleteTopicsRequest(topic_names=wanted, timeout_ms=timeout_ms)
        response = await connection.ask(request, DeleteTopicsResponse, timeout_ms=timeout_ms + _GRACE_MS)
        for result in response.responses:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            check(result.error_code, result.error_message or f"topic {result.name!r} does not exist")

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    for name in wanted:
        router.view.forget(name)


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
