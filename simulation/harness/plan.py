"""The plan of a run, drawn from its seed: sizes, and the rates of faults."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from simulation.harness.network import NetworkFaults
from simulation.harness.world import World

T = TypeVar("T")


class Swarm:
    """The chances of a plan: each kind of fault is there or not, more or less, by the seed (swarm testing)."""

    def __init__(self, seed: int) -> None:
        self._world = World(seed)

    def some(self, name: str, most: float) -> float:
        """A rate of up to `most`; in two plans of five the rate is 0."""
        return most * self._world.draw("size", name) if self.chance(0.6, name) else 0.0

    def chance(self, rate: float, name: str) -> bool:
        return self._world.chance(rate, "swarm", name)

    def choice(self, options: Sequence[T], name: str) -> T:
        return self._world.choice(options, "swarm", name)

    def network(
        self, *, loss: float = 0.0, duplication: float = 0.0, slow: float = 0.0, slow_delay_ms: int = 400
    ) -> NetworkFaults:
        """Faults of the network, each with a rate of up to `most`."""
        return NetworkFaults(
            loss=self.some("loss", loss),
            duplication=self.some("duplication", duplication),
            slow=self.some("slow", slow),
            slow_delay_ms=slow_delay_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The fields that every plan has. Rates in a second (`..._per_s`) are averages; the other fields are from 0 to
    1."""

    simpler: ClassVar[tuple[tuple[str, float], ...]] = (
        ("network.loss", 0.0),
        ("network.duplication", 0.0),
        ("network.slow", 0.0),
    )
    """Pairs of a field (or `part.field`) and a simpler value: a plan with this value has one kind of fault, node or
    client less."""

    network: NetworkFaults = field(default_factory=NetworkFaults)
    chaos_ms: int = 12_000
    converge_ms: int = 30_000

    def simplified(self, path: str, value: float) -> Self | None:
        """This plan with another value of a field; None if the field has no more than `value` already."""
        of, _, name = path.rpartition(".")
        part: Any = getattr(self, of) if of else self
        if getattr(part, name) <= value:
            return None
        changed: Any = replace(part, **{name: value})
        return replace(self, **{of: changed}) if of else changed
