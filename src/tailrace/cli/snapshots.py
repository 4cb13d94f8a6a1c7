"""`tailrace snapshots`: list, describe, verify and dump the snapshots of a directory's metadata log.

The commands read files and send no request; the node may be running.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tailrace.cli.dump_log import command as dump_log
from tailrace.cli.output import Cell, Format, Output, Row, counted, say, show
from tailrace.metadata.records.kinds import decode_record
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.model.partitions import METADATA_TOPIC, OffsetAndEpoch
from tailrace.protocol.records.control import KRaftVersionRecord, VotersRecord
from tailrace.protocol.records.record import read_records
from tailrace.storage.snapshots.format import (
    SNAPSHOT_SUFFIX,
    SnapshotBatch,
    SnapshotHeader,
    parse_snapshot_name,
    read_snapshot_header,
    walk,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

DataDirectory = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="D",
        help=f"A node's data directory, or its {METADATA_TOPIC}-0.",
        show_default=False,
    ),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[SNAPSHOT...]", show_default=False)]

_METADATA_LOG = f"{METADATA_TOPIC}-0"
_COLUMNS = ("Snapshot", "EndOffset", "Epoch", "SizeBytes", "LastContainedLogTimestamp")
_DESCRIPTION_COLUMNS = (*_COLUMNS, "KRaftVersion", "Voters", "Batches", "Records", "RecordTypes")
_VERDICT_COLUMNS = ("Snapshot", "SizeBytes", "Valid", "Fault")


class _Found(NamedTuple):
    """A file with the name of a snapshot."""

    path: Path
    id: OffsetAndEpoch

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(SNAPSHOT_SUFFIX)


@app.command("list")
def list_snapshots(data_dir: DataDirectory, output: Output = Format.TABLE) -> None:
    """List the snapshots, oldest first."""
    rows = [_row(snapshot, _header_of(snapshot)) for snapshot in _all_of(data_dir)]
    if not rows and output is Format.TABLE:
        say("there are no snapshots yet")
        return
    show(rows, _COLUMNS, output)


@app.command()
def describe(data_dir: DataDirectory, names: Names = None, output: Output = Format.TABLE) -> None:
    """Describe the content of snapshots; without a name, of the newest snapshot."""
    chosen = _chosen(data_dir, names) if names else _all_of(data_dir)[-1:]
    if not chosen:
        raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND, f"there are no snapshots in {data_dir}")
    show([_description(snapshot) for snapshot in chosen], _DESCRIPTION_COLUMNS, output)


@app.command()
def verify(data_dir: DataDirectory, names: Names = None, output: Output = Format.TABLE) -> None:
    """Check every byte of the snapshots; exits with 1 if a snapshot is damaged."""
    verdicts = [_verdict(snapshot) for snapshot in _chosen(data_dir, names)]
    show(verdicts, _VERDICT_COLUMNS, output)
    damaged = [str(verdict["Snapshot"]) for verdict in verdicts if not verdict["Valid"]]
    if damaged:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{counted(len(damaged), 'snapshot')} damaged: {', '.join(damaged)}. A node does not start with a damaged"
            " snapshot; take it away and the node fetches another from the leader, or restores its state from its log",
        )


@app.command()
def dump(data_dir: DataDirectory, names: Names = None, output: Output = Format.TABLE) -> None:
    """Print every record, as `tailrace dump-log --cluster-metadata-decoder` does."""
    dump_log([snapshot.path for snapshot in _chosen(data_dir, names)], cluster_metadata_decoder=True, output=output)


def _all_of(data_dir: Path) -> list[_Found]:
    """The snapshots by ascending id. Raises KafkaError for a directory without a metadata log."""
    directory = data_dir if data_dir.absolute().name == _METADATA_LOG else data_dir / _METADATA_LOG
    if not data_dir.is_dir():
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{data_dir} is no directory")
    if not directory.is_dir():
        detail = f"{data_dir} has no {_METADATA_LOG}: name a node's data directory (its log.dirs)"
        below = sorted(path.parent for path in data_dir.glob(f"*/{_METADATA_LOG}"))
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{detail}, such as {below[0]}" if below else detail)
    found = [(parse_snapshot_name(path.name), path) for path in directory.iterdir()]
    return sorted(
        (_Found(path, snapshot_id) for snapshot_id, path in found if snapshot_id is not None),
        key=lambda snapshot: snapshot.id,
    )


def _chosen(data_dir: Path, names: list[str] | None) -> list[_Found]:
    found = _all_of(data_dir)
    if not names:
        return found
    by_name = {snapshot.name: snapshot for snapshot in found}
    wanted = [Path(name).name.removesuffix(SNAPSHOT_SUFFIX) for name in names]
    for name in wanted:
        if name not in by_name:
            known = ", ".join(by_name) or "there are none"
            raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND, f"there is no snapshot {name} in {data_dir}: {known}")
    return [by_name[name] for name in wanted]


def _batches(found: _Found) -> Generator[SnapshotBatch]:
    with found.path.open("rb") as file:

        def read_at(length: int, position: int) -> bytes:
            file.seek(position)
            return file.read(length)

        size_bytes = found.path.stat().st_size
        yield from walk(read_at, size_bytes=size_bytes, leader_epoch=found.id.epoch, path=str(found.path))


def _header_of(found: _Found) -> SnapshotHeader | None:
    """The content of its first batch, None if that is damaged: `verify` reports the damage."""
    try:
        with closing(_batches(found)) as batches:
            return read_snapshot_header(next(batches).content)
    except CorruptRecords as fault:
        say(f"{found.name} is damaged: {fault.detail}")
        return None


def _row(found: _Found, header: SnapshotHeader | None) -> dict[str, Cell]:
    return {
        "Snapshot": found.name,
        "EndOffset": found.id.offset,
        "Epoch": found.id.epoch,
        "SizeBytes": found.path.stat().st_size,
        "LastContainedLogTimestamp": None if header is None else header.last_contained_ms,
    }


def _description(found: _Found) -> Row:
    header: SnapshotHeader | None = None
    batches = 0
    types: Counter[str] = Counter()
    for batch in _batches(found):
        if batch.position == 0:
            header = read_snapshot_header(batch.content)
        elif not batch.header.is_control:
            batches += 1
            types.update(_type_of(record.value) for record in read_records(batch.content))
    assert header is not None, "a whole snapshot begins with a header"
    return _row(found, header) | {
        "KRaftVersion": next(
            (record.k_raft_version for record in header.control if isinstance(record, KRaftVersionRecord)), 0
        ),
        "Voters": [
            f"{voter.voter_id}-{format_topic_id(voter.voter_directory_id)}"
            for record in header.control
            if isinstance(record, VotersRecord)
            for voter in record.voters
        ],
        "Batches": batches,
        "Records": types.total(),
        "RecordTypes": dict(sorted(types.items())),
    }


def _type_of(value: bytes | None) -> str:
    try:
        return type(decode_record(value or b"")).__name__
    except KafkaError:
        return "unknown"


def _verdict(found: _Found) -> Row:
    fault = None
    try:
        for _ in _batches(found):
            pass
    except CorruptRecords as corrupt:
        fault = corrupt.detail
    return {
        "Snapshot": found.name,
        "SizeBytes": found.path.stat().st_size,
        "Valid": fault is None,
        "Fault": fault,
    }
