"""Records of internal topics, and control records: decoded in the form of Kafka's log dump.

A record that cannot be decoded does not end the dump: its error is printed instead.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tailrace.cli.output import Cell
from tailrace.coordinators.groups.consumer_records import ConsumerGroupRecord, ConsumerKey, consumer_key
from tailrace.coordinators.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetCommitKey,
)
from tailrace.coordinators.groups.records import decode_record as decode_group_record
from tailrace.coordinators.transactions.records import TRANSACTION_KEY, TransactionLogKey, TransactionLogValue
from tailrace.metadata.records.kinds import decode_record as decode_metadata_record
from tailrace.model.errors import KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.protocol.declaration import Array, Blob, Fixed, Nested, Schema, WireType, schema_of
from tailrace.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_prefixed,
)
from tailrace.protocol.primitives import read_uvarint
from tailrace.protocol.records.control import (
    EndTransactionMarker,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control,
)
from tailrace.protocol.records.record import Record
from tailrace.protocol.schema import decode

TOMBSTONE = "<DELETE>"
_PREFIX_SIZE = 2

Content = bytes | Cell


class Decoded(NamedTuple):
    """Key and payload of a record: raw bytes, text, or values for JSON. None: not printed."""

    key: Content
    payload: Content


_CONTROL_NAMES: dict[type, str] = {
    LeaderChangeMessage: "LeaderChange",
    SnapshotHeaderRecord: "SnapshotHeader",
    SnapshotFooterRecord: "SnapshotFooter",
    KRaftVersionRecord: "KRaftVersion",
    VotersRecord: "KRaftVoters",
}
_WITHOUT_COLON = frozenset(("SnapshotHeader", "SnapshotFooter", "KRaftVersion", "KRaftVoters"))

Decoder = Callable[[Record], Decoded]


def plain(record: Record) -> Decoded:
    """The record with its raw key and value."""
    return Decoded(record.key, record.value)


def group_record(record: Record) -> Decoded:
    """A record of `__consumer_offsets`."""
    try:
        decoded = decode_group_record(record.key, record.value)
    except KafkaError as fault:
        return Decoded(f"Error at offset {record.offset}, skipping. {fault.detail}", None)
    kind = _leading_int16(record.key)
    if decoded is None:
        return Decoded(f"Unknown record type {kind} at offset {record.offset}, skipping.", None)
    key: OffsetCommitKey | GroupMetadataKey | ConsumerKey
    if isinstance(decoded, ConsumerGroupRecord):
        key = consumer_key(decoded)
    elif isinstance(decoded, GroupRecord):
        key = GroupMetadataKey(group=decoded.group_id)
    else:
        key = OffsetCommitKey(group=decoded.group_id, topic=decoded.topic, partition=decoded.partition)
    shown_key: Cell = {"type": str(kind), "data": message_json(key, kind)}
    if decoded.value is None:
        return Decoded(shown_key, TOMBSTONE)
    version = _leading_int16(record.value)
    data = message_json(decoded.value, version)
    if isinstance(decoded.value, GroupMetadataValue) and decoded.value.protocol_type == PROTOCOL_TYPE:
        data["members"] = [_member(member, version) for member in decoded.value.members]
    return Decoded(shown_key, {"version": str(version), "data": data})


def _member(member: MemberMetadata, version: int) -> Cell:
    """A member, with its subscription and assignment decoded under the consumer protocol."""
    shown = message_json(member, version)
    for name, cls in (("subscription", ConsumerProtocolSubscription), ("assignment", ConsumerProtocolAssignment)):
        content = getattr(member, name)
        try:
            shown[name] = message_json(decode_prefixed(cls, content), _leading_int16(content))
        except KafkaError:
            continue  # another protocol than the consumer's: base64 stays
    return shown


def transaction_record(record: Record) -> Decoded:
    """A record of `__transaction_state`."""
    kind = _leading_int16(record.key)
    try:
        if kind != TRANSACTION_KEY:
            return Decoded(f"Unknown record type {kind} at offset {record.offset}, skipping.", None)
        key = decode(TransactionLogKey, kind, record.key or b"", _PREFIX_SIZE)
        shown_key: Cell = {"type": str(kind), "data": message_json(key, kind)}
        if record.value is None:
            return Decoded(shown_key, TOMBSTONE)
        version = _leading_int16(record.value)
        value = decode(TransactionLogValue, version, record.value, _PREFIX_SIZE)
    except KafkaError as fault:
        return Decoded(f"Error at offset {record.offset}, skipping. {fault.detail}", None)
    return Decoded(shown_key, {"version": str(version), "data": message_json(value, version)})


def _leading_int16(data: bytes | None) -> int:
    return int.from_bytes((data or b"")[:2], "big", signed=True)


def metadata_record(record: Record) -> Decoded:
    """A record of `__cluster_metadata`. Its key is empty."""
    content = record.value or b""
    try:
        decoded = decode_metadata_record(content)
    except KafkaError as fault:
        return Decoded(None, f"Error at {record.offset}, skipping. {fault.detail}")
    _, position = read_uvarint(content, 0)
    _, position = read_uvarint(content, position)
    version, _ = read_uvarint(content, position)
    data = message_json(decoded, version)
    return Decoded(None, {"type": _type_name(type(decoded)), "version": version, "data": data})


def _type_name(cls: type) -> str:
    """`NoOpRecord` as NO_OP_RECORD."""
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in cls.__name__).lstrip("_")


def control_fields(record: Record) -> dict[str, Cell]:
    """The fields of a control record, by name. Raises CorruptRecords."""
    value = decode_control(record.key, record.value)
    if value is None:
        return {"controlType": f"UNKNOWN({_leading_int16((record.key or b'')[2:])})"}
    if isinstance(value, EndTransactionMarker):
        return {"endTxnMarker": value.type.name, "coordinatorEpoch": value.coordinator_epoch}
    return {_CONTROL_NAMES[type(value)]: message_json(value, value.version)}


def control_text(fields: Mapping[str, Cell]) -> str:
    """The fields as text after a record. As in Kafka's dump, the newer names have no colon."""
    words = ""
    for name, value in fields.items():
        mark = "" if name in _WITHOUT_COLON else ":"
        words += f" {name}{mark} {compact(value) if isinstance(value, Mapping) else value}"
    return words


_UUID_CODE = "16s"
_ESCAPE = re.compile(r"(\\\\)|\\u00[01][0-9a-f]")


def message_json(value: object, version: int) -> dict[str, Cell]:
    """The message's fields in this version, in the order of the wire.

    A tagged field with its default is left out, as on the wire. Fields of Tailrace (tags from 10000 on), which Kafka's
    tools skip, are shown.
    """
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
    """JSON on one line without spaces, its escapes spelled as by Kafka's tools."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPE.sub(lambda found: found[0] if found[1] else found[0][:2] + found[0][2:].upper(), text)
