"""`tailrace work TOPIC -- COMMAND`: run a command for each record, in order per key."""

import base64
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from tailrace.cli.completion import Topic, group_names
from tailrace.cli.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Format,
    Output,
    admin_of,
    cluster_of,
    counted,
    readable,
    say,
    show,
)
from tailrace.cli.waiting import (
    CorruptAction,
    Isolation,
    IsolationLevel,
    OnCorrupt,
    TroubleNotice,
    describe,
    on_first_signal,
    without_client_warnings,
)
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition

if TYPE_CHECKING:  # the help text and the completion of words need no consumer
    from tailrace.client.blocking.keyed_consumer import KeyedConsumer
    from tailrace.client.keyed.breaker import BreakerState
    from tailrace.client.keyed.outcomes import KeyedRecord, Outcome

TRY_LATER: Final = 75
"""The exit code of a command that asks for the record again: EX_TEMPFAIL of sysexits.h."""
MOST_VARIABLE_BYTES: Final = 1 << 16
"""The limit of a variable; a longer variable is left out. The system starts no command with a variable of 128 KiB."""
_GRACE_MS: Final = 20_000
"""The time of commands that run when the first signal comes."""
_KILL_SECONDS: Final = 2.0
_NOTICE_SECONDS: Final = 1.0
_CANNOT_START: Final = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC)


def command(
    topic: Topic,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGUMENT]...", show_default=False)],
    group: Annotated[
        str, typer.Option("--group", help="Share the topic in this group, and commit.", autocompletion=group_names)
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Commands that run at a time.")] = 16,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Kill a command after this time: it has failed."),
    ] = None,
    breaker: Annotated[
        str,
        typer.Option(
            "--breaker",
            metavar="PERCENT|off",
            help="Run only single commands while more than this share of the last commands has failed.",
        ),
    ] = "50",
    slots: Annotated[
        str | None,
        typer.Option("--slots", metavar="N|auto", help="Share partitions by key, each partition in so many slots."),
    ] = None,
    isolation: IsolationLevel = Isolation.READ_COMMITTED,
    on_corrupt: OnCorrupt = CorruptAction.RAISE,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Run COMMAND for each record of TOPIC until interrupted, records of a key in their order.

    The value is on its stdin; TAILRACE_KEY, _TOPIC, _PARTITION, _OFFSET, _TIMESTAMP, _HEADERS and _ATTEMPT have the
    rest. Exit code 0: the record is done. 75: try it again. Another code: the command has failed, and is tried again
    too. Until then the records of its key wait, 1 s at first and up to a minute; records of other keys do not.
    """
    from tailrace.client.blocking.keyed_consumer import KeyedConsumer
    from tailrace.client.reader_settings import KeyedConsumerSettings

    if not group:
        raise typer.BadParameter("a group has a name", param_hint="--group")
    breaker_percent = _percent_of(breaker)
    _check_program(words[0])
    with admin_of(bootstrap_server) as admin:
        admin.describe_topics([topic])
    cluster = cluster_of(bootstrap_server)
    settings = KeyedConsumerSettings.on(
        cluster,
        group=group,
        topics=[topic],
        grace_ms=_GRACE_MS,
        breaker_failure_percent=breaker_percent,
        slots=int(slots) if slots is not None and slots.isdecimal() else slots,
        isolation=isolation.value,
        on_corrupt=on_corrupt.value,
    )
    consumer = KeyedConsumer.of(settings)
    commands = Commands(words, consumer.stop, timeout)
    progress = _Progress(consumer)
    with without_client_warnings(), on_first_signal(consumer.stop), consumer, ThreadPoolExecutor(1) as threads:
        run = threads.submit(consumer.run, commands, concurrency=concurrency)
        try:
            _wait(run, progress)
        finally:
            consumer.stop()
            commands.end()
            progress.erase()
    if commands.fault is not None:
        raise commands.fault
    if output is Format.JSON:
        show([{"topic": topic, "done": progress.done, "failures": progress.failures}], (), output)
    say(progress.summary())


def _check_program(name: str) -> None:
    """Raise OSError for a command that is not there, before anything is read."""
    if shutil.which(name) is None:
        code = errno.EACCES if os.path.exists(name) else errno.ENOENT
        raise OSError(code, os.strerror(code), name)


def _percent_of(breaker: str) -> int | None:
    """The percent of the option; None: no breaker. The settings check the range."""
    if breaker == "off":
        return None
    if not breaker.isdecimal():
        raise typer.BadParameter(f"{breaker!r} is neither a whole number nor off", param_hint="--breaker")
    return int(breaker)


def _wait(run: "Future[None]", progress: "_Progress") -> None:
    """Return when the run has ended; show its progress. Raises its fault."""
    while True:
        try:
            run.result(_NOTICE_SECONDS)
        except TimeoutError:
            progress.show()
        else:
            progress.note()
            return


class CommandFailed(Exception):
    """The command has ended with an exit code that is neither 0 nor 75, or by a signal, or was killed at its limit."""


class Commands:
    """The handler of records: a process per record, with the value on its stdin."""

    def __init__(self, words: Sequence[str], on_fault: Callable[[], None], timeout_s: float | None = None) -> None:
        """`on_fault` runs when the command cannot be started any more. `timeout_s`: the most time of a command."""
        self._words = tuple(words)
        self._on_fault = on_fault
        self._timeout_s = timeout_s
        self.fault: OSError | None = None
        """The reason why the command cannot be started."""
        self._changed = threading.Condition()
        """Guards the processes, and is notified when a process has ended."""
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_ended = False

    def __call__(self, record: "KeyedRecord") -> "Outcome":
        """The outcome of the command for this record. Raises CommandFailed."""
        from tailrace.client.keyed.outcomes import Done, Retry

        process = self._started(record)
        if process is None:
            return Retry()
        code: int | None
        try:
            code = process.wait(self._timeout_s)
            end = f"ended by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            _kill(process)
            code, end = None, f"killed after {self._timeout_s:g} s"
        finally:
            with self._changed:
                self._processes.discard(process)
                self._changed.notify_all()
        if code == 0:
            return Done()
        if code == TRY_LATER:
            return Retry()
        where = f"offset {record.offset} of {TopicPartition(record.topic, record.partition)}"
        if not self._is_ended:
            say(f"{self._words[0]}: {end} at {where}, attempt {record.attempt}; its key waits")
        raise CommandFailed(end)

    def _started(self, record: "KeyedRecord") -> "subprocess.Popen[bytes] | None":
        import tempfile

        # A file and no pipe: a child of the command that outlives it can hold up the writer of a pipe for ever.
        with tempfile.TemporaryFile() as value:
            value.write(record.value or b"")
            value.seek(0)
            with self._changed:
                return None if self._is_ended else self._start(record, value)

    def _start(self, record: "KeyedRecord", value: IO[bytes]) -> "subprocess.Popen[bytes] | None":
        try:
            # In a process group of its own: an interrupt at the terminal is for this program, which lets the commands
            # that run finish.
            process = subprocess.Popen(
                self._words,
                stdin=value,
                env={**os.environb, **variables(record)},
                process_group=0,
            )
        except OSError as fault:
            if fault.errno not in _CANNOT_START:
                raise
            self.fault = OSError(fault.errno, os.strerror(fault.errno or 0), self._words[0])
            self._on_fault()
            return None
        self._processes.add(process)
        return process

    def end(self) -> None:
        """End the commands that still run, with their children, and start no more. In 2 s, however many run."""
        with self._changed:
            self._is_ended = True
            left = list(self._processes)
            try:
                for process in left:
                    _signal(process, signal.SIGTERM)
                self._changed.wait_for(lambda: not self._processes, _KILL_SECONDS)
            finally:
                for process in left:
                    _signal(process, signal.SIGKILL)  # also a process that has ended: its children may still run


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the process and its children, within 2 s."""
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)
    _signal(process, signal.SIGKILL)  # also a process that has ended: its children may still run
    process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signal the process and its children: its whole group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal_name(number: int) -> str:
    """The name of a signal; a signal for real time, which has no name, has its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def variables(record: "KeyedRecord") -> dict[bytes, bytes]:
    """The environment variables of a command that describe the record, as far as they can be variables."""
    found = {
        "TOPIC": record.topic.encode(),
        "PARTITION": b"%d" % record.partition,
        "OFFSET": b"%d" % record.offset,
        "TIMESTAMP": b"%d" % record.timestamp,
        "ATTEMPT": b"%d" % record.attempt,
        "HEADERS": _json_of(record),
    }
    if record.key is not None:
        found |= {"KEY": record.key, "KEY_BASE64": base64.b64encode(record.key)}
    if record.value is None:
        found["NO_VALUE"] = b"1"
    if record.slot is not None:
        found |= {"SLOT": b"%d" % record.slot, "MEMBER_EPOCH": b"%d" % record.member_epoch}
    return {
        b"TAILRACE_" + name.encode(): content
        for name, content in found.items()
        if b"\0" not in content and len(content) <= MOST_VARIABLE_BYTES
    }


def _json_of(record: "KeyedRecord") -> bytes:
    headers = [[name, readable(content)] for name, content in record.headers]
    return json.dumps(headers, ensure_ascii=False).encode("utf-8", "replace")


class _BreakerNotice:
    """Prints that the breaker has opened, and that it has closed."""

    def __init__(self) -> None:
        self._opened = 0
        self._is_open = False

    def check(self, breaker: "BreakerState") -> None:
        """Print a change since the last check."""
        if breaker.opened_total != self._opened:
            self._opened, self._is_open = breaker.opened_total, True
            fault = breaker.fault or f"exit code {TRY_LATER}"
            say(
                f"{breaker.failed} of the last {breaker.calls} commands have failed ({fault});"
                " only single commands run now, to try again, and failures count no attempt"
            )
        if self._is_open and breaker.name == "closed":
            self._is_open = False
            say("a command has succeeded: as many commands as before run again")


class _Progress:
    """Shows the person at the terminal what a consumer does."""

    def __init__(self, consumer: "KeyedConsumer") -> None:
        self._consumer = consumer
        self._notice = TroubleNotice()
        self._breaker = _BreakerNotice()
        self._has_counted = False
        self.done = self.failures = 0
        self._trouble: KafkaError | None = None

    def note(self) -> None:
        """Note the numbers for the summary."""
        metrics = self._consumer.metrics()
        self.done, self.failures = metrics.done_total, metrics.failed_total
        self._trouble = self._consumer.trouble

    def show(self) -> None:
        """Print the fault that is being retried; on a terminal the numbers too, in place. About once a second."""
        self._notice.check(self._consumer.trouble)
        metrics = self._consumer.metrics()
        self._breaker.check(metrics.breaker)
        if not sys.stderr.isatty():
            return
        held = f", {counted(metrics.held, 'key')} held" if metrics.held else ""
        self._has_counted = True
        sys.stderr.write(f"\r\x1b[K{counted(metrics.done_total, 'record')} done, {metrics.running} running{held} ")
        sys.stderr.flush()

    def erase(self) -> None:
        """Erase the numbers, so that the next output begins at the margin."""
        if self._has_counted:
            self._has_counted = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def summary(self) -> str:
        """The numbers of the whole run."""
        failed = f", {counted(self.failures, 'failure')}" if self.failures else ""
        return f"{counted(self.done, 'record')} done{failed}" + (
            f"; {describe(self._trouble)}" if self._trouble else ""
        )
