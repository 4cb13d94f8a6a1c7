"""A program that loads a node while it is killed, seen from the test: its reports, its end and its history."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from crash.program import DEADLINE_S, IMPORT_PATH


class Worker:
    """A process of `crash.node.load` or another such program, and its last report."""

    def __init__(
        self, name: str, directory: Path, program: str, *words: str, place: Callable[[list[str]], list[str]] = list
    ) -> None:
        """`words` are the arguments of the program, except the last: the file of the history.

        `place` changes the command so that it runs elsewhere.
        """
        self.name = name
        self.history = directory / f"{name}.jsonl"
        self._errors = directory / f"{name}.txt"
        self.done = 0
        self.in_flight = 0
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                place([sys.executable, "-m", program, *words, str(self.history)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            )
        self._reader = threading.Thread(target=self._read_reports, daemon=True)
        self._reader.start()

    def _read_reports(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as reports:
            for line in reports:
                report = json.loads(line)
                self.done, self.in_flight = report["done"], report["in_flight"]

    def check(self) -> None:
        """Fail if the program has ended: it should not, yet."""
        assert self._process.poll() is None, f"{self.name} ended with {self._process.returncode}\n{self._printed()}"

    def _printed(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]

    def ask_to_end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait for the end of the process, with the status 0."""
        assert self._process.wait(2 * DEADLINE_S) == 0, f"{self.name}: {self._process.returncode}\n{self._printed()}"
        self._reader.join()

    def kill(self) -> None:
        """The process is gone afterwards in any case."""
        self.ask_to_end()
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def events(self) -> Iterator[dict[str, Any]]:
        """The history so far."""
        with self.history.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
