"""A foreign program that keeps running: what it says is read line by line, without waiting for it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from interop.librdkafka import DEADLINE_S


class RunningProgram:
    """A process with pipes on all three sides."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        assert self._process.stdout
        assert self._process.stderr
        self._rest = {self._process.stdout.fileno(): b"", self._process.stderr.fileno(): b""}
        self._output, self._errors = self._rest
        for descriptor in self._rest:
            os.set_blocking(descriptor, False)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def output(self) -> list[str]:
        """The whole lines on standard output since the last call."""
        return self._lines(self._output)

    def errors(self) -> list[str]:
        """The same of standard error."""
        return self._lines(self._errors)

    def _lines(self, descriptor: int) -> list[str]:
        try:
            chunk = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return []
        *lines, self._rest[descriptor] = (self._rest[descriptor] + chunk).split(b"\n")
        return [line.decode() for line in lines]

    def terminate(self) -> None:
        """SIGTERM, and wait for the end."""
        self._process.terminate()
        self._end()

    def close_input(self) -> None:
        """End standard input, and wait for the end."""
        self._end()

    def _end(self) -> None:
        try:
            self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
            sys.stderr.write(errors.decode(errors="replace"))
            raise
