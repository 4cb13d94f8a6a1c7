"""A fault on the way to a cluster is named, with the setting to change: one fake server per fault."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.client.diagnosis import diagnosis
from tailrace.client.diagnosis.diagnosis import diagnose
from tailrace.client.diagnosis.findings import Finding, Verdict
from tailrace.client.diagnosis.probe import Probe, Target
from tailrace.model.errors import KafkaError
from tailrace.net.connection import Address
from tailrace.protocol.headers import encode_response
from tailrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, SaslHandshakeResponse
from tailrace.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from tailrace.protocol.request_headers import decode_request_header

CERTIFICATE = Path(__file__).parents[3] / "golden" / "tls" / "localhost.pem"
METADATA, SASL_HANDSHAKE, API_VERSIONS = 3, 17, 18

SECONDS = 60.0
"""For what is answered. The servers are threads of this process, and may be kept waiting."""
SILENCE_S = 0.3
"""For what is not."""

Serve = Callable[[socket.socket], None]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_SECOND_LOOK_S", SECONDS)


@contextmanager
def listening(serve: Serve) -> Iterator[int]:
    """A server on a free port of 127.0.0.1 that hands each connection to `serve`, on a thread of its own."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def handle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError, KafkaError):
                connection.settimeout(SECONDS)
                serve(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                thread = threading.Thread(target=handle, args=(connection,))
                threads.append(thread)
                thread.start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(SECONDS)
            for thread in threads:
                thread.join(SECONDS)


class FakeKafka:
    """The part of a cluster that a diagnosis requests: its brokers, and whether they require a login."""

    def __init__(self, *, cluster_id: str = "cluster-1", mechanisms: tuple[str, ...] = ()) -> None:
        self.brokers: tuple[tuple[int, str, int], ...] = ()
        self._cluster_id = cluster_id
        self._mechanisms = mechanisms

    def serve(self, connection: socket.socket) -> None:
        while (frame := receive_frame(connection)) is not None:
            header, _ = decode_request_header(frame)
            response = self._response_to(header.api_key)
            if response is None:
                return
            answer = b"".join(encode_response(response, header.api_version, header.correlation_id))
            connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _response_to(self, api_key: int) -> object | None:
        if api_key == API_VERSIONS:
            served = ((METADATA, 12), (SASL_HANDSHAKE, 1), (API_VERSIONS, 3))
            return ApiVersionsResponse(
                api_keys=tuple(ApiVersion(api_key=key, min_version=0, max_version=most) for key, most in served)
            )
        if api_key == SASL_HANDSHAKE:
            return SaslHandshakeResponse(error_code=33 if self._mechanisms else 34, mechanisms=self._mechanisms)
        if self._mechanisms:
            return None
        brokers = tuple(MetadataResponseBroker(node_id=node, host=host, port=port) for node, host, port in self.brokers)
        return MetadataResponse(brokers=brokers, cluster_id=self._cluster_id, controller_id=1, topics=())


def receive_frame(connection: socket.socket) -> bytes | None:
    head = receive(connection, 4)
    return receive(connection, struct.unpack(">i", head)[0]) if len(head) == 4 else None


def receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length and (chunk := connection.recv(length - len(received))):
        received += chunk
    return received


@contextmanager
def kafka(**options: object) -> Iterator[tuple[FakeKafka, int]]:
    fake = FakeKafka(**options)  # type: ignore[arg-type]
    with listening(fake.serve) as port:
        fake.brokers = ((1, "127.0.0.1", port),)
        yield fake, port


def examine(port: int, *, host: str = "127.0.0.1", timeout_s: float = SECONDS, tls: bool = False) -> list[Finding]:
    return list(diagnose(Address(host, port), timeout_s=timeout_s, tls=tls))


def the_failure(findings: list[Finding]) -> Finding:
    (failure,) = (finding for finding in findings if finding.verdict is Verdict.FAILED)
    assert failure is findings[-1], "what fails ends the way"
    assert failure.advice
    return failure


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound, so that no other program takes it, and has no listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def test_a_healthy_cluster_has_only_findings_that_are_ok() -> None:
    with kafka() as (_, port):
        findings = examine(port)
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    assert [finding.check for finding in findings] == [
        *("connect", "protocol", "metadata"),
        *("connect", "protocol", "advertised"),
    ]


def test_nothing_listening(closed_port: int) -> None:
    failure = the_failure(examine(closed_port))
    assert "nothing listens there" in failure.detail
    assert "tailrace serve --listen" in failure.advice


def test_a_name_that_does_not_exist() -> None:
    failure = the_failure(examine(9092, host="no-such-host.invalid"))
    assert failure.check == "name"
    assert "spelling" in failure.advice


def test_packets_that_are_dropped() -> None:
    """A listener with a full queue: the system does not answer, as with a firewall."""
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        failure = the_failure(examine(full.getsockname()[1], timeout_s=SILENCE_S))
    assert "no answer within 0.3 s" in failure.detail
    assert "firewall" in failure.advice


def test_an_http_server() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with listening(serve) as port:
        assert "web server" in the_failure(examine(port)).advice


def test_an_http_server_that_waits_for_the_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    send_raw = Probe.send_raw

    def patient_with_http(probe: Probe, data: bytes) -> bytes:
        probe._timeout_s = SECONDS if data.startswith(b"GET") else SILENCE_S
        return send_raw(probe, data)

    monkeypatch.setattr(Probe, "send_raw", patient_with_http)

    def serve(connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = connection.recv(4096)
            if not chunk:
                return
            received += chunk
        connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")

    with listening(serve) as port:
        assert "web server" in the_failure(examine(port, timeout_s=SILENCE_S)).advice


def test_a_tls_port_spoken_to_in_plain_text() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    with listening(serve) as port:
        failure = the_failure(examine(port))
    assert "security.protocol=SSL" in failure.advice
    assert "--tls" in failure.advice


def test_a_tls_port_that_hangs_up_without_a_word() -> None:
    """As Java's servers may: only a TLS hello makes it speak."""

    def serve(connection: socket.socket) -> None:
        if connection.recv(4096)[:1] == b"\x16":
            connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28")

    with listening(serve) as port:
        assert "security.protocol=SSL" in the_failure(examine(port)).advice


def test_a_plain_port_spoken_to_in_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads the hello as the begin of a long request, and waits for the rest."""
    ask_versions = Probe.ask_versions

    def patient_with_kafka(probe: Probe) -> ApiVersionsResponse:
        probe._timeout_s = SECONDS
        return ask_versions(probe)

    monkeypatch.setattr(Probe, "ask_versions", patient_with_kafka)
    with kafka() as (_, port):
        failure = the_failure(examine(port, timeout_s=SILENCE_S, tls=True))
    assert "security.protocol=PLAINTEXT" in failure.advice


def test_a_cluster_behind_tls_is_examined_and_its_certificate_judged() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    fake = FakeKafka()

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            fake.serve(secure)

    with listening(serve) as port:
        fake.brokers = ((1, "localhost", port),)
        findings = examine(port, tls=True)
    assert not [finding for finding in findings if finding.verdict is Verdict.FAILED]
    certificate = next(finding for finding in findings if finding.check == "certificate")
    assert certificate.verdict is Verdict.WARNING
    assert "self-signed" in certificate.detail
    assert "ssl.truststore.location" in certificate.advice


def test_a_listener_that_wants_a_login() -> None:
    with kafka(mechanisms=("SCRAM-SHA-512", "PLAIN")) as (_, port):
        failure = the_failure(examine(port))
    assert failure.check == "authentication"
    assert "SCRAM-SHA-512, PLAIN" in failure.detail
    assert "security.protocol=SASL_PLAINTEXT" in failure.advice


def test_something_that_takes_connections_and_says_nothing() -> None:
    with listening(lambda connection: _swallow(connection)) as port:
        failure = the_failure(examine(port, timeout_s=SILENCE_S))
    assert "load balancer" in failure.advice


def _swallow(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="hangs up"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="SSH"),
        pytest.param(struct.pack(">ii", 4, 7), id="another request's answer"),
        pytest.param(struct.pack(">iihi", 10, 1, 0, 1 << 30), id="a table without end"),
        pytest.param(struct.pack(">i", -5), id="negative length"),
        pytest.param(b"\0\0", id="half a length"),
    ],
)
def test_something_that_is_no_kafka(answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)

    with listening(serve) as port:
        failure = the_failure(examine(port))
    assert failure.check == "protocol"
    assert "which program has this port" in failure.advice


def test_one_address_of_a_name_without_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is ::1 first on many machines, and brokers listen on 127.0.0.1."""

    def resolve(host: str, port: int) -> list[Target]:
        return [Target(socket.AF_INET6, ("::1", port, 0, 0)), Target(socket.AF_INET, ("127.0.0.1", port))]

    with kafka() as (_, port):
        monkeypatch.setattr("tailrace.client.diagnosis.diagnosis.resolve", resolve)
        findings = examine(port, host="localhost")
    warning = findings[0]
    assert warning.verdict is Verdict.WARNING
    assert f"localhost also means [::1]:{port}" in warning.detail
    assert f"write 127.0.0.1:{port} for localhost" in warning.advice
    assert all(finding.verdict is not Verdict.FAILED for finding in findings)


def test_a_broker_that_advertises_an_unknown_name() -> None:
    with kafka() as (fake, port):
        fake.brokers = ((7, "kafka-0.invalid", 9092),)
        failure = the_failure(examine(port))
    assert "broker 7 advertises kafka-0.invalid" in failure.advice
    assert f"advertised.listeners=127.0.0.1:{port}," in failure.advice, "the port that works, not the wrong one's"


def test_of_several_brokers_it_is_not_known_which_one_has_answered() -> None:
    with kafka() as (fake, port):
        fake.brokers = ((7, "127.0.0.1", port), (8, "kafka-0.invalid", 9092))
        failure = the_failure(examine(port))
    assert "advertised.listeners=127.0.0.1:9092," in failure.advice


def test_a_broker_that_advertises_a_port_without_a_listener(closed_port: int) -> None:
    with kafka() as (fake, port):
        fake.brokers = ((7, "127.0.0.1", closed_port),)
        failure = the_failure(examine(port))
    assert failure.check == "advertised"
    assert "start it if it is down" in failure.advice
    assert failure.advice.endswith(f"or set advertised.listeners=127.0.0.1:{port}")


@pytest.mark.parametrize(("host", "port"), [("0.0.0.0", 9092), ("::", 9092), ("", 9092), ("127.0.0.1", 0)])
def test_a_broker_that_advertises_no_address(host: str, port: int) -> None:
    with kafka() as (fake, own_port):
        fake.brokers = ((7, host, port),)
        failure = the_failure(examine(own_port))
    assert "no address to connect to" in failure.detail


def test_a_broker_whose_advertised_address_leads_to_another_cluster() -> None:
    with kafka() as (fake, port), kafka(cluster_id="cluster-2") as (_, other_port):
        fake.brokers = ((7, "127.0.0.1", other_port),)
        failure = the_failure(examine(port))
    assert "another cluster answers (cluster-2)" in failure.detail


@pytest.mark.parametrize("is_up", [True, False])
def test_a_broker_elsewhere_that_advertises_localhost(
    is_up: bool, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test the name `broker.example` resolves to this machine."""

    def resolve(host: str, port: int) -> list[Target]:
        return [Target(socket.AF_INET, ("127.0.0.1", port))]

    with kafka() as (fake, port):
        monkeypatch.setattr("tailrace.client.diagnosis.diagnosis.resolve", resolve)
        advertised = port if is_up else closed_port
        fake.brokers = ((7, "localhost", advertised),)
        last = examine(port, host="broker.example")[-1]
    assert last.verdict is (Verdict.WARNING if is_up else Verdict.FAILED)
    assert f"advertised.listeners=broker.example:{port}" in last.advice


def test_every_broker_is_tried_even_after_one_that_fails(closed_port: int) -> None:
    with kafka() as (fake, port):
        fake.brokers = ((1, "127.0.0.1", closed_port), (2, "127.0.0.1", port))
        findings = examine(port)
    assert findings[-1].detail == "broker 2 is where it says"
    assert sum(finding.verdict is Verdict.FAILED for finding in findings) == 1


def test_a_cluster_without_brokers() -> None:
    with kafka() as (fake, port):
        fake.brokers = ()
        assert "names no broker" in the_failure(examine(port)).detail
