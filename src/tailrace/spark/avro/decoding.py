"""Bodies as values of their writer's schema, by fastavro.

fastavro gets a schema of the same bytes, from which it returns values that `resolution` can tell apart:

1. An enum is an int, since fastavro would take the index -1 for the last symbol.
2. A union of several members has, per member, a record of one field, `{"member0": value}`: a record adds no bytes, and
   so the branch is known. A column for such a union has the same form.
3. Logical types are left out: their values would be checked and converted to Python's types singly.

A union's index is a position in a list, too: -1 and -2 would select branches. So the lists are made long, and end with
branches that no body has.
"""

from io import BytesIO
from itertools import count
from typing import Any, Final

import fastavro

from tailrace.spark.avro.resolution import Undecodable
from tailrace.spark.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    is_null,
)

_BRANCHES: Final = 256
"""The length of a padded list of branches: indexes down to -64, the one-byte indexes, select nothing of the schema."""
_NO_BRANCH: Final = {"type": "fixed", "name": "no_branch", "size": 2**62}
"""The type in place of a branch that does not exist: no body is that long."""

_FAULTS = (EOFError, IndexError, ValueError, OverflowError, TypeError, KeyError, MemoryError)


class BodyDecoder:
    """The decoder of bodies of one schema."""

    def __init__(self, writer: AvroType) -> None:
        numbers = count()
        # A record of one field makes any schema a record, which fastavro does not parse again for each body.
        root = {"type": "record", "name": "body", "fields": [{"name": "value", "type": _plain(writer, numbers)}]}
        parsed: Any = fastavro.parse_schema(root)
        # All types stand in place of their names: fastavro would copy the table of names for each body.
        parsed.get("__named_schemas", {}).clear()
        _lengthen(parsed)
        self._schema = parsed

    def decode(self, body: bytes) -> Any:
        """The value. Raises Undecodable, also for bytes behind the value."""
        stream = BytesIO(body)
        try:
            root: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except _FAULTS as wrong:
            raise Undecodable(_reason(wrong, len(body))) from None
        if stream.tell() != len(body):
            raise Undecodable(
                f"{len(body) - stream.tell()} of its {len(body)} bytes are left over; is it another schema?"
            )
        return root["value"]


def _reason(wrong: BaseException, size: int) -> str:
    if isinstance(wrong, UnicodeDecodeError):
        return "a string is not UTF-8"
    return f"its {size} bytes are cut short, or of another schema"


def _plain(avro_type: AvroType, numbers: "count[int]") -> Any:
    match avro_type:
        case AvroPrimitive(kind=kind):
            return kind
        case AvroEnum():
            return "int"
        case AvroFixed(size=size):
            return {"type": "fixed", "name": f"f{next(numbers)}", "size": size}
        case AvroArray(items=items):
            return {"type": "array", "items": _plain(items, numbers)}
        case AvroMap(values=values):
            return {"type": "map", "values": _plain(values, numbers)}
        case AvroRecord(fields=fields):
            each = [{"name": field.name, "type": _plain(field.type, numbers)} for field in fields]
            return {"type": "record", "name": f"r{next(numbers)}", "fields": each}
        case AvroUnion(branches=branches):
            return _plain_union(avro_type, branches, numbers)


def _plain_union(union: AvroUnion, branches: tuple[AvroType, ...], numbers: "count[int]") -> list[Any]:
    if len(union.members) < 2:
        return [_plain(branch, numbers) for branch in branches]
    plain: list[Any] = []
    members = count()
    for branch in branches:
        if is_null(branch):
            plain.append("null")
            continue
        field = {"name": f"member{next(members)}", "type": _plain(branch, numbers)}
        plain.append({"type": "record", "name": f"r{next(numbers)}", "fields": [field]})
    return plain


def _lengthen(node: Any) -> None:
    """Lengthen the lists of all unions below this type."""
    if isinstance(node, list):
        for branch in node:
            _lengthen(branch)
        node.extend([_NO_BRANCH] * max(_BRANCHES - len(node), 0))
    elif isinstance(node, dict):
        for field in node.get("fields", ()):
            _lengthen(field["type"])
        for part in ("items", "values"):
            _lengthen(node.get(part))
