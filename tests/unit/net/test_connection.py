"""An outgoing connection against servers that behave well, badly and not at all."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Address, Connection, connect, parse_addresses
from tailrace.net.pool import ConnectionPool
from tailrace.protocol.headers import encode_response
from tailrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from tailrace.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse
from tailrace.protocol.messages.membership import HeartbeatRequest, HeartbeatResponse
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from tailrace.protocol.request_headers import decode_request_header

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")

Serve = Callable[["ServerEnd"], Awaitable[None]]


class ServerEnd:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def request(self) -> tuple[int, int, int]:
        """Key, version and correlation id of the next request."""
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        header, _ = decode_request_header(await self._reader.readexactly(length))
        return header.api_key, header.api_version, header.correlation_id

    def answer(self, response: object, version: int, correlation_id: int) -> None:
        body = b"".join(encode_response(response, version, correlation_id))
        self.raw(struct.pack(">i", len(body)) + body)

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def negotiate(self) -> None:
        key, version, correlation_id = await self.request()
        assert key == 18
        self.answer(_versions((3, 0, 13), (12, 0, 3), (18, 0, 4)), version, correlation_id)


def _versions(*ranges: tuple[int, int, int], error_code: int = 0) -> ApiVersionsResponse:
    keys = tuple(ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges)
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)


def _with_server(serve: Serve, use: Callable[[Address], Awaitable[None]]) -> None:
    async def run() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(ServerEnd(reader, writer))
            except (asyncio.IncompleteReadError, ConnectionResetError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            await use(Address("127.0.0.1", server.sockets[0].getsockname()[1]))

    asyncio.run(run())


async def _connect(address: Address) -> Connection:
    return await connect(address, client_id="test", timeout_ms=30_000)


def test_levels_of_features_are_those_of_the_cluster_at_the_time() -> None:
    level = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)

    async def serve(peer: ServerEnd) -> None:
        _, version, correlation_id = await peer.request()
        offered = ApiVersion(api_key=18, min_version=0, max_version=4)
        peer.answer(ApiVersionsResponse(api_keys=(offered,), finalized_features=(level,)), version, correlation_id)
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        assert connection.feature_level("transaction.version") == 2
        assert connection.feature_level("group.version") == 0
        connection.close()

    _with_server(serve, use)


def test_the_highest_common_version_is_taken() -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        _, version, correlation_id = await peer.request()
        peer.answer(HeartbeatResponse(error_code=27), version, correlation_id)
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        assert connection.version_of(HeartbeatRequest) == 3
        assert connection.version_of(MetadataRequest) == 13
        assert connection.version_of(MetadataRequest, 9) == 9
        assert (await connection.ask(HEARTBEAT, HeartbeatResponse, timeout_ms=30_000)).error_code == 27
        with pytest.raises(KafkaError, match="does not offer it, this client needs ListGroups 0-5"):
            await connection.ask(ListGroupsRequest(), ListGroupsResponse, timeout_ms=30_000)
        connection.close()

    _with_server(serve, use)


def test_a_server_that_answers_error_35_in_version_0_is_asked_in_its_own_version() -> None:
    seen: list[int] = []

    async def serve(peer: ServerEnd) -> None:
        for _ in range(2):
            _, version, correlation_id = await peer.request()
            seen.append(version)
            if version > 2:
                peer.answer(_versions((18, 0, 2), error_code=35), 0, correlation_id)
            else:
                peer.answer(_versions((12, 0, 1)), version, correlation_id)
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        assert connection.version_of(HeartbeatRequest) == 1
        connection.close()

    _with_server(serve, use)
    assert seen == [3, 2]


def test_a_server_that_hangs_up_on_version_3_is_asked_again_in_version_0() -> None:
    seen: list[int] = []

    async def serve(peer: ServerEnd) -> None:
        _, version, correlation_id = await peer.request()
        seen.append(version)
        if version == 0:
            peer.answer(_versions((12, 0, 1)), 0, correlation_id)
            await peer.request()

    async def use(address: Address) -> None:
        (await _connect(address)).close()

    _with_server(serve, use)
    assert seen == [3, 0]


def test_pipelined_requests_get_their_answers_in_order_however_the_bytes_arrive() -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        for number in range(20):
            _, version, correlation_id = await peer.request()
            for byte in _frame(HeartbeatResponse(throttle_time_ms=number), version, correlation_id):
                peer.raw(bytes((byte,)))
                if byte % 3 == 0:
                    await asyncio.sleep(0)
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        pending = [connection.send(HEARTBEAT, HeartbeatResponse, timeout_ms=30_000) for _ in range(20)]
        assert [answer.throttle_time_ms for answer in await asyncio.gather(*pending)] == list(range(20))
        assert not connection._pending
        connection.close()

    _with_server(serve, use)


def _frame(response: object, version: int, correlation_id: int) -> bytes:
    body = b"".join(encode_response(response, version, correlation_id))
    return struct.pack(">i", len(body)) + body


def test_an_answer_longer_than_the_receive_buffer_comes_whole_and_so_does_what_follows() -> None:
    brokers = tuple(MetadataResponseBroker(node_id=node, host="h" * 30_000, port=9092) for node in range(10))

    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        frames = b""
        for _ in range(2):
            _, version, correlation_id = await peer.request()
            response = MetadataResponse(brokers=brokers, controller_id=1, topics=())
            frames += _frame(response, version, correlation_id)
        peer.raw(frames)
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        request = MetadataRequest(topics=())
        pending = [connection.send(request, MetadataResponse, timeout_ms=30_000) for _ in range(2)]
        for answer in await asyncio.gather(*pending):
            assert answer.brokers == brokers
        connection.close()

    _with_server(serve, use)


def test_a_request_past_its_deadline_times_out_and_takes_the_connection_with_it() -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        while True:
            await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        patient = connection.send(HEARTBEAT, HeartbeatResponse, timeout_ms=60_000)
        with pytest.raises(KafkaError, match="did not answer Heartbeat v3 in time") as late:
            await connection.ask(HEARTBEAT, HeartbeatResponse, timeout_ms=20)
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(KafkaError) as lost:
            await patient
        assert lost.value.code is ErrorCode.NETWORK_EXCEPTION
        assert not connection.is_open

    _with_server(serve, use)


def test_a_connection_that_is_lost_fails_what_is_pending_and_names_it() -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        with pytest.raises(KafkaError, match=f"{address} closed the connection while Heartbeat was pending"):
            await connection.ask(HEARTBEAT, HeartbeatResponse, timeout_ms=30_000)
        with pytest.raises(KafkaError):
            await connection.ask(HEARTBEAT, HeartbeatResponse, timeout_ms=30_000)

    _with_server(serve, use)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_a_peer_that_does_not_speak_the_protocol_is_recognised(said: bytes) -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.request()
        peer.raw(said)
        await peer.request()

    async def use(address: Address) -> None:
        with pytest.raises(KafkaError, match="does not speak Kafka's protocol"):
            await _connect(address)

    _with_server(serve, use)


def test_an_answer_to_another_request_ends_the_connection() -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        _, version, correlation_id = await peer.request()
        peer.answer(HeartbeatResponse(), version, correlation_id + 1)
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        with pytest.raises(KafkaError, match="where 2 was next"):
            await connection.ask(HEARTBEAT, HeartbeatResponse, timeout_ms=30_000)

    _with_server(serve, use)


def test_an_answer_that_cannot_be_read_ends_the_connection_and_may_be_asked_for_elsewhere() -> None:
    """No request is at fault, least of all those queued behind: all get an error after which they may be sent again."""

    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        _, _, correlation_id = await peer.request()
        peer.raw(struct.pack(">iib", 5, correlation_id, 1))
        await peer.request()

    async def use(address: Address) -> None:
        connection = await _connect(address)
        pending = [connection.send(HEARTBEAT, HeartbeatResponse, timeout_ms=30_000) for _ in range(2)]
        for answer in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(answer, KafkaError)
            assert answer.code is ErrorCode.NETWORK_EXCEPTION
            assert "Heartbeat v3" in answer.detail
        assert not connection.is_open

    _with_server(serve, use)


@pytest.mark.parametrize("length", [4, 5])
def test_an_answer_to_api_versions_that_is_too_short_is_no_accident_of_ours(length: int) -> None:
    async def serve(peer: ServerEnd) -> None:
        _, _, correlation_id = await peer.request()
        peer.raw(struct.pack(">ii", length, correlation_id) + bytes(length - 4))
        await peer.request()

    async def use(address: Address) -> None:
        with pytest.raises(KafkaError, match="ApiVersions v0 cannot be read") as caught:
            await _connect(address)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION

    _with_server(serve, use)


def test_a_refused_connection_is_reported_with_the_address() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(KafkaError, match=f"cannot connect to 127.0.0.1:{port}: "):
            await _connect(Address("127.0.0.1", port))

    asyncio.run(run())


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_a_host_that_no_name_server_can_be_asked_for_is_said_with_the_address(host: str) -> None:
    async def run() -> None:
        with pytest.raises(KafkaError, match=f"cannot connect to {host}:9092: ") as caught:
            await _connect(Address(host, 9092))
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION

    asyncio.run(run())


def test_the_pool_shares_one_connection_per_use_and_replaces_a_lost_one() -> None:
    async def serve(peer: ServerEnd) -> None:
        await peer.negotiate()
        await peer.request()

    async def use(address: Address) -> None:
        pool = ConnectionPool(client_id="test", backoff_ms=1)
        first, second, other = await asyncio.gather(pool.get(address), pool.get(address), pool.get(address, "fetch"))
        assert first is second
        assert other is not first
        first.close()
        assert pool.open_connection(address) is None
        assert await pool.get(address) is not first
        pool.close()
        with pytest.raises(KafkaError, match="this client is closed"):
            await pool.get(address)

    _with_server(serve, use)


def test_a_connection_that_is_made_after_the_pool_was_closed_is_closed_too() -> None:
    may_answer, is_gone = asyncio.Event(), asyncio.Event()

    async def serve(peer: ServerEnd) -> None:
        await may_answer.wait()
        await peer.negotiate()
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.request()
        is_gone.set()

    async def use(address: Address) -> None:
        pool = ConnectionPool(client_id="test", backoff_ms=1)
        asked = asyncio.create_task(pool.get(address))
        await asyncio.sleep(0)  # it has begun to connect
        await asyncio.sleep(0)
        pool.close()
        may_answer.set()
        with pytest.raises(KafkaError, match="this client is closed"):
            await asked
        await asyncio.wait_for(is_gone.wait(), 30)

    _with_server(serve, use)


def test_callers_that_wait_for_one_attempt_share_its_failure() -> None:
    attempts = 0

    async def serve(peer: ServerEnd) -> None:
        nonlocal attempts
        attempts += 1

    async def use(address: Address) -> None:
        pool = ConnectionPool(client_id="test", backoff_ms=10_000)
        asked = [asyncio.create_task(pool.get(address)) for _ in range(10)]
        for fault in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(fault, KafkaError)
        pool.close()

    _with_server(serve, use)
    assert attempts == 2, "ApiVersions v3, then v0"


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a:1, b:2", [Address("a", 1), Address("b", 2)]),
        ("a", [Address("a", 9092)]),
        ("[::1]:7,[::1]", [Address("::1", 7), Address("::1", 9092)]),
        ("PLAINTEXT://a:1,plaintext://[::1]:2", [Address("a", 1), Address("::1", 2)]),
    ],
)
def test_bootstrap_servers_are_read(text: str, addresses: list[Address]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["a", "[::1]", "PLAINTEXT://a"])
def test_a_port_may_be_demanded(text: str) -> None:
    with pytest.raises(KafkaError, match="is not .*HOST:PORT"):
        parse_addresses(text, default_port=None)
    assert parse_addresses(f"{text}:9092", default_port=None) == parse_addresses(text)


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:99999", "a:" + "1" * 5_000, ":9092", "http://a:1", "a b:1"])
def test_bootstrap_servers_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(KafkaError, match="HOST:PORT|bootstrap server 'a:1111"):
        parse_addresses(text)
