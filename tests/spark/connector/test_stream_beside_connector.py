"""Streams of both formats: rows, schema and the offsets in the checkpoint equal, or different for a reason."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from spark.connector.cases import Case, SameRows, marked
from spark.connector.formats import PLACE, Format, Options, assert_related, in_order
from spark.connector.stream_cases import FIRST, LIMIT, MADE_ANEW, STREAM
from spark.connector.streams import Query, without_ids
from spark.connector.topics import ORDERS
from tailrace.client.blocking import Admin, Producer
from tailrace.model.partitions import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("case", marked(STREAM), ids=str)
def test_a_stream_beside_the_connector(ours: Format, connector: Format, case: Case, tmp_path: Path) -> None:
    query, theirs = Query(tmp_path / "ours"), Query(tmp_path / "connector")
    found = query.outcome(ours, case.options)
    beside = theirs.outcome(connector, case.options, is_patient=not case.is_refused_by_connector)
    assert_related(case.relation, found, beside)
    if isinstance(case.relation, SameRows):
        assert list(map(without_ids, query.offsets)) == theirs.offsets


def _run_both(queries: Mapping[Format, Query], given: Options) -> None:
    for source, query in queries.items():
        query.run(source, given)


def _catch_up(running: Iterable[StreamingQuery]) -> None:
    """Wait until the queries have seen all records. Twice: a look at the log may have begun before they were there."""
    for streaming in running:
        streaming.processAllAvailable()
        streaming.processAllAvailable()


@pytest.fixture
def queries(ours: Format, connector: Format, tmp_path: Path) -> dict[Format, Query]:
    """A query of each format."""
    return {source: Query(tmp_path / source.name) for source in (ours, connector)}


@pytest.fixture
def send(bootstrap: str, topic: str) -> Callable[[int], None]:
    """Send a number of records, in turn to both partitions of the topic."""

    def send(count: int) -> None:
        with Producer(bootstrap) as producer:
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=number % 2)

    return send


def test_a_limit_of_records(ours: Format, connector: Format, queries: dict[Format, Query]) -> None:
    """The same rows in other batches, to the same end: see LIMIT."""
    _run_both(queries, {"subscribe": ORDERS, **FIRST, "maxOffsetsPerTrigger": "5"})
    query, theirs = queries[ours], queries[connector]
    assert in_order(chain(*query.batches)) == in_order(chain(*theirs.batches))
    assert without_ids(query.offsets[-1]) == theirs.offsets[-1]
    assert [[len(rows) for rows in read.batches] for read in (query, theirs)] == [[5, 5, 2], [4, 4, 4]], LIMIT


def test_a_query_by_processing_time(queries: dict[Format, Query], topic: str, send: Callable[[int], None]) -> None:
    """The delay is over at each trigger, so that the minimum, which is not reached, holds no record back."""
    given = {"subscribe": topic, **FIRST, "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1ms"}
    send(4)
    running = [query.start(source, given, processingTime="50 milliseconds") for source, query in queries.items()]
    try:
        _catch_up(running)
        send(6)
        _catch_up(running)
    finally:
        for streaming in running:
            streaming.stop()
    query, theirs = queries.values()
    assert in_order(chain(*query.batches)) == in_order(chain(*theirs.batches))
    assert [sum(map(len, read.batches)) for read in (query, theirs)] == [10, 10]
    assert without_ids(query.offsets[-1]) == theirs.offsets[-1]


def test_a_minimum_of_records(queries: dict[Format, Query], topic: str, send: Callable[[int], None]) -> None:
    """Fewer records wait for more, but not in the first batch of a run."""
    given = {"subscribe": topic, **FIRST, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    send(4)
    running = [query.start(source, given, processingTime="50 milliseconds") for source, query in queries.items()]
    try:
        for count in (0, 6, 4, 6):
            send(count)
            _catch_up(running)
    finally:
        for streaming in running:
            streaming.stop()
    assert [len(rows) for query in queries.values() for rows in query.batches] == 2 * [4, 10]


def test_records_that_are_deleted_between_runs(
    queries: dict[Format, Query], admin: Admin, topic: str, send: Callable[[int], None]
) -> None:
    given = {"subscribe": topic, **FIRST}
    send(6)
    _run_both(queries, given)
    send(10)
    admin.delete_records({TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 2})
    for source, query in queries.items():
        with pytest.raises(Exception, match="failOnDataLoss"):
            query.run(source, given)
    _run_both(queries, {**given, "failOnDataLoss": "false"})
    query, theirs = queries.values()
    assert query.batches == theirs.batches
    assert [len(rows) for rows in query.batches] == [6, 3 + 5]


def test_a_partition_that_is_added_between_runs(
    queries: dict[Format, Query], admin: Admin, bootstrap: str, topic: str, send: Callable[[int], None]
) -> None:
    given = {"subscribe": topic}  # from the end; but of the new partition all is read
    send(2)
    _run_both(queries, given)
    admin.create_partitions({topic: 3})
    with Producer(bootstrap) as producer:
        producer.send(topic, b"new", partition=2).result()
    _run_both(queries, given)
    query, theirs = queries.values()
    assert query.batches == theirs.batches
    assert [len(rows) for rows in query.batches] == [1]


@pytest.mark.parametrize("records", [pytest.param(2, marks=pytest.mark.soak), 30])
def test_a_topic_that_is_made_anew_between_runs(
    ours: Format,
    connector: Format,
    queries: dict[Format, Query],
    admin: Admin,
    topic: str,
    send: Callable[[int], None],
    records: int,
) -> None:
    """Shorter than before, or longer: see MADE_ANEW."""
    given = {"subscribe": topic, **FIRST}
    send(10)
    _run_both(queries, given)
    admin.delete_topics([topic])
    admin.create_topics({topic: 2})
    send(records)
    query, theirs = queries[ours], queries[connector]
    with pytest.raises(Exception, match=f"topic {topic} was deleted and created again.*failOnDataLoss=false"):
        query.run(ours, given)
    if records == 2:
        with pytest.raises(Exception, match="Some data may have been lost"):
            theirs.run(connector, given)
    _run_both(queries, {**given, "failOnDataLoss": "false"})
    assert [PLACE(row)[1:] for row in query.batches[-1]] == [
        (partition, offset) for partition in (0, 1) for offset in range(records // 2)
    ]
    assert len(theirs.batches) == (1 if records == 2 else 2), MADE_ANEW
    if records == 30:
        assert [row[4] for row in theirs.batches[-1]] == [*range(5, 15)] * 2, MADE_ANEW
