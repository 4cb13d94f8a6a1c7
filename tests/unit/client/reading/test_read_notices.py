"""The warnings of a consumer: the fault that keeps it from reading, and the records that it skips."""

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.consumer import AsyncConsumer as AsyncioConsumer
from tailrace.client.reader_settings import Reset
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.client.reading.read_notices import ReadNotices
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record
from tailrace.testing import Cluster
from testkit.clients.scripted_nodes import ScriptedNodes, ScriptedReplica
from unit.client.new_topics import new_topic

SECONDS = 60.0
UNREACHABLE = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cannot connect to 127.0.0.1:1: Connection refused")
NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "partition orders-0 has no leader now")


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.client")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tailrace.client"]


def poll_until(consumer: Consumer, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        assert consumer.poll(0.05) == []


# when it speaks


def notices(group: str | None = "g", timeout_ms: int = 10_000) -> ReadNotices:
    return ReadNotices(group, "tests", bootstrap_timeout_ms=timeout_ms)


def test_a_consumer_that_cannot_read_warns_at_once_and_every_30_seconds(caplog: pytest.LogCaptureFixture) -> None:
    notice = notices(timeout_ms=10**9)
    for now_ms in range(0, 60_001, 1_000):
        notice.check(UNREACHABLE, now_ms, has_answered=False)
    assert lines(caplog) == ["group g cannot read: cannot connect to 127.0.0.1:1: Connection refused"] * 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_consumer_reports_a_fault_that_comes_and_goes_no_more_often(caplog: pytest.LogCaptureFixture) -> None:
    notice = notices(None, timeout_ms=10**9)
    for now_ms in range(0, 29_000, 10):
        notice.check(UNREACHABLE if now_ms % 20 else None, now_ms, has_answered=False)
    assert lines(caplog) == ["consumer tests cannot read: cannot connect to 127.0.0.1:1: Connection refused"]


def test_a_consumer_does_not_report_a_fault_of_less_than_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    notice = notices()
    notice.check(NO_LEADER, 0, has_answered=True)
    notice.check(NO_LEADER, 1_900, has_answered=True)
    notice.check(None, 2_000, has_answered=True)
    notice.check(NO_LEADER, 2_100, has_answered=True)
    assert lines(caplog) == []
    notice.check(NO_LEADER, 4_100, has_answered=True)
    notice.check(None, 4_200, has_answered=True)
    notice.check(None, 4_300, has_answered=True)
    assert lines(caplog) == ["group g cannot read: partition orders-0 has no leader now", "group g reads again"]


def test_a_consumer_of_a_cluster_that_was_never_reached_raises_each_time_its_time_is_over() -> None:
    notice = notices(timeout_ms=1_000)
    notice.begin_poll(0)
    notice.check(UNREACHABLE, 0, has_answered=False)
    notice.check(UNREACHABLE, 999, has_answered=False)
    with pytest.raises(KafkaError, match=r"no broker has answered within bootstrap\.timeout\.ms 1000: cannot connect"):
        notice.check(UNREACHABLE, 1_000, has_answered=False)
    notice.begin_poll(1_000)
    notice.check(UNREACHABLE, 1_500, has_answered=False)
    with pytest.raises(KafkaError, match="no broker has answered"):
        notice.check(None, 2_500, has_answered=False)
    notice.begin_poll(2_500)
    notice.check(UNREACHABLE, 3_000, has_answered=False)
    notice.check(UNREACHABLE, 9_000, has_answered=True)
    notice.check(UNREACHABLE, 99_000, has_answered=True)


def test_only_the_time_of_polls_counts_for_a_cluster_that_was_never_reached() -> None:
    """Between two polls a program processes records, or sleeps, and sends no request."""
    notice = notices(timeout_ms=1_000)
    for began_ms in range(0, 100_000, 10_000):
        notice.begin_poll(began_ms)
        notice.check(UNREACHABLE, began_ms, has_answered=False)
        notice.check(UNREACHABLE, began_ms + 90, has_answered=False, failed_attempt_ms=began_ms)
    notice.begin_poll(100_000)
    with pytest.raises(KafkaError, match="no broker has answered"):
        notice.check(UNREACHABLE, 100_100, has_answered=False, failed_attempt_ms=100_000)


def test_after_a_pause_between_polls_an_attempt_to_connect_has_to_fail_first() -> None:
    notice = notices(timeout_ms=1_000)
    notice.begin_poll(0)
    notice.check(UNREACHABLE, 999, has_answered=False, failed_attempt_ms=900)
    notice.begin_poll(60_000)
    notice.check(UNREACHABLE, 60_000, has_answered=False, failed_attempt_ms=900)
    notice.check(UNREACHABLE, 60_500, has_answered=False, failed_attempt_ms=59_999)
    with pytest.raises(KafkaError, match="no broker has answered"):
        notice.check(UNREACHABLE, 60_501, has_answered=False, failed_attempt_ms=60_001)


def test_a_poll_does_not_wait_for_an_attempt_to_connect_that_hangs_longer_than_the_time_itself() -> None:
    notice = notices(timeout_ms=1_000)
    notice.begin_poll(0)
    notice.check(UNREACHABLE, 999, has_answered=False, failed_attempt_ms=900)
    notice.begin_poll(60_000)
    notice.check(UNREACHABLE, 60_999, has_answered=False, failed_attempt_ms=900)
    with pytest.raises(KafkaError, match="no broker has answered"):
        notice.check(UNREACHABLE, 61_000, has_answered=False, failed_attempt_ms=900)


def test_polls_with_short_pauses_count_as_one_for_a_cluster_that_was_never_reached() -> None:
    """An attempt to connect to an address that drops packets takes longer than most polls."""
    notice = notices(timeout_ms=10_000)
    for began_ms in range(0, 10_000, 1_000):
        notice.begin_poll(began_ms)
        notice.check(None, began_ms + 990, has_answered=False)
    notice.begin_poll(10_000)
    with pytest.raises(KafkaError, match="no broker has answered"):
        notice.check(None, 10_100, has_answered=False)


# a cluster that is not there


def test_poll_raises_when_no_broker_was_ever_reached(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer("127.0.0.1:1", group="g", topics=["x"], bootstrap_timeout_ms=500)
    with consumer, pytest.raises(KafkaError, match=r"no broker has answered .* cannot connect to 127\.0\.0\.1:1"):
        consumer.poll(SECONDS)
    assert lines(caplog)[0].startswith("group g cannot read: cannot connect to 127.0.0.1:1: Connection refused")

    async def poll() -> None:
        async with AsyncioConsumer("127.0.0.1:1", bootstrap_timeout_ms=500) as consumer:
            await consumer.assign([TopicPartition("x", 0)])
            await consumer.poll(SECONDS)

    with pytest.raises(KafkaError, match="no broker has answered"):
        asyncio.run(poll())


# a topic that is not there


def test_a_topic_that_does_not_exist_is_named_to_every_member_until_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(config={"auto.create.topics.enable": "false"}) as cluster:
        first, second = (
            Consumer(cluster.bootstrap_servers, group="g", topics=["never"], auto_offset_reset="earliest")
            for _ in range(2)
        )
        with first, second:
            for consumer in (first, second):
                consumer.poll(0.1)

            def warned() -> list[str]:
                start = "group g cannot read: topic 'never' does not"
                return [line for line in lines(caplog) if line.startswith(start)]

            # A coordinator that is not there yet is a trouble, too; and a poll tells of what came after the last poll.
            deadline = time.monotonic() + SECONDS
            while len(warned()) < 2:
                assert time.monotonic() < deadline
                assert first.poll(0.05) == second.poll(0.05) == []
            for consumer in (first, second):
                assert consumer.trouble is not None
                assert consumer.trouble.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert "topic 'never' does not exist" in consumer.trouble.detail
            assert len(warned()) == 2

            second.close()
            with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
                admin.create_topics({"never": 1})
                producer.send("never", b"v")
            deadline = time.monotonic() + SECONDS
            while not first.poll(0.2):
                assert time.monotonic() < deadline
            while first.trouble is not None:  # it looks once a second, and may have been in a rebalance before
                assert time.monotonic() < deadline
                assert first.poll(0.2) == []


def test_a_chosen_partition_of_a_topic_that_does_not_exist_is_named() -> None:
    with Cluster(config={"auto.create.topics.enable": "false"}) as cluster:
        partition = TopicPartition("never", 0)
        with Consumer(cluster.bootstrap_servers) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            poll_until(consumer, lambda: consumer.trouble)
            assert consumer.trouble is not None
            assert "topic 'never' does not exist" in consumer.trouble.detail
        with Consumer(cluster.bootstrap_servers) as consumer:
            consumer.assign([partition])
            with pytest.raises(KafkaError, match="topic 'never' does not exist"):
                consumer.poll(SECONDS)


@pytest.mark.parametrize("has_sought", [False, True])
async def test_the_first_poll_of_a_topic_that_exists_warns_of_nothing(
    tailrace_cluster: Cluster, caplog: pytest.LogCaptureFixture, has_sought: bool
) -> None:
    topic = f"topic-{uuid4()}"
    partition = TopicPartition(topic, 0)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(topic, b"v", partition=0).result(SECONDS)

    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        if has_sought:
            consumer.seek(partition, 0)
        assert [record.value for record in consumer.poll(SECONDS)] == [b"v"]
        assert consumer.trouble is None
    async with AsyncioConsumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        await consumer.assign([partition])
        if has_sought:
            await consumer.seek(partition, 0)
        assert [record.value for record in await consumer.poll(SECONDS)] == [b"v"]
        assert consumer.trouble is None
    assert lines(caplog) == []


async def test_a_broker_that_has_not_answered_yet_has_not_said_that_a_topic_is_absent() -> None:
    """The refresh of the metadata is slow: until then there is no trouble."""
    may_answer = asyncio.Event()
    replica = ScriptedReplica()
    replica.epochs = [0]

    async def answer(_: int, request: object) -> object:
        return await replica.answer(request)

    class SlowMetadata(ScriptedNodes):
        def describe(self) -> None:
            if may_answer.is_set():
                super().describe()

        async def refresh(self, *_: object, **__: object) -> None:
            await may_answer.wait()
            await super().refresh()

    partition = TopicPartition("orders", 0)
    router = SlowMetadata(answer, {partition: 1})
    fetcher = Fetcher(router, FetchOptions(500, 1, 1_000_000, 0, ""), max_partition_bytes=1_000_000)
    fetcher.assign([partition])
    fetcher.assigned.seek(partition, 0)
    assert fetcher.take(10) == []
    await asyncio.sleep(0)
    assert fetcher.take(10) == []
    assert fetcher.trouble is None
    may_answer.set()
    taken: list[tuple[TopicPartition, Record]] = []
    async with asyncio.timeout(SECONDS):
        while not taken:
            await fetcher.wait(router.now_ms() + 5)
            taken = fetcher.take(10)
    assert [record.value for _, record in taken] == [b"0"]
    await fetcher.close()


# what a new group skips


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Five records in one of two partitions."""
    return new_topic(tailrace_cluster, *[b"v"] * 5, partitions=2)


def skips(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in lines(caplog) if "has no offsets" in line]


def test_a_new_group_that_begins_at_the_end_says_how_much_it_skips(
    tailrace_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, group=f"g-{topic}", topics=[topic]) as consumer:
        poll_until(consumer, lambda: skips(caplog))
        consumer.poll(0.2)
    (line,) = skips(caplog)
    assert line == (
        f"group 'g-{topic}' has no offsets: it starts at the end of {topic} and skips 5 older records; "
        'auto_offset_reset="earliest" reads them'
    )


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_that_skips_nothing_says_nothing(
    tailrace_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture, reset: Reset
) -> None:
    group = f"g-{topic}"
    if reset == "latest":  # the group has offsets
        with Consumer(tailrace_cluster.bootstrap_servers, group=group) as consumer:
            consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            consumer.commit({TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 0})
    with Consumer(tailrace_cluster.bootstrap_servers, group=group, topics=[topic], auto_offset_reset=reset) as consumer:
        deadline = time.monotonic() + SECONDS
        while not consumer.poll(0.2):
            assert time.monotonic() < deadline
    assert skips(caplog) == []


def test_a_group_whose_offset_was_removed_says_what_it_skips(
    tailrace_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    group, partition = f"g-{topic}", TopicPartition(topic, 0)
    with Consumer(tailrace_cluster.bootstrap_servers, group=group) as consumer:
        consumer.assign([partition])
        consumer.commit({partition: 1})
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.delete_records({partition: 3})
    with Consumer(tailrace_cluster.bootstrap_servers, group=group) as consumer:
        consumer.assign([partition])
        poll_until(consumer, lambda: lines(caplog))
        assert consumer.position(partition) == 5
    assert lines(caplog) == [
        f"group '{group}': offset 1 of {partition} is gone (log 3 to 5); goes on at 5 and skips 2 records"
    ]


def test_a_partition_that_comes_again_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    notice = notices()
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    notice.report_skipped({first: 1}, has_offsets=True)
    assert notice.unreported([first, second]) == [second]
    notice.report_skipped({second: 0}, has_offsets=False)
    (line,) = lines(caplog)
    assert line == (
        "group 'g' has no offsets in 1 of its partitions: it starts at the end of orders and skips 1 older record; "
        'auto_offset_reset="earliest" reads them'
    )
