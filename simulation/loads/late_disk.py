"""Disks of a node under load: a disk that ends the network with its power, and a disk that works later."""

from collections.abc import Callable
from random import Random

from tailrace.storage import Log
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.ports import flush_now


class DiskWithNetwork(SimulatedDisk):
    """A disk whose end is also the end of the network: answers that a handler sends after the end reach no client."""

    on_end: Callable[[], None] = staticmethod(lambda: None)

    def power_cut(self) -> None:
        super().power_cut()
        self.on_end()


class LateDisk:
    """A `server.ports.Disk` that does its work some milliseconds later, at once.

    `hasty` is a mutant: it reports a flush as done without doing the flush.
    """

    def __init__(self, clock: ManualClock, chance: Random, *, hasty: bool = False) -> None:
        self._clock = clock
        self._chance = chance
        self._hasty = hasty
        self._logs: dict[int, Log] = {}
        self._works: list[Callable[[], None]] = []
        self._on_done: list[Callable[[], None]] = []

    @property
    def is_idle(self) -> bool:
        return not self._on_done

    def flush(self, log: Log, on_done: Callable[[], None]) -> None:
        self._plan()
        self._logs[id(log)] = log
        self._on_done.append(on_done)

    def carry_out(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        self._plan()
        self._works.append(work)
        self._on_done.append(on_done)

    def _plan(self) -> None:
        if not self._on_done:
            self._clock.call_at(self._clock.monotonic_ms() + self._chance.randrange(8), self._run)

    def _run(self) -> None:
        logs, works, on_done = self._logs, self._works, self._on_done
        self._logs, self._works, self._on_done = {}, [], []
        for log in logs.values():
            # Metadata stay safe: a node without its topics would refuse to start, and nothing would be read.
            if self._hasty and "__cluster_metadata" not in log.directory:
                log.flushes.finish(log.flushes.begin())
            else:
                flush_now(log)
        for work in works:
            work()
        for tell in on_done:
            tell()
