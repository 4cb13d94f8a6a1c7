"""`feed`: the forms of a row, and the refusal of anything else, before anything is written."""

import re
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from tailrace.client.blocking import Admin
from tailrace.testing import Cluster
from tailrace.testing.feeding import Content, InputRecord, feed
from tailrace.testing.spark.rows import topic_rows

_numbers = count()


@pytest.fixture
def name() -> str:
    return f"fed-{next(_numbers)}"


def test_values_keys_and_headers_are_texts_bytes_or_json(tailrace_cluster: Cluster, name: str) -> None:
    rows: list[Content | tuple[Content, Content] | InputRecord] = [
        "tea",
        b"\xff\x00",
        {"item": "Käse", "count": 2},
        [1, None],
        ("alice", "milk"),
        ({"id": 7}, None),
        InputRecord(
            "rum", key=b"bob", headers={"trace": "1", "raw": b"\xfe", "none": None}, timestamp=1_000, partition=0
        ),
        InputRecord(None, headers=[("a", "1"), ("a", {"b": 2})], timestamp=datetime(2026, 1, 31, tzinfo=UTC)),
    ]
    places = feed(tailrace_cluster, name, rows)
    assert [(place.topic, place.partition, place.offset) for place in places] == [(name, 0, at) for at in range(8)]
    found = topic_rows(tailrace_cluster, name, "key", "value", "headers")
    assert found == [
        (None, "tea", []),
        (None, b"\xff\x00", []),
        (None, '{"item": "Käse", "count": 2}', []),
        (None, "[1, null]", []),
        ("alice", "milk", []),
        ('{"id": 7}', None, []),
        ("bob", "rum", [("trace", "1"), ("raw", b"\xfe"), ("none", None)]),
        (None, None, [("a", "1"), ("a", '{"b": 2}')]),
    ]
    assert topic_rows(tailrace_cluster, name, "timestamp", "offset")[6:] == [(1_000, 6), (1_769_817_600_000, 7)]


def test_a_topic_is_made_when_it_is_missing_and_kept_when_it_is_there(tailrace_cluster: Cluster, name: str) -> None:
    servers = tailrace_cluster.bootstrap_servers
    assert [place.partition for place in feed(servers, name, list("abcd"), partitions=3)] == [0, 1, 2, 0]
    assert [place.offset for place in feed(servers, name, [InputRecord("e", partition=2)])] == [1]
    with pytest.raises(ValueError, match=f"topic '{name}' has 3 partitions, not 2"):
        feed(servers, name, ["f"], partitions=2)
    assert topic_rows(servers, name, "partition", "value") == [(0, "a"), (0, "d"), (1, "b"), (2, "c"), (2, "e")]


def test_the_rows_of_a_key_go_to_one_partition(tailrace_cluster: Cluster, name: str) -> None:
    places = feed(tailrace_cluster, name, [("alice", str(number)) for number in range(5)], partitions=4)
    assert len({place.partition for place in places}) == 1


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (7, TypeError, "row 1 for topic '.*': value: 7 is of type int; say a str, bytes, a dict or list"),
        (("alice", 1.5), TypeError, "row 1 .*: value: 1.5 is of type float"),
        ((3, "tea"), TypeError, "row 1 .*: key: 3 is of type int"),
        (
            ("a", "b", "c"),
            TypeError,
            r"row 1 .*: a tuple is a pair of key and value, and this \w+ has 3: say InputRecord\(",
        ),
        (None, TypeError, "row 1 .*: None is no row"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, TypeError, "row 1 .*: value: no JSON of .*datetime"),
        ({"x": float("nan")}, ValueError, "row 1 .*: value: no JSON of .*"),
        ("\ud800", ValueError, "row 1 .*: value: no UTF-8 of .*; say bytes"),
        (InputRecord("a", headers="bc"), TypeError, "row 1 .*: headers: 'bc' is neither a dict nor a list"),  # type: ignore[arg-type]
        (InputRecord("a", headers={"n": 1}), TypeError, "row 1 .*: headers: 'n': 1 is of type int"),  # type: ignore[dict-item]
        (InputRecord("a", headers=[("n",)]), TypeError, "row 1 .*: headers: .* is no pair"),  # type: ignore[list-item]
        (InputRecord("a", timestamp=datetime(2026, 1, 1)), ValueError, "row 1 .*: timestamp: .* has no time zone"),  # noqa: DTZ001
        (InputRecord("a", timestamp="now"), TypeError, "row 1 .*: timestamp: 'now' is no time"),  # type: ignore[arg-type]
        (InputRecord("a", timestamp=True), TypeError, "row 1 .*: timestamp: True is no time"),
        (InputRecord("a", timestamp=-1), ValueError, "row 1 .*: timestamp: -1 is not from 1970 on"),
        (InputRecord("a", partition="0"), TypeError, "row 1 .*: partition: '0' is no int"),  # type: ignore[arg-type]
        (InputRecord("a", partition=2), ValueError, "row 1 .*: there is no partition 2, the topic has 2"),
    ],
)
def test_a_row_that_cannot_be_encoded_is_named_and_nothing_is_written(
    tailrace_cluster: Cluster, name: str, row: object, error: type[Exception], message: str
) -> None:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 2})
    with pytest.raises(error, match=message):
        feed(tailrace_cluster, name, ["good", row])  # type: ignore[list-item]
    assert topic_rows(tailrace_cluster, name) == []


@pytest.mark.parametrize("record", ["tea", b"tea", bytearray(b"tea"), {"id": 1}, InputRecord("tea")])
def test_a_record_in_the_place_of_a_list_of_records_is_refused_with_the_form_that_is_meant(record: Any) -> None:
    cluster = Cluster()
    form = re.escape(f"say [{record!r}]")
    for call in (cluster.produce, cluster.assert_holds):
        with pytest.raises(TypeError, match=f"records is a list: {form}"):
            call("orders", record)
    with pytest.raises(TypeError, match=f"rows is a list: {form}"):
        feed("127.0.0.1:1", "orders", record)
    with pytest.raises(TypeError, match="records is a list, and 5 is of type int"):
        cluster.produce("orders", 5)  # type: ignore[arg-type]
