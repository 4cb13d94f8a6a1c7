"""Keyed consumers that share a partition by slots: each record once, keys in order, through joins, leaves and stops."""

import asyncio
import itertools
from collections import defaultdict
from typing import Any

import pytest

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import KEYS, beats_often, consumer_of, write
from unit.client.new_topics import new_topic

SLOTS = 16
RECORDS = 400


@pytest.fixture
def shared(tailrace_cluster: Cluster) -> str:
    """Records of ten keys in one partition; the values of a key count up."""
    name = new_topic(tailrace_cluster)
    write(tailrace_cluster, name, RECORDS)
    return name


def _member(cluster: Cluster, topic: str, group_protocol: str, slots: int | str = SLOTS) -> AsyncKeyedConsumer:
    return consumer_of(cluster, topic, slots=slots, **beats_often(group_protocol))


class DoneByMembers:
    """The records that all members have done."""

    def __init__(self) -> None:
        self.done: list[KeyedRecord] = []
        self.owners: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
        """By slot: the member and its epoch of each record, in the order in which records were done."""
        self._changed = asyncio.Event()

    async def until(self, count: int) -> None:
        """Return when the members have done so many records."""
        while len(self.done) < count:
            self._changed.clear()
            await self._changed.wait()

    def start(self, consumer: AsyncKeyedConsumer, number: int, *, stop_at: int | None = None) -> "asyncio.Task[None]":
        """Run this member. Its handler stops it when all members have done `stop_at` records."""

        async def handle(record: KeyedRecord) -> None:
            await asyncio.sleep(0)  # handlers of other keys run between
            self.done.append(record)
            self.owners[record.slot].append((number, record.member_epoch))
            self._changed.set()
            if stop_at is not None and len(self.done) >= stop_at:
                consumer.stop()

        return asyncio.create_task(consumer.run(handle, concurrency=8))

    def assert_whole(self, topic: str, records: int) -> None:
        """Check that every record came once, from its own place, and the records of each key in order."""
        assert sorted((record.topic, record.partition, record.offset) for record in self.done) == [
            (topic, 0, offset) for offset in range(records)
        ]
        values: dict[bytes | None, list[int]] = defaultdict(list)
        for record in self.done:
            values[record.key].append(int(record.value))
        assert values == {b"key-%d" % key: list(range(records // KEYS)) for key in range(KEYS)}


async def test_members_beyond_the_partitions_share_by_key_and_a_later_owner_has_a_higher_epoch(
    tailrace_cluster: Cluster, shared: str, group_protocol: str
) -> None:
    work = DoneByMembers()
    members = [_member(tailrace_cluster, shared, group_protocol) for _ in range(3)]
    runs = [work.start(members[0], 0)]
    await work.until(20)
    runs += [work.start(member, number) for number, member in enumerate(members[1:], start=1)]
    await work.until(RECORDS // 2)
    await members[0].close()
    await work.until(RECORDS)
    for member in members[1:]:
        await member.close()
    await asyncio.gather(*runs)
    work.assert_whole(shared, RECORDS)
    assert {record.slot for record in work.done} <= set(range(SLOTS))
    for owned in work.owners.values():
        changes = [(a, b) for a, b in itertools.pairwise(owned) if a[0] != b[0]]
        assert all(before[1] < after[1] for before, after in changes), "a fencing token"


async def test_stops_and_starts_repeat_nothing(tailrace_cluster: Cluster, shared: str, group_protocol: str) -> None:
    """The last commit of a slot covers exactly what is done, by ranges within the slot (KIP-X)."""
    work = DoneByMembers()
    lives = 0
    while len(work.done) < RECORDS:
        consumer = _member(tailrace_cluster, shared, group_protocol)
        await work.start(consumer, lives, stop_at=min(len(work.done) + RECORDS // 8, RECORDS))
        lives += 1
    assert lives > 4, "a stop begins no more records"
    work.assert_whole(shared, RECORDS)


async def test_slots_that_fit_the_topic_are_chosen(tailrace_cluster: Cluster, shared: str, group_protocol: str) -> None:
    work = DoneByMembers()
    consumer = _member(tailrace_cluster, shared, group_protocol, "auto")
    run = work.start(consumer, 0)
    await work.until(RECORDS)
    await consumer.close()
    await run
    async with AsyncAdmin(tailrace_cluster.bootstrap_servers) as admin:
        committed = await admin.group_offsets(f"group-{shared}")
    assert {name.topic for name in committed} == {f"{shared}.shared-64"}


@pytest.mark.parametrize("slots", [0, 3, 512, True, "64", "some"])
def test_other_numbers_of_slots_are_refused(slots: Any) -> None:
    with pytest.raises(KafkaError, match="slots .*known are 2, 4, 8") as caught:
        KeyedConsumerSettings("127.0.0.1:1", group="g", topics=["orders"], slots=slots)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


async def test_a_group_with_progress_in_the_topic_is_refused_by_the_run(
    tailrace_cluster: Cluster, shared: str, group_protocol: str
) -> None:
    work = DoneByMembers()
    plain = AsyncKeyedConsumer(tailrace_cluster.bootstrap_servers, group=f"group-{shared}", topics=[shared])
    run = work.start(plain, 0)
    await work.until(10)
    await plain.close()
    await run
    with pytest.raises(KafkaError, match="groups move"):
        await work.start(_member(tailrace_cluster, shared, group_protocol), 1)
