"""A client and a broker that deserves no trust: wrong certificates, no TLS, and hostile answers before a login."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net import sasl
from tailrace.net.connection import MAX_RESPONSE_BYTES, Address, connect
from tailrace.net.sasl import MAX_UNAUTHENTICATED_BYTES, SaslConfig, SaslSession
from tailrace.net.secrets import Secret
from tailrace.net.tls import Pem, TlsConfig, TlsContexts, server_context
from tailrace.node.local.certificates import CertificateAuthority, KeyPair
from tailrace.protocol.headers import encode_response
from tailrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from tailrace.protocol.request_headers import decode_request_header

ALICE = SaslConfig(mechanism="SCRAM-SHA-256", username="alice", password=Secret("canary"))
Reply = Callable[[int, int, bytes], bytes | None]
"""The bytes that answer a request: (API key, correlation id, the request)."""


def framed(response: Any, version: int, correlation_id: int) -> bytes:
    body = b"".join(encode_response(response, version, correlation_id))
    return struct.pack(">i", len(body)) + body


def honest_reply(key: int, correlation_id: int, request: bytes) -> bytes | None:
    """The answers of a broker up to the first token, which asks for a million iterations."""
    if key == 18:
        keys = tuple(ApiVersion(api_key=key, min_version=0, max_version=high) for key, high in ((17, 1), (36, 2)))
        return framed(ApiVersionsResponse(api_keys=keys), 3, correlation_id)
    if key == 17:
        return framed(SaslHandshakeResponse(mechanisms=("SCRAM-SHA-256",)), 1, correlation_id)
    nonce = request.rpartition(b"r=")[2].partition(b"\0")[0].decode()
    token = f"r={nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=1000000".encode()
    return framed(SaslAuthenticateResponse(error_message=None, auth_bytes=token), 2, correlation_id)


@asynccontextmanager
async def broker(reply: Reply, tls: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    """A server whose answers are the replies; None is the end of the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(length)
                header, _ = decode_request_header(request)
                answer = reply(header.api_key, header.correlation_id, request)
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def refusal(address: Address, **options: Any) -> KafkaError:
    """The error of a client that connects to this address."""
    with pytest.raises(KafkaError) as refused:
        await connect(address, client_id="test", timeout_ms=20_000, **options)
    assert "canary" not in str(refused.value)
    return refused.value


@pytest.mark.parametrize("config", [None, ALICE], ids=["no user", "a user"])
async def test_a_long_answer_before_the_versions_are_known_is_refused(config: SaslConfig | None) -> None:
    longer = struct.pack(">i", MAX_UNAUTHENTICATED_BYTES + 1)
    async with broker(lambda *_: longer) as address:
        assert f"an answer of {MAX_UNAUTHENTICATED_BYTES + 1} bytes" in (await refusal(address, sasl=config)).detail


async def test_a_client_that_knows_the_versions_takes_long_answers() -> None:
    async with broker(honest_reply) as address:
        connection = await connect(address, client_id="test")
        assert connection.most_bytes == MAX_RESPONSE_BYTES
        connection.close()


async def test_an_answer_of_another_request_ends_the_authentication() -> None:
    def reply(key: int, correlation_id: int, request: bytes) -> bytes | None:
        return honest_reply(key, correlation_id + (key == 17), request)

    async with broker(reply) as address:
        assert "where 2 was next" in (await refusal(address, sasl=ALICE)).detail


async def test_a_broker_that_says_nothing_or_drips_is_given_up_in_time() -> None:
    async with broker(lambda *_: b"\0") as address:
        with pytest.raises(KafkaError, match="did not answer"):
            await connect(address, client_id="test", timeout_ms=300, sasl=ALICE)


async def test_a_million_iterations_hold_up_no_other_work_of_the_loop() -> None:
    async with broker(honest_reply) as address:
        login = asyncio.ensure_future(refusal(address, sasl=ALICE))
        turns = 0
        while not login.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100  # a hash on the loop would leave a few turns
        assert "has not proved that it knows the password" in login.result().detail


class _BriefSessions:
    """A connection whose sessions last for a millisecond."""

    address = Address("broker", 9092)
    is_open = True

    async def ask(self, request: object, response_type: type[Any], *, timeout_ms: int) -> Any:
        if response_type is SaslHandshakeResponse:
            return SaslHandshakeResponse(mechanisms=("PLAIN",))
        return SaslAuthenticateResponse(error_message=None, auth_bytes=b"", session_lifetime_ms=1)

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def close(self, reason: str) -> None: ...


async def test_a_session_of_a_millisecond_keeps_no_client_busy() -> None:
    plain = SaslConfig(mechanism="PLAIN", username="alice", password=Secret("canary"))
    session = SaslSession(_BriefSessions(), plain, 1_000)
    begin = asyncio.get_running_loop().time()
    await session.begin()
    session.end()
    assert session._timer is not None
    assert session._timer.when() >= begin + sasl._LEAST_WAIT_SECONDS


@pytest.mark.parametrize("code", [7, 5, 999, -5])
async def test_a_broker_makes_no_refusal_a_fault_to_retry_and_writes_no_control_signs(code: int) -> None:
    def reply(key: int, correlation_id: int, request: bytes) -> bytes | None:
        if key != 36:
            return honest_reply(key, correlation_id, request)
        refused = SaslAuthenticateResponse(error_code=code, error_message="\x1b[2J\nevent=all-is-well", auth_bytes=b"")
        return framed(refused, 2, correlation_id)

    async with broker(reply) as address:
        refused = await refusal(address, sasl=ALICE)
    assert refused.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert refused.detail.endswith("by SCRAM-SHA-256: \\x1b[2J\\nevent=all-is-well")


# TLS

TEAM = CertificateAuthority.found("team")
HOSTS = ["127.0.0.1", "localhost"]


def served(pair: KeyPair) -> ssl.SSLContext:
    return server_context(TlsConfig(certificate=Pem(setting="node", text=pair.keystore)))


def trusting(**options: Any) -> TlsContexts:
    trusted = Pem(setting="ca", text=TEAM.pair.certificate)
    return TlsContexts(TlsConfig(trusted=trusted, **options), is_server=False)


async def refusal_of_certificate(pair: KeyPair, contexts: TlsContexts) -> str:
    async with broker(honest_reply, served(pair)) as address:
        return (await refusal(address, tls=contexts)).detail


async def test_a_certificate_of_the_authority_is_accepted() -> None:
    async with broker(honest_reply, served(TEAM.issue("node", hosts=HOSTS))) as address:
        (await connect(address, client_id="test", tls=trusting())).close()


async def test_a_broker_with_an_expired_certificate_is_refused() -> None:
    began = datetime.now(UTC) - timedelta(days=9)
    expired = TEAM.issue("node", hosts=HOSTS, begins=began, days=1)
    assert "certificate has expired" in await refusal_of_certificate(expired, trusting())


async def test_a_broker_with_a_self_signed_certificate_is_refused() -> None:
    own = CertificateAuthority.found("node").pair
    told = await refusal_of_certificate(own, trusting())
    assert "self-signed certificate" in told or "self signed certificate" in told


async def test_a_broker_with_a_certificate_of_another_authority_is_refused() -> None:
    stranger = CertificateAuthority.found("stranger").issue("node", hosts=HOSTS)
    assert "ssl.truststore.location names the authorities" in await refusal_of_certificate(stranger, trusting())


async def test_a_broker_with_the_certificate_of_another_host_is_refused() -> None:
    elsewhere = TEAM.issue("node", hosts=["b.example", "10.0.0.9"])
    told = await refusal_of_certificate(elsewhere, trusting())
    assert "127.0.0.1" in told
    assert "ssl.endpoint.identification.algorithm" in told


async def test_a_broker_with_a_revoked_certificate_is_refused() -> None:
    revoked = TEAM.issue("node", hosts=HOSTS)
    lists = Pem(setting="crl", text=TEAM.revocations([revoked]))
    assert "revoked" in await refusal_of_certificate(revoked, trusting(revoked=lists))


async def test_a_client_that_wants_tls_sends_nothing_to_a_broker_without() -> None:
    """A downgrade: the client neither authenticates nor falls back to a connection without TLS."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1 << 16))
        writer.write(framed(ApiVersionsResponse(api_keys=()), 0, 1))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    plain = SaslConfig(mechanism="PLAIN", username="alice", password=Secret("canary"))
    assert "no TLS" in (await refusal(address, tls=trusting(), sasl=plain)).detail
    server.close()
    assert {bytes(data[:2]) for data in heard} == {b"\x16\x03"}
    assert b"canary" not in b"".join(heard)


async def test_an_error_without_tls_says_that_the_port_may_expect_tls() -> None:
    async with broker(honest_reply, served(TEAM.issue("node", hosts=HOSTS))) as address:
        assert "security.protocol" in (await refusal(address)).detail


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_broker_with_an_old_version_of_tls_is_refused() -> None:
    context = served(TEAM.issue("node", hosts=HOSTS))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with broker(honest_reply, context) as address:
        assert "TLS" in (await refusal(address, tls=trusting())).detail
