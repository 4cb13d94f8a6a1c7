"""A listener gets partitions that come, leave and are lost, and may use the consumer."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tailrace import aio
from tailrace.client.blocking import Admin, Consumer, ConsumerRebalanceListener, Producer
from tailrace.client.group.rebalance_callbacks import RebalanceCallbacks
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

PARTITIONS = 4
SECONDS = 60.0


@pytest.fixture
def servers(tailrace_cluster: Cluster) -> str:
    return tailrace_cluster.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> Iterator[str]:
    name = f"listened-{uuid4()}"
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics({name: PARTITIONS})
        for number in range(40):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
        yield name


class CommittingListener(ConsumerRebalanceListener):
    """Notes its calls, and commits the positions of partitions that leave."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.lines: list[tuple[str, list[int]]] = []
        self.start: int | None = None

    def note(self, what: str, partitions: list[TopicPartition]) -> None:
        self.lines.append((what, [name.partition for name in partitions]))

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.note("assigned", partitions)
        if self.start is not None:
            for name in partitions:
                self.consumer.seek(name, self.start)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.note("revoked", partitions)
        self.consumer.commit({name: self.consumer.position(name) or 0 for name in partitions})


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_partitions_come_and_leave_once_and_are_committed_by_the_listener(
    servers: str, topic: str, protocol: str
) -> None:
    settings = {
        "group": f"g-{topic}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "bootstrap.servers": servers,
    }
    with Consumer(settings) as first, Consumer(settings) as second:
        diaries = CommittingListener(first), CommittingListener(second)
        first.subscribe([topic], listener=diaries[0])
        found = 0
        while found < 40:
            found += len(first.poll(SECONDS))
        assert diaries[0].lines == [("assigned", [0, 1, 2, 3])]
        second.subscribe([topic], listener=diaries[1])
        while len(second.assignment()) < 2 or len(first.assignment()) > 2:
            assert [*first.poll(0.1), *second.poll(0.1)] == [], "the listener has committed every record"
    told = {(what, partition) for diary in diaries for what, partitions in diary.lines for partition in partitions}
    assert told == {(what, partition) for what in ("assigned", "revoked") for partition in range(PARTITIONS)}
    for diary in diaries:
        owned: set[int] = set()
        for what, partitions in diary.lines:
            assert owned.isdisjoint(partitions) if what == "assigned" else owned.issuperset(partitions), diary.lines
            owned = owned.union(partitions) if what == "assigned" else owned.difference(partitions)
        assert owned == set(), "close tells of the last partitions"


def test_a_listener_decides_where_partitions_begin(servers: str, topic: str) -> None:
    with Consumer(servers, group=f"g-{topic}") as consumer:
        diary = CommittingListener(consumer)
        diary.start = 8
        consumer.subscribe([topic], listener=diary)
        found: list[int] = []
        while len(found) < 8:
            found += [record.offset for record in consumer.poll(SECONDS)]
        assert sorted(found) == [8, 8, 8, 8, 9, 9, 9, 9]


def test_an_exception_of_a_listener_is_raised_by_the_poll(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise LookupError("no such table")

    with Consumer(servers, group=f"g-{topic}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic], listener=Broken())
        with pytest.raises(LookupError, match="no such table"):
            _poll_for_ever(consumer)
        assert "a rebalance listener has failed for listened-" in caplog.text
        assert consumer.poll(SECONDS), "the member goes on"
        with pytest.raises(TypeError, match="listener is a ConsumerRebalanceListener, not str"):
            consumer.subscribe([topic], listener="me")  # type: ignore[arg-type]


def _poll_for_ever(consumer: Consumer) -> None:
    while True:
        consumer.poll(1)


async def test_coroutines_are_awaited(servers: str, topic: str) -> None:
    told = []

    class Slow(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            later = asyncio.Event()
            asyncio.get_running_loop().call_soon(later.set)
            await later.wait()
            told.append(len(partitions))

    async with aio.Consumer(servers, group=f"g-{topic}", auto_offset_reset="earliest") as consumer:
        await consumer.subscribe([topic], listener=Slow())
        assert await consumer.poll(SECONDS)
        assert told == [PARTITIONS]


async def test_lost_partitions_are_reported_before_partitions_that_come_again() -> None:
    lines: list[tuple[str, list[TopicPartition]]] = []

    class AsyncListener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            lines.append(("assigned", partitions))

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            lines.append(("lost", partitions))

    callbacks = RebalanceCallbacks()
    callbacks.listener = AsyncListener()
    names = [TopicPartition("t", number) for number in range(3)]
    callbacks.assign(names)
    await callbacks.tell()
    callbacks.lose(frozenset(names))
    callbacks.assign(())
    callbacks.assign(names[:1])
    await callbacks.tell()
    await callbacks.tell()
    assert lines == [("assigned", names), ("lost", names), ("assigned", names[:1])]
