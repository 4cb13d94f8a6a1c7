"""The progress that the group of a keyed consumer has: resets, logs that are cut, and stable offsets."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.group.range_progress import RangeProgress
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry
from tailrace.client.producer import AsyncProducer
from tailrace.client.reading.consumer_reader import ConsumerReader
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.clients.range_commits import ProgressOfAGroup, RangesOfAGroup
from unit.client.keyed.keyed_runs import (
    RECORDS,
    TOPIC_RESOURCE,
    Seen,
    consumer_of,
    ends_of,
    offsets_of,
    on_engine,
    with_ranges,
    written_since,
)


@pytest.fixture
def cut_log(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Once the list has an offset, the position of partition 0 goes back to it, as after an unclean election."""
    cuts: list[int] = []
    take = ConsumerReader.take

    async def cutting(self: ConsumerReader, *arguments: Any) -> Any:
        if cuts:
            name = next(name for name in self.names if name.partition == 0)
            self.assigned.seek(name, cuts.pop())
        return await take(self, *arguments)

    monkeypatch.setattr(ConsumerReader, "take", cutting)
    return cuts


@pytest.fixture(params=["ranges in memory", "stable offsets", "ranges of the node"])
def progress_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AsyncKeyedConsumer]:
    """A function that gives a consumer servers of one kind for the progress of its group."""

    async def takes_none(self: RangeProgress) -> bool:
        return False

    if request.param == "stable offsets":
        monkeypatch.setattr(RangeProgress, "takes_ranges", takes_none)
    ranges = RangesOfAGroup()
    is_in_memory = request.param == "ranges in memory"
    return lambda consumer: with_ranges(consumer, ranges) if is_in_memory else consumer


async def test_records_of_a_keyed_consumer_wait_while_the_progress_of_the_group_cannot_be_read(
    tailrace_cluster: Cluster, topic: str
) -> None:
    ranges = RangesOfAGroup()
    ranges.unreadable = 3
    seen = Seen()
    consumer = with_ranges(consumer_of(tailrace_cluster, topic), ranges)

    await consumer.run(seen.handler(consumer))
    assert ranges.unreadable == 0
    seen.assert_whole()


@pytest.mark.parametrize("code", [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.INVALID_REQUEST], ids=str)
async def test_a_keyed_consumer_starts_over_at_an_offset_that_was_reset_or_that_the_log_does_not_have(
    tailrace_cluster: Cluster, topic: str, code: ErrorCode
) -> None:
    name = TopicPartition(topic, 0)
    offsets: list[int] = []

    class ResetRanges(RangesOfAGroup):
        async def reset(self) -> None:
            self.progress.pop(name, None)
            self.refused[name] = code

        async def committed(self, partitions: TopicPartition) -> ProgressOfAGroup | None:
            """Reading starts over with this call."""
            if partitions == name:
                self.refused.clear()
            return await super().committed(partitions)

    ranges = ResetRanges()
    consumer = with_ranges(consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1), ranges)
    end = (await ends_of(tailrace_cluster, topic))[0]

    async def handle(record: KeyedRecord) -> None:
        if record.partition != 0:
            return
        offsets.append(record.offset)
        if len(offsets) == end:
            await on_engine(ranges.reset())
        if len(offsets) == 2 * end:
            consumer.stop()

    await consumer.run(handle, concurrency=1)
    assert offsets == [*range(end)] * 2
    assert ranges.progress[name] == CommittedProgress(end)


async def test_a_group_offset_that_goes_back_while_a_keyed_consumer_opens_the_partition_counts(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The offset was 30 when the start was found, and is 10 when the progress is read."""
    name = TopicPartition(topic, 0)
    offsets: list[int] = []

    class RewoundRanges(RangesOfAGroup):
        async def committed(self, partitions: TopicPartition) -> ProgressOfAGroup | None:
            if partitions == name and name not in self.progress:
                self.progress[name] = CommittedProgress(10)
                await consumer._engine._reader.commit({name: OffsetAndMetadata(10)})
            return await super().committed(partitions)

    consumer: AsyncKeyedConsumer
    async with AsyncAdmin(tailrace_cluster.bootstrap_servers) as admin:
        await admin.commit_offsets(f"group-{topic}", {name: 30})
    consumer = with_ranges(consumer_of(tailrace_cluster, topic), RewoundRanges())
    end = (await ends_of(tailrace_cluster, topic))[0]

    async def handle(record: KeyedRecord) -> None:
        if record.partition == 0:
            offsets.append(record.offset)
            if record.offset == end - 1:
                consumer.stop()

    await consumer.run(handle, concurrency=1)
    assert offsets == [*range(10, end)]


async def test_a_partition_whose_progress_is_full_reads_nothing_new_until_there_is_room(
    tailrace_cluster: Cluster, topic: str
) -> None:
    name = TopicPartition(topic, 0)
    ranges = RangesOfAGroup({name: ErrorCode.OFFSET_METADATA_TOO_LARGE})
    seen = Seen()
    consumer = with_ranges(
        consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1, max_records_in_hand=4),
        ranges,
    )

    async def handle(record: KeyedRecord) -> None:
        seen.begin(record)
        if record.partition == 0 and ranges.refused:
            await ranges.until(lambda: name in consumer.metrics().ranges)
        seen.end(record)

    run = asyncio.create_task(consumer.run(handle))
    ends = await ends_of(tailrace_cluster, topic)
    await seen.until(lambda: name in consumer.metrics().ranges and seen.count >= ends[1] + ends[2])
    assert consumer.metrics().ranges[name].is_high
    await ranges.until(lambda: consumer.metrics().in_hand == 0)
    assert name in consumer._engine._reader.assigned.paused
    assert seen.count < RECORDS
    ranges.refused.clear()
    await seen.until(lambda: seen.count == RECORDS)
    consumer.stop()
    await run
    assert ranges.progress[name] == CommittedProgress(ends[0])
    seen.assert_whole()


async def test_a_keyed_consumer_works_on_a_cut_log_again_from_the_cut_and_from_what_is_not_done(
    tailrace_cluster: Cluster,
    topic: str,
    cut_log: list[int],
    progress_of: Callable[[AsyncKeyedConsumer], AsyncKeyedConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record is in hand below the cut, and records of other keys were done and committed on both sides of the cut."""
    consumer = progress_of(consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1))
    end = (await ends_of(tailrace_cluster, topic))[0]
    done: dict[int, int] = defaultdict(int)
    behind: dict[int, int] = defaultdict(int)
    held: list[KeyedRecord] = []
    is_cut = False

    def held_key() -> bytes | None:
        return held[0].key if held else b""

    written = written_since(monkeypatch, consumer, lambda: len(done) > end // 2, 3)

    async def handle(record: KeyedRecord) -> Outcome:
        nonlocal is_cut
        if record.partition != 0:
            return Done()
        if record.offset == 1 and not (is_cut and record.attempt == 1):  # until it comes anew
            held.append(record)
            if written.is_set() and not is_cut:
                is_cut = True
                cut_log.append(end - 3)
            return Retry(0.001)
        if record.key == held_key():
            assert done[held[0].offset] or record.offset < 2, "in order"
        done[record.offset] += 1
        if record.offset >= end - 3 and record.key != held_key():
            behind[record.offset] += 1
        if is_cut and done[1] and len(done) == end and set(behind.values()) == {2}:
            consumer.stop()
        return Done()

    await consumer.run(handle)
    assert sorted(done) == list(range(end))


async def test_a_keyed_consumer_works_on_a_log_that_is_shorter_than_the_progress_from_where_it_is_read(
    tailrace_cluster: Cluster, topic: str, progress_of: Callable[[AsyncKeyedConsumer], AsyncKeyedConsumer]
) -> None:
    name = TopicPartition(topic, 0)
    async with AsyncAdmin(tailrace_cluster.bootstrap_servers) as admin:
        await admin.commit_offsets(f"group-{topic}", {name: 1_000})
    consumer = progress_of(consumer_of(tailrace_cluster, topic))
    ranges: Any = consumer._engine._store._ranges
    if isinstance(ranges, RangesOfAGroup):
        ranges.progress[name] = CommittedProgress(1_000)
    seen = Seen()

    await consumer.run(seen.handler(consumer))
    seen.assert_whole()


async def test_progress_of_a_group_beyond_the_start_is_no_progress_in_a_shorter_log_and_skipped_in_another(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The group begins at 0, where its offset was, and meanwhile has progress up to 10 and up to 1,000."""
    ranges = RangesOfAGroup()
    late, shorter = TopicPartition(topic, 0), TopicPartition(topic, 1)
    ranges.progress |= {late: CommittedProgress(10), shorter: CommittedProgress(1_000)}
    offsets: dict[int, list[int]] = defaultdict(list)
    consumer = with_ranges(consumer_of(tailrace_cluster, topic), ranges)
    ends = await ends_of(tailrace_cluster, topic)

    async def handle(record: KeyedRecord) -> None:
        offsets[record.partition].append(record.offset)
        if sum(map(len, offsets.values())) == RECORDS - 10:
            consumer.stop()

    await consumer.run(handle, concurrency=1)
    assert offsets == {0: [*range(10, ends[0])], 1: [*range(ends[1])], 2: [*range(ends[2])]}
    assert ranges.cuts == [(shorter, 0)]


async def test_progress_of_a_group_behind_the_end_of_the_log_is_taken_back_before_other_records_come_there(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """A member found that the log was cut, and was killed before it had told the coordinator."""
    ranges = RangesOfAGroup()
    name, everywhere = TopicPartition(topic, 0), (0, HASH_SPACE - 1)
    offsets: list[int] = []
    end = (await ends_of(tailrace_cluster, topic))[0]
    ranges.progress[name] = CommittedProgress(0).with_committed([Rectangle(5, end + 100, *everywhere)])
    consumer = with_ranges(consumer_of(tailrace_cluster, topic), ranges)

    async def handle(record: KeyedRecord) -> None:
        if record.partition == 0:
            offsets.append(record.offset)
            if ranges.cuts and len(offsets) == 5:
                async with AsyncProducer(tailrace_cluster.bootstrap_servers) as producer:
                    await producer.send(topic, b"new", key=b"new", partition=0)
            if record.value == b"new":
                consumer.stop()

    await consumer.run(handle, concurrency=1)
    assert ranges.cuts == [(name, end)]
    assert offsets == [0, 1, 2, 3, 4, end]


async def test_a_keyed_consumer_of_a_topic_without_key_ranges_commits_stable_offsets(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    async with AsyncAdmin(tailrace_cluster.bootstrap_servers) as admin:
        await admin.alter_configs(TOPIC_RESOURCE, topic, {"key.ranges.enable": "false"})
    consumer = consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1)
    written = written_since(monkeypatch, consumer, lambda: seen.count == RECORDS, 1)

    async def handle(record: KeyedRecord) -> None:
        seen.begin(record)
        seen.end(record)

    run = asyncio.create_task(consumer.run(handle))
    await asyncio.wait((asyncio.create_task(written.wait()), run), return_when=asyncio.FIRST_COMPLETED)
    consumer.stop()
    await run
    assert await offsets_of(tailrace_cluster, topic) == await ends_of(tailrace_cluster, topic)
    seen.assert_whole()


async def test_a_held_key_of_a_view_holds_back_itself_alone(tailrace_cluster: Cluster, topic: str) -> None:
    """A stop and a start repeat no record that is done, though a key in each view partition is held."""
    done: list[tuple[int, int]] = []
    held: dict[int, bytes | None] = {}

    async def live(most: int) -> None:
        consumer = AsyncKeyedConsumer(
            tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[f"{topic}.shared-2"]
        )

        async def handle(record: KeyedRecord) -> Outcome:
            if most < RECORDS and held.setdefault(record.partition, record.key) == record.key:
                return Retry()
            done.append((record.partition, record.offset))
            if len(done) == most:
                consumer.stop()
            return Done()

        await consumer.run(handle)

    await live(40)
    async with AsyncAdmin(tailrace_cluster.bootstrap_servers) as admin:
        progress = await admin.group_progress(f"group-{topic}")
    assert any(found.ranges for found in progress.values()), "the progress is more than offsets"
    await live(RECORDS)
    assert len(set(done)) == len(done) == RECORDS
