"""The faults of all nodes of a cluster: the pairs of nodes with a cut between them, and the full disks."""

from collections.abc import Collection, Iterable, Mapping
from itertools import product

from tailrace.testing.node_process import ClusterError, NodeProcess
from tailrace.testing.node_program import NodeFaults


class ClusterFaults:
    """The faults that hold now."""

    def __init__(self) -> None:
        self._cuts: set[frozenset[int]] = set()
        self._full: set[int] = set()
        self._orders = 0

    def cut(self, node: int, others: Iterable[int]) -> None:
        """Cut the network between this node and the others."""
        self._cuts |= _pairs([node], others)

    def heal(self, nodes: Collection[int]) -> None:
        """End every cut; with one node all cuts of this node, with several nodes the cuts among them."""
        if not nodes:
            self._cuts.clear()
        elif len(nodes) == 1:
            self._cuts = {pair for pair in self._cuts if not pair.issuperset(nodes)}
        else:
            self._cuts -= _pairs(nodes, nodes)

    def fill_disks(self, nodes: Iterable[int]) -> None:
        self._full.update(nodes)

    def free_disks(self, nodes: Iterable[int]) -> None:
        self._full.difference_update(nodes)

    def order(self, nodes: Mapping[int, NodeProcess]) -> None:
        """Tell the nodes whose faults have changed, and return when the faults hold. Raises ClusterError."""
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
        self._orders += 1
        cut_off = sorted(other for pair in self._cuts if node in pair for other in pair - {node})
        unreachable = [port for other in cut_off for port in nodes[other].ports]
        return NodeFaults(number=self._orders, unreachable=unreachable, disk_is_full=node in self._full)


def others_of(node: int, others: Collection[int], known: Collection[int]) -> list[int]:
    """The nodes to cut off from this node: the given nodes, or all other nodes. Raises ClusterError."""
    if len(known) == 1:
        raise ClusterError("a cluster of one node has no network between nodes: say Cluster(brokers=3)")
    if node in others:
        raise ClusterError(f"cut{(node, *others)}: a node has no network to itself; say two nodes")
    return list(others) or [other for other in known if other != node]


def _pairs(some: Iterable[int], others: Iterable[int]) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in product(some, others) if pair[0] != pair[1]}
