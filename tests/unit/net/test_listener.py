"""The listener against real sockets: the service of honest clients, also when others attack."""

import asyncio

import pytest

from tailrace.net.inbound import InboundConnection
from tailrace.net.listener import Listener
from tailrace.net.turns import COSTLY_SECONDS
from testkit.nodes.listeners import FrameClient, default_listener, echo, frame, number_of, serving, silent_turns, until


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as server:
        client = await server.connect()
        client.send(b"".join(frame(n, size=8 + n % 50) for n in range(5_000)))
        assert [number_of(await client.receive()) for _ in range(5_000)] == list(range(5_000))
        client.close()


async def test_a_turn_of_a_connection_has_one_costly_request() -> None:
    """The clock of the turns moves by what each request takes: 20 cheap requests together, then a turn per request."""
    time, in_turns = [0.0], [0]

    def work(connection: InboundConnection, slot: int, body: memoryview) -> None:
        in_turns[-1] += 1
        if number_of(bytes(body)) >= 20:
            time[0] += 2 * COSTLY_SECONDS
        echo(connection, slot, body)

    def count_turn() -> None:
        if in_turns[-1]:
            in_turns.append(0)

    async with serving(work, now=lambda: time[0]) as server:
        server.listener.turns.on_turn_end = count_turn
        client = await server.connect()
        client.send(b"".join(frame(n) for n in range(24)))
        assert [number_of(await client.receive()) for _ in range(24)] == list(range(24))
        client.close()
    assert in_turns[-4:] == [1, 1, 1, 0]
    assert sum(in_turns) == 24


async def test_a_connection_that_is_suspended_carries_out_nothing_until_it_goes_on() -> None:
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def take(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))
        if number_of(bytes(body)):
            echo(connection, slot, body)
        else:
            connection.suspend()

    async with serving(take) as server:
        client, other = await server.connect(), await server.connect()
        client.send(b"".join(frame(n) for n in range(3)))
        await until(lambda: taken)
        other.send(frame(7))
        await until(lambda: len(taken) == 2)
        client.send(frame(3))
        assert [number_of(body) for _, _, body in taken] == [0, 7]
        connection, slot, body = taken[0]
        connection.answer(slot, [body])
        connection.go_on()
        assert [number_of(await client.receive()) for _ in range(4)] == [0, 1, 2, 3]
        other.close()
        client.close()


async def test_at_most_64_requests_of_a_connection_are_in_progress() -> None:
    parked: list[tuple[InboundConnection, int]] = []

    async with serving(lambda connection, slot, body: parked.append((connection, slot))) as server:
        greedy, honest = await server.connect(), await server.connect()
        greedy.send(b"".join(frame(n) for n in range(1_000)))
        honest.send(frame(0))
        await until(lambda: any(slot == 0 and connection is not parked[0][0] for connection, slot in parked))
        assert max(slot for _, slot in parked) == 63

        for _ in range(1_001):
            await until(lambda: parked)
            connection, slot = parked.pop(0)
            connection.answer(slot, [b"done"])
            assert len(parked) <= 65
        for _ in range(1_000):
            assert await greedy.receive() == b"done"
        greedy.close()
        honest.close()


async def test_one_connection_cannot_take_more_than_its_share_of_a_turn() -> None:
    order: list[str] = []
    names: dict[InboundConnection, str] = {}

    def note(connection: InboundConnection, slot: int, body: memoryview) -> None:
        order.append(names.setdefault(connection, "greedy" if number_of(body) >= 0 else "modest"))
        connection.answer(slot, None)

    async with serving(note) as server:
        greedy, modest = await server.connect(), await server.connect()
        greedy.send(b"".join(frame(n) for n in range(3_000)))
        modest.send(frame(-1))
        await until(lambda: len(order) >= 3_001)
        assert order.index("modest") <= 2 * 64 + 1
        greedy.close()
        modest.close()


async def test_a_connection_that_comes_too_fast_is_delayed_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections look as if from another machine and at one moment: clients on this machine are not limited."""
    monkeypatch.setattr("tailrace.net.listener.is_loopback", lambda address: False)
    monkeypatch.setattr(Listener, "_now_ms", lambda self: 0)
    async with serving(new_connections_per_ip_per_second=20, max_connections_per_ip=1_000) as server:
        clients = [await server.connect() for _ in range(45)]
        await until(lambda: len(server.connections) == 45)
        clients[0].send(frame(1))
        clients[44].send(frame(1))
        assert server.listener.counts.delayed == 5
        assert number_of(await clients[0].receive()) == 1
        assert number_of(await clients[44].receive()) == 1, "it was late, and that is all"
        clients += [await server.connect() for _ in range(250)]
        assert await clients[-1].is_closed_by_server()
        assert server.listener.counts.refused == 45 + 250 - 239, "a wait of less than 10 s is allowed"
        assert number_of(await clients[1].ask(frame(2))) == 2
        for client in clients:
            client.close()


async def test_no_more_connections_than_the_limit() -> None:
    async with serving(max_connections=3) as server:
        clients = [await server.connect() for _ in range(3)]
        for client in clients:
            await client.ask(frame(1))
        extra = await server.connect()
        assert await extra.is_closed_by_server()
        extra.close()
        clients.pop().close()
        await until(lambda: server.listener.counts.open < 3)
        again = await server.connect()
        assert number_of(await again.ask(frame(9))) == 9
        for client in (*clients, again):
            client.close()


async def test_a_limit_per_address_does_not_bind_this_machine() -> None:
    async with serving(max_connections_per_ip=1) as server:
        clients = [await server.connect() for _ in range(3)]
        for client in clients:
            await client.ask(frame(1))
            client.close()


async def test_both_loopbacks_share_the_port() -> None:
    turns = silent_turns(
        call_soon=asyncio.get_running_loop().call_soon, on_broken_invariant=lambda error: pytest.fail(str(error))
    )
    listener = default_listener("TEST", turns=turns, on_frame=echo)
    port = listener.bind(["127.0.0.1", "::1"], 0)
    await listener.start()
    assert {bound for _, bound in listener.addresses} == {port}
    for host, _ in listener.addresses:
        reader, writer = await asyncio.open_connection(host, port)
        client = FrameClient(reader, writer)
        assert number_of(await client.ask(frame(3))) == 3
        client.close()
    await listener.stop()


@pytest.mark.usefixtures("a_listener_that_stops_is_patient")
async def test_a_listener_that_stops_answers_what_it_took_and_takes_nothing_more() -> None:
    """A client that goes on sending must still get its answers: a socket that is closed with bytes unread is reset."""
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))

    async with serving(hold) as server:
        client = await server.connect()
        client.send(frame(1) + frame(2))
        await until(lambda: len(taken) == 2)
        server.listener.discard_input()
        client.send(b"".join(frame(number, size=60_000) for number in range(3, 100)))
        await client.writer.drain()
        assert not await server.listener.wait_until_answered(0)
        for connection, slot, body in taken:
            connection.answer(slot, [body])
        assert await server.listener.wait_until_answered(10)
        stopping = asyncio.create_task(server.listener.stop())
        assert [number_of(await client.receive()) for _ in range(2)] == [1, 2]
        assert await client.reader.read() == b""
        client.close()
        await stopping
        assert len(taken) == 2


@pytest.mark.usefixtures("a_listener_that_stops_is_patient")
async def test_a_listener_that_stops_listens_to_a_connection_that_was_paused() -> None:
    """Too many requests were in progress; the pause must not keep the end of the client from being seen."""
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))

    async with serving(hold, in_flight=4) as server:
        client = await server.connect()
        client.send(b"".join(frame(number) for number in range(50)))
        await until(lambda: len(taken) == 4)
        server.listener.discard_input()
        for connection, slot, body in taken:
            connection.answer(slot, [body])
        stopping = asyncio.create_task(server.listener.stop())
        assert [number_of(await client.receive()) for _ in range(4)] == [0, 1, 2, 3]
        assert await client.reader.read() == b""
        client.close()
        await stopping
        assert len(taken) == 4


@pytest.mark.usefixtures("a_listener_that_stops_is_patient")
async def test_a_client_that_reads_slowly_gets_all_that_is_queued_when_the_listener_stops() -> None:
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))

    async with serving(hold, unsent_bytes=1 << 26) as server:
        client = await server.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(frame(number) for number in range(4)))
        await until(lambda: len(taken) == 4)
        for connection, slot, body in taken:
            connection.answer(slot, [body, bytes(16 << 20 if slot == 0 else 100_000)])
            await until(lambda: connection.answers.is_write_blocked)  # noqa: B023
        assert not connection.answers.is_empty
        stopping = asyncio.create_task(server.listener.stop())
        await asyncio.sleep(0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [number_of(await client.receive()) for _ in range(4)] == [0, 1, 2, 3]
        assert await client.reader.read() == b""
        client.close()
        await stopping


async def test_requests_above_the_limit_in_progress_are_carried_out_afterwards() -> None:
    held: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        held.append((connection, slot, bytes(body)))

    async with serving(hold, in_flight=4) as server:
        client = await server.connect()
        for first in (0, 20):
            client.send(b"".join(frame(number, size=1_000) for number in range(first, first + 20)))
            await client.writer.drain()
            await asyncio.sleep(0)
        answered: list[int] = []
        while len(answered) < 40:
            await until(lambda: held)
            connection, slot, body = held.pop(0)
            connection.answer(slot, [body])
            connection.answers.flush()
            answered.append(number_of(await client.receive()))
            assert len(held) <= 4
        assert answered == list(range(40))
        client.close()
