"""The effect of a second signal on a command that has caught the first: in processes, which a signal may end."""

import os
import signal
import subprocess
import sys

import pytest

from tailrace.testing.node_process import package_path

SIGNALLED_LATE = """
import os, signal, sys
from tailrace.cli.waiting import on_first_signal

class Last:
    def __init__(self):
        self.kill, self.me, self.number = os.kill, os.getpid(), int(sys.argv[1])

    def __del__(self):
        self.kill(self.me, self.number)

with on_first_signal(lambda: print("heard", flush=True)):
    os.kill(os.getpid(), int(sys.argv[1]))
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
sys.modules["last"] = Last()  # which goes when the interpreter has given up its handlers of signals
sys.exit(7)
"""

SIGNALLED_TWICE = """
import os, signal, time
from tailrace.cli import waiting

now = 100.0
waiting.time.monotonic = lambda: now
with waiting.on_first_signal(lambda: print("heard", flush=True)):
    os.kill(os.getpid(), signal.SIGTERM)
    now = 100.9
    os.kill(os.getpid(), signal.SIGTERM)
    now = 101.0
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("at once")
"""

NOT_SIGNALLED = """
import signal
from tailrace.cli.waiting import on_first_signal

before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
with on_first_signal(print):
    pass
print(before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])
"""


def run(script: str, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_at_the_end_of_an_interrupted_command_does_not_change_its_exit_code(number: signal.Signals) -> None:
    """`timeout` signals a process and then its group; the interpreter may be about to end at the second signal."""
    assert run(SIGNALLED_LATE, str(int(number))) == (7, "heard\n", "")


def test_a_signal_that_comes_a_second_after_the_first_ends_at_once() -> None:
    assert run(SIGNALLED_TWICE) == (0, "heard\nat once\n", "")


def test_a_command_without_a_signal_restores_the_handlers() -> None:
    assert run(NOT_SIGNALLED) == (0, "True\n", "")
