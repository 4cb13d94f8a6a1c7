"""A client's metadata of the cluster, and which of it is due for a refresh. Pure: the router sends the requests.

1. The leader of a partition never goes back to an older leader epoch of the same topic id (KIP-320): an answer may
   come from a node that lags behind.
2. A topic is due when it is unknown, stale or too old, or has a partition without a leader, or a partition whose leader
   is not among the brokers any more, as an answer about another topic may show.
3. A topic does not exist if the last answer about the topic says so. Before the first answer nothing is known of the
   topic.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from tailrace.client.errors import code_of
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import FAN_OUTS, parse_view
from tailrace.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic


class AbsentTopic(KafkaError):
    """The last answer of a broker says that the topic, or the partition of the topic, does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A node that serves clients."""

    node_id: BrokerId
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition in the cluster's last description."""

    partition: int
    leader: BrokerId
    """-1 while there is no leader."""
    leader_epoch: LeaderEpoch
    """The leader epoch; -1 from a server that is too old for leader epochs."""
    replicas: tuple[BrokerId, ...]
    in_sync_replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic in the cluster's last description; partitions in order."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]

    def check_number(self, number: int) -> None:
        """Raise AbsentTopic if the topic has no partition of this number."""
        if not 0 <= number < len(self.partitions):
            detail = _absent_partition(self.name, len(self.partitions), number)
            raise AbsentTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def has_every_leader(self) -> bool:
        return all(partition.leader >= 0 for partition in self.partitions)


@dataclass(slots=True)
class _Known:
    info: TopicInfo
    asked_at_ms: int
    is_stale: bool = False
    has_every_leader: bool = False
    """Whether each partition has a leader, and every leader is among the brokers."""


class ClusterView:
    """The brokers, the controller and the topics that the client has requested."""

    def __init__(self, *, max_age_ms: int) -> None:
        self.max_age_ms = max_age_ms
        self._topics: dict[str, _Known] = {}
        self._names: dict[TopicId, str] = {}
        self._faults: dict[str, ErrorCode] = {}
        self.brokers: Mapping[BrokerId, BrokerAddress] = {}
        self.controller_id = BrokerId(-1)
        self.cluster_id: str | None = None
        self.generation = 0
        """A number that changes with each answer: leaders, epochs and brokers may have changed."""
        self.refreshes = 0
        """The number of answers to Metadata requests."""
        self._staleness = 0

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with each answer and each mark: `refresh_due_ms` may give another time then."""
        return self.generation, self._staleness

    def update(self, response: MetadataResponse, now_ms: int) -> None:
        """Apply an answer to Metadata."""
        self.brokers = {
            BrokerId(broker.node_id): BrokerAddress(
                node_id=BrokerId(broker.node_id), host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in response.brokers
        }
        self.controller_id = BrokerId(response.controller_id)
        self.cluster_id = response.cluster_id
        for topic in response.topics:
            if topic.name is not None:
                self._update_topic(topic.name, topic, now_ms)
        for known in self._topics.values():
            known.has_every_leader = all(partition.leader in self.brokers for partition in known.info.partitions)
        self.generation += 1
        self.refreshes += 1

    def _update_topic(self, name: str, topic: MetadataResponseTopic, now_ms: int) -> None:
        if topic.error_code:
            self._faults[name] = code_of(topic.error_code)
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._topics.pop(name, None)
            return
        self._faults.pop(name, None)
        info = _topic_info(name, topic)
        known = self._topics.get(name)
        if known is not None and known.info.topic_id == info.topic_id:
            info = _keep_newer_leaders(known.info, info)
        self._topics[name] = _Known(info, now_ms)
        if info.topic_id != ZERO_TOPIC_ID:
            self._names[info.topic_id] = name

    def needs_refresh(self, topics: Iterable[str], now_ms: int) -> list[str]:
        """The topics whose metadata is missing, stale or old."""
        return [name for name in topics if self._is_old(name, now_ms)]

    def _is_old(self, name: str, now_ms: int) -> bool:
        known = self._topics.get(name)
        if known is None or known.is_stale or not known.has_every_leader:
            return True
        return now_ms - known.asked_at_ms >= self.max_age_ms

    def refresh_due_ms(self, topics: Iterable[str]) -> int | None:
        """The time from which `needs_refresh` names a topic, if nothing changes; None: never."""
        due_ms: int | None = None
        for name in topics:
            known = self._topics.get(name)
            if known is None or known.is_stale or not known.has_every_leader:
                return 0
            topic_due_ms = known.asked_at_ms + self.max_age_ms
            due_ms = topic_due_ms if due_ms is None else min(due_ms, topic_due_ms)
        return due_ms

    def mark_stale(self, topic: str) -> None:
        """Refresh this topic before its next use: an answer has shown that its metadata is out of date."""
        known = self._topics.get(topic)
        if known is not None and not known.is_stale:
            known.is_stale = True
            self._staleness += 1

    def is_stale(self, topic: str) -> bool:
        """Whether no answer has described this topic since it was marked stale."""
        known = self._topics.get(topic)
        return known is None or known.is_stale

    def mark_led_by(self, node_id: BrokerId) -> None:
        """Mark the topics stale that this node leads: the node cannot be reached, and other nodes may lead already."""
        for name, known in self._topics.items():
            if any(partition.leader == node_id for partition in known.info.partitions):
                self.mark_stale(name)

    def topic(self, name: str) -> TopicInfo:
        """The topic. Raises KafkaError with the cluster's error code; LEADER_NOT_AVAILABLE before the first answer."""
        known = self._topics.get(name)
        if known is not None:
            return known.info
        code = self._faults.get(name)
        if code is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"no broker has described topic {name!r} yet")
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise AbsentTopic(code, _absence(name))
        raise KafkaError(code, f"topic {name!r} {_REASONS.get(code, 'cannot be described')}")

    def has_answer(self, name: str) -> bool:
        """Whether an answer has described the topic, or has said why it cannot be described."""
        return name in self._topics or name in self._faults

    def missing(self, names: Iterable[str]) -> KafkaError | None:
        """The fault of the first of these topics that the last answer about it could not describe."""
        for name in filter(self.has_answer, names):
            try:
                self.topic(name)
            except KafkaError as fault:
                return fault
        return None

    def find(self, name: str) -> TopicInfo | None:
        """The topic as last described; None without a description."""
        known = self._topics.get(name)
        return None if known is None else known.info

    @property
    def topics(self) -> list[TopicInfo]:
        """Known topics, by name."""
        return [self._topics[name].info for name in sorted(self._topics)]

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names.get(TopicId(topic_id))

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo:
        """The partition. Raises the errors of `topic`, and AbsentTopic if the topic has no such partition; the message
        names the topic's partitions."""
        info = self.topic(topic_partition.topic)
        info.check_number(topic_partition.partition)
        return info.partitions[topic_partition.partition]

    def leader(self, topic_partition: TopicPartition) -> BrokerAddress:
        """The leader. Raises KafkaError(LEADER_NOT_AVAILABLE) while none is known."""
        leader = self.partition(topic_partition).leader
        if leader not in self.brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic_partition} has no leader now")
        return self.brokers[leader]

    def keep_only(self, names: Set[str | None]) -> None:
        """Remove all other topics: a full list of topics has come."""
        for name in [name for name in self._topics if name not in names]:
            self.forget(name)

    def forget(self, topic: str) -> None:
        """Remove a topic whose deletion a broker has confirmed."""
        self._topics.pop(topic, None)
        self._faults[topic] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.generation += 1


_REASONS = {
    ErrorCode.LEADER_NOT_AVAILABLE: "has no leader yet",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "has a name that is not legal",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "may not be described by this user",
}


_NUMBERS: Final = ", ".join(map(str, FAN_OUTS[:-1])) + f" or {FAN_OUTS[-1]}"


def _absence(name: str) -> str:
    """The text about a topic, or view of a topic, that does not exist."""
    view = parse_view(name)
    if view is not None:
        return (
            f"topic {name!r} does not exist: it would be a view of topic {view.topic!r}, which does not exist"
            f" (`tailrace topics create {view.topic}`), has key.ranges.enable=false, or is on a server without views,"
            " such as Apache Kafka"
        )
    topic, mark, number = name.rpartition(".shared-")
    if mark:
        return (
            f"topic {name!r} does not exist: a view of topic {topic!r} has {_NUMBERS} at the end of its name, not"
            f" {number!r} (or `tailrace topics create` makes a topic of this name)"
        )
    return f"topic {name!r} does not exist (`tailrace topics create` makes the topic)"


def _absent_partition(name: str, count: int, number: int) -> str:
    """The text about a partition that the topic or view, which has `count` partitions, does not have."""
    text = f"topic {name!r} has partitions 0 to {count - 1}, not {number}"
    view = parse_view(name)
    if view is None:
        return text
    fan_out = view.fan_out
    return (
        f"{text}: partition p of {view.topic!r} is {fan_out} p to {fan_out} p + {fan_out - 1} of the view, and"
        f" {view.topic!r} has partitions 0 to {count // fan_out - 1}"
    )


def _topic_info(name: str, topic: MetadataResponseTopic) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=name,
        topic_id=TopicId(bytes(topic.topic_id)),
        is_internal=topic.is_internal,
        partitions=tuple(_partition_info(partition) for partition in partitions),
    )


def _partition_info(partition: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        partition=partition.partition_index,
        leader=BrokerId(partition.leader_id),
        leader_epoch=LeaderEpoch(partition.leader_epoch),
        replicas=tuple(map(BrokerId, partition.replica_nodes)),
        in_sync_replicas=tuple(map(BrokerId, partition.isr_nodes)),
        offline_replicas=tuple(map(BrokerId, partition.offline_replicas)),
        error=code_of(partition.error_code),
    )


def _keep_newer_leaders(old: TopicInfo, new: TopicInfo) -> TopicInfo:
    known = {partition.partition: partition for partition in old.partitions}
    merged = []
    for partition in new.partitions:
        before = known.get(partition.partition)
        goes_back = before is not None and 0 <= partition.leader_epoch < before.leader_epoch
        merged.append(before if before is not None and goes_back else partition)
    return replace(new, partitions=tuple(merged))
