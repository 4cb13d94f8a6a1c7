"""Columns of records as raw buffers in Arrow's layout, which the kernels fill and read without importing Arrow.

Binary columns have 32-bit offsets into their data (`binary`, `string`), one more than rows; a validity bitmap has one
bit per row, lowest first, set for a value that is there, and None stands for "no nulls". Integers are in the machine's
byte order. `first` is Arrow's offset of a slice: the row of the buffers at which the column begins.
"""

from enum import IntFlag
from typing import NamedTuple

from tailrace.protocol.primitives import Buffer


class Column(IntFlag):
    """The columns that `records_to_columns` can build; a column that is not asked for costs nothing."""

    KEY = 1
    VALUE = 2
    OFFSET = 4
    TIMESTAMP = 8
    TIMESTAMP_TYPE = 16
    HEADERS = 32


class BinaryBuffers(NamedTuple):
    """A column of nullable bytes or text."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer
    first: int = 0


class LongBuffers(NamedTuple):
    """A column of nullable 64-bit integers."""

    validity: Buffer | None
    data: Buffer
    first: int = 0


class HeaderBuffers(NamedTuple):
    """A column of nullable lists of (key, value): the list's offsets count entries of the two columns below."""

    validity: Buffer | None
    offsets: Buffer
    keys: BinaryBuffers
    values: BinaryBuffers
    first: int = 0


class RecordColumns(NamedTuple):
    """Records as columns, None where a column was not asked for. A record without headers has null, not an empty list,
    as in Spark's own Kafka source."""

    row_count: int
    key: BinaryBuffers | None
    value: BinaryBuffers | None
    offset: Buffer | None
    timestamp: Buffer | None
    timestamp_type: Buffer | None
    headers: HeaderBuffers | None


class EncodedRows(NamedTuple):
    """Rows as the records of one batch."""

    batch: bytearray
    """Zeros for the header, then the records."""
    row_count: int
    base_timestamp: int
    max_timestamp: int
