"""`tailrace groups`: list, describe, delete."""

from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show
from tailrace.client.blocking import Admin
from tailrace.client.group_queries import GroupDescription, GroupMember
from tailrace.client.offsets import LATEST
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_LAG_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
_MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
_STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")


@app.command("list")
def list_groups(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List the groups."""
    with admin_of(bootstrap_server) as admin:
        listings = admin.list_groups()
    rows: list[Row] = [
        {"GROUP": listing.group, "TYPE": listing.type or listing.protocol_type, "STATE": listing.state}
        for listing in listings
    ]
    show(rows, ("GROUP", "TYPE", "STATE"), output)


@app.command()
def describe(
    groups: Annotated[list[str] | None, typer.Argument(metavar="[GROUP...]", show_default=False)] = None,
    members: Annotated[bool, typer.Option("--members", help="The members and what each reads.")] = False,
    state: Annotated[bool, typer.Option("--state", help="The coordinator and the state.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Describe groups, all of them without names: offsets, the ends of the logs, and the lag between them."""
    with admin_of(bootstrap_server) as admin:
        names = groups or [listing.group for listing in admin.list_groups()]
        described = [_existing(group) for group in admin.describe_groups(names)]
        if state:
            show([_state_row(group) for group in described], _STATE_COLUMNS, output)
        elif members:
            rows = [_member_row(group, member) for group in described for member in group.members]
            show(rows, _MEMBER_COLUMNS, output)
        else:
            show([row for group in described for row in _lag_rows(admin, group)], _LAG_COLUMNS, output)


def _existing(group: GroupDescription) -> GroupDescription:
    if group.state == "Dead":
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group.group!r} does not exist")
    return group


def _lag_rows(admin: Admin, group: GroupDescription) -> list[Row]:
    progress = admin.group_lag(group.group)
    owners = {partition: member for member in group.members for partition in member.assignment}
    uncommitted = [partition for partition in owners if partition not in progress]
    ends = admin.list_offsets(dict.fromkeys(uncommitted, LATEST)) if uncommitted else {}
    rows = []
    for partition in sorted({*progress, *owners}):
        committed = progress[partition][0].offset if partition in progress else None
        end = progress[partition][1] if partition in progress else ends[partition].offset
        rows.append(_lag_row(group.group, partition, committed, end, owners.get(partition)))
    return rows


def _lag_row(group: str, partition: TopicPartition, committed: int | None, end: int, owner: GroupMember | None) -> Row:
    return {
        "GROUP": group,
        "TOPIC": partition.topic,
        "PARTITION": partition.partition,
        "CURRENT-OFFSET": committed,
        "LOG-END-OFFSET": end,
        "LAG": None if committed is None else max(end - committed, 0),
        "CONSUMER-ID": owner.member_id if owner else None,
        "HOST": owner.host if owner else None,
        "CLIENT-ID": owner.client_id if owner else None,
    }


def _member_row(group: GroupDescription, member: GroupMember) -> Row:
    return {
        "GROUP": group.group,
        "CONSUMER-ID": member.member_id,
        "HOST": member.host,
        "CLIENT-ID": member.client_id,
        "#PARTITIONS": len(member.assignment),
        "ASSIGNMENT": [str(partition) for partition in sorted(member.assignment)],
    }


def _state_row(group: GroupDescription) -> Row:
    return {
        "GROUP": group.group,
        "COORDINATOR (ID)": group.coordinator_id,
        "ASSIGNMENT-STRATEGY": group.assignor,
        "STATE": group.state,
        "#MEMBERS": len(group.members),
    }


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups without members, with their offsets."""
    with admin_of(bootstrap_server) as admin:
        for group in groups:
            admin.delete_groups([group])
            say(f"deleted group {group}")
