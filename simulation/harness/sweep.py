"""The sums over many seeds: how many count, what failed, and which states were reached."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, Self, TypeVar


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


S = TypeVar("S", bound=Sweep)


def code_version(sources: Iterable[Path]) -> str:
    """Of these files: seeds that ran with others say nothing."""
    digest = blake2b(digest_size=8)
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def load_sweep(kind: type[S], path: Path, code: str) -> S:
    """The results in a file; none if there is no file, or if they are those of another code."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    if stored.pop("code", None) != code:
        return kind()
    return kind(**stored | {"sometimes": Counter(stored["sometimes"]), "faults": Counter(stored["faults"])})


def save_sweep(path: Path, total: Sweep, code: str) -> None:
    """Replace the file by these results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"code": code, **total.as_dict()}, indent=1))
    part.replace(path)


def _listed(counts: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts)
