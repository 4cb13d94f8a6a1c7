"""A node in this process that hostile clients attack, and a client on a bare connection."""

import asyncio
import struct
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

import uvloop

from tailrace.model.errors import ErrorCode
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.registry import api_of

LONGEST_WAIT_S = 60


class AttackedNode:
    """A node and the loop it runs on: time passes only inside `run`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.broken: list[BaseException] = []
        self.runner.get_loop().set_exception_handler(self._note)
        common = {"dev.mode": "true", "listeners": "127.0.0.1:0", "log.dirs": str(directory)}
        config = NodeConfig({**common, **(settings or {})})
        self.node = Node(config, on_fatal=self.broken.append)
        self.run(self.node.start())
        self.honest = self.run(RawClient.connect(self.port))
        self.produced = 0
        self.run(self.honest.create_topic())

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Requests without effects on other clients."""
        self.broken.append(context.get("exception") or RuntimeError(context["message"]))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, LONGEST_WAIT_S))

    @property
    def port(self) -> int:
        return self.node.advertised[0].port

    async def check(self) -> None:
        """The honest client writes a record and reads it back; no invariant is broken."""
        value = b"honest %d" % self.produced
        offset = await self.honest.produce(value)
        assert await self.honest.fetch(offset) == value
        self.produced += 1
        assert not self.broken

    def close(self) -> None:
        self.honest.close()
        self.run(self.node.stop())
        self.runner.close()


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def send_frame(self, body: bytes) -> None:
        self.send(struct.pack(">i", len(body)) + body)

    def send_request(self, request: object, version: int) -> None:
        self.send_frame(b"".join(encode_request(request, version, 5, "hostile")))

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, request: object, version: int) -> Any:
        self.send_request(request, version)
        return decode_response(api_of(type(request)).response, version, await self.receive())[1]

    async def create_topic(self) -> None:
        """A topic is made because it is asked for, and shown from the next answer on."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name="honest"),))
        made: MetadataResponse = await self.ask(request, 9)
        assert made.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        shown = made
        while shown.topics[0].error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
            shown = await self.ask(request, 9)
        assert shown.topics[0].error_code == 0

    async def produce(self, value: bytes) -> int:
        response: ProduceResponse = await self.ask(produce_request("honest", bytes(build_batch([record_of(value)]))), 9)
        (partition,) = response.responses[0].partition_responses
        assert partition.error_code == 0, partition
        return partition.base_offset

    async def fetch(self, offset: int) -> bytes | None:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000)
        topic = FetchTopic(topic="honest", partitions=(partition,))
        response: FetchResponse = await self.ask(FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=(topic,)), 11)
        (answer,) = response.responses[0].partitions
        assert answer.records is not None
        return next(record.value for record in read_records(answer.records) if record.offset == offset)

    async def wait_for_close(self) -> None:
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        self.writer.close()


def record_of(value: bytes) -> Record:
    return Record(offset=0, timestamp=1, key=None, value=value, headers=())


def produce_request(topic: str, records: bytes, *, acks: int = -1) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=records),))
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(data,))
