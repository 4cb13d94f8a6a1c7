"""The sums over many seeds: how many count, what failed, and which states were reached."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self


@dataclass
class Sweep:
    """The results of the seeds so far. A subclass names the states that a few hundred of them must reach."""

    states: ClassVar[tuple[str, ...]] = ()

    seeds: int = 0
    counted: int = 0
    """Those that were eventful enough."""
    events: int = 0
    seconds: float = 0.0
    """By the clock on the wall, all processes together; set by the host."""
    failures: list[str] = field(default_factory=list)
    """In words."""
    faults: Counter[str] = field(default_factory=Counter)
    """In how many seeds there was such a fault."""
    sometimes: Counter[str] = field(default_factory=Counter)
    """The number of times that each state was reached."""

    def add(self, other: Self) -> None:
        """These seeds too."""
        self.seeds += other.seeds
        self.counted += other.counted
        self.events += other.events
        self.failures += other.failures
        self.faults.update(other.faults)
        self.sometimes.update(other.sometimes)

    def as_dict(self) -> dict[str, object]:
        """By the names of the fields, for a file."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def per_minute(self) -> float:
        return self.seeds / self.seconds * 60 if self.seconds else 0.0

    @property
    def missed(self) -> list[str]:
        """States that should have been reached and were not."""
        return [state for state in self.states if not self.sometimes[state]]

    @property
    def work(self) -> str:
        """The amount of work, in words."""
        return f"{self.events} events"

    def summary(self) -> str:
        """A few lines for people."""
        outcome = f"{self.seeds} seeds, {self.counted} count, {len(self.failures)} failed"
        lines = [*self.failures, f"{outcome}; {self.work}, {self.per_minute:.0f} seeds per minute"]
        if self.faults:
            lines.append(f"seeds with faults: {_listed(self.faults.most_common())}")
        lines.append(f"reached, how often: {_listed(sorted(self.sometimes.items()))}")
        lines.append(f"not reached: {', '.join(self.missed) or 'nothing'}")
        return "\n".join(lines)


def _listed(counts: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts)
