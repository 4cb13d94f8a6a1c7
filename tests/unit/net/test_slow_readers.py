"""Answers to a client that reads slowly, while the memory of other answers is used again and again.

Real files, real sockets: the transport keeps views of the bytes that the client has not read.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tailrace.model.topic_config import TopicConfig
from tailrace.net.inbound import InboundConnection
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.storage import OsFiles, ReadLimits
from testkit.nodes.data_path import DataPath, batch_of
from testkit.nodes.listeners import default_listener, silent_turns

VERSION = 12
BATCHES, PER_ANSWER, VALUE_BYTES = 24, 2, 500_000
ANSWERS = BATCHES // PER_ANSWER
IN_SMALL_PIECES = 4_000


class Served:
    """A node's data path behind a listener, and the bytes of each of its answers."""

    def __init__(self, directory: Path, seed: int) -> None:
        chance = random.Random(seed)
        self.files = OsFiles()
        self.node = DataPath(str(directory), files=self.files)
        self.node.create(config=TopicConfig(max_message_bytes=1 << 20, segment_bytes=4 << 20))
        for _ in range(BATCHES):
            batch = batch_of(chance.randbytes(VALUE_BYTES))
            assert self.node.produce("orders", records=batch).produced.error_code == 0
        log = self.node.table.get("orders", 0).log
        self.expected = [
            b"".join(
                bytes(part)
                for at in range(PER_ANSWER)
                for part in log.read(ReadLimits(number * PER_ANSWER + at, 1)).records
            )
            for number in range(ANSWERS)
        ]
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        def stop_on_broken_invariant(fault: BaseException) -> None:
            raise fault

        def on_frame(connection: InboundConnection, slot: int, body: memoryview) -> None:
            self.node.dispatcher.on_frame(connection, slot, body)

        turns = silent_turns(
            call_soon=asyncio.get_running_loop().call_soon, on_broken_invariant=stop_on_broken_invariant
        )
        turns.on_turn_end = self.node.end_turn
        listener = default_listener("TEST", turns=turns, on_frame=on_frame)
        self.port = listener.bind(["127.0.0.1"], 0)
        await listener.start()
        try:
            yield
        finally:
            await listener.stop()

    def connect(self, receive_bytes: int) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(("127.0.0.1", self.port))
        client.setblocking(False)
        return client


def fetch(number: int) -> bytes:
    """The frame that asks for this answer."""
    wanted = FetchPartition(
        partition=0, fetch_offset=number * PER_ANSWER, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=(FetchTopic(topic="orders", partitions=(wanted,)),)
    )
    body = b"".join(encode_request(request, VERSION, number, "test"))
    return struct.pack(">i", len(body)) + body


def records_in(body: bytes) -> tuple[int, bytes]:
    """The correlation id of the answer, and its records."""
    number, response = decode_response(FetchResponse, VERSION, body)
    ((partition,),) = (topic.partitions for topic in response.responses)
    assert partition.records is not None
    return number, bytes(partition.records)


async def receive(client: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    content = bytearray()
    while len(content) < size:
        part = await loop.sock_recv(client, size - len(content))
        assert part, "the server has closed the connection"
        content += part
    return bytes(content)


async def ask_for_all(served: Served, rounds: int) -> None:
    """Another client, which takes its answers at once and finds them right."""
    loop = asyncio.get_running_loop()
    with served.connect(1 << 20) as client:
        for number in [*range(ANSWERS)] * rounds:
            await loop.sock_sendall(client, fetch(number))
            (size,) = struct.unpack(">i", await receive(client, 4))
            assert records_in(await receive(client, size)) == (number, served.expected[number])


async def test_a_client_that_reads_byte_by_byte_gets_its_bytes_while_others_use_the_memory_again(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path / "logs", seed=11)
    loop = asyncio.get_running_loop()
    async with served.listening():
        with served.connect(4096) as slow, served.connect(4096) as gone:
            for client in (slow, gone):
                await loop.sock_sendall(client, b"".join(map(fetch, range(ANSWERS))))
            await ask_for_all(served, rounds=2)
            gone.close()
            content = bytearray()
            while len(content) < IN_SMALL_PIECES:
                content += await receive(slow, 1)
                if len(content) % 1_000 == 0:
                    await ask_for_all(served, rounds=1)
            for number in range(ANSWERS):
                (size,) = struct.unpack_from(">i", content)
                content += await receive(slow, size // 2)
                await ask_for_all(served, rounds=1)
                content += await receive(slow, 4 + size - len(content) + (4 if number < ANSWERS - 1 else 0))
                assert records_in(bytes(content[4 : 4 + size])) == (number, served.expected[number])
                del content[: 4 + size]
            assert not content
    assert served.files.read_buffers.kept_bytes > 0, "nothing was lent, so nothing is proved"
