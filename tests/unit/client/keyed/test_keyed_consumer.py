"""A keyed consumer with a real node: order, retries, settings, and the ends of a run."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry, Skip
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import KEYS, RECORDS, SECONDS, Seen, consumer_of, ends_of, offsets_of


async def test_a_keyed_consumer_works_on_each_key_in_order_beside_the_other_keys(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    seen = Seen()
    async with consumer_of(tailrace_cluster, topic, group_protocol=group_protocol) as consumer:

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
    seen.assert_whole()
    assert 1 < seen.most_running <= 8


async def test_a_handler_that_is_a_plain_function_runs_in_as_many_threads_as_there_is_concurrency(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    seen, lock = Seen(), threading.Lock()
    together = threading.Barrier(4)
    loop = asyncio.get_running_loop()
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol)

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
    seen.assert_whole()
    assert seen.most_running == 4


async def test_a_failure_of_a_handler_holds_its_key_alone_and_is_logged_once(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    failures = begun = 0
    has_failed_twice = asyncio.Event()
    caplog.set_level(logging.WARNING, logger="tailrace.client")
    consumer = consumer_of(tailrace_cluster, topic)
    others_done = RECORDS - RECORDS // KEYS

    async def handle(record: KeyedRecord) -> None:
        nonlocal failures, begun
        if record.key == b"key-3" and seen.count < others_done:
            failures += 1
            assert record.attempt == failures
            if failures == 2:
                has_failed_twice.set()
            raise ValueError(f"no {failures}")
        begun += record.key != b"key-3"
        if begun == others_done:
            await has_failed_twice.wait()  # the partition of key-3 may be fetched last
        seen.begin(record)
        seen.end(record)
        if seen.count == others_done:
            oldest = consumer.metrics().oldest_held
            assert oldest is not None
            assert (oldest.key, oldest.fault) == (b"key-3", f"ValueError: no {oldest.attempts}")
            assert failures - 1 <= oldest.attempts <= failures  # the outcome of the last call may be on its way
        if seen.count == RECORDS:
            consumer.stop()

    await consumer.run(handle, concurrency=4)
    metrics = consumer.metrics()
    assert metrics.failed_total == metrics.retried_total == failures > 0
    assert metrics.oldest_held is None
    seen.assert_whole()
    (logged,) = [line for line in caplog.records if "the handler has failed at offset" in line.getMessage()]
    assert logged.exc_info is not None


async def test_a_failure_of_a_handler_whose_text_fails_holds_its_key_too(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    seen = Seen()
    consumer = consumer_of(tailrace_cluster, topic, breaker_failure_percent=None)

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
    seen.assert_whole()


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def test_a_keyed_consumer_counts_skips_and_retries_and_a_wrong_result_is_a_failure(
    tailrace_cluster: Cluster, topic: str, quick_pauses: None
) -> None:
    results: list[Any] = [Retry(0), "done", Retry, asyncio.CancelledError(), Skip("a duplicate")]
    count = 0
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


async def test_a_partition_full_of_a_held_key_stops_and_other_partitions_are_read_to_their_ends(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol, max_records_in_hand=20)
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


async def test_a_fault_that_no_retry_cures_ends_the_run_of_a_keyed_consumer(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol, auto_offset_reset="none")
    with pytest.raises(KafkaError, match=r"auto.offset.reset is none") as caught:
        await consumer.run(lambda record: None)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_the_end_of_the_program_in_a_handler_ends_the_run_of_a_keyed_consumer(
    tailrace_cluster: Cluster, topic: str, group_protocol: str
) -> None:
    async def handle(record: KeyedRecord) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await consumer_of(tailrace_cluster, topic, group_protocol=group_protocol).run(handle)


async def test_a_keyed_consumer_runs_once_and_closes_in_any_state(tailrace_cluster: Cluster, topic: str) -> None:
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": ""}, "has a group"),
        ({"topics": []}, "topics to read"),
        ({"topics": "orders"}, "several names"),
        ({"max_records_in_hand": 0}, "max_records_in_hand 0; at least 1"),
        ({"auto_commit_interval_ms": 0}, "auto.commit.interval.ms 0; at least 1"),
        ({"breaker_failure_percent": 0}, "breaker_failure_percent 0; at least 1"),
        ({"breaker_failure_percent": 100}, "breaker_failure_percent 100; 1 to 99, or None for no breaker"),
        ({"breaker_failure_percent": True}, "breaker_failure_percent True; say a whole number"),
        ({"breaker_min_calls": 0}, "breaker_min_calls 0; at least 1"),
        ({"breaker_backoff_ms": 0}, "breaker_backoff_ms 0; at least 1"),
        ({"breaker_backoff_ms": 30_001}, "breaker_backoff_ms 30001; at most breaker_backoff_max_ms, 30000"),
        ({"grace_ms": 300_001}, "at most max.poll.interval.ms, 300000"),
        ({"grace_ms": 4_000, "max_poll_interval_ms": 3_000}, "at most max.poll.interval.ms, 3000"),
    ],
    ids=str,
)
async def test_a_keyed_consumer_refuses_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        AsyncKeyedConsumer("127.0.0.1:1", **{"group": "g", "topics": ["orders"]} | settings)


async def test_a_keyed_consumer_takes_no_setting_of_commits() -> None:
    with pytest.raises(TypeError, match="enable_auto_commit"):
        AsyncKeyedConsumer("127.0.0.1:1", group="g", topics=["orders"], enable_auto_commit=True)  # type: ignore[call-arg]


async def test_the_concurrency_of_a_keyed_consumer_is_one_at_least() -> None:
    consumer = AsyncKeyedConsumer("127.0.0.1:1", group="g", topics=["orders"])
    with pytest.raises(KafkaError, match="concurrency 0; at least 1"):
        await consumer.run(lambda record: None, concurrency=0)
    await consumer.close()
