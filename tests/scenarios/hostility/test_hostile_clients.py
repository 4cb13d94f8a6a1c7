"""A whole node, in this process, and clients that mean it no good. An honest client must notice nothing.

The rows of the list of negative tests that need no authentication: bad lengths (N1), TLS to a plain port (N19), arrays
that lie (N35), batches that lie (N37), dripping connections (N38), a reader that does not read (N39).
"""

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from scenarios.hostility.attacked_node import AttackedNode, RawClient, produce_request, record_of
from tailrace.protocol.declaration import Field, Text
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.produce import (
    ProduceResponse,
)
from tailrace.protocol.records.record import build_batch
from tailrace.protocol.registry import APIS
from testkit.records.strategies import messages

pytestmark = pytest.mark.usefixtures("no_handler_failed")

PRODUCE, FETCH = 0, 1


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    attacked = AttackedNode(tmp_path_factory.mktemp("hostile"))
    yield attacked
    attacked.close()


MAY_TAKE_AWAY = frozenset(("DeleteTopics", "DeleteRecords", "AlterConfigs", "IncrementalAlterConfigs"))
"""Requests that may delete the honest client's topic, or make it refuse records: no fault of the node."""


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@given(data=st.data())
@settings(max_examples=examples(20))
def test_no_legal_request_however_odd_harms_the_node_or_an_honest_client(
    attacked: AttackedNode, api: Any, data: st.DataObject
) -> None:
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
def test_no_bytes_behind_a_legal_header_harm_the_node_or_an_honest_client(attacked: AttackedNode, api: Any) -> None:
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
        batch = bytearray(build_batch([record_of(b"lie")]))
        batch[position] ^= byte
        client = await RawClient.connect(attacked.port)
        response: ProduceResponse = await client.ask(produce_request("honest", bytes(batch)), 9)
        assert response.responses[0].partition_responses[0].error_code in (2, 87)
        client.close()
        assert await attacked.honest.produce(b"after") == before + 1

    attacked.run(attack())


def test_connections_that_drip_cost_other_clients_nothing(attacked: AttackedNode) -> None:
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


def test_a_client_that_never_reads_costs_other_clients_nothing(attacked: AttackedNode) -> None:
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
            client.send_request(produce_request("honest", bytes(build_batch([record_of(b"gone")]))), 9)
        await client.writer.drain()
        client.close()
        await attacked.check()
        assert await attacked.honest.produce(b"after") > before

    attacked.run(attack())
