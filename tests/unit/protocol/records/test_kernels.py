"""The kernels' results in plain cases. tests/properties/protocol/test_kernels.py compares the two kinds in any case."""

import os
import struct
import subprocess
import sys
from types import ModuleType

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_hash import murmur2
from tailrace.protocol.records import _kernels_twin, kernels
from tailrace.protocol.records.arrow_buffers import BinaryBuffers, Column, HeaderBuffers, LongBuffers, RecordColumns
from tailrace.protocol.records.batch import seal
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.control import SnapshotFooterRecord, build_control_batch
from tailrace.protocol.records.faults import Fault, Walk
from tailrace.protocol.records.record import Record, build_batch

try:
    from tailrace.protocol.records import _kernels as compiled
except ImportError:
    compiled = None

KERNELS = [
    pytest.param(_kernels_twin, id="python"),
    pytest.param(
        compiled,
        id="C",
        marks=pytest.mark.skipif(compiled is None, reason="the compiled kernels are not built: setup.py build_ext"),
    ),
]
EVERYTHING = Column.KEY | Column.VALUE | Column.OFFSET | Column.TIMESTAMP | Column.TIMESTAMP_TYPE | Column.HEADERS
RECORDS = [
    Record(0, 5, b"a", b"one", (("h", b"x"), ("é", None))),
    Record(1, 6, None, b"", ()),
    Record(2, 7, b"bc", None, (("i", b""),)),
]

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def columns_of(
    kernel: ModuleType,
    *batches: bytes | bytearray,
    columns: int = EVERYTHING,
    from_offset: int = 0,
    until_offset: int = 2**62,
    in_micros: bool = False,
) -> RecordColumns:
    result: RecordColumns = kernel.records_to_columns(
        list(batches), columns=columns, from_offset=from_offset, until_offset=until_offset, in_micros=in_micros
    )
    return result


def ints(data: object, kind: str) -> list[int]:
    assert isinstance(data, bytes | bytearray)
    return [number for (number,) in struct.iter_unpack(kind, data)]


def offsets_of(decoded: RecordColumns) -> list[int]:
    return ints(decoded.offset, "q")


def test_records_become_columns(kernel: ModuleType) -> None:
    decoded = columns_of(kernel, build_batch(RECORDS), build_batch(RECORDS[:1], base_offset=3, log_append_time=99))
    assert decoded.row_count == 4
    assert decoded.key == BinaryBuffers(b"\x0d", struct.pack("5i", 0, 1, 1, 3, 4), b"abca")
    assert decoded.value == BinaryBuffers(b"\x0b", struct.pack("5i", 0, 3, 3, 3, 6), b"oneone")
    assert offsets_of(decoded) == [0, 1, 2, 3]
    assert ints(decoded.timestamp, "q") == [5, 6, 7, 99]
    assert ints(decoded.timestamp_type, "i") == [0, 0, 0, 1]
    assert decoded.headers is not None
    assert decoded.headers == HeaderBuffers(
        b"\x0d",
        struct.pack("5i", 0, 2, 2, 3, 5),
        BinaryBuffers(None, struct.pack("6i", 0, 1, 3, 4, 5, 7), "héihé".encode()),
        BinaryBuffers(b"\x0d", struct.pack("6i", 0, 1, 1, 1, 2, 2), b"xx"),
    )


def test_a_column_without_nulls_has_no_validity(kernel: ModuleType) -> None:
    decoded = columns_of(kernel, build_batch([RECORDS[0]]))
    assert decoded.key is not None
    assert decoded.headers is not None
    assert decoded.key.validity is None
    assert decoded.headers.validity is None


def test_columns_that_were_not_asked_for_are_none(kernel: ModuleType) -> None:
    decoded = columns_of(kernel, build_batch(RECORDS), columns=Column.VALUE)
    assert decoded._replace(value=None) == RecordColumns(3, None, None, None, None, None, None)
    assert columns_of(kernel, build_batch(RECORDS), columns=0).row_count == 3


def test_timestamps_may_be_microseconds(kernel: ModuleType) -> None:
    assert ints(columns_of(kernel, build_batch(RECORDS), in_micros=True).timestamp, "q") == [5000, 6000, 7000]
    far = build_batch([Record(0, 2**62, None, None)])
    assert ints(columns_of(kernel, far).timestamp, "q") == [2**62]
    with pytest.raises(CorruptRecords, match="timestamp"):
        columns_of(kernel, far, in_micros=True)
    assert columns_of(kernel, far, in_micros=True, columns=Column.VALUE).row_count == 1


def test_only_the_offsets_asked_for_are_decoded(kernel: ModuleType) -> None:
    chunk = build_batch(RECORDS, base_offset=10) + build_batch(RECORDS, base_offset=20)
    for start, stop in [(0, 100), (11, 21), (12, 13), (13, 20), (10, 10), (22, 23), (23, 100)]:
        expected = [offset for offset in (10, 11, 12, 20, 21, 22) if start <= offset < stop]
        assert offsets_of(columns_of(kernel, chunk, from_offset=start, until_offset=stop)) == expected


def test_control_batches_are_passed_over(kernel: ModuleType) -> None:
    control = build_control_batch([SnapshotFooterRecord()], timestamp=1, base_offset=3)
    chunk = build_batch(RECORDS) + control + build_batch(RECORDS, base_offset=4)
    assert offsets_of(columns_of(kernel, chunk)) == [0, 1, 2, 4, 5, 6]


def test_an_incomplete_batch_at_the_end_is_left_out(kernel: ModuleType) -> None:
    first, second = build_batch(RECORDS), build_batch(RECORDS, base_offset=3)
    for size in range(len(second)):
        assert offsets_of(columns_of(kernel, first + second[:size])) == [0, 1, 2]


def test_a_compressed_batch_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(CorruptRecords, match="batch at offset 0: the batch is still compressed"):
        columns_of(kernel, build_batch(RECORDS, codec=Codec.LZ4))


def test_a_count_that_no_bytes_stand_behind_is_refused(kernel: ModuleType) -> None:
    batch = build_batch(RECORDS, base_offset=7)
    batch[23:27] = (2**31 - 2).to_bytes(4, "big")
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    seal(batch)
    with pytest.raises(CorruptRecords, match="batch at offset 7: the record count"):
        columns_of(kernel, batch)


def test_nothing_gives_empty_columns(kernel: ModuleType) -> None:
    decoded = columns_of(kernel)
    assert decoded.row_count == 0
    assert decoded.key == BinaryBuffers(None, bytes(4), b"")
    assert decoded.headers == HeaderBuffers(None, bytes(4), decoded.key, decoded.key)


def binary(*values: bytes | None, first: int = 0) -> BinaryBuffers:
    """A column of these values, as Arrow has it after `first` other values."""
    rows = [b"skipped"] * first + list(values)
    validity = sum(1 << index for index, value in enumerate(rows) if value is not None)
    offsets = [0]
    for value in rows:
        offsets.append(offsets[-1] + len(value or b""))
    return BinaryBuffers(
        validity.to_bytes(len(rows) // 8 + 1, "little"),
        struct.pack(f"{len(offsets)}i", *offsets),
        b"".join(value or b"" for value in rows),
        first,
    )


DEFAULTS = {"default_timestamp": 50, "rows": None, "start": 0, "stop": 3, "max_bytes": 1 << 20, "max_records": 100}


def test_rows_become_the_records_a_builder_makes(kernel: ModuleType) -> None:
    key, value = binary(b"a", None, b"bc", first=2), binary(b"one", b"", None)
    timestamps = LongBuffers(b"\x03", struct.pack("3q", 7, 5, 0))
    headers = HeaderBuffers(
        None, struct.pack("4i", 0, 2, 2, 3), binary(b"h", "é".encode(), b"i", first=1), binary(b"x", None, b"")
    )
    encoded = kernel.encode_columns(key, value, headers, timestamps, **DEFAULTS)
    expected = [record._replace(timestamp=timestamp) for record, timestamp in zip(RECORDS, (7, 5, 50), strict=True)]
    assert encoded.batch[61:] == build_batch(expected)[61:]
    assert encoded.batch[:61] == bytes(61)
    assert (encoded.row_count, encoded.base_timestamp, encoded.max_timestamp) == (3, 7, 50)


def test_rows_may_be_picked_by_number(kernel: ModuleType) -> None:
    value = binary(b"zero", b"one", b"two")
    rows = struct.pack("3q", 2, 0, 2)
    encoded = kernel.encode_columns(None, value, None, None, **{**DEFAULTS, "rows": rows, "start": 0})
    expected = build_batch([Record(0, 50, None, content) for content in (b"two", b"zero", b"two")])
    assert encoded.batch[61:] == expected[61:]


def test_a_batch_ends_before_it_grows_too_large(kernel: ModuleType) -> None:
    value = binary(*[b"x" * 100] * 10)
    options = {**DEFAULTS, "stop": 10}
    assert kernel.encode_columns(None, value, None, None, **{**options, "max_records": 4}).row_count == 4
    for max_bytes in (0, 61, 150, 300, 1000, 2000):
        encoded = kernel.encode_columns(None, value, None, None, **{**options, "max_bytes": max_bytes})
        assert encoded.row_count >= 1
        assert encoded.row_count == 1 or len(encoded.batch) <= max_bytes
        following = {**options, "start": encoded.row_count, "stop": 10}
        if encoded.row_count < 10:
            assert kernel.encode_columns(None, value, None, None, **following).row_count == 10 - encoded.row_count


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (binary(b"a", b"b"), {}),
        (binary(b"a", b"b", b"c")._replace(first=1), {}),
        (binary(b"a", b"b", b"c")._replace(data=b"ab"), {}),
        (binary(b"a", b"b", b"c")._replace(validity=b""), {}),
        (BinaryBuffers(None, struct.pack("4i", 0, 2, 1, 3), b"abc"), {}),
        (BinaryBuffers(None, struct.pack("4i", -1, 1, 2, 3), b"abc"), {}),
        (BinaryBuffers(None, b"", b"abc"), {}),
        (binary(b"a", b"b", b"c"), {"rows": struct.pack("3q", 0, 3, 1)}),
        (binary(b"a", b"b", b"c"), {"rows": struct.pack("3q", 0, -1, 1)}),
        (binary(b"a", b"b", b"c"), {"rows": struct.pack("3q", 0, 2**63 - 1, 1)}),
        (binary(b"a", b"b", b"c"), {"rows": struct.pack("2q", 0, 1)}),
        (binary(b"a", b"b", b"c"), {"start": 3}),
        (binary(b"a", b"b", b"c"), {"start": -1}),
    ],
)
def test_rows_that_a_column_does_not_have_are_refused(
    kernel: ModuleType, column: BinaryBuffers, options: dict[str, object]
) -> None:
    for place in (0, 1):
        columns = [None, None]
        columns[place] = column  # type: ignore[call-overload]
        with pytest.raises(ValueError, match=r"row"):
            kernel.encode_columns(*columns, None, None, **{**DEFAULTS, **options})


def test_a_header_without_a_key_is_refused(kernel: ModuleType) -> None:
    headers = HeaderBuffers(None, struct.pack("4i", 0, 1, 1, 1), binary(None), binary(b"x"))
    with pytest.raises(ValueError, match="row 0 has a header without a key"):
        kernel.encode_columns(None, None, headers, None, **DEFAULTS)
    lying = HeaderBuffers(None, struct.pack("4i", 0, 2**31 - 1, 1, 1), binary(b"k"), binary(b"x"))
    with pytest.raises(ValueError, match="row 1 lies outside its column"):
        kernel.encode_columns(None, None, lying, None, **DEFAULTS)


def test_keys_are_hashed_as_kafkas_partitioner_does(kernel: ModuleType) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"21", b"foobar", None, bytes(range(256))]
    hashes = ints(kernel.murmur2_column(binary(*keys, first=1), len(keys)), "i")
    assert hashes == [0 if key is None else murmur2(key) for key in keys]
    assert hashes[5] == -973932308
    with pytest.raises(ValueError, match="row 9 lies outside"):
        kernel.murmur2_column(binary(*keys), len(keys) + 1)


def test_contents_are_hashed_to_64_bits(kernel: ModuleType) -> None:
    contents = [b"", b"a", b"abcdefg", b"abcdefgh", b"abcdefghi", None, bytes(range(256))]
    hashes = ints(kernel.murmur64_column(binary(*contents, first=1), len(contents)), "Q")
    assert hashes == [0 if content is None else _kernels_twin.murmur64(content) for content in contents]
    assert len(set(hashes)) == len(contents)
    assert 0 not in (hashes[0], hashes[1]), "0 is for null"
    with pytest.raises(ValueError, match="row 7 lies outside"):
        kernel.murmur64_column(binary(*contents), len(contents) + 1)


def test_a_column_that_is_not_there_is_one_of_nulls(kernel: ModuleType) -> None:
    """The compiled kernel once read through a null pointer here."""
    assert kernel.murmur2_column(None, 2) == bytes(8)
    assert kernel.murmur64_column(None, 2) == bytes(16)
    entries = struct.pack("4i", 0, 1, 1, 1)
    headers = HeaderBuffers(None, entries, binary(b"k"), None)  # type: ignore[arg-type]
    encoded = kernel.encode_columns(None, None, headers, None, **DEFAULTS)
    assert encoded == kernel.encode_columns(None, None, headers._replace(values=binary(None)), None, **DEFAULTS)
    with pytest.raises(ValueError, match="row 0 has a header without a key"):
        kernel.encode_columns(None, None, headers._replace(keys=None), None, **DEFAULTS)  # type: ignore[arg-type]


def test_fault_numbers_and_columns_agree(kernel: ModuleType) -> None:
    if kernel is _kernels_twin:
        assert len(Fault) == len(set(Fault))
    else:
        assert {fault.name: fault.value for fault in Fault} == kernel.FAULT_NUMBERS
        assert {end.name: end.value for end in Walk} == kernel.WALK_NUMBERS


def test_the_environment_can_force_the_twin(kernel: ModuleType) -> None:
    """The other kernels are not loaded: they would cost memory."""
    code = (
        "from tailrace.protocol.records import kernels; import sys; print(kernels.KERNEL,"
        " *(name for name in sys.modules if name.endswith(('_kernels', '_twin'))))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TAILRACE_KERNEL"}
    if kernel is _kernels_twin:
        environment["TAILRACE_KERNEL"] = "python"
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    chosen = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    name, *loaded = chosen.stdout.split()
    assert name == kernel.KERNEL
    assert kernel.__name__ in loaded
    assert kernel is _kernels_twin or len(loaded) == 1
    assert kernels.KERNEL in ("C", "python")
