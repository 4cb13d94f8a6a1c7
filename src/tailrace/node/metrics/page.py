"""Measurements in the format of Prometheus, under the names that exporters give to Kafka's own metrics.

A metric that Kafka has keeps its name, even if the name does not say the unit: dashboards know the name. Our own
names start with `tailrace_` and say the unit.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tailrace.model import __version__
from tailrace.model.access import SecuredType
from tailrace.model.errors import ErrorCode
from tailrace.net.listener import ListenerCounts
from tailrace.node.metrics.broker_rows import broker_rows
from tailrace.node.metrics.families import Row, count, counter, flush_rounds, gauge, histogram, single
from tailrace.node.metrics.measurements import ClusterCounts, Measurements, NodeParts
from tailrace.protocol.records.kernels import KERNEL
from tailrace.protocol.registry import APIS
from tailrace.server.authentication.gate import GateCounts
from tailrace.server.dispatch import Dispatcher
from tailrace.server.quorum.measure import QuorumMeasure

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_RAFT_STATES = ("unattached", "prospective", "candidate", "follower", "observer", "leader", "resigned")
"""Kafka's names for the roles of a replica of the metadata log."""


def take(parts: NodeParts, walked: Measurements) -> list[Row]:
    """The rows of the page, in their order. Only on the event loop's thread, whose turns change the numbers."""
    return list(_rows(parts, walked))


def render(rows: Iterable[Row]) -> bytes:
    """The page of /metrics. May run on a thread of its own."""
    return generate_latest(_MetricsPage(rows))


class _MetricsPage(Collector):
    """A page, collected once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        for row in self._rows:
            yield row if isinstance(row, Metric) else row()
        yield from ProcessCollector(registry=None).collect()


def _rows(parts: NodeParts, walked: Measurements) -> Iterator[Row]:
    if parts.broker is not None and walked.broker is not None:
        yield from broker_rows(parts.broker, walked.broker)
    yield from _requests(parts.dispatchers)
    yield from _controller(walked.cluster)
    quorum = parts.controller.measure()
    yield from _quorum(quorum)
    yield from _snapshots(quorum)
    yield from _connections(parts)
    yield from _security(parts)
    yield from _work(parts)
    yield gauge(
        "tailrace_build_info",
        "Always 1; what runs here is in the labels.",
        ("version", "python", "kernel", "node"),
        [((__version__, platform.python_version(), KERNEL, str(parts.node_id)), 1)],
    )


def _requests(dispatchers: Iterable[Dispatcher]) -> Iterator[Metric]:
    requests: Counter[tuple[str, int]] = Counter()
    errors: Counter[tuple[int, int]] = Counter()
    for dispatcher in dispatchers:
        for api, version, received in dispatcher.request_counts():
            requests[api.name, version] += received
        errors.update(dispatcher.errors.counts)
    name = "kafka_network_requestmetrics"
    yield counter(
        f"{name}_requests",
        "Requests received.",
        ("request", "version"),
        (((api, str(version)), count) for (api, version), count in requests.items()),
    )
    yield counter(
        f"{name}_errors",
        "Errors in answers; an answer may hold one per partition.",
        ("request", "error"),
        (((APIS[key].name, _error_name(code)), count) for (key, code), count in sorted(errors.items())),
    )
    yield counter(
        "tailrace_requests_refused",
        "Requests that were not carried out: of no API or version that is served, or no request at all.",
        ("reason",),
        [
            (("unsupported",), sum(dispatcher.unsupported for dispatcher in dispatchers)),
            (("malformed",), sum(dispatcher.malformed for dispatcher in dispatchers)),
        ],
    )


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _controller(cluster: ClusterCounts) -> Iterator[Metric]:
    name = "kafka_controller_kafkacontroller"
    yield single(f"{name}_activecontrollercount", "Whether this node is the controller.", cluster.is_active_controller)
    yield single(f"{name}_globaltopiccount", "Topics of the cluster.", cluster.topics)
    yield single(f"{name}_globalpartitioncount", "Partitions of the cluster.", cluster.partitions)
    yield single(f"{name}_offlinepartitionscount", "Partitions without a leader.", cluster.offline_partitions)
    imbalance = "Partitions that are not led by their preferred replica."
    yield single(f"{name}_preferredreplicaimbalancecount", imbalance, cluster.imbalanced_partitions)
    yield single(f"{name}_activebrokercount", "Brokers that may lead.", cluster.active_brokers)
    yield single(f"{name}_fencedbrokercount", "Brokers that are fenced.", cluster.fenced_brokers)


def _quorum(quorum: QuorumMeasure) -> Iterator[Metric]:
    name = "kafka_server_raft_metrics"
    yield gauge(
        f"{name}_current_state",
        "1 for the role of this replica of the metadata log.",
        ("state",),
        [((state,), state == quorum.state) for state in _RAFT_STATES],
    )
    yield single(f"{name}_current_leader", "The leader of the metadata log, or -1.", quorum.leader_id)
    yield single(f"{name}_current_epoch", "The newest epoch known here.", quorum.epoch)
    yield single(f"{name}_current_vote", "The candidate this replica has voted for in it, or -1.", quorum.voted_id)
    yield single(f"{name}_high_watermark", "Everything below is committed; -1: not known.", quorum.high_watermark)
    yield single(f"{name}_log_end_offset", "Where the metadata log ends here.", quorum.log_end_offset)
    yield single(f"{name}_log_end_epoch", "The epoch of its last batch.", quorum.log_end_epoch)
    yield single(f"{name}_number_of_voters", "Voters of the metadata quorum.", quorum.voters)
    yield single("tailrace_metadata_log_start_offset", "Where the metadata log begins here.", quorum.log_start_offset)
    yield single("tailrace_metadata_log_failed", "1: the log is of no use any more.", quorum.has_failed)
    loader = "kafka_server_metadataloader"
    yield single(f"{loader}_currentmetadataversion", "The finalized metadata.version.", quorum.metadata_version)
    yield single(f"{loader}_currentcontrollerid", "The active controller, or -1.", quorum.leader_id)
    yield single(f"{loader}_handleloadsnapshotcount", "Snapshots loaded since the start.", quorum.loaded.count)


def _snapshots(quorum: QuorumMeasure) -> Iterator[Metric]:
    name = "kafka_controller_kafkacontroller"
    yield histogram(
        f"{name}_gensnapshotlatencyms", "Milliseconds that it took to generate a snapshot.", quorum.generated
    )
    yield histogram(f"{name}_loadsnapshotlatencyms", "Milliseconds that it took to load a snapshot.", quorum.loaded)
    yield single(f"{name}_snapshotsizebytes", "Bytes of the newest snapshot.", quorum.snapshot_size_bytes)
    yield single(
        f"{name}_snapshotlag", "Offsets between the newest snapshot and the high watermark.", quorum.snapshot_lag
    )
    yield single(
        f"{name}_lastappliedrecordoffset", "The last record that is in the image.", quorum.applied_end_offset - 1
    )
    yield single(f"{name}_lastcommittedrecordoffset", "The last committed record.", quorum.high_watermark - 1)


def _connections(parts: NodeParts) -> Iterator[Metric]:
    def by_listener(value: Callable[[ListenerCounts], int]) -> list[tuple[tuple[str], int]]:
        return [((listener.name,), value(listener.counts)) for listener in parts.listeners]

    name, labels = "kafka_server_socketservermetrics", ("listener",)
    yield gauge(f"{name}_connection_count", "Open connections.", labels, by_listener(lambda counts: counts.open))
    for metric, text, value in (
        (f"{name}_connection_creation", "Connections accepted.", lambda counts: counts.accepted),
        (
            "tailrace_connections_refused",
            "Connections refused: too many, or too fast.",
            lambda counts: counts.refused,
        ),
        (
            "tailrace_connections_delayed",
            "Connections that had to wait, since others came at the same time.",
            lambda counts: counts.delayed,
        ),
        (
            "tailrace_connections_closed_by_node",
            "Connections that the node closed: idle, stalled, or hostile.",
            lambda counts: counts.closed_by_us,
        ),
    ):
        yield counter(metric, text, labels, by_listener(value))
    left = [((listener,), seconds) for listener, seconds in parts.certificates.seconds_left()]
    if left:
        text = "The time until the listener's certificate expires; below 0 when it has expired."
        yield gauge("tailrace_certificate_remaining_seconds", text, labels, left)
    receiving = parts.receive_buffers.in_use_bytes
    yield single("tailrace_receive_buffer_bytes", "Memory of requests that are being read.", receiving)


def _security(parts: NodeParts) -> Iterator[Metric]:
    """Rows of any node."""

    def by_listener(value: Callable[[GateCounts], int]) -> list[tuple[tuple[str], int]]:
        return [((name,), value(gate.counts)) for name, gate in parts.gates.items()]

    name, labels = "kafka_server_socketservermetrics", ("listener",)
    for metric, text, value in (
        (f"{name}_successful_authentication", "Connections authenticated by SASL.", lambda counts: counts.succeeded),
        (
            f"{name}_failed_authentication",
            "Authentications by SASL that have failed, of new and of open connections.",
            lambda counts: counts.failed,
        ),
        (
            f"{name}_successful_reauthentication",
            "Open connections authenticated again.",
            lambda counts: counts.reauthenticated,
        ),
        (
            "tailrace_unauthenticated_connections_closed",
            "Connections whose clients did not authenticate in time, or were too many.",
            lambda counts: counts.timed_out,
        ),
    ):
        yield counter(metric, text, labels, by_listener(value))
    audit = parts.audit
    yield counter(
        "tailrace_denied_accesses",
        "Operations on resources that the authorizer has denied to requests.",
        ("resource", "operation"),
        (
            ((SecuredType(kind).name, operation.name), denied)
            for (kind, operation), denied in sorted(audit.denied.counts.items())
        ),
    )
    log = audit.log
    if log is not None:
        yield count("tailrace_audit_lines", "Lines written to the audit log.", log.written)
        yield count("tailrace_audit_lines_left_out", "Events of clients that had too many.", audit.left_out)
        yield count("tailrace_audit_lines_lost", "Lines that the disk did not take.", log.lost)
        yield single("tailrace_audit_failing", "1: the last line was not written.", log.is_failing)


def _work(parts: NodeParts) -> Iterator[Metric]:
    stalls, flushes = parts.stalls, parts.metadata_flush_thread.measure
    yield flush_rounds("tailrace_metadata_flush_round_seconds", "Flushes of the metadata log", flushes)
    yield SummaryMetricFamily(
        "tailrace_event_loop_stall_seconds",
        "Turns of the event loop of more than 50 ms.",
        count_value=stalls.count,
        sum_value=stalls.seconds,
    )
    yield single("tailrace_event_loop_longest_stall_seconds", "The longest turn.", stalls.longest_seconds)
    yield single("tailrace_open_log_files", "Files of logs that are open; closed when needed.", parts.files.open_files)
