"""Quix Streams, a stream processor in Python, in an environment of its own: its clients have versions of their own."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from benchmarks.downloads.fetching import fetched, put_in_place
from interop.librdkafka import DEADLINE_S

VERSION = "3.28.1"
HOME = Path(sys.prefix) / f"quixstreams-{VERSION}"
_FETCH_TIMEOUT_S = 900
"""40 packages, 20 s on an idle machine."""
_PROGRAM = Path(__file__).with_name("quix_counter.py")


def absent() -> str | None:
    """The reason why Quix Streams cannot run here; None if it can."""
    if not HOME.exists() and not _fetch():
        return f"pip cannot fetch quixstreams=={VERSION} here"
    return None


@cache
def _fetch() -> bool:
    with tempfile.TemporaryDirectory(dir=HOME.parent, prefix="quixstreams-") as work:
        install = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--target", f"{work}/made"]
        wanted = [*install, f"quixstreams=={VERSION}"]
        fetches = fetched(wanted, directory=Path(work), timeout_s=_FETCH_TIMEOUT_S)
        return fetches and put_in_place(Path(work, "made"), HOME)


@contextmanager
def quix_counter(bootstrap: str, source: str, target: str, state: Path, log: Path) -> Iterator[None]:
    """The program that counts each key of `source` into `target` exactly once. Killed at the end of the block."""
    words = [sys.executable, "-I", str(_PROGRAM), str(HOME), bootstrap, source, target, str(state)]
    with log.open("ab") as output:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
