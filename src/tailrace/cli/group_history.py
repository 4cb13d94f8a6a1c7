"""`tailrace groups history`: what happened to a group lately, and why."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, show
from tailrace.client.admin.group_queries import GroupDescription
from tailrace.client.blocking import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.group_details import GroupDetails, GroupEventDetails

_COLUMNS = ("TIME", "EVENT", "CONSUMER-ID", "REASON", "COUNT")
_LIST = "`tailrace groups list` shows which there are"


def command(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the last 100 events of a group with their reasons.

    COUNT is how often an event was repeated up to TIME. The coordinator keeps them in memory: they begin anew when
    another broker takes over.
    """
    with admin_of(bootstrap_server) as admin:
        (described,) = describe_existing(admin, [group])
    if described.details is None:
        detail = f"the coordinator of group {group!r} keeps no history; only Tailrace's do"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
    show([_row(described.details, event) for event in described.details.events], _COLUMNS, output)


def describe_existing(admin: Admin, groups: Iterable[str]) -> list[GroupDescription]:
    """These groups in full. Raises KafkaError that says how to find the name of one that is not there."""
    try:
        described = admin.describe_groups(groups)
    except KafkaError as fault:
        if fault.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        raise KafkaError(fault.code, f"{fault.detail} ({_LIST})") from None
    for group in described:
        if group.state == "Dead":  # what brokers say that know no error for it
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group.group!r} ({_LIST})")
    return described


def _row(details: GroupDetails, event: GroupEventDetails) -> Row:
    at = datetime.fromtimestamp((details.now_ms - event.last_ms_ago) / 1000, UTC)
    return {
        "TIME": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "EVENT": event.kind,
        "CONSUMER-ID": event.member_id,
        "REASON": event.reason,
        "COUNT": event.count,
    }
