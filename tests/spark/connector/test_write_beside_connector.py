"""Writes of both formats: the same records in the same partitions, or both refused, or different for a reason."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spark.connector.cases import SameRows, marked
from spark.connector.formats import FAULTS, Format, Outcome, Read, Refused, assert_related
from spark.connector.topics import ORDERS
from spark.connector.write_cases import WRITE, WriteCase
from tailrace.client.blocking import Admin, RangedFetch
from tailrace.client.offsets import LATEST
from tailrace.model.partitions import TopicPartition
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Records = Callable[[str], list[Any]]
PARTITIONS = 3

_numbers = count()


@pytest.fixture(scope="module")
def records(admin: Admin, bootstrap: str) -> Iterator[Records]:
    """The records of a topic: key, value, headers, and the partition of records with a key, in any order."""
    with RangedFetch(bootstrap) as fetch:

        def read(topic: str) -> list[Any]:
            found = []
            for place, end in admin.list_offsets({TopicPartition(topic, n): LATEST for n in range(PARTITIONS)}).items():
                for batch in fetch.arrow(place, 0, end.offset, columns=("key", "value", "headers", "partition")):
                    found += [(*row.values(),) for row in batch.to_pylist()]
            return sorted(found, key=repr)

        yield read


def _write(by: Format, case: WriteCase, topic: str) -> Refused | None:
    given = {**({"topic": topic} if case.names_topic else {}), **case.given}
    given = {name: value.replace("TOPIC", topic) for name, value in given.items()}
    options = by.options(given, is_patient=not case.is_refused_by_connector)
    frame = by.spark.sql(case.query.replace("TOPIC", topic))
    if case.mode == "append" and (refusal := by.refusal(given, lambda source: source.writer(frame.schema, False))):
        return refusal
    try:
        writer = frame.write.format(by.name).options(**options)
        (writer if case.mode is None else writer.mode(case.mode)).save()
    except FAULTS as fault:
        return Refused.by(by.name, fault)
    return None


def _written(by: Format, case: WriteCase, admin: Admin, records: Records) -> Outcome:
    topic = f"written-{next(_numbers)}"
    admin.create_topics({topic: PARTITIONS})
    refusal = _write(by, case, topic)
    if refusal is None and isinstance(case.relation, SameRows):  # with acks 0 and 1 they come later
        rows = case.relation.rows
        wait_until(lambda: len(records(topic)) >= rows, f"{topic} has {rows} records")
    found = records(topic)
    if refusal is not None:
        assert not found, "a write that fails at once has written nothing"
        return refusal
    has_places = " AS partition" in case.query
    return Read("", [(*row[:3], row[3] if has_places or row[0] is not None else None) for row in found])


@pytest.mark.parametrize("case", marked(WRITE), ids=str)
def test_a_write_beside_the_connector(
    ours: Format, connector: Format, admin: Admin, records: Records, case: WriteCase
) -> None:
    found, beside = (_written(by, case, admin, records) for by in (ours, connector))
    assert_related(case.relation, found, beside)


def test_a_stream_is_written_by_either_format(
    ours: Format, connector: Format, admin: Admin, records: Records, tmp_path: Path
) -> None:
    """A format writes what the other format has read."""
    found = []
    for reader, writer in ((ours, connector), (connector, ours)):
        topic = f"streamed-by-{writer.name}"
        admin.create_topics({topic: PARTITIONS})
        given = {"subscribe": ORDERS, "startingOffsets": "earliest", "includeHeaders": "true"}
        frame = reader.spark.readStream.format(reader.name).options(**reader.options(given)).load()
        query = (
            frame.where("key IS NOT NULL")
            .select("key", "value", "headers", "partition")
            .writeStream.format(writer.name)
            .options(**writer.options({"topic": topic, "checkpointLocation": str(tmp_path / topic)}))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found.append(records(topic))
    assert len(found[0]) == 9
    assert found[0] == found[1]
