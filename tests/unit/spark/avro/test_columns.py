"""Schemas as column types, and the schemas that are refused by name."""

import json
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

from tailrace.spark.avro.columns import column_type, narrowed
from tailrace.spark.avro.schema import (
    DEEPEST,
    MOST_TYPES,
    AvroPrimitive,
    AvroRecord,
    SchemaRefused,
    parse_avro_schema,
    takes_null,
)


def _record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def _logical(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ("null", "void"),
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("bytes", "binary"),
        ({"type": "string"}, "string"),
        ({"type": "string", "avro.java.string": "String"}, "string"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        ({"type": "array", "items": "int"}, "array<int>"),
        ({"type": "map", "values": ["null", "long"]}, "map<string,bigint>"),
        (["null", "long"], "bigint"),
        (["long"], "bigint"),
        (["int", "long"], "bigint"),
        (["long", "null", "int"], "bigint"),
        (["float", "double"], "double"),
        (["int", "string"], "struct<member0:int,member1:string>"),
        (["string", "null", "int"], "struct<member0:string,member1:int>"),
        (["int", "long", "string"], "struct<member0:int,member1:bigint,member2:string>"),
        (_logical("int", "date"), "date"),
        (_logical("int", "time-millis"), "time(6)"),
        (_logical("long", "time-micros"), "time(6)"),
        (_logical("long", "timestamp-millis"), "timestamp"),
        (_logical("long", "timestamp-micros"), "timestamp"),
        (_logical("long", "local-timestamp-millis"), "timestamp_ntz"),
        (_logical("long", "local-timestamp-micros"), "timestamp_ntz"),
        (_logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)"),
        (_logical("bytes", "decimal", precision=9), "decimal(9,0)"),
        (_logical("fixed", "decimal", name="D", size=8, precision=18, scale=18), "decimal(18,18)"),
        (_logical("string", "uuid"), "string"),
        (_logical("fixed", "uuid", name="U", size=16), "string"),
        (_logical("fixed", "duration", name="D", size=12), "binary"),
        (_logical("long", "timestamp-nanos"), "bigint"),
        (_logical("long", "date"), "bigint"),
        (
            _record(("a", _record(("b", "int"), name="Inner")), ("c", "Inner")),
            "struct<a:struct<b:int>,c:struct<b:int>>",
        ),
    ],
)
def test_a_type_of_avro_is_a_type_of_spark(schema: Any, column: str) -> None:
    assert column_type(parse_avro_schema(json.dumps(schema))).simpleString() == column


def test_only_unions_with_null_are_nullable() -> None:
    schema = _record(
        ("a", "int"),
        ("b", ["null", "int"]),
        ("c", {"type": "array", "items": ["int", "null"]}),
        ("d", ["int", "string"]),
    )
    column = column_type(parse_avro_schema(json.dumps(schema)))
    assert isinstance(column, StructType)
    assert [field.nullable for field in column.fields] == [False, True, False, False]
    assert column["c"].dataType == ArrayType(IntegerType(), True)
    members = column["d"].dataType
    assert isinstance(members, StructType)
    assert all(field.nullable for field in members.fields)


def test_names_have_the_namespace_around_them() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = {**_record(("a", inner), ("b", "shop.E"), ("c", "E")), "namespace": "shop"}
    parsed = parse_avro_schema(json.dumps(schema))
    assert isinstance(parsed, AvroRecord)
    assert len({str(field.type) for field in parsed.fields}) == 1


def test_references_are_schemas_of_their_own() -> None:
    money = json.dumps({**_record(("amount", "long"), name="Money"), "namespace": "shop"})
    price = json.dumps({**_record(("net", "Money"), name="Price"), "namespace": "shop"})
    order = json.dumps(_record(("price", "shop.Price")))
    column = column_type(parse_avro_schema(order, [money, price]))
    assert column.simpleString() == "struct<price:struct<net:struct<amount:bigint>>>"


def _laughs(levels: int) -> Any:
    """A schema whose types double with each level."""
    schema: Any = _record(("a", "int"), name="L0")
    for level in range(1, levels):
        schema = _record(("a", schema), ("b", f"L{level - 1}"), name=f"L{level}")
    return schema


def _deep(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("string", "not JSON: .* with its quotes"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "not an Avro schema"),
        ("5", "not an Avro schema"),
        ('"Order"', "not an Avro schema: .*Order"),
        ('{"type": "array"}', "'items' is missing"),
        ('{"type": "enum", "name": "E", "symbols": "AB"}', "'?AB'? stands for names"),
        ('{"type": "fixed", "name": "F", "size": "3"}', "fixed F has the size '3'"),
        ("[]", "a union without branches"),
        (json.dumps(_record(("a", "int"), ("a", "int"))), "two fields 'a'"),
        (json.dumps(_record(("next", ["null", "Order"]))), "record Order contains itself"),
        (json.dumps(_record(("children", {"type": "array", "items": "Order"}))), "record Order contains itself"),
        ('{"type": "array", "items": "null"}', "items without bytes"),
        ('{"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}', "items without bytes"),
        (json.dumps({"type": "array", "items": _record(("a", "null"))}), "items without bytes"),
        (json.dumps(_laughs(20)), f"more than {MOST_TYPES} types"),
        (json.dumps(_deep(DEEPEST + 1)), f"deeper than {DEEPEST}"),
        (json.dumps(_deep(400)), f"deeper than {DEEPEST}"),
    ],
)
def test_a_schema_that_cannot_be_decoded_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(SchemaRefused, match=message):
        parse_avro_schema(text)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_record(("a", _logical("bytes", "decimal", precision=39))), "field a: a decimal of 39 digits"),
        (_record(("a", ["null", _record(name="Nothing")])), "field a: record Nothing has no fields"),
    ],
)
def test_a_type_that_spark_lacks_is_refused_by_its_path(schema: Any, message: str) -> None:
    parsed = parse_avro_schema(json.dumps(schema))
    with pytest.raises(SchemaRefused, match=message):
        column_type(parsed)


NESTED = parse_avro_schema(
    json.dumps(
        _record(
            ("id", "long"),
            ("lines", {"type": "array", "items": _record(("sku", "string"), ("count", ["null", "int"]), name="Line")}),
            ("notes", {"type": "map", "values": ["null", _record(("a", "int"), ("b", "int"), name="Note")]}),
            ("either", ["int", "string"]),
        )
    )
)


def test_a_schema_of_the_user_narrows_records_at_any_depth() -> None:
    line = StructType([StructField("count", IntegerType())])
    note = StructType([StructField("b", IntegerType())])
    asked = StructType([StructField("notes", MapType(StringType(), note)), StructField("lines", ArrayType(line))])
    narrow = narrowed(NESTED, asked)
    assert isinstance(narrow, AvroRecord)
    assert [field.name for field in narrow.fields] == ["notes", "lines"]
    assert column_type(narrow).simpleString() == asked.simpleString()
    assert not takes_null(narrow.fields[0].type)
    whole = column_type(NESTED)
    assert narrowed(NESTED, whole) == NESTED
    assert narrowed(AvroPrimitive("int"), IntegerType()) == AvroPrimitive("int")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("ID", LongType()), "field ID: there is no such field; record Order has id, lines"),
        (StructField("id", StringType()), "field id: is bigint, not string"),
        (StructField("lines", ArrayType(StructType([StructField("count", LongType())]))), r"lines\[\].count: is int"),
        (StructField("lines", ArrayType(StructType([StructField("count", IntegerType(), False)]))), "NOT NULL"),
        (StructField("notes", MapType(IntegerType(), StringType())), "field notes: is map"),
        (
            StructField("notes", MapType(StringType(), StringType(), False)),
            r"field notes\[\]: is asked for as NOT NULL",
        ),
        (StructField("either", StringType()), "field either: is struct<member0"),
    ],
)
def test_a_schema_of_the_user_that_does_not_fit_is_refused_by_the_path(field: StructField, message: str) -> None:
    with pytest.raises(SchemaRefused, match=message):
        narrowed(NESTED, StructType([field]))
