"""Names, ids and key ranges of views."""

import pytest

from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import HASH_SPACE, WHOLE, KeyRange, joined
from tailrace.model.views import FAN_OUTS, View, family_of, folded_id, key_range_of, parse_view, views_of


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_a_view_has_a_name(fan_out: int) -> None:
    assert parse_view(f"orders.shared-{fan_out}") == View("orders", fan_out)
    assert View("orders", fan_out).name == f"orders.shared-{fan_out}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        ".shared-16",
        "..shared-16",
        "...shared-16",
        "a.shared-",
        "a.shared-0",
        "a.shared-1",
        "a.shared-3",
        "a.shared-016",
        "a.shared-512",
        "a.shared-1024",
        "a.shared--2",
        "a.shared-16 ",
        "a.shared-16.",
        "a.shared-\u0661\u0666",
        "a.Shared-16",
        "a/b.shared-16",
        "\ud800.shared-16",
        "a-shared-16",
        "x" * 241 + ".shared-2",
        "__consumer_offsets.shared-2",
        "__transaction_state.shared-2",
        "__cluster_metadata.shared-2",
    ],
)
def test_a_name_of_another_form_is_no_views(name: str) -> None:
    assert parse_view(name) is None


def test_the_longest_name_is_that_of_a_view() -> None:
    assert parse_view("x" * 240 + ".shared-2") == View("x" * 240, 2)
    assert parse_view("x" * 239 + ".shared-16") == View("x" * 239, 16)


def test_only_the_last_ending_counts() -> None:
    assert parse_view("a.shared-16.shared-4") == View("a.shared-16", 4)


def test_a_topic_has_a_view_of_each_width_if_the_name_is_legal() -> None:
    assert views_of("a") == tuple(f"a.shared-{fan_out}" for fan_out in FAN_OUTS)
    assert len(views_of("x" * 240)) == 3
    assert views_of("x" * 249) == ()


TOPIC = TopicId(bytes(range(16)))


def test_ids_are_folded_and_taken_back() -> None:
    ids = {folded_id(TOPIC, fan_out) for fan_out in FAN_OUTS}
    assert len(ids) == len(FAN_OUTS)
    assert TOPIC not in ids
    assert all(folded_id(folded_id(TOPIC, fan_out), fan_out) == TOPIC for fan_out in FAN_OUTS)


def test_the_family_of_an_id_has_the_ids_of_its_views_and_of_theirs() -> None:
    family = set(family_of(TOPIC))
    assert family >= {TOPIC} | {folded_id(TOPIC, fan_out) for fan_out in FAN_OUTS}
    assert all(set(family_of(name)) == family for name in family)


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_the_partitions_of_a_view_tile_the_hashes(fan_out: int) -> None:
    ranges = [key_range_of(number, fan_out) for number in range(fan_out)]
    assert joined(ranges) == (WHOLE,)
    assert sum(last - first + 1 for first, last in ranges) == HASH_SPACE
    assert [key_range_of(number + 3 * fan_out, fan_out) for number in range(fan_out)] == ranges


def test_a_range_is_an_even_part_of_the_hashes() -> None:
    assert key_range_of(5, 16) == KeyRange(5 * HASH_SPACE // 16, 6 * HASH_SPACE // 16 - 1)
