"""A consumer without a group reads topics whole; with `until`, up to an end."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from tailrace import aio
from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

RECORDS = 100
PARTITIONS = 3


@pytest.fixture
def topic(servers: str) -> str:
    """A topic with 100 records in three partitions, with timestamps 1,000, 1,001, ..."""
    name = f"whole-{uuid4()}"
    with Admin(servers) as admin:
        admin.create_topics({name: PARTITIONS})
    with Producer(servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS, timestamp=1_000 + number)
    return name


def values(records: Any) -> list[int]:
    return sorted(int(record.value) for record in records)


def whole(servers: str, topic: str, **settings: Any) -> Consumer:
    return Consumer(servers, topics=[topic], **{"auto_offset_reset": "earliest", "until": "end", **settings})


def test_a_whole_topic_is_a_list_of_its_records(servers: str, topic: str) -> None:
    assert values(whole(servers, topic)) == list(range(RECORDS))


@pytest.mark.parametrize("most", [1, 7, 500])
def test_polls_end_too_and_then_return_at_once(servers: str, topic: str, most: int) -> None:
    with whole(servers, topic) as consumer:
        found = []
        while not consumer.is_at_end:
            found += consumer.poll(30, max_records=most)
        assert consumer.poll(1e6) == []
    assert values(found) == list(range(RECORDS))


def test_records_that_come_after_the_first_poll_are_not_read(servers: str, topic: str) -> None:
    with whole(servers, topic) as consumer, Producer(servers) as producer:
        first = consumer.poll(30, max_records=1)
        for partition in range(PARTITIONS):
            producer.send_and_wait(topic, b"1000", partition=partition)
        assert values([*first, *consumer]) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("until", "wanted"),
    [
        (4, [*range(12)]),
        (0, []),
        (datetime.fromtimestamp(1.060, UTC), [*range(60)]),
        (datetime.fromtimestamp(9, UTC), [*range(RECORDS)]),
        (datetime(1969, 12, 31, tzinfo=UTC), []),
    ],
    ids=["offset", "nothing", "time", "later", "before all times"],
)
def test_an_offset_or_a_time_is_an_end(servers: str, topic: str, until: Any, wanted: list[int]) -> None:
    assert values(whole(servers, topic, until=until)) == wanted


def test_each_partition_may_have_its_end(servers: str, topic: str) -> None:
    ends = {(topic, 0): 1, TopicPartition(topic, 1): 0, (topic, 2): 2}
    assert values(whole(servers, topic, until=ends)) == [0, 2, 5]
    del ends[topic, 2]
    with whole(servers, topic, until=ends) as consumer, pytest.raises(KafkaError, match="until has no offset for .*-2"):
        consumer.poll(30)


def test_an_end_beyond_the_log_is_waited_for(servers: str, topic: str) -> None:
    with Consumer(servers, until=40) as consumer, Producer(servers) as producer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 30)
        assert values(consumer.poll(30)) == [90, 93, 96, 99]
        assert not consumer.is_at_end
        for number in range(100, 110):
            producer.send_and_wait(topic, b"%d" % number, partition=0)
        assert values(consumer) == [100, 101, 102, 103, 104, 105]
        assert consumer.position((topic, 0)) == 40


def test_a_seek_back_reads_up_to_the_end_again(servers: str, topic: str) -> None:
    with whole(servers, topic) as consumer:
        assert len(list(consumer)) == RECORDS
        consumer.seek((topic, 1), 30)
        assert not consumer.is_at_end
        assert [record.offset for record in consumer] == [30, 31, 32]


def test_an_end_without_anything_to_read_is_a_mistake(servers: str) -> None:
    with Consumer(servers, until="end") as consumer, pytest.raises(KafkaError, match="nothing to read"):
        list(consumer)


def test_records_that_an_iteration_has_ahead_go_with_their_topic(servers: str, topic: str) -> None:
    with Admin(servers) as admin, Producer(servers) as producer, whole(servers, topic) as consumer:
        admin.create_topics({f"{topic}-other": 1})
        producer.send_and_wait(f"{topic}-other", b"7")
        assert consumer.getone().topic == topic
        consumer.subscribe([f"{topic}-other"])
        assert values(consumer) == [7]


def test_an_end_between_the_records_of_a_poll_ends_the_reading(servers: str, topic: str) -> None:
    with Consumer(servers, until=3) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        assert [record.offset for record in consumer.poll(30, max_records=3)] == [0, 1, 2]
        assert consumer.is_at_end
        assert consumer.poll(1e6) == []
        assert consumer.position((topic, 0)) == 3


def test_an_empty_topic_ends_at_once_and_so_does_a_reading_from_the_end(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.create_topics({f"{topic}-empty": 2})
    assert list(whole(servers, f"{topic}-empty")) == []
    assert list(whole(servers, topic, auto_offset_reset="latest")) == []


def test_an_aborted_transaction_at_the_end_is_stepped_over(servers: str, topic: str) -> None:
    with Producer(servers, transactional_id=str(uuid4())) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"1000", partition=0)
        producer.flush()
        producer.abort_transaction()
    assert values(whole(servers, topic, isolation="read_committed")) == list(range(RECORDS))


def test_a_partition_that_is_added_later_is_read_from_its_first_record_on(servers: str, topic: str) -> None:
    with Consumer(servers, topics=[topic], metadata_max_age_ms=200) as consumer, Producer(servers) as producer:
        consumer.poll(0.5)
        with Admin(servers) as admin:
            admin.create_partitions({topic: 4})
        producer.send_and_wait(topic, b"late", partition=3)
        found: list[Any] = []
        while not any(record.value == b"late" for record in found):
            found += consumer.poll(30)


def test_a_topic_that_is_missing_is_waited_for(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    name = f"missing-{uuid4()}"
    with Consumer(servers, topics=[name], auto_offset_reset="earliest") as consumer, Admin(servers) as admin:
        assert consumer.poll(0.5) == []
        assert consumer.trouble is not None
        assert consumer.trouble.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert f"topic {name!r} does not exist" in caplog.text
        assert name not in {topic.name for topic in admin.list_topics()}, "a consumer creates no topic"
        admin.create_topics([name])
        with Producer(servers) as producer:
            producer.send_and_wait(name, b"7")
        found: list[Any] = []
        while not found:
            found = consumer.poll(30)
        assert values(found) == [7]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"until": "END"}, "until 'END'; say \"end\", a datetime, an offset, or an offset by partition"),
        ({"until": -1}, "until -1"),
        ({"until": True}, "until True"),
        ({"until": {("t", 0): "x"}}, "until {"),
        (
            {"until": "end", "group": "g"},
            "until is for a consumer without a group, as the members of a group read on together; poll(",
        ),
    ],
)
def test_an_end_of_a_wrong_kind_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaError, match="^INVALID_CONFIG: ") as refused:
        Consumer("127.0.0.1:1", **settings)
    assert refused.value.detail.startswith(text)


def test_a_pattern_needs_a_group(servers: str) -> None:
    with Consumer(servers) as consumer, pytest.raises(KafkaError, match="a pattern needs a group"):
        consumer.subscribe(pattern="orders.*")


async def test_an_asyncio_consumer_is_iterated_over(servers: str, topic: str) -> None:
    async with aio.Consumer(servers, topics=[topic], auto_offset_reset="earliest", until="end") as consumer:
        assert values([record async for record in consumer]) == list(range(RECORDS))
        with pytest.raises(KafkaError, match="every record up to `until` is returned"):
            await consumer.getone()


@pytest.mark.parametrize("ask", ["beginning_offsets", "end_offsets"])
def test_offsets_of_no_partition_are_no_offsets(servers: str, ask: str) -> None:
    with Consumer(servers) as consumer:
        assert getattr(consumer, ask)([]) == {}


@pytest.mark.parametrize("settings", [{"until": "end"}, {"until": 3}])
def test_a_topic_that_is_missing_is_no_topic_to_read_to_its_end(servers: str, settings: dict[str, Any]) -> None:
    with (
        Consumer(servers, topics=[f"missing-{uuid4()}"], auto_offset_reset="earliest", **settings) as consumer,
        pytest.raises(KafkaError, match="does not exist") as caught,
    ):
        list(consumer)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_reading_that_begins_at_its_end_says_what_it_skips(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(servers, topics=[topic], until="end", client_id="reader") as consumer:
        assert list(consumer) == []
    assert "consumer reader: it starts at the end of" in caplog.text
    assert f'skips {RECORDS} older records; auto_offset_reset="earliest" reads them' in caplog.text
