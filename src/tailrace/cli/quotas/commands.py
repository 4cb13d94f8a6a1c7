"""`tailrace quotas`: limits of users, client ids and addresses, by which a broker slows clients down."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, show
from tailrace.model.security.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    IP,
    IP_KEYS,
    USER,
    EntityFilter,
    EntityParts,
    entity_of,
)

_COLUMNS: Final = ("USER", "CLIENT-ID", "IP", "QUOTA", "VALUE")
_DEFAULT: Final = "<default>"

app = typer.Typer(no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", help="The name of a user, without `User:`.")]
ClientId = Annotated[str | None, typer.Option("--client-id", help="The client.id of clients.")]
Ip = Annotated[str | None, typer.Option("--ip", help="The address of clients.")]
UserDefault = Annotated[bool, typer.Option("--user-default", help="Users without a quota of their own.")]
ClientIdDefault = Annotated[bool, typer.Option("--client-id-default", help="Client ids without a quota of their own.")]
IpDefault = Annotated[bool, typer.Option("--ip-default", help="Addresses without a quota of their own.")]


@app.command("list")
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    user_default: UserDefault = False,
    client_id_default: ClientIdDefault = False,
    ip_default: IpDefault = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List quotas: all quotas, or the quotas of the named entity, alone and together with other types."""
    parts = _parts(user, client_id, ip, user_default, client_id_default, ip_default)
    with admin_of(bootstrap_server) as admin:
        found = admin.describe_client_quotas(EntityFilter(parts))
    show(_rows(found), _COLUMNS, output)


@app.command("set")
def set_quotas(
    quotas: Annotated[
        list[str], typer.Argument(metavar="QUOTA=VALUE", help="Such as producer_byte_rate=1048576.", show_default=False)
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    user_default: UserDefault = False,
    client_id_default: ClientIdDefault = False,
    ip_default: IpDefault = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Set quotas of a user, a client id, a client id of a user, or an address.

    Quotas of users and client ids, for each broker: producer_byte_rate and consumer_byte_rate in bytes per second,
    request_percentage of a thread. controller_mutation_rate, and connection_creation_rate of addresses, are kept for
    later releases and have no effect in this release.
    """
    entity = _entity(_parts(user, client_id, ip, user_default, client_id_default, ip_default))
    values: dict[str, float | None] = {}
    for quota in quotas:
        key, separator, value = quota.partition("=")
        try:
            values[key] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{quota!r} is not like producer_byte_rate=1048576") from None
        if not separator:
            raise typer.BadParameter(f"{quota!r} has no value")
    _alter(bootstrap_server, {entity: values})
    show(_rows({entity: values}), _COLUMNS, output)


@app.command()
def remove(
    quotas: Annotated[list[str] | None, typer.Argument(metavar="QUOTA", help="Such as producer_byte_rate.")] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    user_default: UserDefault = False,
    client_id_default: ClientIdDefault = False,
    ip_default: IpDefault = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Remove the named quotas of an entity; without names all quotas of the entity."""
    entity = _entity(_parts(user, client_id, ip, user_default, client_id_default, ip_default))
    keys: Sequence[str] = quotas or (IP_KEYS if entity[0][0] == IP else CLIENT_KEYS)
    removed: dict[str, float | None] = dict.fromkeys(keys)
    _alter(bootstrap_server, {entity: removed})
    show(_rows({entity: removed}), _COLUMNS[:4], output)


def _alter(bootstrap_server: str, changes: Mapping[EntityParts, Mapping[str, float | None]]) -> None:
    with admin_of(bootstrap_server) as admin:
        admin.alter_client_quotas(changes)


def _parts(user: str | None, client_id: str | None, ip: str | None, *defaults: bool) -> dict[str, str | None]:
    parts: dict[str, str | None] = {}
    for kind, name, is_default in zip((USER, CLIENT_ID, IP), (user, client_id, ip), defaults, strict=True):
        if name is not None and is_default:
            raise typer.BadParameter(f"--{kind} and --{kind}-default exclude each other")
        if name is not None or is_default:
            parts[kind] = name
    return parts


def _entity(parts: Mapping[str, str | None]) -> EntityParts:
    if not parts:
        raise typer.BadParameter("name --user, --client-id or --ip, or their defaults")
    return entity_of(parts)


def _rows(found: Mapping[EntityParts, Mapping[str, float | None]]) -> list[Row]:
    rows: list[Row] = []
    for entity, quotas in found.items():
        names = {kind: _DEFAULT if name is None else name for kind, name in entity}
        owner: Row = {"USER": names.get(USER, ""), "CLIENT-ID": names.get(CLIENT_ID, ""), "IP": names.get(IP, "")}
        rows += [{**owner, "QUOTA": key, "VALUE": value} for key, value in sorted(quotas.items())]
    return sorted(rows, key=lambda row: tuple(str(row[column]) for column in _COLUMNS[:4]))
