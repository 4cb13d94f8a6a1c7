"""The records of a topic, as a test reads and compares them."""

import difflib
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.consumer import Consumer
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing.feeding import Content, encode
from tailrace.testing.waits import POLL_S, see_markers, wait_until

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
Expected: TypeAlias = Content | tuple[Content, Content]
"""A value, or a pair of key and value."""

_SHOWN = 20
_SHOWN_CHARACTERS = 200


def read_all(
    servers: str, topic: str, *, isolation: Isolation = "read_committed", timeout: float = 30.0
) -> list[ConsumerRecord]:
    """The records that the topic holds now, by partition and offset; with read_committed also the records of each
    transaction whose commit has returned.

    Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) for a topic that does not exist, and TimeoutError.
    """
    _check_exists(servers, topic)
    deadline = time.monotonic() + timeout
    if isolation == "read_committed":
        wait_until(f"topic {topic!r} has all markers", partial(see_markers, servers, topic), timeout)
    records: list[ConsumerRecord] = []
    with Consumer(
        servers, topics=[topic], auto_offset_reset="earliest", until="end", isolation_level=isolation
    ) as consumer:
        while not consumer.is_at_end:
            records += consumer.poll(1.0)
            if time.monotonic() > deadline and not consumer.is_at_end:
                raise TimeoutError(
                    f"topic {topic!r} was not read to its end within {timeout} s: {len(records)} records were read,"
                    f" and the consumer says {consumer.trouble or 'nothing is wrong'}"
                )
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _check_exists(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        if admin.existing_topics([topic]):
            return
        names = [known.name for known in admin.list_topics()]
    near = difflib.get_close_matches(topic, names, n=3) or sorted(names)[:3]
    there = f"topics that exist: {', '.join(map(repr, near))}" if near else "the cluster has no topic"
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist; {there}")


def assert_holds(
    read: Callable[[], list[ConsumerRecord]], topic: str, expected: Sequence[Expected], *, ordered: bool, timeout: float
) -> None:
    """Compare what `read` returns with the expected records, again and again until the deadline while records are only
    missing. Raises AssertionError with the differences and the last records; ValueError if the records of several
    partitions are to be in order."""
    __tracebackhide__ = True  # pytest shows the line of the test
    wanted = [_wanted(item, f"record {number} of those expected") for number, item in enumerate(expected)]
    deadline = time.monotonic() + timeout
    while True:
        records = read()
        if ordered and len({record.partition for record in records}) > 1:
            raise ValueError(f"topic {topic!r} has records in several partitions, which have no common order")
        missing, unexpected = _differences(wanted, records)
        if not missing and not unexpected:
            break
        if unexpected or time.monotonic() >= deadline:
            raise AssertionError(_message(topic, wanted, records, missing, unexpected))
        time.sleep(POLL_S)
    if ordered:
        for place, (item, record) in enumerate(zip(wanted, records, strict=True)):
            if not item.fits(record):
                raise AssertionError(_order_message(topic, place, item, records))


class _Wanted:
    """An expected record. JSON is compared by its value, so that spaces and the order of names do not matter."""

    def __init__(self, item: Expected, place: str) -> None:
        key, value = item if isinstance(item, tuple) else (None, item)
        self.value = encode(value, f"{place}: value")
        self.is_json = isinstance(value, dict | list)
        self._parts = [("value", value, self.value)]
        if isinstance(item, tuple):
            self._parts.append(("key", key, encode(key, f"{place}: key")))
        self._shown = item

    def fits(self, record: ConsumerRecord) -> bool:
        return all(_is_same(given, encoded, getattr(record, name)) for name, given, encoded in self._parts)

    def __str__(self) -> str:
        return _shortened(repr(self._shown))


def _wanted(item: Expected, place: str) -> _Wanted:
    if isinstance(item, tuple) and len(item) != 2:
        raise TypeError(f"{place}: a tuple is a pair of key and value, and this tuple has {len(item)}")
    return _Wanted(item, place)


def _is_same(given: object, encoded: bytes | None, found: bytes | None) -> bool:
    if encoded == found or found is None or not isinstance(given, dict | list):
        return encoded == found
    try:
        parsed: Any = json.loads(found)
    except ValueError:
        return False
    return bool(parsed == given)


def _differences(
    wanted: Sequence[_Wanted], records: Sequence[ConsumerRecord]
) -> tuple[list[_Wanted], list[ConsumerRecord]]:
    """The expected records that are missing, and the records that are not expected."""
    left = dict(enumerate(records))
    places: dict[bytes | None, deque[int]] = defaultdict(deque)
    for place, record in left.items():
        places[record.value].append(place)
    missing = []
    for item in wanted:
        near = places[item.value] or (left if item.is_json else ())
        found = next((place for place in near if item.fits(left[place])), None)
        if found is None:
            missing.append(item)
        else:
            places[left.pop(found).value].remove(found)
    return missing, list(left.values())


def _message(
    topic: str,
    wanted: Sequence[_Wanted],
    records: Sequence[ConsumerRecord],
    missing: Sequence[_Wanted],
    unexpected: Sequence[ConsumerRecord],
) -> str:
    lines = [f"topic {topic!r} holds {_counted(len(records))}, {len(wanted)} expected"]
    if missing:
        lines += [f"missing: {len(missing)}", *_first([f"    {item}" for item in missing])]
    if unexpected:
        lines += [f"unexpected: {len(unexpected)}", *_first([f"    {show(record)}" for record in unexpected])]
    return "\n".join([*lines, *_contents(records)])


def _order_message(topic: str, place: int, item: _Wanted, records: Sequence[ConsumerRecord]) -> str:
    return "\n".join(
        [
            f"topic {topic!r} holds the {_counted(len(records))} expected in another order",
            f"record {place} is {show(records[place])}",
            f"    expected: {item}",
            *_contents(records),
        ]
    )


def _contents(records: Sequence[ConsumerRecord]) -> list[str]:
    """The lines of the last records."""
    head = f"the topic holds, the last {_SHOWN} of {len(records)}:" if len(records) > _SHOWN else "the topic holds:"
    return [head, *(f"    {show(record)}" for record in records[-_SHOWN:])] if records else ["the topic is empty"]


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"    ... and {more} more"] if more > 0 else [])]


def show(record: ConsumerRecord) -> str:
    """A line for the record: its place, its key if it has a key, its value and its headers."""
    words = [f"{record.partition}@{record.offset}"]
    if record.key is not None:
        words.append(f"key={_shortened(repr(record.key))}")
    words.append(f"value={_shortened(repr(record.value))}")
    if record.headers:
        words.append(f"headers={_shortened(repr(list(record.headers)))}")
    return " ".join(words)


def _counted(records: int) -> str:
    return f"{records} record" if records == 1 else f"{records} records"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
