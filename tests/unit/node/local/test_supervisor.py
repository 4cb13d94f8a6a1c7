"""The fork of one node of a local cluster. tests/scenarios/commands/test_up.py tests whole clusters."""

import os
import subprocess
import sys

import pytest

from tailrace.testing.node_process import package_path

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from tailrace.node.local import supervisor
from tailrace.node.local.cluster import LocalNode

def supervised(serve, *, nodes=1, restarts=False, **options):
    served = [LocalNode(node_id=number, home=Path("."), settings={}) for number in range(1, nodes + 1)]
    return supervisor.Supervisor(
        served, serve=serve, restarts=restarts, environment=os.environ, say=print, **options
    )
"""


def run(script: str, *arguments: str) -> str:
    """The output of a script in a process of its own: the script forks, so its process must have no threads."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SIGNALLED_EARLY = """
from tailrace.node import stop_signals

def told_to_stop_before_anything_else():
    os.kill(os.getpid(), signal.SIGTERM)

os.setsid = told_to_stop_before_anything_else  # what a child does first
with stop_signals.signals_read():
    child = supervisor._Process(lambda: sys.exit(7), os.environ)
    child.wait()
print(child.returncode)
"""


SILENT = """
def serve(node):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(supervisor.READY + "here", flush=True)
    time.sleep(600)

supervisor._STOP_S = 0.2
runs = supervised(serve, on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM))
print(runs.run())
"""


STDERR_LOST = """
sys.stderr = open("/dev/full", "w")
sys.stderr.write("what does not fit on the disk")
child = supervisor._Process(lambda: sys.exit(7), os.environ)
child.wait()
print(child.returncode)
sys.stderr = sys.__stderr__
"""


STOPPED_OTHERWISE = """
def serve(node):
    signal.signal(signal.SIGTERM, stop)
    print(supervisor.READY + "here", flush=True)
    time.sleep(600)

def stop(*_):
    os.kill(os.getppid(), signal.SIGTERM)  # the first that the parent gets
    time.sleep(0.3)
    sys.exit(0)

supervisor._SAME_WISH_S = 0
stdin, end = os.pipe()
os.dup2(stdin, 0)
runs = supervised(serve, on_ready=lambda: os.close(end), until_stdin_closes=True)
print(runs.run())
"""


SIGNALLED_LATE = """
def serve(node):
    print(supervisor.READY + "here", flush=True)

runs = supervised(serve, on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM))
code = runs.run()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), number)
print(code)
"""


SIGNALLED_BEFORE_AN_END = """
def serve(node):
    print(supervisor.READY + "here", flush=True)
    sys.stdin.read()

def on_ready():
    os.kill(os.getpid(), signal.SIGTERM)
    process = runs._children[0].process
    os.kill(process.pid, signal.SIGTERM)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and that is still to be found

runs = supervised(serve, on_ready=on_ready, restarts=sys.argv[1] == "restarts")
print(runs.run())
"""


ENDED_TOGETHER = """
class EndsAtOnce(supervisor._Process):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

supervisor._Process = EndsAtOnce
runs = supervised(lambda node: sys.exit(3), on_ready=lambda: print("ready"), nodes=2)
print(runs.run())
"""


def test_a_signal_that_comes_when_all_have_stopped_does_not_change_how_it_ends() -> None:
    """`timeout` signals the process and then its group: the nodes may need less time than that."""
    assert run(SIGNALLED_LATE).splitlines() == ["0"]


@pytest.mark.parametrize("restarts", ["restarts", "does not"])
def test_an_end_is_judged_by_the_signal_that_came_before_it(restarts: str) -> None:
    """systemd signals all at once, and a node may have stopped before its parent has looked."""
    assert run(SIGNALLED_BEFORE_AN_END, restarts).splitlines() == ["0"]


def test_nodes_that_end_at_once_are_all_named() -> None:
    assert run(ENDED_TOGETHER).splitlines() == [
        "node-1 ended with exit code 3 before the cluster was ready; the others are stopped",
        "node-2 ended with exit code 3 while it stopped",
        "1",
    ]


def test_a_log_that_is_lost_keeps_no_node_from_being_started() -> None:
    assert run(STDERR_LOST).split() == ["7"]


def test_the_first_signal_is_the_first_though_the_nodes_stop_already() -> None:
    assert run(STOPPED_OTHERWISE).splitlines() == ["0"]


def test_a_child_that_does_not_stop_in_time_is_killed_and_named() -> None:
    assert run(SILENT).splitlines() == [
        "not all nodes have stopped within 0 s; they are killed",
        "node-1 was ended by SIGKILL while it stopped",
        "1",
    ]


def test_a_child_with_a_signal_to_stop_before_its_start_does_not_start() -> None:
    assert run(SIGNALLED_EARLY).split() == ["-15"], "the handlers of its parent swallowed it"
