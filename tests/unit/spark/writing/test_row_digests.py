"""Equal rows have equal digests, however they are cut and ordered; any other row has another digest."""

import random
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest

from tailrace.client.arrow import HEADERS_TYPE
from tailrace.model.sinks import RowsDigest
from tailrace.spark.writing.row_digests import digest_rows

Row = dict[str, Any]
TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
}
ROW: Row = {
    "topic": "orders",
    "partition": None,
    "key": b"k",
    "value": b"v",
    "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
}


def batch(*rows: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array([row[name] for row in rows], TYPES[name]) for name in TYPES})


def digest(*rows: Row, topic: str | None = None) -> RowsDigest:
    return digest_rows(batch(*rows), topic)


def random_rows(seed: int, count: int) -> list[Row]:
    chance = random.Random(seed)
    return [
        {
            "topic": chance.choice(("orders", "returns")),
            "partition": chance.choice((None, 0, 1)),
            "key": chance.choice((None, b"", chance.randbytes(3))),
            "value": chance.choice((None, chance.randbytes(chance.randrange(20)))),
            "headers": chance.choice((None, [], [{"key": "h", "value": chance.randbytes(2)}])),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_order_and_tasks_do_not_matter(seed: int) -> None:
    rows = random_rows(seed, 50)
    whole = digest(*rows)
    random.Random(seed).shuffle(rows)
    made = batch(*rows)
    parts = [made.slice(start, size) for start, size in ((0, 7), (7, 1), (8, 30), (38, 12))]
    assert reduce(RowsDigest.plus, (digest_rows(part, None) for part in parts), RowsDigest()) == whole
    assert not whole.differs_from(whole)


OTHERS: list[Row] = [
    {"topic": "order"},
    {"topic": None, "key": b"orders"},
    {"partition": 0},
    {"partition": 1},
    {"key": None},
    {"key": b""},
    {"key": b"v", "value": b"k"},
    {"key": b"kv", "value": b""},
    {"value": None},
    {"value": b"v\0"},
    {"headers": None},
    {"headers": ROW["headers"][:1]},
    {"headers": ROW["headers"][::-1]},
    {"headers": [{"key": "a", "value": None}, {"key": "b", "value": b"1"}]},
    {"headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]},
]


def test_each_part_of_a_row_counts() -> None:
    digests = [digest(ROW), *(digest({**ROW, **other}) for other in OTHERS)]
    assert len(set(digests)) == len(OTHERS) + 1
    assert all(digests[0].differs_from(other) for other in digests[1:])


def test_a_row_that_comes_twice_is_not_a_row_that_comes_once() -> None:
    assert len({digest(ROW), digest(ROW, ROW), digest(ROW, ROW, ROW), digest(), digest({**ROW, "key": b"x"}, ROW)}) == 5


def test_headers_that_are_written_alike_are_alike() -> None:
    assert digest({**ROW, "headers": None}) == digest({**ROW, "headers": []})
    assert digest({**ROW, "headers": []}, {**ROW, "headers": None}) == digest(*[{**ROW, "headers": None}] * 2)


def test_the_option_topic_counts_as_the_column_does() -> None:
    assert digest(ROW) == digest({**ROW, "topic": "x"}, topic="orders")
    assert digest(ROW) != digest(ROW, topic="returns")


def test_columns_that_are_not_there_count_as_nulls() -> None:
    value = pa.RecordBatch.from_pydict({"value": pa.array(["v"], pa.string())})
    nulls = {**ROW, "key": None, "headers": None}
    assert digest_rows(value, "orders") == digest(nulls)
    large = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.large_binary())})
    assert digest_rows(large, "orders") == digest(nulls)


def test_digests_of_two_schemes_are_compared_by_their_counts() -> None:
    assert not RowsDigest(3, 7, 1).differs_from(RowsDigest(3, 8, 2))
    assert RowsDigest(3, 7, 1).differs_from(RowsDigest(4, 7, 2))
    assert RowsDigest(3, 7, 1).differs_from(RowsDigest(3, 8, 1))


def test_the_digest_of_a_row_stays_the_same_from_release_to_release() -> None:
    """A batch may come again after an upgrade: another way to hash needs another scheme."""
    assert digest(ROW) == RowsDigest(1, 4791660007601483848)
