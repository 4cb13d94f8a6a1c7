"""Single records: reading the records of a batch, and building batches of records.

Records are foreign bytes even when their checksum is right: `read_records` takes nothing for granted and raises
CorruptRecords for lengths that lie, counts that lie, offsets that do not rise and data that unfolds without end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records import batch as batches
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, check_crc, read_header, seal
from tailrace.protocol.records.compression import Codec, compress, decompress
from tailrace.protocol.records.kernels import append_record, parse_records

Header = tuple[str, bytes | None]
"""A header of a record: key and value. A key may occur several times."""

NO_TIMESTAMP = -1


class Record(NamedTuple):
    """A record in a reader's form. Timestamp in ms since 1970; None stands for a null key or value."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


_make_record = partial(tuple.__new__, Record)


def read_records(
    buffer: Buffer, position: int = 0, *, max_bytes: int | None = None, strict: bool = False
) -> list[Record]:
    """The records of the one batch that starts at `position`; walk a buffer of several with `iter_batches`.

    Checks the checksum first. `max_bytes` limits what compressed records may unfold to, by default to
    `compression.MAX_DECOMPRESSED`. `strict` also demands what only a fresh batch has: every offset from the base on.
    Raises CorruptRecords.
    """
    header = read_header(buffer, position)
    check_crc(buffer, position, header)
    section: Buffer = memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes]
    if header.records_count and header.codec:
        section = decompress(header.codec, section, max_bytes=max_bytes)
    records: list[Record] = parse_records(
        section,
        _make_record,
        count=header.records_count,
        base_offset=header.base_offset,
        last_offset_delta=header.records_count - 1 if strict else header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        append_time=header.max_timestamp if header.has_log_append_time else None,
        dense=strict,
    )
    return records


class BatchFields(TypedDict, total=False):
    """The fields of a `BatchBuilder`, as arguments of `build_batch`."""

    codec: int
    level: int | None
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    log_append_time: int | None


@dataclass(slots=True, kw_only=True, eq=False)
class BatchBuilder:
    """Collects records and makes one batch of the records.

    The producer's identity may be set until `build`: a producer knows its sequence number only when it sends.
    """

    codec: int = Codec.NONE
    level: int | None = None
    base_offset: int = 0
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    log_append_time: int | None = None
    count: int = field(init=False, default=0)
    base_timestamp: int = field(init=False, default=NO_TIMESTAMP)
    max_timestamp: int = field(init=False, default=NO_TIMESTAMP)
    _batch: bytearray = field(init=False, default_factory=partial(bytearray, HEADER_SIZE))

    @property
    def size_bytes(self) -> int:
        """Exactly what `build` gives without a codec; with a codec, an upper bound but for incompressible data."""
        return len(self._batch)

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
    ) -> int:
        """Add a record; returns its offset in the batch, from 0. Timestamp in ms since 1970, or -1 for none."""
        index = self.count
        if index == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        append_record(self._batch, index, timestamp - self.base_timestamp, key, value, headers)
        self.count = index + 1
        return index

    def build(self) -> bytearray:
        """The batch, sealed, in a buffer of its own that may be stamped. The builder holds at least one record."""
        assert self.count > 0, "a batch has at least one record"
        if self.codec == Codec.NONE:
            built = bytearray(self._batch)
        else:
            with memoryview(self._batch) as view:
                built = bytearray(HEADER_SIZE)
                built += compress(self.codec, view[HEADER_SIZE:], self.level)
        built[:HEADER_SIZE] = self._header(len(built)).to_bytes()
        seal(built)
        return built

    def _header(self, size_bytes: int) -> BatchHeader:
        attributes = self.codec
        if self.is_transactional:
            attributes |= batches.TRANSACTIONAL
        if self.is_control:
            attributes |= batches.CONTROL
        if self.log_append_time is not None:
            attributes |= batches.LOG_APPEND_TIME
        return BatchHeader(
            base_offset=self.base_offset,
            batch_length=size_bytes - batches.LENGTH_OFFSET,
            partition_leader_epoch=self.leader_epoch,
            magic=batches.MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=self.count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp if self.log_append_time is None else self.log_append_time,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            records_count=self.count,
        )


def record_size_bound(
    key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]] = ()
) -> int:
    """An upper bound of the bytes of this record in any batch before compression: to be checked before the record is
    added."""
    size = _LARGEST_OVERHEAD + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    for name, content in headers:
        size += 10 + 4 * len(name) + (len(content) if content is not None else 0)
    return size


_LARGEST_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""The largest varints: length, attributes, timestamp delta, offset delta, key length, value length, header count."""


def build_batch(records: Iterable[Record], **fields: Unpack[BatchFields]) -> bytearray:
    """A batch of these records at consecutive offsets from `base_offset`; the records' own offsets do not count."""
    builder = BatchBuilder(**fields)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build()
