"""A Spark driver that copies a topic, as a process that tests kill and start again, and its progress.

The driver, its JVM and the Python processes of both are one session of the kernel's, not one process group: each of
Spark's daemons leads a group of its own.
"""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[2]
TIME_LIMIT_S = 900.0
WORKING = (b"pyspark.worker", b"_runner", b"commit_data_source_write")
"""In the command lines of the Python processes that run tasks, plan batches and commit them."""


def processes_of(session: int) -> list[int]:
    """The ids of the processes of this session."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
    return found


def kill_session(session: int) -> None:
    """Kill all its processes, this process last if it belongs to them."""
    while others := [process for process in processes_of(session) if process != os.getpid() and is_alive(process)]:
        for process in others:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    if os.getsid(0) == session:
        os.kill(os.getpid(), signal.SIGKILL)


def is_alive(process: int) -> bool:
    """Whether the process runs; a process that has ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


class Progress:
    """The progress of a streaming query, by its checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    @property
    def begun(self) -> int:
        """The last batch that was begun; -1 before the first."""
        return self._last("offsets")

    @property
    def is_in_a_batch(self) -> bool:
        return self.begun > self._last("commits")

    def copied(self) -> int:
        """The number of records in the batches that are done."""
        done = self._last("commits")
        if done < 0:
            return 0
        ends = json.loads((self._checkpoint / "offsets" / str(done)).read_text().splitlines()[-1])
        return sum(offset for partitions in ends.values() for offset in partitions.values())

    def seconds_of_a_batch(self) -> float:
        """The time that the last batch took, kills included; 1 before it is known."""
        done = self._last("commits")
        if done < 0:
            return 1.0
        began, ended = ((self._checkpoint / log / str(done)).stat().st_mtime for log in ("offsets", "commits"))
        return max(ended - began, 0.0)

    def _last(self, log: str) -> int:
        try:
            names = os.listdir(self._checkpoint / log)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)


class Driver:
    """A driver that copies a topic, and all its processes."""

    def __init__(self, servers: str, source: str, target: str, directory: Path) -> None:
        self._servers = servers
        self._source = source
        self._target = target
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.progress = Progress(directory / "checkpoint")
        self.starts = 0

    def start(self, batch: int, step: str = "") -> None:
        """Go on with the copy, with so many records a batch at most; the driver dies at this step of batch two."""
        self.starts += 1
        checkpoint = self._directory / "checkpoint"
        arguments = [self._servers, self._source, self._target, str(checkpoint), str(batch), *([step] if step else [])]
        with self._output().open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "crash.spark.copier", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(),
            )

    def poll(self) -> int | None:
        """The driver's exit code; None while it runs."""
        assert self._process is not None, "it was started"
        return self._process.poll()

    def wait(self) -> int:
        """Waits for the end. Returns the exit code; negative if the driver was killed."""
        assert self._process is not None, "it was started"
        return self._process.wait(TIME_LIMIT_S)

    def _output(self) -> Path:
        return self._directory / f"driver-{self.starts}.txt"

    def output(self) -> str:
        """The last that it has written."""
        return self._output().read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Kill it with its JVM and its workers."""
        if self._process is not None:
            kill_session(self._process.pid)
            self._process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a Python process that works for it; whether there was such a process."""
        assert self._process is not None, "it was started"
        workers = []
        for process in processes_of(self._process.pid):
            with suppress(OSError):
                command = Path(f"/proc/{process}/cmdline").read_bytes()
                if any(name in command for name in WORKING) and is_alive(process):
                    workers.append(process)
        if not workers:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        return True


def environment() -> dict[str, str]:
    """For a process that imports these tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
