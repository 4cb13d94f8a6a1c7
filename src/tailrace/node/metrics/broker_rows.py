"""The rows of the metrics page about a broker, which a node with only the controller role does not have."""

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.core import Metric

from tailrace.node.metrics.families import Labelled, Row, count, counter, flush_rounds, gauge, single
from tailrace.node.metrics.measurements import (
    BrokerMeasurements,
    BrokerParts,
    PartitionMeasure,
    RangedProgressMeasure,
    ReplicaCounts,
)
from tailrace.replication.outcomes import Traffic
from tailrace.server.assembly.broker import Broker
from tailrace.server.fetch.key_reads import FilterCounts, KeyRangeReads

_GROUP_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")


def broker_rows(parts: BrokerParts, walked: BrokerMeasurements) -> Iterator[Row]:
    """Rows of a broker, in their order."""
    broker, flushes = parts.broker, parts.flush_thread.measure
    yield from _traffic(broker, walked)
    yield from _quotas(broker)
    yield from _logs(walked)
    yield from _replicas(broker, walked.replicas)
    yield from _groups(walked)
    yield from _shared(broker, walked)
    yield from _key_filter(broker.readable_views.key_reads)
    name, work = "tailrace_key_index", walked.index_work
    yield single(f"{name}_waiting_partitions", "Partitions whose readers wait for a key index.", work.partitions)
    yield single(f"{name}_left_bytes", "Bytes of these whose keys were not looked at yet, at most.", work.left_bytes)
    yield flush_rounds("tailrace_flush_round_seconds", "Rounds of flushes of all logs that waited", flushes)
    yield count("tailrace_log_flushes", "Logs flushed, in all rounds.", flushes.logs)
    scrubs, what = broker.replicas.periodic_work.scrubber.measure, "of logs at rest, looked through in the background"
    yield count("tailrace_log_scrub_bytes", f"Bytes {what}.", scrubs.bytes_read)
    yield count("tailrace_log_scrub_passes", f"Passes {what}.", scrubs.passes)
    yield count("tailrace_log_scrub_damaged_logs", f"Damage found {what}.", scrubs.damaged_logs)
    yield count("tailrace_log_scrub_indexes", f"Wrong indexes {what}.", scrubs.indexes_rebuilt)
    name, counts = "tailrace_coordinator_checkpoints", broker.coordination.checkpoints.counts
    yield count(f"{name}_written", "Checkpoints of coordinators' logs written.", counts.written)
    yield count(f"{name}_failed", "Checkpoints that could not be written.", counts.failed)


def _traffic(broker: Broker, walked: BrokerMeasurements) -> Iterator[Row]:
    def by_topic(value: Callable[[Traffic], int]) -> Iterator[tuple[tuple[str], float]]:
        # The sum over topics has an empty label, as in Kafka's exporters; for Prometheus an empty label is no label.
        yield ("",), value(walked.traffic)
        for topic, traffic in sorted(walked.traffic_by_topic.items()):
            yield (topic,), value(traffic)

    name, labels = "kafka_server_brokertopicmetrics", ("topic",)
    yield partial(
        counter, f"{name}_messagesin", "Records appended.", labels, by_topic(lambda traffic: traffic.records_in)
    )
    yield partial(counter, f"{name}_bytesin", "Bytes appended.", labels, by_topic(lambda traffic: traffic.bytes_in))
    yield partial(
        counter,
        f"{name}_bytesout",
        "Bytes of records sent to readers.",
        labels,
        by_topic(lambda traffic: traffic.bytes_out),
    )
    sent, choices = broker.sent, broker.choices
    yield count(f"{name}_replicationbytesout", "Bytes of records sent to followers.", sent.to_followers)
    yield counter(
        "tailrace_consumer_bytesout",
        "Bytes of records sent to consumers, as the leader of the partition or as a follower (KIP-392).",
        ("role",),
        [(("leader",), sent.to_consumers_by_leader), (("follower",), sent.to_consumers_by_follower)],
    )
    yield count(
        "tailrace_preferred_read_replica_answers",
        "Reads of consumers that this leader has answered with another replica (KIP-392).",
        choices.redirects,
    )
    yield count(
        "tailrace_replica_selector_failures",
        "Exceptions of the class of replica.selector.class, and results of it that were no candidates.",
        choices.failures,
    )
    sessions, name = broker.fetch_sessions.cache, "kafka_server_fetchsessioncache"
    yield single(f"{name}_numincrementalfetchsessions", "Fetch sessions (KIP-227).", len(sessions))
    yield single(
        f"{name}_numincrementalfetchpartitionscached",
        "Partitions of all fetch sessions together.",
        sessions.partition_count,
    )
    yield count(
        f"{name}_incrementalfetchsessionevictions",
        "Fetch sessions that others have displaced; not those that their readers have closed.",
        sessions.evictions,
    )


def _quotas(broker: Broker) -> Iterator[Row]:
    """Clients with quotas; an empty label: all users, or all client ids of the user, share the quota."""
    now_ms, labels = broker.ports.clock.monotonic_ms(), ("user", "client_id")
    for name, quota, rate, text in (
        ("produce", broker.quotas.produce, "byte_rate", "Bytes of Produce requests per second"),
        ("fetch", broker.quotas.fetch, "byte_rate", "Bytes of records per second in answers to Fetch"),
        ("request", broker.quotas.request, "request_time", "The time of requests, in percent,"),
    ):
        found = list(quota.measures(now_ms))
        rates = [((measure.user, measure.client_id), measure.rate) for measure in found]
        throttles = [((measure.user, measure.client_id), measure.throttle_time_ms) for measure in found]
        yield partial(gauge, f"kafka_server_{name}_{rate}", f"{text} of clients with a quota.", labels, rates)
        yield partial(
            gauge, f"kafka_server_{name}_throttle_time", "The average throttle time in ms above 0.", labels, throttles
        )


def _logs(walked: BrokerMeasurements) -> Iterator[Row]:
    def by_log(value: Callable[[PartitionMeasure], int]) -> Iterator[tuple[tuple[str, str], float]]:
        return (((log.topic, str(log.partition)), value(log)) for log in walked.partitions)

    name, labels = "kafka_log_log", ("topic", "partition")
    for metric, text, value in (
        (f"{name}_size", "Bytes of all batches.", lambda log: log.size_bytes),
        (f"{name}_logstartoffset", "The first offset.", lambda log: log.log_start_offset),
        (f"{name}_logendoffset", "The offset that is written next.", lambda log: log.log_end_offset),
        (f"{name}_numlogsegments", "Segments.", lambda log: log.segments),
        (
            "kafka_cluster_partition_laststableoffsetlag",
            "How far open transactions hold back readers of committed data.",
            lambda log: log.last_stable_offset_lag,
        ),
    ):
        yield partial(gauge, metric, text, labels, by_log(value))
    yield single(
        "tailrace_partitions_left_out_of_metrics",
        "Partitions without numbers of their own here (metrics.max.partitions).",
        walked.replicas.partitions - len(walked.partitions),
    )


def _replicas(broker: Broker, counted: ReplicaCounts) -> Iterator[Metric]:
    name, replicas = "kafka_server_replicamanager", broker.replicas
    fetchers, repairs, throttles = replicas.fetchers, replicas.repairs, replicas.throttles
    yield single(f"{name}_partitioncount", "Partitions on this node.", counted.partitions)
    yield single(f"{name}_leadercount", "Partitions that this node leads.", counted.leaders)
    yield single(
        f"{name}_underreplicatedpartitions", "Led here, and not all replicas in sync.", counted.under_replicated
    )
    yield single(
        f"{name}_underminisrpartitioncount",
        "Led here, and fewer in sync than min.insync.replicas.",
        counted.under_min_in_sync,
    )
    yield single(f"{name}_produceridcount", "Producers with an id that partitions remember.", counted.producer_ids)
    yield single(
        f"{name}_partitionswithlatetransactionscount",
        "Partitions with a transaction that should have been ended.",
        counted.late_transactions,
    )
    yield single(f"{name}_offlinereplicacount", "Partitions whose log cannot be used.", counted.offline)
    yield single(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that cannot store: full, or hung.",
        int(replicas.health.is_stalled),
    )
    yield single(
        "tailrace_lost_replicas",
        "Replicas here that lack something that they acknowledged.",
        len(replicas.failures.lost_replicas),
    )
    yield count(f"{name}_isrshrinks", "Replicas taken out of sync.", replicas.keeper.shrinks)
    yield count(f"{name}_isrexpands", "Replicas put in sync.", replicas.keeper.expansions)
    name = "kafka_server_replicafetchermanager"
    yield single(f"{name}_maxlag", "Records that a replica here is behind its leader, at most.", fetchers.max_lag)
    yield single(f"{name}_failedpartitionscount", "Replicas that are not fetched any more.", fetchers.failed_partitions)
    yield single(
        "kafka_server_leaderreplication_byte_rate", "Throttled bytes per second to followers.", throttles.sent_rate
    )
    yield single(
        "kafka_server_followerreplication_byte_rate", "Throttled bytes per second from leaders.", throttles.fetched_rate
    )
    yield count("tailrace_replicas_repaired", "Damaged replicas fetched anew.", repairs.repaired)
    yield single("tailrace_replicas_in_repair", "Damaged replicas that are being fetched anew.", repairs.in_repair)
    yield single("tailrace_damaged_logs", "Damaged logs that were renamed and kept.", repairs.kept_logs.directories)
    yield single("tailrace_damaged_logs_bytes", "The bytes of these.", repairs.kept_logs.size_bytes)
    yield single("tailrace_stalled_replicas", "Replicas that their leader keeps refusing.", fetchers.refused_partitions)
    yield single("tailrace_followed_partitions", "Replicas here that follow a leader.", fetchers.partitions)
    yield count(
        "tailrace_replica_fetches_failed",
        "Fetches from leaders without an answer, and answers for a partition that were errors.",
        fetchers.failed_fetches,
    )
    yield gauge(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Requests that wait: fetches for records, produces for disks and replicas.",
        ("delayedoperation",),
        [(("Fetch",), len(broker.polls)), (("Produce",), len(broker.deadlines) - len(broker.polls))],
    )


def _groups(walked: BrokerMeasurements) -> Iterator[Metric]:
    name, states = "kafka_coordinator_group_groupmetadatamanager", walked.groups_by_state
    if states is None:
        return
    yield single(f"{name}_numgroups", "Groups that this node coordinates.", sum(states.values()))
    for state in _GROUP_STATES:
        yield single(f"{name}_numgroups{state.lower()}", f"Groups in state {state}.", states.get(state, 0))


def _shared(broker: Broker, walked: BrokerMeasurements) -> Iterator[Row]:
    """Progress by offsets and key hashes (KIP-X)."""

    def by_group(value: Callable[[RangedProgressMeasure], float]) -> Iterator[tuple[tuple[str, ...], float]]:
        return (
            ((progress.group, progress.topic, str(progress.partition)), value(progress))
            for progress in walked.ranged_progress
        )

    yield partial(
        gauge,
        "tailrace_group_lag",
        "Records that a group has not done, each once, in a topic or in all slots of a view.",
        ("group", "topic"),
        walked.lags.items(),
    )
    name, labels = "tailrace_group", ("group", "topic", "partition")
    for metric, text, value in (
        (f"{name}_stable_offset", "Everything below it is done.", lambda progress: progress.stable_offset),
        (f"{name}_ahead", "Records done beyond it, about.", lambda progress: progress.ahead),
        (f"{name}_ranges", "Ranges that are stored for them.", lambda progress: progress.ranges),
        (
            f"{name}_oldest_gap_seconds",
            "How long the stable offset has not moved.",
            lambda progress: progress.standing_ms / 1000,
        ),
    ):
        yield partial(gauge, metric, text, labels, by_group(value))
    offsets = broker.coordination.groups.ranged_offsets
    yield single(f"{name}_ranges_limit", "Ranges that a group may have in a partition.", offsets.max_rectangles)
    yield count(
        f"{name}_range_cuts",
        "Times that ranges were dropped because the log had ended before them.",
        offsets.cut_partitions,
    )


def _key_filter(reads: KeyRangeReads) -> Iterator[Metric]:
    """The filter of records by key, for readers of key ranges and of views (KIP-X)."""

    def by_reader(value: Callable[[FilterCounts], int]) -> Labelled:
        return [(("ranges",), value(reads.of_ranges)), (("views",), value(reads.of_views))]

    name, splits = "tailrace_key_filter", reads.splits
    for metric, text, value in (
        ("scanned_bytes", "Plain bytes of batches that were split for a reader.", lambda counts: counts.scanned_bytes),
        ("delivered_bytes", "Bytes of batches sent to readers.", lambda counts: counts.delivered_bytes),
        ("unavailable", "Answers OFFSET_NOT_AVAILABLE, for want of a key index.", lambda counts: counts.unavailable),
    ):
        yield counter(f"{name}_{metric}", text, ("reader",), by_reader(value))
    yield single(f"{name}_parts", "Parts of split batches that are kept for other readers.", splits.kept_parts)
    yield single(f"{name}_parts_bytes", "The bytes of these, in memory.", splits.kept_bytes)
    dropped = [(("room",), splits.displaced), (("unread",), splits.unread)]
    what = "that were dropped before their readers came: for lack of room, or since the readers had gone."
    yield counter(f"{name}_parts_evicted", f"Parts {what}", ("reason",), [(key, found.parts) for key, found in dropped])
    yield counter(
        f"{name}_parts_evicted_bytes",
        f"Bytes of parts {what}",
        ("reason",),
        [(key, found.size_bytes) for key, found in dropped],
    )
