"""`tailrace doctor --spark`: jobs of its own, in processes of their own."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tailrace.model import __version__
from tailrace.spark.session import BRIEF
from tailrace.testing import Cluster

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.spark, pytest.mark.timeout(300)]

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")


def examine(
    directory: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the doctor in this directory, until its JVM has ended, too: that holds the output open."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    here = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(directory), "SPARK_WORKER_DIR": str(directory)}
    return subprocess.run(
        [sys.executable, "-m", "tailrace", "doctor", "--spark", *words],
        env={**kept, **here, **(environment or {})},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_the_executors_of_a_session_are_listed(tailrace_cluster: Cluster, tmp_path: Path) -> None:
    words = ("--master", "local[1]", "--tasks", "2", "--rack-env", "RACK", "-o", "json")
    servers = tailrace_cluster.bootstrap_servers
    ended = examine(tmp_path, *words, "--bootstrap-server", servers, environment={"RACK": "b"})
    assert ended.returncode == 0, ended.stderr[-2000:]
    driver, executor = json.loads(ended.stdout)
    assert (driver["EXECUTOR"], driver["TAILRACE"]) == ("driver", __version__)
    assert driver["PYTHON"].split()[0] == sys.executable
    facts = {"TASKS": 2, "TAILRACE": __version__, "RACK": "b", "BROKERS": "1/1", "PYTHON": driver["PYTHON"]}
    assert {name: executor[name] for name in facts} == facts


@pytest.mark.soak
def test_executors_without_the_python_of_the_driver_are_a_failure_with_the_way_out(tmp_path: Path) -> None:
    """The packed environment is unpacked beside the driver, and --archives is forgotten."""
    python = tmp_path / "driver" / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ["--master", "local-cluster[1,1,512]", "--tasks", "1", "--timeout", "200"]
    settings = {"spark.executor.memory": "512m", "spark.task.maxFailures": "1", **BRIEF}
    settings["spark.executor.extraJavaOptions"] = settings["spark.driver.extraJavaOptions"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    ended = examine(tmp_path / "driver", *words, environment={"PYSPARK_PYTHON": "./environment/bin/python"})
    assert ended.returncode == 1
    assert ended.stdout == ""
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("tailrace: the job on local-cluster[1,1,512] failed: org.apache.spark.SparkException: ")
    assert re.search(r'Cannot run program "./environment/bin/python": .*; Spark runs data sources, .*archives$', last)


def test_a_master_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    """Spark itself tries for a minute; the limit of a second is over before."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        ended = examine(tmp_path, "--master", url, "--timeout", "1")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert f"tailrace: the job on {url} failed: {url} has not accepted the application in 1 s: " in ended.stderr
