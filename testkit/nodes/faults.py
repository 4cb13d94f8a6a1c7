"""Faults that a test plants: a process that is killed, a disk that reports work as done without doing it."""

from collections.abc import Callable

from tailrace.storage import Log
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.ports import ImmediateDisk


class Killed(Exception):
    """Raised when the process was killed; the disk still has power."""


def kill_at(operation: int) -> Callable[[int, str], None]:
    """A function for `SimulatedDisk.on_operation` that raises Killed at this operation."""

    def kill(number: int, _: str) -> None:
        if number == operation:
            raise Killed

    return kill


def lose_power(files: SimulatedDisk) -> None:
    """Cut the power, and start the disk again: what was not synced may be gone."""
    files.power_cut()
    files.reboot()


def tear_next_write(files: SimulatedDisk) -> None:
    """Let the next write fail halfway; the written part cannot be cut off."""
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)


class HastyDisk(ImmediateDisk):
    """A mutant: the disk reports a flush as done without doing the flush."""

    def flush(self, log: Log, on_done: Callable[[], None]) -> None:
        def pretend() -> None:
            log.flushes.finish(log.flushes.begin())
            on_done()

        self._call(pretend)


class IdleDisk(HastyDisk):
    """A mutant that reports other work as done, too, without doing it: a sync of many logs would cover the flushes."""

    def carry_out(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        self._call(on_done)
