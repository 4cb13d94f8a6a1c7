"""Our consumers in groups of Apache Kafka, by the protocol that the broker offers."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from tailrace.client.blocking import Admin, Consumer, KeyedConsumer, KeyedRecord, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

PARTITIONS = 4
BROKER = {"node.id": "1", "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of a broker that is its own controller."""
    if why := absent():
        pytest.skip(why)
    quick = {
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.session.timeout.ms": "2000",
    }
    with ApacheKafka(BROKER | quick) as broker:
        yield broker.address


@pytest.fixture(scope="module")
def classic_kafka() -> Iterator[str]:
    """The address of a broker that does not offer KIP-848."""
    if why := absent():
        pytest.skip(why)
    with ApacheKafka(BROKER | {"group.coordinator.rebalance.protocols": "classic"}) as broker:
        yield broker.address


def _filled(kafka: str, topic: str) -> str:
    with Admin(kafka) as admin, Producer(kafka) as producer:
        admin.create_topics({topic: PARTITIONS})
        for number in range(8 * PARTITIONS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    return topic


def _names(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def _kind(kafka: str, group: str) -> str:
    with Admin(kafka) as admin:
        return next(str(listing.type) for listing in admin.list_groups() if listing.group == group)


def _read(consumers: list[Consumer], count: int) -> list[bytes | None]:
    values: list[bytes | None] = []

    def is_read() -> bool:
        for consumer in consumers:
            values.extend(record.value for record in consumer.poll(0.1))
        return len(values) >= count

    wait_until(is_read, f"{count} records are read")
    return values


def test_members_share_by_kip_848_and_a_member_that_leaves_has_committed(kafka: str) -> None:
    topic = _filled(kafka, "shared")
    with Consumer(kafka, group="g", topics=[topic], auto_offset_reset="earliest") as first:
        values = _read([first], 8 * PARTITIONS)
        assert _kind(kafka, "g") == "consumer"
        second = Consumer(kafka, group="g", topics=[topic], auto_offset_reset="earliest")

        def is_shared() -> bool:
            values.extend(record.value for consumer in (first, second) for record in consumer.poll(0.1))
            held = [consumer.assignment() for consumer in (first, second)]
            return all(held) and set().union(*held) == _names(topic, *range(PARTITIONS)) and not held[0] & held[1]

        wait_until(is_shared, "both members have partitions")
        second.close()
        wait_until(lambda: not first.poll(0.1) and len(first.assignment()) == PARTITIONS, "the first has all again")
        assert sorted(map(int, filter(None, values))) == list(range(8 * PARTITIONS)), "nothing is repeated or missed"


def test_a_static_member_comes_back_to_its_partitions(kafka: str) -> None:
    topic = _filled(kafka, "static")
    for _ in range(2):
        with Consumer(
            kafka, group="s", topics=[topic], group_instance_id="one", auto_offset_reset="earliest"
        ) as member:
            wait_until(lambda: member.poll(0.1) is not None and len(member.assignment()) == PARTITIONS, "it has all")


def test_the_broker_matches_a_pattern(kafka: str) -> None:
    topics = [_filled(kafka, name) for name in ("pattern-a", "pattern-b")]
    with Consumer(kafka, group="p", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern="pattern-.")
        _read([consumer], 2 * 8 * PARTITIONS)
        assert {partition.topic for partition in consumer.assignment()} == set(topics)


def test_a_topic_that_is_made_anew_is_read_from_its_first_record(kafka: str) -> None:
    topic = _filled(kafka, "anew")
    with Consumer(kafka, group="a", topics=[topic], auto_offset_reset="earliest") as consumer, Admin(kafka) as admin:
        _read([consumer], 8 * PARTITIONS)
        admin.delete_topics([topic])
        wait_until(lambda: not consumer.poll(0.1) and not consumer.assignment(), "the partitions are gone")
        _filled(kafka, topic)
        assert len(_read([consumer], 8 * PARTITIONS)) == 8 * PARTITIONS


def test_a_broker_that_offers_only_the_classic_protocol_gets_that(classic_kafka: str) -> None:
    topic = _filled(classic_kafka, "classic")
    with Consumer(classic_kafka, group="c", topics=[topic], auto_offset_reset="earliest") as consumer:
        _read([consumer], 8 * PARTITIONS)
        assert _kind(classic_kafka, "c") == "classic"
        with Admin(classic_kafka) as admin:
            (described,) = admin.describe_groups(["c"])
        assert [member.topics for member in described.members] == [{topic}]
    with (
        contextlib.closing(Consumer(classic_kafka, group="d", topics=[topic], group_protocol="consumer")) as consumer,
        pytest.raises(KafkaError) as caught,
    ):
        wait_until(lambda: bool(consumer.poll(0.1)), "the refusal")
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_leaver_whose_handler_still_runs_commits_and_leaves(kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    """A closed member subscribes to nothing while a partition of its own is busy (decision 0105)."""
    topic = _filled(kafka, "leaver")
    consumer = KeyedConsumer(kafka, group="leaver", topics=[topic], group_protocol="consumer", grace_ms=30_000)
    began, go_on = threading.Event(), threading.Event()
    done: list[tuple[int, int]] = []

    def handle(record: KeyedRecord) -> None:
        began.set()
        assert go_on.wait(60)
        done.append((record.partition, record.offset))

    def is_withdrawn() -> bool:
        with Admin(kafka) as admin:
            (group,) = admin.describe_groups(["leaver"])
        return [member.topics for member in group.members] == [frozenset()]

    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(consumer.run, handle, concurrency=1)
        assert began.wait(60)
        consumer.stop()
        wait_until(is_withdrawn, "the leaver subscribes to nothing")
        go_on.set()
        run.result(60)
    assert [line for line in caplog.messages if "leaver" in line] == []
    with Admin(kafka) as admin:
        committed = {partition.partition: at.offset for partition, at in admin.group_offsets("leaver").items()}
        (group,) = admin.describe_groups(["leaver"])
    assert not group.members
    ((partition, offset),) = done
    assert committed[partition] == offset + 1
