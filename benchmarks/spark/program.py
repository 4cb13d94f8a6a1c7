"""A program with a Spark session, in a process of its own, so that its JVM ends with the line.

The program reads requests, a JSON value a line, and answers a request with such a line.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession

from benchmarks.peers.process import tree_cpu_seconds
from tailrace.spark.session import local_session

CORES = 2
_ROOT = Path(__file__).parents[2]
_STOP_TIMEOUT_S = 60


class SparkProgram:
    """The process, from the side of its user."""

    def __init__(self, module: str, jars: Sequence[Path]) -> None:
        self._module = module
        self._jars = jars

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", self._module, *map(str, self._jars)]
        # Spark's workers import what a task is made of.
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self

    def ask(self, request: object) -> Any:
        """Send a request; returns the answer. Raises RuntimeError with the last lines of the process if the request
        fails."""
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait(_STOP_TIMEOUT_S)
            self._errors.seek(0)
            raise RuntimeError(f"{request} failed\n{self._errors.read()[-3000:]}")
        return json.loads(answer)

    def cpu_seconds(self) -> float:
        """CPU time so far of the driver, its JVM and Spark's Python workers."""
        return tree_cpu_seconds(self._process.pid)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def serve(jars: Sequence[str], answer: Callable[[SparkSession, Any], object], **settings: str) -> None:
    """Answer the requests on stdin, with these settings of the session, until it closes."""
    all_settings: dict[str, Any] = {"spark.jars": ",".join(jars), **settings}
    spark = local_session("bench", cores=CORES, **all_settings)
    for line in sys.stdin:
        print(json.dumps(answer(spark, json.loads(line))), flush=True)
    spark.stop()
