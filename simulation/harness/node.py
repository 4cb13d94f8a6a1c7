"""A node on a disk that loses what was not synced: it starts, crashes, and comes back with what its disk has.

A crash is a power cut, also in the middle of a step, when the disk is set to lose power at some operation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from simulation.harness.network import Network
from simulation.harness.world import Action, Life, World
from tailrace.model.errors import StorageError
from tailrace.testing.disk import PowerCut, SimulatedDisk

_WALL_MS: Final = 1_700_000_000_000


class SimulatedTimer:
    """A call that has been scheduled."""

    def __init__(self, callback: Action) -> None:
        self.callback: Action | None = callback

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class SimulatedClock:
    """A `server.ports.Clock` of one life. Its wall clock is wrong, and jumps."""

    def __init__(self, world: World, guard: Callable[[Action], None], life: Life) -> None:
        self._world = world
        self._guard = guard
        self._life = life
        self.wall_error_ms = 0

    def now_ms(self) -> int:
        return _WALL_MS + self._world.now_ms + self.wall_error_ms

    def monotonic_ms(self) -> int:
        return self._world.now_ms

    def call_at(self, monotonic_ms: int, callback: Action) -> SimulatedTimer:
        timer = SimulatedTimer(callback)
        self._world.after(monotonic_ms - self._world.now_ms, lambda: self._guard(timer.run), self._life)
        return timer

    def call_soon(self, callback: Action) -> None:
        self._world.after(0, lambda: self._guard(callback), self._life)


class SimulatedNode(ABC):
    """A node with a disk and a clock. A subclass sets `files`, and builds the node at each start."""

    files: SimulatedDisk
    clock: SimulatedClock

    def __init__(self, world: World, network: Network) -> None:
        self.life = Life()
        self.life.is_over = True
        self._world = world
        self._network = network

    @property
    @abstractmethod
    def node_id(self) -> int: ...

    @property
    def is_up(self) -> bool:
        return not self.life.is_over

    def start(self) -> None:
        """Come up with what is on the disk. The power may go meanwhile."""
        assert not self.is_up, f"{self.node_id} is up"
        self.files.reboot()
        self._prepare()
        self.life = Life()
        self.clock = SimulatedClock(self._world, self.do, self.life)
        self.do(self._start)

    @abstractmethod
    def _prepare(self) -> None:
        """Change the disk, and forget the state of the last life."""

    @abstractmethod
    def _start(self) -> None:
        """Build the node, in its new life."""

    def crash(self) -> None:
        """The power goes now."""
        if self.is_up:
            self.life.is_over = True
            if self.files.has_power:
                self.files.power_cut()

    def do(self, action: Action) -> None:
        """Do something on this node, while the node is up. The action may end this life."""
        if not self.is_up:
            return
        try:
            self._turn(action)
        except PowerCut:
            self._world.sometimes["power cut within a step"] += 1
            self.crash()
        except StorageError:
            # Of a start or of the disk's thread: the process ends.
            self._world.sometimes["process ended by its disk"] += 1
            self.crash()

    def _turn(self, action: Action) -> None:
        """A turn of the node's event loop."""
        action()

    def _new_disk(self, directory: str, *, lying_sync: bool) -> SimulatedDisk:
        """An empty disk with this directory."""
        files = SimulatedDisk(self._world.between(0, 1 << 30, "disk seed", self.node_id), lying_sync=lying_sync)
        files.make_dirs(directory)
        files.sync_all("/")
        return files
