"""A node as a process of its own, and what hostile clients cost it: memory, other clients' work, its life.

Each test ends with an honest client's round trip. `make fuzz` prints its time, which judges nothing here.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from fuzz.control_client import ControlClient
from fuzz.hostile_node import MOST_GROWTH_MIB, attack_node, memory_mib
from tailrace.model.errors import CorruptRecords, ErrorCode
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tailrace.protocol.records.batch import HEADER_SIZE, seal
from tailrace.protocol.records.compression import Codec, compress
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.registry import APIS
from tailrace.testing import Cluster

MUTATIONS = 100
"""Mutated frames of each API; `make fuzz` sends 10,000."""
MOST_CONNECTIONS = 250
BOMB_BYTES = 256 << 20
LONGEST_WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(config={"max.connections": str(MOST_CONNECTIONS)}) as cluster:
        yield cluster
        assert "Traceback" not in cluster.log_text()


class Hostile:
    """A client that says what it likes."""

    def __init__(self, cluster: Cluster) -> None:
        host, port = cluster.bootstrap_servers.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=LONGEST_WAIT_SECONDS)

    def send(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def ask(self, request: object, version: int) -> bytes:
        """The answer's frame."""
        self.send(b"".join(encode_request(request, version, 5, "hostile")))
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the node hung up"
            data += piece
        return bytes(data)

    def is_hung_up_on(self) -> bool:
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


@contextmanager
def hostile(cluster: Cluster) -> Iterator[Hostile]:
    client = Hostile(cluster)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def honest(cluster: Cluster) -> Iterator[ControlClient]:
    host, port = cluster.bootstrap_servers.split(":")
    client = ControlClient(host, int(port))
    try:
        client.round_trip_ms()
        yield client
        client.round_trip_ms()
    finally:
        client.close()


@contextmanager
def growing_less_than(mib: int, cluster: Cluster) -> Iterator[None]:
    before = memory_mib(cluster.process_id())
    yield
    assert memory_mib(cluster.process_id()) - before < mib


def produce(topic: str, records: bytes) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=records),))
    return ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=(data,))


def produced_code(client: Hostile, topic: str, records: bytes) -> int:
    response: ProduceResponse = decode_response(ProduceResponse, 9, client.ask(produce(topic, records), 9))[1]
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def fetch(topic: str, max_bytes: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=(FetchTopic(topic=topic, partitions=(partition,)),)
    )


def test_mutations_of_every_api_do_no_harm() -> None:
    verdict = attack_node(MUTATIONS, seed=1)
    print(verdict.summary)  # noqa: T201 - how long the honest client waited
    assert not verdict.faults


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 0, 7], ids=["minus one", "the largest", "none", "too short"])
def test_a_length_that_cannot_be_costs_no_memory(cluster: Cluster, length: int) -> None:
    """N1."""
    with honest(cluster), growing_less_than(8, cluster):
        for _ in range(100):
            with hostile(cluster) as client:
                client.socket.sendall(struct.pack(">ihhi", length, 3, 1, 1))
                assert client.is_hung_up_on()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(struct.pack(">hhihi", 3, 1, 1, -1, 10**8).ljust(1024, b"\0"), id="10^8 in 1 KiB"),
        pytest.param(
            struct.pack(">hhihhhii", 0, 8, 1, -1, -1, 1, 100, 2_000_000).ljust(16 << 20, b"\0"),
            id="16 MiB of empty topics",
        ),
        pytest.param(struct.pack(">hhihbbhi", 0, 9, 1, -1, 0, 0, 1, 100).ljust(16 << 20, b"\xff"), id="16 MiB of 255"),
        pytest.param(struct.pack(">hhihi", 3, 1, 1, -1, 2_000_000).ljust(4 << 20, b"\0"), id="4 MiB of empty names"),
    ],
)
def test_a_bomb_of_elements_is_refused_before_it_takes_memory(cluster: Cluster, body: bytes) -> None:
    """N35."""
    with honest(cluster), growing_less_than(MOST_GROWTH_MIB, cluster), hostile(cluster) as client:
        with suppress(ConnectionError):
            client.send(body)
        assert client.is_hung_up_on()


def bomb(codec: Codec) -> bytes:
    """A batch of one record of zeros: a quarter of a GiB in 8 KiB, or in the 4 GiB that snappy's header claims."""
    section = compress(codec, bytes(BOMB_BYTES)) if codec is not Codec.SNAPPY else b"\xff\xff\xff\xff\x0f" + bytes(50)
    batch = build_batch([Record(0, 1_700_000_000_000, b"key", b"value")])[:HEADER_SIZE] + section
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[22] |= codec
    seal(batch)
    return bytes(batch)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD], ids=lambda codec: codec.name)
def test_a_compressed_bomb_takes_no_memory_and_is_refused(cluster: Cluster, codec: Codec) -> None:
    """N36: zeros are no records, so that the first of them are unfolded and no more."""
    with honest(cluster) as others:
        plain, compacted = f"bombs-{codec.name}", f"compacted-bombs-{codec.name}"
        others.create_topic(plain)
        others.create_topic(compacted, configs={"cleanup.policy": "compact"})
        with growing_less_than(80, cluster), hostile(cluster) as client:
            for topic in (plain, compacted):
                assert produced_code(client, topic, bomb(codec)) == ErrorCode.INVALID_RECORD
    with pytest.raises(CorruptRecords, match="unfolds to more|snappy"):
        read_records(bomb(codec))


def test_no_more_connections_than_the_limit_and_those_that_are_there_go_on(cluster: Cluster) -> None:
    """N38: half-open connections that drip a byte now and then."""
    with honest(cluster) as others, ExitStack() as stack:
        frame = struct.pack(">ihhih", 5_000, 0, 9, 1, -1)
        crowd = [stack.enter_context(hostile(cluster)) for _ in range(MOST_CONNECTIONS + 50)]
        for byte in frame:
            for client in crowd:
                with suppress(ConnectionError):
                    client.socket.sendall(bytes([byte]))
            others.round_trip_ms()
        refused = sum(is_closed(client) for client in crowd)
        assert 50 <= refused < 60


def is_closed(client: Hostile) -> bool:
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_client_that_asks_for_a_hundred_answers_and_reads_none_costs_little_memory(cluster: Cluster) -> None:
    """N39."""
    with honest(cluster) as others:
        others.create_topic("long")
        batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(900_000))])
        with hostile(cluster) as client:
            for _ in range(20):
                assert produced_code(client, "long", bytes(batch)) == ErrorCode.NONE
        with growing_less_than(80, cluster), hostile(cluster) as client:
            for _ in range(100):
                client.send(b"".join(encode_request(fetch("long", 16 << 20), 11, 5, "slow")))
            for _ in range(20):
                others.round_trip_ms()


@pytest.mark.parametrize("key", sorted(set(range(-1, 100)) - set(APIS)))
def test_an_api_that_is_not_served_closes_the_connection(cluster: Cluster, key: int) -> None:
    """N33: APIs of the quorum, of other brokers, and APIs that need authentication."""
    with hostile(cluster) as client:
        client.send(struct.pack(">hhih", key, 0, 1, -1) + bytes(40))
        assert client.is_hung_up_on()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required;"),
        ("listener.name.plaintext.sasl.jaas.config", "x"),
        ("replica.selector.class", "os:system"),
        ("listeners", "PLAINTEXT://0.0.0.0:9092"),
        ("sasl.oauthbearer.jwks.endpoint.url", "file:///etc/passwd"),
    ],
)
def test_no_setting_that_loads_code_or_opens_a_door_can_be_changed_from_outside(
    cluster: Cluster, name: str, value: str
) -> None:
    """N30."""
    config = IncrementallyAlterableConfig(name=name, config_operation=0, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=4, resource_name="1", configs=(config,))
    with hostile(cluster) as client:
        frame = client.ask(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)
        response: IncrementalAlterConfigsResponse = decode_response(IncrementalAlterConfigsResponse, 1, frame)[1]
        assert response.responses[0].error_code in (
            ErrorCode.INVALID_CONFIG,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.POLICY_VIOLATION,
        )


def test_half_a_frame_and_gone_leaves_nothing_behind(cluster: Cluster) -> None:
    with honest(cluster), growing_less_than(16, cluster):
        for _ in range(30):
            with hostile(cluster) as client:
                client.socket.sendall(struct.pack(">ihhi", 1 << 20, 0, 9, 1) + bytes(300_000))
