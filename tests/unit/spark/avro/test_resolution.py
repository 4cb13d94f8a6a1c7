"""The evolution of schemas: values of a writer's schema as values of a reader's."""

import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from tailrace.spark.avro.decoding import BodyDecoder
from tailrace.spark.avro.resolution import SchemasDiffer, Undecodable, resolve
from tailrace.spark.avro.schema import parse_avro_schema


def _record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    each = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "fields": each, **more}


def _written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def _read(writer: Any, reader: Any, value: Any) -> Any:
    written, read = parse_avro_schema(json.dumps(writer)), parse_avro_schema(json.dumps(reader))
    convert = resolve(written, read)
    decoded = BodyDecoder(written).decode(_written(writer, value))
    return decoded if convert is None else convert(decoded)


def _enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


_LONG_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_LONG_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_A, _B = _record(("x", "int"), name="A"), _record(("x", "int"), name="B")


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", 5, 5),
        ("long", "double", 2**60 + 1, float(2**60)),
        ("float", "double", 1.5, 1.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", "é".encode(), "é"),
        ("int", ["null", "int"], 5, 5),
        (["null", "int"], "int", 5, 5),
        (["int", "string"], "string", "a", "a"),
        ("int", ["string", "int"], 5, {"member1": 5}),
        ("int", ["string", "long"], 5, {"member1": 5}),
        ("null", ["null", "long", "string"], None, None),
        (["null", "string"], ["long", "string", "null"], "a", {"member1": "a"}),
        (["int", "string"], ["string", "null", "double"], 5, {"member1": 5.0}),
        (["int", "long"], ["null", "long"], 5, 5),
        (_B, ["null", _A, _B], {"x": 1}, {"member1": {"x": 1}}),
        (["null", _B], [_A, "null", _B], {"x": 1}, {"member1": {"x": 1}}),
        ([_A, _B], _B, ("B", {"x": 1}), {"x": 1}),
        (_enum("A", "B"), _enum("B", "C", default="C"), "A", "C"),
        (_enum("A", "B"), _enum("B", "C"), "B", "B"),
        (_record(("a", "int"), ("b", "string")), _record(("b", "string")), {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
        (
            _record(("a", "int")),
            _record(("a", "long"), {"name": "b", "type": "bytes", "default": "\u00ff"}),
            {"a": 1},
            {"a": 1, "b": b"\xff"},
        ),
        (
            _record(("old", "int")),
            _record({"name": "new", "type": "int", "aliases": ["old"]}),
            {"old": 1},
            {"new": 1},
        ),
        (_record(("a", "int"), name="Old"), _record(("a", "int"), name="New"), {"a": 1}, {"a": 1}),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1], [1.0]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "double"]}, {"a": 1}, {"a": 1.0}),
        (_LONG_MILLIS, _LONG_MICROS, 5, 5_000),
        (_LONG_MICROS, _LONG_MILLIS, 5, 5),
        ("long", _LONG_MILLIS, 5, 5_000),
        (_LONG_MILLIS, "long", 5, 5),
        (
            "bytes",
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x7d",
            Decimal("1.25"),
        ),
    ],
)
def test_a_value_is_read_by_another_schema(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert _read(writer, reader, value) == expected


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        (["null", "int"], None, None),
        (["int", "null"], 3, 3),
        (["int", "string"], "a", {"member1": "a"}),
        (_enum("A", "B"), "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u00ff", b"\x00\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\u007b", Decimal("12.3")),
        (_LONG_MILLIS, 7, 7_000),
        ("double", 1, 1.0),
        ({"type": "double"}, 1, 1.0),
        ({"type": "map", "values": "int"}, {"default": 1}, {"default": 1}),
        ({"type": "array", "items": _enum("A")}, ["A"], ["A"]),
        ({"type": "map", "values": "bytes"}, {"k": "a"}, {"k": b"a"}),
        (
            _record(("a", "int"), {"name": "b", "type": "string", "default": "x"}, name="I"),
            {"a": 1},
            {"a": 1, "b": "x"},
        ),
    ],
)
def test_a_default_has_the_form_of_values(kind: Any, default: Any, expected: Any) -> None:
    reader = _record({"name": "x", "type": kind, "default": default})
    assert _read(_record(("y", "int")), reader, {"y": 1}) == {"x": expected}


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("string", "int", "written as string, to be read as int"),
        ("long", "int", "written as long, to be read as int"),
        (
            _record(("a", "string")),
            _record(("a", ["null", "int"])),
            "field a: written as string, to be read as a union",
        ),
        (
            _record(("a", "int")),
            _record(("a", "int"), ("b", "int")),
            "field b: not in the writer's schema, and without",
        ),
        (
            _record({"name": "a", "type": {"type": "array", "items": _record(("x", "int"), name="I")}}),
            _record({"name": "a", "type": {"type": "array", "items": _record(("x", "string"), name="I")}}),
            r"field a\[\].x: written as int, to be read as string",
        ),
        (_enum("A"), _enum("B"), "written as enum E, to be read as enum E"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "fixed F of 2 bytes"),
        ("int", ["null", "string"], "written as int, to be read as a union of null, string"),
        (["string"], "int", "written as string"),
        ({"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}, "written as date"),
        (_LONG_MILLIS, {"type": "long", "logicalType": "local-timestamp-millis"}, "written as timestamp-millis"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, _LONG_MICROS, "written as timestamp-nanos"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 3},
            r"written as decimal\(4, 2\), to be read as decimal\(4, 3\)",
        ),
        (
            _record(("y", "int")),
            _record({"name": "x", "type": {"type": "fixed", "name": "F", "size": 2}, "default": "abc"}),
            "field x: the default 'abc' is not of its type",
        ),
    ],
)
def test_schemas_that_differ_too_much_are_refused_by_the_path(writer: Any, reader: Any, message: str) -> None:
    with pytest.raises(SchemasDiffer, match=message):
        resolve(parse_avro_schema(json.dumps(writer)), parse_avro_schema(json.dumps(reader)))


@pytest.mark.parametrize(
    ("writer", "reader", "value", "message"),
    [
        (["null", "int"], "int", None, "null, to be read as int"),
        (["int", "string"], "int", "a", "written as string, to be read as int"),
        (_enum("A", "B"), _enum("A"), "B", "enum E has no symbol 'B', and no default"),
        ("bytes", "string", b"\xff", "not UTF-8"),
    ],
)
def test_only_values_that_the_reader_lacks_are_refused(writer: Any, reader: Any, value: Any, message: str) -> None:
    with pytest.raises(Undecodable, match=message):
        _read(writer, reader, value)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=4),
}
_WIDER = {"int": ["int", "long", "double"], "long": ["long", "double"], "boolean": ["boolean"]}


@given(st.data())
@settings(max_examples=examples(150))
def test_records_are_read_as_fastavro_reads_them(data: st.DataObject) -> None:
    """Fields that are left out, added with a default, widened, made nullable and moved."""
    names = data.draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
    kinds = {name: data.draw(st.sampled_from(sorted(_VALUES))) for name in names}
    read: list[dict[str, Any]] = []
    for name in data.draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)):
        kind: Any = data.draw(st.sampled_from(_WIDER.get(kinds.get(name, "string"), [kinds.get(name, "string")])))
        kind = ["null", kind] if data.draw(st.booleans()) else kind
        read.append({"name": name, "type": kind, "default": None if isinstance(kind, list) else _default(kind)})
    writer, reader = _record(*kinds.items()), _record(*read)
    value = {name: data.draw(_VALUES[kind]) for name, kind in kinds.items()}
    body = io.BytesIO(_written(writer, value))
    expected: Any = fastavro.schemaless_reader(body, writer, reader)
    found = _read(writer, reader, value)
    assert {name: found[name] for name in expected} == expected
    assert {name: type(found[name]) for name in expected} == {name: type(each) for name, each in expected.items()}


def _default(kind: str) -> Any:
    return {"boolean": True, "int": 1, "long": 2, "double": 0.5, "string": "s"}[kind]


def test_the_defaults_of_a_writer_are_of_no_use() -> None:
    writer = _record({"name": "a", "type": "int", "default": None})
    written, reader = parse_avro_schema(json.dumps(writer)), parse_avro_schema(json.dumps(_record(("a", "int"))))
    assert resolve(written, reader) is None
    with pytest.raises(SchemasDiffer, match="field a: the default 'None' is not of its type: int has no such value"):
        resolve(parse_avro_schema(json.dumps(_record(("b", "int")))), written)


def test_a_timestamp_is_the_same_moment_in_either_unit() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    for writer in (_LONG_MILLIS, _LONG_MICROS):
        for reader in (_LONG_MILLIS, _LONG_MICROS):
            assert _read(writer, reader, moment) == micros
