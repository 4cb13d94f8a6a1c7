"""A node that hangs: its connection is open, and it sends nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.net import silence
from tailrace.net.connection import Connection
from tailrace.net.silence import GivenUp, NodeHangs, SilenceWatch


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_MS", 20)
    monkeypatch.setattr(silence, "_SETTLING_S", 0.001)


def _connection() -> Any:
    return cast(Connection, SimpleNamespace(received_bytes=7))


def test_a_node_that_sends_nothing_is_noted_again_and_again() -> None:
    async def run() -> None:
        noted = asyncio.Semaphore(0)
        with SilenceWatch(noted.release) as watch:
            watch.use(_connection())
            await noted.acquire()
            await noted.acquire()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_an_answer_that_arrives_in_parts_is_no_silence() -> None:
    async def run() -> None:
        noted = 0

        def note() -> None:
            nonlocal noted
            noted += 1

        connection = _connection()
        with SilenceWatch(note) as watch:
            watch.use(connection)
            decide = watch._decide

            def decide_after_a_part() -> None:
                connection.received_bytes += 1
                decide()

            watch._decide = decide_after_a_part  # type: ignore[method-assign]
            await asyncio.sleep(0.2)
        assert noted == 0

    asyncio.run(run())


def test_a_request_to_a_node_that_hangs_is_given_up() -> None:
    async def ask() -> None:
        async with GivenUp("node 3") as watch:
            watch.use(_connection())
            await asyncio.Event().wait()

    with pytest.raises(NodeHangs, match="node 3 has not answered") as caught:
        asyncio.run(asyncio.wait_for(ask(), 20))
    assert caught.value.code.retriable


def test_an_answer_in_time_ends_the_watch() -> None:
    async def run() -> str:
        async with GivenUp("node 3"):
            return "answer"

    assert asyncio.run(run()) == "answer"


def test_a_request_has_the_whole_time_however_long_the_connection_took() -> None:
    async def run() -> None:
        with SilenceWatch(lambda: None, wait_ms=60_000) as watch:
            assert watch._timer is not None
            since_connecting = watch._timer
            await asyncio.sleep(0)
            watch.use(_connection())
            assert watch._timer is not since_connecting
            assert since_connecting.cancelled()
            assert watch._timer.when() > since_connecting.when()

    asyncio.run(run())
