"""A node as a process of its own: event loop, signals, logging, the ready line and the exit code.

SIGTERM, SIGINT and, unless `nohup` ignores the signal, SIGHUP stop the node cleanly: without that, a closed terminal
would cause a recovery at the next start.
"""

import asyncio
import gc
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from tailrace.model.errors import StorageError
from tailrace.node.descriptors import raise_limit
from tailrace.node.disk_failure import FreshStart, wait_for_disk
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.node.stop_signals import CLUSTER_STOPS, TO_STOP, has_no_end, signals_read

TEXT: Final = "text"
JSON: Final = "json"

_TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELD: Final = re.compile(
    r"""([A-Za-z][\w.-]*)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.*?)(?=\s+[A-Za-z][\w.-]*=|\s*$)"""
)
_OWN_NAMES: Final = frozenset(("time", "level", "logger", "message", "traceback"))


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object: time (ISO 8601, UTC, ms), level, logger, then the keys of the message."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line: dict[str, object] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = _fields(message)
        if "event" not in fields:
            line["message"] = message
        line |= fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """`time level logger message`. A message is one line: its line ends are escaped. A traceback follows."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = record.message.replace("\n", "\\n").replace("\r", "\\r")
        return super().formatMessage(record)


def set_up_logging(log_format: str = TEXT, *, level: int = logging.INFO) -> None:
    """Send the log of this process to stderr in this format: one line per event, for people or for machines.

    Messages are written as `event=name-of-the-event key=value ...` everywhere. A value with spaces is quoted, or runs
    to the next key.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter
    if log_format == JSON:
        formatter = JsonFormatter()
    else:
        formatter = TextFormatter(_TEXT_FORMAT)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


def _fields(message: str) -> dict[str, str]:
    """The keys and values of a message; a key that has the name of a field of the line gets a `_`."""
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(message):
        name, value = match[1], match[2]
        if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
            value = value[1:-1]
        fields.setdefault(f"{name}_" if name in _OWN_NAMES else name, value)
    return fields


_logger = logging.getLogger("tailrace.node")

_FAILED = 1
_STDIN = 0
_GC_THRESHOLDS = (10_000, 250, 100)
"""Requests make no reference cycles, so Python's default, a collection every 700 allocations, would find no cycles. But
refused requests and ended connections leave cycles, and a collection of too many cycles would stop the event loop for
long (50,000 cycles took 50 to 90 ms)."""
_SWITCH_SECONDS = 0.001
"""The time after which a waiting thread gets the interpreter's lock. A system call of the event loop starts the wait
again, and releases the lock for too short a time for another thread to take it. A busy event loop makes a system call
in every turn, each 5 ms or less: with Python's default of 5 ms the flush thread could wait for a second (decision
0086)."""


def _ignore(words: bytes) -> None:
    """Do nothing."""


class Program(NamedTuple):
    """A program that runs a node in its process."""

    module: str = "tailrace"
    """`python -m` with this name starts the program again."""
    take: Callable[[bytes], None] = _ignore
    """Takes the bytes that come through standard input, and no bytes at its end, if its end stops the node; also while
    the node waits for its disk. In the main thread."""


program = Program()
"""The program of this process; a program of tests sets its own."""


def run(
    config: NodeConfig, *, until_stdin_closes: bool = False, command: Sequence[str] = (), disk_failures: int = 0
) -> int:
    """Run a node until a signal to stop; returns the exit code. Raises KafkaError or OSError if it cannot start.

    Only for the main thread, and only once: after the return the signals to stop are ignored, since the process ends.
    `until_stdin_closes` also ends the node at the end of standard input: the parent process holds the other end of that
    pipe, and even kill -9 closes the pipe. `command` starts the node again, with the number of `disk_failures` so far
    as its last argument: with it, the process begins anew when its disk has failed and answers again
    (`node.disk_failure`).
    """
    gc.freeze()  # imported modules stay
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_SECONDS)
    set_up_logging(config.text("log.format") or TEXT)
    directory = config.data_directory
    take = program.take if until_stdin_closes else None
    if disk_failures and not wait_for_disk(directory, failures=disk_failures, take=take):
        return 0
    prepare_fresh_start = partial(FreshStart, command, failures=disk_failures) if command else None
    raise_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve(config, take, prepare_fresh_start))


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where uvloop is installed, else the standard event loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def preload() -> None:
    """Import the modules that a node imports only when it runs, once for a process that forks several nodes."""
    event_loop_factory()


async def _serve(
    config: NodeConfig,
    take: Callable[[bytes], None] | None,
    prepare_fresh_start: Callable[..., FreshStart] | None,
) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    with signals_read() as signals:
        must_stop = partial(_read_signals, signals, stopped)
        fresh_start = None if prepare_fresh_start is None else prepare_fresh_start(must_stop=must_stop)
        loop.add_reader(signals, must_stop)
        try:
            await _serve_until(stopped, config, take, fresh_start)
        except StorageError as fault:
            if fresh_start is not None:
                fresh_start.on_start_failure(fault)
            raise
        finally:
            loop.remove_reader(signals)
    return 0


def _read_signals(descriptor: int, stopped: asyncio.Event) -> bool:
    """Read the signals that have come; returns whether the node must stop, by a signal or for another reason."""
    with suppress(BlockingIOError):
        if not TO_STOP.isdisjoint(os.read(descriptor, 4096)):
            stopped.set()
    return stopped.is_set()


async def _serve_until(
    stopped: asyncio.Event,
    config: NodeConfig,
    take: Callable[[bytes], None] | None,
    fresh_start: FreshStart | None,
) -> None:
    cluster_stops = asyncio.Event()
    if take is not None:
        try:
            loop = asyncio.get_running_loop()
            loop.add_reader(_STDIN, _read_stdin, loop, stopped, cluster_stops, take)
        except PermissionError:
            raise has_no_end() from None
    node = Node(config, on_fatal=partial(give_up, fresh_start))
    if not await _started(node, stopped):
        return
    gc.collect()
    gc.freeze()
    _logger.info(
        "event=node-started node=%d data=%s durability=%s",
        config.node_id,
        config.data_directory,
        config.text("log.durability"),
    )
    if fresh_start is not None:
        fresh_start.note_ready()
    _say_ready(node, config)
    await stopped.wait()
    await node.stop(with_cluster=cluster_stops.is_set())


async def _started(node: Node, stopped: asyncio.Event) -> bool:
    """Start the node; returns whether the start is complete. The node may wait for other nodes for long, and a signal
    may stop it meanwhile."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    return False


def _read_stdin(
    loop: asyncio.AbstractEventLoop,
    stopped: asyncio.Event,
    cluster_stops: asyncio.Event,
    take: Callable[[bytes], None],
) -> None:
    """The end of standard input stops the node; if all nodes stop, `CLUSTER_STOPS` comes before the signal to stop."""
    received = os.read(_STDIN, 4096)
    if not received:
        loop.remove_reader(_STDIN)
        take(received)
        stopped.set()
    elif CLUSTER_STOPS in received:
        cluster_stops.set()
    else:
        take(received)


def _say_ready(node: Node, config: NodeConfig) -> None:
    addresses = ",".join(_address(endpoint.host, endpoint.port) for endpoint in node.advertised)
    words = ["dev"] if config.is_dev else []
    if node.metrics_address is not None:
        words.append(f"metrics={_address(*node.metrics_address)}")
    say_ready(" ".join((f"tailrace ready: {addresses}", *words)))


def say_ready(line: str) -> None:
    """Write the ready line to stdout. If the reader of stdout has gone, or the disk is full, the node goes on."""
    try:
        print(line, flush=True)  # noqa: T201 - scripts wait for it
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # for buffered text that is flushed later
        os.close(null)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def give_up(fresh_start: FreshStart | None, fault: BaseException) -> None:
    """End this node. If its disk has failed, and no signal to stop has come, begin anew."""
    if fresh_start is not None and isinstance(fault, StorageError):
        fresh_start.begin(fault)
    stop_at_once(fault)


def stop_at_once(fault: BaseException) -> None:
    """End the process without closing the logs: after a broken invariant or a failed disk no mark of a clean stop may
    be written."""
    _logger.critical("event=node-failed action=stop", exc_info=fault)
    logging.shutdown()
    os._exit(_FAILED)
