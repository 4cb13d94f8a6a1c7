"""Control records: what brokers write into a log between the records of users.

Transaction markers end a transaction (KIP-98). The metadata log names its leader (LEADER_CHANGE, KIP-595), a snapshot
marks its begin and end (KIP-630), and both name the voters (KIP-853). The key of each says its type; consumers skip
control batches whole, so an unknown type does no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from tailrace.model.errors import CorruptRecords, MalformedMessage
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import BatchHeader
from tailrace.protocol.records.record import BatchBuilder, Record, read_records
from tailrace.protocol.schema import (
    ZERO_UUID,
    Int16,
    Int32,
    Int64,
    UInt16,
    Uuid,
    decode,
    encode_bytes,
    field,
    message,
    struct,
)


class ControlType(IntEnum):
    """The type of a control record, in its key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@struct
class LeaderChangeVoter:
    voter_id: Int32
    voter_directory_id: Uuid = field(versions="1+", default=ZERO_UUID)


@message(name="LeaderChangeMessage", versions="0-1", flexible="0+")
class LeaderChangeMessage:
    """A leader's first record in its epoch."""

    version: Int16 = 0
    leader_id: Int32
    voters: tuple[LeaderChangeVoter, ...] = ()
    granting_voters: tuple[LeaderChangeVoter, ...] = ()
    """A voter that voted for this leader."""


@struct
class CheckpointedLog:
    """The log that a checkpoint belongs to, and how the checkpoint's records are to be read. Ours."""

    format_version: Int16 = 0
    topic_id: Uuid
    partition: Int32
    log_start_offset: Int64


@message(name="SnapshotHeaderRecord", versions="0", flexible="0+")
class SnapshotHeaderRecord:
    """The first record of a snapshot."""

    version: Int16 = 0
    last_contained_log_timestamp: Int64
    """The time when the last record before the snapshot's end was appended, ms since 1970."""
    checkpointed_log: CheckpointedLog | None = field(versions="0+", tag=10_000, nullable="0+", default=None)
    """The log of a coordinator, in its checkpoint; None in a snapshot of the metadata. Ours: Kafka ignores the tag."""


@message(name="SnapshotFooterRecord", versions="0", flexible="0+")
class SnapshotFooterRecord:
    """The last record of a snapshot: without it the snapshot is not whole."""

    version: Int16 = 0


@message(name="KRaftVersionRecord", versions="0", flexible="0+")
class KRaftVersionRecord:
    version: Int16 = 0
    k_raft_version: Int16
    """0: a static set of voters; 1: voters are in the log (KIP-853)."""


@struct
class VoterEndpoint:
    name: str
    host: str
    port: UInt16


@struct
class KRaftVersionFeature:
    min_supported_version: Int16
    max_supported_version: Int16


@struct
class RecordedVoter:
    voter_id: Int32
    voter_directory_id: Uuid
    endpoints: tuple[VoterEndpoint, ...]
    k_raft_version_feature: KRaftVersionFeature


@message(name="VotersRecord", versions="0", flexible="0+")
class VotersRecord:
    version: Int16 = 0
    voters: tuple[RecordedVoter, ...]


NO_DECISION: Final = -1


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of a transaction in one partition; the batch has the producer id."""

    type: ControlType
    coordinator_epoch: int
    decision_offset: int = NO_DECISION
    """The place of the decision among the decisions of this coordinator epoch; only for producers that keep their
    epoch."""


ControlValue = (
    EndTransactionMarker
    | LeaderChangeMessage
    | SnapshotHeaderRecord
    | SnapshotFooterRecord
    | KRaftVersionRecord
    | VotersRecord
)

_KEY = Struct(">hh")
_MARKER = Struct(">hi")
_NUMBERED_MARKER = Struct(">hiq")
"""Ours: Kafka and clients skip the bytes behind the fields of `_MARKER`."""
_VERSION = Struct(">h")
_MESSAGES: dict[
    ControlType,
    type[LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord],
] = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
_TYPES = {cls: kind for kind, cls in _MESSAGES.items()}


def control_type(key: Buffer | None) -> ControlType | None:
    """The type that a control record's key states, None for an unknown type. Raises CorruptRecords."""
    if key is None or len(key) < _KEY.size:
        raise CorruptRecords(f"a control record's key has 4 bytes or more, not {bytes(key) if key else key!r}")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecords(f"a control record's key has the version {version}")
    try:
        return ControlType(kind)
    except ValueError:
        return None


def decode_control(key: Buffer | None, value: Buffer | None) -> ControlValue | None:
    """The value of a control record, None for an unknown type. Raises CorruptRecords."""
    kind = control_type(key)
    if kind is None:
        return None
    if value is None or len(value) < _VERSION.size:
        raise CorruptRecords(f"a {kind.name} record without a value")
    (version,) = _VERSION.unpack_from(value)
    if version < 0:
        raise CorruptRecords(f"a {kind.name} record of version {version}")
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        # Later versions may add bytes, never take some away (KIP-98): Kafka reads them as version 0 too.
        if len(value) < _MARKER.size:
            raise CorruptRecords(f"a {kind.name} marker of {len(value)} bytes")
        if version == 0 and len(value) == _NUMBERED_MARKER.size:
            _, coordinator_epoch, decision_offset = _NUMBERED_MARKER.unpack(value)
            return EndTransactionMarker(kind, coordinator_epoch, decision_offset)
        return EndTransactionMarker(kind, _MARKER.unpack_from(value)[1])
    try:
        # The version is the message's own first field: the bytes say how to read the rest.
        return decode(_MESSAGES[kind], min(version, 1) if kind is ControlType.LEADER_CHANGE else 0, value)
    except MalformedMessage as error:
        raise CorruptRecords(f"a {kind.name} record: {error.detail}") from error


def encode_control(value: ControlValue) -> tuple[bytes, bytes]:
    """The key and the value of the control record with this content."""
    if isinstance(value, EndTransactionMarker):
        key = _KEY.pack(0, value.type)
        if value.decision_offset == NO_DECISION:
            return key, _MARKER.pack(0, value.coordinator_epoch)
        return key, _NUMBERED_MARKER.pack(0, value.coordinator_epoch, value.decision_offset)
    return _KEY.pack(0, _TYPES[type(value)]), encode_bytes(value, value.version)


def build_control_batch(
    values: Sequence[ControlValue], *, timestamp: int, base_offset: int = 0, leader_epoch: int = -1
) -> bytearray:
    """A control batch with these records: of the metadata log or a snapshot. Timestamp in ms since 1970."""
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=leader_epoch, is_control=True)
    for value in values:
        builder.append(timestamp, *encode_control(value))
    return builder.build()


def build_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch that ends a producer's transaction in a partition, without a sequence number."""
    builder = BatchBuilder(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    builder.append(timestamp, *encode_control(marker))
    return builder.build()


def read_marker(buffer: Buffer, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker that this control batch holds; None for a batch of another type or an emptied batch."""
    try:
        records = read_records(buffer) if header.is_control and header.records_count else ()
        value = decode_control(records[0].key, records[0].value) if records else None
    except CorruptRecords:
        return None
    return value if isinstance(value, EndTransactionMarker) else None


def control_values(records: Sequence[Record]) -> list[ControlValue]:
    """The values of a control batch's records, without unknown types."""
    return [value for record in records if (value := decode_control(record.key, record.value)) is not None]
