"""Records and lists of records that are used as confluent-kafka's messages or kafka-python's results."""

import asyncio
import copy
import pickle
from typing import Any

import pytest

from tailrace import Consumer, aio
from tailrace.client.hints.record_hints import PolledRecords
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

RECORD: Any = ConsumerRecord("orders", 0, 7, 1_000, b"k", b"v", ())
SECONDS = 60.0


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """A topic with one record."""
    return new_topic(tailrace_cluster, b"v")


def test_a_record_names_the_way_to_what_other_records_have() -> None:
    with pytest.raises(AttributeError, match="^a record has no 'error'; poll\\(\\) raises the error of a call"):
        RECORD.error()
    with pytest.raises(AttributeError, match="^a record has no 'timestamp_type'"):
        assert RECORD.timestamp_type
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        assert RECORD.colour


def test_a_list_of_a_poll_names_the_loop_and_the_dict() -> None:
    polled: Any = PolledRecords([RECORD])
    for name in ("value", "error", "key"):
        with pytest.raises(AttributeError, match=f"has no '{name}'; .*for record in consumer.poll\\(timeout\\)"):
            getattr(polled, name)
    with pytest.raises(AttributeError, match="has no 'items'; .*getmany\\(timeout_ms=...\\) returns a dict"):
        polled.items()


def test_records_and_lists_stay_plain() -> None:
    polled: Any = PolledRecords([RECORD])
    assert polled == [RECORD]
    assert repr(polled) == repr([RECORD])
    assert not hasattr(polled, "items")
    for value in (polled, RECORD):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
        assert not {"error", "items", "latency"} & set(dir(value))
    assert {"append", "__len__"} <= set(dir(polled))
    assert {"value", "_replace"} <= set(dir(RECORD))


def test_a_poll_returns_such_a_list(tailrace_cluster: Cluster, topic: str) -> None:
    async def main() -> Any:
        async with aio.Consumer(
            tailrace_cluster.bootstrap_servers, topics=[topic], auto_offset_reset="earliest"
        ) as consumer:
            return await consumer.poll(SECONDS)

    polled = asyncio.run(main())
    assert polled[0].value == b"v"
    with pytest.raises(AttributeError, match="getmany"):
        polled.items()


def test_a_called_value_is_explained_at_the_end_of_the_block(tailrace_cluster: Cluster, topic: str) -> None:
    settings: dict[str, Any] = {"topics": [topic], "auto_offset_reset": "earliest"}
    note = "the value of a record is an attribute: record.value, without parentheses"
    with (
        pytest.raises(TypeError, match="not callable") as caught,
        Consumer(tailrace_cluster.bootstrap_servers, **settings) as consumer,
    ):
        _use(consumer.poll(SECONDS)[0])
    assert caught.value.__notes__ == [note]
    consumer = Consumer(tailrace_cluster.bootstrap_servers, **settings)
    with pytest.raises(TypeError) as caught:  # noqa: PT012 - the way of confluent-kafka's examples
        try:
            _use(consumer.poll(SECONDS)[0])
        finally:
            consumer.close()
            consumer.close()
    assert caught.value.__notes__ == [note]

    async def main() -> None:
        async with aio.Consumer(tailrace_cluster.bootstrap_servers, **settings) as consumer:
            _use((await consumer.poll(SECONDS))[0])

    with pytest.raises(TypeError) as caught:
        asyncio.run(main())
    assert caught.value.__notes__ == [note]


def test_another_wrong_call_has_no_note() -> None:
    made: Any = 5
    with pytest.raises(TypeError) as caught, Consumer("127.0.0.1:1"):
        made()
    assert not hasattr(caught.value, "__notes__")


def _use(record: Any) -> None:
    record.value()


def test_next_returns_a_record(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(
        tailrace_cluster.bootstrap_servers, topics=[topic], auto_offset_reset="earliest", until="end"
    ) as consumer:
        assert next(consumer).value == b"v"
        assert next(consumer, None) is None
        with pytest.raises(StopIteration):
            next(consumer)
