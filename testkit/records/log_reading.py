"""Readings of a whole log, a little at a time."""

from collections.abc import Iterator

from tailrace.protocol.records.batch import BatchHeader, iter_batches
from tailrace.storage import Log, ReadLimits


def stored_batches(log: Log, *, max_bytes: int = 500, is_whole: bool = False) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches up to the end of the log. A whole log has every offset; compaction leaves gaps between batches."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(ReadLimits(offset, max_bytes))
        assert result.size_bytes, f"nothing at offset {offset} below {log.log_end_offset}"
        assert offset < result.next_offset
        assert not is_whole or result.first_offset <= offset
        for chunk in result.records:
            for position, header in iter_batches(chunk):
                yield header, bytes(chunk[position : position + header.size_bytes])
        offset = result.next_offset
