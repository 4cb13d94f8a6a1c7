"""Runs a story against a disk whose power is cut at each operation in turn, and checks the disk afterwards.

Each run of a story has the same operations of the disk, so an operation has a number. The power can go before or after
the operation, or the process alone can be killed there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tailrace.model.errors import KafkaError
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.nodes.faults import Killed, kill_at

ROOT = "/data"


class ToldStory(Protocol):
    """A story: it works on a disk, and remembers what was acknowledged."""

    def tell(self) -> None:
        """Run the whole story, from an empty directory on."""
        ...

    def verify(self) -> None:
        """Open the files again, and look for what was acknowledged. Raises AssertionError, or what a start raises."""
        ...


S = TypeVar("S", bound=ToldStory)


@dataclass(frozen=True, slots=True)
class PowerCuts(Generic[S]):
    """Runs one story again and again."""

    story: Callable[[SimulatedDisk], S]

    def operations(self, *, least: int = 20) -> range:
        """The numbers of the operations of the whole story. Raises AssertionError if there are not more than `least`:
        then too few cuts would be tried."""
        disk = SimulatedDisk.with_directory(ROOT, 0)
        first = disk.operations + 1
        self.story(disk).tell()
        assert disk.operations > first + least, f"{disk.operations - first} operations"
        return range(first, disk.operations + 1)

    def cut(self, operation: int, *, after: bool, seed: int, lying_sync: bool = False) -> tuple[S, SimulatedDisk]:
        """Run the story until the power is cut before or after this operation, and switch the power on again."""
        disk = SimulatedDisk.with_directory(ROOT, seed, lying_sync=lying_sync)
        disk.cut_power_at(operation, after=after)
        story = self.story(disk)
        try:
            story.tell()
        except PowerCut:
            disk.reboot()
            return story, disk
        raise AssertionError(f"no power cut came at operation {operation}")

    def kill(self, operation: int, *, seed: int) -> tuple[S, SimulatedDisk]:
        """Run the story until the process is killed at this operation: the disk has everything that was written."""
        disk = SimulatedDisk.with_directory(ROOT, seed)
        story = self.story(disk)
        disk.on_operation = kill_at(operation)
        try:
            story.tell()
        except Killed:
            disk.on_operation = None
            return story, disk
        raise AssertionError(f"no kill came at operation {operation}")

    def cut_and_verify(self, operation: int, *, after: bool = False, seed: int, lying_sync: bool = False) -> S:
        """Cut the power at this operation, and verify. Raises the exceptions of the story, with a note of the
        operation."""
        story, disk = self.cut(operation, after=after, seed=seed, lying_sync=lying_sync)
        with noted(disk, operation, f"power cut, after={after}, seed={seed}"):
            story.verify()
        return story

    def losses(self, *, after: bool = False, lying_sync: bool = False, seeds: int = 1) -> Iterator[int]:
        """The operations at which a cut loses something, in the order of the search."""
        for seed in range(seeds):
            for operation in self.operations():
                try:
                    self.cut_and_verify(operation, after=after, seed=1000 * seed + operation, lying_sync=lying_sync)
                except (AssertionError, KafkaError):
                    yield operation


@contextmanager
def noted(disk: SimulatedDisk, operation: int, what: str) -> Iterator[None]:
    """Add the operation of the disk to an exception, as a note."""
    try:
        yield
    except Exception as fault:
        fault.add_note(f"{what}, at {disk.history[operation - 1]}")
        raise
