"""An archive of the classes that Spark loads, for the JVMs of all sessions: a small job takes 8 s of a core, not 13.

The first run of all tests in an environment makes the archive, while other tests run. Java goes without an archive
that is not there yet, or was made by another Java or PySpark.
"""

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_OPTIONS = "SPARK_SUBMIT_OPTS"
_PATIENCE_S = 100
_SILENT = "-Xlog:disable"
"""Java would tell of each class that an archive cannot have, and of an archive that it goes without."""


def _archive() -> Path | None:
    try:
        return Path(sys.prefix) / f"spark-classes-{version('pyspark')}.jsa"
    except PackageNotFoundError:
        return None


def use_spark_classes() -> None:
    """Make the JVMs of this process and its children use the archive, if it is there."""
    archive = _archive()
    given = os.environ.get(_OPTIONS, "")
    if archive is not None and archive.exists() and str(archive) not in given:
        os.environ[_OPTIONS] = f"{given} -XX:SharedArchiveFile={archive} {_SILENT}".strip()


def make_spark_classes() -> None:
    """Begin to make the archive, if there is none; JVMs that start when it is whole use it."""
    archive = _archive()
    if archive is None or archive.exists() or _OPTIONS in os.environ:
        return
    making = subprocess.Popen(
        [sys.executable, str(Path(__file__)), str(archive)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ[_OPTIONS] = f"-XX:SharedArchiveFile={archive} {_SILENT}"
    atexit.register(_end, making)


def _end(making: "subprocess.Popen[bytes]") -> None:
    try:
        making.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        making.kill()
        making.wait()


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        made = Path(directory) / archive.name
        os.environ[_OPTIONS] = f"-XX:ArchiveClassesAtExit={made} {_SILENT}"
        _run_a_job()
        made.replace(archive)


def _run_a_job() -> None:
    """Jobs with a Python data source, a function in Python, an aggregate and a stream; the JVM has ended then."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    from tailrace.spark.session import local_session

    class OneRowReader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
            yield 1, "one"

    class OneRowSource(DataSource):
        def schema(self) -> str:
            return "number int, name string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return OneRowReader()

    session = local_session("classes", brief=True)
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.dataSource.register(OneRowSource)
    rows = session.read.format("OneRowSource").load()
    assert rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("name").count().count() == 1
    stream = session.readStream.format("rate").load().writeStream.format("memory").queryName("rates")
    stream.trigger(availableNow=True).start().awaitTermination()
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE_S)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
