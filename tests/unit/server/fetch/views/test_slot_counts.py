"""Counts of the records of view partitions (decision 0100): short stretches exactly, long stretches by a sample."""

import random

import pytest

from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.views import key_range_of
from tailrace.protocol.messages.list_offsets import ESTIMATED_COUNT, EXACT_COUNT, UNFINISHED_COUNT
from tailrace.server.fetch import key_reads, slot_counts
from tailrace.storage.keys import batch_slots
from testkit.nodes.view_readers import ViewNode

FAN_OUT = 8
VIEW = f"orders.shared-{FAN_OUT}"
SLOTS = range(FAN_OUT)


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_counts, "CHUNK", 16)
    monkeypatch.setattr(slot_counts, "MOST_CHUNKS", 8)


Keys = list[bytes | None]


def random_keys(count: int, *, seed: int = 1) -> Keys:
    chance = random.Random(seed)
    return [None if chance.random() < 0.2 else b"key-%d" % chance.randrange(50) for _ in range(count)]


def counts(node: ViewNode, start: int, view: str = VIEW) -> tuple[list[int], set[int]]:
    """The counts of all slots from this offset on, and the qualities of the counts."""
    answers = node.ends(view, *SLOTS, count_from=start)
    assert [answer.error_code for answer in answers] == [0] * FAN_OUT
    return [answer.records for answer in answers], {answer.count_quality for answer in answers}


def expected(keys: Keys, start: int) -> list[int]:
    found = [hash_of(key, offset) for offset, key in enumerate(keys) if offset >= start]
    return [sum(contains([key_range_of(slot, FAN_OUT)], each) for each in found) for slot in SLOTS]


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_count_of_a_short_stretch_is_exact(node: ViewNode, small_chunks: None, codec: int) -> None:
    keys = random_keys(120)
    for first in range(0, 120, 30):
        node.write(*keys[first : first + 30], codec=codec)
    for start in (0, 1, 15, 16, 17, 29, 30, 64, 100, 119, 120, 500):
        assert counts(node, start) == (expected(keys, start), {EXACT_COUNT}), start


def test_a_count_goes_on_with_the_log(node: ViewNode, small_chunks: None) -> None:
    keys: Keys = []
    for seed in range(12):
        more = random_keys(7, seed=seed)
        keys += more
        node.write(*more)
        assert counts(node, 3) == (expected(keys, 3), {EXACT_COUNT})


def test_deleted_records_do_not_count(node: ViewNode, small_chunks: None) -> None:
    keys = random_keys(100)
    node.write(*keys[:50])
    node.write(*keys[50:])
    assert counts(node, 0) == (expected(keys, 0), {EXACT_COUNT})
    node.table.get("orders", 0).delete_records(37)
    assert counts(node, 0) == (expected(keys, 37), {EXACT_COUNT})


def test_markers_of_transactions_do_not_count(node: ViewNode, small_chunks: None) -> None:
    """A marker is in the log like a record, and leaves a gap between the offsets of records."""
    before, within, behind = random_keys(20, seed=1), random_keys(20, seed=2), random_keys(20, seed=3)
    node.write(*before)
    node.write(*within, transactional_id="t", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    node.end_transaction("orders", producer_id=7, is_commit=True)
    node.write(*behind)
    # A place stands for the marker, with a key that no slot counts.
    keys: Keys = [*before, *within, None, *behind]
    at_marker = [int(contains([key_range_of(slot, FAN_OUT)], hash_of(None, 40))) for slot in SLOTS]
    for start in (0, 25, 40):
        found, quality = counts(node, start)
        assert found == [all_of - own for all_of, own in zip(expected(keys, start), at_marker, strict=True)]
        assert quality == {EXACT_COUNT}


def test_a_long_stretch_is_estimated_by_a_sample(node: ViewNode, small_chunks: None) -> None:
    """A third of the records has one key: its slot has the share of the sample, not an equal share."""
    chance = random.Random(4)
    keys: Keys = [b"hot" if chance.random() < 1 / 3 else b"%d" % chance.randrange(10_000) for _ in range(4_000)]
    for first in range(0, 4_000, 40):
        node.write(*keys[first : first + 40])
    found, quality = counts(node, 5)
    assert quality == {ESTIMATED_COUNT}
    hot = next(slot for slot in SLOTS if contains([key_range_of(slot, FAN_OUT)], hash_of(b"hot", 0)))
    exact = expected(keys, 5)
    assert max(exact) == exact[hot] > 1_300
    assert abs(found[hot] - exact[hot]) < exact[hot] * 0.25
    assert abs(sum(found) - 3_995) < 400
    assert len(node.broker.readable_views.counts) <= 10


def test_a_longer_stretch_reads_the_chunks_of_the_shorter_one_again() -> None:
    for first in (0, 5, 63, 64):
        for last in (first, first + 63, first + 64, first + 1_000, first + 100_000):
            sample = list(slot_counts._sample(first, last))
            assert sample == sorted(set(sample))
            assert (sample[0], sample[-1]) == (first, last)
            assert len(sample) <= slot_counts.MOST_CHUNKS + 2
    shorter, longer = set(slot_counts._sample(7, 3_000)), set(slot_counts._sample(7, 6_000))
    assert len(longer - shorter) <= len(longer) // 2 + 2


def test_a_count_without_time_says_that_there_are_more_steps(
    node: ViewNode, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = random_keys(100)
    node.write(*keys)
    node.ends(VIEW, *SLOTS)
    monkeypatch.setattr(key_reads, "SCAN_MS", 0)
    ends = [answer.offset for answer in node.ends(VIEW, *SLOTS)]
    shares = [max(round((end - 20) / FAN_OUT), 1) for end in ends]
    assert counts(node, 20) == (shares, {UNFINISHED_COUNT}), "each slot counts as an equal share"
    monkeypatch.undo()
    assert counts(node, 20) == (expected(keys, 20), {EXACT_COUNT})


def test_a_chunk_of_many_bytes_is_read_in_part(
    node: ViewNode, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_counts, "CHUNK", 1_000)
    monkeypatch.setattr(slot_counts, "MOST_CHUNK_BYTES", 20_000)
    monkeypatch.setattr(slot_counts, "_READ_BYTES", 5_000)
    keys: Keys = [b"%d" % number for number in range(1_000)]
    for first in range(0, 1_000, 10):
        node.write(*keys[first : first + 10], value=b"x" * 100)
    found, quality = counts(node, 0)
    assert quality == {ESTIMATED_COUNT}
    assert abs(sum(found) - 1_000) < 60
    assert counts(node, 0) == (found, quality), "no further batch is read"


def test_a_batch_that_is_too_large_counts_as_evenly_spread(
    node: ViewNode, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = batch_slots.BatchLimits(400, 100_000)
    for module in (slot_counts, batch_slots):
        monkeypatch.setattr(module, "SPLIT_LIMITS", small)
    node.write(*[b"a"] * 10)
    node.write(*[b"same"] * 64, codec=4, value=b"x" * 50)
    node.write(*[b"a"] * 10)
    found, quality = counts(node, 0)
    assert quality == {EXACT_COUNT}
    own = expected([b"a"] * 20, 0)
    assert sum(found) == 84
    assert all(each >= mine for each, mine in zip(found, own, strict=True))


def test_records_of_a_partition_are_counted_by_offsets(node: ViewNode) -> None:
    node.write(*random_keys(30))
    (answer,) = node.ends("orders", 0, count_from=10)
    assert (answer.records, answer.count_quality) == (20, EXACT_COUNT)
    (answer,) = node.ends("orders", 0, count_from=40)
    assert answer.records == 0
    node.table.get("orders", 0).delete_records(15)
    (answer,) = node.ends("orders", 0, count_from=10)
    assert answer.records == 15


@pytest.mark.parametrize("options", [{}, {"count_from": 0, "timestamp": 0}, {"count_from": 0, "version": 5}])
def test_a_request_for_no_count_gets_none(node: ViewNode, options: dict[str, int]) -> None:
    node.write(*random_keys(30))
    for name in (VIEW, "orders"):
        (answer,) = node.ends(name, 0, **options)
        assert answer.records == -1


def test_the_chunks_that_were_used_least_recently_go(
    node: ViewNode, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_counts, "MOST_KEPT", 3)
    keys = random_keys(120)
    node.write(*keys)
    assert counts(node, 0) == (expected(keys, 0), {EXACT_COUNT})
    assert len(node.broker.readable_views.counts) == 3
