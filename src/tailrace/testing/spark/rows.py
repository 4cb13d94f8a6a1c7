"""The rows of a topic or a DataFrame, and their comparison with the expected rows.

`pyspark.testing.assertDataFrameEqual` pairs the rows of both sides: its message lists both sides with marks at
differing rows, and does not say which rows are repeated. Here rows are counted, so that lost, repeated and foreign rows
are told apart.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.ranged_fetch import RangedFetch
from tailrace.client.offsets import EARLIEST, LATEST, READ_COMMITTED
from tailrace.client.reader_settings import Isolation, parse_isolation
from tailrace.model.partitions import TopicPartition
from tailrace.testing.servers import Servers, addresses

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "headers")
_ROW_CHARACTERS = 200
"""A longer row is cut in a message."""
_MARKERS_SECONDS = 10.0
_MARKERS_LOOK_SECONDS = 0.005


class TransactionLister(Protocol):
    """The part of `Admin` that `await_markers` needs."""

    def list_transactions(self, *, states: Iterable[str]) -> Sequence[object]:
        """The transactions in these states."""
        ...


def text(content: bytes) -> str | bytes:
    """The text of UTF-8; other bytes stay bytes."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def topic_rows(
    servers: Servers,
    topic: str,
    *columns: str,
    decode: Callable[[bytes], object] = text,
    isolation: Isolation = "read_committed",
) -> list[Any]:
    """The records that a reader finds in a topic now, partition by partition, without Spark.

    The values, or with several names of columns a tuple of each record: `key`, `value`, `partition`, `offset`,
    `timestamp` (ms since 1970), `headers` (pairs). `decode` is for values, such as `json.loads`; keys and headers are
    texts, or bytes if not UTF-8. Readers with `read_committed` see no transaction that is open or aborted.
    Transactions whose commit has returned are awaited: their markers are written a little later (KIP-98).
    Raises ValueError for an unknown column, KafkaError for an unknown topic.
    """
    names = columns or ("value",)
    if unknown := [name for name in names if name not in COLUMNS]:
        raise ValueError(f"topic_rows: there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    rows = [tuple(record) for record in _records(addresses(servers), topic, names, decode, isolation)]
    return [row[0] for row in rows] if len(names) == 1 else rows


def _records(
    servers: str, topic: str, names: Sequence[str], decode: Callable[[bytes], object], isolation: Isolation
) -> Iterator[tuple[object, ...]]:
    level = parse_isolation(isolation)
    with Admin(servers) as admin:
        if level == READ_COMMITTED:
            await_markers(admin)
        (described,) = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, number) for number in range(len(described.partitions))]
        starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=level)
    with RangedFetch(servers, isolation=isolation) as reader:
        for partition in partitions:
            for batch in reader.arrow(
                partition, starts[partition].offset, ends[partition].offset, columns=tuple(dict.fromkeys(names))
            ):
                yield from zip(*(_column(batch, name, decode) for name in names), strict=True)


def await_markers(admin: TransactionLister) -> None:
    """Return when the markers of all transactions that have ended are written, or after ten seconds."""
    until = time.monotonic() + _MARKERS_SECONDS
    while admin.list_transactions(states=("PrepareCommit", "PrepareAbort")) and time.monotonic() < until:
        time.sleep(_MARKERS_LOOK_SECONDS)


def _column(batch: "pa.RecordBatch", name: str, decode: Callable[[bytes], object]) -> list[object]:
    column = batch.column(name)
    match name:
        case "value":
            return [None if value is None else decode(value) for value in column.to_pylist()]
        case "key":
            return [None if key is None else text(key) for key in column.to_pylist()]
        case "timestamp":
            return [microseconds // 1000 for microseconds in column.cast("int64").to_pylist()]
        case "headers":
            return [
                [(header["key"], _text(header["value"])) for header in headers or ()] for headers in column.to_pylist()
            ]
        case _:
            found: list[object] = column.to_pylist()
            return found


def _text(content: bytes | None) -> str | bytes | None:
    return None if content is None else text(content)


def assert_rows(
    actual: "DataFrame | Iterable[object]",
    expected: "DataFrame | Iterable[object]",
    *,
    ordered: bool = False,
    limit: int = 10,
) -> None:
    """Raise AssertionError unless both have the same rows, equally often; with `ordered`, in the same order too.

    Rows come from a batch DataFrame, classic or Connect, or from an iterable: tuples, or plain values for one column.
    For a DataFrame, an expected row may be a dict with its columns. If both are DataFrames, their names and types of
    columns must be the same as well. The message has at most `limit` rows that are missing, as many that are repeated,
    and as many that are extra. Numbers are compared exactly; for a tolerance see
    `pyspark.testing.assertDataFrameEqual`.
    """
    __tracebackhide__ = True
    found, wanted = _rows_of(actual, None), _rows_of(expected, _names_of(actual))
    if _is_frame(actual) and _is_frame(expected):
        from pyspark.testing import assertSchemaEqual

        assertSchemaEqual(actual.schema, expected.schema)  # type: ignore[union-attr]
    difference = _difference(found, wanted, limit) or (_first_misplaced(found, wanted) if ordered else "")
    if difference:
        raise AssertionError(f"{len(wanted)} rows are expected, {len(found)} are there\n{difference}")


def _is_frame(rows: object) -> bool:
    """Whether `rows` is a DataFrame, classic or of Connect: these classes have no base class of their own in all
    versions."""
    return hasattr(rows, "isStreaming") and hasattr(rows, "collect")


def _names_of(rows: Any) -> list[str] | None:
    return list(rows.columns) if _is_frame(rows) else None


def _rows_of(rows: Any, names: list[str] | None) -> list[tuple[object, ...]]:
    """The rows as tuples; dicts become rows of these columns if there are `names`."""
    if _is_frame(rows):
        if rows.isStreaming:
            raise TypeError(
                "assert_rows: a streaming DataFrame has no rows yet: run it to a topic or a memory table, and give that"
            )
        return [tuple(row) for row in rows.collect()]
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise TypeError(f"assert_rows: {_cut(repr(rows))} is neither a DataFrame nor a list of rows")
    return [_as_tuple(row, names) for row in rows]


def _as_tuple(row: object, names: list[str] | None) -> tuple[object, ...]:
    if isinstance(row, tuple):
        return row
    if not isinstance(row, Mapping) or names is None:
        return (row,)
    if set(row) != set(names):
        raise ValueError(f"assert_rows: the row {_cut(repr(row))} has other columns than {', '.join(names)}")
    return tuple(row[name] for name in names)


def _difference(found: list[tuple[object, ...]], wanted: list[tuple[object, ...]], limit: int) -> str:
    """The message about rows that occur too often or too seldom; empty without such rows."""
    rows = {_comparable(row): row for row in [*found, *wanted]}
    there, due = Counter(map(_comparable, found)), Counter(map(_comparable, wanted))
    missing = [(row, there[row], due[row]) for row in due if there[row] < due[row]]
    repeated = [(row, there[row], due[row]) for row in due if there[row] > due[row]]
    extra = [(row, there[row], 0) for row in there if row not in due]
    lines: list[str] = []
    for kind, counted in (("missing", missing), ("repeated", repeated), ("extra", extra)):
        if counted:
            lines.append(f"{sum(abs(is_there - is_due) for _, is_there, is_due in counted)} {kind}:")
            lines += [_counted(rows[row], is_there, is_due) for row, is_there, is_due in counted[:limit]]
        if len(counted) > limit:
            lines.append(f"    and {len(counted) - limit} more rows")
    return "\n".join(lines)


def _counted(row: tuple[object, ...], is_there: int, is_due: int) -> str:
    times = f"  ({is_there} times instead of {is_due})" if max(is_there, is_due) > 1 else ""
    return f"    {_shown(row)}{times}"


def _first_misplaced(found: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> str:
    for place, (there, due) in enumerate(zip(found, wanted, strict=True)):
        if _comparable(there) != _comparable(due):
            return f"the same rows in another order: row {place} is {_shown(there)} instead of {_shown(due)}"
    return ""


def _shown(row: tuple[object, ...]) -> str:
    return _cut(repr(row[0]) if len(row) == 1 else repr(tuple(row)))


def _cut(shown: str) -> str:
    return shown if len(shown) <= _ROW_CHARACTERS else f"{shown[:_ROW_CHARACTERS]}... ({len(shown)} characters)"


def _comparable(value: object) -> Hashable:
    """A value that is equal for equal rows: NaN is equal to itself, and True is no 1."""
    match value:
        case Mapping():
            return ("dict", frozenset((key, _comparable(each)) for key, each in value.items()))
        case tuple() | list():
            return ("list", tuple(map(_comparable, value)))
        case bytearray():
            return bytes(value)
        case bool():
            return ("bool", value)
        case float() if math.isnan(value):
            return ("NaN",)
        case set() | frozenset():
            return ("set", frozenset(map(_comparable, value)))
        case _:
            return value
