"""The times of a stored batch's records, and the largest time where its header cannot be right.

A leader of today corrects each header before it stores the batch (`replication.admission`). Logs of older releases,
directories of other programs and batches of a leader of an older release hold headers as producers wrote them: some
clients state -1 beside records with times. A header with a largest time below the batch's first time is such a header,
and then the records decide. For batches that no leader is known to have checked, the records decide in any case
(decision 0069). A producer may send records whose times all lie below the first time of the batch: so no checked header
is doubted.
"""

from array import array
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.arrow_buffers import Column
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader
from tailrace.protocol.records.columns import plain_groups
from tailrace.protocol.records.compression import decompress
from tailrace.protocol.records.kernels import check_records, records_to_columns
from tailrace.protocol.records.record import read_records

_WINDOW: Final = 4096
"""Records that are compared together: a million single comparisons take 0.1 s."""


def is_doubtful(header: BatchHeader) -> bool:
    """Whether the largest time of the header lies below the first time, which no header of one clock has."""
    return header.max_timestamp < header.base_timestamp and _has_times_of_records(header)


def _has_times_of_records(header: BatchHeader) -> bool:
    """Whether the producer gave the records their times: not the broker's time, and no delete horizon."""
    return header.records_count > 0 and not (
        header.is_control or header.has_log_append_time or header.has_delete_horizon
    )


def largest_time(batch: Buffer, header: BatchHeader) -> int:
    """The largest timestamp of the records of this whole batch, -1 for none.

    A batch that cannot be parsed has the time of its header.
    """
    if not _has_times_of_records(header):
        return header.max_timestamp
    section: Buffer = memoryview(batch)[HEADER_SIZE : header.size_bytes]
    try:
        if header.codec:
            section = decompress(header.codec, section)
        return check_records(section, 0, header.records_count, header.base_timestamp)[0]
    except CorruptRecords:
        return header.max_timestamp


class RecordTimes(NamedTuple):
    """Offsets and timestamps of records, in the order of the batch."""

    offsets: "memoryview[int]"
    timestamps: "memoryview[int]"

    @property
    def largest(self) -> int:
        """The largest timestamp, -1 for none."""
        return max(self.timestamps, default=-1)

    def first_at_least(self, timestamp: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record with at least this timestamp."""
        for start in range(0, len(self.timestamps), _WINDOW):
            window = self.timestamps[start : start + _WINDOW]
            if max(window) >= timestamp:
                index, found = next((index, found) for index, found in enumerate(window) if found >= timestamp)
                return found, self.offsets[start + index]
        return None


def _longs(numbers: Buffer) -> "memoryview[int]":
    return memoryview(numbers).cast("B").cast("q")


NO_TIMES: Final = RecordTimes(_longs(b""), _longs(b""))


def record_times(batch: Buffer, header: BatchHeader, *, from_offset: int) -> RecordTimes:
    """The times of the records of this whole batch from this offset on. Raises CorruptRecords.

    No object is made for a record: a million records, which take 1 MB in a batch, would take 2 s.
    """
    if header.is_control:
        markers = [record for record in read_records(batch) if record.offset >= from_offset]
        return RecordTimes(
            _longs(array("q", [marker.offset for marker in markers]).tobytes()),
            _longs(array("q", [marker.timestamp for marker in markers]).tobytes()),
        )
    end_offset = header.last_offset + 1
    for plain in plain_groups([batch], from_offset=from_offset, until_offset=end_offset, max_rows=header.records_count):
        columns = records_to_columns(
            plain,
            columns=Column.OFFSET | Column.TIMESTAMP,
            from_offset=from_offset,
            until_offset=end_offset,
            in_micros=False,
        )
        assert columns.offset is not None
        assert columns.timestamp is not None
        return RecordTimes(_longs(columns.offset), _longs(columns.timestamp))
    return NO_TIMES
