"""Leader epochs and where they began (KIP-101, KIP-279)."""

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.storage import EpochCache, EpochEntry


def cache_of(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(tuple(EpochEntry(*entry) for entry in entries))


@pytest.mark.parametrize(
    ("assigned", "entries"),
    [
        ((4, 50), [(1, 0), (3, 20), (4, 50)]),
        ((3, 25), [(1, 0), (3, 20)]),
        ((3, 15), [(1, 0), (3, 15)]),
        ((4, 20), [(1, 0), (4, 20)]),
        ((2, 30), [(1, 0), (2, 30)]),
        ((5, 0), [(5, 0)]),
    ],
)
def test_a_new_epoch_drops_what_contradicts_it(assigned: tuple[int, int], entries: list[tuple[int, int]]) -> None:
    cache = cache_of((1, 0), (3, 20))
    cache.assign(*assigned)
    assert list(cache.entries) == entries
    assert cache.latest_epoch == entries[-1][0]


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (0, (10, 0)), (1, (20, 1)), (2, (20, 1)), (3, (40, 3)), (5, (99, 5)), (6, (-1, -1))],
)
def test_the_end_of_an_epoch_is_where_the_next_begins(epoch: int, answer: tuple[int, int]) -> None:
    cache = cache_of((1, 10), (3, 20), (5, 40))
    assert cache.end_offset_for(epoch, log_end_offset=99) == answer


def test_nothing_is_known_of_an_empty_log() -> None:
    assert EpochCache().end_offset_for(0, log_end_offset=0) == (-1, -1)
    assert EpochCache().latest_epoch == -1
    assert EpochCache().epoch_of(5) == -1


def test_truncation_at_both_ends() -> None:
    cache = cache_of((1, 10), (3, 20), (5, 40))
    assert not cache.is_dirty
    cache.truncate_from_end(41)
    cache.truncate_from_start(10)
    assert not cache.is_dirty
    cache.truncate_from_end(40)
    assert cache.entries == ((1, 10), (3, 20))
    cache.truncate_from_start(15)
    assert cache.entries == ((1, 15), (3, 20))
    cache.truncate_from_start(25)
    assert cache.entries == ((3, 25),)
    assert cache.is_dirty
    cache.truncate_from_end(0)
    assert cache.latest_epoch == -1


def test_an_offset_has_the_epoch_it_was_written_in() -> None:
    cache = cache_of((1, 10), (3, 20))
    assert [cache.epoch_of(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 1, 1, 3, 3]


def test_the_checkpoint_file_is_kafkas() -> None:
    data = cache_of((1, 10), (3, 20)).to_bytes()
    assert data == b"0\n2\n1 10\n3 20\n"
    assert EpochCache.from_bytes(data).entries == ((1, 10), (3, 20))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"0\nx\n",
        b"1\n0\n",
        b"0\n2\n1 10\n",
        b"0\n1\n1\n",
        b"0\n2\n1 10\n1 20\n",
        b"0\n2\n1 10\n3 10\n",
        pytest.param(b"0\n" + b"9" * 5_000, id="long count"),
        pytest.param(b"0\n1\n1 " + b"9" * 5_000, id="long offset"),
    ],
)
def test_a_wrong_checkpoint_file_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecords):
        EpochCache.from_bytes(data)


def test_an_epoch_that_comes_and_goes_leaves_nothing_to_be_written() -> None:
    cache = cache_of((1, 0))
    cache.assign(2, 30)
    assert cache.is_dirty
    cache.truncate_from_end(30)
    assert not cache.is_dirty
    cache.assign(3, 30)
    cache.is_dirty = False  # written
    cache.truncate_from_end(30)
    assert cache.is_dirty


def test_a_write_whose_result_is_not_known_is_repeated_whatever_the_entries_are() -> None:
    cache = cache_of((1, 0))
    cache.is_dirty = True
    assert cache.is_dirty
    cache.assign(2, 30)
    cache.truncate_from_end(30)
    assert cache.is_dirty
