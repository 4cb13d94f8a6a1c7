"""The clients against a real node and, where possible, librdkafka's mock cluster: written records are read."""

import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal
from uuid import uuid4

import pytest

from interop.librdkafka import Message, librdkafka
from tailrace.client import producer as asyncio_producer
from tailrace.client.blocking import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, RangedFetch
from tailrace.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.testing import Cluster

SECONDS = 60.0


@pytest.fixture(params=["node", "mock"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """A node of Tailrace, and a foreign cluster."""
    if request.param == "mock":
        return str(request.getfixturevalue("mock_cluster"))
    cluster: Cluster = request.getfixturevalue("tailrace_cluster")
    return cluster.bootstrap_servers


@pytest.fixture
def topic() -> str:
    """A unique name. Both clusters create it at first use."""
    return f"topic-{uuid4()}"


@pytest.fixture
def admin(tailrace_cluster: Cluster) -> Iterator[Admin]:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        yield admin


def _values(bootstrap: str, partition: TopicPartition, start: int, end: int, **settings: Any) -> list[bytes | None]:
    with RangedFetch(bootstrap, **settings) as fetch:
        return [
            record.value
            for stretch in fetch.fetch_range(partition, start, end)
            for buffer in stretch
            for position, _ in iter_batches(buffer)
            for record in read_records(buffer, position)
            if start <= record.offset < end
        ]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_records_of_every_codec_are_read_back_in_order(bootstrap: str, topic: str, codec: Codec) -> None:
    sent = [b"value %d " % number * 20 for number in range(500)]
    with Producer(bootstrap, compression=codec) as producer:
        written = [producer.send(topic, value, partition=0) for value in sent]
    assert [future.result().offset for future in written] == list(range(500))
    assert _values(bootstrap, TopicPartition(topic, 0), 0, 500) == sent
    assert _values(bootstrap, TopicPartition(topic, 0), 123, 321) == sent[123:321]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_level_of_acks_writes(bootstrap: str, topic: str, acks: Literal["all", "1", "0"]) -> None:
    with Producer(bootstrap, acks=acks) as producer:
        offset = producer.send(topic, b"value", partition=0).result(SECONDS).offset
    assert offset == (-1 if acks == "0" else 0)
    assert _values(bootstrap, TopicPartition(topic, 0), 0, 1) == [b"value"]


def test_a_key_always_goes_to_the_partition_that_every_client_gives_it(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        count = producer.partition_count(topic)
        written = {key: producer.send(topic, b"v", key=key).result(SECONDS).partition for key in (b"a", b"key", b"21")}
    # librdkafka's murmur2 partitioner is the other opinion.
    other = librdkafka().Producer(bootstrap, {"partitioner": "murmur2"})
    elsewhere = dict(zip(written, other.write(topic, [Message(key, None) for key in written]), strict=True))
    assert elsewhere == written
    assert all(0 <= partition < count for partition in written.values())


def test_keys_headers_timestamps_and_nulls_survive(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        headers = (("trace", b"1"), ("none", None), ("trace", b"2"))
        producer.send(topic, None, key=b"gone", partition=0, headers=headers, timestamp=1_234_567_890_123)
    consumer = Consumer(bootstrap, auto_offset_reset="earliest")
    with consumer:
        consumer.assign([TopicPartition(topic, 0)])
        (record,) = _poll(consumer, 1)
    assert (record.topic, record.partition, record.offset) == (topic, 0, 0)
    assert (record.key, record.value, record.headers) == (b"gone", None, headers)
    assert record.timestamp == 1_234_567_890_123


def _poll(consumer: Consumer, count: int) -> list:  # type: ignore[type-arg]
    records: list = []  # type: ignore[type-arg]
    deadline = time.monotonic() + SECONDS
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(0.5, max_records=count - len(records))
    return records


def test_prebuilt_batches_are_written_in_order_and_once(bootstrap: str, topic: str) -> None:
    batches = [build_batch([Record(0, 1_000, None, b"%d-%d" % (n, i)) for i in range(100)]) for n in range(30)]
    with Producer(bootstrap) as producer:
        written = [producer.send_batch(topic, 0, batch) for batch in batches]
    assert [future.result().offset for future in written] == [100 * number for number in range(30)]
    expected = [b"%d-%d" % (n, i) for n in range(30) for i in range(100)]
    assert _values(bootstrap, TopicPartition(topic, 0), 0, 3_000) == expected


def test_a_small_range_does_not_drag_the_whole_log_along(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, batch_size=1_000) as producer:
        for number in range(2_000):
            producer.send(topic, b"%d" % number, partition=0)
    read = _values(bootstrap, TopicPartition(topic, 0), 700, 703, max_bytes=4_096)
    assert read == [b"700", b"701", b"702"]


def test_an_empty_range_sends_no_request() -> None:
    assert _values("127.0.0.1:1", TopicPartition("any", 0), 5, 5) == []


def test_an_offset_that_does_not_exist_is_an_error_that_says_where_the_log_ends(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, b"only", partition=0).result(SECONDS)
    with pytest.raises(KafkaError, match="offset 7 does not exist, the log ends at 1") as caught:
        _values(bootstrap, TopicPartition(topic, 0), 7, 9)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_records_that_are_gone_are_an_error_that_names_them(mock_cluster: str, topic: str) -> None:
    """librdkafka's mock keeps about 5 MB per partition, as retention by size does."""
    batch = build_batch([Record(0, 1_000, None, os.urandom(1_000)) for _ in range(500)])
    with Producer(mock_cluster) as producer:
        for _ in range(20):
            producer.send_batch(topic, 0, batch)
    partition = TopicPartition(topic, 0)
    with Admin(mock_cluster) as admin:
        first = admin.list_offsets({partition: EARLIEST})[partition].offset
    assert first > 0
    with pytest.raises(KafkaError, match=f"offsets 3 to {first - 1} are gone, the log starts at {first}") as caught:
        _values(mock_cluster, partition, 3, 10_000)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError, match="offsets 3 to 9 are gone"):
        _values(mock_cluster, partition, 3, 10)


def test_a_range_that_reaches_over_the_end_waits_and_then_names_its_position(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, b"only", partition=0).result(SECONDS)
    with pytest.raises(KafkaError, match=r"no record at or after offset 1 \(of a range up to 2\) within 300 ms"):
        _values(bootstrap, TopicPartition(topic, 0), 0, 2, timeout_ms=300, max_wait_ms=100)


def test_a_topic_that_cannot_exist_fails_the_record_and_not_the_producer(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        bad = producer.send(topic, b"value", partition=99)
        with pytest.raises(KafkaError, match="not 99"):
            bad.result(SECONDS)
        assert producer.send(topic, b"value", partition=0).result(SECONDS).offset == 0


def test_a_full_buffer_blocks_and_then_refuses(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio_producer, "UNKNOWN_TOPIC_WAIT_MS", 5_000)
    producer = Producer("127.0.0.1:1", buffer_memory=1_000, max_block_ms=50, linger_ms=0)
    first = producer.send(topic, b"x" * 900)
    with pytest.raises(KafkaError, match=r"buffer\.memory 1000 stayed full for max\.block\.ms 50"):
        producer.send(topic, b"x" * 900)
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1"):
        first.result(SECONDS)
    producer.close()


def test_a_flush_ends_although_others_keep_sending(bootstrap: str, topic: str) -> None:
    stop = threading.Event()
    with Producer(bootstrap) as producer:

        def keep_sending() -> None:
            while not stop.is_set():
                producer.send(topic, b"more", partition=0)

        other = threading.Thread(target=keep_sending)
        other.start()
        try:
            written = producer.send(topic, b"mine", partition=0)
            producer.flush()
            assert written.done()
        finally:
            stop.set()
            other.join()


@pytest.mark.parametrize("settings", [{"acks": "2"}, {"compression": "rar"}, {"acks": "1", "idempotent": True}])
def test_invalid_settings_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(KafkaError):
        Producer("127.0.0.1:9092", **settings)


def test_a_client_made_before_a_fork_works_in_the_child(tailrace_cluster: Cluster, topic: str) -> None:
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(topic, b"parent", partition=0).result(SECONDS)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send(topic, b"child", partition=0).result(SECONDS)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send(topic, b"parent again", partition=0).result(SECONDS).offset == 2


# what only a whole broker can do


def test_a_topic_is_created_described_and_deleted(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(name=topic, partitions=3, configs={"retention.ms": "1000"})])
    (described,) = admin.describe_topics([topic])
    assert (described.name, len(described.partitions), described.replication_factor) == (topic, 3, 1)
    assert described.has_every_leader
    assert topic in [known.name for known in admin.list_topics()]
    settings = {entry.name: entry for entry in admin.describe_configs(2, topic)}
    assert settings["retention.ms"].value == "1000"
    assert settings["retention.ms"].source == 1, "of the topic"
    with pytest.raises(KafkaError) as caught:
        admin.create_topics({topic: 1})
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])
    with pytest.raises(KafkaError) as caught:
        admin.describe_topics([topic])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_agreed_features_come_with_an_epoch_that_rises(admin: Admin, topic: str) -> None:
    before = admin.describe_features()
    admin.create_topics({topic: 1})
    after = admin.describe_features()
    lowest, highest = before.supported["metadata.version"]
    assert lowest <= before.finalized["metadata.version"] <= highest
    assert (after.supported, after.finalized) == (before.supported, before.finalized)
    assert after.epoch > before.epoch > 0


def test_a_broker_that_serves_is_not_unregistered(admin: Admin) -> None:
    (broker,) = admin.list_brokers()
    assert (broker.is_fenced, broker.is_controller) == (False, True)
    with pytest.raises(KafkaError, match="is running: stop it first"):
        admin.unregister_broker(broker.node_id)
    assert admin.list_brokers() == [broker]


def test_offsets_by_end_and_by_time(admin: Admin, tailrace_cluster: Cluster, topic: str) -> None:
    admin.create_topics({topic: 1})
    partition = TopicPartition(topic, 0)
    now = int(time.time() * 1000)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for step in (0, 30, 10, 20):
            producer.send(topic, b"v", timestamp=now - 1_000_000 + step).result(SECONDS)
    found = {
        spec: admin.list_offsets({partition: spec})[partition].offset
        for spec in (EARLIEST, LATEST, MAX_TIMESTAMP, now - 1_000_000 + 5, now)
    }
    assert list(found.values()) == [0, 4, 1, 1, -1]


def test_a_group_shares_a_topic_keeps_its_progress_and_shows_its_lag(
    admin: Admin, tailrace_cluster: Cluster, topic: str
) -> None:
    bootstrap, group = tailrace_cluster.bootstrap_servers, f"group-{topic}"
    admin.create_topics({topic: 2})
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2)
    with Consumer(bootstrap, group=group, topics=[topic], auto_offset_reset="earliest") as first:
        assert len(_poll(first, 15)) == 15
        first.commit()
        (described,) = admin.describe_groups([group])
        assert described.state == "Stable"
        assert {partition.partition for partition in described.members[0].assignment} == {0, 1}
        assert sum(end - offset.offset for offset, end in admin.group_lag(group).values()) == 5
    with Consumer(bootstrap, group=group, topics=[topic], auto_offset_reset="earliest") as second:
        rest = _poll(second, 5)
    assert len(rest) == 5
    assert sum(offset.offset for offset in admin.group_offsets(group).values()) == 20


def test_two_members_share_and_the_one_left_takes_over(admin: Admin, tailrace_cluster: Cluster, topic: str) -> None:
    bootstrap, group = tailrace_cluster.bootstrap_servers, f"group-{topic}"
    admin.create_topics({topic: 4})
    settings = {"group": group, "topics": [topic], "heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"}
    first, second = Consumer(bootstrap, **settings), Consumer(bootstrap, **settings)  # type: ignore[arg-type]
    with first:
        with second:
            _until(lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2, first, second)
            assert not first.assignment() & second.assignment()
        _until(lambda: len(first.assignment()) == 4, first)


def _until(holds, *consumers: Consumer) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            consumer.poll(0.1)


def test_offsets_of_a_group_are_set_from_outside(admin: Admin, topic: str) -> None:
    admin.create_topics({topic: 2})
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    offsets: dict[TopicPartition, OffsetAndMetadata | int] = {
        first: 3,
        second: OffsetAndMetadata(5, metadata="batch 7"),
    }
    admin.commit_offsets(f"group-{topic}", offsets)
    assert admin.group_offsets(f"group-{topic}", [first, second]) == {
        first: OffsetAndMetadata(3),
        second: OffsetAndMetadata(5, metadata="batch 7"),
    }


def test_a_seek_reads_again_from_there(admin: Admin, tailrace_cluster: Cluster, topic: str) -> None:
    admin.create_topics({topic: 1})
    partition = TopicPartition(topic, 0)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        assert len(_poll(consumer, 10)) == 10
        consumer.seek(partition, 7)
        assert [record.offset for record in _poll(consumer, 3)] == [7, 8, 9]
        assert consumer.position(partition) == 10


def test_without_an_offset_to_start_from_none_is_an_error(admin: Admin, tailrace_cluster: Cluster, topic: str) -> None:
    admin.create_topics({topic: 1})
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(KafkaError, match=r"auto\.offset\.reset is none"):
            _poll(consumer, 1)


def test_a_range_comes_as_arrow(admin: Admin, tailrace_cluster: Cluster, topic: str) -> None:
    pytest.importorskip("pyarrow")
    admin.create_topics({topic: 1})
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, key=b"k")
    with RangedFetch(tailrace_cluster.bootstrap_servers) as fetch:
        batches = list(fetch.arrow(TopicPartition(topic, 0), 10, 90, columns=("offset", "value")))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(10, 90))
    assert batches[0].column("value")[0].as_py() == b"10"
