"""A standalone cluster of Spark on this machine: a master and workers in racks, with a Python that lacks Tailrace.

The packages that programs need are packed, and go to the workers as an archive (docs/spark.md, "On a cluster").
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from crash.spark.driver import kill_session

ROOT = Path(__file__).parents[3]
SPARK_HOME = Path(pyspark.__file__).parent
START_S = 120
EXAMINE_S = 300
ARCHIVE = "environment.tar.gz"
PACKED_PYTHON = "./environment/bin/python"
_OF_SPARK = ("PYSPARK_", "SPARK_", "PYTHON", "VIRTUAL_ENV")


def plain_environment() -> dict[str, str]:
    """The environment of this process, without its Python: `python3` is the machine's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_SPARK)}
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join(entry for entry in kept["PATH"].split(os.pathsep) if entry != here)
    return {**kept, "PATH": path, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def pack_environment(directory: Path) -> Path:
    """A packed virtual environment with this checkout's Tailrace, and without PySpark: the archive."""
    environment, archive = directory / "to-be-packed", directory / ARCHIVE
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    _run([str(base), "-m", "venv", str(environment)])
    python = str(environment / "bin" / "python")
    _run([python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{ROOT}[arrow]", "venv-pack"])
    _run([str(environment / "bin" / "venv-pack"), "-q", "-p", str(environment), "-o", str(archive)])
    shutil.rmtree(environment)
    return archive


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


class StandaloneSpark:
    """The master and the workers; one core each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = 0
        self._master: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self, racks: Sequence[str]) -> None:
        """Start the master, and a worker in each rack."""
        self._master, log = self._start("master", ["org.apache.spark.deploy.master.Master"], {})
        self.url = _found(log, r"Starting Spark master at (spark://\S+)")
        for rack in racks:
            self.start_worker(rack)

    def start_worker(self, rack: str) -> None:
        """Start the worker of a rack, which its environment names, and wait until the master knows it."""
        command = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1500m"]
        work = ["--work-dir", str(self._directory / f"work-{rack}"), self.url]
        self._workers[rack], log = self._start(f"worker-{rack}", command, {"RACK": rack}, work)
        _found(log, r"(Successfully registered with master)")

    def kill_worker(self, rack: str) -> None:
        """Kill the worker of a rack with its executors and their Python processes."""
        worker = self._workers.pop(rack)
        kill_session(worker.pid)
        worker.wait()

    def submit(self, archive: Path, program: Path, arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
        """Run a program on the cluster as a user does, from a directory with the archive and the same unpacked."""
        environment = {**plain_environment(), "PYSPARK_PYTHON": PACKED_PYTHON}
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url]
        command += [
            "--archives",
            f"{archive}#environment",
            "--conf",
            "spark.ui.enabled=false",
            str(program),
            *arguments,
        ]
        with output.open("wb") as out:
            return subprocess.Popen(
                command,
                cwd=self.home(archive),
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def examine(self, archive: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `tailrace doctor --spark` on the cluster from the same directory, in the Python of this process."""
        environment = {**plain_environment(), "PYSPARK_PYTHON": PACKED_PYTHON, **variables}
        # This checkout's, and not by PYTHONPATH, which the packed Python would follow, too.
        here = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); from tailrace.cli.main import main; main()"
        command = [sys.executable, "-c", here, "doctor", "--spark", "--master", self.url, *words]
        return subprocess.run(
            command,
            cwd=self.home(archive),
            env=environment,
            capture_output=True,
            text=True,
            timeout=START_S + EXAMINE_S,
            check=False,
        )

    def home(self, archive: Path) -> Path:
        """The driver's directory, in which the archive is unpacked."""
        home = self._directory / "driver"
        if not home.exists():
            with tarfile.open(archive) as packed:
                packed.extractall(home / "environment", filter="tar")
        return home

    def _start(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], more: Sequence[str] = ()
    ) -> tuple[subprocess.Popen[bytes], Path]:
        self._starts += 1
        log = self._directory / f"{name}-{self._starts}.txt"
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *command, *address, *more],
                env={**plain_environment(), **variables},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process, log

    def stop(self) -> None:
        """Kill every process."""
        for rack in list(self._workers):
            self.kill_worker(rack)
        if self._master is not None:
            kill_session(self._master.pid)
            self._master.wait()


def _found(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_S
    while (match := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
    return match[1]


@contextmanager
def running(directory: Path, racks: Sequence[str]) -> Iterator[StandaloneSpark]:
    """A cluster as long as the block lasts."""
    directory.mkdir()
    spark = StandaloneSpark(directory)
    try:
        spark.start(racks)
        yield spark
    finally:
        spark.stop()
