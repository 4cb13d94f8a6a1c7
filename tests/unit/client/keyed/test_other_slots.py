"""Members with other slots than the members of their group: refused in any order, before they get a record."""

import asyncio
from typing import Any

import pytest

from tailrace.client.consumer import AsyncConsumer
from tailrace.client.group.topic_views import TopicViews
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import beats_often, consumer_of, write
from unit.client.new_topics import new_topic

RECORDS = 100


async def _poll_in_vain(consumer: AsyncConsumer) -> None:
    while True:
        assert not await consumer.poll(0.05)


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Records of ten keys in one partition."""
    name = new_topic(tailrace_cluster)
    write(tailrace_cluster, name, RECORDS)
    return name


class HandledCount:
    """The number of records that a handler has got."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    async def handle(self, record: KeyedRecord) -> None:
        self.count += 1
        self._changed.set()

    async def until(self, count: int) -> None:
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()


async def test_of_two_members_that_join_in_the_same_moment_the_later_is_refused_and_the_earlier_reads_on(
    tailrace_cluster: Cluster, topic: str, group_protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, has_joined, may_look = TopicViews._look_at_members, asyncio.Event(), asyncio.Event()
    loop, looking = asyncio.get_running_loop(), set[TopicViews]()

    async def look_later(self: TopicViews, *words: Any) -> KafkaError | None:
        """Look at the other members when both have joined."""
        looking.add(self)
        loop.call_soon_threadsafe(has_joined.set)
        if len(looking) == 2:
            may_look.set()
        await may_look.wait()
        return await look(self, *words)

    monkeypatch.setattr(TopicViews, "_look_at_members", look_later)
    settings = beats_often(group_protocol)
    first = consumer_of(tailrace_cluster, topic, slots=64, client_id="first", **settings)
    second = consumer_of(tailrace_cluster, topic, slots=32, client_id="second", **settings)
    handled = {name: HandledCount() for name in ("first", "second")}
    run = asyncio.create_task(first.run(handled["first"].handle))
    await has_joined.wait()
    with pytest.raises(KafkaError, match=rf"member 'first' .* reads '{topic}.shared-64'") as caught:
        await second.run(handled["second"].handle)
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    await handled["first"].until(RECORDS)
    await first.close()
    await run
    assert (handled["first"].count, handled["second"].count) == (RECORDS, 0)


async def test_a_member_that_comes_back_to_a_group_with_other_slots_is_refused(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    """The member was out of its group, which had no other member, when the other member joined."""
    settings = {"auto_offset_reset": "earliest", **beats_often(group_protocol)}
    first = AsyncConsumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        allow_individual_commit=True,
        enable_auto_commit=False,
        max_poll_interval_ms=200,
        **settings,
    )
    second = consumer_of(tailrace_cluster, topic, slots=32, client_id="second", **settings)
    handled = HandledCount()
    async with first:
        while not await first.poll(0.05):
            pass
        member = first._reader._member
        assert member is not None
        while first.assignment():
            member.changed.clear()
            await member.changed.wait()
        run = asyncio.create_task(second.run(handled.handle))
        await handled.until(RECORDS)
        with pytest.raises(KafkaError, match="member 'second' .* all members of a group have the same slots"):
            await _poll_in_vain(first)
        await second.close()
        await run
    assert handled.count == RECORDS
