"""The work of tasks, and the fetches that the tasks of a process share."""

import gc
import importlib.util
import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from tailrace.client.reader_settings import RangedFetchSettings
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark import worker
from tailrace.spark.avro.plan import plan_decoding
from tailrace.spark.offsets import OffsetRange
from tailrace.spark.reading import readers
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.source import ROW
from tailrace.spark.writing.exactly_once import ExactlyOnce
from tailrace.spark.writing.sink import OnceStreamWriter, OnceWriter, TailraceStreamWriter, TailraceWriter
from tailrace.spark.writing.sink_options import SinkTransactions, parse_sink_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}


def test_tasks_share_a_fetch_that_tells_their_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RangedFetchSettings] = []

    def make(settings: RangedFetchSettings) -> object:
        made.append(settings)
        return object()

    monkeypatch.setattr(readers, "RangedFetch", SimpleNamespace(of=make))
    monkeypatch.setattr(readers, "_fetches", {})

    def fetch_of(**options: str) -> object:
        return readers._worker_fetch(parse_source_options({**BASE, **options}, streaming=False))

    near = fetch_of(**{"kafka.client.rack": "a"})
    assert fetch_of(**{"kafka.client.rack": "a"}) is near
    assert fetch_of() is not near
    assert [settings.rack for settings in made] == ["a", ""]
    monkeypatch.setenv("RACK", "b")
    assert fetch_of(**{"client.rack.env": "RACK"}) is not near
    assert fetch_of(**{"client.rack.env": "RACK"}) is fetch_of(**{"kafka.client.rack": "b"})
    assert [settings.rack for settings in made] == ["a", "", "b"]


def test_an_executor_without_the_variable_of_its_rack_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RACK", raising=False)
    monkeypatch.setattr(readers, "_without_rack", set())
    options = parse_source_options({**BASE, "client.rack.env": "RACK"}, streaming=False)
    assert [readers._rack_here(options) for _ in range(3)] == ["", "", ""]
    assert len([line for line in caplog.messages if "has no RACK" in line and "spark.executorEnv.RACK" in line]) == 1


@pytest.mark.parametrize(("records", "tasks"), [(1, 2), (99_999, 2), (250_000, 5), (10_000_000, 8)])
def test_tasks_go_by_the_records(monkeypatch: pytest.MonkeyPatch, records: int, tasks: int) -> None:
    """The driver does not know how many cores its cluster has; here the driver has two itself."""
    monkeypatch.setattr(readers, "_slots", lambda: 2)
    reader = readers.TailraceReader(ROW, parse_source_options(BASE, streaming=False))
    size = -(-records // 8)
    work = reader.plan([OffsetRange(TopicPartition("orders", number), 0, size) for number in range(8)])
    assert len(work) == tasks
    assert sorted(piece.topic_partition.partition for task in work for piece in task.value) == list(range(8))


def test_the_tasks_of_a_machine_are_its_cores_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    found = []
    for tasks in ("", "4"):
        monkeypatch.setenv("TAILRACE_SPARK_TASKS", tasks)
        found.append(readers._slots())
    assert found == [3, 4]


@pytest.mark.parametrize("tasks", ["x", "0", "-1", "9" * 5_000])
def test_a_number_of_tasks_that_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tasks: str) -> None:
    monkeypatch.setenv("TAILRACE_SPARK_TASKS", tasks)
    reader = readers.TailraceReader(ROW, parse_source_options(BASE, streaming=False))
    with pytest.raises(KafkaError, match="TAILRACE_SPARK_TASKS must be a whole number above 0, not '"):
        reader.plan([OffsetRange(TopicPartition("orders", 0), 0, 5)])


def test_a_worker_of_another_version_refuses_and_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = readers.TailraceReader(ROW, parse_source_options(BASE, streaming=False))
    monkeypatch.setattr(worker, "__version__", "0.0.7")
    with pytest.raises(KafkaError, match=f"the driver has Tailrace {__version__} and this worker .* 0.0.7") as refusal:
        list(reader.read(readers.Work(())))
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_worker_without_fastavro_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_source_options({**BASE, "valueFormat": "avro", "valueSchema": '"int"'}, streaming=False)
    schema = StructType([StructField("value", IntegerType())])
    reader = readers.TailraceReader(schema, options, plan_decoding(options.formats))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        KafkaError, match=r"fastavro is not installed in this worker \(.*\): pip install 'tailrace\[avro\]'"
    ):
        list(reader.read(readers.Work(())))


@pytest.mark.parametrize("kind", [TailraceWriter, TailraceStreamWriter, OnceWriter, OnceStreamWriter])
def test_a_writing_worker_of_another_version_refuses(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., TailraceWriter]
) -> None:
    monkeypatch.setattr(ExactlyOnce, "check_supported", lambda sink: None)  # there is no cluster
    options = parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"})
    transactions = [SinkTransactions()] if kind in (OnceWriter, OnceStreamWriter) else []
    writer = kind(StructType([StructField("value", BinaryType())]), options, *transactions)
    monkeypatch.setattr(worker, "__version__", "0.0.7")
    with pytest.raises(KafkaError, match="install one version in the Python of both"):
        writer.write(iter([]))


def test_the_modules_of_a_worker_are_kept_out_of_collections_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task only: a read in a process of a user's own changes nothing there."""
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    worker._keep_modules_out_of_collections.cache_clear()
    worker.begin_task(__version__)
    assert not frozen
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    for _ in range(3):
        worker.begin_task(__version__)
    assert len(frozen) == 1
    worker._keep_modules_out_of_collections.cache_clear()
