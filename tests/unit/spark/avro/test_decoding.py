"""Bodies that fastavro writes as Arrow, and bytes that no writer of the schema writes."""

import io
import json
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from budgets import examples
from tailrace.spark.avro.columns import column_type
from tailrace.spark.avro.decoding import BodyDecoder
from tailrace.spark.avro.resolution import Undecodable, resolve
from tailrace.spark.avro.schema import AvroType, parse_avro_schema


def _written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def _as_arrow(parsed: AvroType, bodies: list[bytes]) -> list[Any]:
    decoder, convert = BodyDecoder(parsed), resolve(parsed, parsed)
    values = [decoder.decode(body) for body in bodies]
    converted = values if convert is None else [convert(value) for value in values]
    kind = to_arrow_type(column_type(parsed), timezone="UTC")
    found: list[Any] = pa.array(converted, type=kind).to_pylist()
    return found


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID = uuid.UUID("8c5b7b9e-57bb-4d53-a1c4-6f6c0a6f4d01")


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "int", "logicalType": "date"}, date(1969, 7, 20), date(1969, 7, 20)),
        ({"type": "int", "logicalType": "time-millis"}, time(23, 59, 59, 999_000), time(23, 59, 59, 999_000)),
        ({"type": "long", "logicalType": "time-micros"}, time(0, 0, 0, 1), time(0, 0, 0, 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, NOON),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, NOON),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            datetime(1960, 1, 1),  # noqa: DTZ001  # a local time
            datetime(1960, 1, 1),  # noqa: DTZ001
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            datetime(2026, 1, 1, 0, 0, 0, 7),  # noqa: DTZ001
            datetime(2026, 1, 1, 0, 0, 0, 7),  # noqa: DTZ001
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, Decimal("-1.25"), Decimal("-1.25")),
        (
            {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 38},
            Decimal("-0." + "9" * 38),
            Decimal("-0." + "9" * 38),
        ),
        ({"type": "string", "logicalType": "uuid"}, ID, str(ID)),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, ID.bytes, str(ID)),
        (["null", "string", "long"], None, None),
        (["null", "string", "long"], 7, {"member0": None, "member1": 7}),
        (["long", "string"], "a", {"member0": None, "member1": "a"}),
        ({"type": "map", "values": "bytes"}, {"a": b"\xff", "": b""}, [("a", b"\xff"), ("", b"")]),
    ],
)
def test_a_value_has_the_type_of_its_column(schema: Any, value: Any, expected: Any) -> None:
    parsed = parse_avro_schema(json.dumps(schema))
    assert _as_arrow(parsed, [_written(schema, value)] * 2) == [expected] * 2


Typed = tuple[Any, st.SearchStrategy[tuple[Any, Any]]]
"""A schema, and values with the same values as Arrow returns them."""


def _same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, value))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAVES: list[Typed] = [
    ("null", _same(st.none())),
    ("boolean", _same(st.booleans())),
    ("int", _same(st.integers(-(2**31), 2**31 - 1))),
    ("long", _same(st.integers(-(2**63), 2**63 - 1))),
    ("float", _same(st.floats(width=32, allow_nan=False))),
    ("double", _same(st.floats(allow_nan=False))),
    ("string", _same(st.text(max_size=5))),
    ("bytes", _same(st.binary(max_size=5))),
]
_LOGICAL: list[Typed] = [
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.integers(-(10**13), 10**13).map(lambda ms: (ms, _EPOCH + timedelta(milliseconds=ms))),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        _same(st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3))),
    ),
]


@st.composite
def _typed(draw: st.DrawFn, depth: int, numbers: "count[int]", *, in_union: bool = False) -> Typed:
    kinds = ["leaf", "enum", "fixed", "record", *([] if in_union else ["logical", "array", "map", "union"])]
    kind = draw(st.sampled_from(kinds if depth else ["leaf"]))
    name = f"T{next(numbers)}"
    match kind:
        case "leaf":
            return draw(st.sampled_from(_LEAVES))
        case "logical":
            return draw(st.sampled_from(_LOGICAL))
        case "enum":
            symbols = ["A", "B", "C"]
            return {"type": "enum", "name": name, "symbols": symbols}, _same(st.sampled_from(symbols))
        case "fixed":
            return {"type": "fixed", "name": name, "size": 3}, _same(st.binary(min_size=3, max_size=3))
        case "record":
            return _record(name, draw(st.lists(_typed(depth - 1, numbers), min_size=1, max_size=3)))
        case "array":
            items, values = draw(_typed(depth - 1, numbers))
            each = st.lists(values, max_size=3).map(lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs]))
            return {"type": "array", "items": items}, each
        case "map":
            inner, values = draw(_typed(depth - 1, numbers))
            entries = st.dictionaries(st.text(max_size=3), values, max_size=3).map(
                lambda pairs: ({k: a for k, (a, _) in pairs.items()}, [(k, b) for k, (_, b) in pairs.items()])
            )
            return {"type": "map", "values": inner}, entries
    return _union(draw(st.lists(_typed(depth - 1, numbers, in_union=True), min_size=1, max_size=4)))


def _record(name: str, fields: list[Typed]) -> Typed:
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{number}", "type": kind} for number, (kind, _) in enumerate(fields)],
    }
    values = st.tuples(*(values for _, values in fields)).map(
        lambda pairs: (
            {f"f{number}": a for number, (a, _) in enumerate(pairs)},
            {f"f{number}": b for number, (_, b) in enumerate(pairs)},
        )
    )
    return schema, values


def _union(branches: list[Typed]) -> Typed:
    distinct = {kind if isinstance(kind, str) else kind["name"]: (kind, values) for kind, values in branches}
    members = [name for name in distinct if name != "null"]
    is_single = len(members) == 1 or sorted(members) in (["int", "long"], ["double", "float"])

    def tagged(name: str, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        written, read = pair
        if name != "null" and not is_single:
            read = {f"member{number}": read if member == name else None for number, member in enumerate(members)}
        return (name, written), read

    each = [values.map(partial(tagged, name)) for name, (_, values) in distinct.items()]
    return [kind for kind, _ in distinct.values()], st.one_of(each)


def _is_empty(kind: Any) -> bool:
    """Whether values of the schema have no bytes."""
    if isinstance(kind, dict) and kind["type"] == "record":
        return all(_is_empty(field["type"]) for field in kind["fields"])
    return bool(kind == "null")


def _has_empty_items(kind: Any) -> bool:
    if isinstance(kind, list):
        return any(map(_has_empty_items, kind))
    if not isinstance(kind, dict):
        return False
    if kind["type"] == "array":
        return _is_empty(kind["items"]) or _has_empty_items(kind["items"])
    inner = [field["type"] for field in kind.get("fields", [])] + [kind.get("values")]
    return any(map(_has_empty_items, inner))


@st.composite
def _schemas_and_values(draw: st.DrawFn) -> tuple[Any, list[tuple[Any, Any]]]:
    schema, values = draw(_typed(3, count()).filter(lambda typed: not _has_empty_items(typed[0])))
    return schema, draw(st.lists(values, min_size=1, max_size=3))


@given(_schemas_and_values())
@settings(max_examples=examples(150))
def test_every_value_comes_back_as_it_was_written(written: tuple[Any, list[tuple[Any, Any]]]) -> None:
    schema, pairs = written
    parsed = fastavro.parse_schema(schema)
    bodies = [_written(parsed, value) for value, _ in pairs]
    assert _as_arrow(parse_avro_schema(json.dumps(schema)), bodies) == [expected for _, expected in pairs]


@given(_schemas_and_values(), st.data())
@settings(max_examples=examples(100))
def test_bytes_that_are_cut_short_or_go_on_are_refused(written: tuple[Any, list[Any]], data: st.DataObject) -> None:
    schema, ((value, _), *_) = written
    body = _written(fastavro.parse_schema(schema), value)
    decoder = BodyDecoder(parse_avro_schema(json.dumps(schema)))
    decoder.decode(body)
    with pytest.raises(Undecodable, match="left over|of another schema"):
        decoder.decode(body + data.draw(st.binary(min_size=1, max_size=9)))
    for end in range(len(body)):
        with pytest.raises(Undecodable):
            decoder.decode(body[:end])


@given(_schemas_and_values(), st.binary(max_size=60))
@settings(max_examples=examples(200))
def test_any_bytes_are_a_value_or_refused(written: tuple[Any, Any], body: bytes) -> None:
    """No other exception, and no work without end."""
    parsed = parse_avro_schema(json.dumps(written[0]))
    convert = resolve(parsed, parsed)
    try:
        value = BodyDecoder(parsed).decode(body)
        if convert is not None:
            convert(value)
    except Undecodable:
        return


_HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
"""2**62 - 1 as a varint."""


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("string", _HUGE + b"abc"),
        ("bytes", _HUGE),
        ("bytes", b"\x01ab"),  # a length of -1
        ({"type": "array", "items": "int"}, _HUGE + b"\x02" * 1_000),
        ({"type": "array", "items": "int"}, b"\x01\x02"),
        ({"type": "array", "items": {"type": "array", "items": "boolean"}}, _HUGE + b"\x02" * 100),
        ({"type": "map", "values": "null"}, _HUGE + b"\x02a" * 100),
        ({"type": "fixed", "name": "F", "size": 2**62}, b"abc"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),  # the index -1
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04"),
        (["null", "int"], b"\x01\x02"),  # the index -1
        (["int", "null"], b"\x01"),
        (["null", "int"], b"\x03"),
        (["null", "int"], b"\x04"),
        (["null", "int", "string"], b"\x03\x02"),
        ("long", b"\xff" * 200),
        ("string", b"\x02\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x02\x64"),  # 100
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, b"\x80\x80\x08" + b"\x7f" * 65_536),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01"),
        ({"type": "long", "logicalType": "time-micros"}, _HUGE),
    ],
)
def test_hostile_bytes_are_refused_at_once(schema: Any, body: bytes) -> None:
    parsed = parse_avro_schema(json.dumps(schema))
    with pytest.raises(Undecodable):
        _as_arrow(parsed, [body])


def test_the_reason_tells_what_is_wrong() -> None:
    def reason(schema: Any, body: bytes) -> str:
        with pytest.raises(Undecodable) as refusal:
            _as_arrow(parse_avro_schema(json.dumps(schema)), [body])
        return str(refusal.value)

    assert reason("string", b"\x06ab") == "its 3 bytes are cut short, or of another schema"
    assert reason("int", b"\x02\x02") == "1 of its 2 bytes are left over; is it another schema?"
    assert reason("string", b"\x02\xff") == "a string is not UTF-8"
    color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": color}}]}
    assert reason(record, b"\x02\x02\x00") == "field a[]: there is no symbol 1 in enum Color"
