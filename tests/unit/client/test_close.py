"""The close of a consumer that is cut off while it waits for the group's coordinator. The nodes are scripted."""

import asyncio
from typing import Any

import pytest

from tailrace.client import consumer as consumer_module
from tailrace.client.group.member_host import GroupMember
from tailrace.protocol.messages.fetch import FetchRequest
from testkit.scripted_consumer import ORDERS, ConsumerBench


async def _hang(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def _reader(monkeypatch: pytest.MonkeyPatch) -> tuple[ConsumerBench, list[str]]:
    """A member of a group that has read; its coordinator hangs. And a list with an entry when its router closes."""
    monkeypatch.setattr(consumer_module, "commit_group_offsets", _hang)
    bench = ConsumerBench([ORDERS], group="g", auto_commit_interval_ms=300_000)
    bench.replicas[1].session_id = 8
    closed: list[str] = []
    monkeypatch.setattr(bench.nodes, "close", lambda: closed.append("router"))
    await bench.consumer.assign([ORDERS])
    await bench.consumer.seek(ORDERS, 0)
    await bench.read(4)
    return bench, closed


def _last_epoch(bench: ConsumerBench) -> int:
    """Of the last fetch; -1 ends the session."""
    epoch: int = bench.nodes.requests(FetchRequest)[-1].session_epoch
    return epoch


def test_a_close_that_runs_out_of_time_ends_the_fetches_and_closes_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        bench, closed = await _reader(monkeypatch)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await bench.consumer.close()
        assert closed == ["router"]
        assert bench.consumer._fetcher._fetches == {}
        assert _last_epoch(bench) == -1
        await bench.consumer.close()

    asyncio.run(run())


def test_a_close_that_is_cancelled_while_it_leaves_the_group_closes_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        bench, closed = await _reader(monkeypatch)
        monkeypatch.setattr(GroupMember, "leave", _hang)
        bench.consumer._is_subscribed = True
        closing = asyncio.create_task(bench.consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert closing.cancelled()
        assert closed == ["router"]
        assert _last_epoch(bench) == -1

    asyncio.run(run())


def test_a_close_that_is_cancelled_twice_closes_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        bench, closed = await _reader(monkeypatch)
        is_ending = asyncio.Event()

        async def end_session(*_: Any) -> None:
            is_ending.set()
            await _hang()

        monkeypatch.setattr("tailrace.client.fetcher.end_session", end_session)
        closing = asyncio.create_task(bench.consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(20):
            await is_ending.wait()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert closed == ["router"]

    asyncio.run(run())
