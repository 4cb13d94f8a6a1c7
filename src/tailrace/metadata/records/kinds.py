"""The table of record kinds: a row has everything that the other modules need to know about a kind of metadata record.

    number, record, version   the frame: `encode_record`, `decode_record`
    apply, derived            the next image: `metadata.replay`
    write                     the records of a snapshot, in Kafka's order: `metadata.snapshot_image`
    key, value                the records of the latest snapshot that are out of date: `ChangedRecords` there

A row stands beside the class of its record, and a decider makes the record: a new kind changes only these two files.
The state of a new kind is in a table of the image (`metadata.image_draft.ImageTable`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from tailrace.metadata.derive import Derived, Steps
from tailrace.metadata.image import ClusterImage, RecordKey
from tailrace.metadata.image_draft import ImageDraft
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.primitives import Buffer, read_uvarint, uvarint
from tailrace.protocol.schema import decode, encode_bytes

FRAME_VERSION = 1


class MetadataRecord:
    """Base of the metadata records."""

    __slots__ = ()


R = TypeVar("R", bound=MetadataRecord)
State = ClusterImage | ImageDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind(Generic[R]):
    """A kind of metadata record."""

    number: int
    """Kafka's number."""
    record: type[R]
    version: int = 0
    """The version in which records are written, and the highest version that can be read."""
    frame: bytes = field(init=False)
    """The bytes before the record itself."""
    apply: Callable[[ImageDraft, R], None] | None
    """Changes the draft as the record says. None: the record begins or ends a transaction of records, see
    `metadata.replay`."""
    derived: Callable[[ImageDraft, R], Steps[Derived]] | None = None
    """The partition changes that follow from the record and the draft before the record. Such a record is alone in its
    batch, and has the fields `derived_count` and `derived_crc`."""
    key: Callable[[R], RecordKey] | None = None
    """Returns the name of the snapshot record that the record states or changes."""
    value: Callable[[State, RecordKey], object] | None = None
    """Returns the present value of a key, None without a value. Only for kinds whose records can state an old value
    again."""
    write: Callable[[ClusterImage], Iterator[MetadataRecord]] | None = None
    """Yields the snapshot records of this kind."""
    place: int = 0
    """The place of the kind's records in a snapshot; equal places: in the order of the rows."""

    def __post_init__(self) -> None:
        frame = uvarint(FRAME_VERSION) + uvarint(self.number) + uvarint(self.version)
        object.__setattr__(self, "frame", frame)


class RecordKinds:
    """The rows, by the number and by the class of the record."""

    def __init__(self) -> None:
        self.by_number: dict[int, RecordKind[Any]] = {}
        self.by_class: dict[type[MetadataRecord], RecordKind[Any]] = {}

    def add(self, *rows: RecordKind[Any]) -> None:
        """Enter these rows."""
        for row in rows:
            assert row.number not in self.by_number, f"two kinds have the number {row.number}"
            self.by_number[row.number] = self.by_class[row.record] = row

    def of(self, record: MetadataRecord) -> RecordKind[Any]:
        """The row of this record."""
        return self.by_class[type(record)]

    def written(self) -> list[RecordKind[Any]]:
        """The kinds whose records a snapshot has, in the order of the snapshot."""
        return sorted((row for row in self.by_number.values() if row.write is not None), key=lambda row: row.place)


KINDS: Final = RecordKinds()
"""The table; the modules of this package add their kinds."""


def key_of(record: MetadataRecord) -> RecordKey:
    """The name of a snapshot's record, unique in the snapshot."""
    key = KINDS.of(record).key
    assert key is not None, f"no record of a snapshot: {record}"
    return key(record)


def encode_record(record: MetadataRecord) -> bytes:
    """The value of the log record, frame included, in the version this release writes."""
    kind = KINDS.by_class[type(record)]
    return kind.frame + encode_bytes(record, kind.version)


def decode_record(value: Buffer) -> MetadataRecord:
    """The inverse of `encode_record`.

    Raises KafkaError(UNSUPPORTED_VERSION) for a frame, type or version that this release does not know. A replay must
    then stop: without this record the image would be wrong. Raises MalformedMessage for bytes that are no such message.
    """
    frame_version, position = read_uvarint(value, 0)
    if frame_version != FRAME_VERSION:
        raise _unknown(f"frame version {frame_version}")
    number, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    kind = KINDS.by_number.get(number)
    if kind is None:
        raise _unknown(f"type {number}")
    if version > kind.version:
        raise _unknown(f"type {number} ({kind.record.__name__}) in version {version}")
    record: MetadataRecord = decode(kind.record, version, value, position)
    return record


def _unknown(what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the metadata log holds a record of {what}, which this release does not know; start this node with the newer"
        " release that wrote it",
    )
