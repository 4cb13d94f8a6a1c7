"""The client's side of SASL against servers that are honest, wrong and hostile; row N12 of the negative tests."""

import asyncio
import base64
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from scramp import ScramMechanism

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net import sasl
from tailrace.net.connection import Address
from tailrace.net.sasl import AuthenticationRefused, SaslConfig, authenticate
from tailrace.net.secrets import Secret
from tailrace.protocol.messages.api_versions import (
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

CANARY = "canary-secret"
ALICE = SaslConfig(mechanism="SCRAM-SHA-256", username="alice", password=Secret(CANARY))
Tokens = Callable[[bytes], bytes]


def token(data: bytes, **fields: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(**{"error_message": None, "auth_bytes": data, **fields})


class ServerOfTokens:
    """A server without a socket: `answers` are the tokens it sends, each made from the client's token."""

    address = Address("broker", 9092)

    def __init__(self, *answers: Callable[[bytes], SaslAuthenticateResponse], handshake_error: int = 0) -> None:
        self._answers = list(answers)
        self._handshake_error = handshake_error
        self.tokens: list[bytes] = []

    async def ask(self, request: Any, response_type: type[Any], *, timeout_ms: int) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(error_code=self._handshake_error, mechanisms=("PLAIN",))
        self.tokens.append(request.auth_bytes)
        return self._answers.pop(0)(request.auth_bytes)


def honest(password: str, *, lifetime_ms: int = 0) -> ServerOfTokens:
    mechanism = ScramMechanism("SCRAM-SHA-256")
    known = mechanism.make_auth_info(password, iteration_count=4_096)
    server = mechanism.make_server(lambda _: known)

    def first(data: bytes) -> SaslAuthenticateResponse:
        server.set_client_first(data.decode())
        return token(server.get_server_first().encode())

    def last(data: bytes) -> SaslAuthenticateResponse:
        try:
            server.set_client_final(data.decode())
        except Exception:  # noqa: BLE001 - as the library refuses
            return token(b"", error_code=58, error_message="Authentication failed")
        return token(server.get_server_final().encode(), session_lifetime_ms=lifetime_ms)

    return ServerOfTokens(first, last)


def log_in(server: ServerOfTokens, config: SaslConfig = ALICE) -> int:
    return asyncio.run(authenticate(server, config, timeout_ms=1_000))


def refusal(server: ServerOfTokens, config: SaslConfig = ALICE) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        log_in(server, config)
    report = traceback.TracebackException.from_exception(refused.value, capture_locals=True)
    assert "exchange = " in "".join(report.format()) or server.tokens == [], "the variables of frames are in the report"
    assert CANARY not in f"{refused.value} {refused.value!r} {''.join(report.format())}"
    return refused.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_report_with_the_variables_of_all_frames_shows_no_password(mechanism: str) -> None:
    server = ServerOfTokens(lambda _: token(b"", error_code=58, error_message="Authentication failed"))
    refusal(server, SaslConfig(mechanism=mechanism, username="alice", password=Secret(CANARY)))
    assert mechanism != "PLAIN" or CANARY.encode() in server.tokens[0], "the password was sent"


def test_a_user_is_authenticated_and_learns_the_length_of_the_session() -> None:
    assert log_in(honest(CANARY)) == 0
    assert log_in(honest(CANARY, lifetime_ms=5_000)) == 5_000


def test_a_wrong_password_is_no_fault_to_retry() -> None:
    refused = refusal(honest("another"))
    assert isinstance(refused, AuthenticationRefused)
    assert (refused.code, refused.code.retriable) == (ErrorCode.SASL_AUTHENTICATION_FAILED, False)
    assert "broker:9092 does not accept user 'alice' by SCRAM-SHA-256: Authentication failed" in refused.detail


def test_a_mechanism_that_is_not_offered_is_refused_with_the_offer() -> None:
    refused = refusal(ServerOfTokens(handshake_error=33))
    assert refused.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refused.detail.endswith("mechanisms offered: PLAIN")


def answering(first: str) -> ServerOfTokens:
    """A server whose first token has this text behind the client's nonce."""

    def reply(data: bytes) -> SaslAuthenticateResponse:
        nonce = data.decode().rpartition("r=")[2]
        return token(first.replace("{nonce}", nonce).encode())

    return ServerOfTokens(reply)


SALT = base64.b64encode(b"s" * 16).decode()


@pytest.mark.parametrize("iterations", ["1", "4095", "1000001", "99999999999999999999", "-1", "x"])
def test_n12_a_server_with_few_or_very_many_iterations_is_given_up(
    iterations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hashlib.pbkdf2_hmac", lambda *_: pytest.fail("the password was hashed"))
    server = answering(f"r={{nonce}}more,s={SALT},i={iterations}")
    refused = refusal(server)
    assert isinstance(refused, AuthenticationRefused)
    assert len(server.tokens) == 1


@pytest.mark.parametrize(
    "first",
    [
        f"r=another,s={SALT},i=4096",
        f"r={{nonce}},s={SALT},i=4096",
        "r={nonce}more,s=!,i=4096",
        "e=other-error",
        "",
        "\udcff",
        "x" * 20_000,
    ],
)
def test_a_first_token_of_a_server_in_another_form_is_refused(first: str) -> None:
    def reply(data: bytes) -> SaslAuthenticateResponse:
        nonce = data.decode().rpartition("r=")[2]
        return token(first.replace("{nonce}", nonce).encode("utf-8", "surrogateescape"))

    server = ServerOfTokens(reply)
    assert isinstance(refusal(server), AuthenticationRefused)
    assert len(server.tokens) == 1


@pytest.mark.parametrize("last", [b"v=" + base64.b64encode(b"v" * 32), b"", b"e=invalid-proof", b"\xff"])
def test_a_server_that_does_not_prove_the_password_is_not_trusted(last: bytes) -> None:
    server = honest(CANARY)
    server._answers[1] = lambda _: token(last)
    refused = refusal(server)
    assert isinstance(refused, AuthenticationRefused)
    assert "has not proved that it knows the password" in refused.detail


def test_plain_sends_the_password_and_nothing_else() -> None:
    server = ServerOfTokens(lambda _: token(b""))
    config = SaslConfig(mechanism="PLAIN", username="alice", password=Secret(CANARY))
    assert log_in(server, config) == 0
    assert server.tokens == [b"\0alice\0" + CANARY.encode()]


def test_a_password_that_scram_does_not_allow_is_refused_without_showing_it() -> None:
    config = SaslConfig(mechanism="SCRAM-SHA-256", username="alice", password=Secret(CANARY + "\u0007"))
    refused = refusal(ServerOfTokens(), config)
    assert refused.code is ErrorCode.INVALID_CONFIG


def test_a_config_is_checked_and_does_not_show() -> None:
    ALICE.check()
    assert CANARY not in repr(ALICE)
    for mechanism, user in (("GSSAPI", "alice"), ("PLAIN", "")):
        with pytest.raises(KafkaError) as refused:
            SaslConfig(mechanism=mechanism, username=user, password=Secret(CANARY)).check()
        assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_the_bounds_of_iterations_are_those_of_the_page() -> None:
    assert (sasl.LEAST_ITERATIONS, sasl.MOST_ITERATIONS) == (4_096, 1_000_000)
