"""`tailrace groups`: list, describe, history, reset-offsets, move, delete."""

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Cell, Format, Output, Row, admin_of, say, show
from tailrace.cli.times import parse_time
from tailrace.client.admin.group_health import PartitionHealth, progress_of, verdict
from tailrace.client.blocking import Admin, KeyProgress
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.client.offsets import EARLIEST, LATEST
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import parse_view
from tailrace.protocol.messages.groups import GroupDetails, GroupEventDetails

_COLUMNS = ("TIME", "EVENT", "CONSUMER-ID", "REASON", "COUNT")
_RESET_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET")
_MOVE_COLUMNS = (*_RESET_COLUMNS, "RANGES")
_LIST = "`tailrace groups list` shows which there are"


def command(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
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


def describe_existing(admin: Admin, groups: Iterable[str]) -> list[GroupDescription]:
    """The descriptions of these groups. Raises KafkaError for a missing group, with the command that lists groups."""
    try:
        described = admin.describe_groups(groups)
    except KafkaError as fault:
        if fault.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        raise KafkaError(fault.code, f"{fault.detail} ({_LIST})") from None
    for group in described:
        if group.state == "Dead":  # the answer of brokers without an error for a missing group
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
    "LAG-MS",
    "LOST",
    "VERDICT",
)
"""The columns of Kafka's tool, then the columns of Tailrace."""
_RANGE_COLUMNS = ("AHEAD", "RANGES", "OLDEST-GAP", "GAP-MS")
"""Columns of groups that split partitions by key; shown if there is such a group."""
_VIEW_COLUMNS = ("SLOWEST-OF",)
"""Columns of groups that read views; shown if a partition of theirs is behind."""
_MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT", "VERDICT")
_STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
_ENDS_TIMEOUT_MS = 5_000


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
    groups: Annotated[list[str] | None, typer.Argument(metavar="[GROUP...]", show_default=False)] = None,
    members: Annotated[bool, typer.Option("--members", help="The members and their partitions.")] = False,
    state: Annotated[bool, typer.Option("--state", help="The coordinator and the state.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show committed offsets, log ends, lag and the health of the members.

    Without names, of all groups. LAG counts records from the log start on; LOST counts records deleted unread.
    LAG-MS is the age of the first unread record. VERDICT: idle, working, slow, stuck or gone.

    Of groups that split partitions by key: AHEAD counts, about, the records done beyond the committed offset; RANGES is
    the number of ranges stored for them, and the limit; OLDEST-GAP has the key hashes that hold the committed offset
    back, and GAP-MS the time for which it has not moved.

    Of groups that read views: SLOWEST-OF names the partition of the topic of which this view partition has the largest
    lag.
    """
    if members and state:
        raise typer.BadParameter("say either --members or --state", param_hint="--members")
    with admin_of(bootstrap_server) as admin:
        names = groups or [listing.group for listing in admin.list_groups()]
        described = describe_existing(admin, dict.fromkeys(names))
        if not described:
            _say_none()
        if state:
            show([_state_row(group) for group in described], _STATE_COLUMNS, output)
        elif members:
            health, fault = _health_of(admin, described)
            rows = [_member_row(group, member, health[group.group]) for group in described for member in group.members]
            show(rows, _MEMBER_COLUMNS, output)
            _say_states(described)
            if fault is not None:
                raise fault
        else:
            _show_lag(admin, described, output)


def _say_states(described: Iterable[GroupDescription]) -> None:
    """Print the reason why a partition may have no member, with the text of Kafka's own tool."""
    for group in described:
        if group.state == "Empty":
            say(f"Consumer group '{group.group}' has no active members.")
        elif group.state.endswith("Rebalance"):
            say(f"Warning: Consumer group '{group.group}' is rebalancing.")


Health = Mapping[TopicPartition, PartitionHealth]


def _show_lag(admin: Admin, described: list[GroupDescription], output: Format) -> None:
    health, fault = _health_of(admin, described)
    ranged = {group.group: _progress(admin, group) for group in described}
    rows = [row for group in described for row in _lag_rows(group, health[group.group], ranged[group.group])]
    columns = [*_LAG_COLUMNS]
    if any(ranged.values()):
        columns += _RANGE_COLUMNS
    if any(row["SLOWEST-OF"] for row in rows):
        columns += _VIEW_COLUMNS
    show(rows, columns, output)
    _say_states(described)
    if fault is not None:
        raise fault


def _health_of(admin: Admin, described: list[GroupDescription]) -> tuple[dict[str, Health], KafkaError | None]:
    """The health of each group's partitions. With a fault, some have only the committed offset."""
    health: dict[str, Health] = {}
    committed = {group.group: _committed(admin, group) for group in described}
    counts: Mapping[str, int] = {}
    if any(committed.values()):
        names = sorted({partition.topic for offsets in committed.values() for partition in offsets})
        counts = {topic.name: len(topic.partitions) for topic in admin.existing_topics(names)}
    fault: KafkaError | None = None
    for group in described:
        offsets = committed[group.group]
        known: Health = {}
        alive = {p: offset for p, offset in offsets.items() if p.partition < counts.get(p.topic, 0)}
        if alive and fault is None:
            try:
                known = admin.partition_health(alive, group.details, timeout_ms=_ENDS_TIMEOUT_MS)
            except KafkaError as error:
                fault = error
        health[group.group] = {p: known.get(p, PartitionHealth(committed=offset)) for p, offset in offsets.items()}
    return health, fault


def _committed(admin: Admin, group: GroupDescription) -> dict[TopicPartition, int | None]:
    """The committed offset of each partition, None for an assigned partition without an offset."""
    offsets: dict[TopicPartition, int | None] = {
        partition: committed.offset for partition, committed in admin.group_offsets(group.group).items()
    }
    for member in group.members:
        for partition in member.assignment:
            offsets.setdefault(partition, None)
    return offsets


def _progress(admin: Admin, group: GroupDescription) -> dict[TopicPartition, KeyProgress]:
    """The progress by offsets and key hashes in the partitions in which there is some."""
    if group.details is None or not group.details.max_ranges:
        return {}
    return {partition: found for partition, found in admin.group_progress(group.group).items() if found.ranges}


def _lag_rows(group: GroupDescription, health: Health, ranged: Mapping[TopicPartition, KeyProgress]) -> list[Row]:
    owners = {partition: member for member in group.members for partition in member.assignment}
    slowest = {partition: stored for stored, partition in _slowest(health).items()}
    rows: list[Row] = [
        {
            **_lag_row(group, partition, health, owners.get(partition)),
            **_range_cells(group, ranged.get(partition), partition),
            "SLOWEST-OF": str(slowest[partition]) if partition in slowest else None,
        }
        for partition in sorted(health)
    ]
    idle = (member for member in group.members if not member.assignment)
    return [
        *rows,
        *(
            {
                "GROUP": group.group,
                **dict.fromkeys(_LAG_COLUMNS[1:6]),
                **_member_cells(member),
                "LAG-MS": None,
                "LOST": None,
                "VERDICT": _verdict(group, member, health),
                **dict.fromkeys((*_RANGE_COLUMNS, *_VIEW_COLUMNS)),
            }
            for member in idle
        ),
    ]


def _slowest(health: Health) -> dict[TopicPartition, TopicPartition]:
    """By partition of a topic, the view partition with the largest lag, if any is behind."""
    found: dict[TopicPartition, tuple[int, TopicPartition]] = {}
    for partition, state in sorted(health.items()):
        view = parse_view(partition.topic)
        if view is None or not state.lag:
            continue
        stored = TopicPartition(view.topic, partition.partition // view.fan_out)
        if stored not in found or found[stored][0] < state.lag:
            found[stored] = (state.lag, partition)
    return {stored: partition for stored, (_, partition) in found.items()}


def _lag_row(group: GroupDescription, partition: TopicPartition, health: Health, owner: DescribedMember | None) -> Row:
    found = health[partition]
    return {
        "GROUP": group.group,
        "TOPIC": partition.topic,
        "PARTITION": partition.partition,
        "CURRENT-OFFSET": found.committed,
        "LOG-END-OFFSET": found.end_offset,
        "LAG": found.lag,
        **_member_cells(owner),
        "LAG-MS": found.lag_ms(_now_ms(group)),
        "LOST": found.lost,
        "VERDICT": None if owner is None else _verdict(group, owner, health),
    }


def _range_cells(group: GroupDescription, found: KeyProgress | None, partition: TopicPartition) -> dict[str, Cell]:
    if found is None or group.details is None:
        return dict.fromkeys(_RANGE_COLUMNS)
    stands = progress_of(group.details).get(partition)
    return {
        "AHEAD": found.ahead,
        "RANGES": f"{len(found.ranges)}/{group.details.max_ranges}",
        "OLDEST-GAP": str(found.oldest_gap),
        "GAP-MS": None if stands is None else max(group.details.now_ms - stands.moved_at_ms, 0),
    }


def _verdict(group: GroupDescription, member: DescribedMember, health: Health) -> str | None:
    known = {} if group.details is None else {found.member_id: found for found in group.details.members}
    return verdict(known.get(member.member_id), [health[p] for p in member.assignment], _now_ms(group))


def _now_ms(group: GroupDescription) -> int:
    """The time of the coordinator's clock if known: its commits have this clock's timestamps."""
    return int(time.time() * 1000) if group.details is None else group.details.now_ms


def _member_cells(member: DescribedMember | None) -> dict[str, Cell]:
    return {
        "CONSUMER-ID": member.member_id if member else None,
        "HOST": member.host if member else None,
        "CLIENT-ID": member.client_id if member else None,
    }


def _member_row(group: GroupDescription, member: DescribedMember, health: Health) -> Row:
    return {
        "GROUP": group.group,
        **_member_cells(member),
        "#PARTITIONS": len(member.assignment),
        "ASSIGNMENT": [str(partition) for partition in sorted(member.assignment)],
        "VERDICT": _verdict(group, member, health),
    }


def _state_row(group: GroupDescription) -> Row:
    return {
        "GROUP": group.group,
        "COORDINATOR (ID)": f"{group.coordinator} ({group.coordinator_id})",
        "ASSIGNMENT-STRATEGY": group.assignor,
        "STATE": group.state,
        "#MEMBERS": len(group.members),
    }


app.command("history")(command)


@app.command("reset-offsets")
def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME[:PARTITION]", help="Only this; may be repeated. Default: all with an offset."
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
    to = EARLIEST if to_earliest else LATEST if to_latest else time_ms
    with admin_of(bootstrap_server) as admin:
        partitions = _partitions(admin, topics) if topics else None
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
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    source: Annotated[str, typer.Argument(metavar="FROM", show_default=False, help="A topic, or a view of it.")],
    target: Annotated[str, typer.Argument(metavar="TO", show_default=False, help="A view of the topic, or the topic.")],
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
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
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
