"""A coroutine handler that blocks its event loop: heartbeats and commits go on, and a warning names the handler."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailrace import KeyedConsumer, Producer, aio
from tailrace.client.group.classic_host import ClassicGroupMember
from tailrace.client.group.consumer_host import ConsumerGroupMember
from tailrace.client.group.consumer_member import ConsumerMembership
from tailrace.client.keyed import loop_watch
from tailrace.client.keyed.handler_work import HandlerWork
from tailrace.client.keyed.loop_watch import CHECK_MS, LATE_MS, LoopWatch
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.keyed.progress_store import ProgressStore
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import RECORDS, SECONDS, beats_often

SESSION_MS = 6_000


class Signs:
    """Counts of heartbeats, commits and joins, and of warnings about blocked loops, of all consumers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._count(monkeypatch, ClassicGroupMember, "_heartbeat", "heartbeats")
        self._count(monkeypatch, ClassicGroupMember, "_join", "joins")
        self._count(monkeypatch, ConsumerGroupMember, "_beat", "heartbeats")
        self._count(monkeypatch, ConsumerMembership, "_join", "joins")
        self._count(monkeypatch, ProgressStore, "write", "commits")

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, name: str) -> None:
        call = getattr(owner, method)

        async def counted(*arguments: Any, **keywords: Any) -> Any:
            result = await call(*arguments, **keywords)
            self.add(name)
            return result

        def counted_at_once(*arguments: Any, **keywords: Any) -> Any:
            self.add(name)
            return call(*arguments, **keywords)

        monkeypatch.setattr(owner, method, counted if asyncio.iscoroutinefunction(call) else counted_at_once)

    def add(self, name: str) -> None:
        with self._changed:
            self.counts[name] += 1
            self._changed.notify_all()

    def wait_for(self, **more: int) -> None:
        """Block until each count has grown by this number."""
        with self._changed:
            wanted = {name: self.counts[name] + number for name, number in more.items()}
            assert self._changed.wait_for(
                lambda: all(self.counts[name] >= number for name, number in wanted.items()), SECONDS
            ), self.counts


class WarningCounter(logging.Handler):
    def __init__(self, signs: Signs) -> None:
        super().__init__(logging.WARNING)
        self._signs = signs

    def emit(self, record: logging.LogRecord) -> None:
        if "blocks its event loop since" in record.getMessage():
            self._signs.add("warnings")


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signs]:
    signs = Signs(monkeypatch)
    counter = WarningCounter(signs)
    logger = logging.getLogger(loop_watch.__name__)
    logger.addHandler(counter)
    yield signs
    logger.removeHandler(counter)


@pytest.mark.in_turn
def test_a_handler_that_blocks_longer_than_the_session_keeps_its_member_and_is_named_in_a_warning(
    tailrace_cluster: Cluster, topic: str, signs: Signs, caplog: pytest.LogCaptureFixture
) -> None:
    handled: Counter[tuple[int, int]] = Counter()
    consumer = KeyedConsumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=200,
        grace_ms=SESSION_MS // 2,
    )

    async def obstinate(record: KeyedRecord) -> None:
        if not handled:
            began = time.monotonic()
            handled[record.partition, record.offset] += 1
            while time.monotonic() < began + SESSION_MS / 1000 * 1.2:
                signs.wait_for(heartbeats=1, commits=1)
            with Producer(tailrace_cluster.bootstrap_servers) as producer:  # another client of the process
                producer.send(topic, b"0", key=b"key-0").result(SECONDS)
        else:
            handled[record.partition, record.offset] += 1
        if len(handled) == RECORDS + 1:
            consumer.stop()

    consumer.run(obstinate)
    assert set(handled.values()) == {1}
    assert signs.counts["joins"] == 2, "the first answer gives the member its id"
    assert signs.counts["warnings"] >= 1
    assert "the handler 'obstinate' blocks its event loop since" in caplog.text
    assert "joins again" not in caplog.text


async def test_a_handler_that_blocks_the_loop_of_its_caller_leaves_heartbeats_and_commits_alone(
    tailrace_cluster: Cluster, topic: str, signs: Signs, monkeypatch: pytest.MonkeyPatch, group_protocol: str
) -> None:
    monkeypatch.setattr(loop_watch, "LATE_MS", 1)
    loop = asyncio.get_running_loop()
    count = 0
    consumer = aio.KeyedConsumer(
        tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic], **beats_often(group_protocol)
    )

    async def handle(record: KeyedRecord) -> None:
        nonlocal count
        assert asyncio.get_running_loop() is loop
        if count == 0:
            signs.wait_for(heartbeats=2, commits=1, warnings=1)
        count += 1
        if count == RECORDS:
            consumer.stop()

    await consumer.run(handle)
    assert count == RECORDS
    # A classic member joins twice: the first answer gives the member its id.
    assert signs.counts["joins"] == (2 if group_protocol == "classic" else 1)


class WatchClock:
    now_ms = 1_000


class LateLoop:
    """A loop that makes no turn until the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class WorkToDo:
    has_work = True


def watch_of(loop: Any, clock: WatchClock, work: Any) -> LoopWatch:
    return LoopWatch(work, loop, lambda: clock.now_ms, handler_name="handle", group="g")


def warnings_after(watch: LoopWatch, clock: WatchClock, ms: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings in this time, with a check in each interval."""
    caplog.clear()
    for _ in range(0, ms, CHECK_MS):
        clock.now_ms += CHECK_MS
        watch.check()
    return caplog.messages


def test_a_loop_is_blocked_after_two_seconds_without_a_turn_and_the_warning_comes_every_thirty_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, clock = LateLoop(), WatchClock()
    watch = watch_of(loop, clock, WorkToDo())
    assert warnings_after(watch, clock, LATE_MS, caplog) == [], "asked for a turn after the first interval"
    (warning,) = warnings_after(watch, clock, 29_000, caplog)
    assert warning.startswith("group 'g': the handler 'handle' blocks its event loop since 2.0 s; use an async client")
    assert len(warnings_after(watch, clock, 30_000, caplog)) == 1
    loop.turn()
    assert warnings_after(watch, clock, LATE_MS, caplog) == []


def test_a_loop_that_makes_turns_or_has_nothing_to_do_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    loop, clock, work = LateLoop(), WatchClock(), WorkToDo()
    watch = watch_of(loop, clock, work)
    for _ in range(100):
        assert warnings_after(watch, clock, LATE_MS - CHECK_MS, caplog) == []
        loop.turn()
    work.has_work = False
    assert warnings_after(watch, clock, 60_000, caplog) == []


def test_a_check_that_comes_late_says_nothing_about_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The whole process was stopped for a minute."""
    clock = WatchClock()
    watch = watch_of(LateLoop(), clock, WorkToDo())
    assert warnings_after(watch, clock, CHECK_MS, caplog) == []
    clock.now_ms += 60_000
    assert warnings_after(watch, clock, CHECK_MS, caplog) == []


async def test_work_in_threads_has_no_watch_of_a_loop() -> None:
    settings = KeyedConsumerSettings("127.0.0.1:1", group="g", topics=["orders"])
    work = HandlerWork(settings, on_outcomes=lambda: None, on_end=lambda fault: None)
    work.begin(lambda record: None, 1, asyncio.get_running_loop)
    assert work._loop_watch is None
    await work.end()
