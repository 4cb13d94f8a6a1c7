"""Times of a first use: an import, a command, a completion, the fixture of a test, the first test; and the memory of
tests that run in parallel.

    python -m benchmarks.startup [--rounds N] [--workers N]

A time is the least of all rounds, after a round that does not count: other programs on the machine can only add to it.
CPU is user and system time of the process, with its ended children, without the nodes. pytest loads the plugin of the
kit alone, as in a project with few plugins.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tailrace import Admin, TopicPartition
from tailrace.testing import Cluster

_TAILRACE: Final = str(Path(sys.executable).with_name("tailrace"))
_KIT: Final = ("-p", "tailrace.testing.pytest_plugin")
_WAIT_S: Final = 120.0

_CONFTEST: Final = """
import json, os, time
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    began = time.time()
    yield
    if fixturedef.argname == "tailrace_cluster":
        note("fixture_s", time.time() - began)

def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        note("passed_at_s", time.time())

def note(name, value):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(json.dumps({name: value}) + "\\n")
"""
_FIRST_TEST: Final = """
from tailrace import Consumer, Producer

def test_first(tailrace_cluster, tailrace_topic):
    servers = tailrace_cluster.bootstrap_servers
    with Producer(servers) as producer:
        producer.send(tailrace_topic, b"tea")
    with Consumer(servers, topics=[tailrace_topic], auto_offset_reset="earliest", until="end") as consumer:
        assert [record.value for record in consumer] == [b"tea"]
"""
_PARALLEL_TESTS: Final = f"""
import os, pathlib, time
import pytest
{_FIRST_TEST}
@pytest.mark.parametrize("number", range(int(os.environ["WORKERS"])))
def test_waits_for_the_measurement(tailrace_cluster, tailrace_topic, number):
    test_first(tailrace_cluster, tailrace_topic)
    there = pathlib.Path(os.environ["NOTES"])
    (there / f"worker-{{os.getpid()}}").touch()
    deadline = time.monotonic() + {_WAIT_S}
    while not (there / "measured").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
"""


class Run(NamedTuple):
    """The times of a process, in seconds."""

    wall: float
    cpu: float


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run the command to its end. Raises CalledProcessError."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**_environment(), **(environment or {})}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(wall, usage.ru_utime + usage.ru_stime)


def _environment() -> dict[str, str]:
    """The environment of a user: Python may keep compiled modules."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("PYTHONDONTWRITE", "PYTEST_"))}


def show(name: str, goal: float, walls: Sequence[float], cpus: Sequence[float] = ()) -> None:
    """Print a figure: the least time, its goal, the median, and the least CPU."""
    cpu = f"{min(cpus):6.3f}" if cpus else " " * 6
    print(f"{name:44} {min(walls):6.3f} s  (goal {goal:5.3f}; median {median(walls):6.3f}) CPU {cpu}", flush=True)


def show_command(name: str, goal: float, rounds: int, command: Sequence[str], **environment: str) -> None:
    """Measure a command, and print its figure."""
    runs = [run(command, environment) for _ in range(rounds + 1)][1:]
    show(name, goal, [each.wall for each in runs], [each.cpu for each in runs])


def measure_imports(rounds: int) -> None:
    """The time of `import tailrace` beyond the time of Python itself."""
    bare = min(run([sys.executable, "-c", "pass"]).cpu for _ in range(rounds))
    runs = [run([sys.executable, "-c", "import tailrace"]).cpu - bare for _ in range(rounds)]
    show("import tailrace", 0.03, runs)


def measure_commands(rounds: int) -> None:
    """The commands that ask a node, and completion."""
    with Cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([f"topic-{number}" for number in range(20)])
        for number in range(20):
            admin.commit_offsets(f"group-{number}", {TopicPartition("topic-0", 0): 0})
        where = {"TAILRACE_BOOTSTRAP": cluster.bootstrap_servers}
        show_command("tailrace --help", 0.15, rounds, [_TAILRACE, "--help"])
        show_command("tailrace topics list", 0.20, rounds, [_TAILRACE, "topics", "list"], **where)
        for line in ("topics describe t", "consume t", "produce t", "groups describe g", "work --group g"):
            words = ["tailrace", *line.split()]
            asked = {
                "_TAILRACE_COMPLETE": "complete_bash",
                "COMP_WORDS": "\n".join(words),
                "COMP_CWORD": str(len(words) - 1),
            }
            show_command(f"TAB after `tailrace {line}`", 0.15, rounds, [_TAILRACE], **asked, **where)


@contextmanager
def project(test: str) -> Iterator[tuple[list[str], Path]]:
    """A directory with this test: the command that runs it, and where it notes its times."""
    with tempfile.TemporaryDirectory(prefix="tailrace-startup-") as name:
        directory = Path(name)
        (directory / "conftest.py").write_text(_CONFTEST)
        (directory / "test_startup.py").write_text(test)
        yield [sys.executable, "-m", "pytest", "-q", *_KIT, "--rootdir", name, name], directory


def measure_first_test(rounds: int) -> None:
    """The fixture, and the time from the command to a test that has written and read a record."""
    fixtures: list[float] = []
    greens: list[float] = []
    cpus: list[float] = []
    with project(_FIRST_TEST) as (command, directory):
        for _ in range(rounds + 1):
            notes = directory / "notes"
            notes.write_text("")
            began = time.time()
            cpus.append(run(command, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NOTES": str(notes)}).cpu)
            found: dict[str, float] = {}
            for line in notes.read_text().splitlines():
                found |= json.loads(line)
            fixtures.append(found["fixture_s"])
            greens.append(found["passed_at_s"] - began)
    show("the fixture tailrace_cluster", 0.7, fixtures[1:])
    show("first test green, from typing pytest", 1.8, greens[1:], cpus[1:])


def measure_memory(workers: int) -> None:
    """The memory of parallel tests: PSS of all processes, with what processes share counted once."""
    with project(_PARALLEL_TESTS) as (command, directory):
        notes = directory / "notes"
        notes.mkdir()
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NOTES": str(notes), "WORKERS": str(workers)}
        command += ["-p", "xdist", "-n", str(workers), "-k", "measurement"]
        (directory / "conftest.py").unlink()  # which notes times
        with subprocess.Popen(command, env={**_environment(), **environment}, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + _WAIT_S
            while len(list(notes.glob("worker-*"))) < workers and time.monotonic() < deadline:
                time.sleep(0.1)
            family = descendants(process.pid)
            sizes = {process_id: pss_bytes(process_id) for process_id in family}
            nodes = [process_id for process_id in family if "serve" in command_of(process_id)]
            (notes / "measured").touch()
    total, of_nodes = sum(sizes.values()), sum(sizes[process_id] for process_id in nodes)
    print(
        f"{f'memory of {workers} workers of xdist (PSS)':44} {total / 1e6:6.0f} MB (goal {75 * workers:5};"
        f" {len(nodes)} nodes {of_nodes / 1e6:.0f}, {len(family) - len(nodes)} processes of pytest"
        f" {(total - of_nodes) / 1e6:.0f})"
    )


def descendants(process_id: int) -> list[int]:
    """The process, its children, and theirs."""
    found = [process_id]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def pss_bytes(process_id: int) -> int:
    """The proportional set size: pages that n processes share count an n-th in each."""
    for line in Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {process_id} has no Pss")


def command_of(process_id: int) -> list[str]:
    return Path(f"/proc/{process_id}/cmdline").read_text().split("\0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    measure_imports(options.rounds)
    measure_commands(options.rounds)
    measure_first_test(options.rounds)
    measure_memory(options.workers)


if __name__ == "__main__":
    main()
