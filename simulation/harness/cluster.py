"""A cluster in a simulated world: the course of a run, and the faults that the run has had."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from simulation.harness.breach import Breach
from simulation.harness.network import Network
from simulation.harness.plan import RunPlan
from simulation.harness.turns import Turns
from simulation.harness.world import World

CONVERGES: Final = "faults end and everything converges"
"""The law that is broken if the cluster does not come to rest in calm."""


class Node(Protocol):
    """A member of a cluster."""

    @property
    def node_id(self) -> int: ...

    @property
    def is_up(self) -> bool: ...

    def start(self) -> None:
        """Come up with what is on the disk. The power may go meanwhile."""
        ...

    def crash(self) -> None:
        """The power goes now."""
        ...

    def describe(self) -> str:
        """The state of the node, for a failure's message."""
        ...


N = TypeVar("N", bound=Node)
P = TypeVar("P", bound=RunPlan)


class SimulatedCluster(ABC, Generic[N, P]):
    """Nodes by id, with a network, and turns of clients and of a nemesis. A subclass makes the nodes."""

    fault_states: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Kind of fault -> the states of the world that show the fault; the faults of the network are known."""
    nodes: dict[int, N]

    def __init__(self, seed: int, plan: P) -> None:
        self.world = World(seed)
        self.plan = plan
        self.network = Network(self.world, plan.network)
        self.nemesis = Turns(self.world)
        self._numbers = 0

    # The run

    def run(self) -> None:
        """Chaos, then calm; raises Breach if a law is broken, or if the cluster does not come to rest."""
        self._begin()
        self._pass_chaos()
        self.nemesis.stop()
        self._calm()
        self._converge()
        self._check_end()

    @abstractmethod
    def _begin(self) -> None:
        """Start the nodes, the clients and the faults."""

    def _pass_chaos(self) -> None:
        """Let clients work among the faults."""
        self.world.run(until_ms=self.world.now_ms + self.plan.chaos_ms)

    def _calm(self) -> None:
        """End all faults."""
        self.world.note("calm begins")
        self.network.calm()

    def _converge(self) -> None:
        """Wait until the cluster is at rest. Raises Breach."""
        if not self.world.run(until_ms=self.plan.chaos_ms + self.plan.converge_ms, stop=self._is_at_rest):
            raise Breach(CONVERGES, self.describe())

    @abstractmethod
    def _is_at_rest(self) -> bool:
        """Whether everything has happened that must happen in calm."""

    @abstractmethod
    def _check_end(self) -> None:
        """Look for what was acknowledged. Raises Breach."""

    # Nodes

    def leader(self) -> N | None:
        """The node that faults hit most often."""
        return None

    def revive(self, node: N) -> None:
        """Start this node, unless it was started meanwhile."""
        if not node.is_up:
            node.start()

    def revive_in(self, delay_ms: int, node: N) -> None:
        """Start this node after this time, unless it was started meanwhile."""
        self.world.after(delay_ms, partial(self.revive, node))

    def next_number(self) -> int:
        """A number that has not been given before, from 1 on."""
        self._numbers += 1
        return self._numbers

    # The measure of a run

    @property
    def faults(self) -> set[str]:
        """The kinds of fault that this run has had."""
        network, sometimes = self.network.counts, self.world.sometimes
        kinds = Counter(loss=network["lost"], duplication=network["duplicated"], delay=network["delayed"])
        kinds["partition"] = sum(count for state, count in sometimes.items() if state.startswith("partition: "))
        for kind, states in self.fault_states.items():
            kinds[kind] = sum(sometimes[state] for state in states)
        return {kind for kind, count in kinds.items() if count}

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough to be counted."""
        return self.world.events >= 2000 and len(self.faults) >= 3

    @property
    @abstractmethod
    def progress(self) -> str:
        """The progress of the cluster, in words."""

    def describe(self) -> str:
        """The state of all nodes, for a failure's message."""
        return "\n".join(
            [f"at {self.world.now_ms} ms, {self.progress}", *(node.describe() for node in self.nodes.values())]
        )
