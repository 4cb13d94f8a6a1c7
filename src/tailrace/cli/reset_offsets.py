"""`tailrace groups reset-offsets GROUP`: new committed offsets for a group without members."""

from collections.abc import Mapping
from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show
from tailrace.cli.times import parse_time
from tailrace.client.blocking import Admin
from tailrace.client.offsets import EARLIEST, LATEST
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET")


def command(
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
    with admin_of(bootstrap_server) as admin:
        if execute:
            _check_empty(admin, group)
        current = {partition: committed.offset for partition, committed in admin.group_offsets(group).items()}
        partitions = _partitions(admin, topics) if topics else _alive(admin, group, current)
        earliest = _offsets(admin, partitions, EARLIEST)
        latest = _offsets(admin, partitions, LATEST)
        wanted = earliest if to_earliest else latest
        if to_offset is not None:
            wanted = dict.fromkeys(partitions, to_offset)
        elif shift_by is not None:
            wanted = {partition: _known(current, group, partition) + shift_by for partition in partitions}
        elif time_ms is not None:
            found = _offsets(admin, partitions, time_ms)
            wanted = {partition: offset if offset >= 0 else latest[partition] for partition, offset in found.items()}
        moved = {one: min(max(wanted[one], earliest[one]), latest[one]) for one in partitions}
        if execute:
            admin.commit_offsets(group, moved)
    show([_row(group, partition, current, moved) for partition in partitions], _COLUMNS, output)
    if not execute:
        say("nothing has been changed: repeat it with --execute")


def _check_empty(admin: Admin, group: str) -> None:
    """Raise KafkaError for a group with members: they would commit their own positions again."""
    try:
        (description,) = admin.describe_groups([group])
    except KafkaError as fault:
        if fault.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if description.members:
        detail = f"group {group!r} has members; stop them first (`tailrace groups describe {group} --members`)"
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, detail)


def _partitions(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """The partitions of these words, NAME or NAME:PARTITION."""
    found: set[TopicPartition] = set()
    for word in topics:
        name, _, number = word.partition(":")
        if number and not number.isdecimal():
            raise typer.BadParameter(f"{word!r} is not NAME or NAME:PARTITION", param_hint="--topic")
        (topic,) = admin.describe_topics([name])
        count = len(topic.partitions)
        if number and int(number) >= count:
            detail = f"topic {name!r} has partitions 0 to {count - 1}, not {number}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        found.update(TopicPartition(name, index) for index in ([int(number)] if number else range(count)))
    return sorted(found)


def _alive(admin: Admin, group: str, current: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions with a committed offset that still exist."""
    names = sorted({partition.topic for partition in current})
    counts = {topic.name: len(topic.partitions) for topic in admin.existing_topics(names)}
    alive = [partition for partition in sorted(current) if partition.partition < counts.get(partition.topic, 0)]
    if not alive:
        detail = f"group {group!r} has no offsets yet: name the topics with --topic"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
    return alive


def _offsets(admin: Admin, partitions: list[TopicPartition], spec: int) -> dict[TopicPartition, int]:
    return {partition: found.offset for partition, found in admin.list_offsets(dict.fromkeys(partitions, spec)).items()}


def _known(current: Mapping[TopicPartition, int], group: str, partition: TopicPartition) -> int:
    if partition not in current:
        detail = f"group {group!r} has no offset in {partition} that could be shifted"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return current[partition]


def _row(
    group: str, partition: TopicPartition, current: Mapping[TopicPartition, int], moved: Mapping[TopicPartition, int]
) -> Row:
    return {
        "GROUP": group,
        "TOPIC": partition.topic,
        "PARTITION": partition.partition,
        "CURRENT-OFFSET": current.get(partition),
        "NEW-OFFSET": moved[partition],
    }
