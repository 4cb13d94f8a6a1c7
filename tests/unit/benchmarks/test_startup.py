"""The measurement of first uses."""

import os
import subprocess
import sys

import pytest

from benchmarks import startup


def test_a_run_has_the_times_of_its_process() -> None:
    found = startup.run([sys.executable, "-c", "sum(range(10**6))"])
    assert found.cpu > 0
    assert found.wall > 0
    with pytest.raises(subprocess.CalledProcessError):
        startup.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_process_and_its_children_have_a_size() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        family = startup.descendants(os.getpid())
        sizes = [startup.pss_bytes(process_id) for process_id in (os.getpid(), child.pid)]
        child.kill()
    assert family[0] == os.getpid()
    assert child.pid in family
    assert sizes[0] > sizes[1] > 0


def test_the_first_test_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    startup.measure_first_test(1)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:44].rstrip() for line in lines] == [
        "the fixture tailrace_cluster",
        "first test green, from typing pytest",
    ]


def test_the_memory_of_parallel_tests_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    startup.measure_memory(2)
    (line,) = capsys.readouterr().out.splitlines()
    assert "goal   150; 2 nodes" in line
    assert "3 processes of pytest" in line
