"""SASL from both sides: the gate of a listener, which strangers attack, and our client, which a server attacks."""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from fuzz.finding import found
from fuzz.targets.target import Target
from tailrace.model.errors import KafkaError
from tailrace.model.identity import ANONYMOUS
from tailrace.model.security.scram import ScramCredential
from tailrace.net.connection import Address
from tailrace.net.sasl import SaslConfig, authenticate
from tailrace.net.secrets import Secret
from tailrace.protocol.headers import encode_request
from tailrace.protocol.messages.api_versions import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from testkit.nodes.sasl_clients import GateBench, credential

_NONCE: Final = b"{nonce}"
"""Stands in a token of a server for the nonce of the client, which is random."""


@cache
def _users() -> dict[str, ScramCredential]:
    return {"alice": credential("alices"), "bob": credential("a password that no seed has")}


def pieces(data: bytes) -> Iterator[bytes]:
    """The pieces of the data, each behind its length in two bytes."""
    position = 0
    while position + 2 <= len(data):
        end = position + 2 + int.from_bytes(data[position : position + 2])
        yield data[position + 2 : end]
        position = end


def joined(*parts: bytes) -> bytes:
    """Data with these pieces."""
    return b"".join(len(part).to_bytes(2) + part for part in parts)


def _check_gate(data: bytes) -> None:
    bench = GateBench(_users())
    client = bench.connect()
    for frame in pieces(data):
        if client.guard is None or not client.is_open or client.suspensions:
            break
        client.send_bytes(frame)
        bench.checks.carry_out()
    bench.clock.advance(60_000)
    if client.identity.principal not in (ANONYMOUS, "User:alice"):
        found(f"{client.identity.principal} was let in")
    if client.is_open and client.guard is not None:
        found("a client that is not authenticated is still there after a minute")


def _gate_seeds() -> Iterator[bytes]:
    def frame(request: Any, version: int) -> bytes:
        return b"".join(encode_request(request, version, 1, "fuzz"))

    for version in (0, 1):
        for mechanism, token in (
            ("PLAIN", b"\0alice\0alices"),
            ("PLAIN", b"bob\0bob\0guess"),
            ("SCRAM-SHA-256", b"n,,n=alice,r=abcdefgh"),
            ("SCRAM-SHA-512", b"y,,n=bob,r=abcdefgh"),
        ):
            first = frame(SaslHandshakeRequest(mechanism=mechanism), version)
            final = b"c=biws,r=abcdefgh" + b"0" * 64 + b",p=" + b"A" * 43 + b"="
            if version == 0:
                yield joined(first, token, final)
            else:
                tokens = [frame(SaslAuthenticateRequest(auth_bytes=each), 2) for each in (token, final)]
                yield joined(first, *tokens)


class _HostileServer:
    """A server that answers with the pieces of the data."""

    address = Address("fuzz", 1)

    def __init__(self, tokens: Iterator[bytes]) -> None:
        self._tokens = tokens

    async def ask(self, request: Any, response_type: type[Any], *, timeout_ms: int) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=("SCRAM-SHA-256",))
        nonce = request.auth_bytes.rpartition(b"r=")[2].partition(b",")[0]
        token = next(self._tokens, b"").replace(_NONCE, nonce)
        return SaslAuthenticateResponse(error_message=None, auth_bytes=token)


CANARY: Final = "canary"
ALICE: Final = SaslConfig(mechanism="SCRAM-SHA-256", username="alice", password=Secret(CANARY))


def _check_client(data: bytes) -> None:
    try:
        asyncio.run(authenticate(_HostileServer(pieces(data)), ALICE, timeout_ms=1_000))
    except KafkaError as refused:
        if CANARY in f"{refused} {refused!r}":
            found("the password shows")
    else:
        found("the client trusts a server that does not know the password")


def _client_seeds() -> Iterator[bytes]:
    yield joined(b"r={nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096", b"v=" + b"A" * 43 + b"=")
    yield joined(b"r={nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=1")
    yield joined(b"r={nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=99999999,x=y")
    yield joined(b"r={nonce},s=c2FsdA==,i=4096", b"e=other-error")
    yield joined(b"e=unknown-user")


TARGETS: Final = (
    Target(
        name="sasl-gate",
        promise="a gate raises nothing, lets no client in without the password of its user, and keeps no stranger",
        check=_check_gate,
        seeds=_gate_seeds,
    ),
    Target(
        name="sasl-client",
        promise="a client trusts no server that lacks the password, shows no password, and raises KafkaError alone",
        check=_check_client,
        seeds=_client_seeds,
    ),
)
