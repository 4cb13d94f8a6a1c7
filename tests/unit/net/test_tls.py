"""Listeners with TLS against real sockets: handshakes that succeed and fail, renewed certificates, slow readers."""

import asyncio
import logging
import os
import ssl
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.security.principal_rules import PrincipalRules
from tailrace.net.inbound import InboundConnection
from tailrace.net.pauses import Pause
from tailrace.net.tls import Pem, TlsConfig, TlsContexts, client_context, server_context
from tailrace.node.local.certificates import CertificateAuthority, KeyPair
from testkit.nodes.listeners import FrameClient, frame, number_of, serving, until


class Team:
    """An authority with a node's and a client's certificates."""

    def __init__(self) -> None:
        self.authority = CertificateAuthority.found("team")
        self.node = self.authority.issue("node", hosts=["127.0.0.1", "localhost"])
        self.alice = self.authority.issue("alice")

    def server(self, pair: KeyPair | None = None, *, client_auth: str = "none") -> TlsConfig:
        return TlsConfig(certificate=_pem((pair or self.node).keystore), trusted=self.trusted, client_auth=client_auth)

    def client(self, pair: KeyPair | None = None) -> ssl.SSLContext:
        certificate = None if pair is None else _pem(pair.keystore)
        return client_context(TlsConfig(certificate=certificate, trusted=self.trusted))

    @property
    def trusted(self) -> Pem:
        return _pem(self.authority.pair.certificate)


def _pem(text: str) -> Pem:
    return Pem(setting="a.setting", text=text)


@pytest.fixture(scope="module")
def team() -> Team:
    return Team()


def _serving_contexts(config: TlsConfig) -> TlsContexts:
    return TlsContexts(config, is_server=True)


async def test_frames_pass_both_ways_over_tls(team: Team) -> None:
    async with serving(tls=_serving_contexts(team.server())) as server:
        client = await server.connect(team.client())
        client.send(b"".join(frame(n, size=8 + n % 50) for n in range(2_000)))
        assert [number_of(await client.receive()) for _ in range(2_000)] == list(range(2_000))
        (connection,) = server.connections
        assert (connection.identity.principal, connection.identity.mechanism) == ("User:ANONYMOUS", "")
        client.close()


async def test_a_large_frame_passes_both_ways_over_tls(team: Team) -> None:
    async with serving(tls=_serving_contexts(team.server())) as server:
        client = await server.connect(team.client())
        body = await client.ask(frame(7, api_key=0, size=9 << 20))
        assert (number_of(body), len(body)) == (7, 9 << 20)
        client.close()


async def test_bytes_that_come_with_the_end_of_the_handshake_are_not_lost(team: Team) -> None:
    """The client writes its last handshake message and 100 frames in one piece."""
    async with serving(tls=_serving_contexts(team.server())) as server:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        stream = team.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while True:
            try:
                stream.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
        stream.write(b"".join(frame(n, size=2_000) for n in range(100)))
        writer.write(outgoing.read())
        received = b""
        while len(received) < 100 * 2_004:
            incoming.write(await reader.read(1 << 16))
            try:
                while piece := stream.read(1 << 16):
                    received += piece
            except ssl.SSLWantReadError:
                continue
        assert [struct.unpack_from(">i", received, 2_004 * n + 8)[0] for n in range(100)] == list(range(100))
        writer.close()


async def test_the_principal_of_a_client_with_a_certificate_is_its_subject(team: Team) -> None:
    async with serving(tls=_serving_contexts(team.server(client_auth="required"))) as server:
        client = await server.connect(team.client(team.alice))
        await client.ask(frame(1))
        identity = server.connections[0].identity
        assert (identity.principal, identity.mechanism, identity.address) == ("User:CN=alice", "TLS", "127.0.0.1")
        client.close()


async def test_a_subject_that_no_rule_matches_ends_the_connection(team: Team) -> None:
    config, rules = team.server(client_auth="required"), PrincipalRules("RULE:^CN=(node.*)$/$1/")
    async with serving(tls=_serving_contexts(config), principal_of=rules) as server:
        refused = await server.connect(team.client(team.alice))
        assert await refused.is_closed_by_server()
        refused.close()
        client = await server.connect(team.client(team.node))
        await client.ask(frame(1))
        assert [each.identity.principal for each in server.connections] == ["User:node"]
        client.close()


async def _is_refused(server_port: int, context: ssl.SSLContext) -> bool:
    """Whether the node refuses the client. With TLS 1.3 the client learns of it when it reads."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server_port, ssl=context)
    except (OSError, ssl.SSLError):
        return True
    client = FrameClient(reader, writer)
    client.send(frame(1))
    try:
        return await client.is_closed_by_server()
    finally:
        client.close()


async def test_certificates_that_are_not_accepted_end_the_handshake(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    """Reliability list, N17: no certificate, another authority, expired, not yet valid, revoked."""
    stranger = CertificateAuthority.found("stranger").issue("alice")
    expired = team.authority.issue("alice", begins=datetime.now(UTC) - timedelta(days=9), days=1)
    early = team.authority.issue("alice", begins=datetime.now(UTC) + timedelta(days=1))
    revoked = team.authority.issue("alice")
    config = TlsConfig(
        certificate=_pem(team.node.keystore),
        trusted=team.trusted,
        revoked=_pem(team.authority.revocations([revoked])),
        client_auth="required",
    )
    async with serving(tls=_serving_contexts(config)) as server:
        for pair in (None, stranger, expired, early, revoked):
            assert await _is_refused(server.port, team.client(pair)), pair
        assert not await _is_answered_plainly(server.port)
        client = await server.connect(team.client(team.alice))
        assert number_of(await client.ask(frame(5))) == 5
        await until(lambda: server.listener.counts.open == 1)
        client.close()
    log = caplog.text
    for reason in ("has no certificate", "certificate has expired", "not yet valid", "revoked", "no TLS hello"):
        assert reason in log, reason


async def _is_answered_plainly(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = FrameClient(reader, writer)
    client.send(frame(1) * 100)
    try:
        head = await reader.read(1 << 16)
    except ConnectionError:
        return False
    finally:
        client.close()
    return b"\x00\x00\x00\x01" in head


async def test_a_version_of_tls_that_is_not_enabled_is_refused(team: Team) -> None:
    config = TlsConfig(certificate=_pem(team.node.keystore), versions=("TLSv1.3",))
    async with serving(tls=_serving_contexts(config)) as server:
        old = team.client()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await _is_refused(server.port, old)
        client = await server.connect(team.client())
        assert number_of(await client.ask(frame(5))) == 5
        client.close()


async def test_a_client_that_begins_no_handshake_is_counted_and_ended(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.net.tls_acceptor.HANDSHAKE_SECONDS", 0.2)
    async with serving(tls=_serving_contexts(team.server()), max_connections=3) as server:
        silent = [await server.connect() for _ in range(3)]
        await until(lambda: server.listener.counts.open == 3)
        refused = await server.connect()
        for client in (refused, *silent):
            assert await client.is_closed_by_server()
            client.close()
        await until(lambda: server.listener.counts.open == 0)
        assert server.listener._handshakes == 0


async def test_random_bytes_in_a_handshake_end_their_connection_alone(team: Team) -> None:
    async with serving(tls=_serving_contexts(team.server())) as server:
        honest = await server.connect(team.client())
        for size in (1, 5, 100, 20_000):
            hostile = await server.connect()
            hostile.send(b"\x16\x03\x01\x02\x00" + os.urandom(size))
            hostile.writer.write_eof()
            assert await hostile.is_closed_by_server()
            hostile.close()
        assert number_of(await honest.ask(frame(5))) == 5
        honest.close()


async def test_a_listener_that_stops_ends_handshakes_and_sends_answers(team: Team) -> None:
    taken: list[tuple[InboundConnection, int, bytes]] = []
    async with serving(
        lambda connection, slot, body: taken.append((connection, slot, bytes(body))),
        tls=_serving_contexts(team.server()),
    ) as server:
        silent, client = await server.connect(), await server.connect(team.client())
        client.send(frame(3))
        await until(lambda: taken)
        connection, slot, body = taken[0]
        connection.answer(slot, [body])
    assert number_of(await client.receive()) == 3
    assert await silent.is_closed_by_server()
    silent.close()
    client.close()


async def test_answers_wait_for_a_client_that_does_not_read(team: Team) -> None:
    """Memory for the answers stays bounded over TLS, too, and the client gets every answer in the end."""
    async with serving(
        lambda connection, slot, body: connection.answer(slot, [bytes(body[:12]) + bytes(1 << 20)]),
        tls=_serving_contexts(team.server()),
    ) as server:
        client = await server.connect(team.client())
        transport = cast(asyncio.Transport, client.writer.transport)
        transport.pause_reading()
        client.send(b"".join(frame(n) for n in range(60)))
        await until(lambda: server.connections)
        (connection,) = server.connections
        await until(lambda: connection.pauses & Pause.SLOW_READER)
        assert connection.answers.unsent_bytes < server.listener.limits.unsent_bytes
        transport.resume_reading()
        assert [number_of(await client.receive()) for _ in range(60)] == list(range(60))
        client.close()


class Store:
    """A PEM file that is replaced as a user would replace it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "node.pem"

    def write(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)


def _name_served(port: int, context: ssl.SSLContext) -> "asyncio.Future[str]":
    async def look() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            certificate = writer.get_extra_info("peercert")
            return str(certificate["subject"][0][0][1])
        finally:
            writer.close()

    return asyncio.ensure_future(look())


async def test_new_connections_get_a_renewed_certificate(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("tailrace.net.tls._LOOK_SECONDS", 0)
    store = Store(tmp_path)
    store.write(team.authority.issue("first", hosts=["127.0.0.1"]).keystore)
    config = TlsConfig(certificate=Pem(setting="ssl.keystore.location", location=str(store.path)))
    async with serving(tls=_serving_contexts(config)) as server:
        client = await server.connect(team.client())
        assert await _name_served(server.port, team.client()) == "first"
        store.write("no certificate at all")
        assert await _name_served(server.port, team.client()) == "first"
        assert "event=certificates-not-renewed" in caplog.text
        store.write(team.authority.issue("second", hosts=["127.0.0.1"]).keystore)
        assert await _name_served(server.port, team.client()) == "second"
        assert number_of(await client.ask(frame(5))) == 5
        client.close()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (TlsConfig(), "ssl.keystore.location: a listener with TLS needs a certificate"),
        (TlsConfig(certificate=Pem(setting="k", location="/no/such/file.pem")), "k=/no/such/file.pem: No such file"),
        (TlsConfig(certificate=Pem(setting="k", text="PK\x03\x04")), "k: no PEM text. Other stores are converted"),
        (TlsConfig(certificate=Pem(setting="k", text="-----BEGIN x")), "k: no certificate with its key in PEM form"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_by_name(config: TlsConfig, text: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        server_context(config)
    assert text in refusal.value.detail


def test_settings_that_do_not_fit_together_are_refused(team: Team) -> None:
    def refusal_of(config: TlsConfig) -> str:
        with pytest.raises(KafkaError) as refusal:
            server_context(config)
        return refusal.value.detail

    own, other = team.node, team.alice
    assert "ssl.truststore.location must name" in refusal_of(
        TlsConfig(certificate=_pem(own.keystore), client_auth="required")
    )
    assert "is not the key of the first certificate" in refusal_of(
        TlsConfig(certificate=_pem(own.certificate), key=_pem(other.key))
    )
    assert "OpenSSL's names" in refusal_of(TlsConfig(certificate=_pem(own.keystore), ciphers=("TLS_NO_SUCH",)))
    assert "ssl.enabled.protocols" in refusal_of(TlsConfig(certificate=_pem(own.keystore), versions=("TLSv1.1",)))


def _encrypted(pair: KeyPair, password: bytes) -> str:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(pair.key.encode(), password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)).decode()


def test_an_encrypted_key_needs_its_password(team: Team) -> None:
    """OpenSSL must not ask for a password on the terminal."""
    key = _pem(_encrypted(team.node, b"secret"))
    server_context(TlsConfig(certificate=_pem(team.node.certificate), key=key, key_password="secret"))
    for password in (None, "wrong"):
        with pytest.raises(KafkaError) as refusal:
            server_context(TlsConfig(certificate=_pem(team.node.certificate), key=key, key_password=password))
        assert "ssl.key.password does not fit" in refusal.value.detail


def test_no_text_of_a_configuration_shows_a_key_or_a_password(team: Team) -> None:
    config = TlsConfig(certificate=_pem(team.node.keystore), key_password="canary", trusted=team.trusted)
    assert "canary" not in f"{config!r} {config}"
    assert "PRIVATE" not in f"{config!r} {config} {team.node!r}"


def test_an_inline_key_leaves_no_file(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server_context(team.server())
    assert list(tmp_path.iterdir()) == []
