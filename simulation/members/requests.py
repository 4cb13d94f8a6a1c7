"""The words between members and a coordinator, as values, and the product's decisions on these words.

A decision is a function of the log: the coordinator is the replay of its records. So decisions are kept.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.client.group.consumer_member import Partitions, TopicIdPartition
from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.commands import CommitOffsets, OffsetToCommit
from tailrace.coordinators.groups.consumer.assignment import Assignment
from tailrace.coordinators.groups.consumer.group import ConsumerGroup, SubscribableTopic
from tailrace.coordinators.groups.consumer.heartbeat import ConsumerHeartbeat, check_heartbeat
from tailrace.coordinators.groups.consumer_records import RegularExpressionValue
from tailrace.coordinators.groups.coordinator import GroupCoordinator
from tailrace.coordinators.groups.events import MemberExpired
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import GroupLogRecord, decode_record, encode_record
from tailrace.coordinators.groups.store import GroupStore
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)

GROUP: Final = "g"
_VERSION: Final = 1
Encoded = tuple[bytes, bytes | None]
EncodedLog = tuple[Encoded, ...]


class HeartbeatSent(NamedTuple):
    """A heartbeat; a heartbeat with epoch -1 or -2 leaves."""

    member: str
    epoch: int
    owned: tuple[TopicIdPartition, ...] | None = None
    is_full: bool = False
    is_withdrawn: bool = False
    instance: str | None = None


class HeartbeatAnswer(NamedTuple):
    """An answer to a heartbeat."""

    code: ErrorCode
    epoch: int = 0
    assigned: Partitions | None = None


class CommitSent(NamedTuple):
    """A commit of a member."""

    member: str
    epoch: int
    offsets: tuple[tuple[TopicIdPartition, int], ...]
    instance: str | None = None


class FixedTopics:
    """The topics of a cluster, with their numbers of partitions."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self.version = 0

    def grow(self, name: str, count: int) -> None:
        """Give the topic more partitions."""
        self.counts[name] = count
        self.version += 1

    @property
    def partitions(self) -> Partitions:
        """Every partition."""
        return frozenset(
            TopicIdPartition(id_of(name), number) for name, count in self.counts.items() for number in range(count)
        )

    def find(self, name: str) -> SubscribableTopic | None:
        count = self.counts.get(name)
        return None if count is None else SubscribableTopic(id_of(name), count)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name in self.counts if id_of(name) == topic_id), None)

    def matches(self, expression: str) -> RegularExpressionValue | None:
        return None

    def described_by(self, principal: str, client_host: str, names: frozenset[str]) -> frozenset[str]:
        return names


@lru_cache(maxsize=64)
def id_of(name: str) -> TopicId:
    """The id of the topic that has this name."""
    return TopicId(name.encode().ljust(16, b"\0"))


@lru_cache(maxsize=64)
def _name_of(topic_id: TopicId) -> str:
    return topic_id.rstrip(b"\0").decode()


# Requests as the product takes them


def heartbeat_command(
    sent: HeartbeatSent, topics: Iterable[str], rebalance_timeout_ms: int, assignor: str | None = None
) -> ConsumerHeartbeat:
    """The command of this heartbeat. Raises KafkaError if the request is malformed."""
    owned = None if sent.owned is None else by_topic(sent.owned)
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=sent.member,
        member_epoch=sent.epoch,
        instance_id=sent.instance,
        rebalance_timeout_ms=rebalance_timeout_ms if sent.is_full else -1,
        subscribed_topic_names=(() if sent.is_withdrawn else tuple(topics)) if sent.is_full else None,
        server_assignor=assignor if sent.is_full else None,
        topic_partitions=owned,
    )
    check_heartbeat(request, _VERSION, max_bytes=1 << 20)
    return ConsumerHeartbeat(request=request, client_id="", client_host="")


def by_topic(partitions: Iterable[TopicIdPartition]) -> tuple[HeartbeatTopicPartitions, ...]:
    """The partitions in the form of a request."""
    topics: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return tuple(HeartbeatTopicPartitions(topic_id=name, partitions=tuple(found)) for name, found in topics.items())


def as_answer(response: ConsumerGroupHeartbeatResponse) -> HeartbeatAnswer:
    """The answer as a value."""
    given = response.assignment
    return HeartbeatAnswer(
        ErrorCode(response.error_code),
        response.member_epoch,
        None if given is None else partitions_of(Assignment.read(given.topic_partitions)),
    )


def commit_command(sent: CommitSent) -> CommitOffsets:
    """The command of this commit."""
    return CommitOffsets(
        group_id=GROUP,
        generation_id=sent.epoch,
        member_id=sent.member,
        group_instance_id=sent.instance,
        offsets=tuple(
            OffsetToCommit(
                topic=_name_of(place.topic_id),
                topic_id=place.topic_id,
                partition=place.partition,
                offset=offset,
                leader_epoch=-1,
                metadata="",
            )
            for place, offset in sent.offsets
        ),
    )


def partitions_of(assignment: Assignment) -> Partitions:
    """The partitions as a set."""
    return frozenset(
        TopicIdPartition(TopicId(topic_id), number) for topic_id, numbers in assignment for number in numbers
    )


# The state that the records make


class GroupView(NamedTuple):
    """The group that a log makes."""

    group: ConsumerGroup | None
    holds: Mapping[str, Partitions]
    """The partitions of each member: assigned, or to be given up and not confirmed."""
    offsets: Mapping[TopicIdPartition, int]

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self.holds)


def view_of_store(store: GroupStore) -> GroupView:
    """The group of these records."""
    stored = store.groups.get(GROUP)
    group = None if stored is None else stored.consumer
    holds = {} if group is None else {name: partitions_of(member.held) for name, member in group.members.items()}
    found = {} if stored is None else stored.offsets
    offsets = {TopicIdPartition(id_of(name.topic), name.partition): value.offset for name, value in found.items()}
    return GroupView(group, holds, offsets)


@lru_cache(maxsize=20_000)
def view_of(log: EncodedLog) -> GroupView:
    """The group of this log."""
    store = GroupStore()
    for record in log:
        store.apply(decoded(record))
    return view_of_store(store)


@lru_cache(maxsize=20_000)
def decoded(record: Encoded) -> GroupLogRecord:
    """The record of these bytes."""
    found = decode_record(*record)
    assert found is not None, "all records are known"
    return found


@lru_cache(maxsize=20_000)
def with_records(log: EncodedLog, records: EncodedLog) -> EncodedLog:
    """The log after these records, as compaction leaves the log, and by key."""
    found = dict(log)
    found.update(records)
    return tuple(sorted((key, value) for key, value in found.items() if value is not None))


# Decisions on a log, for a world whose states are values


class GroupDecided(NamedTuple):
    """A decision: the records, and the answer."""

    answer: HeartbeatAnswer
    records: EncodedLog = ()


class CommitDecided(NamedTuple):
    """A decision on a commit: the records, and the first code."""

    code: ErrorCode
    records: EncodedLog = ()


REBALANCE_TIMEOUT_MS: Final = 1_000


class GroupRules:
    """The decisions of a coordinator whose topics stay as they are. Nothing is ever late: worlds say what times out."""

    def __init__(self, topics: FixedTopics) -> None:
        self.topics = topics
        self.heartbeat = lru_cache(maxsize=100_000)(self._heartbeat)
        self.commit = lru_cache(maxsize=20_000)(self._commit)
        self.removal = lru_cache(maxsize=20_000)(self._removal)

    def _machine(self, log: EncodedLog) -> GroupCoordinator:
        machine = new_machine(GroupConfig(), self.topics)
        for record in log:
            machine.apply(decoded(record))
        return machine

    def _heartbeat(self, log: EncodedLog, sent: HeartbeatSent) -> GroupDecided:
        try:
            command = heartbeat_command(sent, self.topics.counts, REBALANCE_TIMEOUT_MS)
            decision, _ = self._machine(log).heartbeat(command, 0)
        except KafkaError as refusal:
            return GroupDecided(HeartbeatAnswer(refusal.code))
        return GroupDecided(as_answer(decision.response), encoded(decision.records))

    def _commit(self, log: EncodedLog, sent: CommitSent) -> CommitDecided:
        try:
            decision = self._machine(log).decide(commit_command(sent), 0)
        except KafkaError as refusal:
            return CommitDecided(refusal.code)
        return CommitDecided(next(iter(decision.response), ErrorCode.NONE), encoded(decision.records))

    def _removal(self, log: EncodedLog, member: str) -> EncodedLog:
        """The records that remove a member whose session has ended."""
        expired = MemberExpired(group_id=GROUP, member_id=member, reason="silence")
        decision = self._machine(log).remove_expired(expired, 0)
        return () if decision is None else encoded(decision.records)


def new_machine(config: GroupConfig, topics: FixedTopics) -> GroupCoordinator:
    """A coordinator without records."""
    return GroupCoordinator(
        config=config,
        new_member_id=lambda prefix: prefix,
        topics=topics,
        ranged_offsets=RangedOffsets(max_rectangles=config.offsets_max_ranges_per_partition),
    )


def encoded(records: Iterable[GroupLogRecord]) -> EncodedLog:
    """The bytes of the records."""
    return tuple(encode_record(record) for record in records)
