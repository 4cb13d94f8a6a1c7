"""`tailrace brokers`: list, describe, alter, unregister."""

from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show, write
from tailrace.cli.topics.setting_changes import Configs, DeletedConfigs, changes_of, check_known
from tailrace.client.admin.cluster import BrokerListing
from tailrace.client.admin.log_dirs import LogDirectorySize
from tailrace.client.blocking.admin import Admin
from tailrace.model.errors import ErrorCode, KafkaError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = ("ID", "HOST", "PORT", "RACK", "STATE", "CONTROLLER")
"""The columns of kafka-cluster, then the columns of Tailrace."""
_DIRECTORY_COLUMNS = ("LOG-DIR", "PARTITIONS", "SIZE-BYTES", "USABLE-BYTES", "TOTAL-BYTES", "ERROR")
_DEFAULT_CONFIG = 5


@app.command("list")
def list_brokers(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List the brokers.

    A fenced broker is registered, but has stopped or sends no heartbeats; a fenced broker leads no partition.
    """
    with admin_of(bootstrap_server) as admin:
        show([_row(broker) for broker in admin.list_brokers()], _COLUMNS, output)


def _row(broker: BrokerListing) -> Row:
    state = {True: "fenced", False: "unfenced", None: None}[broker.is_fenced]
    return {
        "ID": broker.node_id,
        "HOST": broker.host,
        "PORT": broker.port,
        "RACK": broker.rack,
        "STATE": state,
        "CONTROLLER": broker.is_controller,
    }


@app.command()
def describe(
    broker_ids: Annotated[list[int] | None, typer.Argument(metavar="[ID...]", show_default=False)] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show log directories and settings.

    Without ids, of all brokers. Defaults are left out, and so are directories and settings of fenced brokers.
    """
    with admin_of(bootstrap_server) as admin:
        listed = {int(broker.node_id): broker for broker in admin.list_brokers()}
        chosen = [_known(listed, broker_id) for broker_id in dict.fromkeys(broker_ids or listed)]
        described = [(broker, _directories(admin, broker), _configs(admin, broker)) for broker in chosen]
    if output is Format.JSON:
        rows = [
            {**_row(broker), "LOG-DIRS": directories, "CONFIGS": configs} for broker, directories, configs in described
        ]
        show(rows, (), output)
        return
    for number, (broker, directories, configs) in enumerate(described):
        if number:
            write("")
        settings = ",".join(f"{name}={value}" for name, value in configs.items())
        show([_row(broker)], _COLUMNS, output)
        write(f"Configs: {settings}".rstrip())
        if directories:
            show(directories, _DIRECTORY_COLUMNS, output)


def _known(listed: dict[int, BrokerListing], broker_id: int) -> BrokerListing:
    if broker_id not in listed:
        detail = f"there is no broker {broker_id} (`tailrace brokers list` shows which there are)"
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, detail)
    return listed[broker_id]


def _directories(admin: Admin, broker: BrokerListing) -> list[Row]:
    if broker.is_fenced:
        return []
    return [_directory_row(each) for each in admin.describe_log_dirs([broker.node_id])[broker.node_id]]


def _directory_row(directory: LogDirectorySize) -> Row:
    return {
        "LOG-DIR": directory.path,
        "PARTITIONS": len(directory.partitions),
        "SIZE-BYTES": sum(partition.size_bytes for partition in directory.partitions.values()),
        "USABLE-BYTES": directory.usable_bytes if directory.usable_bytes >= 0 else None,
        "TOTAL-BYTES": directory.total_bytes if directory.total_bytes >= 0 else None,
        "ERROR": directory.error.name if directory.error else None,
    }


def _configs(admin: Admin, broker: BrokerListing) -> dict[str, str]:
    """The broker's own settings, wherever they were set."""
    if broker.is_fenced:
        return {}
    from tailrace.client.admin.configs import BROKER, CONFIG_SOURCES

    entries = admin.describe_configs(BROKER, str(broker.node_id))
    return {
        entry.name: "(hidden)" if entry.is_sensitive else entry.value or ""
        for entry in entries
        if entry.source in CONFIG_SOURCES and entry.source != _DEFAULT_CONFIG
    }


@app.command()
def alter(
    broker_id: Annotated[int | None, typer.Argument(metavar="[ID]", show_default=False)] = None,
    config: Configs = None,
    delete_config: DeletedConfigs = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Change settings while brokers run: of a broker, or without an id of all brokers.

    A setting of a broker counts before the setting of all brokers. docs/settings.md marks these settings with *.
    """
    changes = changes_of(config, delete_config)
    if not changes:
        raise typer.BadParameter("nothing to change: name --config or --delete-config")
    from tailrace.client.admin.configs import BROKER

    with admin_of(bootstrap_server) as admin:
        if broker_id is not None:
            _known({int(broker.node_id): broker for broker in admin.list_brokers()}, broker_id)
        if delete_config:
            served = next(broker for broker in admin.list_brokers() if not broker.is_fenced)
            check_known(admin.describe_configs(BROKER, str(served.node_id)), delete_config, kind="broker")
        admin.alter_configs(BROKER, "" if broker_id is None else str(broker_id), changes)
    subject = "all brokers" if broker_id is None else f"broker {broker_id}"
    say(f"altered the settings of {subject}")
    if output is Format.JSON:
        show([{"ID": broker_id, "CHANGES": changes}], ("ID", "CHANGES"), output)


@app.command()
def unregister(
    broker_id: Annotated[int, typer.Argument(metavar="ID", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Remove the registration of a broker that has stopped and will not come back.

    Its partitions lose their replicas on it. A broker that starts with this id later is a new broker.
    """
    with admin_of(bootstrap_server) as admin:
        admin.unregister_broker(broker_id)
    say(f"unregistered broker {broker_id}")
    if output is Format.JSON:
        show([{"ID": broker_id}], ("ID",), output)
