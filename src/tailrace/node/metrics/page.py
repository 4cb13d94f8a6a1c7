"""Measurements as Prometheus reads them, under the names that exporters give to Kafka's own metrics.

A metric that Kafka has keeps its name, even if that does not say its unit: dashboards know it. Ours start with
`tailrace_` and do say it.
"""

import platform
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tailrace.model import __version__
from tailrace.node.flush_thread import FlushMeasure
from tailrace.node.metrics.measurements import BrokerMeasurements, Measurements
from tailrace.protocol.records.kernels import KERNEL
from tailrace.server.quorum.measure import Latencies

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_RAFT_STATES = ("unattached", "prospective", "candidate", "follower", "observer", "leader", "resigned")
"""Kafka's words for the roles of a replica of the metadata log."""
_GROUP_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")

Labelled = Iterable[tuple[tuple[str, ...], float]]


def render(measurements: Measurements) -> bytes:
    """The page of /metrics. Needs no event loop: it may run on a thread of its own."""
    return generate_latest(_MetricsPage(measurements))


class _MetricsPage(Collector):
    """One page: collected once."""

    def __init__(self, measurements: Measurements) -> None:
        self._measured = measurements

    def collect(self) -> Iterator[Metric]:
        measured = self._measured
        if measured.broker is not None:
            yield from _broker(measured.broker)
        yield from _requests(measured)
        yield from _controller(measured)
        yield from _quorum(measured)
        yield from _snapshots(measured)
        yield from _connections(measured)
        yield from _work(measured)
        yield _gauge(
            "tailrace_build_info",
            "Always 1; what runs here is in the labels.",
            ("version", "python", "kernel", "node"),
            [((__version__, platform.python_version(), KERNEL, str(measured.node_id)), 1)],
        )
        yield from ProcessCollector(registry=None).collect()


def _broker(broker: BrokerMeasurements) -> Iterator[Metric]:
    """Metrics that a node with the controller role alone does not have."""
    yield from _traffic(broker)
    yield from _logs(broker)
    yield from _replicas(broker)
    yield from _groups(broker)
    yield from _shared(broker)
    yield _flush_rounds("tailrace_flush_round_seconds", "Rounds of flushes of all logs that waited", broker.flushes)
    yield _counter("tailrace_log_flushes", "Logs flushed, in all rounds.", (), [((), broker.flushes.logs)])
    scrubs, what = broker.scrubs, "of logs at rest, looked through in the background"
    yield _counter("tailrace_log_scrub_bytes", f"Bytes {what}.", (), [((), scrubs.bytes_read)])
    yield _counter("tailrace_log_scrub_passes", f"Passes {what}.", (), [((), scrubs.passes)])
    yield _counter("tailrace_log_scrub_damaged_logs", f"Damage found {what}.", (), [((), scrubs.damaged_logs)])
    yield _counter("tailrace_log_scrub_indexes", f"Wrong indexes {what}.", (), [((), scrubs.indexes_rebuilt)])
    name, counts = "tailrace_coordinator_checkpoints", broker.checkpoints
    yield _counter(f"{name}_written", "Checkpoints of coordinators' logs written.", (), [((), counts.written)])
    yield _counter(f"{name}_failed", "Checkpoints that could not be written.", (), [((), counts.failed)])


def _traffic(broker: BrokerMeasurements) -> Iterator[Metric]:
    # The sum stands beside the topics with an empty label, which to Prometheus is none: as Kafka's exporters do.
    everything = [("", broker.traffic), *sorted(broker.traffic_by_topic.items())]
    name = "kafka_server_brokertopicmetrics"
    yield _counter(
        f"{name}_messagesin", "Records appended.", ("topic",), (((t,), traffic.records_in) for t, traffic in everything)
    )
    yield _counter(
        f"{name}_bytesin", "Bytes appended.", ("topic",), (((t,), traffic.bytes_in) for t, traffic in everything)
    )
    yield _counter(
        f"{name}_bytesout",
        "Bytes of records sent to readers.",
        ("topic",),
        (((t,), traffic.bytes_out) for t, traffic in everything),
    )
    reads = broker.reads
    yield _counter(
        f"{name}_replicationbytesout", "Bytes of records sent to followers.", (), [((), reads.bytes_to_followers)]
    )
    yield _counter(
        "tailrace_consumer_bytesout",
        "Bytes of records sent to consumers, as the leader of the partition or as a follower (KIP-392).",
        ("role",),
        [(("leader",), reads.bytes_to_consumers_by_leader), (("follower",), reads.bytes_to_consumers_by_follower)],
    )
    yield _counter(
        "tailrace_preferred_read_replica_answers",
        "Reads of consumers that this leader has answered with another replica (KIP-392).",
        (),
        [((), reads.redirects)],
    )
    yield _counter(
        "tailrace_replica_selector_failures",
        "Exceptions of the class of replica.selector.class, and results of it that were no candidates.",
        (),
        [((), reads.selector_failures)],
    )
    sessions, name = broker.fetch_sessions, "kafka_server_fetchsessioncache"
    yield _gauge(f"{name}_numincrementalfetchsessions", "Fetch sessions (KIP-227).", (), [((), sessions.sessions)])
    yield _gauge(
        f"{name}_numincrementalfetchpartitionscached",
        "Partitions of all fetch sessions together.",
        (),
        [((), sessions.partitions)],
    )
    yield _counter(
        f"{name}_incrementalfetchsessionevictions",
        "Fetch sessions that others have displaced; not those that their readers have closed.",
        (),
        [((), sessions.evictions)],
    )


def _requests(measured: Measurements) -> Iterator[Metric]:
    name = "kafka_network_requestmetrics"
    yield _counter(
        f"{name}_requests",
        "Requests received.",
        ("request", "version"),
        (((api, str(version)), count) for api, version, count in measured.requests),
    )
    yield _counter(
        f"{name}_errors",
        "Errors in answers; an answer may hold one per partition.",
        ("request", "error"),
        (((api, error), count) for api, error, count in measured.errors),
    )
    yield _counter(
        "tailrace_requests_refused",
        "Requests that were not carried out: of no API or version that is served, or no request at all.",
        ("reason",),
        [(("unsupported",), measured.unsupported_requests), (("malformed",), measured.malformed_requests)],
    )


def _logs(broker: BrokerMeasurements) -> Iterator[Metric]:
    name, labels = "kafka_log_log", ("topic", "partition")
    logs = [((each.topic, str(each.partition)), each) for each in broker.partitions]
    yield _gauge(f"{name}_size", "Bytes of all batches.", labels, ((key, log.size_bytes) for key, log in logs))
    yield _gauge(
        f"{name}_logstartoffset", "The first offset.", labels, ((key, log.log_start_offset) for key, log in logs)
    )
    yield _gauge(
        f"{name}_logendoffset",
        "The offset that is written next.",
        labels,
        ((key, log.log_end_offset) for key, log in logs),
    )
    yield _gauge(f"{name}_numlogsegments", "Segments.", labels, ((key, log.segments) for key, log in logs))
    yield _gauge(
        "kafka_cluster_partition_laststableoffsetlag",
        "How far open transactions hold back readers of committed data.",
        labels,
        ((key, log.last_stable_offset_lag) for key, log in logs),
    )
    yield _gauge(
        "tailrace_partitions_left_out_of_metrics",
        "Partitions without numbers of their own here (metrics.max.partitions).",
        (),
        [((), broker.replicas.partitions - len(logs))],
    )


def _replicas(broker: BrokerMeasurements) -> Iterator[Metric]:
    name, replicas = "kafka_server_replicamanager", broker.replicas
    yield _single(f"{name}_partitioncount", "Partitions on this node.", replicas.partitions)
    yield _single(f"{name}_leadercount", "Partitions that this node leads.", replicas.leaders)
    yield _single(
        f"{name}_underreplicatedpartitions", "Led here, and not all replicas in sync.", replicas.under_replicated
    )
    yield _single(
        f"{name}_underminisrpartitioncount",
        "Led here, and fewer in sync than min.insync.replicas.",
        replicas.under_min_in_sync,
    )
    yield _single(f"{name}_produceridcount", "Producers with an id that partitions remember.", replicas.producer_ids)
    yield _single(
        f"{name}_partitionswithlatetransactionscount",
        "Partitions with a transaction that should have been ended.",
        replicas.late_transactions,
    )
    yield _single(f"{name}_offlinereplicacount", "Partitions whose log cannot be used.", replicas.offline)
    copies = broker.replication
    yield _single(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that cannot store: full, or hung.",
        int(copies.is_directory_stalled),
    )
    yield _single("tailrace_lost_replicas", "Replicas here that lack something that they acknowledged.", copies.lost)
    yield _counter(f"{name}_isrshrinks", "Replicas taken out of sync.", (), [((), copies.shrinks)])
    yield _counter(f"{name}_isrexpands", "Replicas put in sync.", (), [((), copies.expansions)])
    name = "kafka_server_replicafetchermanager"
    yield _single(f"{name}_maxlag", "Records that a replica here is behind its leader, at most.", copies.max_lag)
    yield _single(f"{name}_failedpartitionscount", "Replicas that are not fetched any more.", copies.failed_partitions)
    yield _single(
        "kafka_server_leaderreplication_byte_rate", "Throttled bytes per second to followers.", copies.sent_rate
    )
    yield _single(
        "kafka_server_followerreplication_byte_rate", "Throttled bytes per second from leaders.", copies.fetched_rate
    )
    yield _counter("tailrace_replicas_repaired", "Damaged replicas fetched anew.", (), [((), copies.repaired)])
    yield _single("tailrace_replicas_in_repair", "Damaged replicas that are being fetched anew.", copies.in_repair)
    yield _single("tailrace_damaged_logs", "Damaged logs that were renamed and kept.", copies.kept_logs.directories)
    yield _single("tailrace_damaged_logs_bytes", "The bytes of these.", copies.kept_logs.size_bytes)
    yield _single("tailrace_stalled_replicas", "Replicas that their leader keeps refusing.", copies.refused_partitions)
    yield _single("tailrace_followed_partitions", "Replicas here that follow a leader.", copies.following)
    yield _counter(
        "tailrace_replica_fetches_failed",
        "Fetches from leaders without an answer, and answers for a partition that were errors.",
        (),
        [((), copies.failed_fetches)],
    )
    yield _gauge(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Requests that wait: fetches for records, produces for disks and replicas.",
        ("delayedoperation",),
        [(("Fetch",), broker.waiting_fetches), (("Produce",), broker.waiting_produces)],
    )


def _controller(measured: Measurements) -> Iterator[Metric]:
    name, cluster = "kafka_controller_kafkacontroller", measured.cluster
    yield _single(f"{name}_activecontrollercount", "Whether this node is the controller.", cluster.is_active_controller)
    yield _single(f"{name}_globaltopiccount", "Topics of the cluster.", cluster.topics)
    yield _single(f"{name}_globalpartitioncount", "Partitions of the cluster.", cluster.partitions)
    yield _single(f"{name}_offlinepartitionscount", "Partitions without a leader.", cluster.offline_partitions)
    imbalance = "Partitions that are not led by their preferred replica."
    yield _single(f"{name}_preferredreplicaimbalancecount", imbalance, cluster.imbalanced_partitions)
    yield _single(f"{name}_activebrokercount", "Brokers that may lead.", cluster.active_brokers)
    yield _single(f"{name}_fencedbrokercount", "Brokers that are fenced.", cluster.fenced_brokers)


def _quorum(measured: Measurements) -> Iterator[Metric]:
    name, quorum = "kafka_server_raft_metrics", measured.quorum
    yield _gauge(
        f"{name}_current_state",
        "1 for the role of this replica of the metadata log.",
        ("state",),
        [((state,), state == quorum.state) for state in _RAFT_STATES],
    )
    yield _single(f"{name}_current_leader", "The leader of the metadata log, or -1.", quorum.leader_id)
    yield _single(f"{name}_current_epoch", "The newest epoch known here.", quorum.epoch)
    yield _single(f"{name}_current_vote", "The candidate this replica has voted for in it, or -1.", quorum.voted_id)
    yield _single(f"{name}_high_watermark", "Everything below is committed; -1: not known.", quorum.high_watermark)
    yield _single(f"{name}_log_end_offset", "Where the metadata log ends here.", quorum.log_end_offset)
    yield _single(f"{name}_log_end_epoch", "The epoch of its last batch.", quorum.log_end_epoch)
    yield _single(f"{name}_number_of_voters", "Voters of the metadata quorum.", quorum.voters)
    yield _single("tailrace_metadata_log_start_offset", "Where the metadata log begins here.", quorum.log_start_offset)
    yield _single("tailrace_metadata_log_failed", "1: the log is of no use any more.", quorum.has_failed)
    loader = "kafka_server_metadataloader"
    yield _single(f"{loader}_currentmetadataversion", "The finalized metadata.version.", quorum.metadata_version)
    yield _single(f"{loader}_currentcontrollerid", "The active controller, or -1.", quorum.leader_id)
    yield _single(f"{loader}_handleloadsnapshotcount", "Snapshots loaded since the start.", quorum.loaded.count)


def _snapshots(measured: Measurements) -> Iterator[Metric]:
    name, quorum = "kafka_controller_kafkacontroller", measured.quorum
    yield _histogram(
        f"{name}_gensnapshotlatencyms", "Milliseconds that it took to generate a snapshot.", quorum.generated
    )
    yield _histogram(f"{name}_loadsnapshotlatencyms", "Milliseconds that it took to load a snapshot.", quorum.loaded)
    yield _single(f"{name}_snapshotsizebytes", "Bytes of the newest snapshot.", quorum.snapshot_size_bytes)
    yield _single(
        f"{name}_snapshotlag", "Offsets between the newest snapshot and the high watermark.", quorum.snapshot_lag
    )
    yield _single(
        f"{name}_lastappliedrecordoffset", "The last record that is in the image.", quorum.applied_end_offset - 1
    )
    yield _single(f"{name}_lastcommittedrecordoffset", "The last committed record.", quorum.high_watermark - 1)


def _connections(measured: Measurements) -> Iterator[Metric]:
    name, labels, counts = "kafka_server_socketservermetrics", ("listener",), measured.listeners
    yield _gauge(
        f"{name}_connection_count", "Open connections.", labels, (((key,), c.open) for key, c in counts.items())
    )
    yield _counter(
        f"{name}_connection_creation",
        "Connections accepted.",
        labels,
        (((key,), c.accepted) for key, c in counts.items()),
    )
    yield _counter(
        "tailrace_connections_refused",
        "Connections refused: too many, or too fast.",
        labels,
        (((key,), c.refused) for key, c in counts.items()),
    )
    yield _counter(
        "tailrace_connections_delayed",
        "Connections that had to wait, since others came at the same time.",
        labels,
        (((key,), c.delayed) for key, c in counts.items()),
    )
    yield _counter(
        "tailrace_connections_closed_by_node",
        "Connections that the node closed: idle, stalled, or hostile.",
        labels,
        (((key,), c.closed_by_us) for key, c in counts.items()),
    )
    yield _single(
        "tailrace_receive_buffer_bytes", "Memory of requests that are being read.", measured.receive_buffer_bytes
    )


def _groups(broker: BrokerMeasurements) -> Iterator[Metric]:
    name, states = "kafka_coordinator_group_groupmetadatamanager", broker.groups_by_state
    if states is None:
        return
    yield _single(f"{name}_numgroups", "Groups that this node coordinates.", sum(states.values()))
    for state in _GROUP_STATES:
        yield _single(f"{name}_numgroups{state.lower()}", f"Groups in state {state}.", states.get(state, 0))


def _shared(broker: BrokerMeasurements) -> Iterator[Metric]:
    """Progress by offsets and key hashes (KIP-X)."""
    labels = ("group", "topic", "partition")
    rows = [((one.group, one.topic, str(one.partition)), one) for one in broker.shared_progress]
    name = "tailrace_group"
    yield _gauge(
        f"{name}_stable_offset", "Everything below it is done.", labels, ((key, one.stable_offset) for key, one in rows)
    )
    yield _gauge(f"{name}_ahead", "Records done beyond it, about.", labels, ((key, one.ahead) for key, one in rows))
    yield _gauge(f"{name}_ranges", "Ranges that are stored for them.", labels, ((key, one.ranges) for key, one in rows))
    yield _gauge(
        f"{name}_oldest_gap_seconds",
        "How long the stable offset has not moved.",
        labels,
        ((key, one.standing_ms / 1000) for key, one in rows),
    )
    yield _single(f"{name}_ranges_limit", "Ranges that a group may have in a partition.", broker.max_ranges)
    yield _counter(
        f"{name}_range_cuts",
        "Times that ranges were dropped because the log had ended before them.",
        (),
        (((), broker.range_cuts),),
    )


def _work(measured: Measurements) -> Iterator[Metric]:
    stalls = measured.stalls
    yield _flush_rounds(
        "tailrace_metadata_flush_round_seconds", "Flushes of the metadata log", measured.metadata_flushes
    )
    yield SummaryMetricFamily(
        "tailrace_event_loop_stall_seconds",
        "Turns of the event loop of more than 50 ms.",
        count_value=stalls.count,
        sum_value=stalls.seconds,
    )
    yield _single("tailrace_event_loop_longest_stall_seconds", "The longest turn.", stalls.longest_seconds)
    yield _single(
        "tailrace_open_log_files", "Files of logs that are open; closed when needed.", measured.open_log_files
    )


def _flush_rounds(name: str, what: str, flushes: FlushMeasure) -> Metric:
    text = f"{what}, and how long they took the disk."
    return SummaryMetricFamily(name, text, count_value=flushes.rounds, sum_value=flushes.seconds)


def _single(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _gauge(name: str, documentation: str, labels: tuple[str, ...], values: Labelled) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _histogram(name: str, documentation: str, latencies: Latencies) -> Metric:
    bounds = [*map(str, latencies.bounds_ms), "+Inf"]
    buckets = list(zip(bounds, accumulate(latencies.counts), strict=True))
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=latencies.sum_ms)


def _counter(name: str, documentation: str, labels: tuple[str, ...], values: Labelled) -> Metric:
    """A counter; the exposition adds `_total` to its name."""
    family = CounterMetricFamily(name, documentation, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
