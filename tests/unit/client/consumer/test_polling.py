"""Polls of a consumer with a simulated clock, fetches and faults: their warnings and errors."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.client.blocking import Consumer
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net import pool
from tailrace.net.connection import Address, Connection
from tailrace.protocol.records.record import Record

BUSY, GONE = TopicPartition("busy", 0), TopicPartition("gone", 0)
NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "partition gone-0 has no leader now")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock of every router, in ms."""
    clock = [0]
    monkeypatch.setattr(Router, "now_ms", lambda _: clock[0])
    return clock


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.client")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tailrace.client"]


class ListedPartitions(dict[TopicPartition, ConsumedPartition]):
    """Assigned partitions, and the number of times that they were listed."""

    listings = 0

    def __iter__(self) -> Iterator[TopicPartition]:
        self.listings += 1
        return super().__iter__()


async def test_a_poll_lists_no_assigned_partitions(now: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a poll must not grow with the number of partitions."""
    async with AsyncConsumer("127.0.0.1:1", client_id="tests") as consumer:
        await consumer.assign([BUSY, GONE])
        for partition in (BUSY, GONE):
            await consumer.seek(partition, 0)
        monkeypatch.setattr(consumer._reader.fetcher, "take", lambda _: [(BUSY, Record(0, 1, None, b"v"))])
        assigned = ListedPartitions(consumer._reader.assigned.by_name)
        monkeypatch.setattr(consumer._reader.assigned, "_partitions", assigned)
        assert consumer.assignment() == {BUSY, GONE}
        assert assigned.listings == 1
        for _ in range(10):
            assert len(await consumer.poll(1.0)) == 1
        assert assigned.listings == 1


async def test_records_of_one_partition_do_not_hide_the_trouble_of_another(
    now: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncConsumer("127.0.0.1:1", client_id="tests") as consumer:
        await consumer.assign([BUSY, GONE])
        for partition in (BUSY, GONE):
            await consumer.seek(partition, 0)
        monkeypatch.setattr(Router, "has_answered", True)
        monkeypatch.setattr(consumer._reader.fetcher, "take", lambda _: [(BUSY, Record(0, 1, None, b"v"))])
        checked_ms = []
        check = consumer._reader._notices.check

        def counted(trouble: KafkaError | None, now_ms: int, **reached: Any) -> None:
            checked_ms.append(now_ms)
            check(trouble, now_ms, **reached)

        monkeypatch.setattr(consumer._reader._notices, "check", counted)
        consumer._reader.fetcher._troubles[GONE] = NO_LEADER
        for now[0] in range(0, 40_000, 10):
            assert len(await consumer.poll(1.0)) == 1
        assert checked_ms == list(range(0, 40_000, 1_000)), "a poll that gives records looks once a second"
        consumer._reader.fetcher._troubles.clear()
        now[0] = 40_000
        await consumer.poll(1.0)
    warning = "consumer tests cannot read: partition gone-0 has no leader now"
    assert lines(caplog) == [warning, warning, "consumer tests reads again"]


async def test_a_poll_after_a_pause_does_not_raise_for_what_failed_before_it(
    now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may be up by now: this poll has not tried it yet."""

    async def refuse(address: Address, **_: object) -> Connection:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {address}")

    monkeypatch.setattr(pool, "connect", refuse)

    async def poll_on(consumer: AsyncConsumer) -> None:
        for _ in range(10):
            assert await consumer.poll(0.5) == []

    async with AsyncConsumer("127.0.0.1:1", bootstrap_timeout_ms=3_000) as consumer:

        async def wait(deadline_ms: int) -> None:
            """As the fetcher does, but on the clock of this test."""
            for _ in range(20):
                await asyncio.sleep(0)
            now[0] = deadline_ms

        monkeypatch.setattr(consumer._reader.fetcher, "wait", wait)
        consumer._reader.router.retry_backoff_ms = consumer._reader.router._pool._backoff_ms = 0
        await consumer.assign([BUSY])
        assert await consumer.poll(2.9) == []
        assert consumer.trouble is not None
        now[0] += 3_600_000
        assert await consumer.poll(0) == []
        now[0] += 3_600_000
        with pytest.raises(KafkaError, match="no broker has answered"):
            await poll_on(consumer)


@pytest.mark.parametrize("count", [0, -1])
async def test_a_poll_of_no_record_is_refused(count: int) -> None:
    """Such a poll would look for records without a pause until the deadline, and never take a record."""
    async with AsyncConsumer("127.0.0.1:1") as consumer:
        await consumer.assign([BUSY])
        with pytest.raises(KafkaError, match=f"max_records {count}; ") as caught:
            await consumer.poll(0.05, max_records=count)
        assert caught.value.code is ErrorCode.INVALID_CONFIG
    with Consumer("127.0.0.1:1") as blocking:
        blocking.assign([BUSY])
        with pytest.raises(KafkaError, match=f"max_records {count}; ") as caught:
            blocking.poll(0.05, max_records=count)
        assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize("kind", [AsyncConsumer, Consumer])
def test_a_consumer_whose_polls_give_no_record_is_refused(
    kind: type[AsyncConsumer] | type[Consumer], count: int
) -> None:
    with pytest.raises(KafkaError, match=rf"max\.poll\.records {count}; ") as caught:
        kind("127.0.0.1:1", max_poll_records=count)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
