"""`tailrace up`: a local cluster, one process per node."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import quick_imports
from tailrace.cli.serve import Dev, Insecure, UntilStdinCloses

if TYPE_CHECKING:
    from tailrace.node.local.cluster import ClusterWish, LocalNode


def command(
    brokers: Annotated[
        int | None, typer.Option("--brokers", metavar="N", help="The number of brokers: 3, or as in the directory.")
    ] = None,
    racks: Annotated[
        str | None, typer.Option("--racks", metavar="A,B,...", help="The racks of the brokers, in turn.")
    ] = None,
    controllers: Annotated[
        int | None,
        typer.Option(
            "--controllers",
            metavar="N",
            help="The number of nodes that are controllers only; default: brokers are controllers too.",
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The directory of the nodes' settings and data.")
    ] = Path("tailrace-cluster"),
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="The address of the first broker; default: 127.0.0.1:9092. The other brokers have the next ports."
            " Port 0 picks free ports.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting of every node; may be repeated."),
    ] = None,
    dev: Dev = False,
    restart: Annotated[bool, typer.Option("--restart", help="Restart a node that has died.")] = False,
    insecure: Insecure = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Found the cluster with TLS, users, permissions and a super user, and say how to connect."
        ),
    ] = False,
    until_stdin_closes: UntilStdinCloses = False,
) -> None:
    """Run a cluster on this machine until SIGTERM or SIGINT: one process per node.

    Prints `tailrace ready: HOST:PORT,HOST:PORT...` when all nodes answer requests; `dev` follows with --dev. A
    directory that has a cluster is used again as it is. With --secure the directory gets certificates and users, in
    DIRECTORY/security, which a second start uses again.

    Settings of every node, the strongest first: --set and the other options; environment variables, as
    TAILRACE_NUM_PARTITIONS for num.partitions.
    """
    with quick_imports():
        from tailrace.node.local.cluster import ClusterWish
        from tailrace.node.settings.listeners import parse_endpoint

    wish = ClusterWish(
        brokers=brokers,
        racks=None if racks is None else _words(racks),
        controllers=controllers,
        listen=None if listen is None else parse_endpoint(listen, setting="--listen"),
        settings=_given(settings or (), dev=dev, insecure=insecure),
        secure=secure,
    )
    raise typer.Exit(_run(data_dir, wish, restarts=restart, until_stdin_closes=until_stdin_closes))


def _given(overrides: Sequence[str], *, dev: bool, insecure: bool) -> dict[str, str]:
    """The settings of every node, from the environment and the options."""
    from tailrace.node.settings.sources import read_environment, read_overrides

    given = read_environment(os.environ)
    given |= {"dev.mode": "true"} if dev else {}
    given |= {"listener.insecure.allow": "true"} if insecure else {}
    return given | read_overrides(overrides)


def _run(directory: Path, wish: "ClusterWish", *, restarts: bool, until_stdin_closes: bool) -> int:
    """Run the cluster; the exit code."""
    with quick_imports():
        import tailrace.cli.serve  # noqa: F401 - imported once for all nodes, which are forked
        from tailrace.node.local.cluster import open_cluster
        from tailrace.node.local.reserved_ports import ReservedPorts
        from tailrace.node.local.security import ClusterSecurity
        from tailrace.node.local.supervisor import READY, Supervisor
        from tailrace.node.process import preload, say_ready
        from tailrace.node.settings.config import NodeConfig
        from tailrace.node.settings.environment import without_settings

        preload()
    with ReservedPorts() as ports:
        nodes = open_cluster(directory, wish, ports)
        words = " dev" if NodeConfig(nodes[0].settings).is_dev else ""
        addresses = ",".join(node.address for node in nodes if node.is_broker)
        security = ClusterSecurity(directory)

        def on_ready() -> None:
            for line in _ways_to_connect(security.client_file, addresses) if security.exists else ():
                _say(line)
            say_ready(f"{READY}{addresses}{words}")

        supervisor = Supervisor(
            nodes,
            serve=_serve,
            restarts=restarts,
            environment=without_settings(os.environ),
            on_ready=on_ready,
            say=_say,
            until_stdin_closes=until_stdin_closes,
        )
        return supervisor.run()


def _ways_to_connect(client_file: Path, addresses: str) -> Sequence[str]:
    way = f"--bootstrap-server {addresses.split(',')[0]} --command-config {shlex.quote(os.path.relpath(client_file))}"
    return (
        f"secured: clients need TLS, a user and permissions; {client_file} has the super user admin, for you alone",
        f"  tailrace topics list {way}",
        f"  tailrace users add alice {way}",
        f"  tailrace acls add --principal User:alice --operation ALL --topic '*' --group '*' {way}",
        "  Kafka's own tools take the same file; docs/security.md has the settings of other clients",
    )


def _serve(node: "LocalNode") -> None:
    """Run this node in the forked child, as `tailrace serve` does."""
    from tailrace.cli.main import main

    main(("serve", "--until-stdin-closes", "--config", str(node.config_file)))


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise typer.BadParameter("a rack has a name", param_hint="--racks")
    return words


def _say(line: str) -> None:
    with suppress(OSError):  # stderr has no reader or no space: the nodes go on
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
