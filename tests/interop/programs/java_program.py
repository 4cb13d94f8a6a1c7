"""A Java program of Kafka's that runs beside the test: Connect, MirrorMaker 2, Streams."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.downloads.kafka_jars import PROGRAM_JARS
from interop.librdkafka import DEADLINE_S

_JAVA = (
    "java",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx320m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-cp",
    f"{PROGRAM_JARS}/*",
)
# The shell kills the program when the test closes the pipe, or dies: a killed test leaves no program behind.
_UNTIL_STDIN_CLOSES = '"$@" & program=$!; cat >/dev/null; kill -9 $program; wait $program'


class JavaProgram:
    """A started program, with a log file of its own."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        """Standard output and standard error, of earlier starts with this log too."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_STDIN_CLOSES, "sh", *_JAVA, *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a signal to the tests' group must not end the shell before the program
            )

    def kill(self) -> None:
        """SIGKILL, and wait for the end. May be called again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)


@contextmanager
def java_program(words: Sequence[str], log: Path) -> Iterator[JavaProgram]:
    """The program with these words behind the class path: options, a main class or a source file, arguments."""
    program = JavaProgram(words, log)
    try:
        yield program
    finally:
        program.kill()
