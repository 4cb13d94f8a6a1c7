"""Our consumer reads from Apache Kafka: fetch sessions, paused partitions, and offsets that its log does not have."""

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from tailrace.client.blocking import Admin, Consumer, MetricName, OffsetAndMetadata, Producer, RangedFetch, Rectangle
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.reader_settings import Reset
from tailrace.client.writer_settings import Compression
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import contains, hash_of, of_slots
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches

pytestmark = pytest.mark.interop

NODE = 1
SECONDS = 60.0
PARTITIONS = 6
_numbers = count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of a broker that is its own controller."""
    if why := absent():
        pytest.skip(why)
    settings = {"node.id": str(NODE), "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}
    with ApacheKafka(settings) as broker:
        yield broker.address


@pytest.fixture
def topic(kafka: str) -> str:
    """A new topic of several partitions."""
    name = f"orders-{next(_numbers)}"
    with Admin(kafka) as admin:
        admin.create_topics({name: PARTITIONS})
    return name


def _send(producer: Producer, topic: str, values: range, *, partition: int = 0) -> None:
    for value in values:
        producer.send(topic, b"%d" % value, partition=partition)
    producer.flush()


def _read(consumer: Consumer, wanted: int) -> list[tuple[int, int]]:
    """Partition and offset of so many records."""
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < wanted:
        assert time.monotonic() < deadline, found
        found += [(record.partition, record.offset) for record in consumer.poll(0.2)]
    return found


def _poll_until(consumer: Consumer, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        assert consumer.poll(0.05) == []


def test_a_consumer_keeps_one_incremental_session_for_a_whole_run(kafka: str, topic: str) -> None:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(kafka, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer, Producer(kafka) as producer:
        consumer.assign(partitions)
        for step in range(10):
            for partition in range(PARTITIONS):
                _send(producer, topic, range(2), partition=partition)
            read = sorted(_read(consumer, 2 * PARTITIONS))
            assert read == [(p, 2 * step + i) for p in range(PARTITIONS) for i in range(2)]
        incremental = MetricName("incremental-fetches-total", node_id=NODE)
        session = consumer.metrics()[MetricName("fetch-session-id", node_id=NODE)]
        assert session != 0
        idle_since = consumer.metrics()[incremental]
        _poll_until(consumer, lambda: consumer.metrics()[incremental] > idle_since + 10)
        metrics = consumer.metrics()
    assert metrics[MetricName("fetch-session-id", node_id=NODE)] == session
    assert metrics[MetricName("fetch-session-partitions", node_id=NODE)] == PARTITIONS
    # The first fetches may come before the positions of all partitions are known; no later fetch is full.
    assert metrics[MetricName("full-fetches-total", node_id=NODE)] == 1
    assert metrics[MetricName("records-lag-max")] == 0


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_readers_of_key_ranges_share_a_partition_of_a_broker_that_knows_none(
    kafka: str, topic: str, compression: Compression | None
) -> None:
    """Kafka ignores the ranges and sends all records; readers keep their own (KIP-X), and together have each once."""
    name = TopicPartition(topic, 0)
    keys = [b"key-%d" % number for number in range(500)]
    with Producer(kafka, compression=compression) as producer:
        for key in keys:
            producer.send(topic, b"value", key=key, partition=0)
        producer.flush()
    found: list[tuple[int, bytes | None]] = []
    for number in range(4):
        ranges = [of_slots(64 * number, 64 * number + 63)]
        with Consumer(kafka, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer:
            consumer.assign({name: ranges})
            own = [(offset, key) for offset, key in enumerate(keys) if contains(ranges, hash_of(key, offset))]
            read: list[tuple[int, bytes | None]] = []
            deadline = time.monotonic() + SECONDS
            while consumer.position(name) != len(keys):
                assert time.monotonic() < deadline, read
                read += [(record.offset, record.key) for record in consumer.poll(0.2)]
        assert read == own
        found += read
    assert sorted(found) == list(enumerate(keys))


def test_a_commit_of_ranges_fails_before_it_is_sent_to_a_broker_that_knows_none(kafka: str, topic: str) -> None:
    """KIP-X: such a broker would pass over the ranges, and store the offset beside the ranges."""
    partition = TopicPartition(topic, 0)
    with Producer(kafka) as producer:
        _send(producer, topic, range(10))
    with Consumer(kafka, group=topic, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        assert not consumer.takes_ranges()
        with pytest.raises(KafkaError) as refused:
            consumer.commit(ranges={partition: [Rectangle(0, 4)]})
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert consumer.committed(partition) is None
        consumer.commit({partition: 3})
        progress = consumer.committed(partition)
        assert progress is not None
        assert (progress.stable_offset, progress.ranges, progress.state_epoch) == (3, (), -1)


def test_a_session_that_kafka_does_not_know_is_begun_anew(kafka: str, topic: str) -> None:
    """With another epoch than Kafka expects the session is refused, as after a restart of the broker."""

    async def run() -> None:
        async with AsyncConsumer(kafka, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            full = MetricName("full-fetches-total", node_id=NODE)
            incremental = MetricName("incremental-fetches-total", node_id=NODE)
            async with asyncio.timeout(SECONDS):
                while consumer.metrics().get(incremental, 0) < 3:
                    await consumer.poll(0.05)
                session = consumer._reader.fetcher.nodes[NODE]._session
                session.session_id += 1
                while consumer.metrics()[full] < 2 or consumer.metrics()[incremental] < 6:
                    await consumer.poll(0.05)
            assert consumer.trouble is None

    asyncio.run(run())


def test_a_paused_partition_is_left_out_and_read_on_later(kafka: str, topic: str) -> None:
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(kafka, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer, Producer(kafka) as producer:
        consumer.assign([paused, other])
        for partition in (paused, other):
            _send(producer, topic, range(3), partition=partition.partition)
        assert len(_read(consumer, 6)) == 6
        consumer.pause([paused])
        for partition in (paused, other):
            _send(producer, topic, range(3), partition=partition.partition)
        assert _read(consumer, 3) == [(1, 3), (1, 4), (1, 5)]
        read = MetricName("incremental-fetches-total", node_id=NODE)
        before = consumer.metrics()[read]
        _poll_until(consumer, lambda: consumer.metrics()[read] > before + 5)
        assert consumer.position(paused) == 3
        consumer.resume([paused])
        assert _read(consumer, 3) == [(0, 3), (0, 4), (0, 5)]


@pytest.mark.parametrize(("reset", "at"), [("earliest", 4), ("latest", 10)])
@pytest.mark.parametrize("lost", [1, 50])
def test_an_offset_that_the_log_does_not_have_is_decided_by_the_reset_policy(
    kafka: str, topic: str, reset: Reset, at: int, lost: int
) -> None:
    """Below the log start, and above its end."""
    partition = TopicPartition(topic, 0)
    with (
        Producer(kafka) as producer,
        Admin(kafka) as admin,
        Consumer(kafka, auto_offset_reset=reset, fetch_max_wait_ms=20) as consumer,
    ):
        _send(producer, topic, range(10))
        admin.delete_records({partition: 4})
        consumer.assign([partition])
        consumer.seek(partition, lost)
        deadline = time.monotonic() + SECONDS
        found: list[int] = []
        while consumer.position(partition) != 10:
            assert time.monotonic() < deadline
            found += [record.offset for record in consumer.poll(0.2)]
        assert found == list(range(at, 10))


def test_an_offset_that_was_deleted_behind_a_reader_is_compared_with_the_log_and_then_reset(
    kafka: str, topic: str
) -> None:
    """The position has a leader epoch, and Kafka does not say where its log starts: the cause may be a truncation."""
    partition = TopicPartition(topic, 0)
    with (
        Producer(kafka) as producer,
        Admin(kafka) as admin,
        Consumer(kafka, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer,
    ):
        consumer.assign([partition])
        _send(producer, topic, range(3))
        assert len(_read(consumer, 3)) == 3
        consumer.pause([partition])
        _send(producer, topic, range(7))
        admin.delete_records({partition: 8})
        consumer.resume([partition])
        assert _read(consumer, 2)[-2:] == [(0, 8), (0, 9)]


def test_an_offset_out_of_range_without_a_reset_policy_is_an_error(kafka: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Consumer(kafka, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 50)
        with pytest.raises(KafkaError) as caught:
            _read(consumer, 1)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_committed_position_has_its_epoch_and_is_validated_by_the_next_consumer(kafka: str, topic: str) -> None:
    partition, group = TopicPartition(topic, 0), f"group-{topic}"
    with Producer(kafka) as producer:
        _send(producer, topic, range(5))
    settings = {"group": group, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with Consumer(kafka, **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([partition])
        assert len(consumer.poll(SECONDS, max_records=3)) == 3
        consumer.commit()
        assert consumer.committed([partition])[partition] == OffsetAndMetadata(3, leader_epoch=0)
    with Consumer(kafka, **settings) as another:  # type: ignore[arg-type]
        another.assign([partition])
        assert _read(another, 2) == [(0, 3), (0, 4)]


def test_a_ranged_fetch_with_a_rack_reads_what_is_there(kafka: str, topic: str) -> None:
    """A broker without a selector names no replica."""
    with Producer(kafka) as producer:
        _send(producer, topic, range(5))
    with RangedFetch(kafka, rack="a") as fetch:
        stretches = fetch.fetch_range(TopicPartition(topic, 0), 1, 5)
        last = [header.last_offset for each in stretches for buffer in each for _, header in iter_batches(buffer)]
    assert last[-1] == 4
