"""The weights of records, from a fetch that is made here: some brokers are away."""

from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.reading import record_weights
from tailrace.spark.reading.record_weights import RecordWeights
from tailrace.spark.reading.source_options import parse_source_options

OPTIONS = parse_source_options({"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders"}, streaming=True)
PLACES = [TopicPartition("orders", number) for number in range(40)]
AWAY = set(PLACES[:10])
"""The partitions of a broker that does not answer."""
TIMEOUT_S = 2.0


class Cluster:
    """A fetch, and the clock that it takes time of."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[TopicPartition] = []

    def arrow(
        self, place: TopicPartition, start: int, end: int, *, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        self.tried.append(place)
        if place in AWAY:
            self.now += TIMEOUT_S
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        key, value = pa.array([b"k" * 8]), pa.array([b"v" * (place.partition + 1)])
        yield pa.record_batch({"key": key, "value": value, "offset": pa.array([start])})

    def close(self) -> None:
        """There is no connection."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(record_weights, "RangedFetch", SimpleNamespace(of=lambda settings: cluster))
    monkeypatch.setattr(record_weights, "monotonic", lambda: cluster.now)
    return cluster


def test_a_broker_that_is_away_holds_a_batch_up_for_a_few_seconds_alone(cluster: Cluster) -> None:
    weights = RecordWeights(OPTIONS)
    start, end = dict.fromkeys(PLACES, 0), dict.fromkeys(PLACES, 1)
    first = weights.of(start, end)
    assert cluster.now <= record_weights._LONGEST_S + TIMEOUT_S
    assert first.keys() == set(PLACES)
    assert set(first.values()) == {record_weights._UNKNOWN}


def test_partitions_without_an_answer_keep_no_other_from_being_measured(cluster: Cluster) -> None:
    weights = RecordWeights(OPTIONS)
    start, end = dict.fromkeys(PLACES, 0), dict.fromkeys(PLACES, 1)
    for _ in range(8):
        found = weights.of(start, end)
    assert set(cluster.tried) == set(PLACES)
    present = [place for place in PLACES if place not in AWAY]
    sizes = [found[place] for place in present]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(present)
    (mean,) = {found[place] for place in AWAY}
    assert mean == pytest.approx(sum(sizes) / len(sizes))


def test_no_more_partitions_are_measured_for_one_batch_than_the_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_weights, "_MOST_SAMPLES", 5)
    weights = RecordWeights(OPTIONS)
    present = PLACES[10:]
    weights.of(dict.fromkeys(present, 0), dict.fromkeys(present, 1))
    assert cluster.tried == present[:5]
    weights.of(dict.fromkeys(present, 0), dict.fromkeys(present, 1))
    assert cluster.tried == present[:10]
