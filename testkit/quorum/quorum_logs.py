"""The state in the log of a quorum, as a state machine loads it."""

from collections.abc import Iterator

from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.server.quorum.log import QuorumLog

_READ_BYTES = 1 << 20


def stored_batches(log: QuorumLog, *, end_offset: int) -> Iterator[Buffer]:
    """The batches of the newest snapshot, then of the log behind it up to this offset."""
    offset = log.log_start_offset
    if log.snapshots:
        newest = log.snapshots[-1].id
        reader = log.open_snapshot(newest)
        yield from reader.batches()
        reader.close()
        offset = max(offset, newest.end_offset)
    while offset < end_offset:
        for content in log.read(offset, max_bytes=_READ_BYTES, end_offset=end_offset):
            for _, header in iter_batches(content):
                offset = header.end_offset
            yield content
