"""`tailrace certs`: the files, their rights, and what is refused."""

import ssl
from pathlib import Path

import pytest

from tailrace.net.tls import Pem, TlsConfig, client_context, server_context
from testkit.programs.commands import CommandResult, run_command


def _init(directory: Path, capture: pytest.CaptureFixture[str], *words: str) -> CommandResult:
    return run_command(("certs", "init", "--directory", str(directory), *words), capture)


def test_certificates_of_nodes_and_clients_come_from_one_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = _init(tmp_path / "certs", capsys, "--hosts", "a,10.0.0.1", "--clients", "alice")
    assert first.code == 0
    assert "ca.pem: a new authority" in first.err
    assert _init(tmp_path / "certs", capsys, "--hosts", "b").code == 0
    files = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()}
    secret = ("ca-key.pem", "node-a.pem", "node-10.0.0.1.pem", "node-b.pem", "client-alice.pem")
    assert files == {"ca.pem": 0o644, **dict.fromkeys(secret, 0o600)}
    trusted = Pem(setting="t", location=str(tmp_path / "certs" / "ca.pem"))
    for name in ("node-a.pem", "node-10.0.0.1.pem", "node-b.pem"):
        keystore = Pem(setting="k", location=str(tmp_path / "certs" / name))
        host = name.removeprefix("node-").removesuffix(".pem")
        assert _is_accepted(TlsConfig(certificate=keystore), TlsConfig(trusted=trusted), host)
    alice = Pem(setting="k", location=str(tmp_path / "certs" / "client-alice.pem"))
    assert not _is_accepted(TlsConfig(certificate=alice), TlsConfig(trusted=trusted), "alice")


def _is_accepted(server: TlsConfig, client: TlsConfig, host: str) -> bool:
    """Whether a client accepts the server under this name."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server_context(server).wrap_bio(to_server, to_client, server_side=True)
    theirs = client_context(client).wrap_bio(to_client, to_server, server_hostname=host)
    try:
        for _ in range(4):
            for end in (theirs, ours):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError:
        return False
    return theirs.cipher() is not None


@pytest.mark.parametrize(
    ("words", "text"),
    [(("--hosts", "a"), "is there already"), (("--hosts", ","), "say the addresses"), (("--hosts", "../x"), "slash")],
)
def test_no_file_is_replaced_or_written_elsewhere(
    words: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _init(tmp_path, capsys, "--hosts", "a").code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused = _init(tmp_path, capsys, *words)
    assert refused.code == 1
    assert text in refused.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca-key.pem").write_text("x")
    assert "the authority in" in _init(tmp_path, capsys, "--hosts", "a").err
