"""The line of lanes measures nothing if a key is out of order."""

from itertools import count

from benchmarks.lines.key_ranges.lanes import OrderCheck
from tailrace.client.keyed.outcomes import KeyedRecord


def record(key: bytes, number: int) -> KeyedRecord:
    return KeyedRecord("lanes", 0, 0, 0, key, b"%0100d" % number, ())


def checked() -> tuple[OrderCheck, list[int]]:
    stops: list[int] = []
    numbers = count()
    return OrderCheck(3, lambda: stops.append(next(numbers))), stops


def test_records_in_the_order_of_their_keys_are_counted_up_to_the_wanted_number() -> None:
    check, stops = checked()
    check.begin(record(b"a", 0))
    check.begin(record(b"b", 0))
    check.end(record(b"a", 0))
    check.begin(record(b"a", 1))
    check.end(record(b"b", 0))
    assert (stops, check.rate) == ([], 0.0)
    check.end(record(b"a", 1))
    assert (check.done, check.fault, stops) == (3, None, [0])
    assert check.rate > 0


def test_a_record_that_is_not_the_next_of_its_key_is_a_fault() -> None:
    check, stops = checked()
    check.begin(record(b"a", 1))
    assert (check.fault, stops) == ("b'a': 1 where 0 is due", [0])


def test_two_records_of_a_key_at_a_time_are_a_fault() -> None:
    check, stops = checked()
    check.begin(record(b"a", 0))
    check.begin(record(b"a", 1))
    assert (check.fault, stops) == ("b'a': 1 where 1 is due", [0])
