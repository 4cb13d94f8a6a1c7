"""A whole node, in this process, and clients that mean it no good. An honest client must notice nothing.

The rows of the list of negative tests that need no authentication: bad lengths (N1), TLS to a plain port (N19), arrays
that lie (N35), batches that lie (N37), dripping connections (N38), a reader that does not read (N39).
"""

import asyncio
import logging
import random
import struct
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from tailrace.model.errors import ErrorCode
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.declaration import Field, Text
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
from tailrace.protocol.registry import APIS, api_of
from testkit.records.strategies import messages

PRODUCE, FETCH = 0, 1
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
        response: ProduceResponse = await self.ask(_produce("honest", bytes(build_batch([_record(value)]))), 9)
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


def _record(value: bytes) -> Record:
    return Record(offset=0, timestamp=1, key=None, value=value, headers=())


def _produce(topic: str, records: bytes, *, acks: int = -1) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=records),))
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(data,))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    attacked = AttackedNode(tmp_path_factory.mktemp("hostile"))
    yield attacked
    attacked.close()


MAY_TAKE_AWAY = frozenset(("DeleteTopics", "DeleteRecords", "AlterConfigs", "IncrementalAlterConfigs"))
"""Requests that may delete the honest client's topic, or make it refuse records: no fault of the node."""


@pytest.fixture(autouse=True)
def _no_handler_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A request that makes a handler raise anything but a KafkaError has found a fault of ours.

    Lines of other loggers in this process, such as threads of clients of other tests, are no fault of the node.
    """
    yield
    failures = [
        record
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.partition(".")[0] == "tailrace"
    ]
    assert not failures, [logging.Formatter().format(record) for record in failures]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@given(data=st.data())
@settings(max_examples=examples(20))
def test_no_legal_request_however_odd_does_harm(attacked: AttackedNode, api: Any, data: st.DataObject) -> None:
    """Fields have any value of their type; names are often names of things that exist."""

    names = ["__consumer_offsets", "group", "consumer", "range", "", "x" * 300, "a/b"]
    if api.name not in MAY_TAKE_AWAY:
        names.append("honest")

    def override(field: Field) -> st.SearchStrategy[Any] | None:
        if isinstance(field.type, Text):
            return st.sampled_from(names)
        if field.name in ("partition", "partition_index", "index", "fetch_offset", "acks", "isolation_level"):
            return st.integers(-2, 3)
        if field.name in ("num_partitions", "replication_factor"):
            return st.integers(-1, 4)
        return None

    version = data.draw(st.integers(api.min_version, api.max_version))
    request = data.draw(messages(api.request, version, override))

    async def attack() -> None:
        client = await RawClient.connect(attacked.port)
        client.send_request(request, version)
        await attacked.check()
        client.close()

    attacked.run(attack())


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_no_bytes_behind_a_legal_header_do_harm(attacked: AttackedNode, api: Any) -> None:
    dice = random.Random(api.key)

    async def attack() -> None:
        for version in range(api.min_version, api.max_version + 1):
            client = await RawClient.connect(attacked.port)
            header = struct.pack(">hhih", api.key, version, 1, -1) + b"\x00" * (version >= api.flexible_from)
            for _ in range(3):
                client.send_frame(header + dice.randbytes(dice.randrange(120)))
            await attacked.check()
            client.close()

    attacked.run(attack())


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(struct.pack(">i", 10**8), id="10^8 topics in a short frame"),
        pytest.param(struct.pack(">i", 1_000_000) + bytes(3_900_000), id="a million empty topics"),
        pytest.param(struct.pack(">i", -5), id="minus five topics"),
    ],
)
def test_an_array_that_lies_about_its_length_closes_the_connection(attacked: AttackedNode, claim: bytes) -> None:
    async def attack() -> None:
        client = await RawClient.connect(attacked.port)
        client.send_frame(struct.pack(">hhih", 3, 1, 1, -1) + claim)
        await client.wait_for_close()
        client.close()
        await attacked.check()

    attacked.run(attack())


@pytest.mark.parametrize(
    ("position", "byte"),
    [
        pytest.param(16, 9, id="magic 9"),
        pytest.param(17, 1, id="CRC"),
        pytest.param(22, 0x20, id="control bit"),
        pytest.param(60, 5, id="count"),
        pytest.param(11, 200, id="length"),
    ],
)
def test_a_batch_that_lies_is_not_appended(attacked: AttackedNode, position: int, byte: int) -> None:
    async def attack() -> None:
        before = await attacked.honest.produce(b"before")
        batch = bytearray(build_batch([_record(b"lie")]))
        batch[position] ^= byte
        client = await RawClient.connect(attacked.port)
        response: ProduceResponse = await client.ask(_produce("honest", bytes(batch)), 9)
        assert response.responses[0].partition_responses[0].error_code in (2, 87)
        client.close()
        assert await attacked.honest.produce(b"after") == before + 1

    attacked.run(attack())


def test_connections_that_drip_cost_others_nothing(attacked: AttackedNode) -> None:
    async def attack() -> None:
        dripping = [await RawClient.connect(attacked.port) for _ in range(300)]
        frame = struct.pack(">ihhih", 5_000, PRODUCE, 9, 1, -1)
        for position in range(len(frame)):
            for client in dripping:
                client.send(frame[position : position + 1])
            await attacked.check()
        for client in dripping:
            client.close()

    attacked.run(attack())


def test_a_client_that_never_reads_costs_others_nothing(attacked: AttackedNode) -> None:
    async def attack() -> None:
        for _ in range(8):
            await attacked.honest.produce(random.Random(1).randbytes(900_000))
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000_000)
        topic = FetchTopic(topic="honest", partitions=(partition,))
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=10_000_000, topics=(topic,))
        client = await RawClient.connect(attacked.port)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(100):
            client.send_request(request, 11)
        for _ in range(20):
            await attacked.check()
        client.close()

    attacked.run(attack())


def test_a_connection_without_a_kafka_request_is_closed(attacked: AttackedNode) -> None:
    async def attack() -> None:
        for hello in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff"):
            client = await RawClient.connect(attacked.port)
            client.send(hello)
            await client.wait_for_close()
            client.close()
        await attacked.check()

    attacked.run(attack())


def test_requests_of_a_client_that_has_gone_are_carried_out_and_forgotten(attacked: AttackedNode) -> None:
    async def attack() -> None:
        before = await attacked.honest.produce(b"before")
        client = await RawClient.connect(attacked.port)
        for _ in range(50):
            client.send_request(_produce("honest", bytes(build_batch([_record(b"gone")]))), 9)
        await client.writer.drain()
        client.close()
        await attacked.check()
        assert await attacked.honest.produce(b"after") > before

    attacked.run(attack())
