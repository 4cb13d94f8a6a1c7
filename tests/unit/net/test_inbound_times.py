"""Connections that are idle, slow or gone."""

import select

import pytest

from tailrace.net.inbound import InboundConnection
from tailrace.net.transport import has_hung_up
from testkit.nodes.listeners import ListenerBench, frame, number_of, serving, until


async def test_an_idle_connection_is_closed_after_its_time_and_an_active_one_is_not() -> None:
    async with serving() as server:
        client = await server.connect()
        await client.ask(frame(1))
        (connection,) = server.connections
        connection.check_time(0)
        connection.check_time(599_000)
        await client.ask(frame(2))
        connection.check_time(600_500)
        connection.check_time(601_000)
        connection.check_time(1_200_000)
        assert connection.is_open
        connection.check_time(1_202_000)
        assert not connection.is_open
        assert await client.is_closed_by_server()
        client.close()


async def test_a_listener_looks_at_its_connections_by_itself_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.net.listener._CHECK_SECONDS", 0.01)
    async with serving(idle_ms=1) as server:
        client = await server.connect()
        assert await client.is_closed_by_server()
        client.close()


async def test_a_request_that_waits_for_its_answer_is_not_idle() -> None:
    parked: list[int] = []
    async with serving(lambda connection, slot, body: parked.append(slot)) as server:
        client = await server.connect()
        client.send(frame(1))
        await until(lambda: parked)
        (connection,) = server.connections
        for now_ms in (0, 700_000, 1_400_000):
            connection.check_time(now_ms)
        assert connection.is_open
        client.close()


async def test_a_frame_that_drips_is_cut_off_after_30_seconds() -> None:
    async with serving() as server:
        client = await server.connect()
        (connection,) = await _connections(server, 1)
        client.send(frame(1)[:5])
        await until(lambda: connection._received.end > 0)
        for second in range(31):
            connection.check_time(second * 1000)
        assert connection.is_open
        connection.check_time(31_000)
        assert not connection.is_open
        assert await client.is_closed_by_server()
        client.close()


async def test_frames_that_follow_each_other_closely_are_not_one_slow_frame() -> None:
    async with serving() as server:
        client = await server.connect()
        (connection,) = await _connections(server, 1)
        rest = b""
        for second in range(90):
            whole = frame(second)
            client.send(rest + whole[:5])
            rest = whole[5:]
            if second:
                await client.receive()
            await until(lambda: connection._received.end > 0)
            connection.check_time(second * 1000)
        assert connection.is_open
        client.close()


async def _connections(server: ListenerBench, count: int) -> tuple[InboundConnection, ...]:
    await until(lambda: len(server.connections) >= count)
    return server.connections


async def test_the_hang_up_of_a_client_at_its_limit_is_noticed_at_once() -> None:
    """The client's requests may wait for minutes, and hold room that other requests need."""
    held: list[int] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        held.append(number_of(body))

    async with serving(hold, in_flight=4) as server:
        client = await server.connect()
        client.send(b"".join(map(frame, range(5))))
        await until(lambda: len(held) == 4)
        client.close()
        await until(lambda: server.listener.counts.open == 0)
        assert held == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="this system does not tell of an end behind unread bytes")
async def test_the_hang_up_of_a_client_with_unread_bytes_is_noticed_within_seconds() -> None:
    held: list[int] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        held.append(number_of(body))

    async with serving(hold, in_flight=4) as server:
        client = await server.connect()
        client.send(b"".join(frame(number, size=4_000) for number in range(25)))
        await client.writer.drain()
        await until(lambda: len(held) == 4)
        (connection,) = server.connections
        await until(lambda: connection._is_reading_paused)
        for now_ms in (0, 1_500, 3_000):
            connection.check_time(now_ms)
        assert connection.is_open, "it may still want its answers"
        client.close()
        await until(lambda: has_hung_up(connection._transport))
        connection.check_time(4_500)
        assert not connection.is_open
        await until(lambda: server.listener.counts.open == 0)
