"""Buffers that are lent to answers."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.storage.read_buffers import KEEP_BYTES, LARGEST, SMALLEST, ReadBuffers


@given(st.integers(4 * SMALLEST + 1, LARGEST), st.sampled_from([1, 2, 4]))
def test_sizes_between_powers_of_two_waste_less(size: int, sizes: int) -> None:
    lent = len(ReadBuffers(sizes_per_doubling=sizes).lend(size))
    power = 1 << (size - 1).bit_length()
    assert size <= lent <= power
    assert lent - size < power // 2 // sizes
    assert lent % (power // 2 // sizes) == 0


@given(st.integers(1, 2 * LARGEST))
def test_a_buffer_holds_what_was_asked_for_and_less_than_twice_as_much(size: int) -> None:
    assert size <= len(ReadBuffers().lend(size)) < max(2 * size, SMALLEST + 1)


def test_a_buffer_is_lent_again_when_no_view_of_it_exists() -> None:
    buffers = ReadBuffers()
    view = memoryview(buffers.lend(100_000))
    first = view.obj
    assert buffers.lend(100_000) is not first
    del view
    assert any(buffers.lend(100_000) is first for _ in range(2))


@given(st.lists(st.tuples(st.integers(1, 6 << 20), st.booleans()), max_size=60))
def test_a_viewed_buffer_is_never_lent_and_no_more_is_kept_than_allowed(steps: list[tuple[int, bool]]) -> None:
    buffers = ReadBuffers()
    views: list[memoryview] = []
    for size, is_next_sent_before in steps:
        if is_next_sent_before and views:
            del views[0]
        view = memoryview(buffers.lend(size))
        assert all(view.obj is not other.obj for other in views)
        views.append(view)
        assert buffers.kept_bytes <= KEEP_BYTES


def test_a_stream_of_answers_uses_the_same_memory_over_and_over() -> None:
    buffers = ReadBuffers()
    used: set[int] = set()
    answer: list[memoryview] = []
    for _ in range(50):
        before, answer = answer, [memoryview(buffers.lend(1 << 20)) for _ in range(4)]
        used |= {id(view.obj) for view in answer}
        del before
    assert len(used) == 8
