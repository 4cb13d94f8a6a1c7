"""A server's process: started, measured by the figures of the kernel, stopped by its id."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT_S = 120
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED: the kind of a clock whose number has the complement of a process id in the bits above."""


def cpu_ticks(stat: str) -> int:
    """User and system time in /proc/PID/stat, of all threads. The name there may hold blanks and parentheses."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def tree_cpu_seconds(root: int) -> float:
    """User and system time so far of a process and its descendants, ended descendants included, in steps of 10 ms."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended since
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        # The third and fourth are of children that have ended and were waited for.
        ticks[pid] = sum(map(int, fields[11:15]))
    tree = {root}
    while below := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= below
    return sum(ticks.get(pid, 0) for pid in tree) / TICKS_PER_SECOND


def cpu_clock(pid: int) -> float:
    """User and system time of the process so far, of all threads, in seconds, to the nanosecond (clock_getcpuclockid).

    For one request at a time, where the ticks of /proc/PID/stat are too coarse. Raises OSError if the process has
    ended.
    """
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def resident_bytes(status: str) -> int:
    """VmRSS in /proc/PID/status: the memory in use, pages shared with other processes included."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmRSS: the process has ended")


class Process:
    """A program that serves until it is stopped. Its stdout and stderr go to `output`."""

    def __init__(self, command: Sequence[str], *, output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self.output_file = output
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program, which need not answer yet."""
        assert self._process is None, "it runs already"
        with self.output_file.open("ab") as output:
            # A node of ours and the mock end when this pipe closes, so that not even kill -9 leaves one behind.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(self._environment or {})},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it has been started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        """The program's output so far."""
        return self.output_file.read_text(errors="replace")

    def cpu_seconds(self) -> float:
        """User and system time so far, in steps of 10 ms."""
        return cpu_ticks(Path(f"/proc/{self.pid}/stat").read_text()) / TICKS_PER_SECOND

    def cpu_clock(self) -> float:
        """User and system time so far, to the nanosecond."""
        return cpu_clock(self.pid)

    def resident_megabytes(self) -> float:
        return resident_bytes(Path(f"/proc/{self.pid}/status").read_text()) / 1e6

    def stop(self) -> None:
        """Send SIGTERM, and wait for a clean end. The program can be started again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, to the program's children too. Does nothing if the program does not run."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise
        finally:
            assert self._process.stdin is not None, "stdin is a pipe"
            self._process.stdin.close()
            self._process = None
