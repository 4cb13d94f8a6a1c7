"""Batches and records as lines, in the words of Kafka's own dump, or as JSON objects with the same names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tailrace.cli.message_json import compact
from tailrace.cli.output import Cell, readable
from tailrace.cli.record_decoders import Content, Decoded, control_text
from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record

_CODECS = {codec.value: codec.name.lower() for codec in Codec}


class StoredBatch(NamedTuple):
    """A whole batch, and where in its file it starts."""

    position: int
    header: BatchHeader
    content: bytes


def stored_batches(path: Path) -> Iterator[StoredBatch]:
    """Every batch of a file, one at a time in memory. Raises CorruptRecords where none starts or one is cut off."""
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
    """What the head of a batch says. Times in ms since 1970."""
    header = batch.header
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
        "position": batch.position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _CODECS.get(header.codec, str(header.codec)),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def batch_line(fields: Mapping[str, Cell]) -> str:
    """The fields in one line."""
    return " ".join(f"{name}: {_word(value)}" for name, value in fields.items())


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.has_log_append_time else "CreateTime"


def _word(value: Cell) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def record_fields(record: Record, header: BatchHeader) -> dict[str, Cell]:
    """What goes before the content of a record."""
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
    """A record in one line, but for line breaks of its own. A null key or payload is not mentioned."""
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
    """A record as one object. Bytes that are no text are base64."""
    shown = dict(fields) | dict(control)
    for name, content in decoded._asdict().items():
        if content is not None:
            shown[name] = readable(content) if isinstance(content, bytes) else content
    return shown
