"""Batches of sinks from Python: a node, tasks and drivers."""

import re
from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Admin, Consumer, NewTopic
from tailrace.client.offsets import LATEST, READ_COMMITTED
from tailrace.client.transactions.sinks import CommittedBatch, SinkRefusal, WrittenMember
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import RowsDigest, SinkMember
from tailrace.protocol.records.record import Record
from tailrace.testing import Cluster

E = ErrorCode
TIMEOUT_MS = 600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    """A topic with two partitions; tests use its name for their sink too."""
    name = re.sub(r"[^a-z0-9_]", ".", request.node.name.lower())[:150]
    admin.create_topics([NewTopic(name=name, partitions=2)])
    return name


def _write(admin: Admin, member: SinkMember, topic: str, *values: bytes, partition: int = 0) -> WrittenMember:
    written = admin.initialize_sink_member(member, transaction_timeout_ms=TIMEOUT_MS)
    for number, value in enumerate(values):
        place = TopicPartition(topic, partition)
        admin.write_sink_records(written, place, [Record(0, 1, None, value)], base_sequence=number)
    return written


def _read(cluster: Cluster, topic: str) -> list[bytes | None]:
    """The values of all committed records: the ends are the ends of committed data."""
    partitions = [TopicPartition(topic, number) for number in (0, 1)]
    with Admin(cluster.bootstrap_servers) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)
    with Consumer(cluster.bootstrap_servers, isolation="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        found: list[bytes | None] = []
        while any((consumer.position(partition) or 0) < ends[partition].offset for partition in partitions):
            found += [record.value for record in consumer.poll(timeout=1)]
    return sorted(found, key=lambda value: value or b"")


def test_a_batch_of_two_tasks_is_committed_once_by_a_driver_that_repeats_itself(
    cluster: Cluster, admin: Admin, topic: str
) -> None:
    admin.check_sinks_are_supported()
    members = [
        _write(admin, SinkMember(topic, "r1", 0, task, 0), topic, b"a%d" % task, b"b%d" % task, partition=task)
        for task in (0, 1)
    ]
    zombie = _write(admin, SinkMember(topic, "r1", 0, 0, 1), topic, b"zombie")
    assert _read(cluster, topic) == []
    assert admin.commit_sink(topic, run="r1", batch=0, members=members, origin="/one") == CommittedBatch(0, False)
    assert _read(cluster, topic) == [b"a0", b"a1", b"b0", b"b1"]
    with Admin(cluster.bootstrap_servers) as successor:
        assert successor.commit_sink(topic, run="r2", batch=0, members=(), origin="/one") == CommittedBatch(0, True)
    with pytest.raises(KafkaError) as fenced:
        admin.write_sink_records(
            zombie, TopicPartition(topic, 1), [Record(0, 1, None, b"late")], base_sequence=0, timeout_ms=5_000
        )
    assert fenced.value.code in (E.INVALID_PRODUCER_ID_MAPPING, E.PRODUCER_FENCED)
    admin.abort_sink_member(zombie)
    assert _read(cluster, topic) == [b"a0", b"a1", b"b0", b"b1"]


def test_an_attempt_that_is_aborted_leaves_nothing(cluster: Cluster, admin: Admin, topic: str) -> None:
    failed = _write(admin, SinkMember(topic, "r1", 0, 0, 0), topic, b"failed")
    for _ in range(2):
        admin.abort_sink_member(failed)
    taken = _write(admin, SinkMember(topic, "r1", 0, 0, 1), topic, b"taken")
    with pytest.raises(SinkRefusal) as refused:
        admin.commit_sink(topic, run="r1", batch=0, members=[failed])
    assert refused.value.code in (E.INVALID_PRODUCER_ID_MAPPING, E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    assert failed.transactional_id in refused.value.detail
    admin.commit_sink(topic, run="r1", batch=0, members=[taken])
    assert _read(cluster, topic) == [b"taken"]


def test_a_repeated_write_is_found_again(cluster: Cluster, admin: Admin, topic: str) -> None:
    written = _write(admin, SinkMember(topic, "r1", 0, 0, 0), topic, b"one")
    again = admin.write_sink_records(written, TopicPartition(topic, 0), [Record(0, 1, None, b"one")], base_sequence=0)
    assert again == 0
    admin.commit_sink(topic, run="r1", batch=0, members=[written])
    assert _read(cluster, topic) == [b"one"]


@pytest.mark.parametrize(
    ("run", "batch", "code", "text"),
    [
        ("r2", 5, E.DUPLICATE_SEQUENCE_NUMBER, "batch 5 of sink .* is committed already"),
        ("r3", 4, E.OUT_OF_ORDER_SEQUENCE_NUMBER, "later batches than 4; use the checkpoint .* or another sink id"),
        ("r1", 6, E.PRODUCER_FENCED, "another run .* has followed 'r1'"),
    ],
)
def test_a_task_that_cannot_begin_learns_why(
    admin: Admin, topic: str, run: str, batch: int, code: ErrorCode, text: str
) -> None:
    for earlier, last in (("r1", 4), ("r2", 5)):
        admin.commit_sink(topic, run=earlier, batch=last, members=())
    with pytest.raises(KafkaError, match=text) as refused:
        admin.initialize_sink_member(SinkMember(topic, run, batch, 0, 0), transaction_timeout_ms=TIMEOUT_MS)
    assert refused.value.code is code


def test_a_refused_commit_names_the_last_batch(admin: Admin, topic: str) -> None:
    admin.commit_sink(topic, run="r1", batch=5, members=(), origin="/one")
    with pytest.raises(SinkRefusal, match="another sink id") as early:
        admin.commit_sink(topic, run="r2", batch=3, members=())
    assert (early.value.code, early.value.last_batch) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, 5)
    with pytest.raises(SinkRefusal, match="'/one'") as other:
        admin.commit_sink(topic, run="r2", batch=6, members=(), origin="/two")
    assert other.value.code is E.DUPLICATE_RESOURCE
    moved = admin.commit_sink(topic, run="r2", batch=6, members=(), origin="/two", takes_over=True)
    assert moved == CommittedBatch(6, False)


def test_a_batch_that_comes_again_with_other_rows_is_refused(admin: Admin, topic: str) -> None:
    rows = RowsDigest(100, -7)
    admin.commit_sink(topic, run="r1", batch=5, members=(), rows=rows)
    assert admin.commit_sink(topic, run="r2", batch=5, members=(), rows=rows).is_repetition
    with pytest.raises(SinkRefusal, match="with 100 rows, and it comes again with other rows, 300 of them") as refused:
        admin.commit_sink(topic, run="r3", batch=5, members=(), rows=RowsDigest(300, -7))
    assert (refused.value.code, refused.value.last_batch) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, 5)
    assert admin.commit_sink(topic, run="r3", batch=5, members=()).is_repetition


def test_sinks_are_described(admin: Admin, topic: str) -> None:
    _write(admin, SinkMember(topic, "r1", 0, 0, 0), topic, b"open")
    (begun,) = admin.describe_sinks([topic, "no-such-sink"])
    assert (begun.run, begun.last_batch, begun.updated_at_ms, begun.open_members) == (None, None, None, 1)
    admin.commit_sink(topic, run="r1", batch=0, members=(), origin="/one")
    described = next(each for each in admin.describe_sinks() if each.sink_id == topic)
    assert (described.run, described.last_batch, described.origin) == ("r1", 0, "/one")
    assert described.updated_at_ms is not None
