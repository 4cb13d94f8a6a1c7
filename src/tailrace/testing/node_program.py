"""The program of a node in tests: `tailrace serve`, and faults that the test orders through standard input.

`python -m tailrace.testing.node_program serve --until-stdin-closes --config FILE`. An order is a line, `faults` and
JSON, with the faults that hold from then on (`NodeFaults`); the answer is a line of stdout. Without an order the node
runs as `tailrace serve` does.

Other options of `tailrace serve` are not known here: the parser of the command line costs 1 MB and 0.05 s, which every
node of a test would pay for.
"""

import errno
import fcntl
import json
import os
import shutil
import sys
import types
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from weakref import WeakSet

from tailrace.model.errors import KafkaError

ORDER: Final = b"faults "
DONE: Final = "tailrace faults: "
OPTIONS: Final = ("serve", "--until-stdin-closes", "--config")
"""The words of the command before the file."""
TEMPORARY: Final = ".temporary"
"""A file in the directory of a cluster that ends with its test. If the test is killed, the node that stops last removes
the directory."""
_MODULE: Final = "tailrace.testing.node_program"
_DISK_FAILURES: Final = "--disk-failures"
"""Stands before the number of failures when a node starts anew because of its disk."""
_REMOVALS: Final = 3
"""The removals of a directory in which threads of this process may still make a file."""
_LAST_ORDER: Final = "_TAILRACE_TEST_ORDER"


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """The faults of a node."""

    number: int = 0
    """The number of the order, which the answer repeats."""
    unreachable: Sequence[int] = ()
    """Ports of this machine to which nothing gets, and from which nothing comes, on connections of this node."""
    disk_is_full: bool = False

    @property
    def is_any(self) -> bool:
        """Whether the node has a fault."""
        return bool(self.unreachable) or self.disk_is_full

    def is_same_as(self, other: "NodeFaults") -> bool:
        """Whether the other order has the same faults."""
        return (list(self.unreachable), self.disk_is_full) == (list(other.unreachable), other.disk_is_full)

    def line(self) -> bytes:
        """The order as the node reads it."""
        return ORDER + json.dumps(asdict(self)).encode() + b"\n"


class HeldTransport:
    """Stands for the transport of a connection whose way is cut: what is written waits, and nothing is read.

    As with a real cut, neither side learns that the other side is gone, and what waits arrives when the cut ends.
    """

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self._waiting: list[bytes] = []
        if not transport.is_closing():
            transport.pause_reading()

    def writelines(self, buffers: Iterable[bytes | memoryview]) -> None:
        self._waiting += map(bytes, buffers)

    def abort(self) -> None:
        self.transport.abort()

    def release(self) -> None:
        if not self.transport.is_closing():
            self.transport.writelines(self._waiting)
            self.transport.resume_reading()


class CutConnections:
    """The connections that this node has opened, of which those to unreachable ports are held."""

    def __init__(self) -> None:
        self._connections: WeakSet[Any] = WeakSet()
        self._unreachable: frozenset[int] = frozenset()

    def watch(self, connection_type: type[Any]) -> None:
        """Take notice of every connection of this type from now on."""
        begin = connection_type.connection_made

        def connection_made(connection: Any, transport: Any) -> None:
            begin(connection, transport)
            self._connections.add(connection)
            self._hold_or_release(connection)

        connection_type.connection_made = connection_made

    def set_unreachable(self, ports: Iterable[int]) -> None:
        self._unreachable = frozenset(ports)
        for connection in list(self._connections):
            self._hold_or_release(connection)

    def _hold_or_release(self, connection: Any) -> None:
        transport = connection._transport
        is_held = isinstance(transport, HeldTransport)
        if connection.address.port in self._unreachable:
            if not is_held and transport is not None:
                connection._transport = HeldTransport(transport)
        elif is_held:
            connection._transport = transport.transport
            transport.release()


class FullDisk(types.ModuleType):
    """Stands for the module `os` in `storage.files` while the disk is full: no file grows."""

    def __init__(self) -> None:
        super().__init__("os")

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, content: Any) -> int:
        raise self._refusal()

    def writev(self, descriptor: int, buffers: Any) -> int:
        raise self._refusal()

    def pwrite(self, descriptor: int, content: Any, position: int) -> int:
        if position + len(content) > os.fstat(descriptor).st_size:
            raise self._refusal()
        return os.pwrite(descriptor, content, position)

    def statvfs(self, path: str) -> Any:
        real = os.statvfs(path)
        return os.statvfs_result([*real[:3], 0, 0, *real[5:]])

    @staticmethod
    def _refusal() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FaultyNode:
    """The faults of the node that runs in this process.

    The last order stands in the environment too: a node whose disk has failed starts anew in its process
    (`node.disk_failure`), with the faults that hold.
    """

    def __init__(self, leftover: "Leftover | None") -> None:
        self._cut = CutConnections()
        self._unread = b""
        self._leftover = leftover

    def install(self) -> None:
        """Make this process take orders. The modules of the node are imported here."""
        from tailrace.cli import quick_imports

        with quick_imports():
            from tailrace.net.connection import Connection
            from tailrace.node import process
        self._cut.watch(Connection)
        process.program = process.Program(_MODULE, self.take)
        if _LAST_ORDER in os.environ:
            self._obey(os.environ[_LAST_ORDER])

    def take(self, received: bytes) -> None:
        """Take the orders among these bytes of standard input. At its end the test is gone: a node of its directory has
        nothing to stop cleanly for, and a quorum of killed nodes would let it wait."""
        if not received and self._leftover is not None:
            self._leftover.end()
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            if line.startswith(ORDER):
                self._obey(line.removeprefix(ORDER).decode())

    def _obey(self, order: str) -> None:
        from tailrace.node import disk_failure
        from tailrace.storage import files

        faults = NodeFaults(**json.loads(order))
        os.environ[_LAST_ORDER] = order
        self._cut.set_unreachable(faults.unreachable)
        for module in (files, disk_failure):
            vars(module)["os"] = FullDisk() if faults.disk_is_full else os
        print(f"{DONE}{faults.number}", flush=True)  # noqa: T201 - the test waits for it


def main() -> None:
    """Run the node of the file on the command line, with orders, and exit: 0 after a clean stop, 1 with a line on
    stderr if the node cannot start, 2 for other words."""
    match tuple(sys.argv[1:]):
        case [*options, file] if tuple(options) == OPTIONS:
            failures = 0
        case [*options, file, name, number] if (*options, name) == (*OPTIONS, _DISK_FAILURES):
            failures = int(number)
        case _:
            sys.stderr.write(f"usage: python -m {_MODULE} {' '.join(OPTIONS)} FILE\n")
            sys.exit(2)
    FaultyNode(Leftover.of(Path(file).parent.parent)).install()
    try:
        code = _serve(file, failures)
    except (KafkaError, OSError) as fault:
        sys.stderr.write(f"tailrace: {getattr(fault, 'detail', fault)}\n")
        code = 1
    sys.exit(code)


class Leftover(NamedTuple):
    """The directory of a cluster that ends with its test, while a node runs in it."""

    directory: Path
    lock: int
    """The descriptor of a file that each node of the cluster has locked."""

    @classmethod
    def of(cls, directory: Path) -> "Leftover | None":
        """None for a directory that stays."""
        try:
            lock = os.open(directory / TEMPORARY, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        fcntl.flock(lock, fcntl.LOCK_SH)
        return cls(directory, lock)

    def end(self) -> NoReturn:
        """End the process at once, and remove the directory, unless another node runs in it: the lock of each node ends
        with its process."""
        with suppress(BlockingIOError):
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for _ in range(_REMOVALS):
                shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)


def _serve(file: str, disk_failures: int) -> int:
    """Run the node; the exit code. Raises KafkaError or OSError if the node cannot start."""
    from tailrace.node import process
    from tailrace.node.settings.config import load_config

    config = load_config(file=Path(file), environment=os.environ, flags={})
    command = [sys.executable, "-m", _MODULE, *OPTIONS, file, _DISK_FAILURES]
    return process.run(config, until_stdin_closes=True, command=command, disk_failures=disk_failures)


if __name__ == "__main__":
    main()
