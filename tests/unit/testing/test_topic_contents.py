"""Comparisons of a topic with the expected records, and what their failures show."""

from collections.abc import Iterable
from itertools import count

import pytest

from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.testing.topic_contents import Expected, assert_holds


def record(value: bytes | None, key: bytes | None = None, *, partition: int = 0, offset: int = 0) -> ConsumerRecord:
    return ConsumerRecord("orders", partition, offset, 0, key, value, ())


def compare(
    expected: Iterable[Expected], records: Iterable[ConsumerRecord], *, ordered: bool = False, timeout: float = 0
) -> None:
    held = list(records)
    assert_holds(lambda: held, "orders", list(expected), ordered=ordered, timeout=timeout)


def message(expected: Iterable[Expected], records: Iterable[ConsumerRecord], *, ordered: bool = False) -> str:
    with pytest.raises(AssertionError) as caught:
        compare(expected, records, ordered=ordered, timeout=0)
    return str(caught.value)


TEA, MILK, RUM = (record(value, offset=offset) for offset, value in enumerate((b"tea", b"milk", b"rum")))


def test_values_pairs_and_json_are_compared_in_any_order() -> None:
    compare([b"milk", "tea"], [TEA, MILK])
    compare([("bob", "gin")], [record(b"gin", b"bob")])
    compare([{"a": 1, "b": [2]}, {"a": 1, "b": [2]}], [record(b'{"b":[2],"a":1}'), record(b'{"a": 1, "b": [2]}')])
    compare([None], [record(None, b"bob")])
    compare([], [])
    compare(["tea", "milk"], [TEA, MILK], ordered=True)


def test_a_failure_shows_what_is_missing_what_is_unexpected_and_what_is_there() -> None:
    text = message(["tea", "gin"], [TEA, record(b"milk", b"bob", partition=2, offset=7)])
    assert text.splitlines() == [
        "topic 'orders' holds 2 records, 2 expected",
        "missing: 1",
        "    'gin'",
        "unexpected: 1",
        "    2@7 key=b'bob' value=b'milk'",
        "the topic holds:",
        "    0@0 value=b'tea'",
        "    2@7 key=b'bob' value=b'milk'",
    ]
    assert message(["tea"], []).splitlines()[-1] == "the topic is empty"


def test_a_record_that_is_there_twice_is_unexpected_once() -> None:
    assert "unexpected: 1" in message(["tea"], [TEA, TEA])
    assert "missing: 1" in message(["tea", "tea"], [TEA])


def test_the_key_of_a_pair_counts() -> None:
    assert "missing: 1\n    ('bob', 'tea')" in message([("bob", "tea")], [record(b"tea", b"ann")])


def test_another_order_is_a_failure_only_when_it_is_asked_for() -> None:
    compare(["milk", "tea"], [TEA, MILK])
    text = message(["milk", "tea"], [TEA, MILK], ordered=True)
    assert "in another order\nrecord 0 is 0@0 value=b'tea'\n    expected: 'milk'" in text
    with pytest.raises(ValueError, match="several partitions, which have no common order"):
        compare(["tea", "milk"], [TEA, record(b"milk", partition=1)], ordered=True)


def test_long_topics_and_long_values_are_shortened() -> None:
    text = message([], (record(b"x" * 1_000, offset=offset) for offset in range(1_000)))
    assert "... and 980 more" in text
    assert "the topic holds, the last 20 of 1000:" in text
    assert len(text) < 10_000


def test_the_comparison_waits_for_missing_records_and_for_no_others() -> None:
    looks = count()
    assert_holds(lambda: [TEA, MILK][: next(looks)], "orders", ["tea", "milk"], ordered=False, timeout=60)
    assert next(looks) == 3
    with pytest.raises(AssertionError, match="unexpected: 1"):
        compare(["tea", "milk"], [RUM], timeout=3_600)


def test_an_expectation_that_no_record_can_meet_is_refused() -> None:
    with pytest.raises(TypeError, match="record 0 of those expected: value: 5 is of type int"):
        compare([5], [TEA])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="record 0 of those expected: a tuple is a pair"):
        compare([("a", "b", "c")], [TEA])  # type: ignore[list-item]
