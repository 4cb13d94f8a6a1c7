"""The compiled kernels and their twin give the same results and the same errors, whatever they are fed."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.records import _kernels_twin as twin
from tailrace.protocol.records.arrow_buffers import BinaryBuffers, HeaderBuffers, LongBuffers
from tailrace.protocol.records.batch import HEADER_SIZE, read_header
from tailrace.protocol.records.record import Record, build_batch

compiled: Any = pytest.importorskip(
    "tailrace.protocol.records._kernels", reason="the compiled kernels are not built: setup.py build_ext"
)

BYTES = st.none() | st.binary(max_size=30) | st.binary(min_size=60, max_size=200)
HEADERS = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), BYTES), max_size=3)
OFFSETS = st.integers(0, 60) | st.sampled_from([0, 2**62, 2**63 - 1])


def outcome(call: Callable[[], object]) -> object:
    """The outcome: the result, or the kind of error with its text."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # every kind counts: both kernels must fail alike
        return type(error), str(error)


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    bodies = draw(st.lists(st.tuples(st.integers(-5, 2**45), BYTES, BYTES, HEADERS.map(tuple)), min_size=1, max_size=8))
    return build_batch(
        [Record(0, *body) for body in bodies],
        base_offset=draw(st.integers(0, 50)),
        log_append_time=draw(st.none() | st.integers(0, 2**45) | st.just(2**62)),
        is_control=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytearray:
    batch = draw(batches())
    interesting = st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF])
    for _ in range(draw(st.integers(0, 4))):
        batch[draw(st.integers(0, len(batch) - 1))] = draw(interesting | st.integers(0, 255))
    return batch[: len(batch) - draw(st.sampled_from([0, 0, 0, 1, 30]))]


CHUNKS = st.lists(st.lists(damaged_batches() | batches(), max_size=3).map(b"".join), max_size=3)


@given(CHUNKS, st.integers(0, 63), OFFSETS, OFFSETS, st.booleans())
def test_both_decode_batches_alike(
    chunks: list[bytes], columns: int, from_offset: int, until_offset: int, in_micros: bool
) -> None:
    options = {
        "columns": columns,
        "from_offset": from_offset,
        "until_offset": until_offset,
        "in_micros": in_micros,
    }
    expected = outcome(lambda: twin.records_to_columns(chunks, **options))  # type: ignore[arg-type]
    assert outcome(lambda: compiled.records_to_columns(chunks, **options)) == expected


@given(st.binary(max_size=200), st.integers(0, 30))
def test_both_decode_arbitrary_record_bytes_alike(section: bytes, count: int) -> None:
    header = bytearray(build_batch([Record(0, 0, None, None)])[:HEADER_SIZE])
    header[8:12] = (49 + len(section)).to_bytes(4, "big")
    header[23:27] = max(count - 1, 0).to_bytes(4, "big")
    header[57:61] = count.to_bytes(4, "big")
    options = {"columns": 63, "from_offset": 0, "until_offset": 2**62, "in_micros": False}
    expected = outcome(lambda: twin.records_to_columns([header + section], **options))  # type: ignore[arg-type]
    assert outcome(lambda: compiled.records_to_columns([header + section], **options)) == expected


RECORD_PIECES = st.lists(
    st.binary(max_size=3)
    | st.sampled_from([b"\0", b"\1", b"\2", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\1", b"\x80"]),
    max_size=12,
).map(b"".join)
"""Bytes that look like records more often than chance would have it."""


@given(
    st.lists(RECORD_PIECES.map(lambda body: bytes([2 * (len(body) % 60)]) + body), max_size=4).map(b"".join)
    | damaged_batches().map(lambda batch: bytes(batch[HEADER_SIZE:])),
    st.integers(0, 10),
    st.integers(-1, 20),
    st.sampled_from([0, 5, 2**63 - 1, -(2**63)]),
    st.none() | st.integers(0, 2**50),
    st.booleans(),
)
def test_both_parse_records_alike(
    section: bytes, count: int, last_offset_delta: int, base_timestamp: int, append_time: int | None, dense: bool
) -> None:
    options = {
        "count": count,
        "base_offset": 100,
        "last_offset_delta": last_offset_delta,
        "base_timestamp": base_timestamp,
        "append_time": append_time,
        "dense": dense,
    }
    expected = outcome(lambda: twin.parse_records(section, tuple, **options))  # type: ignore[arg-type]
    assert outcome(lambda: compiled.parse_records(section, tuple, **options)) == expected


@given(st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1), BYTES, BYTES, HEADERS)
def test_both_write_records_alike(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> None:
    expected, written = bytearray(b"before"), bytearray(b"before")
    twin.append_record(expected, offset_delta, timestamp_delta, key, value, headers)
    compiled.append_record(written, offset_delta, timestamp_delta, key, value, headers)
    assert written == expected


def test_both_refuse_the_same_arguments() -> None:
    for arguments in [
        (bytearray(), 0, 2**63, None, None, ()),
        (bytearray(), 0, 0, "text", None, ()),
        (bytearray(), 0, 0, None, 5, ()),
        (bytearray(), 0, 0, None, None, (("surrogate \ud800", b""),)),
        (bytearray(), 0, 0, None, None, ((b"bytes", b""),)),
    ]:
        kinds = set()
        for kernel in (twin, compiled):
            with pytest.raises((OverflowError, TypeError, UnicodeEncodeError, AttributeError)) as caught:
                kernel.append_record(*arguments)
            kinds.add(caught.type)
            assert arguments[0] == b""
        assert len(kinds) == 1


INT32S = st.integers(0, 40) | st.sampled_from([-1, 2**31 - 1, -(2**31)])
BITMAPS = st.none() | st.binary(max_size=3)
FIRSTS = st.sampled_from([0, 0, 0, 1, 7, 2**40])


def offsets(numbers: list[int]) -> bytes:
    return struct.pack(f"{len(numbers)}i", *numbers)


RISING = st.lists(st.integers(0, 40), max_size=10).map(sorted)
BINARY_COLUMNS = st.builds(
    BinaryBuffers,
    BITMAPS,
    (RISING | RISING | st.lists(INT32S, max_size=10)).map(offsets),
    st.binary(min_size=20, max_size=60),
    FIRSTS,
)
LONG_COLUMNS = st.builds(
    LongBuffers,
    BITMAPS,
    st.lists(st.integers(0, 2**45) | st.sampled_from([2**63 - 1, -(2**63), -1]), max_size=10).map(
        lambda numbers: struct.pack(f"{len(numbers)}q", *numbers)
    ),
    FIRSTS,
)
HEADER_COLUMNS = st.builds(
    HeaderBuffers,
    BITMAPS,
    (RISING | st.lists(INT32S, max_size=10)).map(offsets),
    BINARY_COLUMNS,
    BINARY_COLUMNS,
    FIRSTS,
)
ROWS = st.none() | st.lists(st.integers(0, 9) | st.sampled_from([-1, 2**62, -(2**63)]), max_size=12).map(
    lambda rows: struct.pack(f"{len(rows)}q", *rows)
)


@given(
    st.none() | BINARY_COLUMNS,
    st.none() | BINARY_COLUMNS,
    st.none() | HEADER_COLUMNS,
    st.none() | LONG_COLUMNS,
    ROWS,
    st.integers(-1, 5),
    st.integers(0, 12),
    st.sampled_from([0, 70, 100, 10_000]),
    st.sampled_from([1, 3, 1000]),
)
def test_both_encode_columns_alike(
    key: BinaryBuffers | None,
    value: BinaryBuffers | None,
    headers: HeaderBuffers | None,
    timestamps: LongBuffers | None,
    rows: bytes | None,
    start: int,
    stop: int,
    max_bytes: int,
    max_records: int,
) -> None:
    options = {
        "default_timestamp": 7,
        "rows": rows,
        "start": start,
        "stop": stop,
        "max_bytes": max_bytes,
        "max_records": max_records,
    }
    expected = outcome(lambda: twin.encode_columns(key, value, headers, timestamps, **options))  # type: ignore[arg-type]
    assert outcome(lambda: compiled.encode_columns(key, value, headers, timestamps, **options)) == expected


@given(BINARY_COLUMNS, st.integers(0, 12))
def test_both_hash_keys_alike(column: BinaryBuffers, count: int) -> None:
    expected = outcome(lambda: twin.murmur2_column(column, count))
    assert outcome(lambda: compiled.murmur2_column(column, count)) == expected
    expected = outcome(lambda: twin.murmur64_column(column, count))
    assert outcome(lambda: compiled.murmur64_column(column, count)) == expected


@given(
    st.lists(damaged_batches() | batches(), max_size=4).map(b"".join),
    st.integers(-1, 60),
    OFFSETS,
    OFFSETS,
    st.sampled_from([-1, 40, 2**63 - 1]),
    st.sampled_from([-1, -1, 0, 5]),
    OFFSETS,
)
def test_both_walk_alike(
    data: bytes, at: int, next_offset: int, until_offset: int, gap_limit: int, epoch: int, epoch_end: int
) -> None:
    options = {
        "next_offset": next_offset,
        "until_offset": until_offset,
        "gap_limit": gap_limit,
        "epoch": epoch,
        "epoch_end": epoch_end,
    }
    expected = outcome(lambda: twin.walk_batches(data, at, **options))
    assert outcome(lambda: compiled.walk_batches(data, at, **options)) == expected


@given(st.lists(batches(), min_size=1, max_size=5), st.integers(0, 8 * 17 - 1), st.data())
def test_both_see_each_flipped_bit_that_no_checksum_covers(
    parts: list[bytearray], bit: int, data: st.DataObject
) -> None:
    next_offset, starts, position = 0, [], 0
    for part in parts:
        part[:8] = next_offset.to_bytes(8, "big")
        next_offset += int.from_bytes(part[23:27], "big") + 1
        starts.append(position)
        position += len(part)
    content = bytearray(b"".join(parts))
    epoch = int.from_bytes(content[12:16], "big", signed=True)
    options = {"next_offset": 0, "until_offset": 2**62, "gap_limit": -1, "epoch": max(epoch, 0), "epoch_end": 2**63 - 1}
    if epoch < 0:
        for start in starts:
            content[start + 12 : start + 16] = bytes(4)
    assert compiled.walk_batches(content, 0, **options) == (position, next_offset, 0)
    damaged = data.draw(st.sampled_from(starts))
    content[damaged + bit // 8] ^= 1 << bit % 8
    for kernel in (compiled, twin):
        at, _, status = kernel.walk_batches(content, 0, **options)
        assert at < position
        assert status or bit // 8 in range(8, 12), "a length that leaves no whole batch ends the walk too early"


@given(
    st.lists(RECORD_PIECES.map(lambda body: bytes([2 * (len(body) % 60)]) + body), max_size=4).map(b"".join)
    | (damaged_batches() | batches()).map(lambda batch: bytes(batch[HEADER_SIZE:])),
    st.integers(-1, 10),
    st.integers(-1, 3),
    st.sampled_from([0, -1, -6, 5, 2**63 - 1, -(2**63)]),
    st.booleans(),
)
def test_both_check_and_renumber_produced_records_alike(
    section: bytes, count: int, at: int, base_timestamp: int, is_part: bool
) -> None:
    calls: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("check_records", (at, count, base_timestamp, is_part)),
        ("renumber_records", (at, count)),
    )
    for name, arguments in calls:
        expected = outcome(lambda: getattr(twin, name)(section, *arguments))  # noqa: B023  # called at once
        assert outcome(lambda: getattr(compiled, name)(section, *arguments)) == expected  # noqa: B023  # called at once


@given(batches(), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8))
def test_the_check_of_produced_records_finds_the_facts_that_a_reader_finds(batch: bytearray, deltas: list[int]) -> None:
    header = read_header(batch)
    section, count = bytes(batch[HEADER_SIZE:]), header.records_count
    records = compiled.parse_records(
        section,
        Record._make,
        count=count,
        base_offset=0,
        last_offset_delta=count - 1,
        base_timestamp=header.base_timestamp,
        append_time=None,
        dense=True,
    )
    times = [record.timestamp for record in records]
    largest, smallest, all_have_keys, is_in_order = compiled.check_records(section, 0, count, header.base_timestamp)
    assert largest == max(-1, *times)
    assert smallest == min([time for time in times if time != -1], default=2**63 - 1)
    assert all_have_keys is all(record.key is not None for record in records)
    assert is_in_order
    assert compiled.renumber_records(section, 0, count) == section
    moved = bytearray()
    for record, delta in zip(records, deltas, strict=False):
        compiled.append_record(
            moved, delta & 0x7FFFFFFF, record.timestamp - header.base_timestamp, *record[2:4], record.headers
        )
    assert compiled.renumber_records(moved, 0, count) == section


@given(batches(), st.data())
def test_no_part_of_sound_records_is_refused(batch: bytearray, data: st.DataObject) -> None:
    header, section = read_header(batch), bytes(batch[HEADER_SIZE:])
    part = section[: data.draw(st.integers(0, len(section)))]
    compiled.check_records(part, 0, header.records_count, header.base_timestamp, True)
