"""The end of a query in the middle of a batch: its transactions are aborted, whatever the driver knows of its tasks."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest

from tailrace.client.blocking import Admin, NewTopic
from tailrace.client.offsets import LATEST, READ_COMMITTED
from tailrace.client.transactions.sinks import WrittenMember
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import RowsDigest, SinkMember
from tailrace.spark.cluster_access import ClusterAccess
from tailrace.spark.writing.exactly_once import ExactlyOnce
from tailrace.spark.writing.member_leases import MemberLeases
from tailrace.spark.writing.sink_batch import SinkBatch, drivers_mark, streamed
from tailrace.spark.writing.sink_options import SinkTransactions, parse_sink_options
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

ROWS = pa.RecordBatch.from_pydict({"value": ["a", "b"]})
MARK, OTHERS = "0123456789abcdef", "fedcba9876543210"
TIME_LIMIT_S = 60.0
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


class WrittenSink:
    """A sink and its topic, as the tasks and the driver of a query use them."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self.name = f"copy-{next(_numbers)}"
        self.admin = admin
        self.servers = cluster.bootstrap_servers
        admin.create_topics([NewTopic(name=self.name, partitions=1)])
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": self.name, "exactlyOnce": "true"}
        options = parse_sink_options(given)
        self.sink = ExactlyOnce(options, options.transactions or SinkTransactions())

    def batch(self, number: int, mark: str = MARK, run: str = "r") -> SinkBatch:
        return SinkBatch(self.name, f"{run}.{mark}", number, "q")

    def write(self, batch: SinkBatch, task: int) -> WrittenMember | None:
        return self.sink.write(SinkMember(batch.sink, batch.run, batch.batch, task, task), iter([ROWS]))[1]

    @property
    def is_held_up(self) -> bool:
        """Whether an open transaction holds up readers of committed data."""
        place = TopicPartition(self.name, 0)
        (committed,) = self.admin.list_offsets({place: LATEST}, isolation_level=READ_COMMITTED).values()
        (end,) = self.admin.list_offsets({place: LATEST}).values()
        return committed.offset < end.offset

    def wait_until_readers_go_on(self) -> None:
        """The markers of aborts are written behind the decision."""
        deadline = time.monotonic() + TIME_LIMIT_S
        while self.is_held_up:
            assert time.monotonic() < deadline, "a transaction holds readers up"
            time.sleep(0.02)


@pytest.fixture
def query(cluster: Cluster) -> Iterator[WrittenSink]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield WrittenSink(cluster, admin)


@pytest.mark.parametrize("number", [0, 1, 7])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_batch_that_is_given_up_holds_no_reader_up(query: WrittenSink, number: int, is_known: bool) -> None:
    batch = query.batch(number)
    written = [query.write(batch, task) for task in range(2)]
    assert query.is_held_up
    query.sink.abort(batch if is_known else None, number, MARK)
    query.wait_until_readers_go_on()
    assert query.admin.list_transactions(states=("Ongoing",)) == []
    with pytest.raises(KafkaError) as refused:
        query.sink.commit(batch, [member for member in written if member is not None], RowsDigest())
    assert refused.value.code in (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
    )


def test_a_task_that_is_not_killed_yet_begins_nothing(query: WrittenSink) -> None:
    batch = query.batch(3)
    query.write(batch, 0)
    query.sink.abort(None, 3, MARK)
    with pytest.raises(KafkaError) as refused:
        query.write(batch, 1)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED
    again = query.batch(3, run="next")
    member = query.write(again, 0)
    assert member is not None
    query.sink.commit(again, [member], RowsDigest())


@pytest.mark.parametrize("number", [1, 50])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_query_that_is_refused_leaves_the_sink_to_its_writer(query: WrittenSink, number: int, is_known: bool) -> None:
    """A second query has the first query's sink id: the first query writes its next batch as if nothing had been."""

    def commit(batch: SinkBatch) -> None:
        member = query.write(batch, 0)
        assert member is not None
        query.sink.commit(batch, [member], RowsDigest(2, 1))

    commit(query.batch(0, run="rightful"))
    intruding = replace(query.batch(number, OTHERS, run="intruder"), query="another")
    with pytest.raises(KafkaError) as refused:
        commit(intruding)
    assert refused.value.code is ErrorCode.DUPLICATE_RESOURCE
    query.sink.abort(intruding if is_known else None, number, OTHERS)
    query.wait_until_readers_go_on()
    commit(query.batch(1, run="rightful"))


def test_a_failed_batch_write_leaves_the_sink_of_a_stream_to_it(query: WrittenSink) -> None:
    member = query.write(query.batch(0), 0)
    assert member is not None
    query.sink.commit(query.batch(0), [member], RowsDigest(2, 1))
    write = SinkBatch(query.name, "a-batch-write", 1)
    query.write(write, 0)
    query.sink.give_up(write)
    query.wait_until_readers_go_on()
    member = query.write(query.batch(1), 0)
    assert member is not None
    query.sink.commit(query.batch(1), [member], RowsDigest(2, 2))


def test_a_batch_write_and_a_stream_do_not_take_one_sink(query: WrittenSink, caplog: pytest.LogCaptureFixture) -> None:
    """The first batch write has the number of the stream's second batch: its rows would be dropped for the write's."""

    def commit(batch: SinkBatch, rows: RowsDigest) -> None:
        member = query.write(batch, 0)
        assert member is not None
        query.sink.commit(batch, [member], rows)

    commit(query.batch(0), RowsDigest(2, 1))
    write = SinkBatch(query.name, "a-batch-write", 1)
    with pytest.raises(KafkaError, match="is written from 'query q', not from 'a batch write'") as refused:
        commit(write, RowsDigest(2, 2))
    assert refused.value.code is ErrorCode.DUPLICATE_RESOURCE
    query.sink.give_up(write)
    query.wait_until_readers_go_on()
    commit(query.batch(1), RowsDigest(2, 3))
    assert caplog.text == ""


def test_a_batch_write_that_is_refused_does_not_say_that_it_holds_readers_up(
    query: WrittenSink, caplog: pytest.LogCaptureFixture
) -> None:
    member = query.write(write := SinkBatch(query.name, "first", 1), 0)
    assert member is not None
    query.sink.commit(write, [member], RowsDigest(2, 1))
    again = SinkBatch(query.name, "second", 1)
    with pytest.raises(KafkaError, match="comes again with other rows"):
        query.sink.commit(again, [], RowsDigest(2, 2))
    query.sink.give_up(again)
    assert caplog.text == ""


def test_the_batch_of_another_driver_is_left_alone(query: WrittenSink) -> None:
    query.write(query.batch(3, OTHERS), 0)
    query.sink.abort(None, 3, MARK)
    query.sink.abort(None, 2, OTHERS)
    query.sink.abort(None, 3, None)
    assert query.is_held_up
    query.sink.abort(None, 3, OTHERS)
    query.wait_until_readers_go_on()


def test_two_runs_with_one_mark_are_left_to_their_timeouts(query: WrittenSink) -> None:
    """Nothing says which of the runs has ended."""
    query.write(query.batch(3, run="one"), 0)
    query.write(query.batch(3, run="two"), 0)
    query.sink.abort(None, 3, MARK)
    assert query.is_held_up
    for run in ("one", "two"):
        query.sink.abort(query.batch(3, run=run), 3, MARK)
    query.wait_until_readers_go_on()


def test_a_worker_gives_signs_of_life_until_its_batch_is_decided(
    query: WrittenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs: list[tuple[str, str]] = []
    asked = Admin.renew_sink_run

    def renew(admin: Admin, sink: str, *, run: str, lease_ms: int, timeout_ms: int) -> int:
        assert lease_ms >= 5 * timeout_ms, "several signs may be lost"
        last_batch = asked(admin, sink, run=run, lease_ms=lease_ms, timeout_ms=5_000)
        signs.append((sink, run))
        return last_batch

    monkeypatch.setattr(Admin, "renew_sink_run", renew)
    leases = MemberLeases(ClusterAccess(servers=query.servers), period_s=0.02)
    batch = query.batch(3)
    member = query.write(batch, 0)
    assert member is not None
    leases.hold(SinkMember(batch.sink, batch.run, 3, 0, 0))
    wait_until(lambda: signs.count((batch.sink, batch.run)) >= 3)
    query.sink.commit(batch, [member], RowsDigest())
    wait_until(lambda: not leases.is_at_work)


def test_a_worker_gives_no_signs_for_ever_for_a_batch_that_is_never_decided(
    query: WrittenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cannot abort a query that is stopped between its last row and its commit; workers serve other queries."""
    signs: list[str] = []

    def renew(admin: Admin, sink: str, *, run: str, lease_ms: int, timeout_ms: int) -> int:
        signs.append(run)
        return -1

    monkeypatch.setattr(Admin, "renew_sink_run", renew)
    leases = MemberLeases(ClusterAccess(servers=query.servers), period_s=0.01, after_task_s=0.05)
    stopped, at_work = SinkMember("copy", "stopped", 0, 0, 0), SinkMember("copy", "at-work", 0, 1, 1)
    leases.hold(stopped)
    leases.hold(at_work)
    wait_until(lambda: {"stopped", "at-work"} <= set(signs))
    leases.task_ended(stopped)
    wait_until(lambda: "stopped" not in signs[-10:])
    leases.hold(stopped)
    wait_until(lambda: "stopped" in signs[-10:])
    leases.task_ended(stopped)
    leases.task_ended(at_work)
    wait_until(lambda: not leases.is_at_work)


def test_the_task_of_a_sink_ends_its_signs(query: WrittenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[SinkMember] = []
    monkeypatch.setattr(MemberLeases, "task_ended", lambda leases, member: ended.append(member))
    batch = query.batch(3)
    query.write(batch, 0)
    assert ended == [SinkMember(batch.sink, batch.run, 3, 0, 0)]
    query.sink.abort(batch, 3, MARK)


def test_a_worker_gives_no_signs_to_a_cluster_that_takes_none(
    query: WrittenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renew(admin: Admin, sink: str, **options: object) -> int:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "an older broker")

    monkeypatch.setattr(Admin, "renew_sink_run", renew)
    leases = MemberLeases(ClusterAccess(servers=query.servers), period_s=60)
    leases.hold(SinkMember("copy", "r", 3, 0, 0))
    wait_until(lambda: not leases.is_at_work)


class MarkedTask:
    """The double of Spark's TaskContext."""

    def getLocalProperty(self, key: str) -> str | None:  # Spark's name
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": "5", "spark.jobGroup.id": "run"}[key]

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 1


def test_the_mark_is_that_of_one_driver_and_one_set_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1")
    mark = drivers_mark({"topic": "a"})
    assert mark is not None
    assert mark == drivers_mark({"topic": "a"}) != drivers_mark({"topic": "b"})
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-2")
    assert drivers_mark({"topic": "a"}) not in (mark, None)
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert drivers_mark({"topic": "a"}) is None
    assert streamed(MarkedTask(), SinkTransactions(), mark) == SinkBatch("q", f"run.{mark}", 5, "q")
    assert streamed(MarkedTask(), SinkTransactions()) == SinkBatch("q", "run", 5, "q")
