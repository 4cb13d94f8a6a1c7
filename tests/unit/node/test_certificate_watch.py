"""Certificates near their end, and behind it: the log, the metric, and connections that go on."""

import asyncio
import logging
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace import Admin
from tailrace.model.errors import KafkaError
from tailrace.net.certificate_times import end_of_validity
from tailrace.net.tls import Pem, TlsConfig, TlsContexts
from tailrace.node.certificate_watch import CertificateWatch
from tailrace.node.local.certificates import CertificateAuthority
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from testkit.nodes.certificates import TeamCertificates

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Certificate:
    def __init__(self, ends: datetime | None) -> None:
        self.ends = ends


def lines_of(caplog: pytest.LogCaptureFixture, *, days: float, warning_days: int = 30) -> list[str]:
    """The log of a look at a certificate that ends in these days."""
    caplog.clear()
    certificates = {"CLIENTS": Certificate(NOON + timedelta(days=days)), "PLAIN": Certificate(None)}
    with caplog.at_level(logging.INFO, "tailrace.node"):
        CertificateWatch(certificates, warning_days=warning_days, now=lambda: NOON).look()
    return caplog.messages


def test_the_log_says_days_before_that_a_certificate_expires(caplog: pytest.LogCaptureFixture) -> None:
    assert lines_of(caplog, days=30) == []
    (line,) = lines_of(caplog, days=29.5)
    assert line.startswith("event=certificate-expires listener=CLIENTS days=29 ")
    assert lines_of(caplog, days=3, warning_days=2) == []
    for days in (0, -5):
        (line,) = lines_of(caplog, days=days)
        assert line.startswith("event=certificate-expired listener=CLIENTS")


def test_the_seconds_left_are_of_certificates_with_an_end() -> None:
    certificates = {"A": Certificate(NOON - timedelta(seconds=5)), "B": Certificate(None)}
    assert list(CertificateWatch(certificates, warning_days=1, now=lambda: NOON).seconds_left()) == [("A", -5.0)]


@pytest.mark.parametrize("days", [1, 365, 30_000])
def test_the_end_of_a_certificate_is_that_of_another_reader(days: int) -> None:
    from cryptography import x509

    pair = CertificateAuthority.found("team").issue("node", hosts=["a.example"], days=days)
    known = x509.load_pem_x509_certificate(pair.certificate.encode()).not_valid_after_utc
    assert end_of_validity(pair.keystore) == known


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMAAw\n-----END CERTIFICATE-----"])
def test_a_text_without_an_end_has_none(text: str) -> None:
    assert end_of_validity(text) is None


def test_a_renewed_certificate_has_a_new_end(tmp_path: Path) -> None:
    team = TeamCertificates(tmp_path)
    contexts = TlsContexts(TlsConfig(certificate=Pem(setting="x", location=str(team.node))), is_server=True)
    first = contexts.ends
    fresh = tmp_path / "fresh"
    fresh.write_text(team.authority.issue("node", hosts=["localhost"], days=2).keystore)
    fresh.replace(team.node)
    contexts.current(1_000.0)
    assert first is not None
    assert contexts.ends is not None
    assert contexts.ends < first


def test_a_node_with_an_expired_certificate_says_so_and_keeps_its_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    team = TeamCertificates(tmp_path)
    config = NodeConfig(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(team.node),
            "metrics.listener": "127.0.0.1:0",
            "log.dirs": str(tmp_path / "data"),
        }
    )

    def use(port: int) -> None:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SSL",
            "ssl.truststore.location": str(team.trusted),
        }
        with Admin(settings) as admin:
            admin.list_topics()
            fresh = tmp_path / "fresh"
            expired = datetime.now(UTC) - timedelta(days=9)
            fresh.touch(mode=0o600)
            fresh.write_text(team.authority.issue("node", hosts=["127.0.0.1"], days=1, begins=expired).keystore)
            fresh.replace(team.node)
            refused = ""
            while "expired" not in refused:  # the node looks at the file once a second
                try:
                    with Admin({**settings, "bootstrap.timeout.ms": 2_000}) as other:
                        other.list_topics()
                except KafkaError as fault:
                    refused = str(fault)
            admin.list_topics()

    def page_of(host: str, port: int) -> str:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    async def live() -> None:
        node = Node(config, on_fatal=lambda error: pytest.fail(str(error)))
        await node.start()
        try:
            await asyncio.to_thread(use, node.advertised[0].port)
            assert node.metrics_address is not None
            page = await asyncio.to_thread(page_of, *node.metrics_address)
            assert 'tailrace_certificate_remaining_seconds{listener="SSL"} -' in page
            node._look_at_certificates()
        finally:
            await node.stop()

    with caplog.at_level(logging.INFO, "tailrace.node"):
        asyncio.run(live())
    assert any("event=certificate-expired listener=SSL" in line for line in caplog.messages)
