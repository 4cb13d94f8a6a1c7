"""A `with` block that an exception ends commits no record that its loop has not passed."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tailrace.client.blocking import Admin, Consumer
from tailrace.client.consumer import AsyncConsumer as AsyncioConsumer
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0
FAILING = 4


class Failure(Exception):
    """A failure of the caller."""


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> Iterator[str]:
    """Ten records in one partition; each value is the record's offset."""
    name = new_topic(tailrace_cluster, *(b"%d" % number for number in range(10)))
    yield name
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.delete_topics([name])


def _settings(topic: str) -> dict[str, Any]:
    return {"group": f"group-of-{topic}", "topics": [topic], "auto_offset_reset": "earliest"}


def _committed(cluster: Cluster, topic: str) -> int | None:
    partition = TopicPartition(topic, 0)
    with Admin(cluster.bootstrap_servers) as admin:
        offsets = admin.group_offsets(f"group-of-{topic}")
    return offsets[partition].offset if partition in offsets else None


def _process(record: ConsumerRecord, error: type[BaseException] = Failure) -> None:
    if record.offset == FAILING:
        raise error


def _polled(consumer: Consumer, limit: int | None = None) -> list[ConsumerRecord]:
    """The next records; the group may need some polls until it is joined."""
    records: list[ConsumerRecord] = []
    while not records:
        records = consumer.poll(SECONDS, max_records=limit)
    return records


def _iteration(consumer: Consumer, error: type[BaseException]) -> None:
    for record in consumer:
        _process(record, error)


def _list(consumer: Consumer, error: type[BaseException]) -> None:
    while True:
        for record in _polled(consumer):
            _process(record, error)


def _one_record_a_poll(consumer: Consumer, error: type[BaseException]) -> None:
    while True:
        for record in _polled(consumer, 1):
            _process(record, error)


def _by_partition(consumer: Consumer, error: type[BaseException]) -> None:
    """Put the records in a dictionary before the first is processed, as `getmany` of other clients has them."""
    while True:
        by_partition: dict[int, list[ConsumerRecord]] = {}
        for record in _polled(consumer, 3):
            by_partition.setdefault(record.partition, []).append(record)
        for records in by_partition.values():
            for record in records:
                _process(record, error)


def _iteration_then_poll(consumer: Consumer, error: type[BaseException]) -> None:
    for record in consumer:
        if record.offset == 1:
            break
    while True:
        for record in _polled(consumer, 2):
            _process(record, error)


def _generator(consumer: Consumer, error: type[BaseException]) -> None:
    def values() -> Iterator[ConsumerRecord]:
        yield from consumer

    for record in values():
        _process(record, error)


FORMS = [
    (_iteration, 4, Failure),
    (_iteration, 4, KeyboardInterrupt),
    (_list, 0, Failure),
    (_list, 0, SystemExit),
    (_one_record_a_poll, 4, Failure),
    (_by_partition, 3, Failure),
    (_iteration_then_poll, 4, Failure),
    (_generator, 4, Failure),
]


@pytest.mark.parametrize(("form", "committed", "error"), FORMS)
def test_a_failed_block_commits_what_its_loop_has_passed(
    tailrace_cluster: Cluster,
    topic: str,
    form: Callable[[Consumer, type[BaseException]], None],
    committed: int,
    error: type[BaseException],
) -> None:
    with pytest.raises(error), Consumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
        form(consumer, error)
    assert _committed(tailrace_cluster, topic) == committed
    with Consumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
        assert _polled(consumer)[0].offset == committed


def test_the_commits_between_polls_have_no_record_that_is_not_passed(tailrace_cluster: Cluster, topic: str) -> None:
    with (
        pytest.raises(Failure),
        Consumer(tailrace_cluster.bootstrap_servers, auto_commit_interval_ms=1, **_settings(topic)) as consumer,
    ):
        _by_partition(consumer, Failure)
    assert _committed(tailrace_cluster, topic) == 3


def test_a_block_that_ends_by_a_break_has_processed_its_last_record(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
        for record in consumer:
            if record.offset == FAILING:
                break
    assert _committed(tailrace_cluster, topic) == FAILING + 1


def test_an_exception_that_the_block_handles_withholds_nothing(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer, pytest.raises(Failure):
        _list(consumer, Failure)
    assert _committed(tailrace_cluster, topic) == 10


def test_a_generator_that_is_closed_withholds_the_record_that_it_stands_at(
    tailrace_cluster: Cluster, topic: str
) -> None:
    def records() -> Iterator[ConsumerRecord]:
        with Consumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
            yield from consumer

    generator = records()
    assert isinstance(generator, Generator)
    for record in generator:
        if record.offset == FAILING:
            break
    generator.close()
    assert _committed(tailrace_cluster, topic) == FAILING


@pytest.mark.parametrize("explicit", [None, 2, 9])
def test_a_commit_of_the_caller_stands_after_its_failure(
    tailrace_cluster: Cluster, topic: str, explicit: int | None
) -> None:
    offsets = None if explicit is None else {TopicPartition(topic, 0): explicit}

    def commit_and_fail() -> None:
        with Consumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
            _polled(consumer)
            consumer.commit(offsets)
            raise Failure

    with pytest.raises(Failure):
        commit_and_fail()
    assert _committed(tailrace_cluster, topic) == (10 if explicit is None else explicit)


def test_a_failed_block_without_auto_commit_commits_nothing(tailrace_cluster: Cluster, topic: str) -> None:
    settings = _settings(topic) | {"enable_auto_commit": False}
    with pytest.raises(Failure), Consumer(tailrace_cluster.bootstrap_servers, **settings) as consumer:
        _iteration(consumer, Failure)
    assert _committed(tailrace_cluster, topic) is None


def test_a_failed_block_commits_chosen_partitions_alike(tailrace_cluster: Cluster, topic: str) -> None:
    settings = _settings(topic) | {"topics": ()}

    def read() -> None:
        with Consumer(tailrace_cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            _iteration(consumer, Failure)

    with pytest.raises(Failure):
        read()
    assert _committed(tailrace_cluster, topic) == FAILING


@pytest.mark.parametrize(("limit", "committed"), [(500, 0), (3, 3), (1, 4)])
def test_a_failed_block_of_asyncio_commits_what_its_loop_has_passed(
    tailrace_cluster: Cluster, topic: str, limit: int, committed: int
) -> None:
    async def read() -> None:
        async with AsyncioConsumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
            while True:
                for record in await consumer.poll(SECONDS, max_records=limit):
                    _process(record)

    with pytest.raises(Failure):
        asyncio.run(read())
    assert _committed(tailrace_cluster, topic) == committed


async def test_a_cancelled_block_of_asyncio_withholds_its_records(tailrace_cluster: Cluster, topic: str) -> None:
    async def read(has_records: asyncio.Event) -> None:
        async with AsyncioConsumer(tailrace_cluster.bootstrap_servers, **_settings(topic)) as consumer:
            while True:
                if await consumer.poll(SECONDS, max_records=3):
                    has_records.set()
                    await asyncio.Event().wait()

    has_records = asyncio.Event()
    task = asyncio.create_task(read(has_records))
    await has_records.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _committed(tailrace_cluster, topic) == 0
