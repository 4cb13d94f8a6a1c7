"""Batches of a read with decoded columns, and the plan that says which."""

import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.avro import batches, registry
from tailrace.spark.avro.batches import BatchDecoder
from tailrace.spark.avro.columns import CORRUPT_RECORD
from tailrace.spark.avro.plan import Decoding, plan_decoding
from tailrace.spark.reading.source_options import parse_source_formats
from tailrace.spark.source import ROW, TailraceDataSource
from testkit.programs.schema_registry import ScriptedRegistry, framed, respond_with

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": ["null", "string"], "default": None}],
}
PLAIN = {"valueFormat": "avro", "valueSchema": json.dumps(ORDER), "subscribe": "orders"}
CORRUPT = "_corrupt_record"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRegistry]:
    monkeypatch.setattr(registry, "PAUSE_S", 0.0)
    monkeypatch.setattr(registry, "_registries", {})
    with ScriptedRegistry() as server:
        yield server


def _confluent(server: ScriptedRegistry, **more: str) -> dict[str, str]:
    return {"valueFormat": "confluent-avro", "schema.registry.url": server.url, "subscribe": "orders", **more}


def _body(value: Any, schema: Any = ORDER) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def _plan(options: dict[str, str]) -> Decoding:
    decoding = plan_decoding(parse_source_formats(options))
    assert decoding is not None
    return decoding


def _decode(
    options: dict[str, str], values: list[bytes | None], keys: list[bytes | None] | None = None, *names: str
) -> list[dict[str, Any]]:
    decoding = _plan(options)
    row = decoding.row(ROW)
    schema = StructType([field for field in row.fields if not names or field.name in names])
    decoding = pickle.loads(pickle.dumps(decoding.narrowed_to(schema)))  # as Spark does for its workers
    decoder = BatchDecoder(decoding, to_arrow_schema(schema, timezone="UTC"))
    raw = _raw(values, keys if keys is not None else [None] * len(values)).select(decoder.raw_columns)
    found = list(decoder.decode(raw, "orders-3"))
    assert all(batch.schema.equals(to_arrow_schema(schema, timezone="UTC")) for batch in found)
    return [each for batch in found for each in batch.to_pylist()]


def _raw(values: list[bytes | None], keys: list[bytes | None]) -> pa.RecordBatch:
    rows = [
        {"key": key, "value": value, "topic": "orders", "partition": 3, "offset": 100 + number, "timestampType": 0}
        for number, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(ROW, timezone="UTC"))


def test_a_value_is_a_struct_and_a_tombstone_is_null() -> None:
    rows = _decode(PLAIN, [_body({"id": 1, "item": "tea"}), None, _body({"id": 2})], [b"a", b"b", None])
    assert [row["value"] for row in rows] == [{"id": 1, "item": "tea"}, None, {"id": 2, "item": None}]
    assert [row["key"] for row in rows] == [b"a", b"b", None]
    assert [row["offset"] for row in rows] == [100, 101, 102]


def test_a_corrupt_record_fails_with_its_place_and_the_way_out() -> None:
    with pytest.raises(KafkaError) as fault:
        _decode(PLAIN, [_body({"id": 1}), b"\x02", None])
    assert fault.value.code is ErrorCode.INVALID_RECORD
    assert fault.value.detail == (
        "orders-3, offset 101: the value cannot be decoded: its 1 bytes are cut short, or of another schema; "
        "to read on, say mode=PERMISSIVE: such records are then in a column of their own, with the reason and "
        "their bytes"
    )


def test_a_number_that_no_column_holds_is_corrupt() -> None:
    beyond = _body({"id": 2**40}, {**ORDER, "fields": [{"name": "id", "type": "long"}, *ORDER["fields"][1:]]})
    with pytest.raises(
        KafkaError, match="offset 101: the value cannot be decoded: a value that its column cannot hold"
    ):
        _decode(PLAIN, [_body({"id": 1}), beyond])
    rows = _decode({**PLAIN, "mode": "PERMISSIVE"}, [_body({"id": 1}), beyond, _body({"id": 3})])
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, 3]
    assert [row[CORRUPT] and row[CORRUPT]["value"] for row in rows] == [None, beyond, None]


def test_corrupt_records_are_in_their_column_with_reason_and_bytes() -> None:
    options = {**PLAIN, "mode": "PERMISSIVE", "keyFormat": "avro", "keySchema": '"int"'}
    good = _body({"id": 1})
    rows = _decode(options, [good, b"\x02", None, b"", good], [b"\x04", b"\x04", b"\x04\x04", b"", None])
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, None, None, 1]
    assert [row["key"] for row in rows] == [2, 2, None, None, None]
    assert [row[CORRUPT] for row in rows] == [
        None,
        {"reason": "value: its 1 bytes are cut short, or of another schema", "key": b"\x04", "value": b"\x02"},
        {"reason": "key: 1 of its 2 bytes are left over; is it another schema?", "key": b"\x04\x04", "value": None},
        {
            "reason": "key: its 0 bytes are cut short, or of another schema; "
            "value: its 0 bytes are cut short, or of another schema",
            "key": b"",
            "value": b"",
        },
        None,
    ]


def test_only_corrupt_records_may_be_asked_for() -> None:
    rows = _decode({**PLAIN, "mode": "PERMISSIVE"}, [_body({"id": 1}), b"\x02"], None, CORRUPT, "offset")
    assert [row["offset"] for row in rows if row[CORRUPT]] == [101]
    assert set(rows[0]) == {CORRUPT, "offset"}


def test_a_column_that_is_not_asked_for_is_not_decoded() -> None:
    assert _decode(PLAIN, [b"\x02"], [b"k"], "key", "offset") == [{"key": b"k", "offset": 100}]


def test_nulls_of_corrupt_records_are_never_silent() -> None:
    decoding = _plan({**PLAIN, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"})
    asked = StructType([StructField("value", StructType([StructField("id", IntegerType())]))])
    with pytest.raises(
        KafkaError, match=r"mode: PERMISSIVE needs the column bad in .schema\(...\) beside value: `bad` str"
    ):
        decoding.narrowed_to(asked)


def test_a_plan_narrows_to_the_fields_that_are_asked_for() -> None:
    decoding = _plan(PLAIN)
    item = StructType([StructField("value", StructType([StructField("item", StringType())]))])
    decoder = BatchDecoder(decoding.narrowed_to(item), to_arrow_schema(item, timezone="UTC"))
    assert decoder.raw_columns == ["offset", "value"]
    raw = _raw([_body({"id": 1, "item": "tea"})], [None])
    (batch,) = decoder.decode(raw, "orders-3")
    assert batch.to_pylist() == [{"value": {"item": "tea"}}]
    with pytest.raises(
        KafkaError, match="column 'value': field price: there is no such field; record Order has id, item"
    ):
        decoding.narrowed_to(StructType([StructField("value", StructType([StructField("price", LongType())]))]))
    with pytest.raises(KafkaError, match="column 'value': is struct<id:int,item:string>, not binary"):
        decoding.narrowed_to(StructType([StructField("value", BinaryType())]))


def test_the_row_has_the_columns_of_the_formats() -> None:
    source = TailraceDataSource({**PLAIN, "mode": "permissive", "includeHeaders": "true"})
    assert source.schema().simpleString() == (
        "struct<key:binary,value:struct<id:int,item:string>,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>,"
        f"_corrupt_record:{CORRUPT_RECORD.simpleString()}>"
    )
    assert source.schema()["value"].nullable  # tombstones


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**PLAIN, "valueSchema": "Order"}, "option valueSchema: not JSON"),
        (
            {**PLAIN, "valueSchema": '{"type": "array", "items": "null"}'},
            "option valueSchema: an array of items without",
        ),
        (
            {**PLAIN, "valueSchema": '{"type":"bytes","logicalType":"decimal","precision":50}'},
            "option valueSchema: a decimal of 50 digits",
        ),
        (
            {
                **PLAIN,
                "keyFormat": "avro",
                "keySchema": '{"type":"record","name":"K","fields":[{"name":"a","type":"int","default":2147483648}]}',
            },
            "option keySchema: field a: the default '2147483648' is not of its type",
        ),
    ],
)
def test_a_schema_of_an_option_is_refused_with_its_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        _plan(options)


def test_the_rows_go_in_slices_of_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SLICE_BYTES", 100)
    options = {"valueFormat": "avro", "valueSchema": '"bytes"', "subscribe": "orders"}
    sizes = [1, 1, 300, 1, 1, 90, 90, 90, 0, 1]
    decoding = _plan(options)
    schema = StructType([StructField("value", BinaryType())])
    decoder = BatchDecoder(decoding.narrowed_to(schema), to_arrow_schema(schema, timezone="UTC"))
    raw = _raw([_body(b"x" * size, "bytes") for size in sizes], [None] * len(sizes))
    found = list(decoder.decode(raw, "orders-3"))
    assert [len(value) for batch in found for value in batch.column("value").to_pylist()] == sizes
    assert all(batch.num_rows for batch in found)
    assert len(found) > 3
    assert all(sum(map(len, batch.column("value").to_pylist()[1:])) <= 100 for batch in found)


def test_an_empty_batch_has_no_slices() -> None:
    schema = StructType([StructField("value", BinaryType())])
    decoding = _plan({"valueFormat": "avro", "valueSchema": '"bytes"', "subscribe": "orders"}).narrowed_to(schema)
    assert list(BatchDecoder(decoding, to_arrow_schema(schema, timezone="UTC")).decode(_raw([], []), "orders-3")) == []


def test_each_record_names_its_writers_schema(server: ScriptedRegistry) -> None:
    """The reader's is the latest of the subject when the read is planned."""
    old = server.register("orders-value", {**ORDER, "fields": ORDER["fields"][:1]})
    new = server.register("orders-value", ORDER)
    values: list[bytes | None] = [
        framed(old, b"\x02"),
        framed(new, _body({"id": 2, "item": "tea"})),
        None,
        framed(old, b"\x06"),
    ]
    rows = _decode(_confluent(server), values)
    assert [row["value"] for row in rows] == [
        {"id": 1, "item": None},
        {"id": 2, "item": "tea"},
        None,
        {"id": 3, "item": None},
    ]
    assert sorted(asked.path for asked in server.asked) == [
        f"/schemas/ids/{old}",
        f"/schemas/ids/{new}",
        "/subjects/orders-value/versions/latest",
    ]


def test_a_reader_schema_may_be_given(server: ScriptedRegistry) -> None:
    schema_id = server.register("orders-value", ORDER)
    wider = {**ORDER, "name": "Mine", "fields": [{"name": "id", "type": "double"}]}
    options = _confluent(server, valueSchema=json.dumps(wider))
    assert [row["value"] for row in _decode(options, [framed(schema_id, _body({"id": 2}))])] == [{"id": 2.0}]
    assert [asked.path for asked in server.asked] == [f"/schemas/ids/{schema_id}"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "it begins with nothing, and confluent-avro with a byte 00 .*; is it valueFormat=avro"),
        (b"\x01abcd", "it begins with 01, and confluent-avro with a byte 00"),
        (b"\x00abc", "it has 4 bytes, and confluent-avro with a byte 00 and the 4 bytes of a schema id"),
        (framed(77, b"\x02"), "the schema registry has no schema 77"),
        (framed(1, b""), r"its 0 bytes are cut short, or of another schema \(schema 1\)"),
        (
            framed(2, b"\x02"),
            "schema 2 cannot be read as that of the column: written as string, to be read as record Order",
        ),
        (framed(3, b"\x02"), "schema 3 of http.* is JSON, not AVRO"),
    ],
)
def test_a_record_that_is_not_of_the_registry_is_corrupt(server: ScriptedRegistry, value: bytes, reason: str) -> None:
    server.register("orders-value", ORDER)
    server.register("other", "string")
    server.register("other", {}, schemaType="JSON")
    server._schemas[2] = {"schema": '"string"'}
    with pytest.raises(KafkaError, match=f"orders-3, offset 100: the value cannot be decoded: {reason}"):
        _decode(_confluent(server), [value])
    (row,) = _decode(_confluent(server, mode="PERMISSIVE"), [value])
    assert row["value"] is None
    assert row[CORRUPT]["value"] == value


def test_a_registry_that_fails_is_no_fault_of_the_record(server: ScriptedRegistry) -> None:
    schema_id = server.register("orders-value", ORDER)
    server.scripts[f"/schemas/ids/{schema_id}"] = [respond_with(500)]
    with pytest.raises(KafkaError, match="does not answer for schema 1, 3 times asked"):
        _decode(_confluent(server, mode="PERMISSIVE"), [framed(schema_id, b"\x02")])


def test_ids_that_the_registry_lacks_are_asked_for_once_and_not_without_end(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_UNKNOWN", 3)
    server.register("orders-value", ORDER)
    options = _confluent(server, mode="PERMISSIVE")
    rows = _decode(options, [framed(number, b"\x02") for number in (10, 11, 12, 10, 11, 12)])
    assert len(server.asked) == 1 + 3
    assert all(row[CORRUPT]["reason"].startswith("value: the schema registry has no schema 1") for row in rows)
    with pytest.raises(KafkaError, match="nor 3 others of this task's values; is schema.registry.url the registry of"):
        _decode(options, [framed(number, b"\x02") for number in range(10, 20)])


def test_the_decoders_of_a_task_are_bounded(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_MOST_DECODERS", 2)
    ids = [server.register("orders-value", ORDER) for _ in range(4)]
    values: list[bytes | None] = [framed(schema_id, _body({"id": schema_id})) for schema_id in (*ids, *ids)]
    rows = _decode(_confluent(server), values)
    assert [row["value"]["id"] for row in rows] == [*ids, *ids]
    assert len(server.asked) == 1 + 4


def test_a_subject_that_is_missing_is_named_with_the_way_out(server: ScriptedRegistry) -> None:
    with pytest.raises(
        KafkaError,
        match="option valueFormat: the schema registry has no subject orders-value .* say its name as valueSubject",
    ):
        _plan(_confluent(server))
    server.register("shop.Order", {"type": "array", "items": "null"})
    with pytest.raises(KafkaError, match="subject shop.Order of http.*: an array of items without bytes"):
        _plan(_confluent(server, valueSubject="shop.Order"))
    server.register("wide", {"type": "bytes", "logicalType": "decimal", "precision": 50})
    with pytest.raises(KafkaError, match="option valueSubject: the latest schema of wide: a decimal of 50 digits"):
        _plan(_confluent(server, valueSubject="wide"))
