"""A test that is killed leaves no node and no directory behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.testing.node_process import node_environment
from testkit.programs.waiting import wait_until

TEST = """
import os
import sys

from tailrace.testing import Cluster


def test_until_the_end():
    with Cluster(brokers=2) as cluster:
        print(*map(cluster.process_id, cluster.node_ids), file=sys.__stderr__, flush=True)
        sys.stdin.read()
"""


def _lives(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_killed_run_of_pytest_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    left = tmp_path / "left"
    left.mkdir()
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            "test_it.py",
        ],
        cwd=tmp_path,
        env={**node_environment(), "TMPDIR": str(left), "TURN": "all"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with run:
        assert run.stderr is not None
        nodes = [int(word) for word in run.stderr.readline().split()]
        assert [_lives(node) for node in nodes] == [True, True]
        assert [path.name.startswith("tailrace-test-") for path in left.iterdir()] == [True]
        os.kill(run.pid, number)
        assert run.wait(60) == -number
        wait_until(lambda: not list(left.iterdir()) and not any(map(_lives, nodes)))
