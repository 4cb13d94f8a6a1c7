"""A keyed consumer with a real node: order, retries, rebalances, ends, and what a commit covers."""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.blocking import Admin, Producer
from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.group.range_progress import RangeProgress
from tailrace.client.keyed import outcomes
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry, Skip
from tailrace.client.keyed.progress_store import ProgressStore
from tailrace.client.producer import AsyncProducer
from tailrace.client.reading.consumer_reader import ConsumerReader
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.clients.range_commits import ProgressOfAGroup, RangesOfAGroup

SECONDS = 60.0
TOPIC_RESOURCE = 2
KEYS = 10
RECORDS = 200


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Records of ten keys in three partitions; the values of a key count up."""
    name = f"topic-{uuid4()}"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 3})
    write(tailrace_cluster, name, RECORDS)
    return name


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed key waits for a moment and not for a second."""
    monkeypatch.setattr(outcomes, "FIRST_PAUSE_MS", 1)


def write(cluster: Cluster, topic: str, count: int, start: int = 0) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % (number // KEYS), key=b"key-%d" % (number % KEYS))


def consumer_of(cluster: Cluster, topic: str, **settings: Any) -> AsyncKeyedConsumer:
    return AsyncKeyedConsumer(cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic], **settings)


def ran(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main`, with a deadline that no machine is too slow for."""

    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await main()

    asyncio.run(limited())


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

    def assert_whole(self, records: int = RECORDS) -> None:
        assert dict(self.values) == {b"key-%d" % key: list(range(records // KEYS)) for key in range(KEYS)}


async def offsets_of(cluster: Cluster, topic: str) -> dict[int, int]:
    async with AsyncAdmin(cluster.bootstrap_servers) as admin:
        return {name.partition: at.offset for name, at in (await admin.group_offsets(f"group-{topic}")).items()}


async def ends_of(cluster: Cluster, topic: str) -> dict[int, int]:
    async with AsyncAdmin(cluster.bootstrap_servers) as admin:
        specs = {TopicPartition(topic, index): -1 for index in range(3)}
        return {name.partition: at.offset for name, at in (await admin.list_offsets(specs)).items()}


def test_each_key_is_worked_on_in_order_beside_the_others(tailrace_cluster: Cluster, topic: str) -> None:
    seen = Seen()

    async def main() -> None:
        async with consumer_of(tailrace_cluster, topic) as consumer:

            async def handle(record: KeyedRecord) -> None:
                seen.begin(record)
                for _ in range(hash((record.key, record.offset)) % 5):
                    await asyncio.sleep(0)
                seen.end(record)
                if seen.count == RECORDS:
                    consumer.stop()

            await consumer.run(handle, concurrency=8)
            metrics = consumer.metrics()
            assert (metrics.done_total, metrics.in_hand, metrics.running) == (RECORDS, 0, 0)
        assert await offsets_of(tailrace_cluster, topic) == await ends_of(tailrace_cluster, topic)

    ran(main)
    seen.assert_whole()
    assert 1 < seen.most_running <= 8


def test_a_plain_function_runs_in_as_many_threads_as_there_is_concurrency(
    tailrace_cluster: Cluster, topic: str
) -> None:
    seen, lock = Seen(), threading.Lock()
    together = threading.Barrier(4)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        consumer = consumer_of(tailrace_cluster, topic)

        def handle(record: KeyedRecord) -> Outcome:
            with lock:
                seen.begin(record)
            if int(record.value) == 0 and record.key in (b"key-0", b"key-1", b"key-2", b"key-3"):
                together.wait(SECONDS)  # goes on when four are here
            with lock:
                seen.end(record)
                if seen.count == RECORDS:
                    loop.call_soon_threadsafe(consumer.stop)
            return Done()

        await consumer.run(handle, concurrency=4)

    ran(main)
    seen.assert_whole()
    assert seen.most_running == 4


def test_a_failure_holds_its_key_alone_and_is_logged_once(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    failures = 0

    async def main() -> None:
        nonlocal failures
        consumer = consumer_of(tailrace_cluster, topic)
        others_done = RECORDS - RECORDS // KEYS

        async def handle(record: KeyedRecord) -> None:
            nonlocal failures
            if record.key == b"key-3" and seen.count < others_done:
                failures += 1
                assert record.attempt == failures
                raise ValueError(f"no {failures}")
            seen.begin(record)
            seen.end(record)
            if seen.count == others_done:
                oldest = consumer.metrics().oldest_held
                assert oldest is not None
                assert (oldest.key, oldest.attempts, oldest.fault) == (b"key-3", failures, f"ValueError: no {failures}")
            if seen.count == RECORDS:
                consumer.stop()

        await consumer.run(handle, concurrency=4)
        metrics = consumer.metrics()
        assert metrics.failed_total == metrics.retried_total == failures > 0
        assert metrics.oldest_held is None

    with caplog.at_level(logging.WARNING, logger="tailrace.client"):
        ran(main)
    seen.assert_whole()
    (logged,) = [line for line in caplog.records if "the handler has failed at offset" in line.getMessage()]
    assert logged.exc_info is not None


def test_skips_and_retries_are_counted_and_a_wrong_result_is_a_failure(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    results: list[Any] = [Retry(0), "done", Retry, asyncio.CancelledError(), Skip("a duplicate")]
    count = 0

    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic)

        async def handle(record: KeyedRecord) -> Any:
            nonlocal count
            if record.key == b"key-3" and results:
                result = results.pop(0)
                if isinstance(result, BaseException):
                    raise result  # of a task that the handler has made, say
                return result
            count += 1
            if count == RECORDS - 1:
                consumer.stop()
            return None

        await consumer.run(handle)
        metrics = consumer.metrics()
        assert (metrics.done_total, metrics.skipped_total) == (RECORDS - 1, 1)
        assert (metrics.retried_total, metrics.failed_total) == (4, 3)

    ran(main)


def test_a_stop_in_the_middle_commits_what_is_done_and_a_restart_goes_on_there(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """With stable offsets a record may come again that was done behind an unfinished record; no record is left out."""
    seen = Seen()
    again: list[KeyedRecord] = []

    async def main() -> None:
        for is_second in (False, True):
            consumer = consumer_of(tailrace_cluster, topic)

            async def handle(
                record: KeyedRecord, is_second: bool = is_second, consumer: AsyncKeyedConsumer = consumer
            ) -> None:
                if int(record.value) < len(seen.values[record.key]):
                    assert is_second
                    again.append(record)
                    return
                if not is_second and record.key == b"key-0":
                    await asyncio.Event().wait()  # stuck until the task is cancelled
                seen.begin(record)
                seen.end(record)
                if seen.count == (RECORDS if is_second else 150):
                    consumer.stop()

            if not is_second:
                consumer._settings = replace(consumer._settings, grace_ms=1)
            await consumer.run(handle)
        ends = await ends_of(tailrace_cluster, topic)
        assert await offsets_of(tailrace_cluster, topic) == ends
        assert len(again) < 150

    ran(main)
    seen.assert_whole()


def test_a_cancelled_run_finishes_what_runs_and_commits_it(tailrace_cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic)
        began, go_on = asyncio.Event(), asyncio.Event()
        finished: list[KeyedRecord] = []

        async def handle(record: KeyedRecord) -> None:
            began.set()
            await go_on.wait()
            finished.append(record)

        run = asyncio.create_task(consumer.run(handle, concurrency=1))
        await began.wait()
        run.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        (only,) = finished
        offsets = await offsets_of(tailrace_cluster, topic)
        assert offsets[only.partition] == 1
        assert sum(offsets.values()) == 1

    ran(main)


def test_no_record_begins_while_the_partitions_leave(tailrace_cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic)
        began, go_on = asyncio.Event(), asyncio.Event()
        count = 0

        async def handle(record: KeyedRecord) -> None:
            nonlocal count
            count += 1
            began.set()
            await go_on.wait()

        run = asyncio.create_task(consumer.run(handle, concurrency=1))
        await began.wait()
        assert consumer.metrics().in_hand > 1
        leaving = asyncio.create_task(consumer._on_revoke())
        await asyncio.sleep(0)
        go_on.set()
        await leaving
        assert (count, consumer.metrics().in_hand) == (1, 0)
        assert sum((await offsets_of(tailrace_cluster, topic)).values()) == 1
        consumer.stop()
        await run

    ran(main)


def test_two_share_the_partitions_and_a_leaver_gives_its_own_to_the_other(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """Keys are in order over both members; what the first has running at the rebalance is done, and comes once."""
    seen = Seen()

    async def main() -> None:
        settings = {"heartbeat_interval_ms": 50}
        first, second = (consumer_of(tailrace_cluster, topic, **settings) for _ in range(2))
        by: dict[str, set[int]] = {"first": set(), "second": set()}
        is_split = asyncio.Event()

        def handler(name: str) -> Callable[[KeyedRecord], Awaitable[None]]:
            async def handle(record: KeyedRecord) -> None:
                by[name].add(record.partition)
                if by["second"]:
                    is_split.set()
                seen.begin(record)
                await asyncio.sleep(0)
                seen.end(record)

            return handle

        runs = [asyncio.create_task(first.run(handler("first"), concurrency=4))]
        await seen.until(lambda: seen.count > 0)
        runs.append(asyncio.create_task(second.run(handler("second"), concurrency=4)))
        written = RECORDS
        while not is_split.is_set():
            await asyncio.to_thread(write, tailrace_cluster, topic, 100, written)
            written += 100
        second.stop()
        await runs[1]
        await asyncio.to_thread(write, tailrace_cluster, topic, 100, written)
        written += 100
        await seen.until(lambda: seen.count == written)
        first.stop()
        await runs[0]
        seen.assert_whole(written)
        assert await offsets_of(tailrace_cluster, topic) == await ends_of(tailrace_cluster, topic)

    ran(main)


def test_a_handler_that_does_not_end_does_not_keep_its_partition(
    tailrace_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After the grace the other member gets the record too; the first one's call is cancelled."""

    async def main() -> None:
        first = consumer_of(tailrace_cluster, topic, heartbeat_interval_ms=50, grace_ms=50)
        second = consumer_of(tailrace_cluster, topic, heartbeat_interval_ms=50)
        is_stuck = asyncio.Event()
        cancelled: set[tuple[int, int]] = set()
        taken_over = asyncio.Event()

        async def stuck_handler(record: KeyedRecord) -> None:
            is_stuck.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.add((record.partition, record.offset))
                raise

        async def handle(record: KeyedRecord) -> None:
            if (record.partition, record.offset) in cancelled:
                taken_over.set()

        runs = [asyncio.create_task(first.run(stuck_handler))]
        await is_stuck.wait()
        runs.append(asyncio.create_task(second.run(handle)))
        await taken_over.wait()
        for consumer, run in zip((second, first), reversed(runs), strict=True):
            consumer.stop()
            await run
        assert first.metrics().failed_total == first.metrics().retried_total == 0

    ran(main)
    assert "that the handler has not finished in time" in caplog.text


def test_a_partition_full_of_a_held_key_stops_and_the_others_are_read_to_their_ends(
    tailrace_cluster: Cluster, topic: str
) -> None:
    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic, max_records_in_hand=20)
        ends = await ends_of(tailrace_cluster, topic)
        done: dict[int, int] = dict.fromkeys(range(3), 0)
        most_in_hand = 0
        others = [partition for partition in range(3) if partition != 0]

        async def handle(record: KeyedRecord) -> Outcome:
            nonlocal most_in_hand
            most_in_hand = max(most_in_hand, consumer.metrics().in_hand)
            if record.partition == 0:
                return Retry(3_600)
            done[record.partition] += 1
            if all(done[partition] == ends[partition] for partition in others):
                consumer.stop()
            return Done()

        await consumer.run(handle)
        committed = await offsets_of(tailrace_cluster, topic)
        assert 20 <= most_in_hand <= 50, "the bound, a share for each of the others, and half of it by a poll"
        assert {0: 0} | committed == {0: 0} | {index: ends[index] for index in others}

    ran(main)


def test_a_kill_in_the_middle_repeats_what_no_commit_covers_and_nothing_is_lost(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The consumer is abandoned, as by a kill: no commit, and it does not leave its group."""
    seen: dict[tuple[int, int], int] = defaultdict(int)

    async def main() -> None:
        # A static member: the second one takes its place at once.
        settings: dict[str, Any] = {"auto_commit_interval_ms": 1, "grace_ms": 0, "group_instance_id": "one"}
        first = consumer_of(tailrace_cluster, topic, **settings)
        some = asyncio.Event()

        async def handle(record: KeyedRecord) -> None:
            seen[record.partition, record.offset] += 1
            if len(seen) >= 50:
                some.set()
                await asyncio.Event().wait()

        run = asyncio.create_task(first.run(handle, concurrency=2))
        await some.wait()
        await first._reader.abandon()
        run.cancel()
        with pytest.raises((asyncio.CancelledError, KafkaError)):
            await run
        committed = await offsets_of(tailrace_cluster, topic)
        second = consumer_of(tailrace_cluster, topic, **settings)

        async def check(record: KeyedRecord) -> None:
            assert record.offset >= committed.get(record.partition, 0)
            seen[record.partition, record.offset] += 1
            if len(seen) == RECORDS:
                second.stop()

        await second.run(check)

    ran(main)
    assert len(seen) == RECORDS


def test_a_fault_that_no_retry_cures_ends_the_run_with_it(tailrace_cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic, auto_offset_reset="none")
        with pytest.raises(KafkaError, match=r"auto.offset.reset is none") as caught:
            await consumer.run(lambda record: None)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    ran(main)


def test_the_end_of_the_program_in_a_handler_ends_the_run(tailrace_cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        async def handle(record: KeyedRecord) -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            await consumer_of(tailrace_cluster, topic).run(handle)

    ran(main)


def test_a_consumer_runs_once_and_closes_in_any_state(tailrace_cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic)
        consumer.stop()
        await consumer.run(lambda record: None)
        await consumer.close()
        with pytest.raises(KafkaError, match="runs once"):
            await consumer.run(lambda record: None)
        unused = consumer_of(tailrace_cluster, topic)
        await unused.close()
        await unused.close()
        with pytest.raises(KafkaError, match="runs once"):
            await unused.run(lambda record: None)
        other = consumer_of(tailrace_cluster, topic)
        run = asyncio.create_task(other.run(lambda record: None))
        await asyncio.sleep(0)
        await other.close()
        await run

    ran(main)


def with_ranges(consumer: AsyncKeyedConsumer, ranges: RangesOfAGroup) -> AsyncKeyedConsumer:
    """The consumer, whose group has its progress there."""
    consumer._store = ProgressStore(consumer._reader, ranges)
    return consumer


def test_with_ranges_a_restart_repeats_exactly_what_no_commit_covers(tailrace_cluster: Cluster, topic: str) -> None:
    """A key is stuck from the first record on; records of the other keys are done and committed behind it."""
    ranges = RangesOfAGroup()
    handled: list[set[tuple[int, int]]] = [set(), set()]
    others = RECORDS - RECORDS // KEYS

    async def main() -> None:
        for is_second in (False, True):
            consumer = with_ranges(consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1, grace_ms=0), ranges)
            wanted = RECORDS // KEYS if is_second else others
            done = asyncio.Event()

            async def handle(
                record: KeyedRecord, is_second: bool = is_second, wanted: int = wanted, done: asyncio.Event = done
            ) -> None:
                if record.key == b"key-3" and not is_second:
                    await asyncio.Event().wait()
                handled[is_second].add((record.partition, record.offset))
                if len(handled[is_second]) == wanted:
                    done.set()

            run = asyncio.create_task(consumer.run(handle))
            await done.wait()
            await ranges.more(6)  # two commits of each partition later the stuck key has its hole
            consumer.stop()
            await run
        ends = await ends_of(tailrace_cluster, topic)
        assert {name.partition: at for name, at in ranges.progress.items()} == {
            index: CommittedProgress(end) for index, end in ends.items()
        }

    ran(main)
    assert len(handled[0]) + len(handled[1]) == RECORDS
    assert not handled[0] & handled[1], "nothing came twice"


def test_a_restart_repeats_what_the_commits_of_a_real_node_do_not_cover(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is exactly the stuck key: the node knows ranges."""
    handled: list[set[tuple[int, int]]] = [set(), set()]

    async def main() -> None:
        first = consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1, grace_ms=0)
        # The stuck key was in hand at the commit before, and has its hole.
        written = written_since(monkeypatch, first, lambda: len(handled[0]) == RECORDS - RECORDS // KEYS, 3)

        async def handle(record: KeyedRecord) -> None:
            if record.key == b"key-3":
                await asyncio.Event().wait()
            handled[0].add((record.partition, record.offset))

        run = asyncio.create_task(first.run(handle))
        await written.wait()
        first.stop()
        await run
        committed = await offsets_of(tailrace_cluster, topic)
        second = consumer_of(tailrace_cluster, topic)

        async def rest(record: KeyedRecord) -> None:
            assert record.offset >= committed.get(record.partition, 0)
            handled[1].add((record.partition, record.offset))
            if len(handled[0] | handled[1]) == RECORDS:
                second.stop()

        await second.run(rest)
        assert not handled[0] & handled[1]

    ran(main)


def test_records_wait_while_the_progress_of_the_group_cannot_be_read(tailrace_cluster: Cluster, topic: str) -> None:
    ranges = RangesOfAGroup()
    ranges.unreadable = 3
    seen = Seen()

    async def main() -> None:
        consumer = with_ranges(consumer_of(tailrace_cluster, topic), ranges)

        async def handle(record: KeyedRecord) -> None:
            seen.begin(record)
            seen.end(record)
            if seen.count == RECORDS:
                consumer.stop()

        await consumer.run(handle)
        assert ranges.unreadable == 0

    ran(main)
    seen.assert_whole()


@pytest.mark.parametrize("code", [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.INVALID_REQUEST], ids=str)
def test_an_offset_that_was_reset_starts_over_and_so_do_offsets_that_the_log_does_not_have(
    tailrace_cluster: Cluster, topic: str, code: ErrorCode
) -> None:
    ranges = RangesOfAGroup()
    name = TopicPartition(topic, 0)
    offsets: list[int] = []

    async def main() -> None:
        consumer = with_ranges(consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=1), ranges)
        end = (await ends_of(tailrace_cluster, topic))[0]

        async def handle(record: KeyedRecord) -> None:
            if record.partition != 0:
                return
            if record.offset == 0:
                ranges.refused.clear()
            offsets.append(record.offset)
            if len(offsets) == end:
                ranges.progress.pop(name, None)
                ranges.refused[name] = code
            if len(offsets) == 2 * end:
                consumer.stop()

        await consumer.run(handle, concurrency=1)
        assert offsets == [*range(end)] * 2
        assert ranges.progress[name] == CommittedProgress(end)

    ran(main)


def test_a_partition_whose_progress_is_full_reads_nothing_new_until_there_is_room(
    tailrace_cluster: Cluster, topic: str
) -> None:
    name = TopicPartition(topic, 0)
    ranges = RangesOfAGroup({name: ErrorCode.OFFSET_METADATA_TOO_LARGE})
    seen = Seen()

    async def main() -> None:
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
        assert name in consumer._reader.assigned.paused
        assert seen.count < RECORDS
        ranges.refused.clear()
        await seen.until(lambda: seen.count == RECORDS)
        consumer.stop()
        await run
        assert ranges.progress[name] == CommittedProgress(ends[0])

    ran(main)
    seen.assert_whole()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": ""}, "has a group"),
        ({"topics": []}, "topics to read"),
        ({"topics": "orders"}, "several names"),
        ({"max_records_in_hand": 0}, "max_records_in_hand 0; at least 1"),
        ({"auto_commit_interval_ms": 0}, "auto.commit.interval.ms 0; at least 1"),
        ({"grace_ms": 30_000}, "at most half of session.timeout.ms, 45000"),
        ({"grace_ms": 4_000, "session_timeout_ms": 6_000}, "at most half of session.timeout.ms, 6000"),
    ],
    ids=str,
)
async def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        AsyncKeyedConsumer("127.0.0.1:1", **{"group": "g", "topics": ["orders"]} | settings)


async def test_a_setting_of_commits_is_not_taken() -> None:
    with pytest.raises(TypeError, match="enable_auto_commit"):
        AsyncKeyedConsumer("127.0.0.1:1", group="g", topics=["orders"], enable_auto_commit=True)  # type: ignore[call-arg]


async def test_the_concurrency_is_one_at_least() -> None:
    consumer = AsyncKeyedConsumer("127.0.0.1:1", group="g", topics=["orders"])
    with pytest.raises(KafkaError, match="concurrency 0; at least 1"):
        await consumer.run(lambda record: None, concurrency=0)
    await consumer.close()


@pytest.fixture
def cut_log(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Once the list has an offset, the position of partition 0 goes back to it, as after an unclean election."""
    cuts: list[int] = []
    poll = ConsumerReader.poll

    async def cutting(self: ConsumerReader, *arguments: Any) -> Any:
        if cuts:
            name = next(name for name in self.names if name.partition == 0)
            self.assigned.seek(name, cuts.pop())
        return await poll(self, *arguments)

    monkeypatch.setattr(ConsumerReader, "poll", cutting)
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


def written_since(
    monkeypatch: pytest.MonkeyPatch, consumer: AsyncKeyedConsumer, is_counted: Callable[[], bool], count: int
) -> asyncio.Event:
    """Set when so many commits were made since the condition is true."""
    write, left, written = consumer._store.write, count, asyncio.Event()

    async def counted(commits: Any) -> Any:
        nonlocal left
        was_counted = is_counted()
        result = await write(commits)
        left -= was_counted
        if left == 0:
            written.set()
        return result

    monkeypatch.setattr(consumer._store, "write", counted)
    return written


def test_a_log_that_was_cut_is_worked_on_again_from_the_cut_and_from_what_is_not_done(
    tailrace_cluster: Cluster,
    topic: str,
    cut_log: list[int],
    progress_of: Callable[[AsyncKeyedConsumer], AsyncKeyedConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record is in hand below the cut, and records of other keys were done and committed on both sides of the cut."""

    async def main() -> None:
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

    ran(main)


def test_a_log_that_is_shorter_than_the_progress_is_worked_on_from_where_it_is_read(
    tailrace_cluster: Cluster, topic: str, progress_of: Callable[[AsyncKeyedConsumer], AsyncKeyedConsumer]
) -> None:
    name = TopicPartition(topic, 0)

    async def main() -> None:
        async with AsyncAdmin(tailrace_cluster.bootstrap_servers) as admin:
            await admin.commit_offsets(f"group-{topic}", {name: 1_000})
        consumer = progress_of(consumer_of(tailrace_cluster, topic))
        ranges: Any = consumer._store._ranges
        if isinstance(ranges, RangesOfAGroup):
            ranges.progress[name] = CommittedProgress(1_000)
        seen = Seen()

        async def handle(record: KeyedRecord) -> None:
            seen.begin(record)
            seen.end(record)
            if seen.count == RECORDS:
                consumer.stop()

        await consumer.run(handle)
        seen.assert_whole()

    ran(main)


def test_progress_beyond_the_start_is_no_progress_in_a_log_that_is_shorter_and_skipped_in_another(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The group begins at 0, where its offset was, and meanwhile has progress up to 10 and up to 1,000."""
    ranges = RangesOfAGroup()
    late, shorter = TopicPartition(topic, 0), TopicPartition(topic, 1)
    ranges.progress |= {late: CommittedProgress(10), shorter: CommittedProgress(1_000)}
    offsets: dict[int, list[int]] = defaultdict(list)

    async def main() -> None:
        consumer = with_ranges(consumer_of(tailrace_cluster, topic), ranges)
        ends = await ends_of(tailrace_cluster, topic)

        async def handle(record: KeyedRecord) -> None:
            offsets[record.partition].append(record.offset)
            if sum(map(len, offsets.values())) == RECORDS - 10:
                consumer.stop()

        await consumer.run(handle, concurrency=1)
        assert offsets == {0: [*range(10, ends[0])], 1: [*range(ends[1])], 2: [*range(ends[2])]}
        assert ranges.cuts == [(shorter, 0)]

    ran(main)


def test_progress_behind_the_end_of_the_log_is_taken_back_before_other_records_come_there(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """A member found that the log was cut, and was killed before it had told the coordinator."""
    ranges = RangesOfAGroup()
    name, everywhere = TopicPartition(topic, 0), (0, HASH_SPACE - 1)
    offsets: list[int] = []

    async def main() -> None:
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

    ran(main)


def test_an_offset_that_goes_back_while_the_partition_is_opened_counts(tailrace_cluster: Cluster, topic: str) -> None:
    """The offset was 30 when the start was found, and is 10 when the progress is read."""
    name = TopicPartition(topic, 0)
    offsets: list[int] = []

    class RewoundRanges(RangesOfAGroup):
        async def committed(self, partitions: TopicPartition) -> ProgressOfAGroup | None:
            if partitions == name and name not in self.progress:
                self.progress[name] = CommittedProgress(10)
                await consumer._reader.commit({name: OffsetAndMetadata(10)})
            return await super().committed(partitions)

    consumer: AsyncKeyedConsumer

    async def main() -> None:
        nonlocal consumer
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

    ran(main)


def test_a_topic_without_key_ranges_has_stable_offsets(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()

    async def main() -> None:
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

    ran(main)
    seen.assert_whole()


def test_a_task_that_is_cancelled_before_it_begins_gives_its_place_back(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions leave in the turn of the loop in which their records are taken."""
    seen = Seen()

    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic)
        turn, is_lost = consumer._work.turn, False

        def turn_and_lose() -> None:
            nonlocal is_lost
            turn()
            if consumer._work.running and not is_lost:
                is_lost = True
                for name in consumer._reader.names:
                    consumer._start_over(name)

        async def handle(record: KeyedRecord) -> None:
            seen.begin(record)
            seen.end(record)
            if seen.count == RECORDS:
                consumer.stop()

        monkeypatch.setattr(consumer._work, "turn", turn_and_lose)
        await consumer.run(handle, concurrency=2)
        assert is_lost
        assert consumer.metrics().running == 0

    ran(main)
    seen.assert_whole()


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_failure_whose_text_fails_holds_its_key_too(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    seen = Seen()

    async def main() -> None:
        consumer = consumer_of(tailrace_cluster, topic)

        async def handle(record: KeyedRecord) -> None:
            if record.attempt == 1:
                raise Unspeakable
            held = consumer.metrics().oldest_held
            assert held is not None
            assert held.fault.startswith("Unspeakable")
            seen.begin(record)
            seen.end(record)
            if seen.count == RECORDS:
                consumer.stop()

        await consumer.run(handle, concurrency=2)
        assert consumer.metrics().failed_total == RECORDS
        assert consumer.metrics().running == 0

    ran(main)
    seen.assert_whole()


def test_a_view_has_stable_offsets(tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: set[tuple[int, int]] = set()

    async def main() -> None:
        consumer = AsyncKeyedConsumer(
            tailrace_cluster.bootstrap_servers,
            group=f"group-{topic}",
            topics=[f"{topic}.shared-2"],
            auto_commit_interval_ms=1,
        )
        ends = await ends_of(tailrace_cluster, topic)

        async def handle(record: KeyedRecord) -> None:
            done.add((record.partition, record.offset))

        run = asyncio.create_task(consumer.run(handle))
        committed: dict[int, int] = {}
        while committed != ends:
            written = written_since(monkeypatch, consumer, lambda: True, 1)
            await asyncio.wait((asyncio.create_task(written.wait()), run), return_when=asyncio.FIRST_COMPLETED)
            assert not run.done(), run
            found = await offsets_of(tailrace_cluster, topic)
            committed = {index: max(found.get(2 * index, 0), found.get(2 * index + 1, 0)) for index in ends}
            monkeypatch.undo()
        consumer.stop()
        await run

    ran(main)
    assert len(done) == RECORDS
