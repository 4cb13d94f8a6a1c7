"""Ends of key ranges found by a walk over every record of a log, without any index."""

from collections.abc import Callable, Iterable, Iterator

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import KeyRange, hash_of
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.storage import Log, ReadLimits

ANY_HASH = -1


def readable_hashes(log: Log) -> list[tuple[int, int]]:
    """Every offset with a record, with the hash of its key; `ANY_HASH` for markers and where records cannot be read."""
    return [pair for pair in _hashes(log) if pair[0] >= log.log_start_offset]


def _hashes(log: Log) -> Iterator[tuple[int, int]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(ReadLimits(offset, 1 << 20))
        for chunk in result.records:
            for position, header in iter_batches(chunk):
                try:
                    records = read_records(chunk, position)
                except CorruptRecords:
                    yield from ((at, ANY_HASH) for at in range(header.base_offset, header.end_offset))
                    continue
                if header.is_control:
                    yield header.last_offset, ANY_HASH
                else:
                    yield from ((record.offset, hash_of(record.key, record.offset)) for record in records)
        if not result.size_bytes:
            return
        offset = result.next_offset


def end_by_walk(found: Iterable[tuple[int, int]], wanted: KeyRange, end_offset: int) -> int | None:
    """The end of this range, from the result of `readable_hashes`; None without a record."""
    matching = [at for at, key in found if at < end_offset and (key == ANY_HASH or wanted.first <= key <= wanted.last)]
    return max(matching) + 1 if matching else None


def compare_end(
    log: Log,
    found: Iterable[tuple[int, int]],
    wanted: KeyRange,
    end_offset: int,
    *,
    deleted: Iterable[tuple[int, int]] = (),
    monotonic_ms: Callable[[], int] = lambda: 0,
) -> None:
    """The end of the range is that of a walk. Without a record it is at most the log start, and lies behind the records
    of the range that are known to have been deleted."""
    answer, expected = end_by_index(log, wanted, end_offset, monotonic_ms), end_by_walk(found, wanted, end_offset)
    if expected is not None:
        assert answer == expected, (wanted, end_offset)
        return
    last_deleted = max((at for at, key in deleted if wanted.first <= key <= wanted.last), default=-1)
    assert last_deleted < answer <= log.log_start_offset, (wanted, end_offset)


def end_by_index(log: Log, wanted: KeyRange, end_offset: int, monotonic_ms: Callable[[], int] = lambda: 0) -> int:
    """The end of this range by the index of the log, after all necessary steps."""
    for _ in range(5_000):
        answer = log.keys.end(*wanted, end_offset)
        if answer is not None:
            return answer
        log.keys.index_on(monotonic_ms)
    raise AssertionError(f"the end of {wanted} below {end_offset} is not found")
