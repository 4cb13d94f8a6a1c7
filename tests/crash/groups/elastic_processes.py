"""The members of an elastic group as processes: a kind for each client, a ledger and a client id for each process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from crash.groups.elastic_member import GROUP, HANDLER_S, VIEW
from crash.program import IMPORT_PATH
from interop import kafka_tools
from tailrace.model.committed_progress import Rectangle
from testkit.verdicts.elastic_verdict import KEYED, PLAIN, CommitAttempt, Handling, ProcessLedger

LIBRDKAFKA: Final = "librdkafka"
JAVA: Final = "java"
_GONE_S: Final = 240.0
_SOURCE: Final = Path(__file__).with_name("ElasticMember.java")


def why_without_java() -> str | None:
    """The reason why Java's member cannot run here; None if it can."""
    return kafka_tools.absent() or (
        None if shutil.which("javac") else "javac is not installed: apt-get install default-jdk-headless"
    )


def kinds() -> list[str]:
    """The kinds of members that can run here."""
    return [KEYED, PLAIN, LIBRDKAFKA, *([] if why_without_java() else [JAVA])]


class MemberFactory:
    """Starts the members of a run, each under a name that no other process has had."""

    def __init__(self, servers: str, directory: Path) -> None:
        self._servers = servers
        self._directory = directory
        self._classes = directory / "classes"
        self._classes.mkdir()
        if why_without_java() is None:
            jars = f"{kafka_tools.JARS}/*"
            command = ["javac", "-nowarn", "-cp", jars, "-d", str(self._classes), str(_SOURCE)]
            subprocess.run(command, check=True, timeout=100)
        self.started: list[ElasticProcess] = []

    def start(self, kind: str) -> "ElasticProcess":
        name = f"{kind}-{len(self.started)}"
        process = ElasticProcess(kind, name, self._directory / f"{name}.jsonl", self._command(kind, name))
        self.started.append(process)
        return process

    def _command(self, kind: str, name: str) -> list[str]:
        ledger = str(self._directory / f"{name}.jsonl")
        if kind == JAVA:
            path = f"{self._classes}:{kafka_tools.JARS}/*"
            words = [self._servers, GROUP, VIEW, name, ledger, str(round(HANDLER_S * 1_000))]
            return [*kafka_tools.java("-cp", path), "ElasticMember", *words]
        return [sys.executable, "-m", "crash.groups.elastic_member", kind, self._servers, name, ledger]

    def close(self) -> None:
        """End every process: none is left in any case."""
        for process in self.started:
            process.kill()


class ElasticProcess:
    """A member in a process of its own."""

    def __init__(self, kind: str, name: str, ledger: Path, command: list[str]) -> None:
        self.kind = kind
        self.name = name
        self.killed_ns: int | None = None
        self.stops: list[tuple[int, int]] = []
        """The times for which the process was stopped."""
        self._stopped_ns: int | None = None
        self._ledger = ledger
        self._errors = ledger.with_suffix(".txt")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        return self._stopped_ns is not None

    def check(self) -> None:
        """Fail if the process has ended by itself."""
        assert self.is_running, f"{self.name} ended with {self._process.returncode}\n{self._printed()}"

    def stop(self) -> None:
        """SIGSTOP."""
        self._stopped_ns = time.monotonic_ns()
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        assert self._stopped_ns is not None, "the process was stopped"
        self.stops.append((self._stopped_ns, time.monotonic_ns()))
        self._stopped_ns = None

    def kill(self) -> None:
        """kill -9; no effect on a process that has ended."""
        if self.is_running:
            self.killed_ns = time.monotonic_ns()
            self._process.kill()
        self._process.wait()
        self._close_input()

    def ask_to_leave(self) -> None:
        self._close_input()

    def wait(self) -> None:
        """Wait until the process has left the group and ended well."""
        code = self._process.wait(_GONE_S)
        assert code == 0, f"{self.name} ended with {code}\n{self._printed()}"

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _printed(self) -> str:
        return self._errors.read_text(errors="replace")[-4_000:]

    def ledger(self) -> ProcessLedger:
        """The content of the process's file."""
        read = ProcessLedger(self.kind)
        begun: dict[tuple[int, int], Handling] = {}
        for line in self._ledger.read_bytes().split(b"\n")[:-1] if self._ledger.exists() else ():
            entry = json.loads(line)
            if "begin" in entry:
                slot, offset = entry["begin"]
                key, number = entry["key"], entry["number"]
                begun[slot, offset] = Handling(self.name, slot, offset, key, number, entry["at"], None)
            elif "end" in entry:
                slot, offset = entry["end"]
                read.handlings.append(begun.pop((slot, offset))._replace(end_ns=entry["at"]))
            elif "commit" in entry:
                for slot, rectangles in entry["commit"]:
                    found = tuple(Rectangle(*fields) for fields in rectangles)
                    read.attempts.append(CommitAttempt(entry["sent"], entry["at"], slot, found, entry["ok"]))
            else:
                read.leaving_ns = entry["at"]
        read.handlings += begun.values()
        return read
