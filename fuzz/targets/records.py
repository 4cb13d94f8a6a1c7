"""Record batches: headers, records, codecs, and the compiled kernels against their twin."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from fuzz import golden
from fuzz.finding import found
from fuzz.targets.target import Target
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.steps import result_of
from tailrace.protocol.records import _kernels_twin as twin
from tailrace.protocol.records.arrow_buffers import BinaryBuffers, HeaderBuffers, LongBuffers
from tailrace.protocol.records.batch import HEADER_SIZE, check_crc, iter_batches, read_header, seal, validate_produced
from tailrace.protocol.records.columns import plain_groups
from tailrace.protocol.records.compression import Codec, compress, decompress
from tailrace.protocol.records.control import control_values
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.records.spans import batch_in_steps, spans_in_steps

try:
    from tailrace.protocol.records import _kernels
except ImportError:  # no compiler here; the twin alone is fuzzed then
    compiled: Any = twin
else:
    compiled = _kernels

PRODUCE_VERSIONS: Final = (3, 9)
_REFUSALS = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
)
_LIMIT = 1 << 20
_EVERYTHING = 2**63 - 1


def check_batch(data: bytes) -> None:
    """A first byte whose bits repair length, checksum and record count, then a batch and whatever follows the batch."""
    if not data:
        return
    batch = bytearray(data[1:])
    _repair(batch, data[0])
    _check_produced(bytes(batch))
    _check_stored(bytes(batch))


def _repair(batch: bytearray, how: int) -> None:
    """Without this hardly any mutation would get past the checksum."""
    if len(batch) < HEADER_SIZE:
        return
    if how & 1:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
    if how & 2:
        (delta,) = struct.unpack_from(">i", batch, 23)
        struct.pack_into(">i", batch, 57, min(delta + 1, 2**31 - 1))
    if how & 4 and struct.unpack_from(">i", batch, 8)[0] == len(batch) - 12:
        seal(batch)


def _check_produced(batch: bytes) -> None:
    try:
        header = validate_produced(batch, produce_version=PRODUCE_VERSIONS[len(batch) % 2])
    except KafkaError as refused:
        if refused.code not in _REFUSALS:
            found(f"a batch is refused with a code of Produce, not {refused.code.name}")
        return
    if header.to_bytes() != batch[:HEADER_SIZE]:
        found("an accepted header is written as it was read")
    try:
        records = read_records(batch, max_bytes=_LIMIT, strict=True)
    except CorruptRecords:
        return
    if [record.offset for record in records] != list(range(header.last_offset_delta + 1)):
        found("an accepted batch has every offset from its base on")


def _check_stored(data: bytes) -> None:
    try:
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            batch = data[position : position + header.size_bytes]
            records = read_records(batch, max_bytes=_LIMIT)
            _check_records(batch, records)
    except CorruptRecords:
        return


def _check_records(batch: bytes, records: list[Record]) -> None:
    header = read_header(batch)
    if len(records) != header.records_count:
        found("as many records as the header says")
    if any(not header.base_offset <= record.offset <= header.last_offset for record in records):
        found("no record lies outside its batch")
    if header.is_control:
        control_values(records)
    spans = result_of(spans_in_steps(batch, header))
    if [(span.offset, span.key) for span in spans.spans] != [(record.offset, record.key) for record in records]:
        found("compaction sees the records that a reader sees")
    if records:
        kept = result_of(batch_in_steps(spans, spans.spans))
        if read_records(kept, max_bytes=_LIMIT) != records:
            found("a batch of which every record stays has the same records")
    groups = plain_groups([batch], from_offset=0, until_offset=_EVERYTHING, max_rows=10_000, max_bytes=_LIMIT)
    if not header.is_control and sum(_rows(group) for group in groups) != len(records):
        found("a reader of columns sees as many records")


def _rows(group: list[Any]) -> int:
    columns = compiled.records_to_columns(group, columns=0, from_offset=0, until_offset=_EVERYTHING, in_micros=False)
    rows: int = columns[0]
    return rows


def _batch_seeds() -> Iterator[bytes]:
    for flags in (0, 7):
        for batch in golden.record_batches():
            yield bytes([flags]) + batch
        for segment in golden.segments():
            yield bytes([flags]) + segment
    record = Record(0, 5, b"k", b"v", (("header", None), ("h", b"v")))
    for codec in Codec:
        yield b"\x07" + build_batch([record, record], codec=codec)


def check_kernels(data: bytes) -> None:
    """The first byte chooses the kernel, the next ones its numbers, the rest are the bytes it works on."""
    if len(data) < 20:
        return
    _KERNEL_CHECKS[data[0] % len(_KERNEL_CHECKS)](data[1:20], data[20:])


def _compare(call: Callable[[Any], object]) -> None:
    expected, got = _outcome(lambda: call(twin)), _outcome(lambda: call(compiled))
    if expected != got:
        found(f"kernel and twin agree: {expected!r} became {got!r}")


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except (KafkaError, ValueError, OverflowError, TypeError, AttributeError) as error:
        return type(error), str(error)


def _check_parse(numbers: bytes, body: bytes) -> None:
    count, last_offset_delta, base_timestamp, dense, append_time = struct.unpack(">bhqbb6x", numbers)
    options = {
        "count": max(count, 0),
        "base_offset": 100,
        "last_offset_delta": last_offset_delta,
        "base_timestamp": base_timestamp,
        "append_time": None if append_time < 0 else append_time,
        "dense": bool(dense & 1),
    }
    _compare(lambda kernel: kernel.parse_records(body, tuple, **options))


def _check_columns(numbers: bytes, body: bytes) -> None:
    columns, cut, from_offset, until_offset, in_micros = struct.unpack(">BBqqb", numbers)
    at = len(body) * cut // 255
    options = {
        "columns": columns & 63,
        "from_offset": from_offset,
        "until_offset": until_offset if in_micros & 2 else _EVERYTHING,
        "in_micros": bool(in_micros & 1),
    }
    _compare(lambda kernel: kernel.records_to_columns([body[:at], body[at:]], **options))


def _check_encode(numbers: bytes, body: bytes) -> None:
    shape, start, stop, max_bytes, max_records, firsts, timestamp = struct.unpack(">BbbHBB8sxxxx", numbers)
    binary = BinaryBuffers(_bitmap(shape & 1, body), _aligned(body, 4, 0, 3), body, firsts & 3)
    other = BinaryBuffers(_bitmap(shape & 2, body), _aligned(body, 4, 1, 3), body, firsts >> 2 & 3)
    headers = HeaderBuffers(_bitmap(shape & 4, body), _aligned(body, 4, 2, 3), binary, other, firsts >> 4 & 3)
    times = LongBuffers(_bitmap(shape & 8, body), _aligned(body, 8, 1, 2), firsts >> 6)
    options = {
        "default_timestamp": int.from_bytes(timestamp, signed=True),
        "rows": _aligned(body, 8, 0, 2) if shape & 16 else None,
        "start": start,
        "stop": stop,
        "max_bytes": max_bytes,
        "max_records": max(max_records, 1),
    }
    columns = (binary if shape & 32 else None, other, headers if shape & 64 else None, times if shape & 128 else None)
    _compare(lambda kernel: kernel.encode_columns(*columns, **options))
    _compare(lambda kernel: kernel.murmur2_column(columns[0] or other, max(stop, 0)))


def _bitmap(is_there: int, body: bytes) -> bytes | None:
    return body[-2:] if is_there else None


def _aligned(body: bytes, width: int, part: int, parts: int) -> bytes:
    """A part of several equal parts, cut to whole numbers."""
    size = len(body) // parts // width * width
    return body[part * size : (part + 1) * size]


def _check_append(numbers: bytes, body: bytes) -> None:
    offset_delta, timestamp_delta, key_size, value_size, count = struct.unpack(">IqBbB4x", numbers)
    key, value = body[:key_size], body[key_size : key_size + value_size] if value_size >= 0 else None
    headers = [(chr(32 + at), body[at : at + 5] if at & 1 else None) for at in range(count % 8)]
    written: list[bytearray] = []

    def write(kernel: Any) -> bytearray:
        into = bytearray(b"before")
        written.append(into)
        kernel.append_record(into, offset_delta, timestamp_delta, key, value, headers)
        return into

    _compare(write)


_KERNEL_CHECKS = (_check_parse, _check_columns, _check_encode, _check_append)


def _kernel_seeds() -> Iterator[bytes]:
    parse = b"\x00" + struct.pack(">bhqbb6x", 8, 100, 0, 0, -1)
    columns = b"\x01" + struct.pack(">BBqqb", 63, 255, 0, 0, 0)
    for batch in golden.record_batches():
        count, delta = struct.unpack_from(">i", batch, 57)[0], struct.unpack_from(">i", batch, 23)[0]
        yield b"\x00" + struct.pack(">bhqbb6x", min(count, 127), min(delta, 32_767), 5, 1, -1) + batch[HEADER_SIZE:]
        yield columns + batch
    for segment in golden.segments():
        yield columns + segment
        yield parse + segment[HEADER_SIZE:600]
    offsets = b"".join(struct.pack("i", number) for number in range(0, 48, 4))
    for shape in (0, 32, 63, 96, 127, 255):
        yield b"\x02" + struct.pack(">BbbHBB8sxxxx", shape, 0, 3, 500, 9, 0, bytes(8)) + offsets * 3
    yield b"\x03" + struct.pack(">IqBbB4x", 3, 7, 5, 9, 3) + b"the bytes of a record and its headers"


def check_compression(data: bytes) -> None:
    """Codec, then how much may come out in units of 256 bytes, then the compressed bytes."""
    if len(data) < 3:
        return
    codec, limit, packed = data[0] % 6, int.from_bytes(data[1:3]) << 8, data[3:]
    try:
        unfolded = decompress(codec, packed, max_bytes=limit)
    except CorruptRecords:
        return
    if len(unfolded) > limit and codec:
        found("no more comes out than the reader is ready to hold")
    if codec and bytes(decompress(codec, compress(codec, unfolded), max_bytes=max(limit, 1))) != bytes(unfolded):
        found("decompress(compress(x)) == x")


def _compression_seeds() -> Iterator[bytes]:
    for batch in golden.record_batches():
        codec = batch[22] & 7
        yield bytes([codec, 0, 64]) + batch[HEADER_SIZE:]
    for codec in Codec:
        for content in (b"", b"orders" * 20, bytes(40_000)):
            yield bytes([codec, 1, 0]) + compress(codec, content)
            yield bytes([codec, 0, 1]) + compress(codec, content) * 2


TARGETS = (
    Target(
        "batches",
        "a code of Produce, or a batch that every reader reads alike",
        check_batch,
        _batch_seeds,
    ),
    Target(
        "kernels",
        "the compiled kernel gives what its twin gives, or the same error",
        check_kernels,
        _kernel_seeds,
    ),
    Target(
        "compression",
        "at most what the reader is ready to hold, or CorruptRecords",
        check_compression,
        _compression_seeds,
    ),
)
