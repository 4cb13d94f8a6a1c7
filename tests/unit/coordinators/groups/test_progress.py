"""Movement of committed offsets."""

from tailrace.coordinators.groups.progress import WINDOW_MS, OffsetProgress, ProgressBook
from tailrace.coordinators.groups.records import OffsetCommitValue, OffsetRecord
from tailrace.model.partitions import TopicPartition


def _commit(offset: int | None, at_ms: int = 0) -> OffsetRecord:
    value = None if offset is None else OffsetCommitValue(offset=offset, metadata="", commit_timestamp=at_ms)
    return OffsetRecord(group_id="g", topic="t", partition=0, value=value)


def test_a_repeated_commit_is_no_progress() -> None:
    progress = OffsetProgress(5, 1_000)
    progress.commit(5, 2_000)
    assert progress.moved_at_ms == 1_000
    progress.commit(6, 3_000)
    assert progress.moved_at_ms == 3_000


def test_the_pace_is_measured_over_a_window() -> None:
    progress = OffsetProgress(0, 0)
    for second in range(1, 101):
        progress.commit(second * 10, second * 1_000)
    assert WINDOW_MS <= progress.moved_at_ms - progress.earlier_at_ms < 2 * WINDOW_MS + 1_000
    consumed = progress.offset - progress.earlier_offset
    assert consumed == (progress.moved_at_ms - progress.earlier_at_ms) // 100


def test_going_back_starts_anew() -> None:
    progress = OffsetProgress(0, 0)
    progress.commit(100, 40_000)
    progress.commit(10, 50_000)
    assert (progress.earlier_offset, progress.earlier_at_ms, progress.moved_at_ms) == (10, 50_000, 50_000)


def test_a_forgotten_offset_leaves_nothing() -> None:
    book = ProgressBook()
    book.apply(_commit(1))
    assert book.of("g")[TopicPartition("t", 0)].offset == 1
    book.apply(_commit(None))
    book.apply(_commit(None))
    assert not book.of("g")
