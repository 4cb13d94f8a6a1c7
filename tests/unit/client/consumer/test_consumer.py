"""A consumer during faults: polls keep their timeout, and a removed member commits nothing."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.client import consumer as asyncio_consumer
from tailrace.client.blocking import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer
from tailrace.client.reader_settings import Reset
from tailrace.client.reading import consumer_reader
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0
RECORDS = 10


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Ten records in one partition, of two."""
    return new_topic(tailrace_cluster, *(b"%d" % number for number in range(RECORDS)), partitions=2)


def _until_records(consumer: Consumer) -> int:
    deadline = time.monotonic() + SECONDS
    count = 0
    while not count and time.monotonic() < deadline:
        count = len(consumer.poll(0.2))
    return count


def test_a_poll_takes_its_time_and_no_more_while_the_coordinator_is_gone() -> None:
    with Cluster() as cluster, Consumer(cluster.bootstrap_servers, group="g", auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
            admin.create_topics({"orders": 2})
            producer.send("orders", b"v", partition=1).result(SECONDS)
        consumer.assign(partitions[:1])
        consumer.poll(0.1)
        consumer.assign(partitions)
        cluster.kill()
        began = time.monotonic()
        assert consumer.poll(0.3) == []
        assert time.monotonic() - began < 30
        cluster.restart()
        assert _until_records(consumer) == 1


@pytest.fixture
def overdue(tailrace_cluster: Cluster, topic: str) -> Iterator[Consumer]:
    """A member that has records and did not poll for max.poll.interval.ms: the group has removed it."""
    with Consumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        max_poll_interval_ms=500,
    ) as consumer:
        assert _until_records(consumer) == RECORDS
        deadline = time.monotonic() + SECONDS
        while consumer.assignment():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield consumer


def test_a_consumer_that_was_removed_from_its_group_cannot_commit(
    tailrace_cluster: Cluster, topic: str, overdue: Consumer
) -> None:
    for offsets in (None, {TopicPartition(topic, 0): 3}):
        with pytest.raises(KafkaError, match="no member of group") as caught:
            overdue.commit(offsets)
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        assert admin.group_offsets(f"group-{topic}") == {}


def test_a_warning_says_why_a_consumer_was_removed_from_its_group(
    overdue: Consumer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = f"group 'group-{topic}': the consumer was not polled for max_poll_interval_ms (500), and has left"
    assert [record for record in caplog.get_records("setup") if record.getMessage().startswith(told)]


def test_a_removed_member_joins_again_with_the_next_poll_and_commits(
    tailrace_cluster: Cluster, topic: str, overdue: Consumer
) -> None:
    member = overdue._client.get()._reader._member
    assert member is not None
    member._member.max_poll_interval_ms = (
        300_000  # that a slow machine puts it out again before it commits is not the point
    )
    assert _until_records(overdue) == RECORDS
    overdue.commit()
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        (committed,) = [at.offset for tp, at in admin.group_offsets(f"group-{topic}").items() if tp.partition == 0]
    assert committed == RECORDS


def test_a_commit_before_the_first_poll_has_nothing_to_commit(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic]) as consumer:
        consumer.commit()
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        assert admin.group_offsets(f"group-{topic}") == {}


@pytest.mark.parametrize(("reset", "read"), [("earliest", RECORDS), ("latest", 0)])
def test_an_offset_out_of_range_is_decided_by_the_reset_rule(
    tailrace_cluster: Cluster, topic: str, reset: Reset, read: int
) -> None:
    partition = TopicPartition(topic, 0)
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset=reset) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        deadline = time.monotonic() + SECONDS
        records = 0
        while consumer.position(partition) != RECORDS and time.monotonic() < deadline:
            records += len(consumer.poll(0.1))
        assert (consumer.position(partition), records) == (RECORDS, read)


def test_an_offset_out_of_range_without_a_reset_rule_is_an_error_until_a_seek(
    tailrace_cluster: Cluster, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        for _ in range(2):
            with pytest.raises(KafkaError, match=f"{partition}: .*auto.offset.reset is none"):
                _until_records(consumer)
        consumer.seek(partition, 4)
        assert _until_records(consumer) == RECORDS - 4


def test_a_leader_that_cannot_describe_the_topics_tries_again(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may end between the join and the assignment: the group must not wait for this leader for ever."""
    refresh = Router.refresh
    failures = [KafkaError(ErrorCode.NETWORK_EXCEPTION, "the node has gone")]

    async def failing_once(self: Router, *arguments: object, **options: object) -> None:
        if options.get("allow_auto_create") and failures:
            raise failures.pop()
        await refresh(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "refresh", failing_once)
    with Consumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        group_protocol="classic",
        auto_offset_reset="earliest",
    ) as consumer:
        assert _until_records(consumer) == RECORDS
    assert not failures


def test_a_group_reads_partitions_that_are_added_while_it_runs(tailrace_cluster: Cluster, topic: str) -> None:
    with (
        Admin(tailrace_cluster.bootstrap_servers) as admin,
        Producer(tailrace_cluster.bootstrap_servers) as producer,
        Consumer(
            tailrace_cluster.bootstrap_servers,
            group=f"group-{topic}",
            topics=[topic],
            auto_offset_reset="earliest",
            metadata_max_age_ms=200,
        ) as consumer,
    ):
        assert _until_records(consumer) == RECORDS
        admin.create_partitions({topic: 3})
        assert producer.partition_count(topic) == 3
        producer.send(topic, b"v", partition=2).result(SECONDS)
        assert _until_records(consumer) == 1
        assert len(consumer.assignment()) == 3


def test_a_group_reads_a_topic_that_is_created_later() -> None:
    with (
        Cluster(config={"auto.create.topics.enable": "false"}) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(cluster.bootstrap_servers, group="g", topics=["later"], auto_offset_reset="earliest") as consumer,
    ):
        assert consumer.poll(0.5) == []
        admin.create_topics({"later": 1})
        producer.send("later", b"v").result(SECONDS)
        assert _until_records(consumer) == 1


def _committed(cluster: Cluster, group: str, partition: TopicPartition) -> int:
    with Admin(cluster.bootstrap_servers) as admin:
        return admin.group_offsets(group, [partition])[partition].offset


def test_a_loop_that_is_left_commits_what_it_was_given(tailrace_cluster: Cluster, topic: str) -> None:
    settings = {"group": f"group-{topic}", "topics": [topic], "auto_offset_reset": "earliest"}
    with Consumer(tailrace_cluster.bootstrap_servers, **settings) as consumer:  # type: ignore[arg-type]
        for record in consumer:
            if record.offset == 2:
                break
        assert consumer.position(TopicPartition(topic, 0)) == 3
    assert _committed(tailrace_cluster, f"group-{topic}", TopicPartition(topic, 0)) == 3
    with Consumer(tailrace_cluster.bootstrap_servers, **settings) as another:  # type: ignore[arg-type]
        assert next(iter(another)).offset == 3


def test_a_commit_in_a_loop_covers_the_current_record_and_none_after_it(tailrace_cluster: Cluster, topic: str) -> None:
    group, partition = f"group-{topic}", TopicPartition(topic, 0)
    with Consumer(
        tailrace_cluster.bootstrap_servers, group=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([partition])
        records = iter(consumer)
        for offset in range(4):
            assert next(records).offset == offset
            consumer.commit()
            assert _committed(tailrace_cluster, group, partition) == offset + 1


def test_a_poll_and_a_seek_go_on_where_a_loop_stands(tailrace_cluster: Cluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        records = iter(consumer)
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        assert [record.offset for record in consumer.poll(SECONDS, max_records=2)] == [3, 4]
        assert next(records).offset == 5
        consumer.seek(partition, 1)
        assert next(records).offset == 1
        consumer.assign([TopicPartition(topic, 1), partition])
        assert next(records).offset == 2
        consumer.assign([TopicPartition(topic, 1)])
        assert consumer.poll(0.1) == []


def test_a_poll_says_that_the_consumer_was_closed_by_another_thread(tailrace_cluster: Cluster, topic: str) -> None:
    for topics in ([topic], []):
        consumer = Consumer(tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=topics)
        if not topics:
            consumer.assign([TopicPartition(topic, 1)])
        with ThreadPoolExecutor(1) as pool:
            poll = pool.submit(consumer.poll, SECONDS)
            while not consumer.assignment():
                assert not poll.done()
                time.sleep(0.01)
            consumer.close()
            with pytest.raises(KafkaError, match="closed"):
                poll.result(SECONDS)


async def test_a_closed_consumer_says_so_and_may_be_closed_again(tailrace_cluster: Cluster, topic: str) -> None:
    consumer = asyncio_consumer.AsyncConsumer(
        tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic]
    )
    await consumer.poll(0.1)
    await consumer.close()
    await consumer.close()
    for call in (consumer.poll(0.1), consumer.commit()):
        with pytest.raises(KafkaError, match="closed"):
            await call


def test_a_partition_without_a_leader_keeps_no_other_from_being_read() -> None:
    with Cluster(3) as cluster, Admin(cluster.bootstrap_servers) as admin:
        dead = next(node for node in cluster.broker_ids if node != cluster.controller_id)
        living = next(node for node in cluster.broker_ids if node != dead)
        admin.create_topics([NewTopic(name="orders", assignments={0: [dead], 1: [living]})])
        partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        with Producer(cluster.bootstrap_servers) as producer:
            for partition in partitions:
                producer.send("orders", b"v", partition=partition.partition).result(SECONDS)
        cluster.kill(dead)
        with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign(partitions)
            assert [record.partition for record in consumer.poll(SECONDS)] == [1]
            cluster.start(dead)
            assert [record.partition for record in consumer.poll(SECONDS)] == [0]


async def test_an_auto_commit_that_is_not_answered_keeps_no_record_back(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    consumer = asyncio_consumer.AsyncConsumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1,
    )
    await consumer.assign([TopicPartition(topic, 0)])
    assert len(await consumer.poll(SECONDS, max_records=2)) == 2
    await asyncio.sleep(0.01)
    with monkeypatch.context() as patch:
        patch.setattr(consumer_reader, "commit_group_offsets", hang)
        async with asyncio.timeout(SECONDS):
            records = await consumer.poll(SECONDS, max_records=3)
        assert [record.offset for record in records] == [2, 3, 4]
        await asked.wait()
    await consumer.close()
    assert _committed(tailrace_cluster, f"group-{topic}", TopicPartition(topic, 0)) == 5


def test_a_commit_renews_offsets_that_have_not_moved(tailrace_cluster: Cluster, topic: str) -> None:
    """Offsets that are not renewed expire; here the offsets are changed from outside, which shows the same sooner."""
    group, partition = f"group-{topic}", TopicPartition(topic, 0)
    with Consumer(
        tailrace_cluster.bootstrap_servers, group=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([partition])
        assert _until_records(consumer) == RECORDS
        consumer.commit()
        with Admin(tailrace_cluster.bootstrap_servers) as admin:
            admin.commit_offsets(group, {partition: OffsetAndMetadata(1)})
        consumer.commit()
    assert _committed(tailrace_cluster, group, partition) == RECORDS


async def test_commits_of_one_partition_do_not_stop_the_auto_commit_of_another(
    tailrace_cluster: Cluster, topic: str
) -> None:
    group, read, other = f"group-{topic}", TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with asyncio_consumer.AsyncConsumer(
        tailrace_cluster.bootstrap_servers,
        group=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1,
    ) as consumer:
        await consumer.assign([read])
        for _ in range(2):
            assert await consumer.poll(SECONDS, max_records=4)
            await consumer.commit({other: 0})
            await asyncio.sleep(0.01)
        assert (await consumer.committed([read]))[read].offset == 4
