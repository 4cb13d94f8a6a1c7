"""`tailrace dump-log FILE|DIR...`: the content of a log's files, in the format of kafka-dump-log."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer

from tailrace.cli.files.log_files import (
    IndexEntry,
    LogBatch,
    TimeEntry,
    epoch_lines,
    offset_entries,
    offset_index_faults,
    snapshot_lines,
    time_entries,
    time_index_faults,
    transaction_lines,
)
from tailrace.cli.files.record_decoders import (
    Content,
    Decoded,
    Decoder,
    compact,
    control_fields,
    control_text,
    group_record,
    metadata_record,
    plain,
    transaction_record,
)
from tailrace.cli.output import Cell, Format, Output, readable, say, write
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, crc_is_valid, read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, read_records

_HORIZON = "deleteHorizonMs"
_CODECS = {codec.value: codec.name.lower() for codec in Codec}


class StoredBatch(NamedTuple):
    """A whole batch, and its position in the file."""

    position: int
    header: BatchHeader
    content: bytes


def stored_batches(path: Path) -> Iterator[StoredBatch]:
    """Every batch of a file, a single batch at a time in memory. Raises CorruptRecords at bytes that are no whole
    batch."""
    size_bytes = path.stat().st_size
    position = 0
    with path.open("rb") as file:
        while position < size_bytes:
            head = file.read(HEADER_SIZE)
            try:
                header = read_header(head)
            except CorruptRecords:
                raise CorruptRecords(f"{path} position {position}: no batch of format v2 starts here") from None
            if position + header.size_bytes > size_bytes:
                raise CorruptRecords(f"{path} position {position}: a batch of {header.size_bytes} bytes is cut off")
            yield StoredBatch(position, header, head + file.read(header.size_bytes - HEADER_SIZE))
            position += header.size_bytes


def batch_fields(batch: StoredBatch, is_valid: bool) -> dict[str, Cell]:
    """The fields of a batch's header. Times in ms since 1970."""
    header = batch.header
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.records_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        _HORIZON: header.base_timestamp if header.has_delete_horizon else None,
        "position": batch.position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _CODECS.get(header.codec, str(header.codec)),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def batch_line(fields: Mapping[str, Cell]) -> str:
    """The fields in one line, in the words of Kafka's tool."""
    words = {name: _word(value) for name, value in fields.items()}
    horizon = fields[_HORIZON]
    words[_HORIZON] = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
    return " ".join(f"{name}: {word}" for name, word in words.items())


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.has_log_append_time else "CreateTime"


def _word(value: Cell) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def record_fields(record: Record, header: BatchHeader) -> dict[str, Cell]:
    """The fields before the content of a record."""
    delta = record.offset - header.base_offset
    return {
        "offset": record.offset,
        _timestamp_type(header): record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": -1 if header.base_sequence < 0 else (header.base_sequence + delta) & 0x7FFFFFFF,
        "headerKeys": [name for name, _ in record.headers],
    }


def record_line(fields: Mapping[str, Cell], control: Mapping[str, Cell], decoded: Decoded) -> str:
    """A record in one line, plus line breaks of its own content. A null key or payload is left out."""
    words = []
    for name, value in fields.items():
        words.append(f"{name}: [{','.join(map(str, value))}]" if isinstance(value, list) else f"{name}: {value}")
    line = "| " + " ".join(words) + control_text(control)
    for name, content in decoded._asdict().items():
        if content is not None:
            line += f" {name}: {_text(content)}"
    return line


def _text(content: Content) -> str:
    if isinstance(content, bytes):
        return content.decode("utf-8", "replace")
    return content if isinstance(content, str) else compact(content)


def record_json(fields: Mapping[str, Cell], control: Mapping[str, Cell], decoded: Decoded) -> dict[str, Cell]:
    """A record as one object. Bytes that are not UTF-8 are base64."""
    shown = dict(fields) | dict(control)
    for name, content in decoded._asdict().items():
        if content is not None:
            shown[name] = readable(content) if isinstance(content, bytes) else content
    return shown


_SUFFIXES = (".log", ".checkpoint", ".index", ".timeindex", ".txnindex", ".snapshot")
_EPOCHS = "leader-epoch-checkpoint"
_NOTHING = Decoded(None, None)

Entry = TypeVar("Entry", IndexEntry, TimeEntry)


def command(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIR...", show_default=False)],
    deep: Annotated[bool, typer.Option("--deep", "--deep-iteration", help="The records too.")] = False,
    print_data_log: Annotated[bool, typer.Option("--print-data-log", help="Keys and values too.")] = False,
    offsets_decoder: Annotated[
        bool, typer.Option("--offsets-decoder", help=f"Decode records of {GROUP_OFFSETS_TOPIC}.")
    ] = False,
    transaction_log_decoder: Annotated[
        bool, typer.Option("--transaction-log-decoder", help=f"Decode records of {TRANSACTION_STATE_TOPIC}.")
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help=f"Decode records of {METADATA_TOPIC}.")
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Check indexes against their log, print no entries.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Print and check the content of log segments, indexes, snapshots and checkpoints."""
    wanted = {
        group_record: offsets_decoder,
        transaction_record: transaction_log_decoder,
        metadata_record: cluster_metadata_decoder,
    }
    decoder = _decoder([decoder for decoder, is_wanted in wanted.items() if is_wanted], print_data_log)
    dumper = _Dumper(
        with_records=deep or decoder is not None,
        decoder=decoder,
        with_entries=not verify_index_only,
        as_json=output is Format.JSON,
    )
    for path in _files(paths):
        dumper.dump(path)
    if dumper.faults:
        are = "place is" if dumper.faults == 1 else "places are"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{dumper.faults} {are} damaged; see above")


def _decoder(wanted: Sequence[Decoder], print_data_log: bool) -> Decoder | None:
    if len(wanted) > 1:
        raise typer.BadParameter("a log holds the one or the other", param_hint="--...-decoder")
    if wanted:
        return wanted[0]
    return plain if print_data_log else None


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES or file.name == _EPOCHS)
        elif path.exists():
            yield path
        else:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} does not exist")


class _Dumper:
    """Prints files, and counts damaged places."""

    def __init__(self, *, with_records: bool, decoder: Decoder | None, with_entries: bool, as_json: bool) -> None:
        """Without `with_entries` indexes are checked and not printed; without `decoder` records have no content."""
        self._with_records = with_records
        self._decoder = decoder
        self._with_entries = with_entries
        self._as_json = as_json
        self.faults = 0

    def dump(self, path: Path) -> None:
        """Print one file."""
        self._say_of_file(f"Dumping {path}")
        try:
            match path.suffix:
                case ".log" | ".checkpoint":
                    self._dump_batches(path)
                case ".index":
                    if not path.stat().st_size:
                        self._say_of_file(f"{path} is empty.")
                    self._dump_index(path, offset_entries, offset_index_faults)
                case ".timeindex":
                    self._dump_index(path, time_entries, time_index_faults)
                case ".txnindex":
                    self._print_lines(path, transaction_lines(path.read_bytes()))
                case ".snapshot":
                    self._print_lines(path, snapshot_lines(path.read_bytes()))
                case _ if path.name == _EPOCHS:
                    self._print_lines(path, epoch_lines(path.read_bytes()))
                case _:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{path.name} is not a file of a log")
        except CorruptRecords as fault:
            self._fault(fault.detail if str(path) in fault.detail else f"{path}: {fault.detail}")

    def _dump_batches(self, path: Path) -> None:
        for line in _first_lines(path):
            self._say_of_file(line)
        stop = 0
        last_offset: int | None = None
        end_offset = _least_offset(path)
        jumps: list[str] = []
        try:
            for batch in stored_batches(path):
                if batch.header.base_offset < end_offset:
                    place = f"{path} position {batch.position}"
                    self._fault(
                        f"{place}: offset {batch.header.base_offset} where {end_offset} comes next, or a later one"
                    )
                end_offset = batch.header.end_offset
                for first, last in self._dump_batch(path, batch):
                    if last_offset is not None and first != last_offset + 1:
                        jumps.append(f"  {last_offset} is followed by {first}")
                    last_offset = last
                stop = batch.position + batch.header.size_bytes
        except CorruptRecords:
            self._say_of_file(f"Found {path.stat().st_size - stop} invalid bytes at the end of {path.name}")
            raise
        finally:
            if jumps:  # no damage: compaction leaves gaps
                _say_all((f"Non-consecutive offsets in {path}", *jumps))

    def _dump_batch(self, path: Path, batch: StoredBatch) -> Iterator[tuple[int, int]]:
        """Print a batch. If records are printed, yields the ranges of offsets with records, both ends included."""
        header = batch.header
        is_valid = crc_is_valid(batch.content, 0, header)
        fields = batch_fields(batch, is_valid)
        self._print(fields, batch_line(fields))
        if not is_valid:
            self._fault(f"{path} position {batch.position}: the checksum of the batch is wrong")
            yield header.base_offset, header.last_offset
        elif self._with_records:
            try:
                yield from self._dump_records(batch)
            except CorruptRecords as fault:
                self._fault(f"{path} batch at offset {header.base_offset}: {fault.detail}")

    def _dump_records(self, batch: StoredBatch) -> Iterator[tuple[int, int]]:
        header = batch.header
        for record in read_records(batch.content):
            fields = record_fields(record, header)
            control = control_fields(record) if header.is_control else {}
            decoded = _NOTHING if header.is_control or self._decoder is None else self._decoder(record)
            if self._as_json:
                write(dumps(record_json(fields, control, decoded), ensure_ascii=False))
            else:
                write(record_line(fields, control, decoded))
            yield record.offset, record.offset

    def _dump_index(
        self,
        path: Path,
        parse: Callable[[bytes, int], Iterator[Entry]],
        find_faults: Callable[[str, Sequence[Entry], Sequence[LogBatch]], list[str]],
    ) -> None:
        entries = list(parse(path.read_bytes(), int(path.stem) if path.stem.isdecimal() else 0))
        if self._with_entries:
            self._print_lines(path, map(str, entries))
        log = path.with_suffix(".log")
        if not log.exists():
            say(f"{path} is not checked: {log} is not there")
        elif faults := find_faults(str(path), entries, _batches_of(log)):
            self._fault(*faults)

    def _print_lines(self, path: Path, lines: Iterable[str]) -> None:
        for line in lines:
            self._print({"file": str(path), "line": line}, line)

    def _say_of_file(self, line: str) -> None:
        """Print a line about the file, among the lines of its content. Prints nothing if the output is JSON."""
        if not self._as_json:
            write(line)

    def _print(self, values: Mapping[str, Cell], line: str) -> None:
        write(dumps(values, ensure_ascii=False) if self._as_json else line)

    def _fault(self, *lines: str) -> None:
        self.faults += 1
        _say_all(lines)


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def _first_lines(path: Path) -> Iterator[str]:
    """The lines about the offset in the file's name."""
    offset, _, epoch = path.stem.partition("-")
    if path.name == "bootstrap.checkpoint":
        yield "KRaft bootstrap snapshot"
    elif offset.isdecimal() and epoch.isdecimal():
        yield f"Snapshot end offset: {int(offset)}, epoch: {int(epoch)}"
    elif offset.isdecimal():
        yield f"Log starting offset: {int(offset)}"


def _least_offset(path: Path) -> int:
    """The lowest start offset of a segment; 0 for other files."""
    return int(path.stem) if path.suffix == ".log" and path.stem.isdecimal() else 0


def _batches_of(log: Path) -> list[LogBatch]:
    """The batches for the entries of an index. The batches end at damage in the log: the dump of the log itself reports
    the damage."""
    batches: list[LogBatch] = []
    try:
        for position, header, _ in stored_batches(log):
            batches.append(LogBatch(position, header.last_offset, header.max_timestamp))
    except CorruptRecords:
        pass
    return batches
