"""The close of a consumer that is cut off while it waits for the group's coordinator. The nodes are scripted."""

import asyncio

import pytest

from tailrace.client.group.group_member import GroupMember
from tailrace.client.reading import consumer_reader
from tailrace.protocol.messages.fetch import FetchRequest
from testkit.clients.scripted_consumer import ORDERS, ConsumerBench


class _Hanging:
    """A call that never returns, and notes its begin."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    async def __call__(self, *_: object, **__: object) -> None:
        self.has_begun.set()
        await asyncio.Event().wait()


async def _begun(closing: asyncio.Task[None], call: _Hanging) -> None:
    """Return when the close hangs in this call."""
    async with asyncio.timeout(20):
        await call.has_begun.wait()
    assert not closing.done()


async def _reader(monkeypatch: pytest.MonkeyPatch, commit: _Hanging) -> tuple[ConsumerBench, list[str]]:
    """A member of a group that has read; its commit hangs. And a list with an entry when its router closes."""
    monkeypatch.setattr(consumer_reader, "commit_group_offsets", commit)
    bench = ConsumerBench([ORDERS], group="g", auto_commit_interval_ms=300_000)
    bench.replicas[1].session_id = 8
    closed: list[str] = []
    monkeypatch.setattr(bench.nodes, "close", lambda: closed.append("router"))
    await bench.consumer.assign([ORDERS])
    await bench.consumer.seek(ORDERS, 0)
    await bench.read(4)
    return bench, closed


def _last_epoch(bench: ConsumerBench) -> int:
    """The session epoch of the last fetch; -1 ends the session."""
    epoch: int = bench.nodes.requests(FetchRequest)[-1].session_epoch
    return epoch


async def test_a_close_of_a_consumer_that_runs_out_of_time_ends_the_fetches_and_closes_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, closed = await _reader(monkeypatch, _Hanging())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await bench.consumer.close()
    assert closed == ["router"]
    assert bench.consumer._reader.fetcher._fetches == {}
    assert _last_epoch(bench) == -1
    await bench.consumer.close()


async def test_a_close_of_a_consumer_that_is_cancelled_while_it_leaves_the_group_closes_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, closed = await _reader(monkeypatch, _Hanging())
    leave = _Hanging()
    monkeypatch.setattr(GroupMember, "leave", leave)
    bench.consumer._reader._is_subscribed = True
    closing = asyncio.create_task(bench.consumer.close())
    await _begun(closing, leave)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled()
    assert closed == ["router"]
    assert _last_epoch(bench) == -1


async def test_a_close_of_a_consumer_that_is_cancelled_twice_closes_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, end_session = _Hanging(), _Hanging()
    bench, closed = await _reader(monkeypatch, commit)
    monkeypatch.setattr("tailrace.client.reading.fetcher.end_session", end_session)
    closing = asyncio.create_task(bench.consumer.close())
    await _begun(closing, commit)
    closing.cancel()
    await _begun(closing, end_session)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert closed == ["router"]
