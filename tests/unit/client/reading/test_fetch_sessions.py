"""A consumer's fetch sessions, as its nodes see them; and the cost of a turn when nothing has come."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.client.reading import fetch_sessions
from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from testkit.clients.scripted_nodes import ScriptedNodes, ScriptedReplica

ORDERS = [TopicPartition("orders", number) for number in range(3)]
SESSION = 41


class ConsumerSessionBench:
    """A fetcher of three partitions that node 1 leads, which keeps sessions."""

    def __init__(self, partitions: list[TopicPartition] = ORDERS) -> None:
        self.replica = ScriptedReplica()
        self.replica.session_id = SESSION
        self.replica.epochs = [0, 0]
        self.on_request: Callable[[FetchRequest], Awaitable[FetchResponse | None]] | None = None
        self.nodes = ScriptedNodes(self._answer, dict.fromkeys(partitions, 1))
        options = FetchOptions(max_wait_ms=1, min_bytes=1, max_bytes=1_000, isolation_level=0, rack="")
        self.fetcher = Fetcher(self.nodes, options, max_partition_bytes=1_000)
        self.fetcher.assign(partitions)
        for partition in partitions:
            self.fetcher.assigned.seek(partition, 0)

    async def _answer(self, node_id: int, request: Any) -> Any:
        if self.on_request is not None:
            response = await self.on_request(request)
            if response is not None:
                return response
        return await self.replica.answer(request)

    @property
    def requests(self) -> list[FetchRequest]:
        return self.nodes.requests(FetchRequest)

    async def take(self, count: int) -> list[tuple[int, int]]:
        """Partition and offset of so many records."""
        found: list[tuple[int, int]] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += [(name.partition, record.offset) for name, record in self.fetcher.take(100)]
                await self.fetcher.wait(self.nodes.now_ms() + 50)
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                assert self.fetcher.take(100) == []
                await self.fetcher.wait(self.nodes.now_ms() + 10)


def _named(request: FetchRequest) -> dict[int, int]:
    return {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions}


def _run(test: Callable[[ConsumerSessionBench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = ConsumerSessionBench()
        await test(bench)
        await bench.fetcher.close()

    asyncio.run(run())


def test_a_reader_keeps_one_session_and_its_idle_fetches_name_nothing() -> None:
    async def test(bench: ConsumerSessionBench) -> None:
        assert sorted(await bench.take(6)) == [(number, offset) for number in range(3) for offset in range(2)]
        await bench.until(lambda: len(bench.requests) > 9)
        first, *rest = bench.requests
        assert (first.session_id, first.session_epoch) == (0, 0)
        assert _named(first) == {0: 0, 1: 0, 2: 0}
        assert [(request.session_id, request.session_epoch) for request in rest] == [
            (SESSION, epoch) for epoch in range(1, len(rest) + 1)
        ]
        idle = rest[-1]
        assert (idle.topics, idle.forgotten_topics_data) == ((), ())

    _run(test)


def test_a_partition_with_records_to_return_is_not_read_again_meanwhile() -> None:
    async def test(bench: ConsumerSessionBench) -> None:
        bench.fetcher.take(0)
        await bench.fetcher.wait(bench.nodes.now_ms() + 10_000)
        asked = asyncio.Event()

        async def note(request: FetchRequest) -> FetchResponse | None:
            asked.set()
            return None

        bench.on_request = note
        assert len(bench.fetcher.take(1)) == 1
        async with asyncio.timeout(60):
            await asked.wait()
        last = bench.requests[-1]
        assert _named(last) == {0: 1}
        assert [number for topic in last.forgotten_topics_data for number in topic.partitions] == [1, 2]
        assert last.max_wait_ms == 0

    _run(test)


def test_a_fetch_session_that_the_broker_has_lost_is_made_anew_at_once_without_loss() -> None:
    async def test(bench: ConsumerSessionBench) -> None:
        await bench.take(6)
        await bench.until(lambda: len(bench.requests) > 5)
        lost = [ErrorCode.FETCH_SESSION_ID_NOT_FOUND]

        async def lose(request: FetchRequest) -> FetchResponse | None:
            return FetchResponse(error_code=lost.pop(), responses=()) if lost else None

        bench.on_request = lose
        bench.replica.epochs.append(0)
        assert sorted(await bench.take(3)) == [(0, 2), (1, 2), (2, 2)]
        assert bench.nodes.metadata_requests == 0

    _run(test)


def test_a_close_of_a_reader_ends_its_fetch_session_at_the_broker() -> None:
    async def test(bench: ConsumerSessionBench) -> None:
        await bench.take(6)
        await bench.fetcher.close()
        last = bench.requests[-1]
        assert (last.session_id, last.session_epoch, last.topics) == (SESSION, -1, ())

    _run(test)


def test_a_close_of_a_reader_does_not_wait_for_a_broker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.client.reading.fetcher.CLOSE_MS", 10)
    assert fetch_sessions.CLOSE_MS == 1_000

    async def test(bench: ConsumerSessionBench) -> None:
        await bench.take(6)

        async def hang(request: FetchRequest) -> FetchResponse | None:
            await asyncio.Event().wait()
            return None

        bench.on_request = hang
        async with asyncio.timeout(30):
            await bench.fetcher.close()
        assert bench.requests[-1].session_epoch == -1

    _run(test)


def test_a_stop_of_a_reader_tells_the_broker_of_its_fetch_session_nothing() -> None:
    async def test(bench: ConsumerSessionBench) -> None:
        await bench.take(6)
        await bench.fetcher.stop()
        assert bench.requests[-1].session_epoch != -1

    _run(test)


def test_a_lost_connection_makes_a_reader_begin_its_fetch_session_anew() -> None:
    async def test(bench: ConsumerSessionBench) -> None:
        await bench.take(6)
        await bench.until(lambda: len(bench.requests) > 5)
        faults = [KafkaError(ErrorCode.NETWORK_EXCEPTION, "reset")]

        async def fail(request: FetchRequest) -> FetchResponse | None:
            if faults:
                raise faults.pop()
            return None

        bench.on_request = fail
        before = len(bench.requests)
        bench.replica.epochs.append(0)
        assert len(await bench.take(3)) == 3
        after = bench.requests[before + 1 :]
        assert (after[0].session_id, after[0].session_epoch) == (SESSION, 0)

    _run(test)


def test_a_reader_logs_each_step_of_a_fetch_session_with_its_id_and_epoch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="tailrace.client")
    _run(lambda bench: _until_idle(bench))
    lines = [record.getMessage() for record in caplog.records if "session" in record.getMessage()]
    assert lines[0] == "node 1, session 0, epoch 0: fetch, 3 partitions, 0 forgotten"
    assert lines[1] == "node 1, session 0, epoch 0: answer, 3 partitions, 0 forgotten"
    assert lines[2].startswith(f"node 1, session {SESSION}, epoch 1: fetch, 3 partitions")
    assert lines[-1] == f"node 1, session {SESSION}, epoch -1: close, 0 partitions, 0 forgotten"


async def _until_idle(bench: ConsumerSessionBench) -> None:
    await bench.take(6)


async def test_a_turn_of_a_fetch_session_without_news_looks_at_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a poll must not grow with the number of partitions that are idle."""
    names = [TopicPartition("orders", number) for number in range(500)]
    bench = ConsumerSessionBench(names)
    bench.replica.epochs = []
    await bench.until(lambda: len(bench.requests) > 3)
    looked: list[str] = []

    class Watched(ConsumedPartition):
        __slots__ = ()

        def __getattribute__(self, attribute: str) -> Any:
            looked.append(attribute)
            return super().__getattribute__(attribute)

    for partition in bench.fetcher.assigned.by_name.values():
        partition.__class__ = Watched
    before = len(bench.requests)
    await bench.until(lambda: len(bench.requests) > before + 10)
    assert looked == []
    bench.fetcher.assigned.seek(names[7], 0)
    bench.fetcher.take(10)
    assert 0 < len(looked) < 50
    await bench.fetcher.close()
