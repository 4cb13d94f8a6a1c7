"""Comparisons of a topic with the expected records, and what their failures show."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count

import pytest

from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import InputRecord, topic_contents
from tailrace.testing.comparison import Expected
from tailrace.testing.topic_contents import assert_holds


def record(
    value: bytes | None,
    key: bytes | None = None,
    *,
    partition: int = 0,
    offset: int = 0,
    timestamp: int = 0,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> ConsumerRecord:
    return ConsumerRecord("orders", partition, offset, timestamp, key, value, headers)


def compare(
    expected: Iterable[Expected],
    records: Iterable[ConsumerRecord],
    *,
    ordered: bool = False,
    allow_duplicates: bool = False,
    timeout: float = 0,
) -> None:
    held = list(records)
    assert_holds(
        lambda _: held, "orders", list(expected), ordered=ordered, allow_duplicates=allow_duplicates, timeout=timeout
    )


def message(
    expected: Iterable[Expected],
    records: Iterable[ConsumerRecord],
    *,
    ordered: bool = False,
    allow_duplicates: bool = False,
) -> str:
    with pytest.raises(AssertionError) as caught:
        compare(expected, records, ordered=ordered, allow_duplicates=allow_duplicates, timeout=0)
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
        "topic 'orders': 1 of 2 expected records missing, 1 unexpected; waited 0.0 s",
        "missing: 1",
        "    'gin'",
        "unexpected: 1",
        "    2@7 key=b'bob' value=b'milk'",
        "the topic holds:",
        "    0@0 value=b'tea'",
        "    2@7 key=b'bob' value=b'milk'",
    ]
    assert message(["tea"], []).splitlines()[-1] == "the topic is empty"


def test_a_record_that_is_there_twice_is_repeated_and_its_first_place_is_shown() -> None:
    again = record(b"tea", offset=173)
    text = message(["tea", "milk"], [record(b"tea", offset=172), again, record(b"milk", partition=1)])
    assert text.splitlines()[:3] == [
        "topic 'orders': 1 there again; waited 0.0 s",
        "there again: 1 (allow_duplicates=True accepts repeated records)",
        "    0@173 value=b'tea' (first at 0@172)",
    ]
    assert "unexpected" not in text
    mixed = message(["tea"], [TEA, RUM, again])
    assert "there again: 1 " in mixed
    assert "unexpected: 1\n    0@2 value=b'rum'" in mixed
    assert "missing: 1" in message(["tea", "tea"], [TEA])


def test_repeated_records_are_no_fault_when_they_are_allowed() -> None:
    again = record(b"tea", offset=3)
    compare(["tea", "milk"], [TEA, MILK, again, again], allow_duplicates=True)
    compare([{"a": 1, "b": 2}], [record(b'{"a":1,"b":2}'), record(b'{"b":2,"a":1}', offset=1)], allow_duplicates=True)
    compare(["tea", "milk", "rum"], [TEA, MILK, again, MILK, RUM], ordered=True, allow_duplicates=True)
    assert "in another order" in message(["milk", "tea"], [TEA, MILK, again], ordered=True, allow_duplicates=True)
    assert "missing: 1" in message(["tea", "milk"], [TEA, again], allow_duplicates=True)
    assert "missing: 1" in message(["tea", "tea"], [TEA], allow_duplicates=True)
    foreign = message(["tea"], [TEA, RUM, again], allow_duplicates=True)
    assert "unexpected: 1\n    0@2 value=b'rum'" in foreign
    assert "there again" not in foreign
    assert "unexpected: 1" in message([("ann", "tea")], [record(b"tea", b"ann"), TEA], allow_duplicates=True)


def test_a_value_alone_fits_a_record_with_any_key_that_no_pair_needs() -> None:
    compare(["tea"], [record(b"tea", b"ann")])
    compare([(None, "tea")], [TEA])
    assert "missing: 1\n    (None, 'tea')" in message([(None, "tea")], [record(b"tea", b"ann")])
    compare(["tea", ("bob", "tea")], [record(b"tea", b"bob"), record(b"tea", b"ann", offset=1)])


def test_an_input_record_is_compared_by_all_that_it_says() -> None:
    found = record(
        b"x", b"k", partition=1, timestamp=1_769_817_600_000, headers=(("h", b"2"), ("trace", b"7"), ("h", b"3"))
    )
    time = datetime(2026, 1, 31, tzinfo=UTC)
    compare([InputRecord("x")], [found])
    compare([InputRecord("x", key="k", headers={"h": "2"}, partition=1, timestamp=time)], [found])
    compare([InputRecord("x", headers=[("h", "2"), ("trace", b"7"), ("h", "3")], timestamp=1_769_817_600_000)], [found])
    for other in (
        InputRecord("y"),
        InputRecord("x", key="q"),
        InputRecord("x", headers={"h": "4"}),
        InputRecord("x", headers={"g": "2"}),
        InputRecord("x", headers=[("h", "2"), ("trace", b"7")]),
        InputRecord("x", partition=0),
        InputRecord("x", timestamp=1),
    ):
        assert "missing: 1" in message([other], [found])
    text = message([InputRecord("x", key="k", headers={"h": "4"}, timestamp=1)], [found])
    assert "missing: 1\n    InputRecord('x', key='k', headers={'h': '4'}, timestamp=1)\n" in text
    assert "timestamp=1769817600000" in text
    with pytest.raises(TypeError, match="record 0 of those expected: headers: 'n': 1 is of type int"):
        compare([InputRecord("x", headers={"n": 1})], [found])  # type: ignore[dict-item]


def test_a_topic_that_is_not_there_yet_is_waited_for_and_holds_no_record() -> None:
    looks = count()
    absent = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'orders' does not exist; topics that exist: 'o'")

    def read(left_s: float) -> list[ConsumerRecord]:
        assert 1 <= left_s <= 60
        if next(looks) < 3:
            raise absent
        return [TEA]

    assert_holds(read, "orders", ["tea"], ordered=False, timeout=60)
    assert next(looks) == 4
    never = iter([absent, absent])

    def read_absent(left_s: float) -> list[ConsumerRecord]:
        raise next(never)

    assert_holds(read_absent, "orders", [], ordered=False, timeout=60)
    with pytest.raises(AssertionError, match=r"^topic 'orders' does not exist; topics that exist: 'o'; waited 0.0 s$"):
        assert_holds(read_absent, "orders", ["tea"], ordered=False, timeout=0)


def test_a_comparison_that_blocks_an_event_loop_says_so_when_it_has_waited_in_vain() -> None:
    async def blocked(expected: str) -> str:
        return message([expected], [TEA])

    note = "the event loop of this thread was blocked meanwhile"
    assert note not in message(["milk"], [])

    async def compare_nothing() -> str:
        return message(["milk"], [])

    text = asyncio.run(compare_nothing())
    assert note in text
    assert "say `await asyncio.to_thread(cluster.assert_holds, ...)`" in text
    assert note not in asyncio.run(blocked("milk")), "an unexpected record is no matter of waiting"


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
    assert_holds(lambda _: [TEA, MILK][: next(looks)], "orders", ["tea", "milk"], ordered=False, timeout=60)
    assert next(looks) == 3
    with pytest.raises(AssertionError, match="unexpected: 1"):
        compare(["tea", "milk"], [RUM], timeout=3_600)


def test_a_failure_says_how_long_it_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(100)
    monkeypatch.setattr(topic_contents, "monotonic", lambda: next(times) / 4)
    monkeypatch.setattr(topic_contents, "sleep", lambda time_s: None)
    with pytest.raises(AssertionError, match=r"^topic 'orders': 1 of 1 expected record missing; waited 5\.\d s\n"):
        compare(["tea"], [], timeout=5)


def test_an_expectation_that_no_record_can_meet_is_refused() -> None:
    with pytest.raises(TypeError, match="record 0 of those expected: value: 5 is of type int"):
        compare([5], [TEA])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="record 0 of those expected: a tuple is a pair"):
        compare([("a", "b", "c")], [TEA])  # type: ignore[list-item]
