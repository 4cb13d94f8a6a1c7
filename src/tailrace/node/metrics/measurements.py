"""Measurements of a node, taken from plain numbers that its parts keep anyway.

Nothing here runs without a scrape. Long walks are done in slices, so that requests are served between them; the numbers
are therefore not all of one instant. Those of brokers alone are in `node.metrics.broker_measurements`.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER
from tailrace.net.buffers import BufferPool
from tailrace.net.listener import Listener, ListenerCounts
from tailrace.node.flush_thread import FlushMeasure, FlushThread
from tailrace.node.hang_watch import StallWatch
from tailrace.node.metrics.broker_measurements import SLICE, BrokerMeasurements, BrokerParts, measure_broker
from tailrace.protocol.registry import APIS
from tailrace.server.dispatch import Dispatcher
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.measure import QuorumMeasure
from tailrace.storage import OsFiles


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
class ClusterCounts:
    """The cluster, as this node knows it."""

    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    active_brokers: int = 0
    fenced_brokers: int = 0
    is_active_controller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StallMeasure:
    """Turns of the event loop that took too long."""

    count: int
    seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything, once."""

    node_id: int
    requests: tuple[RequestMeasure, ...]
    errors: tuple[ErrorMeasure, ...]
    unsupported_requests: int
    malformed_requests: int
    listeners: Mapping[str, ListenerCounts]
    cluster: ClusterCounts
    quorum: QuorumMeasure
    metadata_flushes: FlushMeasure
    stalls: StallMeasure
    receive_buffer_bytes: int
    open_log_files: int
    broker: BrokerMeasurements | None
    """None of a node that is only a controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts of a node that are looked at."""

    node_id: int
    dispatchers: tuple[Dispatcher, ...]
    """Of the clients' listeners and of the controllers'; their requests are counted together, as Kafka does."""
    listeners: tuple[Listener, ...]
    receive_buffers: BufferPool
    controller: QuorumController
    metadata_flush_thread: FlushThread
    stalls: StallWatch
    files: OsFiles
    broker: BrokerParts | None = None

    @property
    def flush_threads(self) -> tuple[FlushThread, ...]:
        if self.broker is None:
            return (self.metadata_flush_thread,)
        return (self.broker.flush_thread, self.metadata_flush_thread)


async def measure(parts: NodeParts, *, max_partitions: int) -> Measurements:
    """Look at everything. Takes turns with the requests."""
    broker = None if parts.broker is None else await measure_broker(parts.broker, max_partitions=max_partitions)
    cluster = await _measure_cluster(parts)
    stalls, dispatchers = parts.stalls, parts.dispatchers
    return Measurements(
        node_id=parts.node_id,
        requests=_count_requests(dispatchers),
        errors=_count_errors(dispatchers),
        unsupported_requests=sum(each.unsupported for each in dispatchers),
        malformed_requests=sum(each.malformed for each in dispatchers),
        listeners={listener.name: listener.counts for listener in parts.listeners},
        cluster=cluster,
        quorum=parts.controller.measure(),
        metadata_flushes=parts.metadata_flush_thread.measure,
        stalls=StallMeasure(count=stalls.count, seconds=stalls.seconds, longest_seconds=stalls.longest_seconds),
        receive_buffer_bytes=parts.receive_buffers.in_use_bytes,
        open_log_files=parts.files.open_files,
        broker=broker,
    )


def _count_requests(dispatchers: Iterable[Dispatcher]) -> tuple[RequestMeasure, ...]:
    counts: Counter[tuple[str, int]] = Counter()
    for dispatcher in dispatchers:
        for api, version, count in dispatcher.request_counts():
            counts[api.name, version] += count
    return tuple(RequestMeasure(api, version, count) for (api, version), count in counts.items())


def _count_errors(dispatchers: Iterable[Dispatcher]) -> tuple[ErrorMeasure, ...]:
    counts: Counter[tuple[int, int]] = Counter()
    for dispatcher in dispatchers:
        counts.update(dispatcher.errors.counts)
    return tuple(
        ErrorMeasure(APIS[key].name, _error_name(code), count) for (key, code), count in sorted(counts.items())
    )


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
        counts.offline_partitions += sum(state.leader == NO_LEADER for state in topic.partitions.values())
    return counts


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
