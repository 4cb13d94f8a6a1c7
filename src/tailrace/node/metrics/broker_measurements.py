"""Measurements of a broker: its partitions and their copies, its groups, and the requests that wait.

Looking at many partitions is done in slices, as `node.metrics.measurements` says.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.node.flush_thread import FlushMeasure, FlushThread
from tailrace.replication.in_sync import has_enough_in_sync
from tailrace.replication.outcomes import Traffic
from tailrace.replication.partition import Partition
from tailrace.server.assembly.broker import Broker
from tailrace.server.assembly.replicas import LocalReplicas
from tailrace.server.groups.service import GroupCoordinatorService
from tailrace.server.partitions.log_directory import SetAside
from tailrace.server.partitions.partition_maps import Dormant
from tailrace.server.partitions.scrubber import ScrubMeasure

SLICE = 500
"""Partitions, or topics, that are looked at before requests have their turn."""


class PartitionMeasure(NamedTuple):
    """One log."""

    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    segments: int
    last_stable_offset_lag: int = 0
    """The committed bytes that open transactions hold back from readers of committed data."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationMeasure:
    """Copies: those here of what others lead, and those elsewhere of what is led here."""

    following: int
    max_lag: int
    failed_fetches: int
    failed_partitions: int
    stalled_partitions: int
    repaired: int
    in_repair: int
    set_aside: SetAside
    shrinks: int
    expansions: int
    lost: int
    is_directory_stalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMeasurements:
    """All of it, once."""

    traffic: Traffic
    traffic_by_topic: Mapping[str, Traffic]
    partitions: tuple[PartitionMeasure, ...]
    """At most as many as the setting allows; the other numbers are of all."""
    replicas: ReplicaCounts
    replication: ReplicationMeasure
    groups_by_state: Mapping[str, int] | None
    """None while a coordinator is loading: the number is not known."""
    waiting_fetches: int
    waiting_produces: int
    flushes: FlushMeasure
    scrubs: ScrubMeasure


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The parts of a broker that are looked at."""

    broker: Broker
    flush_thread: FlushThread
    """Of the topics' logs."""
    late_transaction_ms: int
    """After this silence of its producer a transaction should have been ended: transaction.max.timeout.ms and more."""


async def measure_broker(parts: BrokerParts, *, max_partitions: int) -> BrokerMeasurements:
    """Look at everything. Takes turns with the requests."""
    logs = await _measure_partitions(parts, max_partitions)
    broker, fetches = parts.broker, len(parts.broker.polls)
    return BrokerMeasurements(
        traffic=logs.traffic,
        traffic_by_topic=logs.traffic_by_topic,
        partitions=tuple(logs.partitions),
        replicas=logs.replicas,
        replication=_measure_replication(broker.replicas),
        groups_by_state=await _count_groups(broker.coordination.groups),
        waiting_fetches=fetches,
        waiting_produces=len(broker.deadlines) - fetches,
        flushes=parts.flush_thread.measure,
        scrubs=broker.replicas.upkeep.scrubber.measure,
    )


def _measure_replication(replicas: LocalReplicas) -> ReplicationMeasure:
    followers, keeper, repairs = replicas.followers, replicas.keeper, replicas.repairs
    return ReplicationMeasure(
        following=followers.partitions,
        max_lag=followers.max_lag,
        failed_fetches=followers.failed_fetches,
        failed_partitions=followers.failed_partitions,
        stalled_partitions=followers.stalled_partitions,
        repaired=repairs.repaired,
        in_repair=repairs.in_repair,
        set_aside=repairs.set_aside_logs,
        shrinks=keeper.shrinks,
        expansions=keeper.expansions,
        lost=len(replicas.failures.lost_replicas),
        is_directory_stalled=replicas.health.is_stalled,
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
        """An empty one."""
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
            wanted = len(state.replicas) - len(state.adding_replicas)  # those are not expected to be in sync yet
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
        """The traffic of partitions that are deleted by now, some of them since the last slice."""
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


async def _count_groups(coordinators: GroupCoordinatorService) -> Mapping[str, int] | None:
    try:
        hosts = coordinators.active_hosts()
    except KafkaError:
        return None
    counts: Counter[str] = Counter()
    for host in hosts:
        counts.update(str(group.state) for group in host.machine.overview())
        await asyncio.sleep(0)
    return counts
