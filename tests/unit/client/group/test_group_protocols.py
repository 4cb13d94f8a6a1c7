"""Members of ours at a node: the protocol that they choose, and partitions that stay while others move."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.group.consumer_host import ConsumerGroupMember
from tailrace.client.group.consumer_member import SendConsumerHeartbeat
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.reading import consumer_reader
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until
from unit.client.new_topics import new_topic

PARTITIONS = 4
RECORDS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node whose groups send heartbeats often."""
    with Cluster(config={"group.consumer.heartbeat.interval.ms": "50"}) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Two records in each of four partitions."""
    name = new_topic(cluster, partitions=PARTITIONS)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    return name


def _kind(cluster: Cluster, topic: str) -> str:
    with Admin(cluster.bootstrap_servers) as admin:
        return next(str(listing.type) for listing in admin.list_groups() if listing.group == f"group-{topic}")


def _member(cluster: Cluster, topic: str, **settings: Any) -> Consumer:
    settings = {"auto_offset_reset": "earliest", "topics": [topic], **settings}
    return Consumer(cluster.bootstrap_servers, group=f"group-{topic}", **settings)


def _poll_until(count: int, *consumers: Consumer) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []

    def is_read() -> bool:
        for consumer in consumers:
            records.extend(consumer.poll(0.05))
        return len(records) >= count

    wait_until(is_read, f"{count} records")
    return records


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "consumer"),
        ({"group_protocol": "consumer", "group_remote_assignor": "range"}, "consumer"),
        ({"group_protocol": "classic"}, "classic"),
        ({"session_timeout_ms": 30_000}, "classic"),
        ({"heartbeat_interval_ms": 1_000}, "classic"),
        ({"partition_assignment_strategy": ["roundrobin"]}, "classic"),
    ],
    ids=str,
)
def test_a_member_joins_by_kip_848_unless_a_setting_is_of_classic_groups(
    cluster: Cluster, topic: str, settings: dict[str, object], kind: str
) -> None:
    with _member(cluster, topic, **settings) as consumer:
        _poll_until(RECORDS, consumer)
        assert _kind(cluster, topic) == kind


def test_partitions_that_stay_are_read_on_while_others_move(cluster: Cluster, topic: str) -> None:
    """Nothing is committed, so that a partition that had moved to and fro would be read again."""
    with _member(cluster, topic, enable_auto_commit=False) as first:
        _poll_until(RECORDS, first)
        before = first.assignment()
        with _member(cluster, topic, enable_auto_commit=False) as second:
            again = _poll_until(RECORDS // 2, second, first)
            stayed = before - second.assignment()
            wait_until(lambda: not first.poll(0.05) and first.assignment() == stayed, "the first has given two up")
            assert {TopicPartition(record.topic, record.partition) for record in again} == second.assignment()
            assert len(again) == RECORDS // 2
            with Producer(cluster.bootstrap_servers) as producer:
                for name in sorted(stayed):
                    producer.send(topic, b"new", partition=name.partition)
            assert [record.value for record in _poll_until(2, first)] == [b"new", b"new"]


def test_partitions_that_leave_were_committed(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic) as first:
        _poll_until(RECORDS, first)
        with _member(cluster, topic) as second:

            def has_share() -> bool:
                """Whether the second has partitions, and has found its positions in them."""
                is_quiet = not first.poll(0.05) and not second.poll(0.05)
                positions = [second.position(name) for name in second.assignment()]
                return is_quiet and bool(positions) and None not in positions

            wait_until(has_share, "a share")
            for name in second.assignment():
                assert second.position(name) == RECORDS // PARTITIONS


def test_a_member_that_leaves_gives_its_partitions_to_the_others_at_once(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic) as first:
        with _member(cluster, topic) as second:
            wait_until(lambda: not (first.poll(0.05), second.poll(0.05)) or bool(second.assignment()), "both share")
        wait_until(lambda: first.poll(0.05) is not None and len(first.assignment()) == PARTITIONS, "the first has all")


def test_a_commit_of_offsets_is_that_of_the_member_in_its_epoch(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic, enable_auto_commit=False) as consumer:
        _poll_until(RECORDS, consumer)
        metadata = consumer.group_metadata()
        assert metadata.generation_id > 0
        assert metadata.member_id
        consumer.commit()
        assert len(consumer.committed(consumer.assignment())) == PARTITIONS


def test_a_pattern_brings_the_topics_that_match_also_later(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic, topics=[]) as consumer:
        consumer.subscribe(pattern=f"{topic}.*")
        _poll_until(RECORDS, consumer)
        with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
            admin.create_topics({f"{topic}-later": 1})
            producer.send(f"{topic}-later", b"late")
        assert [record.value for record in _poll_until(1, consumer)] == [b"late"]


def test_a_pattern_needs_the_protocol_that_has_patterns(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic, topics=[], group_protocol="classic") as consumer, pytest.raises(KafkaError) as caught:
        consumer.subscribe(pattern="orders.*")
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_topic_that_is_missing_is_named_and_read_once_it_is_there(cluster: Cluster, topic: str) -> None:
    missing = f"{topic}-missing"
    with _member(cluster, topic, topics=[topic, missing]) as consumer:
        _poll_until(RECORDS, consumer)
        wait_until(lambda: not consumer.poll(0.05) and consumer.trouble is not None, "the trouble")
        assert missing in str(consumer.trouble)
        with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
            admin.create_topics({missing: 1})
            producer.send(missing, b"here")
        assert [record.value for record in _poll_until(1, consumer)] == [b"here"]
        wait_until(lambda: not consumer.poll(0.05) and consumer.trouble is None, "no trouble")


def test_a_topic_that_is_made_anew_is_another_topic(cluster: Cluster, topic: str) -> None:
    with _member(cluster, topic) as consumer, Admin(cluster.bootstrap_servers) as admin:
        _poll_until(RECORDS, consumer)
        admin.delete_topics([topic])
        wait_until(lambda: not consumer.poll(0.05) and not consumer.assignment(), "the partitions are gone")
        admin.create_topics({topic: 1})
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send(topic, b"anew")
        assert [record.value for record in _poll_until(1, consumer)] == [b"anew"]


async def test_heartbeats_go_on_and_nothing_is_given_on_while_a_handler_holds_partitions_back(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beaten = threading.Event()
    beats = 0
    request = ConsumerGroupMember._request

    def counted(member: ConsumerGroupMember, effect: SendConsumerHeartbeat) -> ConsumerGroupHeartbeatRequest:
        """Note the fifth heartbeat of a member that is giving partitions up."""
        nonlocal beats
        if member._releases:
            beats += 1
            if beats == 5:
                beaten.set()
        return request(member, effect)

    monkeypatch.setattr(ConsumerGroupMember, "_request", counted)
    stuck, go_on, is_done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    held: set[int] = set()
    done: list[tuple[int, int]] = []

    def note(record: KeyedRecord) -> None:
        done.append((record.partition, record.offset))
        if len(done) == RECORDS:
            is_done.set()

    async def hold(record: KeyedRecord) -> None:
        held.add(record.partition)
        if len(held) == PARTITIONS:  # a partition without a call under way may be given on at once
            stuck.set()
        await go_on.wait()
        note(record)

    async def take(record: KeyedRecord) -> None:
        note(record)

    first, second = (
        AsyncKeyedConsumer(cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic], grace_ms=60_000)
        for _ in range(2)
    )
    runs = [asyncio.create_task(first.run(hold, concurrency=RECORDS))]
    await stuck.wait()
    runs.append(asyncio.create_task(second.run(take)))
    assert await asyncio.to_thread(beaten.wait, 120), "heartbeats go on"
    assert not done, "no partition has two owners"
    go_on.set()
    await is_done.wait()
    for consumer in (first, second):
        await consumer.close()
    await asyncio.gather(*runs)
    every = [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)]
    assert sorted(done) == every, "no record is repeated"


async def test_a_member_that_is_not_polled_leaves_and_comes_back(cluster: Cluster, topic: str) -> None:
    consumer = AsyncConsumer(
        cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_interval_ms=200,
    )
    async with consumer:
        while not await consumer.poll(0.05):
            pass
        member = consumer._reader._member
        assert member is not None
        while consumer.assignment():
            member.changed.clear()
            await member.changed.wait()
        with pytest.raises(KafkaError, match="no member of group"):
            await consumer.commit()
        while not await consumer.poll(0.05):
            pass


async def test_a_commit_of_ranges_in_an_epoch_that_was_raised_just_now_is_sent_again(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has raised the epoch, and the answer with the new epoch is on its way: a keyed consumer that
    stops in this moment repeats nothing."""
    name = TopicPartition(topic, 0)
    async with AsyncConsumer(cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic]) as consumer:
        while name not in consumer.assignment():
            await consumer.poll(0.05)
        progress, member = consumer._reader.progress, consumer.group_metadata()
        authors = [member._replace(generation_id=member.generation_id - 1), member]
        monkeypatch.setattr(progress, "_author", lambda: authors.pop(0))
        await consumer.commit(ranges={name: [Rectangle(0, 1)]})
        found = await consumer.committed(name)
    assert authors == []
    assert found is not None
    assert found.stable_offset == 2


async def test_a_commit_is_not_sent_again_after_the_group_has_removed_the_member(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member may have read and committed the partition meanwhile: the old offset would rewind the group."""
    name = TopicPartition(topic, 0)
    codes: list[ErrorCode] = []
    async with AsyncConsumer(cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic]) as consumer:
        while name not in consumer.assignment():
            await consumer.poll(0.05)

        async def refuse(*_: object, **__: object) -> None:
            codes.append(ErrorCode.STALE_MEMBER_EPOCH)
            consumer._reader.lost()
            consumer._reader.assigned_by_group((name,))
            raise KafkaError(codes[-1], "refused")

        with monkeypatch.context() as patch:
            patch.setattr(consumer_reader, "commit_group_offsets", refuse)
            with pytest.raises(KafkaError, match="refused"):
                await consumer.commit({name: 1})
    assert len(codes) == 1


def test_a_setting_that_chooses_the_classic_protocol_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def said(group: str, **settings: Any) -> list[str]:
        caplog.clear()
        for _ in range(2):
            with Consumer("127.0.0.1:1", group=group, topics=["t"], **settings) as consumer:
                consumer.subscription()
        return [record.getMessage() for record in caplog.records if "protocol" in record.getMessage()]

    (alone,) = said("short", session_timeout_ms=10_000)
    assert alone.startswith("group short: the member joins by the classic protocol, and not by KIP-848, which lacks ")
    assert alone.endswith('lacks session_timeout_ms; leave the setting out, or say group_protocol="classic"')
    (both,) = said("both", session_timeout_ms=10_000, heartbeat_interval_ms=1_000)
    assert "session_timeout_ms and heartbeat_interval_ms; leave the settings out" in both
    assert said("chosen", session_timeout_ms=10_000, group_protocol="classic") == []
    assert said("plain") == []
