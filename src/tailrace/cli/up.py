"""`tailrace up`: a local cluster, one process per node."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.node.local_cluster import LocalNode


def command(
    brokers: Annotated[
        int | None, typer.Option("--brokers", metavar="N", help="How many brokers: 3, or as the directory has them.")
    ] = None,
    racks: Annotated[
        str | None, typer.Option("--racks", metavar="A,B,...", help="The racks of the brokers, round and round.")
    ] = None,
    controllers: Annotated[
        int | None,
        typer.Option("--controllers", metavar="N", help="Nodes of their own that are controllers; else brokers are."),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where the nodes keep settings and data.")
    ] = Path("tailrace-cluster"),
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where the first broker listens, 127.0.0.1:9092 if nothing is said; the next ports are the others'."
            " Port 0 picks free ones.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting of every node; may be repeated."),
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="Defaults for trying out: topics by first use, groups without delay.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start a node again that has died.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines connect without asking who they are.")
    ] = False,
    until_stdin_closes: Annotated[
        bool,
        typer.Option(
            "--until-stdin-closes", help="Stop when standard input ends, so that no program leaves it behind."
        ),
    ] = False,
) -> None:
    """Run a cluster on this machine until SIGTERM or SIGINT: one process per node.

    Prints `tailrace ready: HOST:PORT,HOST:PORT...` when all nodes answer requests. A directory that has a cluster is
    used again as it is.
    """
    import tailrace.cli.serve
    import tailrace.node.process  # noqa: F401 - once, for all nodes: they are forked
    from tailrace.node.config import NodeConfig, parse_endpoint, read_environment, read_overrides, without_settings
    from tailrace.node.local_cluster import ClusterWish, open_cluster
    from tailrace.node.reserved_ports import ReservedPorts
    from tailrace.node.supervisor import READY, Supervisor

    given = read_environment(os.environ)
    given |= {"dev.mode": "true"} if dev else {}
    given |= {"listener.insecure.allow": "true"} if insecure else {}
    given |= read_overrides(settings or ())
    wish = ClusterWish(
        brokers=brokers,
        racks=None if racks is None else _words(racks),
        controllers=controllers,
        listen=None if listen is None else parse_endpoint(listen, setting="--listen"),
        settings=given,
    )
    with ReservedPorts() as ports:
        nodes = open_cluster(data_dir, wish, ports)
        words = " dev" if NodeConfig(nodes[0].settings).is_dev else ""
        addresses = ",".join(node.address for node in nodes if node.is_broker)
        supervisor = Supervisor(
            nodes,
            serve=_serve,
            restarts=restart,
            environment=without_settings(os.environ),
            on_ready=lambda: _say_ready(f"{READY}{addresses}{words}"),
            say=_say,
            until_stdin_closes=until_stdin_closes,
        )
        raise typer.Exit(supervisor.run())


def _serve(node: "LocalNode") -> None:
    """Be this node, as `tailrace serve` is."""
    from tailrace.cli.main import main

    main(("serve", "--until-stdin-closes", "--config", str(node.config_file)))


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise typer.BadParameter("a rack has a name", param_hint="--racks")
    return words


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _say_ready(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - scripts wait for it
