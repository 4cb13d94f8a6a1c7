"""Runs of a keyed consumer: a topic with records of ten keys, what its handlers have seen, and what is committed."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.blocking import Producer
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.keyed.progress_store import ProgressStore
from tailrace.client.loop_thread import loop_thread
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.clients.range_commits import RangesOfAGroup

SECONDS = 60.0
TOPIC_RESOURCE = 2
KEYS = 10
RECORDS = 200

T = TypeVar("T")


def write(cluster: Cluster, topic: str, count: int, start: int = 0) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % (number // KEYS), key=b"key-%d" % (number % KEYS))


def consumer_of(cluster: Cluster, topic: str, **settings: Any) -> AsyncKeyedConsumer:
    return AsyncKeyedConsumer(cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic], **settings)


def beats_often(group_protocol: str) -> dict[str, Any]:
    """The settings of a member that sends heartbeats often. By KIP-848 the node chooses their interval."""
    pace = {"heartbeat_interval_ms": 50} if group_protocol == "classic" else {}
    return {"group_protocol": group_protocol, **pace}


class Seen:
    """The records that handlers got, and the order in which each key was done."""

    def __init__(self) -> None:
        self.values: dict[bytes | None, list[int]] = defaultdict(list)
        self.count = 0
        self.running: set[tuple[int, bytes | None]] = set()
        self.most_running = 0
        self.changed = asyncio.Event()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return when the condition is true, which is looked at after each record."""
        while not is_true():
            self.changed.clear()
            await self.changed.wait()

    def begin(self, record: KeyedRecord) -> None:
        lane = (record.partition, record.key)
        assert lane not in self.running, "one record of a key at a time"
        self.running.add(lane)
        self.most_running = max(self.most_running, len(self.running))

    def end(self, record: KeyedRecord) -> None:
        self.running.remove((record.partition, record.key))
        self.values[record.key].append(int(record.value))
        self.count += 1
        self.changed.set()

    def handler(self, consumer: AsyncKeyedConsumer) -> Callable[[KeyedRecord], Awaitable[None]]:
        """A handler that stops the consumer at the last record."""

        async def handle(record: KeyedRecord) -> None:
            self.begin(record)
            self.end(record)
            if self.count == RECORDS:
                consumer.stop()

        return handle

    def assert_whole(self, records: int = RECORDS) -> None:
        assert dict(self.values) == {b"key-%d" % key: list(range(records // KEYS)) for key in range(KEYS)}


async def offsets_of(cluster: Cluster, topic: str) -> dict[int, int]:
    async with AsyncAdmin(cluster.bootstrap_servers) as admin:
        return {name.partition: at.offset for name, at in (await admin.group_offsets(f"group-{topic}")).items()}


async def ends_of(cluster: Cluster, topic: str) -> dict[int, int]:
    async with AsyncAdmin(cluster.bootstrap_servers) as admin:
        specs = {TopicPartition(topic, index): -1 for index in range(3)}
        return {name.partition: at.offset for name, at in (await admin.list_offsets(specs)).items()}


def with_ranges(consumer: AsyncKeyedConsumer, ranges: RangesOfAGroup) -> AsyncKeyedConsumer:
    """The consumer, whose group has its progress there."""
    engine = consumer._engine
    engine._store = ProgressStore(engine._reader, ranges)
    return consumer


async def on_engine(work: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine, run on the loop of the consumers' engines."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop_thread().loop))


def written_since(
    monkeypatch: pytest.MonkeyPatch, consumer: AsyncKeyedConsumer, is_counted: Callable[[], bool], count: int
) -> asyncio.Event:
    """Set when so many commits were made since the condition is true."""
    store, left, written, loop = consumer._engine._store, count, asyncio.Event(), asyncio.get_running_loop()
    write = store.write

    async def counted(commits: Any) -> Any:
        nonlocal left
        was_counted = is_counted()
        result = await write(commits)
        left -= was_counted
        if left == 0:
            loop.call_soon_threadsafe(written.set)
        return result

    monkeypatch.setattr(store, "write", counted)
    return written
