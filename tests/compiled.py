"""Compiled modules of the tests. In a fresh checkout each worker would compile the modules: 20 s of a core."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent


def compile_tests(processes: int) -> None:
    """Compile the tests once, if none is compiled: each process collects a share of the files."""
    if sys.dont_write_bytecode or any(TESTS.glob("unit/**/*.pyc")):
        return
    files = [(path.stat().st_size, str(path)) for path in TESTS.rglob("test_*.py")]
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:randomly"]
    running = [
        # A file that cannot be collected is an error of the run itself, which collects it again.
        subprocess.Popen([*collect, *share], cwd=TESTS.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for share in shares(files, processes)
    ]
    for process in running:
        process.wait()


def shares(files: Sequence[tuple[int, str]], count: int) -> list[list[str]]:
    """The names in so many shares of about the same size: each next smaller file goes to the smallest share."""
    sizes, found = [0] * count, [list[str]() for _ in range(count)]
    for size, name in sorted(files, reverse=True):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += size
        found[smallest].append(name)
    return [share for share in found if share]
