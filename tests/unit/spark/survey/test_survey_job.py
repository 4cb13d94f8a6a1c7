"""The session of `tailrace doctor --spark`, its time limit and the reasons of its failures; without Spark's JVM."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.spark import session as sessions
from tailrace.spark.session import is_local, local_session
from tailrace.spark.survey import probe, survey_job
from tailrace.spark.survey.survey_job import SurveyFailed, SurveyJob, reason_of

CLUSTERS = ["spark://127.0.0.1:7077", "yarn", "k8s://127.0.0.1:6443", "local-cluster[2,1,1024]"]
PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


class Builder:
    """Takes settings as Spark's does; the session is a stub."""

    def __init__(self, session: object) -> None:
        self.settings: dict[str, str] = {}
        self._session = session

    def master(self, url: str) -> "Builder":
        return self.config("spark.master", url)

    def appName(self, name: str) -> "Builder":
        return self.config("spark.app.name", name)

    def config(self, key: str, value: str) -> "Builder":
        self.settings[key] = value
        return self

    def getOrCreate(self) -> object:
        return self._session


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    """The builder of all sessions, in an environment without Spark's variables, which is put back at the end."""
    builder = Builder(SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda level: None)))
    for module in (sessions, survey_job):
        monkeypatch.setattr(module, "SparkSession", SimpleNamespace(builder=builder))
        monkeypatch.setattr(module, "ensure_java", lambda: "java")
    before = dict(os.environ)
    for name in (*PYTHONS, "SPARK_LOCAL_IP"):
        os.environ.pop(name, None)
    yield builder
    os.environ.clear()
    os.environ.update(before)


def test_local_masters_are_told_from_clusters() -> None:
    assert all(map(is_local, ["local", "local[2]", "local[*]", "local[2,3]"]))
    assert not any(map(is_local, [*CLUSTERS, "localhost", ""]))


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_survey_of_a_cluster_leaves_addresses_and_pythons_as_they_are(builder: Builder, master: str) -> None:
    before = dict(os.environ)
    survey_job._session_on(master, {"spark.executor.memory": "2g"})
    assert builder.settings == {
        "spark.master": master,
        "spark.app.name": "tailrace-doctor",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "2g",
    }
    assert dict(os.environ) == before


def test_a_survey_of_this_machine_has_a_local_session(builder: Builder) -> None:
    survey_job._session_on("local[1]", {"spark.driver.memory": "2g"})
    assert builder.settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert builder.settings["spark.driver.memory"] == "2g"
    assert [os.environ[name] for name in PYTHONS] == [sys.executable] * 2


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_lean_session_of_a_cluster_has_no_loopback_addresses(builder: Builder, master: str) -> None:
    local_session(master=master)
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & set(builder.settings)
    assert "SPARK_LOCAL_IP" not in os.environ
    assert [os.environ.get(name) for name in PYTHONS] == [sys.executable, None]


@pytest.mark.parametrize("name", PYTHONS)
def test_a_lean_session_of_a_cluster_keeps_the_python_that_is_named(builder: Builder, name: str) -> None:
    os.environ[name] = "./environment/bin/python"
    local_session(master="spark://127.0.0.1:7077")
    assert {key: os.environ[key] for key in PYTHONS if key in os.environ} == {name: "./environment/bin/python"}


@pytest.fixture
def silent_ports() -> Iterator[tuple[int, int]]:
    """Two ports that nothing listens at, and that no other program takes."""
    with socket.socket() as first, socket.socket() as second:
        for taken in (first, second):
            taken.bind(("127.0.0.1", 0))
        yield first.getsockname()[1], second.getsockname()[1]


def test_a_master_without_a_listener_fails_at_once(
    silent_ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_job, "_session_on", lambda *_: pytest.fail("a session was built"))
    first, second = silent_ports
    with pytest.raises(
        SurveyFailed, match=f"no connection to 127.0.0.1:{first} or 127.0.0.1:{second}: start the master"
    ):
        SurveyJob(f"spark://127.0.0.1:{first},127.0.0.1:{second}", {}, tasks=1).run(60)


def test_a_session_that_cannot_be_built_fails_with_spark_s_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> None:
        raise TypeError("'JavaPackage' object is not callable")

    monkeypatch.setattr(survey_job, "_session_on", build)
    with pytest.raises(SurveyFailed, match="^TypeError: 'JavaPackage' object is not callable; is yarn a master of Sp"):
        SurveyJob("yarn", {}, tasks=1).run(60)


class Hanging:
    """A session whose jobs wait for ever, until the session is stopped; `stages` are the stages of its status."""

    def __init__(self, *stages: tuple[int, int]) -> None:
        self._stages = [SimpleNamespace(numCompletedTasks=done, numActiveTasks=active) for done, active in stages]
        self.sparkContext = self
        self.is_stopped = False

    def statusTracker(self) -> "Hanging":
        return self

    def getActiveStageIds(self) -> list[int]:
        return list(range(len(self._stages)))

    def getStageInfo(self, number: int) -> object:
        return self._stages[number]

    def getConf(self) -> dict[str, str]:
        return {"spark.driver.host": "driver.example"}

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize(
    ("stages", "progress"),
    [
        ((), "no executor has taken a task"),
        (((0, 0),), "no executor has taken a task"),
        (((0, 1),), "0 of 4 tasks are done"),
        (((3, 1),), "3 of 4 tasks are done"),
    ],
)
def test_a_job_that_is_late_is_stopped_and_says_how_far_it_came(
    stages: tuple[tuple[int, int], ...], progress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(*stages)
    job = SurveyJob("yarn", {}, tasks=4)
    _never_ends(job, monkeypatch, lambda: setattr(job, "_session", hanging))
    with pytest.raises(SurveyFailed, match=f"^{progress} after 0.01 s: .* cannot reach the driver at driver.example"):
        job.run(0.01)
    assert hanging.is_stopped


def test_a_master_that_does_not_answer_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SurveyJob("yarn", {}, tasks=4)
    _never_ends(job, monkeypatch, lambda: None)
    with pytest.raises(SurveyFailed, match="^yarn has not accepted the application in 0.01 s: .* --timeout waits"):
        job.run(0.01)


def _never_ends(job: SurveyJob, monkeypatch: pytest.MonkeyPatch, begin: Callable[[], Any]) -> None:
    """Begin the job, and leave it at that."""
    monkeypatch.setattr(job, "_complete", lambda found: None)
    begin()


JAVA_FAULT = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted: java.io.IOException: Cannot run program "x": error=2
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
"""
PYTHON_FAULT = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "worker.py", line 12, in f
    raise ModuleNotFoundError("No module named 'zzz'")
    ^^^^^^^
ModuleNotFoundError: No module named 'zzz'
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException: ModuleNotFoundError
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            JAVA_FAULT,
            'org.apache.spark.SparkException: Job aborted: java.io.IOException: Cannot run program "x": error=2',
        ),
        (PYTHON_FAULT, "ModuleNotFoundError: No module named 'zzz'"),
        ("no way", "Exception: no way"),
        ("", "Exception: "),
    ],
)
def test_the_reason_of_a_failure_is_one_line(text: str, reason: str) -> None:
    assert reason_of(Exception(text)) == reason


def test_a_python_that_does_not_run_on_the_driver_is_named() -> None:
    with pytest.raises(SurveyFailed, match="'./nowhere/bin/python' does not run as a Python on the driver: .*PYSPARK_"):
        survey_job._facts_of("./nowhere/bin/python")
    with pytest.raises(SurveyFailed, match="'true' does not run as a Python on the driver"):
        survey_job._facts_of("true")


def test_the_facts_of_this_python_are_those_of_a_task() -> None:
    told = survey_job._facts_of(sys.executable)
    assert told[1:] == list(probe.facts()[1:])
