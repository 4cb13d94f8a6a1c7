"""Frames over real sockets: their limits, their memory, and hostile bytes."""

import asyncio
import random
import struct

import pytest

from tailrace.net.inbound import InboundConnection
from tailrace.net.limits import ListenerLimits
from testkit.nodes.listeners import FETCH, METADATA, PRODUCE, ListenerBench, frame, number_of, serving, until


async def test_frames_arrive_whole_however_they_are_cut() -> None:
    async with serving() as server:
        client = await server.connect()
        dice = random.Random(1)
        sent = [frame(n, size=dice.choice((8, 9, 100, 70_000, 300_000)), api_key=PRODUCE) for n in range(60)]
        stream = b"".join(sent)

        async def drip() -> None:
            position = 0
            while position < len(stream):
                step = dice.choice((1, 3, 5, 4_000, 65_536, 200_000))
                client.send(stream[position : position + step])
                position += step
                await client.writer.drain()
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(drip())
            for each in sent:
                assert await client.receive() == each[4:]
        client.close()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", 0), id="length zero"),
        pytest.param(struct.pack(">i", 7) + b"1234567", id="shorter than a header"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="2 GiB"),
        pytest.param(struct.pack(">ih", 17 << 20, METADATA), id="too large for this API"),
        pytest.param(struct.pack(">ih", 101 << 20, PRODUCE), id="too large for Produce"),
        pytest.param(struct.pack(">ih", 65 << 20, FETCH), id="too large for Fetch"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS hello"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", id="HTTP"),
    ],
)
async def test_a_bad_length_closes_the_connection_and_no_other(bad: bytes) -> None:
    async with serving() as server:
        honest, hostile = await server.connect(), await server.connect()
        await honest.ask(frame(1))
        hostile.send(frame(5) + bad)
        assert number_of(await hostile.receive()) == 5, "requests that came before are answered"
        assert await hostile.is_closed_by_server()
        assert number_of(await honest.ask(frame(2))) == 2
        assert server.listener.pool.in_use_bytes == 0, "nothing was reserved for the announced size"
        honest.close()
        hostile.close()


@pytest.mark.parametrize(("api_key", "size"), [(PRODUCE, 20 << 20), (METADATA, 16 << 20), (FETCH, 20 << 20)])
async def test_the_largest_legal_frame_passes(api_key: int, size: int) -> None:
    async with serving(large_frame_bytes=20 << 20) as server:
        client = await server.connect()
        for n in range(2):
            assert len(await client.ask(frame(n, api_key=api_key, size=size))) == size
        client.close()


def test_only_clients_on_this_machine_may_send_large_fetches() -> None:
    limits = ListenerLimits()
    assert limits.frame_limit(FETCH, is_trusted=True) == 64 << 20
    assert limits.frame_limit(FETCH, is_trusted=False) == 4 << 20


async def test_an_announced_frame_takes_memory_only_as_it_arrives() -> None:
    async with serving() as server:
        client = await server.connect()
        client.send(struct.pack(">ihhi", 100 << 20, PRODUCE, 0, 1) + bytes(1000))
        await client.writer.drain()
        await until(lambda: server.listener.pool.in_use_bytes)
        assert server.listener.pool.in_use_bytes == 64 << 10
        client.close()


async def test_large_frames_that_do_not_fit_into_memory_together_wait_for_each_other() -> None:
    async with serving(memory_bytes=1 << 20) as server:
        clients = [await server.connect() for _ in range(10)]
        whole = frame(3, api_key=PRODUCE, size=1 << 20)
        for portion in (whole[:200_000], whole[200_000:]):
            for client in clients:
                client.send(portion)
        for client in clients:
            assert len(await client.receive()) == 1 << 20
            client.close()


async def test_a_frame_larger_than_the_memory_of_all_passes_alone() -> None:
    async with serving(memory_bytes=1 << 20) as server:
        clients = [await server.connect() for _ in range(3)]
        whole = frame(3, api_key=PRODUCE, size=5 << 20)
        for portion in (whole[: 1 << 20], whole[1 << 20 :]):
            for client in clients:
                client.send(portion)
        for client in clients:
            assert len(await client.receive()) == 5 << 20
            client.close()


async def test_a_request_of_several_turns_keeps_its_bytes_and_later_requests_wait() -> None:
    order: list[int] = []
    loop = asyncio.get_running_loop()

    def in_three_turns(connection: InboundConnection, slot: int, body: memoryview) -> None:
        number, whole = number_of(body), bytes(body)
        if number != 1:
            order.append(number)
            connection.answer(slot, [whole])
            return

        def step(left: int) -> None:
            assert bytes(body) == whole, "the buffer is not used again"
            if left:
                loop.call_soon(step, left - 1)
            else:
                order.append(number)
                connection.answer(slot, [whole])
                connection.go_on()

        connection.suspend()
        step(3)

    async with serving(in_three_turns) as server:
        slow, other = await server.connect(), await server.connect()
        await other.ask(frame(7))
        slow.send(frame(0) + frame(1, api_key=PRODUCE, size=200_000) + frame(2) + frame(3))
        assert [number_of(await slow.receive()) for _ in range(4)] == [0, 1, 2, 3]
        assert order == [7, 0, 1, 2, 3]
        slow.close()
        other.close()


async def test_half_frames_do_not_keep_others_from_memory_for_long() -> None:
    async with serving(memory_bytes=1 << 20) as server:
        holders = [await server.connect() for _ in range(4)]
        for holder in holders:
            holder.send(frame(1, api_key=PRODUCE, size=512 << 10)[:200_000])
            await holder.writer.drain()
        honest = await server.connect()
        honest.send(frame(3, api_key=PRODUCE, size=256 << 10))
        await until(lambda: server.listener.pool.is_short)
        for now_ms in (0, 1_900, 3_000):
            for connection in server.connections:
                connection.check_time(now_ms)
            if now_ms < 2_000:
                assert len(server.connections) == 5
        assert len(await honest.receive()) == 256 << 10
        for client in (honest, *holders):
            client.close()


def test_a_large_frame_has_more_time_and_a_small_one_has_not() -> None:
    limits = ListenerLimits()
    assert limits.frame_time_ms(0) == 30_000
    assert limits.frame_time_ms(100 << 20) == 130_000
    assert limits.frame_time_ms(100 << 20, is_in_the_way=True) == 8_250


async def test_random_bytes_never_hurt_an_honest_client() -> None:
    dice = random.Random(20261120)

    async def attack(server: ListenerBench) -> None:
        client = await server.connect()
        client.send(dice.randbytes(dice.randrange(1, 4_000)))
        if dice.random() < 0.5:
            client.writer.write_eof()
        while await client.reader.read(65_536):
            if dice.random() < 0.3:
                break
        client.close()

    async with serving() as server:
        honest = await server.connect()
        async with asyncio.TaskGroup() as group:
            attacks = [group.create_task(attack(server)) for _ in range(100)]
            for n in range(300):
                assert number_of(await honest.ask(frame(n))) == n
                await asyncio.sleep(0)
            for task in attacks:  # attacks that begin like a frame wait for the rest of it
                task.cancel()
        assert number_of(await honest.ask(frame(7))) == 7
        honest.close()


async def test_a_view_that_outlives_its_turn_keeps_its_bytes() -> None:
    kept: list[memoryview] = []

    def keep(connection: InboundConnection, slot: int, body: memoryview) -> None:
        kept.append(body)
        connection.answer(slot, [b"kept"])

    async with serving(keep) as server:
        client = await server.connect()
        for n in range(200):
            assert await client.ask(frame(n, size=8 + 997 * n % 5_000)) == b"kept"
        assert [number_of(body) for body in kept] == list(range(200))
        assert all(bytes(body[8:]).strip(b"x") == b"" for body in kept)
        client.close()
