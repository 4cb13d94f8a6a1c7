"""A keyed consumer that stops, leaves or is killed: what its commits cover, and what comes again."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.client.group.range_progress import RangeProgress
from tailrace.client.keyed.handler_tasks import HandlerTasks
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.loop_thread import loop_thread
from tailrace.model.committed_progress import CommittedProgress
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from testkit.clients.range_commits import RangesOfAGroup
from unit.client.keyed.keyed_runs import (
    KEYS,
    RECORDS,
    Seen,
    beats_often,
    consumer_of,
    ends_of,
    offsets_of,
    on_engine,
    with_ranges,
    write,
    written_since,
)


async def test_a_stop_of_a_keyed_consumer_commits_what_is_done_and_a_restart_goes_on_there(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    """With stable offsets a record may come again that was done behind an unfinished record; no record is left out."""
    seen = Seen()
    again: list[KeyedRecord] = []
    for is_second in (False, True):
        consumer = consumer_of(
            tailrace_cluster, topic, group_protocol=group_protocol, grace_ms=10_000 if is_second else 1
        )

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

        await consumer.run(handle)
    ends = await ends_of(tailrace_cluster, topic)
    assert await offsets_of(tailrace_cluster, topic) == ends
    assert len(again) < 150
    seen.assert_whole()


async def test_a_last_commit_in_an_epoch_that_has_passed_is_made_again(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator raises the epoch of a member at a heartbeat, and the answer may come after the commit."""
    seen = Seen()
    consumer = consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=600_000)
    commit, refusals = RangeProgress._commit_once, [ErrorCode.STALE_MEMBER_EPOCH] * 2

    async def refused(progress: RangeProgress, *arguments: Any) -> Any:
        if refusals:
            raise KafkaError(refusals.pop(), "another epoch")
        return await commit(progress, *arguments)

    monkeypatch.setattr(RangeProgress, "_commit_once", refused)
    await consumer.run(seen.handler(consumer))
    assert not refusals
    assert await offsets_of(tailrace_cluster, topic) == await ends_of(tailrace_cluster, topic)


async def test_a_cancelled_run_of_a_keyed_consumer_finishes_what_runs_and_commits_it(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol)
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


async def test_no_record_of_a_keyed_consumer_begins_while_its_partitions_leave(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol)
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
    engine = consumer._engine
    leaving = asyncio.run_coroutine_threadsafe(engine._on_revoke(engine._reader.names), loop_thread().loop)
    await on_engine(asyncio.sleep(0))
    go_on.set()
    await asyncio.wrap_future(leaving)
    assert (count, consumer.metrics().in_hand) == (1, 0)
    assert sum((await offsets_of(tailrace_cluster, topic)).values()) == 1
    consumer.stop()
    await run


async def test_two_keyed_consumers_share_the_partitions_and_a_leaver_gives_its_own_to_the_other(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    """Keys are in order over both members; what the first has running at the rebalance is done, and comes once."""
    seen = Seen()
    first, second = (consumer_of(tailrace_cluster, topic, **beats_often(group_protocol)) for _ in range(2))
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


async def test_a_call_that_runs_keeps_its_own_partition_alone_from_the_next_member(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The other partitions that leave do not wait for the call, and the call ends in peace."""
    first, second = (
        consumer_of(tailrace_cluster, topic, group_protocol="consumer", slots=4, grace_ms=60_000) for _ in range(2)
    )
    ends, has_ended = asyncio.Event(), False
    running: set[tuple[int, int | None]] = set()
    by_second: dict[tuple[int, int | None], bool] = {}
    changed = asyncio.Event()

    async def slow(record: KeyedRecord) -> None:
        nonlocal has_ended
        running.add((record.partition, record.slot))
        changed.set()
        await ends.wait()
        has_ended = True

    async def handle(record: KeyedRecord) -> None:
        by_second.setdefault((record.partition, record.slot), has_ended)
        changed.set()

    async def until(is_true: Callable[[], bool]) -> None:
        while not is_true():
            changed.clear()
            await changed.wait()

    runs = [asyncio.create_task(first.run(slow, concurrency=1))]
    await until(lambda: bool(running))
    runs.append(asyncio.create_task(second.run(handle)))
    await until(lambda: len(by_second) > 2)
    assert not any(by_second.values()), "the call still runs"
    assert running.isdisjoint(by_second)
    ends.set()
    first.stop()
    await runs[0]
    second.stop()
    await runs[1]
    assert first.metrics().failed_total == first.metrics().retried_total == 0


async def test_a_handler_that_does_not_end_does_not_keep_its_partition(
    tailrace_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture, group_protocol: str
) -> None:
    """After the grace the other member gets the record too; the first one's call is cancelled."""
    first = consumer_of(tailrace_cluster, topic, grace_ms=50, **beats_often(group_protocol))
    second = consumer_of(tailrace_cluster, topic, **beats_often(group_protocol))
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
    assert "that the handler has not finished in time" in caplog.text


async def test_a_kill_of_a_keyed_consumer_repeats_what_no_commit_covers_and_loses_nothing(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The consumer is abandoned, as by a kill: no commit, and it does not leave its group."""
    seen: dict[tuple[int, int], int] = defaultdict(int)
    # A static member: the second one takes its place at once.
    settings: dict[str, Any] = {
        "group_protocol": "classic",
        "auto_commit_interval_ms": 1,
        "grace_ms": 0,
        "group_instance_id": "one",
    }
    first = consumer_of(tailrace_cluster, topic, **settings)
    some = asyncio.Event()

    async def handle(record: KeyedRecord) -> None:
        seen[record.partition, record.offset] += 1
        if len(seen) >= 50:
            some.set()
            await asyncio.Event().wait()

    run = asyncio.create_task(first.run(handle, concurrency=2))
    await some.wait()
    await on_engine(first._engine._reader.abandon())
    run.cancel()
    await asyncio.sleep(0)
    run.cancel()  # at once: no commit is tried again
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
    assert len(seen) == RECORDS


async def test_a_restart_of_a_keyed_consumer_with_ranges_repeats_exactly_what_no_commit_covers(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    """A key is stuck from the first record on; records of the other keys are done and committed behind it."""
    ranges = RangesOfAGroup()
    handled: list[set[tuple[int, int]]] = [set(), set()]
    others = RECORDS - RECORDS // KEYS
    for is_second in (False, True):
        consumer = with_ranges(
            consumer_of(tailrace_cluster, topic, group_protocol=group_protocol, auto_commit_interval_ms=1, grace_ms=0),
            ranges,
        )
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
    assert len(handled[0]) + len(handled[1]) == RECORDS
    assert not handled[0] & handled[1], "nothing came twice"


async def test_a_restart_of_a_keyed_consumer_repeats_what_the_commits_of_a_real_node_do_not_cover(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, group_protocol: str
) -> None:
    """That is exactly the stuck key: the node knows ranges."""
    handled: list[set[tuple[int, int]]] = [set(), set()]
    first = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol, auto_commit_interval_ms=1, grace_ms=0)
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
    second = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol)

    async def rest(record: KeyedRecord) -> None:
        assert record.offset >= committed.get(record.partition, 0)
        handled[1].add((record.partition, record.offset))
        if len(handled[0] | handled[1]) == RECORDS:
            second.stop()

    await second.run(rest)
    assert not handled[0] & handled[1]


async def test_a_task_of_a_keyed_consumer_that_is_cancelled_before_it_begins_gives_its_place_back(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, group_protocol: str
) -> None:
    """The partitions leave in the turn of the loop in which their records are taken."""
    seen = Seen()
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol)
    take, is_lost = HandlerTasks._take, False

    async def lose() -> None:
        for name in consumer._engine._reader.names:
            consumer._engine._start_over(name)

    def take_and_lose(self: HandlerTasks) -> None:
        nonlocal is_lost
        take(self)
        if self._tasks and not is_lost:
            is_lost = True
            asyncio.run_coroutine_threadsafe(lose(), loop_thread().loop).result()
            self._cancel(frozenset(worker.work for worker in self._tasks.values() if worker.work is not None))

    monkeypatch.setattr(HandlerTasks, "_take", take_and_lose)
    await consumer.run(seen.handler(consumer), concurrency=2)
    assert is_lost
    assert consumer.metrics().running == 0
    seen.assert_whole()
