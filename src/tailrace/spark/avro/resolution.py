"""Values of a writer's schema as values of a reader's: Avro's schema resolution, worked out once for a pair of schemas.

A converter turns a decoded value (see `decoding`) into the form that Arrow takes for the reader's column; None stands
for the converter that returns its value. As in the specification, except for two points:

1. Outside of unions the names of records, enums and fixed types are not compared, only their fields, symbols and
   sizes; within a union they select the branch.
2. Logical types are compared, not only the underlying types: timestamps are converted between units, and a writer's
   time is no reader's date. A number without a logical type has the reader's logical type.

fastavro's own resolution is not used: it knows neither logical types nor, for unions, the branch of a value, and leaves
defaults in the form of JSON.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

from tailrace.spark.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    Logical,
    is_null,
    takes_null,
)


class SchemasDiffer(Exception):
    """A type of the writer, with its path, that cannot be read as the reader's."""


class Undecodable(Exception):
    """A value that cannot be decoded, with the reason."""


Converter = Callable[[Any], Any]

_DIGITS: Final = Context(prec=100)
"""Exact: Spark's decimals have 38 digits."""
_DAY_NS: Final = 86_400_000_000_000
_FACTORS: Final = {
    "date": 1,
    "time-millis": 1_000_000,
    "time-micros": 1_000,
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}
"""The factor to the unit of the column: days, nanoseconds of a time, microseconds of a timestamp."""


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Undecodable("bytes that are to be read as a string are not UTF-8") from None


_PROMOTIONS: Final[Mapping[tuple[str, str], Converter | None]] = {
    ("int", "long"): None,
    ("int", "float"): float,
    ("int", "double"): float,
    ("long", "float"): float,
    ("long", "double"): float,
    ("float", "double"): None,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): _text,
}
_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


def resolve(writer: AvroType, reader: AvroType, path: str = "") -> Converter | None:
    """The converter of the writer's values to the reader's column. Raises SchemasDiffer."""
    if isinstance(writer, AvroUnion):
        return _from_union(writer, reader, path)
    if isinstance(reader, AvroUnion):
        return _to_union(writer, reader, path)
    match writer, reader:
        case AvroPrimitive(), AvroPrimitive():
            return _of_primitives(writer, reader, path)
        case AvroFixed(), AvroFixed() if writer.size == reader.size:
            return _of_logical(writer.annotation, reader.logical, None, path)
        case AvroEnum(), AvroEnum():
            return _of_enums(writer, reader, path)
        case AvroRecord(), AvroRecord():
            return _of_records(writer, reader, path)
        case AvroArray(), AvroArray():
            item = resolve(writer.items, reader.items, f"{path}[]")
            return None if item is None else lambda values: [item(value) for value in values]
        case AvroMap(), AvroMap():
            each = resolve(writer.values, reader.values, f"{path}[]")
            return None if each is None else lambda values: {key: each(value) for key, value in values.items()}
    raise _differ(writer, reader, path)


def named(avro_type: AvroType) -> str:
    """The type in words for messages."""
    match avro_type:
        case AvroPrimitive(kind=kind, annotation=annotation):
            return kind if annotation is None else f"{kind} ({annotation.name})"
        case AvroRecord(name=name):
            return f"record {name}"
        case AvroEnum(name=name):
            return f"enum {name}"
        case AvroFixed(name=name, size=size):
            return f"fixed {name} of {size} bytes"
        case AvroArray():
            return "an array"
        case AvroMap():
            return "a map"
        case AvroUnion(branches=branches):
            return f"a union of {', '.join(map(named, branches))}"


def at(path: str) -> str:
    """The path of a type for messages; that of the whole value is empty."""
    return f"field {path.removeprefix('.')}: " if path else ""


def _differ(writer: AvroType, reader: AvroType, path: str) -> SchemasDiffer:
    return SchemasDiffer(f"{at(path)}written as {named(writer)}, to be read as {named(reader)}")


def _of_primitives(writer: AvroPrimitive, reader: AvroPrimitive, path: str) -> Converter | None:
    if writer.kind == reader.kind:
        promotion = None
    elif (writer.kind, reader.kind) in _PROMOTIONS:
        promotion = _PROMOTIONS[writer.kind, reader.kind]
    else:
        raise _differ(writer, reader, path)
    return _of_logical(writer.annotation, reader.logical, promotion, path)


def _of_logical(
    writer: Logical | None, reader: Logical | None, promotion: Converter | None, path: str
) -> Converter | None:
    if reader is None:
        return promotion
    given = reader if writer is None else writer
    if (given if reader.name == "decimal" else _family(given)) != (
        reader if reader.name == "decimal" else _family(reader)
    ):
        raise SchemasDiffer(f"{at(path)}written as {_shown(given)}, to be read as {_shown(reader)}")
    if reader.name == "decimal":
        return _decimal(reader, path)
    if reader.name == "uuid":
        return _uuid
    factor = _FACTORS[given.name]
    if given.name.startswith("time-"):
        return _time(factor, path)
    return None if factor == 1 else lambda value: value * factor


def _family(logical: Logical) -> str:
    return logical.name.rsplit("-", 1)[0] if logical.name in _FACTORS else logical.name


def _shown(logical: Logical) -> str:
    digits = f"({logical.precision}, {logical.scale})" if logical.name == "decimal" else ""
    return f"{logical.name}{digits}"


def _decimal(logical: Logical, path: str) -> Converter:
    limit, exponent = 10**logical.precision, -logical.scale

    def convert(value: bytes) -> Decimal:
        unscaled = int.from_bytes(value, "big", signed=True)
        if not -limit < unscaled < limit:
            raise Undecodable(f"{at(path)}a decimal of more than {logical.precision} digits")
        return Decimal(unscaled).scaleb(exponent, _DIGITS)

    return convert


def _uuid(value: str | bytes) -> str:
    return value if isinstance(value, str) else str(uuid.UUID(bytes=value))


def _time(factor: int, path: str) -> Converter:
    def convert(value: int) -> int:
        if not 0 <= value * factor < _DAY_NS:
            raise Undecodable(f"{at(path)}{value} is no time of a day")
        return value * factor

    return convert


def _of_enums(writer: AvroEnum, reader: AvroEnum, path: str) -> Converter:
    known = frozenset(reader.symbols)
    if known.isdisjoint(writer.symbols) and reader.default is None:
        raise _differ(writer, reader, path)
    symbols = [symbol if symbol in known else reader.default for symbol in writer.symbols]

    def convert(index: int) -> str:
        if not 0 <= index < len(symbols):
            raise Undecodable(f"{at(path)}there is no symbol {index} in {named(writer)}")
        symbol = symbols[index]
        if symbol is None:
            raise Undecodable(f"{at(path)}{named(reader)} has no symbol {writer.symbols[index]!r}, and no default")
        return symbol

    return convert


def _of_records(writer: AvroRecord, reader: AvroRecord, path: str) -> Converter | None:
    written = {field.name: field for field in writer.fields}
    constants: dict[str, Any] = {}
    plan: list[tuple[str, str, Converter | None]] = []
    for field in reader.fields:
        source = next((written[name] for name in (field.name, *field.aliases) if name in written), None)
        where = f"{path}.{field.name}"
        if source is not None:
            plan.append((field.name, source.name, resolve(source.type, field.type, where)))
        elif field.has_default:
            constants[field.name] = default_value(field, where)
        else:
            raise SchemasDiffer(f"{at(where)}not in the writer's schema, and without a default")
    if not constants and all(name == source and convert is None for name, source, convert in plan):
        return None  # fields that are not asked for are left out by name

    def convert_record(value: Mapping[str, Any]) -> dict[str, Any]:
        record = constants.copy()
        for name, source, convert in plan:
            record[name] = value[source] if convert is None else convert(value[source])
        return record

    return convert_record


def _from_union(writer: AvroUnion, reader: AvroType, path: str) -> Converter | None:
    if writer == reader and writer.single is None:
        inner = [resolve(member, member, path) for member in writer.members]
        if not any(inner):
            return None
    convert_null = None if takes_null(reader) else _refuse(f"{at(path)}null, to be read as {named(reader)}")
    converters: list[Converter | None] = []
    for member in writer.members:
        try:
            converters.append(resolve(member, reader, path))
        except SchemasDiffer as difference:
            # Only records that have this branch cannot be read.
            converters.append(_refuse(str(difference)))
            if len(writer.branches) == 1:
                raise
    if len(writer.members) > 1:
        return _of_members(converters, convert_null)
    convert_one = converters[0] if converters else None
    if not writer.is_nullable or (convert_one is None and convert_null is None):
        return convert_one

    def convert(value: Any) -> Any:
        if value is None:
            return None if convert_null is None else convert_null(value)
        return value if convert_one is None else convert_one(value)

    return convert


def _of_members(converters: Sequence[Converter | None], convert_null: Converter | None) -> Converter:
    by_member = {f"member{number}": each for number, each in enumerate(converters)}

    def convert(value: Mapping[str, Any] | None) -> Any:
        if value is None:
            return None if convert_null is None else convert_null(value)
        ((member, inner),) = value.items()
        each = by_member[member]
        return inner if each is None else each(inner)

    return convert


def _refuse(reason: str) -> Converter:
    def refuse(value: Any) -> Any:
        raise Undecodable(reason)

    return refuse


def _to_union(writer: AvroType, reader: AvroUnion, path: str) -> Converter | None:
    if is_null(writer) and reader.is_nullable:
        return None
    number = _branch(writer, reader, path)
    if reader.single is not None:
        return resolve(writer, reader.single, path)
    member, each = f"member{number}", resolve(writer, reader.members[number], path)
    return lambda value: {member: value if each is None else each(value)}


def _branch(writer: AvroType, reader: AvroUnion, path: str) -> int:
    """The number of the member that takes the writer's type: a member of the same type and name comes first."""
    fitting = []
    for number, member in enumerate(reader.members):
        try:
            resolve(writer, member, path)
        except SchemasDiffer:
            continue
        if _is_same(writer, member):
            return number
        fitting.append(number)
    if not fitting:
        raise _differ(writer, reader, path)
    return fitting[0]


def _is_same(writer: AvroType, reader: AvroType) -> bool:
    if isinstance(writer, AvroPrimitive) and isinstance(reader, AvroPrimitive):
        return writer.kind == reader.kind
    if isinstance(writer, AvroRecord | AvroEnum | AvroFixed) and isinstance(reader, AvroRecord | AvroEnum | AvroFixed):
        names = {_unqualified(reader.name), *reader.aliases, *map(_unqualified, reader.aliases)}
        return type(writer) is type(reader) and not names.isdisjoint((writer.name, _unqualified(writer.name)))
    return type(writer) is type(reader)


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def default_value(field: AvroField, path: str) -> Any:
    """The default of a field, in the form that Arrow takes. Raises SchemasDiffer if its type has no such value."""
    try:
        value = _decoded(field.type, field.default)
        convert = resolve(field.type, field.type, path)
        return value if convert is None else convert(value)
    except (ValueError, Undecodable) as wrong:
        raise SchemasDiffer(f"{at(path)}the default {str(field.default)[:100]!r} is not of its type: {wrong}") from None


def _decoded(avro_type: AvroType, default: Any) -> Any:
    """A default in the form of decoded values. Raises ValueError."""
    match avro_type:
        case AvroPrimitive(kind=kind):
            return _primitive_default(kind, default)
        case AvroFixed(size=size) if isinstance(default, str) and len(default) == size:
            return default.encode("latin-1")
        case AvroEnum(symbols=symbols) if default in symbols:
            return symbols.index(default)
        case AvroArray(items=items) if isinstance(default, list):
            return [_decoded(items, each) for each in default]
        case AvroMap(values=values) if isinstance(default, dict):
            return {key: _decoded(values, each) for key, each in default.items()}
        case AvroRecord(fields=fields) if isinstance(default, dict):
            return {each.name: _field_default(each, default) for each in fields}
        case AvroUnion():
            return _union_default(avro_type, default)
    raise ValueError(f"{named(avro_type)} has no such value")


def _field_default(field: AvroField, default: Mapping[str, Any]) -> Any:
    if field.name not in default and not field.has_default:
        raise ValueError(f"it has no field {field.name!r}")
    return _decoded(field.type, default.get(field.name, field.default))


def _union_default(union: AvroUnion, default: Any) -> Any:
    """The value by the first branch with such a value; until Avro 1.12 only the first branch could have the default."""
    for branch in union.branches:
        try:
            value = _decoded(branch, default)
        except ValueError:
            continue
        is_tagged = len(union.members) > 1 and not is_null(branch)
        return {f"member{union.members.index(branch)}": value} if is_tagged else value
    raise ValueError("no branch has such a value")


def _primitive_default(kind: str, default: Any) -> Any:
    match kind:
        case "null" if default is None:
            return None
        case "boolean" if isinstance(default, bool):
            return default
        case "int" | "long" if type(default) is int and _NUMBERS[kind][0] <= default <= _NUMBERS[kind][1]:
            return default
        case "float" | "double" if type(default) in (int, float):
            return float(default)
        case "string" if isinstance(default, str):
            return default
        case "bytes" if isinstance(default, str):
            return default.encode("latin-1")
    raise ValueError(f"{kind} has no such value")
