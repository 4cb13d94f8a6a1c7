"""`tailrace users`: users with passwords, by which clients and tools authenticate themselves on listeners with SASL."""

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated, Final

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, show
from tailrace.client.users import DEFAULT_MECHANISM, checked_password, mechanism_of
from tailrace.model.security.scram import MOST_ITERATIONS

_COLUMNS: Final = ("USER", "MECHANISM", "ITERATIONS")

app = typer.Typer(no_args_is_help=True)

Mechanism = Annotated[str, typer.Option("--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512.")]


@app.command("list")
def list_users(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List the users and the mechanisms of their passwords."""
    with admin_of(bootstrap_server) as admin:
        users = admin.list_users()
    rows: list[Row] = [
        {"USER": user.name, "MECHANISM": mechanism, "ITERATIONS": iterations}
        for user in users
        for mechanism, iterations in user.mechanisms.items()
    ]
    show(rows, _COLUMNS, output)


@app.command()
def add(
    name: str,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="A file with the password; `-` is stdin.", allow_dash=True)
    ] = None,
    mechanism: Mechanism = DEFAULT_MECHANISM,
    iterations: Annotated[int, typer.Option("--iterations", help="Rounds of PBKDF2.")] = MOST_ITERATIONS,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Make a first user of a new cluster, in a controller's directory, before its first start."
        ),
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="With --offline: the controller's settings.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Make a user, or give a user another password.

    Without a file, the terminal asks for the password. A password is no argument: other users of the machine see
    arguments. Run --offline for each controller of the new cluster: the first leader writes its users into the log.
    """
    if offline != (config is not None):
        raise typer.BadParameter("--offline and --config FILE belong together", param_hint="--offline")
    password = _password(password_file)
    if config is not None:
        _add_offline(config, name, password, mechanism, iterations)
    else:
        with admin_of(bootstrap_server) as admin:
            admin.set_password(name, password, mechanism=mechanism, iterations=iterations)
    show([{"USER": name, "MECHANISM": mechanism.upper(), "ITERATIONS": iterations}], _COLUMNS, output)


@app.command()
def delete(
    name: str,
    mechanism: Mechanism = DEFAULT_MECHANISM,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete a user's password for a mechanism. Open connections of the user stay open."""
    with admin_of(bootstrap_server) as admin:
        admin.delete_password(name, mechanism=mechanism)
    show([{"USER": name, "MECHANISM": mechanism.upper()}], _COLUMNS[:2], output)


def _add_offline(config: Path, name: str, password: str, mechanism: str, iterations: int) -> None:
    from tailrace.cli.files.offline_quorum import add_founding_user

    kind = mechanism_of(mechanism)
    checked_password(password)
    add_founding_user(config, name, password, mechanism=kind, iterations=iterations)


def _password(file: Path | None) -> str:
    if file is None:
        return getpass("Password: ")
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return text.rstrip("\r\n")
