"""The comparison of a topic's records with the expected records, and the text of its failure."""

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.testing.feeding import Content, InputRecord, encode_record

Expected: TypeAlias = Content | tuple[Content, Content] | InputRecord
"""A value, a pair of key and value, or a record."""

_SHOWN = 20
_SHOWN_CHARACTERS = 200

__tracebackhide__ = True  # pytest shows the line of the test


class ExpectedRecord:
    """An expected record: a value alone leaves the key open, and an `InputRecord` all that it does not give.

    JSON is compared by its content, so that spaces and the order of names do not matter.
    """

    def __init__(self, item: Expected, place: str) -> None:
        if isinstance(item, tuple) and len(item) != 2:
            raise TypeError(f"{place}: a tuple is a pair of key and value, and this tuple has {len(item)}")
        self._item = item
        if isinstance(item, InputRecord):
            record = item
        elif isinstance(item, tuple):
            record = InputRecord(item[1], key=item[0])
        else:
            record = InputRecord(item)
        encoded = encode_record(record, place)
        self.value = encoded.value
        self._contents = [("value", record.value, encoded.value)]
        if isinstance(item, tuple) or encoded.key is not None:
            self._contents.append(("key", record.key, encoded.key))
        self.is_json = isinstance(record.value, dict | list)
        self._headers = encoded.headers
        self._has_all_headers = not isinstance(record.headers, Mapping)
        self._numbers = {
            name: wanted
            for name, wanted in (("partition", encoded.partition), ("timestamp", encoded.timestamp))
            if wanted is not None
        }

    @property
    def rank(self) -> int:
        """The count of what is compared: the expected records that ask most are matched first."""
        return len(self._contents) + len(self._headers) + len(self._numbers)

    @property
    def has_timestamp(self) -> bool:
        return "timestamp" in self._numbers

    def fits(self, record: ConsumerRecord) -> bool:
        return (
            all(_is_same(given, encoded, getattr(record, name)) for name, given, encoded in self._contents)
            and all(getattr(record, name) == wanted for name, wanted in self._numbers.items())
            and self._fits_headers(record.headers)
        )

    def _fits_headers(self, found: Sequence[tuple[str, bytes | None]]) -> bool:
        """Whether the record has the headers of a dict, among other headers, or exactly the headers of a list."""
        if self._has_all_headers and self._headers:
            return tuple(found) == self._headers
        return all(header in found for header in self._headers)

    def __str__(self) -> str:
        item = self._item
        if not isinstance(item, InputRecord):
            return _shortened(repr(item))
        named = [(name, getattr(item, name)) for name in ("key", "headers", "timestamp", "partition")]
        words = [f"{name}={given!r}" for name, given in named if given not in (None, ())]
        return _shortened(f"InputRecord({', '.join([repr(item.value), *words])})")


def _is_same(given: object, encoded: bytes | None, found: bytes | None) -> bool:
    if encoded == found or found is None or not isinstance(given, dict | list):
        return encoded == found
    try:
        parsed: Any = json.loads(found)
    except ValueError:
        return False
    return bool(parsed == given)


class Comparison:
    """The differences between the records that a topic holds and the expected records.

    A record that nothing expects, and that fits an expected record all the same, is there again.
    """

    def __init__(self, wanted: Sequence[ExpectedRecord], records: Sequence[ConsumerRecord]) -> None:
        self._wanted = wanted
        self._records = records
        self.missing, self.matched, left = _matched(wanted, records)
        by_value = defaultdict(list)
        for item in wanted:
            by_value[item.value].append(item)
        json_items = [item for item in wanted if item.is_json]
        self.repeated: list[tuple[ConsumerRecord, ExpectedRecord]] = []
        self.unexpected: list[ConsumerRecord] = []
        for record in left:
            near = [*by_value.get(record.value, ()), *json_items]
            fitting = next((item for item in near if item.fits(record)), None)
            if fitting is None:
                self.unexpected.append(record)
            else:
                self.repeated.append((record, fitting))

    def message(self, topic: str, *, allow_duplicates: bool, waited_s: float) -> str:
        """The text of a failure: the counts of differences, then the differences, and the last records."""
        counts = []
        if self.missing:
            counts.append(f"{len(self.missing)} of {_counted(len(self._wanted), 'expected record')} missing")
        if self.repeated and not allow_duplicates:
            counts.append(f"{len(self.repeated)} there again")
        if self.unexpected:
            counts.append(f"{len(self.unexpected)} unexpected")
        lines = [f"topic {topic!r}: {', '.join(counts)}; waited {waited_s:.1f} s"]
        if self.missing:
            lines += [f"missing: {len(self.missing)}", *_first(self.missing)]
        if self.repeated and not allow_duplicates:
            shown = (
                f"{self._show(record)} (first at {self._first_place(item)})" for record, item in self.repeated[:_SHOWN]
            )
            hint = "allow_duplicates=True accepts repeated records"
            lines += [f"there again: {len(self.repeated)} ({hint})", *_first(list(shown), len(self.repeated))]
        if self.unexpected:
            lines += [f"unexpected: {len(self.unexpected)}", *_first([self._show(each) for each in self.unexpected])]
        return "\n".join([*lines, *self._contents()])

    def order_message(self, topic: str) -> str | None:
        """The text about the first expected record that stands in another place; None if the order is the same."""
        for place, (item, record) in enumerate(zip(self._wanted, self.matched, strict=True)):
            if not item.fits(record):
                return "\n".join(
                    [
                        f"topic {topic!r} holds the {_counted(len(self.matched), 'record')} expected in another order",
                        f"record {place} is {self._show(record)}",
                        f"    expected: {item}",
                        *self._contents(),
                    ]
                )
        return None

    def _first_place(self, item: ExpectedRecord) -> str:
        first = next(record for record in self._records if item.fits(record))
        return f"{first.partition}@{first.offset}"

    def _contents(self) -> list[str]:
        """The lines of the last records."""
        count = len(self._records)
        if not count:
            return ["the topic is empty"]
        head = f"the topic holds, the last {_SHOWN} of {count}:" if count > _SHOWN else "the topic holds:"
        return [head, *(f"    {self._show(record)}" for record in self._records[-_SHOWN:])]

    def _show(self, record: ConsumerRecord) -> str:
        has_timestamp = any(item.has_timestamp for item in self._wanted)
        return f"{show(record)} timestamp={record.timestamp}" if has_timestamp else show(record)


def _matched(
    wanted: Sequence[ExpectedRecord], records: Sequence[ConsumerRecord]
) -> tuple[list[ExpectedRecord], list[ConsumerRecord], list[ConsumerRecord]]:
    """The expected records that are missing, the records that are expected, and the other records."""
    left = dict(enumerate(records))
    places: dict[bytes | None, deque[int]] = defaultdict(deque)
    for place, record in left.items():
        places[record.value].append(place)
    missing = set()
    for number in sorted(range(len(wanted)), key=lambda number: -wanted[number].rank):
        item = wanted[number]
        near = places[item.value] or (left if item.is_json else ())
        found = next((place for place in near if item.fits(left[place])), None)
        if found is None:
            missing.add(number)
        else:
            places[left.pop(found).value].remove(found)
    matched = [record for place, record in enumerate(records) if place not in left]
    return [wanted[number] for number in sorted(missing)], matched, list(left.values())


def _first(lines: Sequence[object], count: int | None = None) -> Iterator[str]:
    """The first of the lines, and the count of the lines that are left out of `count`."""
    yield from (f"    {line}" for line in lines[:_SHOWN])
    more = (len(lines) if count is None else count) - _SHOWN
    if more > 0:
        yield f"    ... and {more} more"


def show(record: ConsumerRecord) -> str:
    """A line for the record: its place, its key if it has a key, its value and its headers."""
    words = [f"{record.partition}@{record.offset}"]
    if record.key is not None:
        words.append(f"key={_shortened(repr(record.key))}")
    words.append(f"value={_shortened(repr(record.value))}")
    if record.headers:
        words.append(f"headers={_shortened(repr(list(record.headers)))}")
    return " ".join(words)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
