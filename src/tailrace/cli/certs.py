"""`tailrace certs`: a private certificate authority, and the certificates of nodes and clients, in a directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.output import say
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.local.certificate_directory import AUTHORITY, AUTHORITY_KEY, CertificateDirectory
from tailrace.node.local.certificates import NODE_DAYS

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[Path, typer.Option("--directory", metavar="D", help="The directory of the PEM files.")]
Days = Annotated[int, typer.Option(min=1, max=3_650, help="The time for which certificates of nodes and clients hold.")]


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
    certificates = CertificateDirectory(directory)
    certificates.found()
    if certificates.is_new:
        say(f"{directory / AUTHORITY}: a new authority; keep {AUTHORITY_KEY} away from the nodes")
    for name, (common_name, alternatives) in names.items():
        written = certificates.issue(name, common_name, alternatives, days=days)
        say(f"{written}: CN={common_name}, for {days} days")


def _words(text: str) -> Sequence[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
