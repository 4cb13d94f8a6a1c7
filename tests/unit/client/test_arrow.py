"""Records as Arrow and back: Spark's row schema exactly, any columns, bounded rows."""

import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from tailrace.client.arrow import (
    HEADERS_TYPE,
    SCHEMA,
    partition_batches,
    partitions_for_keys,
    record_batches,
    schema_of,
)
from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.key_hash import partition_for_key
from tailrace.protocol.records.batch import HEADER_SIZE, read_header, seal, stamp_log_append_time, validate_produced
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.control import SnapshotFooterRecord, build_control_batch
from tailrace.protocol.records.record import Record, build_batch, read_records

RECORDS = [
    Record(0, 1_700_000_000_123, b"a", b"one", (("h", b"x"), ("é", None))),
    Record(1, -1, None, b"", ()),
    Record(2, 7, b"bc", None, (("i", b""),)),
]


def rows(*chunks: bytes | bytearray, **options: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for batch in record_batches(chunks, topic="orders", partition=4, **options):  # type: ignore[arg-type]
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def offsets(*chunks: bytes | bytearray, **options: object) -> list[object]:
    return [row["offset"] for row in rows(*chunks, columns=["offset"], **options)]


def numbered(count: int, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytearray:
    records = [Record(0, i, b"k%d" % i, b"v" * (i % 50)) for i in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec)


def test_a_record_becomes_sparks_row() -> None:
    assert rows(build_batch(RECORDS, base_offset=10)) == [
        {
            "key": b"a",
            "value": b"one",
            "topic": "orders",
            "partition": 4,
            "offset": 10,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"x"}, {"key": "é", "value": None}],
        },
        {
            "key": None,
            "value": b"",
            "topic": "orders",
            "partition": 4,
            "offset": 11,
            "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
            "timestampType": 0,
            "headers": None,
        },
        {
            "key": b"bc",
            "value": None,
            "topic": "orders",
            "partition": 4,
            "offset": 12,
            "timestamp": datetime(1970, 1, 1, 0, 0, 0, 7000, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "i", "value": b""}],
        },
    ]


def test_the_schema_is_the_one_spark_derives() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    row = types.StructType(
        [
            types.StructField("key", types.BinaryType()),
            types.StructField("value", types.BinaryType()),
            types.StructField("topic", types.StringType()),
            types.StructField("partition", types.IntegerType()),
            types.StructField("offset", types.LongType()),
            types.StructField("timestamp", types.TimestampType()),
            types.StructField("timestampType", types.IntegerType()),
            types.StructField("headers", types.ArrayType(header)),
        ]
    )
    assert to_arrow_schema(row, timezone="UTC").equals(SCHEMA)
    (batch,) = record_batches([build_batch(RECORDS)], topic="t", partition=0)
    assert batch.schema.equals(SCHEMA)


def test_columns_come_in_the_order_asked_for() -> None:
    names = ["headers", "offset", "topic", "value"]
    (batch,) = record_batches([build_batch(RECORDS)], topic="t", partition=0, columns=names)
    assert batch.schema.equals(schema_of(names))
    assert batch.schema.names == names
    with pytest.raises(KafkaError, match="no column 'ofset'"):
        schema_of(["ofset"])


def test_rows_can_be_counted_without_any_column() -> None:
    batches = record_batches([build_batch(RECORDS)], topic="t", partition=0, columns=["partition"])
    assert [batch.num_rows for batch in batches] == [3]


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_decoded(codec: Codec) -> None:
    assert rows(build_batch(RECORDS, codec=codec)) == rows(build_batch(RECORDS))


def test_append_time_is_every_rows_timestamp_and_says_so() -> None:
    batch = build_batch(RECORDS)
    stamp_log_append_time(batch, 0, 5000)
    found = rows(batch, columns=["timestamp", "timestampType"])
    assert found == [{"timestamp": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "timestampType": 1}] * 3


def test_an_offset_range_is_cut_out_of_the_batches() -> None:
    chunk = numbered(10) + numbered(10, 10, Codec.ZSTD) + numbered(10, 20)
    assert offsets(chunk, from_offset=5, until_offset=25) == list(range(5, 25))
    assert offsets(chunk, from_offset=12, until_offset=13) == [12]
    assert offsets(chunk, from_offset=30) == []


def test_an_incomplete_batch_and_control_batches_are_left_out() -> None:
    control = build_control_batch([SnapshotFooterRecord()], timestamp=1, base_offset=3)
    chunk = numbered(3) + control + numbered(2, 4) + numbered(2, 6)[:-1]
    assert offsets(chunk, numbered(1, 6)) == [0, 1, 2, 4, 5, 6]


def test_batches_have_at_most_the_rows_asked_for() -> None:
    chunks = [numbered(7, base) for base in range(0, 70, 7)] + [numbered(100, 70, Codec.LZ4)]
    for max_rows in (1, 3, 7, 10, 20, 1000):
        sizes = [batch.num_rows for batch in record_batches(chunks, topic="t", partition=0, max_rows=max_rows)]
        assert sum(sizes) == 170
        assert max(sizes) <= max_rows
        assert min(sizes) >= 1
        assert offsets(*chunks, max_rows=max_rows) == list(range(170))


def test_damage_names_the_partition_and_the_batch() -> None:
    chunk = numbered(3) + numbered(3, 3)
    chunk[-1] ^= 1
    with pytest.raises(CorruptRecords, match=r"orders-4: batch at offset 3 states checksum"):
        rows(chunk)
    unknown = numbered(3)
    unknown[22] |= 6
    seal(unknown)
    with pytest.raises(CorruptRecords, match=r"orders-4: codec 6") as caught:
        rows(unknown)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def _bad(how: str) -> bytearray:
    """A batch at offsets 3 to 5 that cannot be decoded."""
    batch = numbered(3, 3, Codec.GZIP if how == "codec" else Codec.NONE)
    match how:
        case "checksum":
            batch[-1] ^= 1
        case "format":
            batch[16] = 1
        case "record":
            batch[HEADER_SIZE] = 0x7F
        case "codec":
            batch[HEADER_SIZE] ^= 0xFF
        case "count":
            batch[60] = 2
    if how != "checksum":
        seal(batch)
    return batch


@pytest.mark.parametrize("how", ["checksum", "format", "record", "codec", "count"])
@pytest.mark.parametrize("are_separate", [False, True], ids=["in one chunk", "alone"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_corrupt_batch_raises_or_is_left_out(
    how: str, are_separate: bool, codec: Codec, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [numbered(3, codec=codec), _bad(how), numbered(3, 6, codec), numbered(3, 9)]
    chunks = parts if are_separate else [bytearray().join(parts)]
    with pytest.raises(CorruptRecords, match=r'orders-4: a batch of .* at offsets 3 to 5 .*on_corrupt="skip"'):
        offsets(*chunks, corrupt=CorruptBatches())
    skipping = CorruptBatches("skip")
    assert offsets(*chunks, corrupt=skipping) == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert (skipping.batches, skipping.offsets) == (1, 3)
    (line,) = caplog.messages
    assert "orders-4: a batch of" in line
    assert offsets(*chunks, corrupt=skipping, from_offset=6, until_offset=9) == [6, 7, 8]
    assert skipping.batches == 1, "the batch is outside the range"


def test_a_bomb_is_stopped_by_the_readers_limit() -> None:
    bomb = build_batch([Record(0, 0, None, bytes(1_000_000))], codec=Codec.ZSTD)
    with pytest.raises(CorruptRecords, match="more than 1000 bytes"):
        rows(bomb, max_bytes=1000)


def test_keys_go_where_every_kafka_client_sends_them() -> None:
    keys = [b"a", None, b"", b"key-17", "clé".encode()]
    expected = [5 if key is None else partition_for_key(key, 12) for key in keys]
    assert partitions_for_keys(pa.array(keys), 12, keyless=5).tolist() == expected
    assert partitions_for_keys(pa.array(keys)[1:], 12, keyless=5).tolist() == expected[1:]
    assert partitions_for_keys(pa.array(keys, pa.large_binary()), 12, keyless=5).tolist() == expected
    assert partitions_for_keys(pa.nulls(3), 12, keyless=5).tolist() == [5, 5, 5]
    assert partitions_for_keys(pa.array([], pa.binary()), 12, keyless=5).tolist() == []


def written(table: pa.RecordBatch, partitions: list[int], **options: object) -> dict[int, list[Record]]:
    """The rows, read back by partition."""
    found: dict[int, list[Record]] = {}
    for made in partition_batches(
        table["key"],
        table["value"],
        np.array(partitions, np.int64),
        default_timestamp=99,
        **options,  # type: ignore[arg-type]
    ):
        header = validate_produced(made.batch, produce_version=9)
        assert header.records_count == made.row_count
        found.setdefault(made.partition, []).extend(read_records(made.batch, strict=True))
    return found


@pytest.mark.parametrize("codec", Codec)
def test_rows_become_batches_per_partition_in_order(codec: Codec) -> None:
    table = pa.record_batch(
        {"key": pa.array([b"a", None, b"c", b"d"], pa.binary()), "value": pa.array(["1", "2", None, "4"])}
    )
    assert written(table, [1, 0, 1, 1], codec=codec) == {
        0: [Record(0, 99, None, b"2")],
        1: [Record(0, 99, b"a", b"1"), Record(1, 99, b"c", None), Record(2, 99, b"d", b"4")],
    }


def test_slices_headers_and_timestamps_are_respected() -> None:
    headers = pa.array(
        [[("skipped", b"")], [("h", b"x"), ("é", None)], None, []],
        HEADERS_TYPE,
    )
    timestamps = pa.array([0, 1_999_999, None, -1], pa.timestamp("us", tz="UTC"))
    table = pa.record_batch({"key": pa.array([b"s", b"a", b"b", b"c"]), "value": pa.array([b"s", b"1", b"2", b"3"])})
    found = written(table.slice(1), [0, 0, 0], headers=headers.slice(1), timestamps=timestamps.slice(1))
    assert found == {
        0: [
            Record(0, 1999, b"a", b"1", (("h", b"x"), ("é", None))),
            Record(1, 99, b"b", b"2"),
            Record(2, -1, b"c", b"3"),
        ]
    }


def test_batches_stay_below_the_size_asked_for() -> None:
    values = [b"x" * (i % 300) for i in range(1000)] + [b"y" * 5000]
    table = pa.record_batch({"key": pa.nulls(1001), "value": pa.array(values)})
    made = list(
        partition_batches(table["key"], table["value"], np.zeros(1001, np.int64), default_timestamp=1, max_bytes=2000)
    )
    assert [len(chunk.batch) > 2000 for chunk in made] == [False] * (len(made) - 1) + [True]
    assert [record.value for chunk in made for record in read_records(chunk.batch)] == values


@pytest.mark.parametrize("highest", [2**15 - 1, 2**15, 2**31 - 1])
def test_rows_keep_their_order_in_each_of_many_partitions(highest: int) -> None:
    partitions = np.array([highest, 7, highest, 0, 7, highest], np.int64)
    values = pa.array([b"%d" % row for row in range(6)])
    made = partition_batches(None, values, partitions, default_timestamp=1)
    found = [(chunk.partition, [record.value for record in read_records(chunk.batch)]) for chunk in made]
    assert found == [(0, [b"3"]), (7, [b"1", b"4"]), (highest, [b"0", b"2", b"5"])]


def test_no_rows_make_no_batches() -> None:
    empty = pa.array([], pa.binary())
    assert list(partition_batches(empty, empty, np.array([], np.int64), default_timestamp=1)) == []


def test_read_records_can_be_written_again() -> None:
    chunk = build_batch([*RECORDS[:1], *RECORDS[2:]], base_offset=3)
    (batch,) = record_batches([chunk], topic="t", partition=0)
    (made,) = partition_batches(
        batch["key"],
        batch["value"],
        np.zeros(2, np.int64),
        headers=batch["headers"],
        timestamps=batch["timestamp"],
        default_timestamp=0,
    )
    assert made.batch[61:] == chunk[61:]
    assert read_header(made.batch).max_timestamp == read_header(chunk).max_timestamp


def test_a_header_that_is_null_as_a_whole_is_refused_like_one_without_a_key() -> None:
    headers = pa.array([[None, {"key": "a", "value": b"1"}]], HEADERS_TYPE)
    with pytest.raises(ValueError, match="row 0 has a header without a key"):
        list(partition_batches(None, pa.array([b"v"]), np.zeros(1, np.int64), headers=headers, default_timestamp=1))


def test_no_column_imports_pandas() -> None:
    """The import would take 0.4 s of the first batch of each of Spark's workers."""
    program = (
        "import sys\n"
        "from tailrace.client.arrow import SCHEMA, record_batches\n"
        "from tailrace.protocol.records.record import Record, build_batch\n"
        "batch = build_batch([Record(0, 7, b'k', b'v', ())], base_offset=0)\n"
        "(rows,) = record_batches([batch], topic='t', partition=3, columns=SCHEMA.names)\n"
        "assert (rows.column('topic')[0].as_py(), rows.column('partition')[0].as_py()) == ('t', 3)\n"
        "print('pandas' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert ended.stdout == "False\n"
