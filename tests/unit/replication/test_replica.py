import tracemalloc

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.replication.replica import HighWatermark


def test_a_waiting_callback_runs_when_the_offset_is_reached_or_never_will_be() -> None:
    high_watermark, outcomes = HighWatermark(3), list[object]()
    high_watermark.waiters.add(5, outcomes.append)
    high_watermark.waiters.add(9, outcomes.append)
    high_watermark.rise(4)
    assert outcomes == []
    high_watermark.rise(6)
    assert (high_watermark.offset, outcomes) == (6, [None])
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "gone")
    high_watermark.waiters.fail(error)
    high_watermark.rise(9)
    assert outcomes == [None, error]


def test_written_bytes_are_readable_once_the_high_watermark_has_passed_them() -> None:
    high_watermark = HighWatermark(0)
    high_watermark.note_write(2, 100)
    high_watermark.note_write(4, 250)
    high_watermark.rise(3)
    assert high_watermark.readable_bytes == 100
    high_watermark.rise(4)
    assert high_watermark.readable_bytes == 250
    high_watermark.rise(5, 400)
    assert high_watermark.readable_bytes == 400


def test_the_notes_of_writes_above_the_high_watermark_are_bounded() -> None:
    """Producers with acks=1 go on for hours while replicas are away."""
    high_watermark = HighWatermark(0)
    tracemalloc.start()
    try:
        for end_offset in range(1, 100_001):
            high_watermark.note_write(end_offset, 10 * end_offset)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    for offset in (1, 500):
        high_watermark.rise(offset)
        assert high_watermark.readable_bytes == 10 * offset, "the first writes are still distinguished"
    for offset in (50_000, 99_999):
        high_watermark.rise(offset)
        assert 5_000 < high_watermark.readable_bytes <= 10 * offset
    high_watermark.rise(100_000)
    assert high_watermark.readable_bytes == 1_000_000
