from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId, format_topic_id
from tailrace.model.key_ranges import SLOT_HASHES, WHOLE, fault_of, joined
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import (
    OffsetRange,
    Positions,
    by_key,
    bytes_between,
    cut,
    limit_bytes,
    limit_rows,
    pack,
    ranges_between,
)

A, B, C = (TopicPartition("t", partition) for partition in range(3))

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5))
sizes = st.dictionaries(partitions, st.integers(0, 10_000), min_size=1)
ranges = st.builds(
    lambda sizes, start: [OffsetRange(tp, start, start + size) for tp, size in sizes.items()],
    sizes,
    st.integers(0, 100),
)


def test_a_new_partition_begins_without_records() -> None:
    assert ranges_between({A: 3}, {A: 5, B: 7}, {}) == [OffsetRange(A, 3, 5)]


OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
OTHER = TopicPartition("u", 0)


def test_ids_are_names_without_partitions() -> None:
    """Spark's connector reads `Map[String, Map[Int, Long]]` and has no offset of such a name."""
    positions = Positions({B: 2, A: 1, OTHER: 3}, {"t": OLD, "gone": NEW})
    named = f"t#{format_topic_id(OLD)}"
    assert list(positions.to_json_dict().items()) == [("t", {"0": 1, "1": 2}), ("u", {"0": 3}), (named, {})]
    assert Positions.from_json_dict(positions.to_json_dict()) == Positions({A: 1, B: 2, OTHER: 3}, {"t": OLD})


@pytest.mark.parametrize("name", ["t#", "t#x", "t#" + "A" * 21, "#", "t#" + "\u00b2" * 22])
def test_an_id_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(KafkaError, match="the checkpoint"):
        Positions.from_json_dict({"t": {"0": 1}, name: {}}, what="the checkpoint's offsets")


@pytest.mark.parametrize("partitions", [{"x": 5}, {"0": "5"}, {"0": 1, "00": 2}, {"0": 2**63}, 5])
def test_a_broken_checkpoint_says_where_to_look(partitions: Any) -> None:
    """Through Spark, which names neither the checkpoint nor the command."""
    for positions in ({"orders": partitions}, {"orders": {"0": 5}, "orders#x": {}}):
        with pytest.raises(
            KafkaError, match="the checkpoint's offsets: .*orders.*`tailrace spark checkpoint show DIR`"
        ):
            Positions.from_json_dict(positions)


def test_positions_move_to_the_first_record_of_a_topic_made_anew() -> None:
    start = Positions({A: 5, C: 9, OTHER: 3}, {"t": OLD, "u": OLD})
    assert start.moved_to(Positions({A: 2, B: 1, OTHER: 8}, {"t": NEW, "u": OLD})) == Positions(
        {A: 0, B: 0, OTHER: 3}, {"t": NEW, "u": OLD}
    )


def test_positions_without_an_id_stay_in_any_topic_of_that_name() -> None:
    start = Positions({A: 5}, {})
    assert start.moved_to(Positions({A: 9}, {"t": NEW})) == start
    assert Positions({A: 5}, {"t": OLD}).moved_to(Positions({A: 9}, {})).offsets == {A: 5}


def test_rows_are_shared_in_proportion_to_the_backlog() -> None:
    assert limit_rows({A: 0, B: 100}, {A: 900, B: 200}, 100) == {A: 89, B: 111}  # one each first, 98 by size


def test_a_small_partition_moves_beside_a_large_one() -> None:
    assert limit_rows({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


@given(sizes, st.integers(1, 20_000))
def test_a_limit_is_met_exactly_when_there_is_more_than_it(backlog: dict[TopicPartition, int], limit: int) -> None:
    start = dict.fromkeys(backlog, 7)
    end = {tp: 7 + size for tp, size in backlog.items()}
    limited = limit_rows(start, end, limit)
    moved = {tp: limited[tp] - 7 for tp in limited}
    assert sum(moved.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= moved[tp] <= backlog[tp] for tp in backlog)


@given(ranges, st.integers(0, 20), st.integers(0, 3000))
def test_pieces_cover_every_offset_once(whole: list[OffsetRange], min_partitions: int, max_records: int) -> None:
    pieces = cut(whole, min_partitions=min_partitions, max_records=max_records)
    for offset_range in whole:
        edges = sorted((p.start, p.end) for p in pieces if p.topic_partition == offset_range.topic_partition)
        assert sum(end - start for start, end in edges) == offset_range.size
        assert all(before[1] == after[0] for before, after in pairwise(edges))
    if max_records:
        assert all(piece.size <= max_records for piece in pieces)


@given(ranges, st.integers(1, 8))
def test_packing_keeps_every_range_and_uses_no_more_tasks(whole: list[OffsetRange], tasks: int) -> None:
    packed = pack(whole, tasks=tasks)
    assert len(packed) <= tasks
    assert sorted(offset_range for work in packed for offset_range in work) == sorted(whole)
    assert all(packed)


def test_bytes_are_shared_in_proportion_to_the_backlog() -> None:
    start, end = {A: 10, B: 0, C: 7}, {A: 110, B: 300, C: 7}
    assert limit_bytes(start, end, {A: 1_000.0, B: 10.0}, 51_500) == {A: 60, B: 150, C: 7}
    assert limit_bytes(start, end, {A: 1_000.0, B: 10.0}, 103_000) == end


@given(sizes, st.integers(1, 10**9), st.floats(0, 10_000))
def test_a_limit_of_bytes_moves_every_partition_and_is_kept_but_for_one_record_each(
    backlog: dict[TopicPartition, int], limit: int, weight: float
) -> None:
    start = dict.fromkeys(backlog, 7)
    end = {tp: 7 + size for tp, size in backlog.items()}
    weights = {tp: weight for tp, size in backlog.items() if size}
    limited = limit_bytes(start, end, weights, limit)
    assert all(7 + (size > 0) <= limited[tp] <= end[tp] for tp, size in backlog.items())
    assert bytes_between(start, limited, weights) <= limit + (weight + 1) * len(weights)


@given(ranges, st.integers(1, 256))
def test_parts_by_key_have_each_hash_once(whole: list[OffsetRange], count: int) -> None:
    parts = by_key(whole, count)
    for offset_range in whole:
        hashes = [key_range for part in parts if part[:4] == offset_range[:4] for key_range in part.key_ranges]
        assert joined(hashes) == (WHOLE,)
        assert len(hashes) == count
        assert fault_of(hashes) is None
        sizes = [last - first for first, last in hashes]
        assert max(sizes) - min(sizes) <= SLOT_HASHES
