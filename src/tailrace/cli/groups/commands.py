"""`tailrace groups`: list, describe, history, reset-offsets, move, delete."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.completion import Group, group_names, topic_names
from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show
from tailrace.cli.times import parse_time
from tailrace.client.blocking.admin import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.settings import nearest
from tailrace.protocol.messages.groups import GroupDetails, GroupEventDetails

if TYPE_CHECKING:  # the help text and the completion of words need no groups
    from tailrace.client.group.described_groups import GroupDescription

_COLUMNS = ("TIME", "EVENT", "CONSUMER-ID", "REASON", "COUNT")
_RESET_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET")
_MOVE_COLUMNS = (*_RESET_COLUMNS, "RANGES")
_LIST = "`tailrace groups list` shows which there are"


def command(
    group: Group,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the last 100 events of a group with their reasons.

    COUNT is the number of repetitions of an event up to TIME. The coordinator keeps the events in memory: they are lost
    when another broker becomes coordinator.
    """
    with admin_of(bootstrap_server) as admin:
        (described,) = describe_existing(admin, [group])
    if described.details is None:
        detail = f"the coordinator of group {group!r} keeps no history; only Tailrace's do"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
    show([_row(described.details, event) for event in described.details.events], _COLUMNS, output)


def describe_existing(admin: Admin, groups: Collection[str]) -> "list[GroupDescription]":
    """The descriptions of these groups. Raises KafkaError for a missing group, with the command that lists groups."""
    try:
        described = admin.describe_groups(groups)
    except KafkaError as fault:
        if fault.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        raise _absent(admin, groups, fault.detail) from None
    for group in described:
        if group.state == "Dead":  # the answer of brokers without an error for a missing group
            raise _absent(admin, [group.group], f"there is no group {group.group!r}")
    return described


def _absent(admin: Admin, groups: Collection[str], detail: str) -> KafkaError:
    """The error for a missing group among these groups, with the near name of a group that exists."""
    known = {listing.group for listing in admin.list_groups()}
    missing = [group for group in groups if group not in known]
    near = nearest(missing[0], sorted(known)) if missing else None
    hint = f"did you mean {near!r}? {_LIST}" if near else _LIST
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{detail} ({hint})")


def _row(details: GroupDetails, event: GroupEventDetails) -> Row:
    at = datetime.fromtimestamp((details.now_ms - event.last_ms_ago) / 1000, UTC)
    return {
        "TIME": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "EVENT": event.kind,
        "CONSUMER-ID": event.member_id,
        "REASON": event.reason,
        "COUNT": event.count,
    }


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


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
    if not rows:
        _say_none()


def _say_none() -> None:
    say("there are no groups yet (`tailrace consume TOPIC --group NAME` makes a group)")


@app.command()
def describe(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP...]", show_default=False, autocompletion=group_names)
    ] = None,
    members: Annotated[bool, typer.Option("--members", help="The members and their partitions.")] = False,
    state: Annotated[bool, typer.Option("--state", help="The coordinator and the state.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show committed offsets, log ends, lag and the health of the members.

    Without names, of all groups. LAG counts records from the log start on, of a view those of the view partition alone;
    LOST counts records deleted unread. LAG-MS is the age of the first record that is not done. VERDICT: idle, working,
    slow, stuck or gone.

    Of groups that split partitions by key: AHEAD counts, about, the records done beyond the committed offset; RANGES is
    the number of ranges stored for them, and the limit; OLDEST-GAP has the key hashes that hold the committed offset
    back, and GAP-MS the time for which it has not moved.

    Of groups that read views: SLOWEST-OF names the partition of the topic of which this view partition has the largest
    lag.

    Of both: EPOCH is the owner's member epoch (KIP-848), FIRST-KEY the key of the first record that is not done, whose
    age is LAG-MS. RUNNING-MS is the time for which a handler has had the record with RUNNING-KEY.
    """
    from tailrace.cli.groups.rows import MEMBER_COLUMNS, STATE_COLUMNS, member_row, state_row
    from tailrace.cli.groups.states import states_of

    if members and state:
        raise typer.BadParameter("say either --members or --state", param_hint="--members")
    with admin_of(bootstrap_server) as admin:
        names = groups or [listing.group for listing in admin.list_groups()]
        described = describe_existing(admin, dict.fromkeys(names))
        if not described:
            _say_none()
        if state:
            show([state_row(group) for group in described], STATE_COLUMNS, output)
        elif members:
            states, fault = states_of(admin, described, has_progress=False)
            rows = [member_row(state, member) for state in states for member in state.group.members]
            show(rows, MEMBER_COLUMNS, output)
            _say_states(described)
            if fault is not None:
                raise fault
        else:
            _show_lag(admin, described, output)


def _say_states(described: "Iterable[GroupDescription]") -> None:
    """Print the reason why a partition may have no member, with the text of Kafka's own tool."""
    for group in described:
        if group.state == "Empty":
            say(f"Consumer group '{group.group}' has no active members.")
        elif group.state.endswith("Rebalance"):
            say(f"Warning: Consumer group '{group.group}' is rebalancing.")


def _show_lag(admin: Admin, described: "list[GroupDescription]", output: Format) -> None:
    from tailrace.cli.groups.rows import lag_columns, lag_rows
    from tailrace.cli.groups.states import states_of

    states, fault = states_of(admin, described, has_progress=True)
    rows = [row for state in states for row in lag_rows(state)]
    show(rows, lag_columns(states, rows), output)
    if any(known.count is not None and not known.count.is_exact for state in states for known in state.health.values()):
        say("LAG of views with a long backlog is estimated, from a sample of the unread records")
    _say_states(described)
    if fault is not None:
        raise fault


app.command("history")(command)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME[:PARTITION]",
            help="Only this; may be repeated. Default: all with an offset.",
            autocompletion=topic_names,
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest records.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end, after the newest records.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record at or after 2026-01-31T12:00 (UTC)."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="By this number of offsets; back if negative.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Change the offsets; otherwise they are only shown.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Change the committed offsets of a group without members. Without --execute they are only shown."""
    targets = (to_earliest or None, to_latest or None, to_offset, to_datetime, shift_by)
    if sum(target is not None for target in targets) != 1:
        names = "--to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        raise typer.BadParameter(f"say one of {names}")
    time_ms = None if to_datetime is None else parse_time(to_datetime, "--to-datetime")
    from tailrace.client.offsets import EARLIEST, LATEST

    to = EARLIEST if to_earliest else LATEST if to_latest else time_ms
    with admin_of(bootstrap_server) as admin:
        partitions = _partitions(admin, topics) if topics else None
        if partitions is None:  # a reset of named partitions makes the group
            describe_existing(admin, [group])
        resets = admin.reset_offsets(group, partitions, to=to, offset=to_offset, shift_by=shift_by, dry_run=not execute)
    rows: list[Row] = [
        {
            "GROUP": group,
            "TOPIC": partition.topic,
            "PARTITION": partition.partition,
            "CURRENT-OFFSET": reset.before,
            "NEW-OFFSET": reset.after,
        }
        for partition, reset in resets.items()
    ]
    show(rows, _RESET_COLUMNS, output)
    if not execute:
        say("nothing has been changed: repeat it with --execute")


def _partitions(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """The partitions of these words, NAME or NAME:PARTITION."""
    found: list[TopicPartition] = []
    for word in topics:
        name, _, number = word.partition(":")
        if number and not number.isdecimal():
            raise typer.BadParameter(f"{word!r} is not NAME or NAME:PARTITION", param_hint="--topic")
        found += admin.topic_partitions(name, [int(number)] if number else None)
    return found


@app.command()
def move(
    group: Group,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM", show_default=False, autocompletion=topic_names, help="A topic, or a view of it."
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO", show_default=False, autocompletion=topic_names, help="A view of the topic, or the topic."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show the new progress.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Carry the progress of a group without members from a topic to its view T.shared-N, or back.

    No record is done again, and none is left out. CURRENT-OFFSET is the committed offset in TO so far, and is replaced;
    NEW-OFFSET is the first offset that is not done. RANGES counts the ranges of done records beyond it. The offsets in
    FROM are deleted.
    """
    with admin_of(bootstrap_server) as admin:
        moves = admin.move_group(group, source, target, dry_run=dry_run)
    rows: list[Row] = [
        {
            "GROUP": group,
            "TOPIC": partition.topic,
            "PARTITION": partition.partition,
            "CURRENT-OFFSET": found.before,
            "NEW-OFFSET": found.after,
            "RANGES": len(found.ranges),
        }
        for partition, found in sorted(moves.items())
    ]
    show(rows, _MOVE_COLUMNS, output)
    if any(found.ranges for found in moves.values()):
        say(
            "handlers (`tailrace work`, KeyedConsumer) skip the records in RANGES; other clients do these records again"
        )
    if dry_run:
        say("nothing has been changed: repeat it without --dry-run")


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False, autocompletion=group_names)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete groups without members, with their offsets."""
    deleted: list[Row] = []
    with admin_of(bootstrap_server) as admin:
        for group in groups:
            admin.delete_groups([group])
            deleted.append({"GROUP": group})
            say(f"deleted group {group}")
    if output is Format.JSON:
        show(deleted, ("GROUP",), output)
