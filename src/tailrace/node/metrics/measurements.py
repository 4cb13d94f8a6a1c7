"""Measurements that need a walk: over partitions, topics, groups. `page` reads all other numbers directly from the
parts of the node.

The walks run only at a scrape, in slices, so that requests are served between two slices. Therefore the numbers do not
belong to a single instant.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.net.buffers import BufferPool
from tailrace.net.listener import Listener
from tailrace.node.audit.node_audit import NodeAudit
from tailrace.node.certificate_watch import CertificateWatch
from tailrace.node.event_loop import StallWatch
from tailrace.node.flush_thread import FlushThread
from tailrace.node.metrics.group_lags import measure_lags
from tailrace.replication.in_sync import has_enough_in_sync
from tailrace.replication.outcomes import Traffic
from tailrace.replication.partition import Partition
from tailrace.server.assembly.broker import Broker
from tailrace.server.authentication.gate import Gate
from tailrace.server.dispatch import Dispatcher
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.partitions.partition_maps import Dormant
from tailrace.server.quorum.controller import QuorumController
from tailrace.storage import OsFiles

SLICE = 500
"""The partitions, or topics, that are measured before requests have their turn."""


class PartitionMeasure(NamedTuple):
    """Numbers of a log."""

    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    segments: int
    last_stable_offset_lag: int = 0
    """The committed offsets that open transactions hold back from readers of committed data."""


@dataclass(slots=True)
class ReplicaCounts:
    """The replicas on this node."""

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_in_sync: int = 0
    offline: int = 0
    producer_ids: int = 0
    """The number of producer ids, summed over partitions: a producer counts once for each partition."""
    late_transactions: int = 0
    """The number of partitions whose oldest open transaction should already have been ended by its coordinator."""


MOST_RANGED: Final = 1_000


class RangedProgressMeasure(NamedTuple):
    """The progress of a group in a partition with committed ranges (KIP-X)."""

    group: str
    topic: str
    partition: int
    stable_offset: int
    ahead: int
    """About the number of done records beyond the stable offset."""
    ranges: int
    standing_ms: int
    """The time for which the stable offset has not moved."""


class IndexWork(NamedTuple):
    """The work on key indexes that readers of views wait for (KIP-X)."""

    partitions: int
    left_bytes: int
    """The bytes of these partitions whose keys were not looked at yet, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMeasurements:
    """The walks over a broker at one scrape."""

    traffic: Traffic
    traffic_by_topic: Mapping[str, Traffic]
    partitions: tuple[PartitionMeasure, ...]
    """Measurements of single partitions, at most as many as the setting allows; the other numbers count every
    partition."""
    replicas: ReplicaCounts
    groups_by_state: Mapping[str, int] | None
    """The number of groups in each state; None while a coordinator is loading, as the numbers are not known."""
    ranged_progress: tuple[RangedProgressMeasure, ...]
    """The progress of groups with committed ranges, at most MOST_RANGED measurements."""
    lags: Mapping[tuple[str, str], int]
    """The records that a group has not done in a topic or view, by both names."""
    index_work: IndexWork


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The parts of a broker that are measured."""

    broker: Broker
    flush_thread: FlushThread
    """The thread that flushes the topics' logs."""
    late_transaction_ms: int
    """After this silence of its producer a transaction should have been ended: transaction.max.timeout.ms and more."""


async def measure_broker(parts: BrokerParts, *, max_partitions: int) -> BrokerMeasurements:
    """Walk over the broker. Takes turns with the requests."""
    logs = await _measure_partitions(parts, max_partitions)
    groups = parts.broker.coordination.groups
    return BrokerMeasurements(
        traffic=logs.traffic,
        traffic_by_topic=logs.traffic_by_topic,
        partitions=tuple(logs.partitions),
        replicas=logs.replicas,
        groups_by_state=await _count_groups(groups),
        ranged_progress=await _measure_ranged(groups),
        lags=await measure_lags(groups, parts.broker.group_lags),
        index_work=await _measure_index_work(parts.broker),
    )


class _Logs:
    """The sums over the partitions so far."""

    def __init__(self, most: int, *, now_ms: int, late_ms: int) -> None:
        self._most = most
        self._now_ms = now_ms
        self._late_ms = late_ms
        self.traffic = Traffic()
        self._counted: list[tuple[Partition, Traffic]] = []
        self.traffic_by_topic: dict[str, Traffic] = {}
        self.partitions: list[PartitionMeasure] = []
        self.replicas = ReplicaCounts()

    def add_dormant(self, partition: TopicPartition, dormant: Dormant, broker_id: BrokerId) -> None:
        """Add a dormant partition, whose log is closed."""
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
            wanted = len(state.replicas) - len(state.adding_replicas)  # an added replica lags at first
            replicas.under_replicated += len(state.in_sync_replicas) < wanted
            replicas.under_min_in_sync += not has_enough_in_sync(
                in_sync=state.in_sync_replicas,
                replicas=state.replicas,
                min_insync_replicas=config.min_insync_replicas,
            )

    def add(self, partition: Partition) -> None:
        topic, number = partition.topic_partition
        log = partition.log
        self.replicas.offline += log.is_offline
        traffic = partition.traffic
        self.traffic = self.traffic.plus(traffic)
        self._counted.append((partition, traffic))
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

    def add_departed(self, departed: Traffic) -> None:
        """Add the traffic of deleted partitions, some of which were deleted since the last slice."""
        for partition, traffic in self._counted:
            if partition.is_closed:
                self.traffic = self.traffic.minus(traffic)
        self.traffic = self.traffic.plus(departed)


async def _measure_partitions(parts: BrokerParts, max_partitions: int) -> _Logs:
    table = parts.broker.partitions
    now_ms = time.time_ns() // 1_000_000
    logs = _Logs(max_partitions, now_ms=now_ms, late_ms=parts.late_transaction_ms)
    logs.replicas.offline = len(table.offline)
    for index, partition in enumerate(table):
        if index % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        if not partition.is_closed:
            logs.add(partition)
    logs.add_departed(table.departed_traffic)
    for index, (name, dormant) in enumerate(table.dormant):
        if index % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        logs.add_dormant(name, dormant, parts.broker.config.broker_id)
    return logs


async def _measure_ranged(coordinators: GroupCoordinatorService) -> tuple[RangedProgressMeasure, ...]:
    """Measure committed ranges. Ranges are decoded for one partition at a time, and requests have their turn in
    between."""
    measured: list[RangedProgressMeasure] = []
    try:
        hosts = coordinators.active_hosts()
    except KafkaError:
        return ()
    for host in hosts:
        for group_id in tuple(host.machine.committed.groups):
            for partition, progress, standing_ms in host.ranged_progress(group_id):
                measured.append(
                    RangedProgressMeasure(
                        group_id,
                        *partition,
                        progress.stable_offset,
                        progress.ahead,
                        progress.rectangle_count,
                        standing_ms,
                    )
                )
                if len(measured) >= MOST_RANGED:
                    return tuple(measured)
                await asyncio.sleep(0)
        await asyncio.sleep(0)
    return tuple(measured)


async def _measure_index_work(broker: Broker) -> IndexWork:
    partitions = [found for found in broker.readable_views.reads.ends.incomplete if not found.is_closed]
    left_bytes = 0
    for partition in partitions:
        left_bytes += partition.log.keys.left_bytes
        await asyncio.sleep(0)
    return IndexWork(len(partitions), left_bytes)


async def _count_groups(coordinators: GroupCoordinatorService) -> Mapping[str, int] | None:
    try:
        hosts = coordinators.active_hosts()
    except KafkaError:
        return None
    counts: Counter[str] = Counter()
    for host in hosts:
        counts.update(group.group_state for group in host.machine.reports.overview())
        await asyncio.sleep(0)
    return counts


@dataclass(slots=True)
class ClusterCounts:
    """The cluster in this node's image."""

    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    imbalanced_partitions: int = 0
    """The number of partitions that are not led by their first replica."""
    active_brokers: int = 0
    fenced_brokers: int = 0
    is_active_controller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The walks over a node at one scrape."""

    cluster: ClusterCounts
    broker: BrokerMeasurements | None
    """None for a node that is only a controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts of a node that are measured."""

    node_id: int
    dispatchers: tuple[Dispatcher, ...]
    """The dispatchers of the clients' and the controllers' listeners; their requests are counted together, as in
    Kafka."""
    listeners: tuple[Listener, ...]
    receive_buffers: BufferPool
    controller: QuorumController
    metadata_flush_thread: FlushThread
    stalls: StallWatch
    certificates: CertificateWatch
    files: OsFiles
    gates: Mapping[str, Gate]
    """The gates of listeners with SASL, by the name of the listener."""
    audit: NodeAudit
    broker: BrokerParts | None
    """None for a node that is only a controller."""

    @property
    def flush_threads(self) -> tuple[FlushThread, ...]:
        if self.broker is None:
            return (self.metadata_flush_thread,)
        return (self.broker.flush_thread, self.metadata_flush_thread)


async def measure(parts: NodeParts, *, max_partitions: int) -> Measurements:
    """Walk over the node. Takes turns with the requests."""
    broker = None if parts.broker is None else await measure_broker(parts.broker, max_partitions=max_partitions)
    return Measurements(cluster=await _measure_cluster(parts), broker=broker)


async def _measure_cluster(parts: NodeParts) -> ClusterCounts:
    image = parts.controller.image
    counts = ClusterCounts(
        topics=len(image.topics),
        active_brokers=sum(broker.is_alive for broker in image.brokers.values()),
        fenced_brokers=sum(broker.fenced for broker in image.brokers.values()),
        is_active_controller=parts.controller.leader_id == parts.node_id,
    )
    for index, topic in enumerate(image.topics.values()):
        if index % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        counts.partitions += len(topic.partitions)
        for state in topic.partitions.values():
            counts.offline_partitions += state.leader == NO_LEADER
            counts.imbalanced_partitions += state.leader != state.replicas[0]
    return counts
