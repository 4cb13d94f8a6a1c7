"""A data source that reads nothing: each of its tasks answers with what it finds where it runs.

Spark pickles it to executors by value (see `spark.executor_survey`): it must work where Tailrace is not installed, so
that it can say so. It imports Tailrace only to look whether it is there.
"""

import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

FACTS = ("executor", "python", "tailrace", "pyarrow", "kernel", "rack", "unreached")
"""The findings of a task, each as a text; one that is missing is empty."""
NAME = "tailrace-probe"
CONNECT_TIMEOUT_S = 3.0
PAUSE_S = 0.3
"""Of each task, so that the tasks reach all executors instead of the first that is ready."""


class ProbeSource(DataSource):
    """`spark.read.format("tailrace-probe")`; options: tasks, addresses (HOST:PORT,...), rackenv."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField(name, StringType()) for name in FACTS])

    def reader(self, schema: StructType) -> DataSourceReader:
        return ProbeReader(dict(self.options))


class ProbeReader(DataSourceReader):
    """One row a task."""

    def __init__(self, options: dict[str, str]) -> None:
        self._tasks = int(options.get("tasks", "1"))
        self._addresses = [address for address in options.get("addresses", "").split(",") if address]
        self._rack_variable = options.get("rackenv", "")

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, ...]]:
        time.sleep(PAUSE_S)
        yield (
            f"{platform.node()}:{'/'.join(os.getcwd().split('/')[-2:])}",  # a worker of Spark's is in its executor's
            f"{sys.executable} {platform.python_version()}",
            _version_of_tailrace(),
            _version_of("pyarrow"),
            _kernel(),
            os.environ.get(self._rack_variable, "") if self._rack_variable else "",
            ",".join(address for address in self._addresses if not _is_reached(address)),
        )


def _version_of_tailrace() -> str:
    try:
        from tailrace.model import __version__
    except ImportError:
        return ""
    return __version__


def _version_of(package: str) -> str:
    try:
        module: Any = __import__(package)
    except ImportError:
        return ""
    return str(module.__version__)


def _kernel() -> str:
    try:
        from tailrace.protocol.records.kernels import KERNEL
    except ImportError:
        return ""
    return KERNEL


def _is_reached(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
