"""Messages between hosts: late, lost, twice, in another order, or cut off one way or both."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from simulation.harness.world import World

Deliver = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """The faults of the network. Rates from 0 to 1, times in ms."""

    loss: float = 0.0
    duplication: float = 0.0
    min_delay_ms: int = 1
    max_delay_ms: int = 3
    slow: float = 0.0
    """The rate of messages that take up to `slow_delay_ms` instead."""
    slow_delay_ms: int = 400


class Network:
    """Delivers messages or loses them. Each message has its own delay, so any message may overtake any other."""

    def __init__(self, world: World, faults: NetworkFaults) -> None:
        self._world = world
        self.faults = faults
        self._blocked: set[tuple[int, int]] = set()
        self.counts: Counter[str] = Counter()

    def block(self, sources: Iterable[int], destinations: Iterable[int]) -> None:
        """Nothing passes from `sources` to `destinations`; the way back stays as it is."""
        targets = list(destinations)
        self._blocked.update((source, target) for source in sources for target in targets if source != target)

    def separate(self, left: Iterable[int], right: Iterable[int]) -> None:
        """Nothing passes either way."""
        these, other = list(left), list(right)
        self.block(these, other)
        self.block(other, these)

    def heal(self) -> None:
        """Every node reaches every other."""
        self._blocked.clear()

    def calm(self) -> None:
        """No loss, no duplicates, no long delays any more."""
        self.heal()
        self.faults = replace(self.faults, loss=0.0, duplication=0.0, slow=0.0)

    def passes(self, source: int, destination: int) -> bool:
        """Whether anything can pass this way now."""
        return (source, destination) not in self._blocked

    def send(self, source: int, destination: int, deliver: Deliver) -> None:
        """Call `deliver` later: once, twice or never."""
        link = (source, destination)
        faults = self.faults
        if link in self._blocked or self._world.chance(faults.loss, "loss", link):
            self.counts["lost"] += 1
            return
        copies = 2 if self._world.chance(faults.duplication, "duplication", link) else 1
        self.counts["sent"] += 1
        self.counts["duplicated"] += copies - 1
        for _ in range(copies):
            self._world.after(self._delay_ms(link), lambda: self._arrive(link, deliver))

    def _delay_ms(self, link: tuple[int, int]) -> int:
        faults = self.faults
        if self._world.chance(faults.slow, "slow", link):
            self.counts["delayed"] += 1
            return self._world.between(faults.max_delay_ms, faults.slow_delay_ms, "slowness", link)
        return self._world.between(faults.min_delay_ms, faults.max_delay_ms, "delay", link)

    def _arrive(self, link: tuple[int, int], deliver: Deliver) -> None:
        if link in self._blocked:
            self.counts["lost"] += 1
        else:
            deliver()
