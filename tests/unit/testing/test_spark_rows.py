"""`assert_rows` and `topic_rows`: lost, repeated and changed rows are named, in messages of a bounded size."""

import json
from collections.abc import Iterable
from itertools import count

import pytest

from tailrace.client.blocking import Producer
from tailrace.model.errors import KafkaError
from tailrace.testing import Cluster
from tailrace.testing.feeding import feed
from tailrace.testing.spark.rows import assert_rows, await_markers, topic_rows

_numbers = count()
DRINKS = ["tea", "milk", "rum"]


@pytest.fixture
def name() -> str:
    return f"rows-{next(_numbers)}"


def message(actual: object, expected: object, **options: object) -> list[str]:
    with pytest.raises(AssertionError) as raised:
        assert_rows(actual, expected, **options)  # type: ignore[arg-type]
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([], []),
        (["milk", "rum", "tea"], DRINKS),
        ([("a", 1), ("b", None)], [("b", None), ("a", 1)]),
        ([("a", [1, {"x": [2]}])], [("a", [1, {"x": [2]}])]),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
        ([float("nan")], [float("nan")]),
        ([bytearray(b"a")], [b"a"]),
        ((drink for drink in DRINKS), set(DRINKS)),
    ],
)
def test_the_same_rows_in_any_order_pass(actual: object, expected: object) -> None:
    assert_rows(actual, expected)  # type: ignore[arg-type]


def test_a_lost_row_is_missing() -> None:
    assert message(["tea", "rum"], DRINKS) == ["3 rows are expected, 2 are there", "1 missing:", "    'milk'"]


def test_a_repeated_row_is_told_from_a_foreign_one() -> None:
    assert message([*DRINKS, "rum", "rum"], DRINKS) == [
        "3 rows are expected, 5 are there",
        "2 repeated:",
        "    'rum'  (3 times instead of 1)",
    ]
    assert message([*DRINKS, "gin"], DRINKS) == ["3 rows are expected, 4 are there", "1 extra:", "    'gin'"]


def test_a_changed_row_is_missing_and_its_new_form_is_extra() -> None:
    assert message([("a", 1), ("b", 3)], [("a", 1), ("b", 2)]) == [
        "2 rows are expected, 2 are there",
        "1 missing:",
        "    ('b', 2)",
        "1 extra:",
        "    ('b', 3)",
    ]


def test_a_row_that_is_there_too_seldom_is_missing() -> None:
    assert message(["tea"], ["tea", "tea", "tea"])[1:] == ["2 missing:", "    'tea'  (1 times instead of 3)"]


@pytest.mark.parametrize(("found", "wanted"), [(1, True), ("1", 1), (b"a", "a"), (None, ""), ([1, 2], [2, 1])])
def test_values_of_another_type_or_order_differ(found: object, wanted: object) -> None:
    assert len(message([("k", found)], [("k", wanted)])) == 5


def test_assert_rows_compares_the_order_on_request() -> None:
    assert_rows(DRINKS, DRINKS, ordered=True)
    assert message(["tea", "rum", "milk"], DRINKS, ordered=True) == [
        "3 rows are expected, 3 are there",
        "the same rows in another order: row 1 is 'rum' instead of 'milk'",
    ]
    assert message(["rum", "tea"], DRINKS, ordered=True)[1:] == ["1 missing:", "    'milk'"]


def test_a_message_is_of_a_bounded_size() -> None:
    lines = message(["x" * 100_000, *range(1_000)], [], limit=5)
    assert len(lines) == 8
    assert lines[1] == "1001 extra:"
    assert lines[-1] == "    and 996 more rows"
    assert max(map(len, lines)) < 300


@pytest.mark.parametrize("rows", ["tea", b"tea", {"a": 1}, 7])
def test_rows_that_are_none_are_refused(rows: object) -> None:
    with pytest.raises(TypeError, match="is neither a DataFrame nor a list of rows"):
        assert_rows(rows, DRINKS)  # type: ignore[arg-type]


def test_values_are_decoded_on_request(tailrace_cluster: Cluster, name: str) -> None:
    feed(tailrace_cluster, name, [("a", {"item": "tea"}), ("b", None)])
    assert_rows(
        topic_rows(tailrace_cluster, name, "key", "value", decode=json.loads), [("b", None), ("a", {"item": "tea"})]
    )


def test_rows_of_open_and_aborted_transactions_are_not_seen(tailrace_cluster: Cluster, name: str) -> None:
    servers = tailrace_cluster.bootstrap_servers
    feed(servers, name, ["before"])
    with Producer(servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        assert topic_rows(servers, name) == ["before"]
        assert topic_rows(servers, name, isolation="read_uncommitted") == ["before", "aborted", "open"]
        producer.commit_transaction()
    assert topic_rows(servers, name) == ["before", "open"]


class AdminOfLateMarkers:
    """A cluster that needs some looks until the markers of a transaction are written."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def list_transactions(self, *, states: Iterable[str]) -> list[str]:
        assert set(states) == {"PrepareCommit", "PrepareAbort"}
        self.looks -= 1
        return ["ended"] if self.looks else []


def test_the_markers_of_ended_transactions_are_awaited() -> None:
    """A commit returns when it is decided, and its markers are written a little later, as in Kafka."""
    admin = AdminOfLateMarkers(3)
    await_markers(admin)
    assert admin.looks == 0


def test_rows_are_seen_when_their_commit_has_returned(tailrace_cluster: Cluster, name: str) -> None:
    with Producer(tailrace_cluster.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            producer.send(name, str(number).encode(), partition=0)
            producer.commit_transaction()
            assert len(topic_rows(tailrace_cluster, name)) == number + 1


def test_an_unknown_column_or_topic_is_named(tailrace_cluster: Cluster, name: str) -> None:
    with pytest.raises(ValueError, match="there is no column 'vlaue'; there are key, value"):
        topic_rows(tailrace_cluster, name, "vlaue")
    with pytest.raises(KafkaError, match=name):
        topic_rows(tailrace_cluster, name)
