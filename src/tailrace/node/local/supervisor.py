"""Runs the nodes of a local cluster, in one process per node, until a signal to stop. No child process survives this
process.

    starting --ready line--> running --ended--> dead [--restarts--> waiting --backoff--> starting]

Each child has one end of a pipe to this process, and stops when the pipe closes (`serve --until-stdin-closes`), so that
even kill -9 of this process leaves no child behind. The stderr of a child goes to this process's stderr, with the
node's name before each line.

Children are forked, not started as new programs: this process imports the modules that a node needs once, and the
children share the modules. This process has no threads and no event loop, which a fork could break.
"""

import gc
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, NoReturn

from tailrace.node.local.cluster import LocalNode
from tailrace.node.stop_signals import CLUSTER_STOPS, TO_STOP, has_no_end, not_ignored, signals_read

READY: Final = "tailrace ready: "
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_STEADY_S: Final = 60.0
"""A node that has run for this time is started again at once, as after a first end."""
_STOP_S: Final = 40.0
"""A node that has not stopped within this time is killed."""
_SAME_WISH_S: Final = 1.0
"""Signals that come within this time after the first signal count as its repetition: `timeout` and other programs
signal a process and then its whole group."""
_READ_BYTES: Final = 64 * 1024
_OTHERS: Final = frozenset((signal.SIGCHLD,))
_SIGNALS: Final = TO_STOP | _OTHERS

Say = Callable[[str], None]
Serve = Callable[[LocalNode], None]
"""Runs a node in this process until the node ends; a SystemExit has the exit code."""


class _Lines:
    """A pipe that is read without waiting, and divided into lines."""

    def __init__(self, descriptor: int, take: Say) -> None:
        self.descriptor = descriptor
        self._take = take
        self._rest = b""
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Read the pipe; returns whether the pipe is still open."""
        try:
            chunk = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))
        return bool(chunk)

    def finish(self) -> None:
        """Take the remaining lines of a process that has ended."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.descriptor, _READ_BYTES):
                self._rest += chunk
        for line in self._rest.splitlines():
            self._take(line.decode(errors="replace"))


class _Process:
    """A forked process, with pipes to and from this process."""

    def __init__(self, work: Callable[[], None], environment: Mapping[str, str]) -> None:
        stdin, self.stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.returncode: int | None = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # no reader, or a full disk: no reason to end the other nodes
                stream.flush()
        # Signals are blocked until the child has removed the parent's handlers: in the child each signal has its
        # default action.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if not self.pid:
            _live_as_child(work, environment, (stdin, stdout, stderr), before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)

    def say(self, words: bytes) -> None:
        """Write the words to the process's standard input, if the pipe is still open."""
        with suppress(OSError):
            os.write(self.stdin, words)

    def poll(self) -> int | None:
        """The exit code, or the negative number of the signal that ended the process; None if the process runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> None:
        self._reap(0)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def close(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


def _live_as_child(
    work: Callable[[], None], environment: Mapping[str, str], pipes: Sequence[int], signals_blocked: Iterable[int]
) -> NoReturn:
    """Run as an independent process, which has only the imported modules of its parent; never returns."""
    code: object = 1
    try:
        os.setsid()  # Ctrl-C is for the parent, which then stops the nodes in good order
        signal.set_wakeup_fd(-1)
        for number in not_ignored(_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals_blocked)
        for standard, pipe in enumerate(pipes):
            os.dup2(pipe, standard)
        os.closerange(len(pipes), os.sysconf("SC_OPEN_MAX"))
        _open_standard_streams()
        os.environ.clear()
        os.environ.update(environment)
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as fault:  # noqa: BLE001 - the process ends here; stderr gets the reason
        os.write(2, f"{type(fault).__name__}: {fault}\n".encode(errors="replace"))
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _open_standard_streams() -> None:
    """Make new standard streams for the pipes: Python's present stream objects were made for the parent's descriptors,
    perhaps files, and would seek."""
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


class _Child:
    """A node, and its process while a process runs."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        self.process: _Process | None = None
        self.pipes: list[_Lines] = []
        self.is_ready = False
        self.start_at: float | None = None
        """The time of the next start after an end."""
        self.started_at = 0.0
        self.backoff_s = _FIRST_BACKOFF_S

    @property
    def name(self) -> str:
        return f"node-{self.node.node_id}"


class Supervisor:
    """The processes of the nodes. Call `run` once, in the main thread: it handles the signals of this process."""

    def __init__(
        self,
        nodes: Sequence[LocalNode],
        *,
        serve: Serve,
        restarts: bool,
        environment: Mapping[str, str],
        on_ready: Callable[[], None],
        say: Say,
        until_stdin_closes: bool = False,
    ) -> None:
        """`on_ready` is called once, when all nodes answer; `say` gets a line for each event that a person should know
        of, and every line of the nodes' stderr."""
        self._children = [_Child(node) for node in nodes]
        self._serve = serve
        self._restarts = restarts
        self._environment = environment
        self._on_ready = on_ready
        self._say = say
        self._until_stdin_closes = until_stdin_closes
        self._selector = selectors.DefaultSelector()
        self._was_ready = False
        self._is_stopping = False
        self._stop_requested_at: float | None = None
        """The time of the first signal to stop. The nodes may already be stopping for another reason."""
        self._kill_at: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        """Start the nodes, and return the exit code when every node has ended."""
        gc.freeze()  # memory that is shared with the children stays shared
        with ExitStack() as stack:
            stack.callback(self._kill_all)
            stack.enter_context(self._selector)
            wakeup = stack.enter_context(signals_read(_OTHERS))
            self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._take_signals(wakeup))
            if self._until_stdin_closes:
                self._watch_stdin()
            for child in self._children:
                self._start(child)
            while self._goes_on():
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self._reap(wakeup)
                self._do_what_is_due()
        return self._exit_code

    def _goes_on(self) -> bool:
        return any(child.process is not None or child.start_at is not None for child in self._children)

    def _patience_s(self) -> float | None:
        due = [child.start_at for child in self._children if child.start_at is not None]
        if self._kill_at is not None:
            due.append(self._kill_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    # Events

    def _take_signals(self, wakeup: int) -> None:
        try:
            numbers = os.read(wakeup, 4096)
        except BlockingIOError:
            return
        if TO_STOP.isdisjoint(numbers):
            return
        now = time.monotonic()
        if self._stop_requested_at is None:
            self._stop_requested_at = now
            if not self._is_stopping:
                self._stop()
        elif now - self._stop_requested_at >= _SAME_WISH_S:
            self._say("killing what still runs")
            self._kill_all()

    def _watch_stdin(self) -> None:
        try:
            self._selector.register(0, selectors.EVENT_READ, self._read_stdin)
        except PermissionError:
            raise has_no_end() from None

    def _read_stdin(self) -> None:
        if not os.read(0, 4096):
            self._selector.unregister(0)
            self._stop()

    def _start(self, child: _Child) -> None:
        child.start_at = None
        child.started_at = time.monotonic()
        child.process = process = _Process(partial(self._serve, child.node), self._environment)
        child.pipes = [
            _Lines(process.stdout, lambda line: self._take_output(child, line)),
            _Lines(process.stderr, lambda line: self._say(f"{child.name} | {line}")),
        ]
        for pipe in child.pipes:
            self._selector.register(pipe.descriptor, selectors.EVENT_READ, partial(self._read, pipe))

    def _read(self, pipe: _Lines) -> None:
        if not pipe.read():
            self._selector.unregister(pipe.descriptor)

    def _take_output(self, child: _Child, line: str) -> None:
        if not line.startswith(READY):
            self._say(f"{child.name} | {line}")
            return
        child.is_ready = True
        if self._was_ready:
            self._say(f"{child.name} is back: {line.removeprefix(READY)}")
        elif all(child.is_ready for child in self._children):
            self._was_ready = True
            self._on_ready()

    def _reap(self, wakeup: int) -> None:
        """Handle the end of each child; signals that came before the end are taken into account.

        Such a signal is in the pipe when the end is known, but may have come after the last read of the pipe: so the
        pipe is read again. That read may take the SIGCHLD of another child, so ended children are looked for again
        after each read.
        """
        while ended := self._ended():
            self._take_signals(wakeup)
            for child, process, code in ended:
                self._take_end(child, process, code)

    def _ended(self) -> list[tuple[_Child, _Process, int]]:
        """The ended children that are not handled yet, with their processes and exit codes."""
        return [
            (child, child.process, code)
            for child in self._children
            if child.process is not None and (code := child.process.poll()) is not None
        ]

    def _take_end(self, child: _Child, process: _Process, code: int) -> None:
        for pipe in child.pipes:
            pipe.finish()
            if pipe.descriptor in self._selector.get_map():
                self._selector.unregister(pipe.descriptor)
        process.close()
        child.process, child.is_ready = None, False
        how = _end_of(code)
        if self._is_stopping:
            if code not in (0, -signal.SIGTERM):  # SIGTERM itself ends a node that has only begun to start
                self._exit_code = 1
                self._say(f"{child.name} {how} while it stopped")
        elif not self._was_ready:
            self._say(f"{child.name} {how} before the cluster was ready; the others are stopped")
            self._exit_code = 1
            self._stop()
        elif self._restarts:
            self._start_later(child, how)
        else:
            self._say(f"{child.name} {how}; start it again with: tailrace serve --config {child.node.config_file}")
            self._exit_code = 1

    def _start_later(self, child: _Child, how: str) -> None:
        if time.monotonic() - child.started_at >= _STEADY_S:
            child.backoff_s = _FIRST_BACKOFF_S
        self._say(f"{child.name} {how}; started again in {child.backoff_s:g} s")
        child.start_at = time.monotonic() + child.backoff_s
        child.backoff_s = min(2 * child.backoff_s, _LONGEST_BACKOFF_S)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._say(f"not all nodes have stopped within {_STOP_S:.0f} s; they are killed")
            self._kill_all()
            self._kill_at = None
        for child in self._children:
            if child.start_at is not None and now >= child.start_at:
                self._start(child)

    # The end

    def _stop(self) -> None:
        """Stop the nodes at once. Each node is informed that the whole cluster stops: the last nodes could not hand
        over, since no controller would be left."""
        self._is_stopping = True
        self._kill_at = time.monotonic() + _STOP_S
        for child in self._children:
            child.start_at = None
            if child.process is not None and child.process.returncode is None:
                child.process.say(CLUSTER_STOPS)
                os.kill(child.process.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                os.kill(child.process.pid, signal.SIGKILL)
                child.process.wait()


def _end_of(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
