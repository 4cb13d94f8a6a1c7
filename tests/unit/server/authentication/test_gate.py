"""A gate of a listener with SASL: rows N2 to N10 and N16 of the negative tests, the limits, and re-authentication."""

import pytest
from scramp import ScramClient

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.messages.metadata import MetadataRequest
from tailrace.server.authentication.credentials import NodeUser
from tailrace.server.authentication.gate import GateLimits
from testkit.nodes.sasl_clients import SHA_512, GateBench, SaslClient, bare_prefix, credential

ALICE, BOB = credential("alice-secret"), credential("bob-secret", salt=b"b" * 32)
NO_CHANNEL_BINDING = b"n,,n=alice,r=abc"
DELAY_MS = GateLimits().failure_delay_ms


@pytest.fixture
def bench() -> GateBench:
    return GateBench({"alice": ALICE, "bob": BOB})


def is_waiting(bench: GateBench, client: SaslClient) -> bool:
    """Whether the answer to a failure is still delayed, and the close comes after it; lets both times pass."""
    count = len(client.answers)
    bench.clock.advance(DELAY_MS - 1)
    was_waiting = len(client.answers) == count and client.is_open
    bench.clock.advance(1)
    was_open = client.is_open
    bench.clock.advance(100)
    return was_waiting and was_open


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_with_the_right_password_is_let_through(version: int, mechanism: str) -> None:
    kind = SHA_512 if mechanism.endswith("512") else ALICE.mechanism
    bench = GateBench({"alice": credential("alice-secret", kind)})
    client = bench.connect()
    assert client.log_in("alice", "alice-secret", mechanism, version).error_code == ErrorCode.NONE
    assert client.guard is None
    assert (client.identity.principal, client.identity.mechanism) == ("User:alice", mechanism)
    bench.clock.advance(60_000)
    assert client.is_open
    assert (bench.gate.waiting, bench.gate.counts.succeeded, bench.gate.counts.failed) == (0, 1, 0)


def test_a_request_of_the_same_turn_as_the_last_token_is_served(bench: GateBench) -> None:
    client = bench.connect()
    guard = client.guard
    client.log_in("alice", "alice-secret")
    assert guard is not None
    guard(client, 9, memoryview(b"a request"))
    assert bench.served == [(client, b"a request")]


def test_a_request_of_the_same_turn_as_the_close_is_not_served(bench: GateBench) -> None:
    client = bench.connect()
    guard = client.guard
    client.send(MetadataRequest(topics=None), 12)
    assert not client.is_open
    assert guard is not None
    guard(client, 9, memoryview(b"a request"))
    assert not bench.served


def test_api_versions_are_served_before_and_within_the_authentication(bench: GateBench) -> None:
    client = bench.connect()
    client.send(ApiVersionsRequest(), 0)
    client.handshake("SCRAM-SHA-256")
    client.send(ApiVersionsRequest(), 0)
    assert [connection for connection, _ in bench.served] == [client, client]
    assert client.is_open


def test_n3_a_request_before_authentication_closes_the_connection(bench: GateBench) -> None:
    client = bench.connect()
    client.send(MetadataRequest(topics=None), 12)
    assert client.closed == "a request of API 3 before authentication"
    assert not bench.served


def test_n3_a_token_before_the_handshake_gets_the_code_of_an_illegal_state(bench: GateBench) -> None:
    client = bench.connect()
    assert client.authenticate(b"token") is None
    assert is_waiting(bench, client)
    assert client.authenticated().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert not client.is_open


def test_n3_a_second_handshake_gets_the_code_of_an_illegal_state(bench: GateBench) -> None:
    client = bench.connect()
    client.handshake("PLAIN")
    assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert not client.is_open


@pytest.mark.parametrize("version", [0, 1])
def test_n4_a_mechanism_that_is_not_offered_is_refused_with_the_offer(bench: GateBench, version: int) -> None:
    client = bench.connect()
    answer = client.handshake("GSSAPI", version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert not client.is_open


def plain(bench: GateBench, token: bytes) -> SaslClient:
    """A client that has sent this token of PLAIN."""
    client = bench.connect()
    client.handshake("PLAIN")
    assert client.authenticate(token) is None
    return client


def test_plain_is_checked_against_the_credential_of_scram(bench: GateBench) -> None:
    client = plain(bench, b"\0alice\0alice-secret")
    assert client.suspensions == 1
    bench.checks.carry_out()
    assert (client.authenticated().error_code, client.suspensions) == (ErrorCode.NONE, 0)
    assert (client.identity.principal, client.identity.mechanism) == ("User:alice", "PLAIN")


def test_n5_n6_a_wrong_password_and_an_unknown_user_get_the_same_late_answer(bench: GateBench) -> None:
    answers = []
    for token in (b"\0alice\0wrong", b"\0nobody\0wrong"):
        client = plain(bench, token)
        assert len(bench.checks.waiting) == 1  # both cost the time of PBKDF2
        bench.checks.carry_out()
        assert is_waiting(bench, client)
        answers.append(client.answers[-1])
        assert client.authenticated().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not client.is_open
        assert client.suspensions == 1
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(b"admin\0bob\0bob-secret", id="N7: another authorization id"),
        b"\0bob",
        b"\0\0bob-secret",
        b"\0bob\0",
        b"\0bob\0bob-secret\0",
        b"\0\xff\0bob-secret",
        b"\0bob\0" + b"p" * 1_025,
        b"",
        b"p" * (17 << 10),
    ],
)
def test_a_token_of_plain_in_another_form_is_refused(bench: GateBench, token: bytes) -> None:
    client = plain(bench, token)
    assert is_waiting(bench, client)
    assert client.authenticated().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not client.is_open
    assert not bench.checks.waiting


def test_an_authorization_id_that_is_the_users_name_is_allowed(bench: GateBench) -> None:
    client = plain(bench, b"bob\0bob\0bob-secret")
    bench.checks.carry_out()
    assert client.authenticated().error_code == ErrorCode.NONE


def begun(bench: GateBench, user: str = "alice", password: str = "alice-secret") -> tuple[SaslClient, ScramClient, str]:
    """A client that has the server's first token of SCRAM."""
    client = bench.connect()
    client.handshake("SCRAM-SHA-256")
    scram = ScramClient(["SCRAM-SHA-256"], user, password)
    first = client.authenticate(scram.get_client_first().encode()).auth_bytes.decode()
    scram.set_server_first(first)
    return client, scram, first


def refused(bench: GateBench, client: SaslClient, token: bytes) -> bytes | None:
    """The answer to a token that is refused."""
    assert client.authenticate(token) is None
    assert is_waiting(bench, client)
    assert client.authenticated().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not client.is_open
    return client.answers[-1]


def test_n8_an_altered_nonce_is_refused(bench: GateBench) -> None:
    client, scram, _ = begun(bench)
    final = scram.get_client_final()
    nonce = final.split(",")[1]
    refused(bench, client, final.replace(nonce, nonce[:-1] + ("x" if nonce[-1] != "x" else "y")).encode())


def test_n9_an_unknown_user_gets_a_salt_and_then_the_answer_of_a_wrong_password(bench: GateBench) -> None:
    unknown, scram, first = begun(bench, "missing", "secret")
    salt, iterations = first.split(",")[1:]
    assert iterations == "i=4096"
    answer = refused(bench, unknown, scram.get_client_final().encode())
    wrong, scram, of_alice = begun(bench, "alice", "wrong")
    assert refused(bench, wrong, scram.get_client_final().encode()) == answer
    assert len(of_alice) == len(first)
    _, _, again = begun(bench, "missing", "secret")
    assert again.split(",")[1] == salt
    _, _, other = begun(bench, "absent", "secret")
    assert other.split(",")[1] != salt


def test_n10_a_replayed_exchange_is_refused(bench: GateBench) -> None:
    client = bench.connect()
    client.handshake("SCRAM-SHA-256")
    scram = ScramClient(["SCRAM-SHA-256"], "alice", "alice-secret")
    first = scram.get_client_first().encode()
    scram.set_server_first(client.authenticate(first).auth_bytes.decode())
    final = scram.get_client_final().encode()
    assert client.authenticate(final).error_code == ErrorCode.NONE
    replayed = bench.connect()
    replayed.handshake("SCRAM-SHA-256")
    replayed.authenticate(first)
    refused(bench, replayed, final)


@pytest.mark.parametrize(
    "token",
    [
        b"n,a=admin,n=alice,r=abc",  # an authorization id
        b"p=tls-unique,,n=alice,r=abc",  # channel binding
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,r=abc",
        b"n,,n=alice,r=",
        b"\xff\xff",
        b"",
        b",",
        b"n,," + b"n" * 16_000,
    ],
)
def test_a_first_token_of_scram_in_another_form_is_refused(bench: GateBench, token: bytes) -> None:
    client = bench.connect()
    client.handshake("SCRAM-SHA-256")
    refused(bench, client, token)


@pytest.mark.parametrize("final", [b"", b"c=biws", b"c=biws,r=x,p=AAAA", b"\0" * 100, b"c=eSws,r={nonce},p=AAAA"])
def test_a_last_token_of_scram_in_another_form_is_refused(bench: GateBench, final: bytes) -> None:
    client, _, first = begun(bench)
    refused(bench, client, final.replace(b"{nonce}", first.split(",")[0][2:].encode()))


def test_another_channel_binding_flag_in_the_last_token_is_refused(bench: GateBench) -> None:
    client, scram, _ = begun(bench)
    refused(bench, client, scram.get_client_final().replace("c=biws", "c=eSws").encode())


def test_bare_tokens_follow_a_handshake_of_version_0(bench: GateBench) -> None:
    client = bench.connect()
    client.handshake("SCRAM-SHA-256", 0)
    scram = ScramClient(["SCRAM-SHA-256"], "alice", "alice-secret")
    client.send_bytes(scram.get_client_first().encode())
    assert client.answers[-1] is not None
    scram.set_server_first(client.answers[-1].decode())
    client.send_bytes(scram.get_client_final().encode())
    scram.set_server_final(client.answers[-1].decode())
    assert client.identity.principal == "User:alice"
    assert client.guard is None


def test_a_bare_token_that_is_wrong_gets_a_late_end_without_an_answer(bench: GateBench) -> None:
    client = bench.connect()
    client.handshake("PLAIN", 0)
    client.send_bytes(b"\0alice\0wrong")
    bench.checks.carry_out()
    answers = len(client.answers)
    assert is_waiting(bench, client)
    assert not client.is_open
    assert len(client.answers) == answers


def test_a_bare_token_of_plain_gets_an_empty_token(bench: GateBench) -> None:
    client = bench.connect()
    client.handshake("PLAIN", 0)
    client.send_bytes(b"\0alice\0alice-secret")
    bench.checks.carry_out()
    assert client.answers[-1] == b""
    assert client.guard is None


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "a frame of 0 bytes before authentication"),
        (b"1234567", "a frame of 7 bytes before authentication"),
        (bare_prefix(17, 2), "SaslHandshake v2 is not served here"),
        (bare_prefix(17, 1) + b"\xff\xff\x7f\xff", "malformed SaslHandshake v1"),
        (bare_prefix(36, 2) + b"\xff\xff\0\xff\xff\xff", "malformed SaslAuthenticate v2"),
    ],
)
def test_bytes_that_are_no_request_close_the_connection(bench: GateBench, frame: bytes, reason: str) -> None:
    client = bench.connect()
    client.send_bytes(frame)
    assert client.closed.startswith(reason)


# Limits


def test_a_client_has_ten_seconds_to_authenticate(bench: GateBench) -> None:
    client = bench.connect()
    client.handshake("SCRAM-SHA-256")
    bench.clock.advance(9_999)
    assert client.is_open
    bench.clock.advance(1)
    assert client.closed == "not authenticated within 10000 ms"
    assert (bench.gate.waiting, bench.gate.counts.timed_out) == (0, 1)


def test_the_oldest_of_too_many_waiting_connections_is_closed() -> None:
    bench = GateBench({"alice": ALICE}, limits=GateLimits(connections=3))
    first = [bench.connect() for _ in range(3)]
    first[0].log_in("alice", "alice-secret")
    bench.connect()
    bench.connect()  # a fourth, while all are younger than a second
    assert all(client.is_open for client in first)
    bench.clock.advance(1_000)
    bench.connect()
    assert [client.is_open for client in first] == [True, False, False]
    assert bench.gate.waiting == 3


def test_a_closed_connection_leaves_nothing_behind(bench: GateBench) -> None:
    client = plain(bench, b"\0alice\0alice-secret")
    client.close("gone")
    bench.checks.carry_out()
    bench.clock.advance(60_000)
    assert (client.closed, client.suspensions, bench.gate.waiting) == ("gone", 0, 0)
    assert client.identity.principal == "User:ANONYMOUS"
    assert not bench.gate._sessions


# The user of the nodes


def test_the_user_of_the_nodes_is_known_without_a_record() -> None:
    bench = GateBench({}, node_user=NodeUser(name="node", password="node-secret"))
    assert bench.connect().log_in("node", "node-secret").error_code == ErrorCode.NONE
    client, scram, _ = begun(bench, "node", "wrong")
    refused(bench, client, scram.get_client_final().encode())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_node_accepts_two_passwords_of_the_nodes_and_no_third(mechanism: str) -> None:
    bench = GateBench({}, node_user=NodeUser(name="node", password="first", second_password="second"))
    for password, is_right in (("first", True), ("second", True), ("third", False)):
        client = bench.connect()
        if mechanism == "PLAIN":
            client.handshake(mechanism)
            client.authenticate(f"\0node\0{password}".encode())
            bench.checks.carry_out()
            bench.clock.advance(1_000)
            assert (client.authenticated().error_code == ErrorCode.NONE) == is_right
        elif is_right:
            assert client.log_in("node", password, mechanism).error_code == ErrorCode.NONE
        else:
            assert client.log_in("node", password, mechanism) is None
        assert client.is_open or not is_right


# Sessions


def test_a_session_without_a_limit_has_no_lifetime(bench: GateBench) -> None:
    client = bench.connect()
    assert client.log_in("alice", "alice-secret").session_lifetime_ms == 0
    bench.clock.advance(10**9)
    assert client.guard is None


@pytest.fixture
def short() -> GateBench:
    """A gate with sessions of five seconds."""
    users = {"alice": ALICE, "bob": BOB}
    return GateBench(users, limits=GateLimits(max_reauth_ms=5_000))


def test_an_expired_session_ends_at_the_next_request(short: GateBench) -> None:
    client = short.connect()
    assert client.log_in("alice", "alice-secret").session_lifetime_ms == 5_000
    short.clock.advance(4_999)
    assert client.guard is None
    short.clock.advance(1)
    assert client.is_open
    client.send(MetadataRequest(topics=None), 12)
    assert client.closed == "a request of API 3 after the end of the session"


def test_an_expired_session_can_be_renewed(short: GateBench) -> None:
    client = short.connect()
    client.log_in("alice", "alice-secret")
    short.clock.advance(6_000)
    client.send(ApiVersionsRequest(), 0)
    assert client.log_in("alice", "alice-secret").session_lifetime_ms == 5_000
    assert client.guard is None
    assert short.gate.counts.reauthenticated == 1
    short.clock.advance(4_999)
    assert client.guard is None


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("bob", "bob-secret", "SCRAM-SHA-256"), ("alice", "alice-secret", "SCRAM-SHA-512")],
)
def test_n16_another_user_or_mechanism_in_a_later_authentication_is_refused(
    user: str, password: str, mechanism: str
) -> None:
    users = {"alice": ALICE, "bob": BOB}
    bench = GateBench(
        users, limits=GateLimits(max_reauth_ms=5_000), node_user=NodeUser(name="alice", password=password)
    )
    client = bench.connect()
    client.log_in("alice", "alice-secret")
    bench.clock.advance(6_000)
    assert client.log_in(user, password, mechanism) is None
    assert is_waiting(bench, client)
    assert client.authenticated().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (client.is_open, client.identity.principal) == (False, "User:alice")


def test_a_later_handshake_of_version_0_is_refused(short: GateBench) -> None:
    client = short.connect()
    client.log_in("alice", "alice-secret")
    short.clock.advance(6_000)
    client.send(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 0)
    assert client.closed == "a handshake of version 0 on an authenticated connection"


def test_no_secret_shows(bench: GateBench) -> None:
    token = SaslAuthenticateRequest(auth_bytes=b"\0alice\0canary")
    client = plain(bench, b"\0alice\0canary")
    bench.checks.carry_out()
    bench.clock.advance(DELAY_MS)
    user = NodeUser(name="node", password="canary")
    shown = [repr(token), client.closed, repr(client.authenticated()), repr(ALICE), repr(user), str(user)]
    assert not any("canary" in text or "ssss" in text for text in shown)
