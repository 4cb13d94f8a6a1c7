"""The pool of receive buffers."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.net.buffers import KEEP_BYTES, MAPPED, SMALLEST, BufferPool, ReceiveBuffer, size_class
from testkit.nodes.listeners import PoisonedBufferPool

LIMIT_BYTES = 256 << 20


@given(st.integers(min_value=0, max_value=100 << 20))
def test_a_buffer_holds_what_was_asked_for_and_less_than_twice_as_much(size: int) -> None:
    assert size <= size_class(size) < max(2 * size, SMALLEST + 1)


def test_a_returned_buffer_is_used_again() -> None:
    pool = BufferPool(limit_bytes=LIMIT_BYTES)
    first = pool.draw()
    assert first is not None
    pool.give_back(first)
    assert pool.draw() is first
    assert len(first) == SMALLEST


def test_a_buffer_with_a_view_is_never_used_again() -> None:
    pool = PoisonedBufferPool(limit_bytes=LIMIT_BYTES)
    first = pool.draw()
    assert first is not None
    first[:5] = b"alive"
    view = memoryview(first)[:5]
    pool.give_back(first)
    assert pool.draw() is not first
    assert view == b"alive"


def test_a_poisoned_pool_overwrites_a_returned_buffer() -> None:
    pool = PoisonedBufferPool(limit_bytes=LIMIT_BYTES)
    buffer = pool.draw()
    assert buffer is not None
    buffer[:] = bytes(len(buffer))
    pool.give_back(buffer)
    again = pool.draw()
    assert again is buffer
    assert set(again) == {0xDB}


def test_large_buffers_but_one_stay_within_the_limit_and_small_ones_are_always_given() -> None:
    pool = BufferPool(limit_bytes=1 << 20)
    large, beyond = pool.draw(1 << 20), pool.draw(1 << 20)
    assert large is not None
    assert beyond is not None
    assert pool.draw(128 << 10) is None
    assert pool.draw() is not None
    pool.give_back(beyond)
    assert pool.draw(128 << 10) is not None


def test_a_wait_for_memory_ends_once_when_there_is_some() -> None:
    pool = BufferPool(limit_bytes=1 << 20)
    large = pool.draw(1 << 20)
    assert large is not None
    calls: list[str] = []
    pool.when_free("a connection", lambda: calls.append("now"))
    assert calls == []
    pool.give_back(large)
    assert calls == ["now"]
    pool.give_back(pool.draw() or bytearray())
    assert calls == ["now"]


def test_only_so_much_is_kept_without_use() -> None:
    pool = BufferPool(limit_bytes=LIMIT_BYTES)
    drawn = [pool.draw(KEEP_BYTES // 8) for _ in range(10)]
    for buffer in drawn:
        assert buffer is not None
        pool.give_back(buffer)
    assert pool.kept_bytes == KEEP_BYTES
    assert pool.in_use_bytes == 0


def test_large_frames_leave_a_quarter_to_the_others() -> None:
    pool = BufferPool(limit_bytes=16 << 20)
    large = [pool.draw(256 << 10, in_the_end=100 << 20) for _ in range(48)]
    assert None not in large
    beyond = pool.draw(256 << 10, in_the_end=100 << 20)
    assert beyond is not None
    assert len(beyond) == 128 << 20
    assert pool.draw(256 << 10, in_the_end=100 << 20) is None
    others = [pool.draw(1 << 20) for _ in range(4)]
    assert None not in others
    assert pool.draw(1 << 20) is None
    for buffer in (*large, beyond, *others):
        assert buffer is not None
        pool.give_back(buffer)
    assert pool.in_use_bytes == 0
    assert [pool.draw(256 << 10, in_the_end=100 << 20) for _ in range(48)].count(None) == 0


def test_a_closed_connection_does_not_wait_for_memory() -> None:
    pool = BufferPool(limit_bytes=1 << 20)
    assert not pool.is_short
    pool.when_free("a connection", lambda: None)
    assert pool.is_short
    pool.forget("a connection")
    assert not pool.is_short


def test_small_requests_behind_a_large_one_take_no_buffer_of_its_size() -> None:
    pool = BufferPool(limit_bytes=LIMIT_BYTES)
    received = ReceiveBuffer(pool)
    frame = (100 << 20).to_bytes(4) + bytes(8 << 20)
    while received.end < len(frame):
        part = received.free_part()
        taken = frame[received.end : received.end + len(part)]
        part[: len(taken)] = taken
        received.end += len(taken)
        del part
        assert received.make_space()
    assert pool.in_use_bytes == 128 << 20
    received.drop()
    received.free_part()
    assert pool.in_use_bytes < MAPPED
