"""Values inside records (metadata, groups, control records), and the messages of group members to each other."""

import struct
from collections.abc import Iterator

from fuzz import golden
from fuzz.examples import encoded_examples
from fuzz.finding import found
from fuzz.targets.target import Target
from tailrace.coordinators.groups import records as group_records
from tailrace.coordinators.groups.consumer_records import VALUE_OF
from tailrace.metadata.records.kinds import decode_record
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_prefixed,
)
from tailrace.protocol.primitives import read_uvarint
from tailrace.protocol.records.control import EndTransactionMarker, decode_control, encode_control
from tailrace.protocol.schema import encode_prefixed
from testkit.quorum.metadata_records import encode_record_in


def check_metadata_record(data: bytes) -> None:
    """The value of a record of the metadata log."""
    try:
        record = decode_record(data)
    except MalformedMessage:
        return
    except KafkaError as refused:
        if refused.code is not ErrorCode.UNSUPPORTED_VERSION:
            found(f"what is not known is refused as such, not as {refused.code.name}")
        return
    encoded = encode_record_in(record, _version_of(data))
    if decode_record(encoded) != record:
        found("decode(encode(record)) == record")


def _version_of(data: bytes) -> int:
    """The fields behind the frame's version and the type of the record."""
    version = position = 0
    for _ in range(3):
        version, position = read_uvarint(data, position)
    return version


def _metadata_seeds() -> Iterator[bytes]:
    for _, value in golden.hex_lines("metadata_records.txt"):
        yield value


def check_group_record(data: bytes) -> None:
    """The length of the key, the key, the value of a record of __consumer_offsets; no value if there are no bytes."""
    if not data:
        return
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    try:
        record = group_records.decode_record(key or None, value or None)
    except CorruptRecords:
        return
    if record is None:
        return
    again = group_records.decode_record(*group_records.encode_record(record))
    if again != record and not _is_older_form(key, value):
        found("decode(encode(record)) == record")


def _is_older_form(key: bytes, value: bytes) -> bool:
    """Offsets and groups are written in one version; in other versions some fields have no place."""
    return struct.unpack(">h", key[:2])[0] <= 2 and len(value) >= 2


def _group_seeds() -> Iterator[bytes]:
    lines = dict(golden.hex_lines("group_records.txt"))
    keys = [value for name, value in lines.items() if name.endswith("key")]
    values = [value for name, value in lines.items() if not name.endswith("key")]
    for key in keys:
        yield bytes([len(key)]) + key
        for value in values:
            yield bytes([len(key)]) + key + value
    for kind, cls in VALUE_OF.items():
        for key in (struct.pack(">hh", kind, 1) + b"g", struct.pack(">hh", kind, 1) + b"g" + b"\0\1m"):
            for value in encoded_examples(cls, 0):
                yield bytes([len(key)]) + key + b"\0\0" + value


def check_control_record(data: bytes) -> None:
    """Four bytes of key, then the value of a control record."""
    try:
        value = decode_control(data[:4], data[4:])
    except CorruptRecords:
        return
    if value is None:
        return
    if not isinstance(value, EndTransactionMarker) and not schema_of(type(value)).versions.has(value.version):
        return  # of a later version: read as far as known, and never written
    if decode_control(*encode_control(value)) != value:
        found("decode(encode(value)) == value")


def _control_seeds() -> Iterator[bytes]:
    for segment in golden.segments():
        for at in range(0, min(len(segment), 400), 40):
            yield segment[at : at + 60]
    for kind in range(8):
        yield struct.pack(">hh", 0, kind) + bytes(20)
        yield struct.pack(">hh", 0, kind) + b"\0\0\0\0\0\5\2\0\0\0\1\0\0"


def check_consumer_protocol(data: bytes) -> None:
    """The opaque bytes of JoinGroup and SyncGroup, which the node and the members read."""
    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        try:
            value = decode_prefixed(cls, data)
        except MalformedMessage:
            continue
        version = min(struct.unpack(">h", data[:2])[0], 3)
        if decode_prefixed(cls, encode_prefixed(value, version)) != value:
            found("decode(encode(value)) == value")


def _consumer_protocol_seeds() -> Iterator[bytes]:
    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        for version in range(4):
            for value in encoded_examples(cls, version):
                yield struct.pack(">h", version) + value


TARGETS = (
    Target(
        "metadata-records",
        "a record that survives encoding, UNSUPPORTED_VERSION, or MalformedMessage",
        check_metadata_record,
        _metadata_seeds,
    ),
    Target(
        "group-records",
        "a record that survives encoding, None, or CorruptRecords",
        check_group_record,
        _group_seeds,
    ),
    Target(
        "control-records",
        "a value that survives encoding, None, or CorruptRecords",
        check_control_record,
        _control_seeds,
    ),
    Target(
        "consumer-protocol",
        "a value that survives encoding, or MalformedMessage",
        check_consumer_protocol,
        _consumer_protocol_seeds,
    ),
)
