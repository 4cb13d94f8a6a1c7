"""Faults that several worlds have: nodes that crash, the power that goes, the network that is cut."""

from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from simulation.harness.cluster import Node, P, SimulatedCluster
from simulation.harness.turns import Turn, Turns
from tailrace.testing.disk import SimulatedDisk

N = TypeVar("N", bound=Node)


class Nemesis(Turns, Generic[N, P]):
    """Acts on a cluster from the start of a run until `stop`."""

    def __init__(self, cluster: SimulatedCluster[N, P], only: Collection[Turn] | None = None) -> None:
        """`only`: the turns that are taken before calm begins; None means every turn."""
        super().__init__(cluster.world, only)
        self._cluster = cluster

    def _any_node(self, what: str = "node") -> N:
        nodes = self._cluster.nodes
        return nodes[self.choice(sorted(nodes), what)]

    def _victim(self) -> N:
        """A random node, more often the leader."""
        node = self._any_node()
        return (self._cluster.leader() or node) if self.chance(0.3, "the leader") else node

    def _crash_for(self, node: N, longest_ms: Sequence[int], *, shortest_ms: int = 10) -> None:
        """Crash the node, and start it again later: at most after a time that the world draws from these times."""
        node.crash()
        self._cluster.revive_in(self.between(shortest_ms, self.choice(longest_ms, "longest"), "down"), node)

    def _partition(self, *, side: str = "side {}", source: str = "from") -> None:
        """Heal the network, or split the network, silence a node, or cut off the leader.

        `side` and `source` name the draws, so that the seeds of a world stay the runs that they were.
        """
        network, ids = self._cluster.network, sorted(self._cluster.nodes)
        network.heal()
        kind = self.choice(("heal", "split", "one way", "isolate leader"), "kind")
        if kind == "split":
            left = [node_id for node_id in ids if self.chance(0.5, side.format(node_id))]
            network.separate(left, [node_id for node_id in ids if node_id not in left])
        elif kind == "one way":
            network.block([self.choice(ids, source)], ids)
        elif kind == "isolate leader" and (leader := self._cluster.leader()) is not None:
            network.separate([leader.node_id], ids)
        self._world.sometimes[f"partition: {kind}"] += 1
        self._world.note(f"partition: {kind}")


class NodeWithDisk(Node, Protocol):
    """A node that loses what its disk has not synced."""

    @property
    def files(self) -> SimulatedDisk: ...


D = TypeVar("D", bound=NodeWithDisk)


class PowerNemesis(Nemesis[D, P]):
    """A nemesis of nodes with disks."""

    def _black_out(self, shortest_ms: int) -> None:
        """The power goes everywhere at once: only what was synced survives."""
        self._world.sometimes["blackout"] += 1
        for node_id, node in self._cluster.nodes.items():
            node.crash()
            self._cluster.revive_in(self.between(shortest_ms, 500, f"down {node_id}"), node)

    def _cut_within_a_step(self) -> None:
        """The power of a node goes before or after one of its next operations."""
        files = self._any_node().files
        ahead = self.between(1, 20, "operations")
        files.cut_power_at(files.operations + ahead, after=self.chance(0.5, "after"))
