"""The metrics of a consumer, with the names that Java's client uses, if any."""

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.fetcher import Fetcher
from tailrace.model.partitions import TopicPartition

NO_REPLICA = -1
"""The preferred read replica of a partition that is read from its leader."""


class MetricName(NamedTuple):
    """The name of a metric, and the partition or the node of the measurement; both None: the consumer."""

    name: str
    partition: TopicPartition | None = None
    node_id: int | None = None


def corrupt_metrics(corrupt: CorruptBatches) -> dict[MetricName, int]:
    """The batches that a reader has stepped over since the reader was made."""
    return {
        MetricName("corrupt-batches-skipped-total"): corrupt.batches,
        MetricName("corrupt-offsets-skipped-total"): corrupt.offsets,
        MetricName("corrupt-bytes-skipped-total"): corrupt.size_bytes,
    }


def consumer_metrics(
    fetcher: Fetcher, positions: Mapping[TopicPartition, int], *, metadata_requests: int
) -> dict[MetricName, int]:
    """The metrics now. `positions` has the next record to return of each partition with a decided position."""
    metrics = {
        MetricName("assigned-partitions"): len(fetcher.assigned.by_name),
        MetricName("fetch-total"): sum(node.fetches for node in fetcher.nodes.values()),
        MetricName("bytes-consumed-total"): fetcher.bytes_consumed,
        MetricName("records-consumed-total"): fetcher.assigned.records_consumed,
        MetricName("metadata-requests-total"): metadata_requests,
        **corrupt_metrics(fetcher.assigned.corrupt),
    }
    lags: list[int] = []
    leads: list[int] = []
    for name, partition in fetcher.assigned.by_name.items():
        replica = NO_REPLICA if partition.replica is None else partition.replica
        metrics[MetricName("preferred-read-replica", name)] = replica
        metrics[MetricName("preferred-read-replica-changes-total", name)] = partition.replica_changes
        offset = positions.get(name)
        if offset is not None and partition.readable_end >= 0:
            lags.append(max(0, partition.readable_end - offset))
            metrics[MetricName("records-lag", name)] = lags[-1]
        if offset is not None and partition.log_start_offset >= 0:
            leads.append(max(0, offset - partition.log_start_offset))
            metrics[MetricName("records-lead", name)] = leads[-1]
    if lags:
        metrics[MetricName("records-lag-max")] = max(lags)
    if leads:
        metrics[MetricName("records-lead-min")] = min(leads)
    for node_id, node in fetcher.nodes.items():
        metrics[MetricName("fetch-session-id", node_id=node_id)] = node.session_id
        metrics[MetricName("fetch-session-epoch", node_id=node_id)] = node.epoch
        metrics[MetricName("fetch-session-partitions", node_id=node_id)] = node.partition_count
        metrics[MetricName("full-fetches-total", node_id=node_id)] = node.full_fetches
        metrics[MetricName("incremental-fetches-total", node_id=node_id)] = node.incremental_fetches
    return metrics
