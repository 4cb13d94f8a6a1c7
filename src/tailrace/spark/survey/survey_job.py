"""The job of `tailrace doctor --spark`: a session on the cluster, and tasks that tell what they run on.

The job ends within its time limit whatever the cluster does. Spark itself waits without end for executors that have no
room, or that cannot call the driver back.

The tasks run with the Python that Spark runs data sources with, but they use no data source: a data source needs
pyarrow, and a machine without pyarrow would report nothing else.
"""

import contextlib
import inspect
import json
import platform
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tailrace.spark.java import JavaNotFound, ensure_java
from tailrace.spark.pickled_plan import SOURCES_RUN
from tailrace.spark.session import is_local, local_session, session_on
from tailrace.spark.survey import probe

STOP_TIMEOUT_S = 20.0
_PYTHON_TIMEOUT_S = 60.0
_NAME = "tailrace-doctor"
_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_ADDRESS = re.compile(r"[^,]+:\d+")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile("Exception|Error")

Facts = Sequence[str]
"""The facts of a probe (see `probe.facts`)."""


class SurveyFailed(Exception):
    """The job did not run, or not to its end: with Spark's reason, and the way out."""


class SurveyJob:
    """Probes in `tasks` tasks on `master`, in a session with these settings; runs once."""

    def __init__(
        self,
        master: str,
        settings: Mapping[str, str],
        *,
        tasks: int,
        addresses: Sequence[str] = (),
        rack_variable: str = "",
    ) -> None:
        self._master = master
        self._settings = settings
        self._tasks = tasks
        self._probe = partial(probe.probe_in_task, addresses=tuple(addresses), rack_variable=rack_variable)
        self._session: SparkSession | None = None
        self._is_over = threading.Event()

    def run(self, timeout_s: float) -> tuple[Facts, list[Facts]]:
        """The facts of the driver's Python for data sources, and the facts of each task.

        Raises SurveyFailed, at the end of the time limit if not before. The end of the session may take some seconds
        more. A JVM that has no session by then ends with this process.
        """
        if (unheard := _unheard_master(self._master)) is not None:
            raise SurveyFailed(unheard)
        found: Future[tuple[Facts, list[Facts]]] = Future()
        threading.Thread(target=self._complete, args=(found,), name=_NAME, daemon=True).start()
        try:
            wait([found], timeout_s)
            if not found.done():
                raise SurveyFailed(self._lateness(timeout_s))
            return found.result()
        except SurveyFailed:
            raise
        except JavaNotFound as fault:
            raise SurveyFailed(str(fault)) from fault
        except Exception as fault:  # faults of PySpark, Py4J, or another version of Spark have no common class
            raise SurveyFailed(f"{reason_of(fault)}; {self._way_out()}") from fault
        finally:
            self._stop()

    def _complete(self, found: "Future[tuple[Facts, list[Facts]]]") -> None:
        try:
            found.set_result(self._work())
        except BaseException as fault:  # noqa: BLE001 - raised in the thread that waits
            found.set_exception(fault)

    def _work(self) -> tuple[Facts, list[Facts]]:
        self._session = session = _session_on(self._master, self._settings)
        if self._is_over.is_set():
            session.stop()
            raise SurveyFailed("the session came after the time limit")
        python = _python_of_sources(session)
        driver = _facts_of(python)
        context = session.sparkContext
        context.pythonExec = python  # the function would run with PYSPARK_PYTHON, perhaps another Python
        probes = context.parallelize(range(self._tasks), self._tasks).map(self._probe)
        cloudpickle.register_pickle_by_value(probe)
        try:
            return driver, list(probes.collect())
        finally:
            cloudpickle.unregister_pickle_by_value(probe)

    def _lateness(self, timeout_s: float) -> str:
        """The progress of the job, and reasons why the progress may have stopped."""
        if (session := self._session) is None:
            return (
                f"{self._master} has not accepted the application in {timeout_s:g} s: is it a master of Spark"
                f" {pyspark.__version__}, and has its cluster room for one more? --timeout waits longer"
            )
        context = session.sparkContext
        tracker = context.statusTracker()
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        done, active = sum(stage.numCompletedTasks for stage in stages), sum(stage.numActiveTasks for stage in stages)
        progress = f"{done} of {self._tasks} tasks are done" if done or active else "no executor has taken a task"
        host = context.getConf().get("spark.driver.host")
        return (
            f"{progress} after {timeout_s:g} s: either the cluster has no free core or memory for an executor"
            f" (spark.executor.cores, spark.executor.memory), or executors cannot reach the driver at {host}"
            " (spark.driver.host, spark.driver.port); --timeout waits longer"
        )

    def _way_out(self) -> str:
        if self._session is None:
            return f"is {self._master} a master of Spark {pyspark.__version__}? The lines of Spark's log say more"
        return SOURCES_RUN

    def _stop(self) -> None:
        """End the session, if a session is open; a `collect` under way fails."""
        self._is_over.set()
        if self._session is not None:
            stopping = threading.Thread(target=_stop, args=(self._session,), name=f"{_NAME}-stop", daemon=True)
            stopping.start()
            stopping.join(STOP_TIMEOUT_S)


def _stop(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the job may have failed because the JVM has ended
        session.stop()


def _unheard_master(master: str) -> str | None:
    """The reason why a standalone master is not heard, if none of its addresses is reached.

    Spark itself tries for a minute, and then tells of a stopped SparkContext alone.
    """
    addresses = _ADDRESS.findall(master.removeprefix("spark://")) if master.startswith("spark://") else []
    if not addresses or any(map(probe.is_reached, addresses)):
        return None
    return f"no connection to {' or '.join(addresses)}: start the master, or say the URL that its log names"


def _session_on(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session on this machine, or a session of a cluster with the settings of spark-defaults.conf and the
    environment."""
    if is_local(master):
        words: dict[str, Any] = {**settings}
        return local_session(_NAME, master=master, **words)
    ensure_java()
    return session_on(master, _NAME, {**_QUIET, **settings})


def _python_of_sources(session: SparkSession) -> str:
    """The Python of data sources, by the environment of the JVM, which spark-env.sh may have changed."""
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        unset = f"${{env:{name}}}"  # Spark replaces the text by the value, if there is a value
        ((_, value),) = session.sql(f"SET tailrace.doctor.python={unset}").collect()
        if value != unset:
            return str(value)
    return "python3"


def _facts_of(python: str) -> Facts:
    """The facts of this Python on the driver, where Spark plans data sources with this Python."""
    try:
        command = [python, "-c", inspect.getsource(probe)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PYTHON_TIMEOUT_S, check=False)
        driver: Facts = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as fault:
        raise SurveyFailed(f"{python!r} does not run as a Python on the driver: {fault}; {SOURCES_RUN}") from fault
    version = driver[1].rpartition(" ")[2]
    here = platform.python_version()
    if version.split(".")[:2] != here.split(".")[:2]:
        minor = ".".join(version.split(".")[:2])
        raise SurveyFailed(f"data sources run with {driver[1]}, and the doctor with {here}: run it with Python {minor}")
    return driver


def reason_of(fault: Exception) -> str:
    """The line of a failure that says why: the end of a worker's traceback, or the first line with an exception."""
    lines = [line for line in str(fault).splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if line.endswith(_TRACEBACK):
            for after in lines[index + 1 :]:
                if not after[0].isspace():
                    return after
    named = [line for line in lines if _EXCEPTION.search(line)]
    return named[0].removeprefix(": ") if named else f"{type(fault).__name__}: {' '.join(lines[:1])}"
