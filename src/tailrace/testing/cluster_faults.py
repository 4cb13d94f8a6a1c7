"""The faults of all nodes of a cluster: the pairs of nodes with a cut between them, and the full disks."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count, product

from tailrace.testing.node_process import ClusterError, NodeProcess
from tailrace.testing.node_program import NodeFaults

_order_numbers = count(1)


@dataclass(frozen=True)
class ClusterFaults:
    """The faults that hold at a time."""

    cuts: frozenset[frozenset[int]] = frozenset()
    full: frozenset[int] = frozenset()

    def with_cut(self, node: int, others: Iterable[int]) -> "ClusterFaults":
        """Faults with a further cut of the network, between this node and the others."""
        return replace(self, cuts=self.cuts | _pairs([node], others))

    def healed(self, nodes: Collection[int]) -> "ClusterFaults":
        """Faults without a cut; with one node without the cuts of this node, with several nodes without the cuts
        among these nodes."""
        if not nodes:
            return replace(self, cuts=frozenset())
        if len(nodes) == 1:
            return replace(self, cuts=frozenset(pair for pair in self.cuts if not pair.issuperset(nodes)))
        return replace(self, cuts=self.cuts - _pairs(nodes, nodes))

    def order(self, nodes: Mapping[int, NodeProcess]) -> None:
        """Tell the nodes whose faults have changed, and return when these faults hold.

        Raises ClusterError, and changes no fault, if a node takes no orders.
        """
        changed = {node_id: self._of(node_id, nodes) for node_id in nodes}
        changed = {
            node_id: faults for node_id, faults in changed.items() if not nodes[node_id].faults.is_same_as(faults)
        }
        for node_id in changed:
            nodes[node_id].check_takes_orders()
        for node_id, faults in changed.items():
            nodes[node_id].order(faults)
        for node_id in changed:
            nodes[node_id].wait_until_obeyed()

    def _of(self, node: int, nodes: Mapping[int, NodeProcess]) -> NodeFaults:
        cut_off = sorted(other for pair in self.cuts if node in pair for other in pair - {node})
        unreachable = [port for other in cut_off for port in nodes[other].ports]
        return NodeFaults(number=next(_order_numbers), unreachable=unreachable, disk_is_full=node in self.full)


def others_of(node: int, others: Collection[int], known: Collection[int]) -> list[int]:
    """The nodes to cut off from this node: the given nodes, or all other nodes. Raises ClusterError."""
    if len(known) == 1:
        raise ClusterError("a cluster of one node has no network between nodes: say Cluster(brokers=3)")
    if node in others:
        raise ClusterError(f"cut{(node, *others)}: a node has no network to itself; say two nodes")
    return list(others) or [other for other in known if other != node]


def _pairs(some: Iterable[int], others: Iterable[int]) -> frozenset[frozenset[int]]:
    return frozenset(frozenset(pair) for pair in product(some, others) if pair[0] != pair[1])
