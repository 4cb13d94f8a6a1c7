"""Partitions of a consumer that are paused, and its metrics. The nodes are scripted."""

import asyncio
from typing import Any

import pytest

from tailrace.client.blocking import MetricName
from tailrace.client.errors import LogTruncation
from tailrace.client.reading.consumer_metrics import NO_REPLICA
from tailrace.client.reading.position import PositionState
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchRequest
from testkit.clients.scripted_consumer import ORDERS, ConsumerBench, consumer_bench

OTHER = TopicPartition("orders", 1)
BOTH = (ORDERS, OTHER)


async def _read_of(bench: ConsumerBench, partition: TopicPartition, count: int) -> list[int]:
    """The offsets of so many records, which must all be of this partition."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += await bench.consumer.poll(0.05)
    assert {record.partition for record in records} == {partition.partition}
    return [record.offset for record in records]


def _requests(bench: ConsumerBench) -> int:
    return len(bench.nodes.requests(FetchRequest))


async def test_a_paused_partition_is_not_fetched_and_reads_on_where_it_stood() -> None:
    async with consumer_bench(partitions=BOTH) as bench:
        await bench.read(8)
        await bench.consumer.pause([ORDERS])
        assert bench.consumer.paused() == {ORDERS}
        await bench.consumer.poll(0)
        for replica in bench.replicas.values():
            replica.epochs += [0, 0]
        assert await _read_of(bench, OTHER, 2) == [4, 5]
        before = _requests(bench)
        await bench.until(lambda: _requests(bench) > before + 3)
        assert bench.consumer.position(ORDERS) == 4
        await bench.consumer.resume([ORDERS])
        assert bench.consumer.paused() == frozenset()
        assert await _read_of(bench, ORDERS, 2) == [4, 5]


async def test_fetched_records_of_a_paused_partition_are_kept_and_returned_after_it_is_resumed() -> None:
    async with consumer_bench(partitions=BOTH) as bench:
        records = await bench.consumer.poll(60, max_records=1)
        assert [(record.partition, record.offset) for record in records] == [(0, 0)]
        await bench.consumer.pause([OTHER])
        assert await _read_of(bench, ORDERS, 3) == [1, 2, 3]
        fetched = bench.fetched_offsets(1)
        await bench.consumer.pause([ORDERS])
        await bench.consumer.resume([OTHER])
        # The record that was fetched with the first answer is not fetched again.
        assert (await bench.consumer.poll(0))[0].offset == 0
        assert bench.fetched_offsets(1) == fetched


async def test_a_consumer_whose_partitions_are_all_paused_fetches_nothing() -> None:
    async with consumer_bench(partitions=BOTH) as bench:
        await bench.consumer.pause(BOTH)
        assert await bench.consumer.poll(0.05) == []
        assert _requests(bench) == 0


async def test_a_seek_moves_a_paused_partition() -> None:
    async with consumer_bench() as bench:
        await bench.read(4)
        await bench.consumer.pause([ORDERS])
        await bench.consumer.seek(ORDERS, 2)
        assert await bench.consumer.poll(0.05) == []
        assert bench.consumer.position(ORDERS) == 2
        await bench.consumer.resume([ORDERS])
        assert await bench.read(2) == [2, 3]


async def test_records_of_a_paused_partition_that_a_loop_has_polled_ahead_are_kept_too() -> None:
    async with consumer_bench(partitions=BOTH) as bench:
        while bench.consumer.next_ahead() is None:
            await bench.consumer.poll_ahead(0.05)
        assert bench.consumer.position(OTHER) == 0
        await bench.consumer.pause([OTHER])
        assert bench.consumer.position(OTHER) == 0
        while (record := bench.consumer.next_ahead()) is not None:
            assert record.partition == 0
        await bench.consumer.pause([ORDERS])
        await bench.consumer.resume([OTHER])
        assert await _read_of(bench, OTHER, 4) == [0, 1, 2, 3]


async def test_a_rebalance_forgets_the_pause_of_a_partition_that_is_lost() -> None:
    async with consumer_bench(partitions=BOTH) as bench:
        await bench.consumer.pause(BOTH)
        bench.consumer._reader.assigned_by_group((OTHER,))
        assert bench.consumer.paused() == {OTHER}
        bench.consumer._reader.assigned_by_group(BOTH)
        assert bench.consumer.paused() == {OTHER}
        bench.consumer._reader.lost()
        bench.consumer._reader.assigned_by_group(BOTH)
        assert bench.consumer.paused() == frozenset()


async def test_a_partition_that_is_not_assigned_cannot_be_paused_and_then_none_is() -> None:
    async with consumer_bench() as bench:
        for call in (bench.consumer.pause, bench.consumer.resume):
            with pytest.raises(KafkaError, match="orders-1 is not assigned") as caught:
                await call(BOTH)
            assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert bench.consumer.paused() == frozenset()


async def test_an_answer_that_comes_after_a_pause_follows_the_records_that_the_pause_has_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with consumer_bench() as bench:
        leader, asked, may_answer = bench.replicas[1], asyncio.Event(), asyncio.Event()
        leader.batch_records, leader.epochs = 4, [0] * 8
        answer = leader.answer

        async def late(request: Any) -> Any:
            if bench.fetched_offsets(1)[-1] == 4:
                asked.set()
                await may_answer.wait()
            return await answer(request)

        monkeypatch.setattr(leader, "answer", late)
        while bench.consumer.next_ahead() is None:
            await bench.consumer.poll_ahead(0.05)
        async with asyncio.timeout(60):
            await asked.wait()
        await bench.consumer.pause([ORDERS])
        assert await bench.consumer.poll(0.02) == []
        may_answer.set()
        assert await bench.consumer.poll(0.02) == []
        assert bench.consumer._positions()[ORDERS].offset == 1
        await bench.consumer.resume([ORDERS])
        assert await bench.read(7) == [1, 2, 3, 4, 5, 6, 7]
        assert bench.fetched_offsets(1).count(4) == 1


# records that a loop has polled ahead, in a log that does not have the position behind them


async def _put_back(bench: ConsumerBench, state: PositionState, log_start: int, epochs: list[int]) -> None:
    """A loop has received record 0 of four, the log changes to this, and then the partition is paused."""
    leader = bench.replicas[1]
    leader.batch_records = 4
    while (record := bench.consumer.next_ahead()) is None:
        await bench.consumer.poll_ahead(0.05)
    assert record.offset == 0
    leader.log_start, leader.epochs, leader.batch_records = log_start, epochs, 1
    position = bench.consumer._reader.assigned.by_name[ORDERS].position
    fetched = bench.consumer._reader.fetcher._changed  # a poll would decide the position
    async with asyncio.timeout(60):
        while position.state is not state:
            fetched.clear()
            await fetched.wait()
    await bench.consumer.pause([ORDERS])
    for _ in range(5):
        assert await bench.consumer.poll(0.02) == []
    assert bench.consumer._positions()[ORDERS].offset == 1


async def test_records_that_a_pause_puts_back_survive_a_reset() -> None:
    async with consumer_bench(auto_offset_reset="earliest") as bench:
        await _put_back(bench, PositionState.AWAITING_RESET, 7, [0] * 9)
        await bench.consumer.resume([ORDERS])
        assert await bench.read(3) == [1, 2, 3]
        assert bench.consumer._positions()[ORDERS].offset == 4
        assert await bench.read(2) == [7, 8]
        assert bench.consumer._positions()[ORDERS].offset == 9


async def test_records_that_a_pause_puts_back_come_before_the_error_of_a_consumer_without_a_reset_policy() -> None:
    async with consumer_bench() as bench:
        await _put_back(bench, PositionState.AWAITING_RESET, 7, [0] * 9)
        await bench.consumer.resume([ORDERS])
        assert await bench.read(3) == [1, 2, 3]
        for _ in range(2):
            with pytest.raises(KafkaError, match=r"auto\.offset\.reset is none"):
                await bench.read(1)
        assert bench.consumer._positions()[ORDERS].offset == 4


async def test_records_that_a_pause_puts_back_survive_a_truncation_below_the_diverging_offset() -> None:
    async with consumer_bench(auto_offset_reset="latest") as bench:
        await _put_back(bench, PositionState.AWAITING_VALIDATION, 0, [0, 0])
        bench.replicas[1].epochs += [7, 7, 7]
        await bench.consumer.resume([ORDERS])
        assert await bench.read(1) == [1]
        assert bench.consumer._positions()[ORDERS] == (2, 0, "")
        assert await bench.read(3) == [2, 3, 4]
        assert bench.consumer._positions()[ORDERS] == (5, 7, "")


async def test_a_truncation_without_a_reset_policy_is_an_error_after_the_records_that_a_pause_has_put_back() -> None:
    async with consumer_bench() as bench:
        await _put_back(bench, PositionState.AWAITING_VALIDATION, 0, [0, 0])
        await bench.consumer.resume([ORDERS])
        assert await bench.read(1) == [1]
        for _ in range(2):
            with pytest.raises(LogTruncation) as caught:
                await bench.read(1)
            assert (caught.value.offset, caught.value.diverging_offset) == (4, 2)
        assert bench.consumer._positions()[ORDERS].offset == 2


# metrics


async def test_metrics_of_a_consumer_count_fetches_records_and_the_lag() -> None:
    async with consumer_bench() as bench:
        assert MetricName("records-lag", ORDERS) not in bench.consumer.metrics()
        for replica in bench.replicas.values():
            replica.log_start, replica.epochs = 0, [0] * 5
        assert len(await bench.read(5)) == 5
        await bench.consumer.seek(ORDERS, 2)
        metrics = bench.consumer.metrics()
        assert metrics[MetricName("records-consumed-total")] == 5
        assert metrics[MetricName("bytes-consumed-total")] > 5 * 61
        assert metrics[MetricName("fetch-total")] >= 5
        assert metrics[MetricName("assigned-partitions")] == 1
        assert metrics[MetricName("records-lag", ORDERS)] == metrics[MetricName("records-lag-max")] == 3
        assert metrics[MetricName("records-lead", ORDERS)] == metrics[MetricName("records-lead-min")] == 2


async def test_metrics_of_a_consumer_name_the_replica_that_serves_a_partition() -> None:
    async with consumer_bench(client_rack="a") as bench:
        replica = MetricName("preferred-read-replica", ORDERS)
        assert bench.consumer.metrics()[replica] == NO_REPLICA
        bench.replicas[1].preferred = 2
        await bench.read(4)
        metrics = bench.consumer.metrics()
        assert metrics[replica] == 2
        assert metrics[MetricName("preferred-read-replica-changes-total", ORDERS)] == 1


async def test_metrics_of_a_consumer_have_the_session_with_each_node() -> None:
    async with consumer_bench() as bench:
        bench.replicas[1].session_id = 8
        await bench.read(4)
        await bench.until(lambda: _requests(bench) > 9)
        metrics = bench.consumer.metrics()
        incremental = metrics[MetricName("incremental-fetches-total", node_id=1)]
        assert metrics[MetricName("fetch-session-id", node_id=1)] == 8
        assert metrics[MetricName("fetch-session-partitions", node_id=1)] == 1
        assert metrics[MetricName("full-fetches-total", node_id=1)] == 1
        assert incremental >= 7
        assert metrics[MetricName("fetch-session-epoch", node_id=1)] == incremental + 1
        assert metrics[MetricName("fetch-total")] == incremental + 1
