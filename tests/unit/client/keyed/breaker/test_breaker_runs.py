"""Outages of the service that handlers call, with a real node: the breaker opens, and nothing is lost or repeated."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.client.group.classic_host import ClassicGroupMember
from tailrace.client.keyed import outcomes
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.keyed.progress_store import ProgressStore
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import KEYS, RECORDS, SECONDS, consumer_of, ends_of, offsets_of, write

QUICK = {"breaker_min_calls": 10, "breaker_backoff_ms": 20, "breaker_backoff_max_ms": 100}


class Service:
    """The service that handlers call: up or down. It notes the records that it has taken, and the calls that failed."""

    def __init__(self, *, is_up: bool = False) -> None:
        self.is_up = is_up
        self.taken: dict[bytes | None, list[int]] = defaultdict(list)
        self.count = 0
        self.failed: list[KeyedRecord] = []
        self._changed = threading.Condition()
        self._on_call: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def call(self, record: KeyedRecord) -> int:
        """Take the record. Returns the number of records taken so far. Raises ConnectionError while down."""
        with self._changed:
            if self.is_up:
                self.taken[record.key].append(int(record.value))
                self.count += 1
            else:
                self.failed.append(record)
            count = self.count if self.is_up else None
        for loop, event in self._on_call:
            loop.call_soon_threadsafe(event.set)
        if count is None:
            raise ConnectionError(f"down, offset {record.offset}")
        return count

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return when the condition is true, which is looked at after each call."""
        event = asyncio.Event()
        self._on_call.append((asyncio.get_running_loop(), event))
        async with asyncio.timeout(SECONDS):
            while not is_true():
                event.clear()
                await event.wait()

    def assert_whole(self, records: int = RECORDS) -> None:
        """The service has taken every record once, and each key in order."""
        assert dict(self.taken) == {b"key-%d" % key: list(range(records // KEYS)) for key in range(KEYS)}


def handler_of(service: Service, consumer: AsyncKeyedConsumer, most: int = RECORDS) -> Any:
    """A handler that calls the service, and stops the consumer at the last record."""

    async def handle(record: KeyedRecord) -> None:
        if service.call(record) == most:
            consumer.stop()

    return handle


def lines_of(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [line for line in caplog.messages if part in line]


OPENED, CLOSED = "calls of the handler have failed", "the handler gets records again"


async def test_a_key_that_always_fails_beside_keys_that_succeed_leaves_the_breaker_closed(
    tailrace_cluster: Cluster,
    topic: str,
    quick_pauses: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(outcomes, "LONGEST_PAUSE_MS", 1)
    service, failures = Service(is_up=True), 0
    consumer = consumer_of(tailrace_cluster, topic, **QUICK)

    async def handle(record: KeyedRecord) -> None:
        nonlocal failures
        if record.key == b"key-3" and (service.count < RECORDS - RECORDS // KEYS or failures < 100):
            failures += 1
            assert record.attempt == failures, "each failure counts an attempt"
            raise ValueError("poison")
        if service.call(record) == RECORDS:
            consumer.stop()

    await consumer.run(handle)
    assert consumer.metrics().failed_total == failures >= 100
    assert consumer.metrics().breaker.opened_total == 0
    assert lines_of(caplog, OPENED) == []
    service.assert_whole()


@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "thread"])
async def test_an_outage_opens_the_breaker_and_its_end_loses_repeats_and_reorders_nothing(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None, caplog: pytest.LogCaptureFixture, is_plain: bool
) -> None:
    service = Service(is_up=True)
    consumer = consumer_of(tailrace_cluster, topic, **QUICK)
    whole = handler_of(service, consumer)
    tries = 20

    async def handle(record: KeyedRecord) -> None:
        if service.count == RECORDS // 2 and not service.failed:
            service.is_up = False
        await whole(record)

    def handle_in_a_thread(record: KeyedRecord) -> None:
        if service.count >= RECORDS // 2 and not service.failed:
            service.is_up = False
        if service.call(record) == RECORDS:
            consumer.stop()

    run = asyncio.create_task(consumer.run(handle_in_a_thread if is_plain else handle))
    await service.until(lambda: consumer.metrics().breaker.opened_total > 0)
    failed_at_opening = len(service.failed)
    await service.until(lambda: len(service.failed) >= failed_at_opening + tries)
    breaker = consumer.metrics().breaker
    assert breaker.name in ("open", "half-open")
    assert breaker.open_ms >= tries // 2 * QUICK["breaker_backoff_ms"], "there is a pause before each try"
    assert breaker.fault.startswith("ConnectionError: down, offset")
    # A key that failed is held, or in its next try; between the two, the end of the try is on its way from its thread.
    await service.until(lambda: consumer.metrics().held + consumer.metrics().running > 0)
    assert consumer.metrics().in_hand > 0
    assert len(lines_of(caplog, OPENED)) == 1
    assert lines_of(caplog, CLOSED) == []
    service.is_up = True
    await run
    assert consumer.metrics().breaker.name == "closed"
    assert (len(lines_of(caplog, OPENED)), len(lines_of(caplog, CLOSED))) == (1, 1)
    attempts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record in service.failed:
        attempts[record.partition, record.offset].append(record.attempt)
    counted = sum(numbers[-1] - 1 for numbers in attempts.values())
    assert counted <= failed_at_opening < len(service.failed), "no failure counts after the breaker has opened"
    service.assert_whole()


async def test_heartbeats_and_commits_go_on_while_the_breaker_is_open(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: dict[str, int] = defaultdict(int)
    service = Service()
    consumer = consumer_of(
        tailrace_cluster,
        topic,
        group_protocol="classic",
        heartbeat_interval_ms=20,
        auto_commit_interval_ms=20,
        **QUICK,
    )

    def count_calls(owner: type, method: str) -> None:
        call: Callable[..., Awaitable[Any]] = getattr(owner, method)

        async def counted(*arguments: Any, **keywords: Any) -> Any:
            if consumer.metrics().breaker.name != "closed":
                counts[method] += 1
            return await call(*arguments, **keywords)

        monkeypatch.setattr(owner, method, counted)

    count_calls(ClassicGroupMember, "_heartbeat")
    count_calls(ProgressStore, "write")
    run = asyncio.create_task(consumer.run(handler_of(service, consumer)))
    await service.until(lambda: counts["_heartbeat"] >= 5 and counts["write"] >= 5)
    service.is_up = True
    await run
    service.assert_whole()


async def test_a_stop_while_the_breaker_is_open_leaves_the_records_in_hand_to_the_next_run(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    service = Service(is_up=True)
    consumer = consumer_of(tailrace_cluster, topic, **QUICK)

    async def handle(record: KeyedRecord) -> None:
        if service.count == RECORDS // 2:
            service.is_up = False
        service.call(record)

    run = asyncio.create_task(consumer.run(handle))
    await service.until(lambda: consumer.metrics().breaker.opened_total > 0)
    consumer.stop()
    await run
    assert service.count == RECORDS // 2
    service.is_up = True
    following = consumer_of(tailrace_cluster, topic)
    await following.run(handler_of(service, following))
    service.assert_whole()
    assert await offsets_of(tailrace_cluster, topic) == await ends_of(tailrace_cluster, topic)


async def test_partitions_that_leave_while_the_breaker_is_open_go_on_with_their_next_owner(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    """The service is down for the first member alone."""
    service, reached = Service(is_up=True), Service()
    first = consumer_of(tailrace_cluster, topic, heartbeat_interval_ms=100, group_protocol="classic", **QUICK)
    second = consumer_of(tailrace_cluster, topic, heartbeat_interval_ms=100, group_protocol="classic", **QUICK)

    def stop_at_the_end() -> None:
        if service.count == RECORDS:
            first.stop()
            second.stop()

    async def cut_off(record: KeyedRecord) -> None:
        if service.count < RECORDS // 4:
            service.call(record)
            return
        reached.call(record)
        service.call(record)
        stop_at_the_end()

    async def handle(record: KeyedRecord) -> None:
        service.call(record)
        stop_at_the_end()

    runs = [asyncio.create_task(first.run(cut_off))]
    await reached.until(lambda: first.metrics().breaker.opened_total > 0)
    runs.append(asyncio.create_task(second.run(handle)))
    await service.until(lambda: second.metrics().done_total > 0)
    reached.is_up = True
    await asyncio.gather(*runs)
    service.assert_whole()


async def test_records_that_come_while_the_breaker_is_open_wait_their_turn(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    service = Service()
    consumer = consumer_of(tailrace_cluster, topic, **QUICK)
    run = asyncio.create_task(consumer.run(handler_of(service, consumer, 2 * RECORDS)))
    await service.until(lambda: consumer.metrics().breaker.opened_total > 0)
    await asyncio.to_thread(write, tailrace_cluster, topic, RECORDS, RECORDS)
    await service.until(lambda: consumer.metrics().in_hand == 2 * RECORDS)
    service.is_up = True
    await run
    service.assert_whole(2 * RECORDS)
