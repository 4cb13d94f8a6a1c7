"""The time limit of a handler: coroutines are cancelled, threads are named; and the call that runs the longest."""

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import aio
from tailrace.client.keyed import call_watch
from tailrace.client.keyed.call_watch import GRACE_MS, CallWatch
from tailrace.client.keyed.keyed_metrics import RunningKey
from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import RECORDS, SECONDS, Seen, consumer_of

NAME = TopicPartition("orders", 0)


async def stuck() -> None:
    await asyncio.Event().wait()


async def impatient() -> None:
    raise TimeoutError("of the handler")


@pytest.mark.parametrize(
    ("call", "fault"),
    [(stuck, "TimeoutError: beyond handler_timeout_ms 50"), (impatient, "TimeoutError: of the handler")],
    ids=["stuck", "own"],
)
@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "awaitable of a function"])
async def test_a_coroutine_beyond_its_limit_is_cancelled_and_its_record_comes_again(
    tailrace_cluster: Cluster,
    topic: str,
    quick_pauses: None,
    caplog: pytest.LogCaptureFixture,
    call: Callable[[], Any],
    fault: str,
    is_plain: bool,
) -> None:
    seen = Seen()
    consumer = consumer_of(tailrace_cluster, topic, handler_timeout_ms=50)
    whole = seen.handler(consumer)
    failed: list[KeyedRecord] = []

    async def handle(record: KeyedRecord) -> None:
        if record.key == b"key-3" and len(failed) < record.attempt <= 2:
            failed.append(record)
            await call()
        await whole(record)

    await consumer.run((lambda record: handle(record)) if is_plain else handle)
    assert consumer.metrics().failed_total == consumer.metrics().retried_total == len(failed) == 2
    assert f"its key is held and tried again: {fault}" in caplog.text
    seen.assert_whole()


async def test_a_thread_beyond_its_limit_is_named_and_holds_its_key_alone(
    tailrace_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen, lock, is_named = Seen(), threading.Lock(), threading.Event()
    consumer = consumer_of(tailrace_cluster, topic, handler_timeout_ms=1)
    running: list[RunningKey | None] = []
    held: list[KeyedRecord] = []

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_named.set()

    def handle(record: KeyedRecord) -> None:
        if record.key == b"key-3" and not held:
            held.append(record)
            assert is_named.wait(SECONDS)
            running.append(consumer.metrics().longest_running)
        with lock:
            seen.begin(record)
            seen.end(record)
            if seen.count == RECORDS:
                consumer.stop()

    notice, logger = Notice(), logging.getLogger(call_watch.__name__)
    logger.addHandler(notice)
    try:
        await consumer.run(handle)
    finally:
        logger.removeHandler(notice)
    (first,), (longest,) = held, running
    assert longest is not None
    assert (longest.topic_partition, longest.offset) == (TopicPartition(topic, first.partition), first.offset)
    assert (longest.key, longest.attempt) == (b"key-3", 1)
    assert longest.running_ms >= GRACE_MS
    assert f"at offset {first.offset} of {topic}-{first.partition}, beyond handler_timeout_ms 1; its key" in caplog.text
    assert consumer.metrics().failed_total == 0
    assert consumer.metrics().longest_running is None
    seen.assert_whole()


def work_of(offset: int, began_ms: int) -> LaneWork:
    lanes = Lanes(1, most_records=1, most_bytes=1)
    lanes.open(NAME)
    lanes.add(NAME, [KeyedRecord(*NAME, offset, 0, b"key-%d" % offset, b"", ())])
    (work,) = lanes.take(began_ms)
    return work


def test_each_call_beyond_the_limit_is_named_at_once_and_then_every_thirty_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue: Any = SimpleNamespace(works=[work_of(1, 0), work_of(2, 500), work_of(3, 40_000)])
    watch = CallWatch(queue, 10_000, handler_name="handle", group="g")
    named: dict[int, list[str]] = {}
    for now_ms in (10_000 + GRACE_MS - 1, 10_000 + GRACE_MS, 11_600, 40_000, 41_001, 41_600):
        caplog.clear()
        watch.check(now_ms)
        named[now_ms] = [line.partition("at ")[2].partition(" of")[0] for line in caplog.messages]
    assert list(named.values()) == [[], ["offset 1"], ["offset 2"], [], ["offset 1"], ["offset 2"]]
    (line,) = caplog.messages
    assert line == (
        "group 'g': the handler 'handle' has been running for 41.1 s at offset 2 of orders-0, beyond handler_timeout_ms"
        " 10000; its key b'key-2' is held"
    )


async def test_a_handler_without_a_limit_has_no_watch_and_a_limit_is_one_at_least() -> None:
    consumer = aio.KeyedConsumer("127.0.0.1:1", group="g", topics=["orders"])
    consumer._engine._work.begin(lambda record: None, 1, asyncio.get_running_loop)
    assert consumer._engine._work._call_watch is None
    with pytest.raises(KafkaError, match="handler_timeout_ms 0; at least 1"):
        aio.KeyedConsumer("127.0.0.1:1", group="g", topics=["orders"], handler_timeout_ms=0)
    await consumer.close()
