"""The README's code blocks run as they stand, but for the port: a free port takes its place. The picture has figures of
the benchmarks alone."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scripts import readme_chart

README = (Path(__file__).parents[2] / "README.md").read_text()
BIN = Path(sys.executable).parent
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(sh|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def _blocks(language: str, containing: str) -> str:
    found = [text for kind, text in BLOCKS if kind == language and containing in text]
    assert len(found) == 1, f"one {language} block with {containing!r}, not {len(found)}"
    return found[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process_group(command: list[str], cwd: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command whose children, the node among them, end with the block: jobs of a shell have groups of their own."""
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        for pid in _of_session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        process.wait(timeout=60)


def _of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
            pid, _, fields = entry.read_text().partition(" (")
            if int(fields.rpartition(")")[2].split()[3]) == session:
                found.append(int(pid))
    return found


def test_the_readme_opens_with_a_sentence_a_picture_and_two_commands() -> None:
    title, _, sentence, _, picture = README.splitlines()[:5]
    assert title == "# Tailrace"
    assert re.fullmatch(r"\S.*\.", sentence)
    assert re.fullmatch(r"!\[.+\]\(docs/readme\.svg\)", picture)
    assert [line.split()[1] for line in BLOCKS[0][1].splitlines()] == ["demo", "test"]


def test_the_picture_has_the_figures_of_the_benchmarks() -> None:
    """`python scripts/readme_chart.py` draws it anew from docs/benchmarks/README.md."""
    page = readme_chart.PAGE.read_text()
    assert readme_chart.PICTURE.read_text() == readme_chart.drawn(page)
    (row,) = re.findall(r"^\| one node \| tailrace \| (\S+) \|.*$", page, re.MULTILINE)
    assert f">{row} s<" in readme_chart.drawn(page)
    assert ">99.9 s<" in readme_chart.drawn(
        page.replace(f"| one node | tailrace | {row} |", "| one node | tailrace | 99.9 |")
    )


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    port = _free_port()
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TAILRACE_BOOTSTRAP": f"127.0.0.1:{port}"}
    shell = _blocks("sh", "tailrace serve").replace(
        "tailrace serve --dev", f"tailrace serve --dev --listen 127.0.0.1:{port}"
    )
    (tmp_path / "spark_tour.py").write_text(_blocks("python", "local_session").replace("9092", str(port)))
    (tmp_path / "first_records.py").write_text(_blocks("python", 'until="end"').replace("9092", str(port)))
    programs = f"{sys.executable} first_records.py\n{sys.executable} spark_tour.py"
    script = f"set -eu\n{shell}\n{programs}\nkill %1\nwait\necho tour is over\n"
    bash = shutil.which("bash")
    assert bash is not None
    with _process_group([bash, "-m", "-c", script], tmp_path, env) as process:
        output, _ = process.communicate(timeout=240)
    assert "tour is over" in output, output
    for text in ("hello", "good morning", "b'carol' b'good night'", "b'alice' b'hello'"):
        assert text in output, output
    assert re.search(r"\|\s*alice\|\s*hello\|\s*\d+\|\s*\d+\|", output), output


@pytest.mark.timeout(120)
def test_three_nodes_come_up_as_it_says(tmp_path: Path) -> None:
    shell = _blocks("sh", "tailrace up")
    assert "127.0.0.1:9192" in shell
    # Its six ports follow each other: where they begin, here, is whatever was free last.
    shell = shell.replace("--listen 127.0.0.1:9192", "--listen 127.0.0.1:0")
    at_first = "$(cut -d' ' -f3 cluster.txt | cut -d, -f1)"
    shell = shell.replace("--bootstrap-server 127.0.0.1:9192", f"--bootstrap-server {at_first}")
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    bash = shutil.which("bash")
    assert bash is not None
    script = f"set -eu\n{shell}\nkill %1\nwait\necho three are over\n"
    with _process_group([bash, "-m", "-c", script], tmp_path, env) as process:
        output, _ = process.communicate(timeout=100)
    assert "three are over" in output, output
    assert re.search(r"LeaderId:\s+[123]\b", output), output


def test_the_fixture_of_the_tour_gives_a_node(tmp_path: Path) -> None:
    (tmp_path / "test_tour.py").write_text(_blocks("python", "tailrace_cluster"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
