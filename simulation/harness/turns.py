"""The turns of a nemesis and of clients: a turn has a name and a number, and all its random draws depend on this pair.
So a turn that is left out changes nothing about the other turns, and a failing run can be cut down to the few turns
that lead to the failure.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from simulation.harness.world import World

T = TypeVar("T")


class Turn(NamedTuple):
    """A crash, a write or another action of a run, with its number among the actions of this name.

    Keys of random draws contain the text of a turn: another name of this class would change the run of every seed.
    """

    name: str
    number: int


class Turns:
    """Takes turns from the start of a run until `stop`; clients go on after that."""

    def __init__(self, world: World, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns that are taken before calm begins; None means every turn."""
        self.taken: list[Turn] = []
        self.turn = Turn("", 0)
        """The turn that is being taken."""
        self.is_chaos = True
        self._world = world
        self._only = only

    def start(self) -> None:
        """Begin with the faults, as often as the plan says."""

    def stop(self) -> None:
        """End the faults."""
        self.is_chaos = False

    def repeat(self, name: str, per_s: float, action: Callable[[], None], *, in_calm: bool = False) -> None:
        """Take turns of this kind, so many in a second."""
        if per_s <= 0:
            return
        mean_ms = 1000 / per_s

        def take(number: int) -> None:
            if not self.is_chaos and not in_calm:
                return
            self.turn = Turn(name, number)
            if not self.is_chaos:
                action()
            elif self._only is None or self.turn in self._only:
                self.taken.append(self.turn)
                action()
            wait(number + 1)

        def wait(number: int) -> None:
            self._world.after(self._world.between(1, round(2 * mean_ms), "pace", name), lambda: take(number))

        wait(0)

    # Chances of this turn

    def chance(self, rate: float, what: str) -> bool:
        return self._world.chance(rate, what, self.turn)

    def between(self, low: int, high: int, what: str) -> int:
        return self._world.between(low, high, what, self.turn)

    def choice(self, options: Sequence[T], what: str) -> T:
        return self._world.choice(options, what, self.turn)
