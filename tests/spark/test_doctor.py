"""`tailrace doctor --spark`: a job of its own, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from tailrace.model import __version__
from tailrace.spark.java import JavaNotFound, ensure_java
from tailrace.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_the_executors_of_a_session_are_listed(tailrace_cluster: Cluster) -> None:
    try:
        ensure_java()
    except JavaNotFound as fault:
        pytest.skip(str(fault))
    words = ("doctor", "--spark", "--master", "local[1]", "--tasks", "2", "--rack-env", "RACK", "-o", "json")
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace", *words, "--bootstrap-server", tailrace_cluster.bootstrap_servers],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RACK": "b"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    driver, executor = json.loads(ended.stdout)
    assert (driver["EXECUTOR"], driver["TAILRACE"]) == ("driver", __version__)
    facts = {"TASKS": 2, "TAILRACE": __version__, "RACK": "b", "BROKERS": "1/1", "PYTHON": driver["PYTHON"]}
    assert {name: executor[name] for name in facts} == facts
