"""A checkpoint goes from one format to the other and back, and each record is read once (decision 0064)."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from spark.connector.formats import Format
from spark.connector.streams import Query, without_ids
from tailrace.client.blocking import Admin, Producer
from tailrace.model.ids import format_topic_id

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Order = tuple[str, str, str, str]
THERE_AND_BACK = ("kafka", "tailrace", "kafka", "tailrace")
BACK_AND_THERE = ("tailrace", "kafka", "tailrace", "kafka")


@pytest.fixture
def send(bootstrap: str, topic: str) -> Callable[[int], None]:
    """Send five values that follow each other to both partitions."""

    def send(first: int) -> None:
        with Producer(bootstrap) as producer:
            for number in range(first, first + 5):
                producer.send(topic, b"%d" % number, partition=number % 2)

    return send


@pytest.mark.parametrize("order", [THERE_AND_BACK, pytest.param(BACK_AND_THERE, marks=pytest.mark.soak)], ids="-".join)
def test_each_record_is_read_once(
    ours: Format, connector: Format, admin: Admin, topic: str, send: Callable[[int], None], tmp_path: Path, order: Order
) -> None:
    formats = {source.name: source for source in (ours, connector)}
    query = Query(tmp_path / "checkpoint")
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    for run, name in enumerate(order):
        send(5 * run)
        query.run(formats[name], given)
        values = sorted(int(row[1]) for row in chain(*query.batches))
        assert values == list(range(5 * (run + 1))), f"after run {run}, of {name}"
    (described,) = admin.describe_topics([topic])
    mark = f"{topic}#{format_topic_id(described.topic_id)}"
    assert [mark in offsets for offsets in query.offsets] == [name == "tailrace" for name in order]
    ends = [without_ids(offsets)[topic] for offsets in query.offsets]
    assert ends == [{"0": 3, "1": 2}, {"0": 5, "1": 5}, {"0": 8, "1": 7}, {"0": 10, "1": 10}]


def test_a_batch_that_one_format_has_planned_is_read_by_the_other(
    ours: Format, connector: Format, topic: str, send: Callable[[int], None], tmp_path: Path
) -> None:
    """A run that ends between the plan and the commit of a batch: the next one repeats the batch as it was planned."""
    for first, second in ((ours, connector), (connector, ours)):
        query = Query(tmp_path / first.name)
        given = {"subscribe": topic, "startingOffsets": "earliest"}
        send(0)
        query.run(first, given)
        (query.checkpoint / "commits" / "0").unlink()
        (query.checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
        planned = query.batches.pop()
        send(5)
        query.run(second, given)
        repeated, following = query.batches
        assert repeated == planned
        assert len(following) == 5
        assert len(query.offsets) == 2


def test_a_topic_made_anew_after_the_connector_is_taken_for_the_old_one_once(
    ours: Format, connector: Format, admin: Admin, topic: str, send: Callable[[int], None], tmp_path: Path
) -> None:
    """The connector's checkpoint has no ids: a longer log goes unnoticed. The next run, with ids, notices."""
    query = Query(tmp_path)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    send(0)
    query.run(connector, given)
    send(5)
    query.run(ours, given)
    admin.delete_topics([topic])
    admin.create_topics({topic: 2})
    for first in range(0, 20, 5):
        send(first)
    with pytest.raises(Exception, match=f"topic {topic} was deleted and created again"):
        query.run(ours, given)
    query.run(connector, given)
    read = {row[3:5] for row in query.batches[-1]}
    assert read == {(partition, offset) for partition in (0, 1) for offset in range(5, 10)}, "it knows no ids"


def test_a_shorter_topic_after_the_connector_is_read_on_from_its_end(
    ours: Format, connector: Format, admin: Admin, topic: str, send: Callable[[int], None], tmp_path: Path
) -> None:
    """Without ids a log that is cut looks the same: no record comes twice, and all that are written now come."""
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    queries = {source: Query(tmp_path / source.name) for source in (ours, connector)}
    send(0)
    send(5)
    for query in queries.values():
        query.run(connector, given)
    admin.delete_topics([topic])
    admin.create_topics({topic: 2})
    send(0)
    for source, query in queries.items():
        with pytest.raises(Exception, match="ends at offset 3, before 5 .*failOnDataLoss=false|may have been lost"):
            query.run(source, given)
        query.run(source, {**given, "failOnDataLoss": "false"})
    send(5)
    for source, query in queries.items():
        query.run(source, {**given, "failOnDataLoss": "false"})
    query, theirs = queries.values()
    assert query.batches == theirs.batches
    assert [row[4] for row in query.batches[-1]] == [3, 4, 2, 3, 4]
