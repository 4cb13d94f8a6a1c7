"""Messages and records as JSON in the form of Kafka's tools: camelCase names, ids as in URLs, bytes as base64.

A tagged field that has its default is left out, as on the wire. Fields of ours (tags from 10000 on), which Kafka's
tools pass over, are shown.
"""

import base64
import json
import re

from tailrace.cli.output import Cell
from tailrace.model.ids import format_topic_id
from tailrace.protocol.declaration import Array, Blob, Fixed, Nested, Schema, WireType, schema_of

_UUID_CODE = "16s"
_ESCAPE = re.compile(r"(\\\\)|\\u00[01][0-9a-f]")


def message_json(value: object, version: int) -> dict[str, Cell]:
    """The message's fields in this version, in the order of the wire."""
    return _struct_json(schema_of(type(value)), value, version)


def _struct_json(schema: Schema, value: object, version: int) -> dict[str, Cell]:
    shown: dict[str, Cell] = {}
    for field in schema.fields:
        content = getattr(value, field.name)
        if field.versions.has(version) and (field.tag is None or content != field.default):
            shown[_camel(field.name)] = _json(field.type, content, version)
    return shown


def _json(wire: WireType, value: object, version: int) -> Cell:
    if value is None:
        return None
    match wire:
        case Array(element=element):
            assert isinstance(value, tuple)
            return [_json(element, item, version) for item in value]
        case Nested(schema=schema):
            return _struct_json(schema, value, version)
        case Fixed(code=code) if code == _UUID_CODE:
            assert isinstance(value, bytes)
            return format_topic_id(value)
        case Blob():
            assert isinstance(value, bytes)
            return base64.b64encode(value).decode("ascii")
    assert isinstance(value, bool | int | float | str), f"{wire} has no JSON form"
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def compact(value: Cell) -> str:
    """JSON on one line without spaces, its escapes spelled as Kafka's tools spell them."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPE.sub(lambda found: found[0] if found[1] else found[0][:2] + found[0][2:].upper(), text)
