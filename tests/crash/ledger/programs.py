"""The programs of the ledger as processes, one kind for each client, and the reasons why a client cannot run here."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from crash.ledger.plan import ABORT_EVERY, END, OF_ONE_COPY, SIGHT, ProgramPlan
from crash.program import IMPORT_PATH
from interop import kafka_tools, kafkajs
from testkit.verdicts.client_errors import HANGS

_HERE: Final = Path(__file__).parent
_CONSTANTS: Final = json.dumps({"END": END, "ABORT_EVERY": ABORT_EVERY, "OF_ONE_COPY": OF_ONE_COPY, "SIGHT": SIGHT})
_GONE_S: Final = 300.0
_BETWEEN_LIVES_S: Final = 0.5
_LOOK_S: Final = 0.1
_SILENT_S: Final = {"librdkafka": 8.0, "kafka-python": 8.0}
_OTHERWISE_SILENT_S: Final = 25.0
"""A program that notes nothing for so long after a fault hangs. Some are known to (docs/compatibility.md)."""
_GRACE_S: Final = 60.0
PYTHON_CLIENTS: Final = ("tailrace", "librdkafka", "kafka-python", "aiokafka")
CLIENTS: Final = (*PYTHON_CLIENTS, "kafkajs", "java")
WITH_KIP_890: Final = frozenset({"tailrace", "java"})
"""The clients that have an epoch for each transaction when transaction.version is 2; the others know 1 at most."""


def absent(client: str) -> str | None:
    """The reason why this client cannot be run here, with the command that would bring it; None if it can."""
    if client == "kafkajs":
        return kafkajs.absent()
    if client == "java":
        return kafka_tools.absent() or (
            None if shutil.which("javac") else "javac is not installed: apt-get install default-jdk-headless"
        )
    return None


@dataclass(frozen=True, slots=True)
class Launcher:
    """The commands of programs."""

    classes: Path
    """The directory of the compiled Java program."""

    def compile(self) -> None:
        """Compile the Java program."""
        sources = str(_HERE / "LedgerProgram.java")
        jars = f"{kafka_tools.JARS}/*"
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(self.classes), sources], check=True, timeout=100)

    def command(self, plan: ProgramPlan) -> list[str]:
        match plan.client:
            case "kafkajs":
                return ["node", str(_HERE / "program.js"), plan.to_json(), _CONSTANTS]
            case "java":
                path = f"{self.classes}:{kafka_tools.JARS}/*"
                return [*kafka_tools.java("-cp", path), "LedgerProgram", plan.to_json(), _CONSTANTS]
        return [sys.executable, "-m", "crash.ledger.program", plan.to_json()]

    def environment(self) -> Mapping[str, str]:
        return {**kafkajs.environment(), "PYTHONPATH": IMPORT_PATH}


class LedgerProcess:
    """A process of a program, which ends when its stdin does."""

    def __init__(self, launcher: Launcher, plan: ProgramPlan, place: Callable[[list[str]], list[str]] = list) -> None:
        """`place` changes the command so that it runs elsewhere."""
        self.plan = plan
        self._errors = Path(plan.output).with_suffix(".txt")
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                place(launcher.command(plan)),
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env=launcher.environment(),
                cwd=Path(plan.output).parent,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ask_to_end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> int:
        """The exit code. Raises TimeoutExpired."""
        return self._process.wait(_GONE_S)

    def kill(self) -> None:
        """The process is gone afterwards in any case."""
        self.ask_to_end()
        self._process.kill()
        self._process.wait()

    def printed(self) -> str:
        """The end of its output."""
        return self._errors.read_text(errors="replace")[-2_000:]

    def lines(self) -> Iterator[Any]:
        """The whole lines of its file."""
        path = Path(self.plan.output)
        if path.exists():
            for line in path.read_bytes().split(b"\n")[:-1]:
                yield json.loads(line)


class SupervisedClient:
    """A client whose program is started again whenever it ends, until it is asked to end."""

    def __init__(self, launcher: Launcher, plan: ProgramPlan, place: Callable[[list[str]], list[str]]) -> None:
        """A program that writes nothing into its diary for long after a fault is killed: it hangs.

        A process that hangs without a fault is left alone: the run fails then.
        """
        self.name = plan.client
        self.transactional_id = plan.transactional_id
        self._launcher = launcher
        self._plan = plan
        self._place = place
        self.lives: list[LedgerProcess] = []
        self.ends: dict[int, tuple[int, str]] = {}
        """The lives that ended by themselves, or because they hung: the time in ns, and the reason."""
        self._killed: set[int] = set()
        self._stopped: set[int] = set()
        """The lives that SIGSTOP has stopped."""
        self._heard_s = time.monotonic()
        self._fault_s = 0.0
        self._size = 0
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._counted: dict[int, tuple[int, int]] = {}
        """By life: so many bytes of its diary are read, and so many commits found."""
        self._begin()
        self._watch = threading.Thread(target=self._supervise, daemon=True)
        self._watch.start()

    def _begin(self) -> None:
        life = len(self.lives) + 1
        output = Path(self._plan.output) / f"{self.name}-{life}.jsonl"
        self.lives.append(
            LedgerProcess(self._launcher, replace(self._plan, life=life, output=str(output)), self._place)
        )
        self._heard_s, self._size = time.monotonic(), 0

    def _supervise(self) -> None:
        while not self._is_ending.wait(_LOOK_S):
            with self._lock:
                life = self.lives[-1]
                number = life.plan.life
                if life.code is None:
                    if self._is_silent(life):
                        self.ends[number] = time.monotonic_ns(), HANGS
                        life.send_signal(signal.SIGKILL)
                    continue
                if number not in self._killed | self.ends.keys():
                    self.ends[number] = time.monotonic_ns(), life.printed()
            self._is_ending.wait(_BETWEEN_LIVES_S)
            with self._lock:
                if not self._is_ending.is_set():
                    self._begin()

    def _is_silent(self, life: LedgerProcess) -> bool:
        path = Path(life.plan.output)
        size = path.stat().st_size if path.exists() else 0
        if size != self._size or life.plan.life in self._stopped:
            self._heard_s, self._size = time.monotonic(), size
        has_met_fault = self._fault_s + _GRACE_S > self._heard_s
        return has_met_fault and time.monotonic() - self._heard_s > _SILENT_S.get(self.name, _OTHERWISE_SILENT_S)

    def note_fault(self) -> None:
        """A fault that this client meets has begun, or ended, just now."""
        self._fault_s = time.monotonic()

    def kill(self) -> None:
        """kill -9; another life begins by itself."""
        with self._lock:
            self._killed.add(len(self.lives))
            self.lives[-1].send_signal(signal.SIGKILL)

    def stop(self) -> LedgerProcess:
        """SIGSTOP; the process, for `go_on`."""
        with self._lock:
            life = self.lives[-1]
            self._stopped.add(life.plan.life)
            life.send_signal(signal.SIGSTOP)
            return life

    def go_on(self, life: LedgerProcess) -> None:
        """SIGCONT."""
        with self._lock:
            life.send_signal(signal.SIGCONT)
            self._stopped.discard(life.plan.life)
            self._heard_s = time.monotonic()

    @property
    def committed(self) -> int:
        """The transactions whose commits were acknowledged, so far."""
        for life in list(self.lives):
            number, path = life.plan.life, Path(life.plan.output)
            read, found = self._counted.get(number, (0, 0))
            if path.exists() and path.stat().st_size > read:
                with path.open("rb") as diary:
                    diary.seek(read)
                    whole, _, _ = diary.read().rpartition(b"\n")
                self._counted[number] = read + len(whole), found + whole.count(b'committed"')
        return sum(found for _, found in self._counted.values())

    def end(self) -> int:
        """Have the last life end; its exit code, None having been asked for it. Raises TimeoutExpired."""
        with self._lock:
            self._is_ending.set()
            self.lives[-1].ask_to_end()
        self._watch.join()
        return self.lives[-1].wait()

    def close(self) -> None:
        """End every process: none is left in any case."""
        self._is_ending.set()
        self._watch.join()
        for life in self.lives:
            life.kill()
