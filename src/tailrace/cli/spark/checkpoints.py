"""`tailrace spark checkpoint`: show, move."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple

import typer

from tailrace.cli.completion import topic_names
from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show
from tailrace.cli.spark.checkpoint_directory import StoredCheckpoint, move_checkpoint, read_checkpoint
from tailrace.cli.times import parse_any_time
from tailrace.client.blocking.admin import Admin
from tailrace.client.offsets import EARLIEST, LATEST
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, format_topic_id
from tailrace.model.partitions import TopicPartition
from tailrace.spark.checkpoint import BatchEnd, PartitionLog, ResumeVerdict, SourceEnd, Standing, renamed, standings
from tailrace.spark.offsets import Positions

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[
    str,
    typer.Argument(metavar="DIR", help="The checkpointLocation of a query, on this machine.", show_default=False),
]

_SHOWN = (
    *("SOURCE", "TOPIC", "PARTITION", "OFFSET", "LOG-START-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("TOPIC-ID", "CURRENT-TOPIC-ID", "VERDICT"),
)
_MOVED = ("SOURCE", "TOPIC", "PARTITION", "OFFSET", "NEW-TOPIC", "NEW-OFFSET", "VERDICT")


class _TopicsNow(NamedTuple):
    """The present topics."""

    now: Positions
    """The ends of the partitions, and the ids of the topics."""
    starts: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, admin: Admin, topics: Collection[str]) -> "_TopicsNow":
        found = admin.existing_topics(topics)
        partitions = [
            TopicPartition(topic.name, partition.partition) for topic in found for partition in topic.partitions
        ]
        ids = {topic.name: topic.topic_id for topic in found if topic.topic_id != ZERO_TOPIC_ID}
        return cls(Positions(_offsets(admin, partitions, LATEST), ids), _offsets(admin, partitions, EARLIEST))

    def standings(self, source: SourceEnd) -> dict[TopicPartition, Standing]:
        logs = {tp: PartitionLog(start, self.now.offsets[tp]) for tp, start in self.starts.items()}
        return {} if source.positions is None else standings(source.positions, self.now, logs)


def _offsets(admin: Admin, partitions: Iterable[TopicPartition], spec: int) -> dict[TopicPartition, int]:
    return {tp: found.offset for tp, found in admin.list_offsets(dict.fromkeys(partitions, spec)).items()}


@app.command("show")
def show_checkpoint(
    directory: Directory, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP, output: Output = Format.TABLE
) -> None:
    """Show where a query stands, and whether it can go on from there.

    Reads checkpoints of queries with Tailrace's source or Spark's Kafka connector, which notes no TOPIC-ID. OFFSET is
    that of the last committed batch. VERDICT: resumes, would lose N (of the records, the first N are deleted), ahead of
    the log, made anew (the topic was deleted and created again), gone. LAG counts records from the log start on.
    """
    stored = read_checkpoint(directory)
    end = stored.end
    if end is None:
        show([], _SHOWN, output)
        say(f"query {stored.query_id} has committed no batch: it begins at its startingOffsets")
        return
    with admin_of(bootstrap_server) as admin:
        logs = _TopicsNow.of(admin, end.topics)
    show([row for number, source in enumerate(end.sources) for row in _rows(number, source, logs)], _SHOWN, output)
    say(f"query {stored.query_id}, after batch {stored.batches.committed}")
    if stored.batches.planned:
        say(f"{_planned(stored)}: the query repeats it first, from these offsets to the planned ones")
    _say_others(end)
    _say_new_partitions(end, logs)


def _rows(number: int, source: SourceEnd, logs: _TopicsNow) -> Iterator[Row]:
    ids = {} if source.positions is None else source.positions.topic_ids
    for tp, standing in logs.standings(source).items():
        noted, current = ids.get(tp.topic), logs.now.topic_ids.get(tp.topic)
        yield {
            "SOURCE": number,
            "TOPIC": tp.topic,
            "PARTITION": tp.partition,
            "OFFSET": standing.offset,
            "LOG-START-OFFSET": None if standing.log is None else standing.log.start,
            "LOG-END-OFFSET": None if standing.log is None else standing.log.end,
            "LAG": standing.lag,
            "LOST": standing.lost,
            "TOPIC-ID": None if noted is None else format_topic_id(noted),
            "CURRENT-TOPIC-ID": None if current is None else format_topic_id(current),
            "VERDICT": str(standing),
        }


def _planned(stored: StoredCheckpoint) -> str:
    """`batch 3 is planned and not committed`."""
    numbers = stored.batches.planned
    if len(numbers) == 1:
        return f"batch {numbers[0]} is planned and not committed"
    return f"batches {numbers[0]} to {numbers[-1]} are planned and not committed"


def _say_others(end: BatchEnd) -> None:
    for number, source in enumerate(end.sources):
        if source.positions is None:
            say(f"source {number} does not read topics, and is left as it is: {source.text[:100]}")


def _say_new_partitions(end: BatchEnd, logs: _TopicsNow) -> None:
    known = {tp for source in end.sources if source.positions is not None for tp in source.positions.offsets}
    if new := sorted(logs.starts.keys() - known):
        names = ", ".join(map(str, new[:10])) + (", ..." if len(new) > 10 else "")
        say(f"not in the checkpoint, and if the query subscribes to them read from their first record: {names}")


@app.command("move")
def move(
    directory: Directory,
    renames: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Go on in topic NEW at the offsets of OLD; may be repeated."),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Go on at the first records at or after TIME: 2026-01-31T12:00 (UTC), ms since 1970, or now-10m.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="With --to-time: only this; may be repeated. Default: all.",
            autocompletion=topic_names,
        ),
    ] = None,
    drop_planned_batch: Annotated[
        bool, typer.Option("--drop-planned-batch", help="Give up the batch that is planned and not committed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets, and change nothing.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Change the offsets from which a query goes on, in the checkpoint of its last committed batch.

    Stop the query first: nothing in its checkpoint shows whether it runs. The files that change are copied before, to
    DIR.backup-TIME. Directories on this machine only: copy others here, and back.

    With --rename the query must subscribe to the new topic. With both, topics are renamed first, and --topic has the
    new names.

    A planned batch is repeated as it was planned. With a planned batch, start the query once so that the batch ends, or
    give the batch up by --drop-planned-batch: rows of it that a sink has got are written again, or, by a sink that
    knows numbers of batches, the next rows are taken for them and left out. That is refused if a sink of this cluster
    has it.

    The id of the query, its state and the numbers of its batches stay. Rows that are read again are in new batches: a
    sink writes them again, with exactlyOnce too.
    """
    if not renames and to_time is None:
        raise typer.BadParameter("say --rename, --to-time or both")
    if topics and to_time is None:
        raise typer.BadParameter("is for --to-time", param_hint="--topic")
    names = _parse_renames(renames or [])
    time_ms = None if to_time is None else parse_any_time(to_time, "--to-time")
    stored = read_checkpoint(directory)
    before = _end_to_move(stored, drops_planned=drop_planned_batch)
    _check_known("--rename", names, before.topics)
    after = _renamed(before, names)
    _check_known("--topic", topics or [], after.topics)
    with admin_of(bootstrap_server) as admin:
        _check_sinks(admin, stored)
        logs = _TopicsNow.of(admin, after.topics)
        timed = set(topics or after.topics) if time_ms is not None else set()
        times = {} if time_ms is None else _offsets_at(admin, logs, timed, time_ms)
    moved = timed.union(names.values())
    after = after._replace(sources=tuple(map(partial(_at, times, moved, logs), before.sources, after.sources)))
    _check_moved(after, moved, logs)
    show(list(_moves(before, after, names, logs)), _MOVED, output)
    _say_others(before)
    if dry_run:
        say("nothing has been changed: repeat it without --dry-run")
    elif after == before and not stored.batches.planned:
        say("nothing has been changed: the query stands there")
    else:
        backup = move_checkpoint(stored, after, time=datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
        say(f"batch {stored.batches.committed} ends there now; {backup} has the files as they were")
        if names:
            say(f"start the query with a subscription to {', '.join(sorted(names.values()))}")


def _parse_renames(renames: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for word in renames:
        old, mark, new = word.partition("=")
        if not (old and mark and new) or old == new or old in names:
            raise typer.BadParameter(f"{word!r} is not OLD=NEW, each OLD once", param_hint="--rename")
        names[old] = new
    return names


def _check_known(option: str, names: Iterable[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            there = ", ".join(known) or "none"
            raise _fault(f"{option}: the checkpoint has no offsets of topic {name!r}; its topics: {there}")


def _end_to_move(stored: StoredCheckpoint, *, drops_planned: bool) -> BatchEnd:
    end = stored.end
    if end is None:
        raise _fault(
            f"query {stored.query_id} has committed no batch: remove {stored.directory}, and say startingOffsets or"
            " startingTimestamp"
        )
    if not end.topics:
        raise _fault(f"no source of query {stored.query_id} reads topics")
    if stored.batches.planned and not drops_planned:
        raise _fault(f"{_planned(stored)}: start the query once so that it ends, or give it up by --drop-planned-batch")
    return end


def _check_sinks(admin: Admin, stored: StoredCheckpoint) -> None:
    """Refuse to give up a batch that a sink of this query has: the next batch with its number would be skipped."""
    if not stored.batches.planned:
        return
    try:
        sinks = admin.describe_sinks(None)
    except KafkaError as fault:
        if fault.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return
    for sink in sinks:
        belongs_to_query = f"{sink.origin} ".startswith(f"query {stored.query_id} ")
        if belongs_to_query and sink.last_batch is not None and sink.last_batch >= stored.batches.planned[0]:
            raise _fault(
                f"{_planned(stored)}, and sink {sink.sink_id!r} has batch {sink.last_batch}: the next rows would be"
                " taken for it and left out; start the query once so that it ends"
            )


def _renamed(end: BatchEnd, names: Mapping[str, str]) -> BatchEnd:
    return end._replace(
        sources=tuple(
            source if source.positions is None else source.at(renamed(source.positions, names))
            for source in end.sources
        )
    )


def _offsets_at(admin: Admin, logs: _TopicsNow, topics: set[str], time_ms: int) -> dict[TopicPartition, int]:
    """The first offset at or after this time in each partition; the end without such a record."""
    ends = {tp: end for tp, end in logs.now.offsets.items() if tp.topic in topics}
    return {tp: offset if offset >= 0 else ends[tp] for tp, offset in _offsets(admin, ends, time_ms).items()}


def _at(
    times: Mapping[TopicPartition, int], moved: set[str], logs: _TopicsNow, before: SourceEnd, after: SourceEnd
) -> SourceEnd:
    """`after`, at these offsets, and with the ids of the topics that are moved."""
    if before.positions is None or after.positions is None:
        return after
    offsets, ids = after.positions
    # A source that notes no ids is Spark's Kafka connector, or an older Tailrace: it goes on without ids.
    noted = moved & {tp.topic for tp in offsets} if before.positions.topic_ids else set()
    known = {topic: topic_id for topic, topic_id in logs.now.topic_ids.items() if topic in noted}
    return after.at(Positions({tp: times.get(tp, offset) for tp, offset in offsets.items()}, {**ids, **known}))


def _check_moved(after: BatchEnd, moved: set[str], logs: _TopicsNow) -> None:
    """Refuse offsets at which the query would only fail."""
    for source in after.sources:
        for tp, standing in logs.standings(source).items():
            if tp.topic in moved and standing.verdict is ResumeVerdict.GONE:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")
            if tp.topic in moved and standing.log is not None and standing.verdict is ResumeVerdict.AHEAD:
                end = standing.log.end
                raise _fault(f"{tp} ends at offset {end}, before {standing.offset}: say --to-time as well")


def _moves(before: BatchEnd, after: BatchEnd, names: Mapping[str, str], logs: _TopicsNow) -> Iterator[Row]:
    for number, (old, new) in enumerate(zip(before.sources, after.sources, strict=True)):
        if old.positions is None:
            continue
        afterwards = logs.standings(new)
        for tp, offset in sorted(old.positions.offsets.items()):
            target = tp._replace(topic=names.get(tp.topic, tp.topic))
            yield {
                "SOURCE": number,
                "TOPIC": tp.topic,
                "PARTITION": tp.partition,
                "OFFSET": offset,
                "NEW-TOPIC": target.topic,
                "NEW-OFFSET": afterwards[target].offset,
                "VERDICT": str(afterwards[target]),
            }


def _fault(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
