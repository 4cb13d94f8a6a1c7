"""`tailrace certs`: a private certificate authority, and the certificates of nodes and clients, in a directory."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.output import say
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.local.certificates import NODE_DAYS, CertificateAuthority, KeyPair

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[Path, typer.Option("--directory", metavar="D", help="The directory of the PEM files.")]
Days = Annotated[int, typer.Option(min=1, max=3_650, help="The time for which certificates of nodes and clients hold.")]

_AUTHORITY, _AUTHORITY_KEY = "ca.pem", "ca-key.pem"
_SECRET, _PUBLIC = 0o600, 0o644


@app.callback()
def group() -> None:
    """Make the certificates of a cluster: its own authority, its nodes, its clients."""


@app.command("init")
def init(
    *,
    hosts: Annotated[str, typer.Option(metavar="A,B,C", help="The host names or addresses of the nodes.")],
    clients: Annotated[str, typer.Option(metavar="A,B", help="The names of clients.", show_default=False)] = "",
    directory: Directory = Path("certs"),
    days: Days = NODE_DAYS,
) -> None:
    """Make node-HOST.pem for each host and client-NAME.pem for each client, with key and certificate; and ca.pem.

    An authority that is in the directory already signs the new certificates; files that are there are not replaced.
    """
    names: dict[str, tuple[str, tuple[str, ...]]] = {}
    for host in _words(hosts):
        names[f"node-{host}.pem"] = (host, (host, "localhost", "127.0.0.1"))
    names |= {f"client-{client}.pem": (client, ()) for client in _words(clients)}
    if not _words(hosts):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "--hosts: say the addresses of the nodes, as in a,b,c")
    for name in names:
        if "/" in name or (directory / name).exists():
            why = "has a slash" if "/" in name else "is there already; remove it for a new certificate"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{directory / name} {why}")
    authority = _authority(directory)
    for name, (common_name, alternatives) in names.items():
        pair = authority.issue(common_name, hosts=tuple(dict.fromkeys(alternatives)), days=days)
        _write(directory / name, pair.keystore, _SECRET)
        say(f"{directory / name}: CN={common_name}, for {days} days")


def _authority(directory: Path) -> CertificateAuthority:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / _AUTHORITY_KEY).exists():
            pair = KeyPair(
                certificate=(directory / _AUTHORITY).read_text(), key=(directory / _AUTHORITY_KEY).read_text()
            )
            return CertificateAuthority(pair)
        authority = CertificateAuthority.found(f"authority of {directory.resolve().name}")
    except ImportError:
        detail = "making certificates needs a package more: pip install 'tailrace[certs]', in a checkout '.[certs]'"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail) from None
    except (OSError, ValueError) as fault:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the authority in {directory}: {fault}") from None
    _write(directory / _AUTHORITY, authority.pair.certificate, _PUBLIC)
    _write(directory / _AUTHORITY_KEY, authority.pair.key, _SECRET)
    say(f"{directory / _AUTHORITY}: a new authority; keep {_AUTHORITY_KEY} away from the nodes")
    return authority


def _words(text: str) -> Sequence[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _write(path: Path, text: str, mode: int) -> None:
    """Make the file, which no other user could read at any time if the mode says so."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
