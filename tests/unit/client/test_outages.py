"""Deleted topics, damaged logs, and another cluster at the address of the old cluster."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.client.blocking import (
    Admin,
    Consumer,
    KeyedConsumer,
    KeyedRecord,
    MetricName,
    NewTopic,
    Producer,
    RangedFetch,
)
from tailrace.client.group.committed_offsets import OffsetAndMetadata, commit_group_offsets
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.offsets import OffsetCommitRequest
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.testing import Cluster

SECONDS = 60.0


def expire_soon(producer: Producer) -> None:
    """From here on: what is sent before must be written, however slow the machine is."""
    producer._client.get()._accumulator.delivery_timeout_ms = 1_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node that creates no topics by itself."""
    with Cluster(config={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When metadata was asked for."""
    asked: list[float] = []
    refresh = Router.refresh

    async def counted(self: Router, *arguments: object, **options: object) -> None:
        asked.append(time.monotonic())
        await refresh(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "refresh", counted)
    return asked


def test_a_topic_that_is_gone_is_asked_for_with_pauses(cluster: Cluster, questions: list[float]) -> None:
    gone = TopicPartition("gone", 0)
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics({gone.topic: 1})
        producer.send(gone.topic, b"v").result(SECONDS)
        consumer.assign([gone])
        assert consumer.poll(SECONDS)
        admin.delete_topics([gone.topic])
        expire_soon(producer)
        questions.clear()
        began = time.monotonic()
        lost = producer.send(gone.topic, b"v")
        assert consumer.poll(1.0) == []
        assert lost.exception(SECONDS) is not None
        while len(questions) < 4:
            assert time.monotonic() < began + SECONDS, "no task goes on asking"
            assert consumer.poll(0.1) == []
    asked, seconds = len(questions), time.monotonic() - began
    assert asked < 40 * max(1, seconds), "ten a second from each of the two"


def test_a_commit_for_a_topic_that_is_gone_is_final_and_the_others_are_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Java's client. The coordinator answers for each partition, and a retry does not restore a topic."""
    stays, goes = TopicPartition("stays", 0), TopicPartition("goes", 0)
    commits: list[object] = []
    ask = Connection.ask

    async def counted(self: Connection, request: object, *arguments: object, **options: object) -> object:
        if isinstance(request, OffsetCommitRequest):
            commits.append(request)
        return await ask(self, request, *arguments, **options)  # type: ignore[arg-type]

    async def commit(offset: int) -> None:
        router = Router(ClientSettings(cluster.bootstrap_servers))
        try:
            offsets = dict.fromkeys((goes, stays), OffsetAndMetadata(offset))
            await commit_group_offsets(router, "of-what-goes", offsets, timeout_ms=5_000)
        finally:
            router.close()

    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({stays.topic: 1, goes.topic: 1})
        asyncio.run(commit(3))
        admin.delete_topics([goes.topic])
        monkeypatch.setattr(Connection, "ask", counted)
        with pytest.raises(KafkaError, match="commit of goes-0"):
            asyncio.run(commit(7))
        assert admin.group_offsets("of-what-goes", [stays]) == {stays: OffsetAndMetadata(7)}
    assert len(commits) == 1


def test_a_topic_created_again_has_its_new_number_of_partitions(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        admin.create_topics({"anew": 3})
        assert producer.partition_count("anew") == 3
        admin.delete_topics(["anew"])
        admin.create_topics({"anew": 1})
        assert producer.partition_count("anew") == 1
        producer.send("anew", b"v", partition=0).result(SECONDS)


def test_an_administrator_goes_on_when_the_controller_is_gone_for_good() -> None:
    with Cluster(3) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({"before": 1})
        controller = cluster.controller_id
        cluster.kill(controller)
        try:
            admin.create_topics({"after": 1})
        except KafkaError as error:
            # The first attempt has taken effect, but its answer was lost with a leader: the second one finds the topic.
            assert error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert cluster.controller_id != controller
        assert {"before", "after"} <= {topic.name for topic in admin.list_topics()}


def test_topics_of_a_dead_leader_are_refreshed_without_a_request_in_flight() -> None:
    with (
        Cluster(3) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        admin.create_topics(
            [NewTopic(name=f"topic{number}", partitions=1, replication_factor=3) for number in range(7)]
        )
        partitions = [TopicPartition(f"topic{number}", 0) for number in range(7)]
        for partition in partitions:
            producer.send(partition.topic, b"before").result(SECONDS)
        assert {found.offset for found in admin.list_offsets(dict.fromkeys(partitions, -1)).values()} == {1}
        leaders = [topic.partitions[0].leader for topic in admin.describe_topics([name for name, _ in partitions])]
        dead = max(leaders, key=leaders.count)
        cluster.kill(dead)
        busy, *idle = [partition for partition, leader in zip(partitions, leaders, strict=True) if leader == dead]
        producer.send(busy.topic, b"after").result(SECONDS)
        for partition in idle:
            producer.send(partition.topic, b"after").result(SECONDS)
        found = admin.list_offsets(dict.fromkeys(idle, -1))
        assert [found[partition].offset for partition in idle] == [2] * len(idle)


def test_a_partition_without_a_leader_does_not_hold_back_the_others() -> None:
    with Cluster(3) as cluster, Admin(cluster.bootstrap_servers) as admin:
        dead = next(node for node in cluster.broker_ids if node != cluster.controller_id)
        living = next(node for node in cluster.broker_ids if node != dead)
        admin.create_topics([NewTopic(name="orders", assignments={0: [living], 1: [dead]})])
        cluster.kill(dead)
        deadline = time.monotonic() + SECONDS
        while admin.describe_topics(["orders"])[0].has_every_leader:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with Producer(cluster.bootstrap_servers, delivery_timeout_ms=120_000) as producer:
            lost = producer.send("orders", b"v", partition=1)
            assert producer.send("orders", b"v", partition=0).result(SECONDS).offset == 0
            cluster.start(dead)
            assert lost.result(SECONDS).offset == 0


def test_damage_in_one_partition_costs_no_record_of_another() -> None:
    good, damaged = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
            admin.create_topics({good.topic: 2})
            for number in range(40):
                producer.send(good.topic, b"record %d" % number, partition=number % 2).result(SECONDS)
        cluster.stop()
        _damage(cluster.data_dir() / "orders-1" / "00000000000000000000.log", b"record 21")
        cluster.restart()
        with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([good, damaged])
            read, faults = _read(consumer, 20 + 10)
    assert [offset for partition, offset in read if partition == 0] == list(range(20))
    assert [offset for partition, offset in read if partition == 1] == list(range(10))
    assert faults
    assert all("orders-1" in fault for fault in faults)


def test_a_damaged_batch_is_stepped_over_when_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    partition = TopicPartition("orders", 0)
    left = [offset for offset in range(20) if offset not in (11, 12)]
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
            admin.create_topics({partition.topic: 1})
            for number in range(20):
                producer.send(partition.topic, b"record %d" % number, key=b"%d" % number).result(SECONDS)
        cluster.stop()
        for value in (b"record 11", b"record 12"):
            _damage(cluster.data_dir() / "orders-0" / "00000000000000000000.log", value)
        cluster.restart()
        servers = cluster.bootstrap_servers
        with Consumer(servers, on_corrupt="skip", isolation="read_committed") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            read: list[int] = []
            deadline = time.monotonic() + SECONDS
            while len(read) < len(left) and time.monotonic() < deadline:
                read += [record.offset for record in consumer.poll(0.2)]
            assert (read, consumer.position(partition)) == (left, 20)
            assert consumer.metrics()[MetricName("corrupt-batches-skipped-total")] == 2
        with RangedFetch(servers) as fetch, pytest.raises(CorruptRecords, match="orders-0: .* at offset 11 cannot"):
            list(fetch.arrow(partition, 0, 20))
        with RangedFetch(servers, on_corrupt="skip") as fetch:
            rows = [offset for batch in fetch.arrow(partition, 0, 20) for offset in batch["offset"].to_pylist()]
            assert rows == left
            assert fetch.metrics()[MetricName("corrupt-offsets-skipped-total")] == 2
        words = ["consume", "orders", "--from-beginning", "--max-messages", "18", "--bootstrap-server", servers]
        command = [sys.executable, "-m", "tailrace", *words]
        skipping = subprocess.run([*command, "--on-corrupt", "skip"], capture_output=True, text=True, timeout=SECONDS)
        assert skipping.stdout.split("\n")[:-1] == [f"record {offset}" for offset in left]
        assert skipping.stderr.count("cannot be read and is skipped") == 2
        assert "18 records; 2 corrupt batches skipped" in skipping.stderr
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert (ended.returncode, ended.stdout.count("record")) == (1, 11)
        assert "orders-0: a batch of" in ended.stderr
        assert "--on-corrupt skip" in ended.stderr
        done: list[int] = []
        shared = KeyedConsumer(servers, group="g", topics=[partition.topic], on_corrupt="skip")

        def note(record: KeyedRecord) -> None:
            done.append(record.offset)
            if len(done) == len(left):
                shared.stop()

        with shared:
            shared.run(note, concurrency=1)
            assert shared.metrics().corrupt_batches_skipped_total == 2
        assert sorted(done) == left
        with Admin(servers) as admin:
            assert admin.group_offsets("g")[partition].offset == 20
    assert sum("orders-0: a batch of" in line and "is skipped" in line for line in caplog.messages) == 6


def _damage(log: Path, value: bytes) -> None:
    content = log.read_bytes()
    position = content.index(value)
    log.write_bytes(content[:position] + b"R" + content[position + 1 :])


def _read(consumer: Consumer, count: int) -> tuple[list[tuple[int, int]], list[str]]:
    """(partition, offset) of so many records, and the faults met until then and right after."""
    read: list[tuple[int, int]] = []
    faults: list[str] = []
    deadline = time.monotonic() + SECONDS
    while (len(read) < count or not faults) and time.monotonic() < deadline:
        try:
            read += [(record.partition, record.offset) for record in consumer.poll(0.2)]
        except CorruptRecords as fault:
            faults.append(fault.detail)
    return read, faults


def test_another_cluster_at_the_same_address_gets_every_record() -> None:
    """Another producer may have the old producer id in the new cluster: records with it would look like repetitions."""
    with (
        Cluster(config={"num.partitions": "2"}) as cluster,
        Producer(cluster.bootstrap_servers) as old,
        RangedFetch(cluster.bootstrap_servers) as fetch,
    ):
        old.send("orders", b"lost with its cluster", partition=1).result(SECONDS)
        assert _values(fetch, TopicPartition("orders", 1), 1) == [b"lost with its cluster"]
        cluster.kill()
        shutil.rmtree(cluster.data_dir())
        cluster.restart()
        with Producer(cluster.bootstrap_servers) as new:
            new.send("orders", b"from the new one", partition=0).result(SECONDS)
            assert old.send("orders", b"from the old one", partition=0).result(SECONDS).offset == 1
            assert new.send("orders", b"and again", partition=0).result(SECONDS).offset == 2
        expected = [b"from the new one", b"from the old one", b"and again"]
        assert _values(fetch, TopicPartition("orders", 0), 3) == expected


def _values(fetch: RangedFetch, partition: TopicPartition, end: int) -> list[bytes | None]:
    return [
        record.value
        for stretch in fetch.fetch_range(partition, 0, end)
        for buffer in stretch
        for position, _ in iter_batches(buffer)
        for record in read_records(buffer, position)
    ]
