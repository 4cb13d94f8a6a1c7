"""Connections of throttled clients (KIP-219): answered at once, then not read for a time."""

from tailrace.net.inbound import InboundConnection
from testkit.nodes.listeners import frame, number_of, serving, until


async def test_a_throttled_client_gets_its_answer_at_once_and_no_request_is_carried_out_meanwhile() -> None:
    taken: list[int] = []

    def answer(connection: InboundConnection, slot: int, body: memoryview) -> None:
        taken.append(number_of(bytes(body)))
        connection.answer(slot, [bytes(body)])
        if len(taken) == 1:
            connection.throttle(3_600_000)
            connection.throttle(10)  # the longer throttle goes on

    async with serving(answer) as server:
        client, other = await server.connect(), await server.connect()
        client.send(frame(1) + frame(2))
        assert number_of(await client.receive()) == 1
        assert number_of(await other.ask(frame(7))) == 7
        assert taken == [1, 7]
        throttled = next(each for each in server.connections if each._throttle is not None)
        for now_ms in (0, 1_300_000, 2_600_000):
            throttled.check_time(now_ms)
        assert throttled.is_open  # a throttled client is not idle
        throttled._end_throttle()
        assert number_of(await client.receive()) == 2
        client.close()
        other.close()


async def test_a_throttle_ends_by_itself() -> None:
    def answer(connection: InboundConnection, slot: int, body: memoryview) -> None:
        connection.answer(slot, [bytes(body)])
        connection.throttle(1)

    async with serving(answer) as server:
        client = await server.connect()
        client.send(b"".join(map(frame, range(5))))
        assert [number_of(await client.receive()) for _ in range(5)] == list(range(5))
        client.close()


async def test_the_hang_up_of_a_throttled_client_is_noticed_and_its_timer_ends() -> None:
    async with serving(lambda connection, slot, body: connection.throttle(3_600_000)) as server:
        client = await server.connect()
        client.send(frame(1))
        await until(lambda: any(each._throttle is not None for each in server.connections))
        (connection,) = server.connections
        timer = connection._throttle
        assert timer is not None
        client.close()

        def looked() -> bool:
            for now_ms in (0, 5_000):
                connection.check_time(now_ms)
            return not server.connections

        await until(looked)
        assert timer.cancelled()
