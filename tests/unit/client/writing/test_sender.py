"""The sender sleeps until the next batch is due, and never longer; a fault is forgotten when it has passed."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import cast

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.client.writing.accumulator import Accumulator
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.client.writing.sender import Sender
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tailrace.protocol.records.compression import Codec
from testkit.clients.metadata_answers import metadata_of

LINGER_MS = 5


def _accumulator(linger_ms: int) -> Accumulator:
    return Accumulator(
        batch_size=16_384,
        linger_ms=linger_ms,
        delivery_timeout_ms=120_000,
        max_request_size=1_048_576,
        codec=Codec.NONE,
    )


class ClockedRouter(Router):
    """A router without a cluster, with these first times on its clock, which then stands still."""

    def __init__(self, times: Iterator[int]) -> None:
        super().__init__(ClientSettings("127.0.0.1:1"))
        self._times = times
        self._now_ms = 0
        self.asked = asyncio.Event()

    def now_ms(self) -> int:  # type: ignore[override]
        self._now_ms = next(self._times, self._now_ms)
        return self._now_ms

    async def any_connection(self) -> Connection:
        self.asked.set()
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "there is no cluster")


def test_the_sleep_of_a_sender_ends_for_a_batch_that_became_due_after_the_turn() -> None:
    asyncio.run(_send_at_the_edge_of_a_tick())


async def _send_at_the_edge_of_a_tick() -> None:
    start_ms = int(asyncio.get_running_loop().time() * 1000)
    accumulator = _accumulator(LINGER_MS)
    completion: Future[RecordMetadata] = Future()
    accumulator.append(TopicPartition("orders", 0), -1, None, b"v", (), 10, completion, start_ms)
    # The turn comes one tick too early, and the next look at the clock one tick later.
    router = ClockedRouter(iter((start_ms + LINGER_MS - 1, start_ms + LINGER_MS)))
    sender = Sender(router, accumulator, acks=-1, idempotent=True, on_release=lambda cost: None)
    running = asyncio.create_task(sender.run())
    async with asyncio.timeout(30):
        await router.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    router.close()


class MovingRouter(Router):
    """Node 1 leads and cannot be reached; after an attempt, metadata names node 2 as leader."""

    def __init__(self) -> None:
        super().__init__(
            ClientSettings("127.0.0.1:1", retry_backoff_ms=600_000)
        )  # a second attempt would come after the test
        self.tried: list[int] = []
        self._describe(1)

    def _describe(self, leader: int) -> None:
        self.view.update(metadata_of({TopicPartition("orders", 0): leader}), self.now_ms())

    async def refresh(self, *_: object, **__: object) -> None:
        self._describe(2)

    def open_connection(self, broker: BrokerAddress, use: str) -> Connection | None:
        return cast(Connection, WritingConnection()) if broker.node_id == 2 else None

    async def broker_connection(self, broker: BrokerAddress, use: str = "") -> Connection:
        self.tried.append(broker.node_id)
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"node {broker.node_id} is gone")


class WritingConnection:
    def send(self, request: ProduceRequest, *_: object, **__: object) -> "asyncio.Future[ProduceResponse]":
        answer: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()
        written = PartitionProduceResponse(index=0, base_offset=0)
        answer.set_result(
            ProduceResponse(responses=(TopicProduceResponse(name="orders", partition_responses=(written,)),))
        )
        return answer


async def test_a_node_without_leaderships_is_no_trouble_of_a_sender() -> None:
    router, accumulator = MovingRouter(), _accumulator(0)
    sender = Sender(router, accumulator, acks=-1, idempotent=False, on_release=lambda cost: None)
    completion: Future[RecordMetadata] = Future()
    accumulator.append(TopicPartition("orders", 0), -1, None, b"v", (), 10, completion, router.now_ms())
    running = asyncio.create_task(sender.run())
    async with asyncio.timeout(30):
        await asyncio.wrap_future(completion)
        assert router.tried == [1]
        sender.stop()
        await running
    assert sender.trouble is None
