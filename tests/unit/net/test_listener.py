"""The listener against real sockets: the service of honest clients, also when others attack."""

import asyncio
import random
import select
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import uvloop

from tailrace.net.fair_turns import FairTurns
from tailrace.net.inbound import InboundConnection
from tailrace.net.limits import ListenerLimits
from tailrace.net.listener import TOO_LONG_MS, Arrivals, Listener, OnFrame, arrivals_within
from tailrace.net.transport import has_hung_up
from tailrace.net.turns import COSTLY_SECONDS
from testkit.listeners import PoisonedBufferPool, default_listener, silent_turns

Scenario = Callable[[], Awaitable[None]]
Run = Callable[[Scenario], None]

PRODUCE, FETCH, METADATA = 0, 1, 3


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario on each kind of event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario(), 60))

    return run_scenario


@pytest.fixture(autouse=True)
def no_other_code_reads_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios call `check_time` with times of their own; those of the real clock would lie between them."""
    monkeypatch.setattr("tailrace.net.listener._CHECK_SECONDS", 3_600)


@pytest.fixture
def a_listener_that_stops_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not make it cut off bytes that the scenario waits for."""
    monkeypatch.setattr("tailrace.net.listener._STOP_SECONDS", 60)


class ListenerBench:
    """A listener and the events that it reports."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.port = port

    async def connect(self) -> "FrameClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        return FrameClient(reader, writer)

    @property
    def connections(self) -> tuple[InboundConnection, ...]:
        return tuple(self.listener._connections)


class FrameClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.receive()

    async def is_closed_by_server(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


def frame(number: int, *, api_key: int = METADATA, size: int = 12) -> bytes:
    """A frame of `size` bytes that carries a number where Kafka has the correlation id."""
    body = struct.pack(">hhi", api_key, 0, number).ljust(size, b"x")
    return struct.pack(">i", len(body)) + body


def number_of(body: bytes | memoryview) -> int:
    return int(struct.unpack_from(">i", body, 4)[0])


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until the condition holds; the scenario's own limit of time ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - the conditions are about the state of sockets, which sets no event
        await asyncio.sleep(0)


def echo(connection: InboundConnection, slot: int, body: memoryview) -> None:
    connection.answer(slot, [bytes(body)])


@asynccontextmanager
async def serving(
    on_frame: OnFrame = echo,
    memory_bytes: int = 256 << 20,
    now: Callable[[], float] = lambda: 0.0,
    **limits: int,
) -> AsyncIterator[ListenerBench]:
    def stop_on_broken_invariant(fault: BaseException) -> None:
        raise fault

    turns = silent_turns(
        call_soon=asyncio.get_running_loop().call_soon, on_broken_invariant=stop_on_broken_invariant, now=now
    )
    own_limits = replace(ListenerLimits(), **limits)
    listener = Listener(
        name="TEST",
        turns=turns,
        fair_turns=FairTurns(turns, call_soon=asyncio.get_running_loop().call_soon),
        on_frame=on_frame,
        pool=PoisonedBufferPool(limit_bytes=memory_bytes),
        limits=own_limits,
        arrivals=arrivals_within(own_limits),
    )
    port = listener.bind(["127.0.0.1"], 0)
    await listener.start()
    try:
        yield ListenerBench(listener, port)
    finally:
        await listener.stop()
        assert listener.counts.open == 0
        assert listener.pool.in_use_bytes == 0, "every receive buffer has been given back"


def test_pipelined_requests_are_answered_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server:
            client = await server.connect()
            client.send(b"".join(frame(n, size=8 + n % 50) for n in range(5_000)))
            assert [number_of(await client.receive()) for _ in range(5_000)] == list(range(5_000))
            client.close()

    run(scenario)


def test_a_turn_of_a_connection_has_one_costly_request(run: Run) -> None:
    """The clock of the turns moves by what each request takes: 20 cheap ones together, then one turn for each."""

    async def scenario() -> None:
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

    run(scenario)


def test_a_connection_that_is_suspended_carries_out_nothing_until_it_goes_on(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_answers_given_out_of_order_leave_in_order(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_frames_arrive_whole_however_they_are_cut(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


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
def test_a_bad_length_closes_the_connection_and_no_other(run: Run, bad: bytes) -> None:
    async def scenario() -> None:
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

    run(scenario)


@pytest.mark.parametrize(("api_key", "size"), [(PRODUCE, 20 << 20), (METADATA, 16 << 20), (FETCH, 20 << 20)])
def test_the_largest_legal_frame_passes(run: Run, api_key: int, size: int) -> None:
    async def scenario() -> None:
        async with serving(large_frame_bytes=20 << 20) as server:
            client = await server.connect()
            for n in range(2):
                assert len(await client.ask(frame(n, api_key=api_key, size=size))) == size
            client.close()

    run(scenario)


def test_only_clients_on_this_machine_may_send_large_fetches() -> None:
    limits = ListenerLimits()
    assert limits.frame_limit(FETCH, is_trusted=True) == 64 << 20
    assert limits.frame_limit(FETCH, is_trusted=False) == 4 << 20


def test_an_announced_frame_takes_memory_only_as_it_arrives(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server:
            client = await server.connect()
            client.send(struct.pack(">ihhi", 100 << 20, PRODUCE, 0, 1) + bytes(1000))
            await client.writer.drain()
            await until(lambda: server.listener.pool.in_use_bytes)
            assert server.listener.pool.in_use_bytes == 64 << 10
            client.close()

    run(scenario)


def test_large_frames_that_do_not_fit_into_memory_together_wait_for_each_other(run: Run) -> None:
    async def scenario() -> None:
        async with serving(memory_bytes=1 << 20) as server:
            clients = [await server.connect() for _ in range(10)]
            whole = frame(3, api_key=PRODUCE, size=1 << 20)
            for portion in (whole[:200_000], whole[200_000:]):
                for client in clients:
                    client.send(portion)
            for client in clients:
                assert len(await client.receive()) == 1 << 20
                client.close()

    run(scenario)


def test_a_frame_larger_than_the_memory_of_all_passes_alone(run: Run) -> None:
    async def scenario() -> None:
        async with serving(memory_bytes=1 << 20) as server:
            clients = [await server.connect() for _ in range(3)]
            whole = frame(3, api_key=PRODUCE, size=5 << 20)
            for portion in (whole[: 1 << 20], whole[1 << 20 :]):
                for client in clients:
                    client.send(portion)
            for client in clients:
                assert len(await client.receive()) == 5 << 20
                client.close()

    run(scenario)


def test_a_request_of_several_turns_keeps_its_bytes_and_later_requests_wait(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_half_frames_do_not_keep_others_from_memory_for_long(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_a_large_frame_has_more_time_and_a_small_one_has_not() -> None:
    limits = ListenerLimits()
    assert limits.frame_time_ms(0) == 30_000
    assert limits.frame_time_ms(100 << 20) == 130_000
    assert limits.frame_time_ms(100 << 20, is_in_the_way=True) == 8_250


def test_random_bytes_never_hurt_an_honest_client(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_at_most_64_requests_of_a_connection_are_in_progress(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_one_connection_cannot_take_more_than_its_share_of_a_turn(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_an_answer_to_a_closed_connection_is_dropped(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_a_client_that_does_not_read_is_cut_off(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_an_answer_that_no_frame_can_hold_closes_the_connection(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_requests_whose_answers_are_not_read_are_not_carried_out(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_requests_are_not_carried_out_while_large_answers_wait_for_one_before_them(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_large_answers_that_wait_for_one_before_them_end_the_connection(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_a_connection_that_comes_too_fast_is_delayed_or_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections look as if from another machine and at one moment: clients on this machine are not limited."""
    monkeypatch.setattr("tailrace.net.listener.is_loopback", lambda address: False)
    monkeypatch.setattr(Listener, "_now_ms", lambda self: 0)

    async def scenario() -> None:
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

    run(scenario)


def test_an_idle_connection_is_closed_after_its_time_and_an_active_one_is_not(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_a_listener_looks_at_its_connections_by_itself_and_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.net.listener._CHECK_SECONDS", 0.01)

    async def scenario() -> None:
        async with serving(idle_ms=1) as server:
            client = await server.connect()
            assert await client.is_closed_by_server()
            client.close()

    run(scenario)


def test_a_request_that_waits_for_its_answer_is_not_idle(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_a_frame_that_drips_is_cut_off_after_30_seconds(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_frames_that_follow_each_other_closely_are_not_one_slow_frame(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_no_more_connections_than_the_limit(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_a_limit_per_address_does_not_bind_this_machine(run: Run) -> None:
    async def scenario() -> None:
        async with serving(max_connections_per_ip=1) as server:
            clients = [await server.connect() for _ in range(3)]
            for client in clients:
                await client.ask(frame(1))
                client.close()

    run(scenario)


def test_a_view_that_outlives_its_turn_keeps_its_bytes(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


def test_both_loopbacks_share_the_port(run: Run) -> None:
    async def scenario() -> None:
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

    run(scenario)


@pytest.mark.usefixtures("a_listener_that_stops_is_patient")
def test_a_listener_that_stops_answers_what_it_took_and_takes_nothing_more(run: Run) -> None:
    """A client that goes on sending must still get its answers: a socket that is closed with bytes unread is reset."""
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))

    async def scenario() -> None:
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

    run(scenario)


@pytest.mark.usefixtures("a_listener_that_stops_is_patient")
def test_a_listener_that_stops_listens_to_a_connection_that_was_paused(run: Run) -> None:
    """Too many requests were in progress; the pause must not keep the end of the client from being seen."""
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))

    async def scenario() -> None:
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

    run(scenario)


@pytest.mark.usefixtures("a_listener_that_stops_is_patient")
def test_a_client_that_reads_slowly_gets_all_that_is_queued_when_the_listener_stops(run: Run) -> None:
    taken: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append((connection, slot, bytes(body)))

    async def scenario() -> None:
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

    run(scenario)


async def _connections(server: ListenerBench, count: int) -> tuple[InboundConnection, ...]:
    await until(lambda: len(server.connections) >= count)
    return server.connections


def test_the_hang_up_of_a_client_at_its_limit_is_noticed_at_once(run: Run) -> None:
    """Its requests may wait for minutes, and hold room that others need."""
    held: list[int] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        held.append(number_of(body))

    async def scenario() -> None:
        async with serving(hold, in_flight=4) as server:
            client = await server.connect()
            client.send(b"".join(map(frame, range(5))))
            await until(lambda: len(held) == 4)
            client.close()
            await until(lambda: server.listener.counts.open == 0)
            assert held == [0, 1, 2, 3]

    run(scenario)


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="this system does not tell of an end behind unread bytes")
def test_the_hang_up_of_a_client_with_unread_bytes_is_noticed_within_seconds(run: Run) -> None:
    held: list[int] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        held.append(number_of(body))

    async def scenario() -> None:
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

    run(scenario)


def test_requests_above_the_limit_in_progress_are_carried_out_afterwards(run: Run) -> None:
    held: list[tuple[InboundConnection, int, bytes]] = []

    def hold(connection: InboundConnection, slot: int, body: memoryview) -> None:
        held.append((connection, slot, bytes(body)))

    async def scenario() -> None:
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

    run(scenario)


def test_two_seconds_worth_may_come_at_once_and_the_next_wait_their_turn() -> None:
    arrivals = Arrivals(per_second=1_000, per_ip_per_second=20)
    waits = [arrivals.wait_ms("10.0.0.1", 0) for _ in range(44)]
    assert waits == [0] * 40 + [50, 100, 150, 200]


def test_a_bucket_fills_again_with_time() -> None:
    arrivals = Arrivals(per_second=1_000, per_ip_per_second=20)
    for _ in range(40):
        arrivals.wait_ms("10.0.0.1", 0)
    assert [arrivals.wait_ms("10.0.0.1", 500) for _ in range(11)] == [0] * 10 + [50]


def test_one_address_does_not_slow_another_down() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    for _ in range(10_000):
        arrivals.wait_ms("10.0.0.1", 0)
    assert arrivals.wait_ms("10.0.0.2", 0) == 0, "a flood takes no more of the node's rate than its own share"


def test_a_flood_is_refused_and_its_sender_is_served_again_later() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    waits = [arrivals.wait_ms("10.0.0.1", 0) for _ in range(1_000)]
    assert max(waits) == TOO_LONG_MS
    assert sum(wait < TOO_LONG_MS for wait in waits) == 40 + 199
    assert arrivals.wait_ms("10.0.0.1", 12_000) == 0


def test_all_addresses_together_have_a_rate() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    waits = [arrivals.wait_ms(f"10.0.{n // 200}.{n % 200}", 0) for n in range(402)]
    assert waits == [0] * 400 + [5, 10]


def test_addresses_that_were_quiet_are_forgotten() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    for number in range(100):
        arrivals.wait_ms(f"10.0.0.{number}", 0)
    arrivals.wait_ms("10.0.1.1", 60)
    arrivals.forget_idle(80)
    assert len(arrivals) == 1
