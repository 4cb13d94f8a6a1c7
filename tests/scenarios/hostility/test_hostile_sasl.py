"""A node with a listener that has SASL, and clients that mean it no good: before, within and after the handshake.

Rows N2, N3 and N38 of the list of negative tests; honest clients on both listeners must notice nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from scenarios.hostility.attacked_node import AttackedNode, RawClient
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Address, Connection, connect
from tailrace.net.sasl import SaslConfig
from tailrace.net.secrets import Secret
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tailrace.server.authentication.gate import GateCounts

pytestmark = pytest.mark.usefixtures("no_handler_failed")

MECHANISM = "SCRAM-SHA-256"
NODES = SaslConfig(mechanism=MECHANISM, username="node", password=Secret("node-secret"))
ALL_TOPICS = MetadataRequest(topics=None)


class GuardedNode(AttackedNode):
    """A node with a plain listener, and a listener with SASL on which an honest client is authenticated."""

    @property
    def guarded_port(self) -> int:
        return self.node.advertised[1].port

    @property
    def counts(self) -> GateCounts:
        broker = self.node._broker
        assert broker is not None
        (gate,) = broker.broker.sasl.gates
        return gate.counts

    async def log_in(self) -> Connection:
        return await connect(Address("127.0.0.1", self.guarded_port), client_id="honest", sasl=NODES)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    node = GuardedNode(
        tmp_path_factory.mktemp("guarded"),
        {
            "listeners": "127.0.0.1:0,GUARDED://127.0.0.1:0",
            "listener.security.protocol.map": "GUARDED:SASL_PLAINTEXT",
            "sasl.jaas.config": 'a.Module required username="node" password="node-secret";',
            "connections.max.reauth.ms": "1000",
            "connection.failed.authentication.delay.ms": "10",
        },
    )
    yield node
    node.close()


@asynccontextmanager
async def stranger(guarded: GuardedNode) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(guarded.guarded_port)
    try:
        yield client
    finally:
        client.close()
        with suppress(ConnectionError):
            await client.writer.wait_closed()


def test_n2_a_long_frame_before_authentication_closes_the_connection(guarded: GuardedNode) -> None:
    async def work() -> None:
        async with stranger(guarded) as client:
            client.send((65_537).to_bytes(4) + b"\0\x12\0\0\0\0\0\1")
            await client.wait_for_close()
        async with stranger(guarded) as client:
            assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0
            client.send_frame(bytes(65_536))
            await client.wait_for_close()
        await guarded.check()

    guarded.run(work())


def test_n3_a_request_before_authentication_closes_the_connection(guarded: GuardedNode) -> None:
    async def work() -> None:
        async with stranger(guarded) as client:
            client.send_request(ALL_TOPICS, 12)
            assert await client.reader.read() == b""
        async with stranger(guarded) as client:
            answer = await client.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=node,r=x"), 2)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            await client.wait_for_close()
        await guarded.check()

    guarded.run(work())


@given(
    version=st.sampled_from((0, 1)), junk=st.binary(max_size=200), frames=st.lists(st.binary(max_size=60), max_size=4)
)
@settings(max_examples=examples(60))
def test_random_bytes_before_and_within_a_handshake_do_no_harm(
    guarded: GuardedNode, version: int, junk: bytes, frames: list[bytes]
) -> None:
    async def work() -> None:
        async with stranger(guarded) as client:
            client.send(junk)
            client.writer.write_eof()
            await client.wait_for_close()
        async with stranger(guarded) as client:
            assert (await client.ask(SaslHandshakeRequest(mechanism=MECHANISM), version)).error_code == 0
            for frame in frames:
                if version == 0:
                    client.send_frame(frame)
                else:
                    client.send_request(SaslAuthenticateRequest(auth_bytes=frame), 2)
            client.writer.write_eof()
            await client.wait_for_close()
        await guarded.check()

    before = guarded.counts.succeeded
    guarded.run(work())
    assert guarded.counts.succeeded == before


def test_random_bytes_after_authentication_close_that_connection_alone(guarded: GuardedNode) -> None:
    async def work() -> None:
        honest, broken = await guarded.log_in(), await guarded.log_in()
        transport = broken._transport
        assert transport is not None
        transport.write(bytes(range(4, 256)))
        with pytest.raises(KafkaError):
            await broken.ask(ALL_TOPICS, MetadataResponse, timeout_ms=30_000)
        await honest.ask(ALL_TOPICS, MetadataResponse, timeout_ms=30_000)
        honest.close()
        await guarded.check()

    guarded.run(work())


def test_n38_connections_that_say_nothing_keep_no_client_out(guarded: GuardedNode) -> None:
    async def work() -> None:
        silent = [await RawClient.connect(guarded.guarded_port) for _ in range(300)]
        honest = await guarded.log_in()
        for _ in range(10):
            await honest.ask(ALL_TOPICS, MetadataResponse, timeout_ms=30_000)
        for client in silent:
            client.close()
        honest.close()
        await guarded.check()

    guarded.run(work())


def test_our_client_authenticates_again_before_its_session_ends(guarded: GuardedNode) -> None:
    async def work() -> None:
        honest = await guarded.log_in()
        before = guarded.counts.reauthenticated
        while guarded.counts.reauthenticated < before + 2:  # requests all the time, also within an authentication
            answers = [honest.send(ALL_TOPICS, MetadataResponse, timeout_ms=30_000) for _ in range(20)]
            await asyncio.gather(*answers)
        assert honest.is_open
        honest.close()

    guarded.run(work())
