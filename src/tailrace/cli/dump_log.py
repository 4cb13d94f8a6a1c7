"""`tailrace dump-log FILE|DIR...`: what the files of a log hold, in the words of kafka-dump-log."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.log_files import (
    dump_epochs,
    dump_offset_index,
    dump_snapshot,
    dump_time_index,
    dump_transaction_index,
)
from tailrace.cli.output import Cell, Format, Output, readable, say, write
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, METADATA_TOPIC
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.records.batch import BatchHeader, crc_is_valid, read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, read_records

Decoder = Callable[[Record], Cell]

_SUFFIXES = (".log", ".checkpoint", ".index", ".timeindex", ".txnindex", ".snapshot")
_EPOCHS = "leader-epoch-checkpoint"


def command(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIR...", show_default=False)],
    deep: Annotated[bool, typer.Option("--deep", "--deep-iteration", help="The records too.")] = False,
    print_data_log: Annotated[bool, typer.Option("--print-data-log", help="Keys and values too.")] = False,
    offsets_decoder: Annotated[
        bool, typer.Option("--offsets-decoder", help=f"Decode records of {GROUP_OFFSETS_TOPIC}.")
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help=f"Decode records of {METADATA_TOPIC}.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Print what log segments, indexes, snapshots and checkpoints hold."""
    decoder = _decoder(offsets=offsets_decoder, metadata=cluster_metadata_decoder)
    show_data = print_data_log or decoder is not None
    dumper = _Dumper(
        with_records=deep or show_data, with_data=show_data, decoder=decoder, as_json=output is Format.JSON
    )
    for path in _files(paths):
        dumper.dump(path)
    if dumper.faults:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{dumper.faults} places are damaged; see above")


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES or file.name == _EPOCHS)
        elif path.exists():
            yield path
        else:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} does not exist")


class _Dumper:
    """Prints files, and counts what is damaged."""

    def __init__(self, *, with_records: bool, with_data: bool, decoder: Decoder | None, as_json: bool) -> None:
        self._with_records = with_records
        self._with_data = with_data
        self._decoder = decoder
        self._as_json = as_json
        self.faults = 0

    def dump(self, path: Path) -> None:
        """Print one file."""
        data = path.read_bytes()
        if not self._as_json:
            write(f"Dumping {path}")
        if path.suffix in (".log", ".checkpoint"):
            self._dump_batches(path, data)
            return
        base_offset = int(path.stem) if path.stem.isdecimal() else 0
        match path.suffix:
            case ".index":
                lines = dump_offset_index(data, base_offset)
            case ".timeindex":
                lines = dump_time_index(data, base_offset)
            case ".txnindex":
                lines = dump_transaction_index(data)
            case ".snapshot":
                lines = dump_snapshot(data)
            case _ if path.name == _EPOCHS:
                lines = dump_epochs(data)
            case _:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{path.name} is not a file of a log")
        for line in lines:
            self._print({"file": str(path), "line": line}, line)

    def _dump_batches(self, path: Path, data: bytes) -> None:
        base = path.stem.split("-")[0]
        if not self._as_json and base.isdecimal():
            write(f"Log starting offset: {int(base)}")
        position = 0
        view = memoryview(data)
        while position < len(data):
            try:
                header = read_header(view, position)
            except CorruptRecords as fault:
                self._fault(f"{path} position {position}: {fault.detail}; {len(data) - position} bytes are not read")
                return
            if position + header.size_bytes > len(data):
                self._fault(f"{path} position {position}: a batch of {header.size_bytes} bytes is cut off")
                return
            is_valid = crc_is_valid(view, position, header)
            self._print(_batch_fields(header, position, is_valid), _batch_line(header, position, is_valid))
            if not is_valid:
                self._fault(f"{path} position {position}: the checksum of the batch is wrong")
            elif self._with_records:
                self._dump_records(path, view[position : position + header.size_bytes], header)
            position += header.size_bytes

    def _dump_records(self, path: Path, batch: memoryview, header: BatchHeader) -> None:
        try:
            records = read_records(batch)
        except CorruptRecords as fault:
            self._fault(f"{path} batch at offset {header.base_offset}: {fault.detail}")
            return
        for record in records:
            sequence = -1 if header.base_sequence < 0 else header.base_sequence + record.offset - header.base_offset
            decoded = self._decoded(record, header)
            self._print(_record_fields(record, sequence, decoded), _record_line(record, sequence, decoded))

    def _decoded(self, record: Record, header: BatchHeader) -> Cell:
        if not self._with_data:
            return None
        if header.is_control and record.key is not None:
            kind = int.from_bytes(record.key[2:4], "big")
            return {"endTxnMarker" if kind < 2 else "controlType": {0: "ABORT", 1: "COMMIT"}.get(kind, kind)}
        if self._decoder is None:
            return {"key": readable(record.key), "payload": readable(record.value)}
        try:
            return self._decoder(record)
        except KafkaError as fault:
            say(f"offset {record.offset}: {fault.detail}")
            return {"key": readable(record.key), "payload": readable(record.value)}

    def _print(self, values: dict[str, Cell], line: str) -> None:
        write(dumps(values, ensure_ascii=False) if self._as_json else line)

    def _fault(self, text: str) -> None:
        self.faults += 1
        say(text)


def _batch_fields(header: BatchHeader, position: int, is_valid: bool) -> dict[str, Cell]:
    time_name = "LogAppendTime" if header.has_log_append_time else "CreateTime"
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.has_delete_horizon else "OptionalLong.empty"
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
        "deleteHorizonMs": horizon,
        "position": position,
        time_name: header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _codec_name(header.codec),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def _codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec in list(Codec) else str(codec)


def _batch_line(header: BatchHeader, position: int, is_valid: bool) -> str:
    return " ".join(f"{name}: {_word(value)}" for name, value in _batch_fields(header, position, is_valid).items())


def _word(value: Cell) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _record_fields(record: Record, sequence: int, decoded: Cell) -> dict[str, Cell]:
    values: dict[str, Cell] = {
        "offset": record.offset,
        "CreateTime": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "headerKeys": [name for name, _ in record.headers],
    }
    if decoded is not None:
        values["data"] = decoded
    return values


def _record_line(record: Record, sequence: int, decoded: Cell) -> str:
    values = _record_fields(record, sequence, None)
    values["headerKeys"] = f"[{','.join(name for name, _ in record.headers)}]"
    line = "| " + " ".join(f"{name}: {value}" for name, value in values.items())
    if isinstance(decoded, dict):
        for name, value in decoded.items():
            text = value if isinstance(value, str) else dumps(value, ensure_ascii=False)
            line += f" {name}: {text}"
    return line


def _decoder(*, offsets: bool, metadata: bool) -> Decoder | None:
    if offsets and metadata:
        raise typer.BadParameter("a log holds the one or the other", param_hint="--cluster-metadata-decoder")
    if offsets:
        return _decode_group_record
    return _decode_metadata_record if metadata else None


def _decode_group_record(record: Record) -> Cell:
    from tailrace.coordinators.groups.records import GroupRecord, decode_record

    decoded = decode_record(record.key, record.value)
    if decoded is None:
        return {"key": readable(record.key), "payload": readable(record.value)}
    if isinstance(decoded, GroupRecord):
        return {"key": {"type": "2", "data": {"group": decoded.group_id}}, "payload": _plain(decoded.value)}
    key: Cell = {"group": decoded.group_id, "topic": decoded.topic, "partition": decoded.partition}
    return {"key": {"type": "1", "data": key}, "payload": _plain(decoded.value)}


def _decode_metadata_record(record: Record) -> Cell:
    from tailrace.metadata.records import decode_record

    decoded = decode_record(record.value or b"")
    name = type(decoded).__name__.removesuffix("Record")
    type_name = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name).lstrip("_")
    return {"payload": {"type": f"{type_name}_RECORD", "data": _plain(decoded)}}


def _plain(value: object) -> Cell:
    """A message as JSON, its fields named as on the wire."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return readable(bytes(value))
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    else:
        names = [field.name for field in schema_of(type(value)).fields]
    return {_camel(name): _plain(getattr(value, name)) for name in names}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
