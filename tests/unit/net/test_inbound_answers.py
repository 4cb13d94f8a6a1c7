"""Answers over real sockets: their order, and clients that do not take them."""

import random
from collections.abc import Callable

from tailrace.net.inbound import InboundConnection
from testkit.nodes.listeners import frame, number_of, serving, until


async def test_answers_given_out_of_order_leave_in_order() -> None:
    parked: list[tuple[InboundConnection, int, bytes]] = []

    def park(connection: InboundConnection, slot: int, body: memoryview) -> None:
        parked.append((connection, slot, bytes(body)))
        if len(parked) == 20:
            random.Random(7).shuffle(parked)
            for each, its_slot, its_body in parked:
                each.answer(its_slot, [its_body] if number_of(its_body) % 5 else None)

    async with serving(park) as server:
        client = await server.connect()
        client.send(b"".join(frame(n) for n in range(20)))
        expected = [n for n in range(20) if n % 5]
        assert [number_of(await client.receive()) for _ in expected] == expected
        client.close()


async def test_an_answer_to_a_closed_connection_is_dropped() -> None:
    parked: list[tuple[InboundConnection, int]] = []
    closed: list[str] = []

    def park(connection: InboundConnection, slot: int, body: memoryview) -> None:
        connection.on_close(lambda: closed.append("told"))
        parked.append((connection, slot))

    async with serving(park) as server:
        client = await server.connect()
        client.send(frame(0) + frame(1))
        await until(lambda: len(parked) >= 2)
        client.close()
        await until(lambda: len(closed) >= 2)
        for connection, slot in parked:
            assert not connection.is_open
            connection.answer(slot, [b"too late"])


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    answer = bytes(1 << 20)

    def answer_much(connection: InboundConnection, slot: int, body: memoryview) -> None:
        connection.answer(slot, [answer])

    async with serving(answer_much, unsent_bytes=8 << 20) as server:
        slow, honest = await server.connect(), await server.connect()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for n in range(60):
            slow.send(frame(n))
            await honest.ask(frame(n))
        await until(
            lambda: server.listener.counts.open < 2 or any(each.answers.unsent_bytes for each in server.connections)
        )
        stuck = next((each for each in server.connections if each.answers.unsent_bytes), None)
        if stuck is not None:
            assert stuck.answers.unsent_bytes <= (8 << 20) + (64 << 20)
            stuck.check_time(0)
            stuck.check_time(61_000)
            assert not stuck.is_open, "no progress for 60 s"
        assert len(await honest.ask(frame(1))) == len(answer)
        slow.close()
        honest.close()


async def test_an_answer_that_no_frame_can_hold_closes_the_connection() -> None:
    mebibyte = bytes(1 << 20)

    def answer_too_much(connection: InboundConnection, slot: int, body: memoryview) -> None:
        connection.answer(slot, [mebibyte] * 2048 if number_of(body) else [b"short"])

    async with serving(answer_too_much) as server:
        client, honest = await server.connect(), await server.connect()
        client.send(frame(0) + frame(1) + frame(0))
        assert await client.receive() == b"short", "answers given before still leave"
        assert await client.is_closed_by_server()
        assert await honest.ask(frame(0)) == b"short"
        client.close()
        honest.close()


async def test_requests_whose_answers_are_not_read_are_not_carried_out() -> None:
    carried_out = 0

    def answer_much(connection: InboundConnection, slot: int, body: memoryview) -> None:
        nonlocal carried_out
        carried_out += 1
        connection.answer(slot, [bytes(1 << 20)])

    async with serving(answer_much) as server:
        slow, honest = await server.connect(), await server.connect()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.send(b"".join(frame(n) for n in range(100)))
        await until(lambda: any(each.answers.unsent_bytes for each in server.connections))
        for n in range(20):
            await honest.ask(frame(n))
        (stuck,) = (each for each in server.connections if each.answers.unsent_bytes)
        assert stuck.answers.unsent_bytes <= 5 << 20
        assert carried_out - 20 <= 32, "the buffers of both sockets, and little more"
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(100):
            assert len(await slow.receive()) == 1 << 20
        assert carried_out == 120
        slow.close()
        honest.close()


async def test_requests_are_not_carried_out_while_large_answers_wait_for_one_before_them() -> None:
    first: list[Callable[[], None]] = []
    carried_out = 0

    def answer_all_but_the_first(connection: InboundConnection, slot: int, body: memoryview) -> None:
        nonlocal carried_out
        carried_out += 1
        if first:
            connection.answer(slot, [bytes(1 << 20)])
        else:
            first.append(lambda: connection.answer(slot, [b"first"]))

    async with serving(answer_all_but_the_first) as server:
        client, honest = await server.connect(), await server.connect()
        client.send(b"".join(frame(n) for n in range(60)))
        await until(lambda: carried_out)
        for n in range(20):
            await honest.ask(frame(n))
        assert carried_out - 20 <= 4, "requests that wait take memory"
        first[0]()
        assert await client.receive() == b"first"
        for _ in range(59):
            assert len(await client.receive()) == 1 << 20
        assert carried_out == 80
        client.close()
        honest.close()


async def test_large_answers_that_wait_for_one_before_them_end_the_connection() -> None:
    parked: list[Callable[[], None]] = []

    def park(connection: InboundConnection, slot: int, body: memoryview) -> None:
        parked.append(lambda: connection.answer(slot, [bytes(1 << 20)]))

    async with serving(park, unsent_bytes=8 << 20) as server:
        client = await server.connect()
        client.send(b"".join(frame(n) for n in range(20)))
        await until(lambda: len(parked) == 20)
        for answer in parked[1:]:
            answer()
        assert await client.is_closed_by_server()
        client.close()


async def test_the_stream_ends_behind_an_answer_whose_last_chunk_is_empty() -> None:
    """In asyncio since Python 3.12 an empty chunk stays in the transport, which waits for it to leave."""

    def answer_with_nothing_last(connection: InboundConnection, slot: int, body: memoryview) -> None:
        connection.answer(slot, [bytes(1 << 20), b""])

    async with serving(answer_with_nothing_last) as server:
        client = await server.connect()
        assert len(await client.ask(frame(0))) == 1 << 20
        server.connections[0].finish()
        assert await client.is_closed_by_server()
        client.close()
