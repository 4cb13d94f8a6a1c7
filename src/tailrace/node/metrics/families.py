"""Functions that make Prometheus metric families, a call for each family."""

from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from tailrace.node.flush_thread import FlushMeasure
from tailrace.server.quorum.measure import Latencies

Labelled = Iterable[tuple[tuple[str, ...], float]]
Row = Metric | Callable[[], Metric]
"""A metric; or, for a metric of many values, a function that makes the metric from the measurements, on any thread."""


def flush_rounds(name: str, what: str, flushes: FlushMeasure) -> Metric:
    text = f"{what}, and how long they took the disk."
    return SummaryMetricFamily(name, text, count_value=flushes.rounds, sum_value=flushes.seconds)


def single(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def gauge(name: str, documentation: str, labels: tuple[str, ...], values: Labelled) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def histogram(name: str, documentation: str, latencies: Latencies) -> Metric:
    bounds = [*map(str, latencies.bounds_ms), "+Inf"]
    buckets = list(zip(bounds, accumulate(latencies.counts), strict=True))
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=latencies.sum_ms)


def counter(name: str, documentation: str, labels: tuple[str, ...], values: Labelled) -> Metric:
    """A counter; the exposition adds `_total` to its name."""
    family = CounterMetricFamily(name, documentation, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def count(name: str, documentation: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(name, documentation, value=value)
