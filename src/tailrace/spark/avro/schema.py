"""An Avro schema as a tree of types. Pure, and picklable to workers.

fastavro checks the text and qualifies its names; this module refuses, by name, what records of a few bytes could turn
into work without end, and what no column can hold:

1. A type that contains itself: its records nest as deep as their bytes say, and a Spark type has a fixed depth.
2. An array of items without bytes (null, a fixed of size 0, a record of such fields): its bytes could claim any number.
3. More than 10,000 types, each counted as often as it is used, or a nesting beyond 64.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MOST_TYPES: Final = 10_000
DEEPEST: Final = 64
_DEEPEST_JSON: Final = 4 * DEEPEST

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})

_LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {"time-micros", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"}
    ),
    "string": frozenset({"uuid"}),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal", "uuid"}),
}
_UUID_BYTES: Final = 16
_DEFAULT: Final = "tailrace.default"


class SchemaRefused(Exception):
    """A schema that is no Avro schema, or that this source does not decode, with the type and the reason."""


class Logical(NamedTuple):
    """A logical type: the meaning of the numbers or bytes of a primitive type or a fixed."""

    name: str
    precision: int = 0
    """Digits of a decimal, 0 for other types."""
    scale: int = 0


@dataclass(frozen=True, slots=True)
class AvroPrimitive:
    """null, boolean, int, long, float, double, string or bytes."""

    kind: str
    annotation: Logical | None = None
    """The logical type as the schema says, known or unknown."""

    @property
    def logical(self) -> Logical | None:
        """The logical type that has a column type of its own."""
        return self.annotation if _is_known(self.kind, self.annotation) else None


@dataclass(frozen=True, slots=True)
class AvroFixed:
    """`size` bytes."""

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    annotation: Logical | None = None

    @property
    def logical(self) -> Logical | None:
        """The logical type, if it is known for a fixed; a uuid is known only with 16 bytes."""
        known = self.annotation if _is_known("fixed", self.annotation) else None
        return None if known is not None and known.name == "uuid" and self.size != _UUID_BYTES else known


@dataclass(frozen=True, slots=True)
class AvroEnum:
    """An enum: its value is a symbol. Of a reader, `default` stands for symbols that it does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: "AvroType"
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None
    """The default, in the form of JSON."""


@dataclass(frozen=True, slots=True)
class AvroRecord:
    name: str
    fields: tuple[AvroField, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroArray:
    items: "AvroType"


@dataclass(frozen=True, slots=True)
class AvroMap:
    """Strings to values."""

    values: "AvroType"


@dataclass(frozen=True, slots=True)
class AvroUnion:
    """A union: its value has the type of one branch."""

    branches: tuple["AvroType", ...]
    is_nullable: bool = field(init=False)
    members: tuple["AvroType", ...] = field(init=False)
    """The branches without null."""
    single: "AvroType | None" = field(init=False)
    """The type of all members, if a column holds every member: the only member's type, long of int and long, double of
    float and double, as in Spark's own Avro source.
    """

    def __post_init__(self) -> None:
        members = tuple(branch for branch in self.branches if not is_null(branch))
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "is_nullable", len(members) < len(self.branches))
        object.__setattr__(self, "single", _single(members))


AvroType = AvroPrimitive | AvroFixed | AvroEnum | AvroRecord | AvroArray | AvroMap | AvroUnion

NULL: Final = AvroPrimitive("null")


def _single(members: tuple[AvroType, ...]) -> AvroType | None:
    if len(members) < 2:
        return members[0] if members else NULL
    for narrow, wide in (("int", "long"), ("float", "double")):
        pair = AvroPrimitive(narrow), AvroPrimitive(wide)
        if members in (pair, pair[::-1]):
            return AvroPrimitive(wide)
    return None


def _is_known(kind: str, logical: Logical | None) -> bool:
    if logical is None or logical.name not in _LOGICAL.get(kind, ()):
        return False
    return logical.name != "decimal" or (logical.precision > 0 and 0 <= logical.scale <= logical.precision)


def is_null(avro_type: AvroType) -> bool:
    """Whether null is the only value of the type."""
    return isinstance(avro_type, AvroPrimitive) and avro_type.kind == "null"


def takes_null(avro_type: AvroType) -> bool:
    """Whether null is a value of the type."""
    return is_null(avro_type) or (isinstance(avro_type, AvroUnion) and avro_type.is_nullable)


def parse_avro_schema(text: str, references: Iterable[str] = ()) -> AvroType:
    """The type of a schema, JSON text.

    `references` are schemas whose names it uses, each schema after the schemas that it needs. Raises SchemaRefused.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(_unchecked(_json(reference)), named, _write_hint=False)
        parsed = fastavro.parse_schema(_unchecked(_json(text)), named, _write_hint=False)
        return _Builder(named).build(parsed, ())
    except KeyError as missing:
        raise SchemaRefused(f"not an Avro schema: {missing} is missing") from None
    except (ValueError, TypeError, AttributeError, fastavro.schema.SchemaParseException) as wrong:
        raise SchemaRefused(f"not an Avro schema: {type(wrong).__name__}: {str(wrong)[:200]}") from None


def _json(text: str) -> Any:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise SchemaRefused(f"not JSON: {wrong}; a schema is JSON text, such as '\"string\"' with its quotes") from None
    level = [parsed]
    for _ in range(_DEEPEST_JSON):
        level = [child for node in level for child in _children(node)]
        if not level:
            return parsed
    raise SchemaRefused(f"its types nest deeper than {DEEPEST}")


def _unchecked(node: Any) -> Any:
    """The schema with the defaults of fields under another name, which fastavro does not check.

    fastavro refuses some good defaults, such as the number 1 of a double, and a writer's defaults are of no use.
    Defaults of a reader are checked at their use (`resolution.default_value`).
    """
    if isinstance(node, list):
        return [_unchecked(each) for each in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _unchecked(part) if name in ("items", "values") else part for name, part in node.items()}
    if isinstance(fields := node.get("fields"), list):
        copy["fields"] = [_unchecked_field(field) if isinstance(field, dict) else field for field in fields]
    return copy


def _unchecked_field(field: Mapping[str, Any]) -> dict[str, Any]:
    copy = {name: _unchecked(part) if name == "type" else part for name, part in field.items() if name != "default"}
    return {**copy, _DEFAULT: field["default"]} if "default" in field else copy


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


class _Builder:
    """Makes the tree of a schema that fastavro has parsed, with the types that its names stand for."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._count = 0

    def build(self, node: Any, around: tuple[str, ...]) -> AvroType:
        """The type; `around` names the types that contain the node."""
        self._count += 1
        if self._count > MOST_TYPES:
            raise SchemaRefused(f"it has more than {MOST_TYPES} types, each counted as often as it is used")
        if len(around) > DEEPEST:
            raise SchemaRefused(f"its types nest deeper than {DEEPEST}")
        if isinstance(node, list):
            if not node or any(isinstance(branch, list) for branch in node):
                raise SchemaRefused("a union without branches, or with a union as a branch")
            return AvroUnion(tuple(self.build(branch, (*around, "")) for branch in node))
        if isinstance(node, str):
            if node in PRIMITIVES:
                return AvroPrimitive(node)
            if node in around:
                raise SchemaRefused(f"record {node} contains itself: a column has a fixed depth")
            return self.build(self._named[node], around)
        return self._build_complex(node, around)

    def _build_complex(self, node: Mapping[str, Any], around: tuple[str, ...]) -> AvroType:
        kind, annotation = node["type"], _annotation(node)
        match kind:
            case "array":
                items = self.build(node["items"], (*around, ""))
                if not _has_bytes(items):
                    raise SchemaRefused(
                        "an array of items without bytes: a record of a few bytes could claim any number"
                    )
                return AvroArray(items)
            case "map":
                return AvroMap(self.build(node["values"], (*around, "")))
            case "record" | "error":
                return self._build_record(node, around)
            case "enum":
                return AvroEnum(node["name"], _texts(node["symbols"]), node.get("default"), _aliases(node))
            case "fixed":
                size = node["size"]
                if type(size) is not int or size < 0:
                    raise SchemaRefused(f"fixed {node['name']} has the size {size!r}")
                return AvroFixed(node["name"], size, _aliases(node), annotation)
            case str() if kind in PRIMITIVES:
                return AvroPrimitive(kind, annotation)
        raise SchemaRefused(f"there is no type {kind!r}")

    def _build_record(self, node: Mapping[str, Any], around: tuple[str, ...]) -> AvroRecord:
        name = node["name"]
        fields = tuple(
            AvroField(
                _texts([entry["name"]])[0],
                self.build(entry["type"], (*around, name)),
                _aliases(entry),
                _DEFAULT in entry,
                entry.get(_DEFAULT),
            )
            for entry in node["fields"]
        )
        names = [field.name for field in fields]
        if twice := sorted({repeated for repeated in names if names.count(repeated) > 1}):
            raise SchemaRefused(f"record {name} has two fields {twice[0]!r}")
        return AvroRecord(name, fields, _aliases(node))


def _aliases(node: Mapping[str, Any]) -> tuple[str, ...]:
    return _texts(node.get("aliases", []))


def _texts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(symbol, str) for symbol in given):
        raise SchemaRefused(f"not an Avro schema: {str(given)[:200]} stands for names")
    return tuple(given)


def _annotation(node: Mapping[str, Any]) -> Logical | None:
    name = node.get("logicalType")
    if not isinstance(name, str):
        return None
    if name != "decimal":
        return Logical(name)
    precision, scale = node.get("precision", 0), node.get("scale", 0)
    return Logical(name, precision, scale) if type(precision) is int and type(scale) is int else None


def _has_bytes(avro_type: AvroType) -> bool:
    """Whether each value of the type has at least one byte."""
    if isinstance(avro_type, AvroRecord):
        return any(_has_bytes(each.type) for each in avro_type.fields)
    return avro_type.size > 0 if isinstance(avro_type, AvroFixed) else not is_null(avro_type)
