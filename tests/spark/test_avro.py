"""Keys and values in Avro as columns, in a session of Spark."""

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tailrace.client.blocking import Producer
from testkit.programs.schema_registry import ScriptedRegistry, framed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Load = Callable[..., DataFrame]
Write = Callable[..., None]

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "opens", "type": ["null", {"type": "int", "logicalType": "time-millis"}], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "count", "type": ["int", "string"]},
        ]}}},
        {"name": "notes", "type": {"type": "map", "values": ["null", "double"]}},
    ],
}  # fmt: skip
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "price": Decimal("-1.25"),
        "at": NOON,
        "opens": 5_000,
        "state": "PAID",
        "lines": [{"sku": "tea", "count": 2}, {"sku": "milk", "count": "few"}],
        "notes": {"a": 1.5, "b": None},
    }


def _body(value: Any, schema: Any = ORDER) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


@pytest.fixture
def write(bootstrap: str, topic: str) -> Write:
    """Send values to partition 1 of the topic."""

    def write(*values: bytes | None, key: bytes | None = None) -> None:
        with Producer(bootstrap) as producer:
            for value in values:
                producer.send(topic, value, key=key, partition=1)
            producer.flush()

    return write


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry() as registry:
        yield registry


PLAIN = {"valueFormat": "avro", "valueSchema": json.dumps(ORDER)}


def _confluent(registry: ScriptedRegistry, **more: str) -> dict[str, str]:
    url = {"schema.registry.url": registry.url, "basic.auth.user.info": "alice:secret"}
    return {"valueFormat": "confluent-avro", **url, **more}


def test_values_are_columns_of_their_schema(load: Load, write: Write) -> None:
    write(_body(_order(1)), None, key=_body(7, "int"))
    frame = load(**PLAIN, keyFormat="avro", keySchema='"int"')
    first, second = frame.orderBy("offset").collect()
    assert first.key == 7
    assert second.value is None
    chosen = frame.where("value.id = 1").selectExpr(
        "value.price",
        "unix_millis(value.at)",
        "value.state",
        "CAST(value.opens AS STRING)",
        "value.lines",
        "value.notes",
    )
    assert tuple(chosen.first() or ()) == (
        Decimal("-1.25"),
        1_769_860_800_000,
        "PAID",
        "00:00:05",
        [Row(sku="tea", count=Row(member0=2, member1=None)), Row(sku="milk", count=Row(member0=None, member1="few"))],
        {"a": 1.5, "b": None},
    )


def test_only_the_fields_of_the_users_schema_are_read(load: Load, write: Write) -> None:
    write(_body(_order(1)), _body(_order(2)))
    frame = load("offset bigint, value struct<state string, lines array<struct<sku string>>>", **PLAIN)
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == [0, 1]
    assert rows[0].value == Row(state="PAID", lines=[Row(sku="tea"), Row(sku="milk")])
    with pytest.raises(
        PySparkException, match="column 'value': field colour: there is no such field; record Order has id"
    ):
        load("value struct<colour string>", **PLAIN).count()


def test_a_corrupt_record_fails_the_read_with_its_place(load: Load, write: Write, topic: str) -> None:
    write(_body(_order(1)), b"\x02", _body(_order(2)))
    with pytest.raises(PySparkException, match=f"{topic}-1, offset 1: the value cannot be decoded: .*mode=PERMISSIVE"):
        load(**PLAIN).selectExpr("value.id").collect()


def test_corrupt_records_are_in_a_column(load: Load, write: Write) -> None:
    write(_body(_order(1)), b"\x02", None, key=b"k")
    rows = load(**PLAIN, mode="PERMISSIVE", columnNameOfCorruptRecord="bad").orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [1, None, None]
    assert [row.bad for row in rows] == [
        None,
        Row(reason="value: its 1 bytes are cut short, or of another schema", key=b"k", value=b"\x02"),
        None,
    ]
    with pytest.raises(PySparkException, match=r"option mode: PERMISSIVE needs the column _corrupt_record in .schema"):
        load("value struct<id bigint>", **PLAIN, mode="PERMISSIVE").count()


def test_records_of_a_registry_are_read_by_the_latest_schema(
    load: Load, write: Write, registry: ScriptedRegistry, topic: str
) -> None:
    old = registry.register(f"{topic}-value", {**ORDER, "fields": ORDER["fields"][:1]})
    now = {**ORDER, "fields": [ORDER["fields"][0], {"name": "currency", "type": "string", "default": "EUR"}]}
    new = registry.register(f"{topic}-value", now)
    write(framed(old, _body(1, "long")), framed(new, _body({"id": 2, "currency": "CHF"}, now)))
    frame = load(**_confluent(registry))
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,currency:string>"
    assert sorted(tuple(row.value) for row in frame.collect()) == [(1, "EUR"), (2, "CHF")]
    assert {asked.authorization for asked in registry.asked} == {"Basic YWxpY2U6c2VjcmV0"}


def test_a_registry_without_the_schema_of_a_record_is_named(
    load: Load, write: Write, registry: ScriptedRegistry, topic: str
) -> None:
    registry.register(f"{topic}-value", ORDER)
    write(framed(99, b""))
    with pytest.raises(PySparkException) as fault:
        load(**_confluent(registry)).collect()
    assert f"{topic}-1, offset 0: the value cannot be decoded: the schema registry has no schema 99" in str(fault.value)
    assert f"{registry.url}/schemas/ids/99" in str(fault.value)
    assert "secret" not in str(fault.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "avro", "valueSchema": "Order"}, "option valueSchema: not JSON"),
        ({"valueFormat": "xml"}, "option valueFormat: must be one of binary, avro, confluent-avro"),
        ({"valueFormat": "confluent-avro"}, "option schema.registry.url: is required"),
    ],
)
def test_a_mistake_fails_when_the_read_is_planned(load: Load, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        load(**options)
    with pytest.raises(PySparkException, match=message):
        load("offset bigint", **options).count()


def test_a_stream_reads_columns_and_goes_on_after_a_restart(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    write: Write,
    registry: ScriptedRegistry,
    tmp_path: Path,
) -> None:
    schema_id = registry.register(f"{topic}-value", ORDER)
    options = {
        **_confluent(registry, mode="PERMISSIVE"),
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }

    def run() -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        frame = spark.readStream.format("tailrace").options(**options).load()
        writer = frame.selectExpr("offset", "value.id", "_corrupt_record.reason").writeStream
        writer = writer.foreachBatch(lambda batch, number: rows.extend(map(tuple, batch.collect())))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(rows)

    write(framed(schema_id, _body(_order(1))), None)
    assert run() == [(0, 1, None), (1, None, None)]
    write(framed(schema_id, _body(_order(2))), framed(schema_id, b"\x02"))
    reason = f"value: its 1 bytes are cut short, or of another schema (schema {schema_id})"
    assert run() == [(2, 2, None), (3, None, reason)]


def test_a_stream_keeps_the_schema_with_which_it_was_planned(
    spark: SparkSession, bootstrap: str, topic: str, write: Write, registry: ScriptedRegistry, tmp_path: Path
) -> None:
    """A version without the field that the query uses comes between its batches."""
    has_id = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long", "default": -1}]}
    has_name = {**has_id, "fields": [{"name": "name", "type": "string"}]}
    old = registry.register(f"{topic}-value", has_id)
    later: list[int] = []
    rows: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, number: int) -> None:
        rows.extend(map(tuple, batch.collect()))
        if not later:
            later.append(registry.register(f"{topic}-value", has_name))
            write(framed(later[0], _body("a", "string")), framed(old, _body(3, "long")))

    options = {**_confluent(registry), "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
    reader = spark.readStream.format("tailrace").options(**options).option("kafka.bootstrap.servers", bootstrap)
    writer = reader.load().selectExpr("offset", "value.id").writeStream.foreachBatch(take)
    write(framed(old, _body(1, "long")), framed(old, _body(2, "long")))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(rows) == [(0, 1), (1, 2), (2, -1), (3, 3)]


def test_a_mistake_of_a_stream_is_the_last_line(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Spark hides exceptions of the method that makes a stream's reader; exceptions of its schema are shown."""
    reader = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = reader.options(**PLAIN, mode="PERMISSIVE").schema("value struct<id bigint>").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match="option mode: PERMISSIVE needs the column _corrupt_record"):
        query.awaitTermination()


def test_a_view_of_sql_has_the_columns(spark: SparkSession, bootstrap: str, topic: str, write: Write) -> None:
    write(_body("tea", "string"))
    options = (
        f"`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}', valueFormat 'avro', valueSchema '\"string\"'"
    )
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW avro_orders USING tailrace OPTIONS ({options})")
    assert [row.value for row in spark.sql("SELECT value FROM avro_orders").collect()] == ["tea"]
