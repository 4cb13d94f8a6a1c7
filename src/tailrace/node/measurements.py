"""What a node can say about itself, taken from plain numbers that its parts keep anyway.

Nothing here runs while nobody asks. Looking at many partitions is done in slices, so that requests are served between
them; the numbers are therefore not all of one instant.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.net.buffers import BufferPool
from tailrace.net.listener import Listener, ListenerCounts
from tailrace.node.flush_thread import FlushThread
from tailrace.node.handlers import Waiting
from tailrace.node.stall_watch import StallWatch
from tailrace.protocol.registry import APIS
from tailrace.replication.outcomes import Traffic
from tailrace.replication.partition import Partition
from tailrace.server.data.dormant import Dormant
from tailrace.server.data.partitions import PartitionTable
from tailrace.server.dispatch import Dispatcher
from tailrace.server.hosts.coordinator import GroupCoordinators
from tailrace.server.hosts.followers import FollowerHosts
from tailrace.server.hosts.in_sync_keeper import InSyncKeeper
from tailrace.server.hosts.quorum_controller import QuorumController
from tailrace.server.hosts.quorum_measure import QuorumMeasure
from tailrace.storage import OsFiles

_SLICE = 500


class PartitionMeasure(NamedTuple):
    """One log."""

    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    segments: int
    last_stable_offset_lag: int = 0
    """How much of what is safe open transactions hold back from readers of committed data."""


class RequestMeasure(NamedTuple):
    """Requests of one version of an API."""

    api: str
    version: int
    requests: int


class ErrorMeasure(NamedTuple):
    """Answers of an API that said this error."""

    api: str
    error: str
    times: int


@dataclass(slots=True)
class ReplicaCounts:
    """The replicas on this node."""

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_in_sync: int = 0
    offline: int = 0
    producer_ids: int = 0
    """Producers that partitions remember, each time they do."""
    late_transactions: int = 0
    """Partitions whose oldest open transaction should have been ended by its coordinator."""


@dataclass(slots=True)
class ClusterCounts:
    """The cluster, as this node knows it."""

    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    active_brokers: int = 0
    fenced_brokers: int = 0
    is_active_controller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushMeasure:
    """What the flush thread has done since the start."""

    rounds: int
    logs: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StallMeasure:
    """Turns of the event loop that took too long."""

    count: int
    seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationMeasure:
    """Copies: those here of what others lead, and those elsewhere of what is led here."""

    following: int
    max_lag: int
    failed_fetches: int
    failed_partitions: int
    shrinks: int
    expansions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything, once."""

    node_id: int
    requests: tuple[RequestMeasure, ...]
    errors: tuple[ErrorMeasure, ...]
    unsupported_requests: int
    malformed_requests: int
    listeners: Mapping[str, ListenerCounts]
    traffic: Traffic
    traffic_by_topic: Mapping[str, Traffic]
    partitions: tuple[PartitionMeasure, ...]
    """At most as many as the setting allows; the other numbers are of all."""
    replicas: ReplicaCounts
    replication: ReplicationMeasure
    cluster: ClusterCounts
    quorum: QuorumMeasure
    groups_by_state: Mapping[str, int] | None
    """None while a coordinator is loading: nobody knows."""
    waiting_fetches: int
    waiting_produces: int
    flushes: FlushMeasure
    stalls: StallMeasure
    receive_buffer_bytes: int
    open_log_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts of a node that are looked at."""

    broker_id: BrokerId
    dispatcher: Dispatcher
    listeners: tuple[Listener, ...]
    receive_buffers: BufferPool
    partitions: PartitionTable
    followers: FollowerHosts
    keeper: InSyncKeeper
    controller: QuorumController
    coordinators: GroupCoordinators
    waiting: Waiting
    flush_thread: FlushThread
    """Of the topics' logs."""
    metadata_flush_thread: FlushThread
    stalls: StallWatch
    files: OsFiles
    late_transaction_ms: int
    """After this silence of its producer a transaction should have been ended: transaction.max.timeout.ms and more."""


async def measure(parts: NodeParts, *, max_partitions: int) -> Measurements:
    """Look at everything. Takes turns with the requests."""
    logs = await _measure_partitions(parts, max_partitions)
    cluster = await _measure_cluster(parts)
    groups_by_state = await _count_groups(parts.coordinators)
    flush_thread, stalls, dispatcher = parts.flush_thread, parts.stalls, parts.dispatcher
    return Measurements(
        node_id=parts.broker_id,
        requests=tuple(RequestMeasure(api.name, version, count) for api, version, count in dispatcher.request_counts()),
        errors=tuple(
            ErrorMeasure(APIS[key].name, _error_name(code), count)
            for (key, code), count in sorted(dispatcher.errors.counts.items())
        ),
        unsupported_requests=dispatcher.unsupported,
        malformed_requests=dispatcher.malformed,
        listeners={listener.name: listener.counts for listener in parts.listeners},
        traffic=logs.traffic,
        traffic_by_topic=logs.traffic_by_topic,
        partitions=tuple(logs.partitions),
        replicas=logs.replicas,
        replication=_measure_replication(parts),
        cluster=cluster,
        quorum=parts.controller.measure(),
        groups_by_state=groups_by_state,
        waiting_fetches=parts.waiting.fetches,
        waiting_produces=parts.waiting.produces,
        flushes=FlushMeasure(
            rounds=flush_thread.rounds_done, logs=flush_thread.flushes_done, seconds=flush_thread.busy_seconds
        ),
        stalls=StallMeasure(count=stalls.count, seconds=stalls.seconds, longest_seconds=stalls.longest_seconds),
        receive_buffer_bytes=parts.receive_buffers.in_use_bytes,
        open_log_files=parts.files.open_files,
    )


def _measure_replication(parts: NodeParts) -> ReplicationMeasure:
    followers, keeper = parts.followers, parts.keeper
    return ReplicationMeasure(
        following=followers.partitions,
        max_lag=followers.max_lag,
        failed_fetches=followers.failed_fetches,
        failed_partitions=followers.failed_partitions,
        shrinks=keeper.shrinks,
        expansions=keeper.expansions,
    )


class _Logs:
    """What has been seen of the partitions so far."""

    def __init__(self, departed: Traffic, most: int, *, now_ms: int, late_ms: int) -> None:
        self._most = most
        self._now_ms = now_ms
        self._late_ms = late_ms
        self.traffic = departed
        self.traffic_by_topic: dict[str, Traffic] = {}
        self.partitions: list[PartitionMeasure] = []
        self.replicas = ReplicaCounts()

    def add_dormant(self, partition: TopicPartition, dormant: Dormant, broker_id: BrokerId) -> None:
        """One that nobody has used yet."""
        if len(self.traffic_by_topic) < self._most:
            self.traffic_by_topic.setdefault(partition.topic, Traffic())
        self._count(dormant.state, dormant.config, is_leader=dormant.state.leader == broker_id)
        if len(self.partitions) < self._most:
            log = dormant.log
            self.partitions.append(
                PartitionMeasure(
                    *partition, log.size_bytes, log.log_start_offset, log.log_end_offset, len(log.segments)
                )
            )

    def _count(self, state: PartitionState | None, config: TopicConfig, *, is_leader: bool) -> None:
        replicas = self.replicas
        replicas.partitions += 1
        if is_leader and state is not None:
            replicas.leaders += 1
            replicas.under_replicated += len(state.in_sync_replicas) < len(state.replicas)
            replicas.under_min_in_sync += len(state.in_sync_replicas) < config.min_insync_replicas

    def add(self, partition: Partition) -> None:
        topic, number = partition.topic_partition
        log = partition.log
        traffic = partition.traffic
        self.traffic = self.traffic.plus(traffic)
        by_topic = self.traffic_by_topic
        if topic in by_topic or len(by_topic) < self._most:
            by_topic[topic] = by_topic.get(topic, Traffic()).plus(traffic)
        self._count(partition.state, partition.config, is_leader=partition.is_leader)
        self.replicas.producer_ids += len(log.producers)
        self.replicas.late_transactions += log.producers.has_late_transaction(self._now_ms, late_ms=self._late_ms)
        if len(self.partitions) < self._most:
            self.partitions.append(
                PartitionMeasure(
                    topic,
                    number,
                    log.size_bytes,
                    log.log_start_offset,
                    log.log_end_offset,
                    log.segment_count,
                    partition.high_watermark - partition.last_stable_offset,
                )
            )


async def _measure_partitions(parts: NodeParts, max_partitions: int) -> _Logs:
    table, broker_id = parts.partitions, parts.broker_id
    now_ms = time.time_ns() // 1_000_000
    logs = _Logs(table.departed_traffic, max_partitions, now_ms=now_ms, late_ms=parts.late_transaction_ms)
    logs.replicas.offline = table.offline_count
    for index, partition in enumerate(table):
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        if not partition.is_closed:
            logs.add(partition)
    for index, (name, dormant) in enumerate(table.dormant):
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        logs.add_dormant(name, dormant, broker_id)
    return logs


async def _measure_cluster(parts: NodeParts) -> ClusterCounts:
    image = parts.controller.image
    counts = ClusterCounts(
        topics=len(image.topics),
        active_brokers=sum(broker.is_alive for broker in image.brokers.values()),
        fenced_brokers=sum(broker.fenced for broker in image.brokers.values()),
        is_active_controller=parts.controller.leader_id == parts.broker_id,
    )
    for index, topic in enumerate(image.topics.values()):
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        counts.partitions += len(topic.partitions)
        counts.offline_partitions += sum(state.leader == NO_LEADER for state in topic.partitions.values())
    return counts


async def _count_groups(coordinators: GroupCoordinators) -> Mapping[str, int] | None:
    try:
        hosts = coordinators.active_hosts()
    except KafkaError:
        return None
    counts: Counter[str] = Counter()
    for host in hosts:
        counts.update(str(group.state) for group in host.machine.overview())
        await asyncio.sleep(0)
    return counts


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
