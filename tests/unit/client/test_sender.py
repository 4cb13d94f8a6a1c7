"""The sender sleeps until there is something to do, and never longer."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future

from tailrace.client.accumulator import Accumulator
from tailrace.client.outgoing import RecordMetadata
from tailrace.client.router import Router
from tailrace.client.sender import Sender
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection

LINGER_MS = 5


class ScriptedRouter(Router):
    """Its clock says what the test wants at the first looks, then stands still; there is no cluster."""

    def __init__(self, times: Iterator[int]) -> None:
        super().__init__("127.0.0.1:1")
        self._times = times
        self._now_ms = 0
        self.asked = asyncio.Event()

    def now_ms(self) -> int:  # type: ignore[override]
        self._now_ms = next(self._times, self._now_ms)
        return self._now_ms

    async def any_connection(self) -> Connection:
        self.asked.set()
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "there is no cluster")


def test_what_becomes_due_between_a_turn_and_the_sleep_after_it_is_not_slept_over() -> None:
    asyncio.run(_send_at_the_edge_of_a_tick())


async def _send_at_the_edge_of_a_tick() -> None:
    start_ms = int(asyncio.get_running_loop().time() * 1000)
    accumulator = Accumulator(linger_ms=LINGER_MS)
    completion: Future[RecordMetadata] = Future()
    accumulator.append(TopicPartition("orders", 0), -1, None, b"v", (), 10, completion, start_ms)
    # The turn comes one tick too early, and the next look at the clock one tick later.
    router = ScriptedRouter(iter((start_ms + LINGER_MS - 1, start_ms + LINGER_MS)))
    sender = Sender(router, accumulator, acks=-1, idempotent=True, on_release=lambda cost: None)
    running = asyncio.create_task(sender.run())
    async with asyncio.timeout(30):
        await router.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    router.close()
