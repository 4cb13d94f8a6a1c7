"""A group's committed offsets: OffsetFetch and OffsetCommit at its coordinator, and commits at intervals."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)


class OffsetAndMetadata(NamedTuple):
    """The next offset that a group will read, with the metadata of its commit."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def exact_offsets(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets with their metadata. Raises TypeError for parts of a wrong kind: other clients have the parts in
    another order."""
    exact = {}
    for name, given in offsets.items():
        at = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        if not (isinstance(at.offset, int) and isinstance(at.leader_epoch, int) and isinstance(at.metadata, str)):
            raise TypeError(
                f"{name}: an offset is a number, or OffsetAndMetadata(offset, leader_epoch=-1, metadata=''), not {at!r}"
            )
        exact[name] = at
    return exact


class ConsumerGroupMetadata(NamedTuple):
    """The author of a commit: a member of a group in its generation; by default a client outside the group."""

    group_id: str = ""
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


OUTSIDE = ConsumerGroupMetadata()

Positions = Mapping[TopicPartition, OffsetAndMetadata]

COMMIT_TIMEOUT_MS = 10_000
"""The longest time for a commit of a consumer, with its retries."""

T = TypeVar("T")

_NO_OFFSET = -1
_LAST_WITH_NAMES = 9
"""From version 10 both requests name topics by id. Names are enough, and outlive a deleted topic's id."""


async def fetch_group_offsets(
    router: Router,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets, of these partitions or of every partition; a partition without a committed offset is left
    out."""
    wanted = None if partitions is None else _by_topic(partitions)

    async def ask(connection: Connection) -> dict[TopicPartition, OffsetAndMetadata]:
        version = min(connection.version_of(OffsetFetchRequest), _LAST_WITH_NAMES)
        if version >= 8:
            request = _request_of_groups(group, wanted, require_stable)
        else:
            request = _request_of_one(group, wanted, require_stable and version >= 7)
        response = await router.ask(connection, request, OffsetFetchResponse, max_version=_LAST_WITH_NAMES)
        return _committed(group, response)

    return await router.ask_coordinator(group, ask, timeout_ms=timeout_ms)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition.partition)
    return {name: tuple(indexes) for name, indexes in topics.items()}


def _request_of_groups(
    group: str, wanted: Mapping[str, tuple[int, ...]] | None, require_stable: bool
) -> OffsetFetchRequest:
    topics = None
    if wanted is not None:
        topics = tuple(OffsetFetchRequestTopics(name=name, partition_indexes=asked) for name, asked in wanted.items())
    asked_group = OffsetFetchRequestGroup(group_id=group, topics=topics)
    return OffsetFetchRequest(groups=(asked_group,), require_stable=require_stable)


def _request_of_one(
    group: str, wanted: Mapping[str, tuple[int, ...]] | None, require_stable: bool
) -> OffsetFetchRequest:
    topics = None
    if wanted is not None:
        topics = tuple(OffsetFetchRequestTopic(name=name, partition_indexes=asked) for name, asked in wanted.items())
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)


def _committed(group: str, response: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
    check(response.error_code, f"offsets of group {group!r}")
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            _take(offsets, TopicPartition(topic.name, partition.partition_index), partition)
    for answer in response.groups:
        check(answer.error_code, f"offsets of group {group!r}")
        for named in answer.topics:
            for entry in named.partitions:
                _take(offsets, TopicPartition(named.name, entry.partition_index), entry)
    return offsets


def _take(
    offsets: dict[TopicPartition, OffsetAndMetadata],
    partition: TopicPartition,
    answer: OffsetFetchResponsePartition | OffsetFetchResponsePartitions,
) -> None:
    check(answer.error_code, f"committed offset of {partition}")
    if answer.committed_offset != _NO_OFFSET:
        offsets[partition] = OffsetAndMetadata(
            answer.committed_offset, answer.committed_leader_epoch, answer.metadata or ""
        )


async def commit_group_offsets(
    router: Router,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member: ConsumerGroupMetadata = OUTSIDE,
    timeout_ms: int | None = None,
) -> None:
    """Commit the offsets. Raises the first partition's KafkaError.

    UNKNOWN_TOPIC_OR_PARTITION is final here, and raised only when all partitions that exist are committed.
    """
    if not offsets:
        return
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for partition, offset in offsets.items():
        topics[partition.topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=tuple(OffsetCommitRequestTopic(name=name, partitions=tuple(each)) for name, each in topics.items()),
    )

    async def ask(connection: Connection) -> KafkaError | None:
        response = await router.ask(connection, request, OffsetCommitResponse, max_version=_LAST_WITH_NAMES)
        absent: KafkaError | None = None
        for topic in response.topics:
            for answer in topic.partitions:
                detail = f"commit of {TopicPartition(topic.name, answer.partition_index)} for group {group!r}"
                if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    absent = absent or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{detail}: it does not exist")
                else:
                    check(answer.error_code, detail)
        return absent

    absent = await router.ask_coordinator(group, ask, timeout_ms=timeout_ms)
    if absent is not None:
        raise absent


async def commit_in_epoch(
    router: Router,
    commit: Callable[[], Awaitable[T]],
    *,
    timeout_ms: int,
    may_repeat: Callable[[], bool] = lambda: True,
) -> T:
    """Send the commit of a member, again while the coordinator refuses the member's epoch: the coordinator has raised
    the epoch, and the answer with the new epoch is on its way (KIP-848). `commit` names the epoch that the member knows
    at its call.

    Raises KafkaError: STALE_MEMBER_EPOCH at the deadline, and when the commit may not be repeated any more.
    """
    deadline_ms = router.now_ms() + timeout_ms
    while True:
        try:
            return await commit()
        except KafkaError as fault:
            pause_ms = router.retry_backoff_ms
            if fault.code is not ErrorCode.STALE_MEMBER_EPOCH or router.now_ms() + pause_ms > deadline_ms:
                raise
            await asyncio.sleep(pause_ms / 1000)
            if not may_repeat():
                raise


class AutoCommit:
    """A commit every `interval_ms` of polling (enable.auto.commit), in a task: reading does not wait for it."""

    def __init__(
        self, router: Router, commit: Callable[[Positions], Awaitable[None]], *, is_on: bool, interval_ms: int
    ) -> None:
        """`commit` makes one attempt."""
        self._router = router
        self._commit = commit
        self.is_on = is_on
        self._interval_ms = interval_ms
        self._next_ms = 0
        self._running: asyncio.Task[None] | None = None

    def start_if_due(self, positions: Callable[[], Positions]) -> None:
        """Begin a commit of these positions if the last commit was long ago. A later commit makes up for a failure."""
        now_ms = self._router.now_ms()
        if not self.is_on or now_ms < self._next_ms or self._running is not None:
            return
        is_first, self._next_ms = self._next_ms == 0, now_ms + self._interval_ms
        if not is_first:
            self._running = asyncio.get_running_loop().create_task(self._commit_once(positions()))

    async def _commit_once(self, positions: Positions) -> None:
        try:
            await self._commit(positions)
        except KafkaError as fault:
            if fault.code.retriable and fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._next_ms = self._router.now_ms() + self._router.retry_backoff_ms
        finally:
            if self._running is asyncio.current_task():
                self._running = None

    async def wait(self) -> None:
        """Wait for the commit under way: its older offsets must not overwrite newer offsets."""
        if self._running is not None:
            await asyncio.wait((self._running,))

    def drop(self) -> None:
        """Cancel the commit under way: it must not follow a commit of all offsets, nor the loss of the partitions."""
        if self._running is not None:
            self._running.cancel()
            self._running = None


def without_group() -> KafkaError:
    """The error of a call that needs a group."""
    return KafkaError(ErrorCode.INVALID_GROUP_ID, "a consumer without a group has no committed offsets")


def not_a_member(group: str | None) -> KafkaError:
    """The error of a commit by a consumer that is out of its group."""
    detail = f"no member of group {group!r} now: others may have read these partitions; the next poll joins again"
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
