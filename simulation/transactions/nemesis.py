"""Faults of a cluster with transactions: power, processes, leaders, the network, clocks, and clients that are zombies.

All random draws of a turn depend on its name and number (`harness.turns`), so that a failing run can be cut down.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from simulation.harness.nemesis import PowerNemesis
from simulation.harness.turns import Turn
from simulation.replicas.metadata import CONTROLLER
from simulation.replicas.node import ReplicaNode
from simulation.replicas.plan import ReplicaPlan
from simulation.transactions.brokers import TransactionBrokers
from simulation.transactions.script import CLIENTS, Conversation
from simulation.transactions.work import Instances
from tailrace.metadata.broker_commands import FenceBroker
from tailrace.metadata.commands import AlterReassignments, ElectLeaders, Reassignment
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, ElectionType, TopicPartition
from tailrace.testing.disk import PowerCut

_COORDINATED: Final = (TRANSACTION_STATE_TOPIC, GROUP_OFFSETS_TOPIC)


class TransactionNemesis(PowerNemesis[ReplicaNode, ReplicaPlan]):
    """Acts on brokers, and on the instances of transactional ids."""

    _cluster: TransactionBrokers

    def __init__(
        self, cluster: TransactionBrokers, ids: Sequence[Instances], only: Collection[Turn] | None = None
    ) -> None:
        """`only`: the turns that are taken before calm begins; None means every turn."""
        super().__init__(cluster, only)
        self._ids = ids

    def start(self) -> None:
        plan = self._cluster.plan
        self.repeat("crashes", plan.crashes_per_s, self._crash)
        self.repeat("blackouts", plan.blackouts_per_s, partial(self._black_out, shortest_ms=1))
        self.repeat("cuts", plan.cuts_within_steps_per_s, self._cut_within_a_step)
        self.repeat("partitions", plan.partitions_per_s, self._cut_network)
        self.repeat("fencings", plan.fencings_per_s, self._fence)
        self.repeat("moves", plan.moves_per_s, self._move)
        self.repeat("rivals", plan.rivals_per_s, self._start_rival)
        self.repeat("kills", plan.kills_per_s, self._kill_client)
        self.repeat("holds", plan.holds_per_s, self._hold_client)
        self.repeat("clocks", plan.clock_jumps_per_s, self._jump_clock)

    def _reached(self, state: str) -> None:
        self._world.sometimes[state] += 1
        self._world.note(f"{self.turn.name} {self.turn.number}: {state}")

    def _any_partition(self) -> TopicPartition:
        """A random partition, more often a partition of a coordinator."""
        names = sorted(self._cluster.names())
        coordinated = [name for name in names if name.topic in _COORDINATED]
        return self.choice(coordinated if self.chance(0.6, "coordinator") else names, "partition")

    def _leader(self) -> ReplicaNode:
        return self._cluster.leader_of(self._any_partition()) or self._any_node()

    # Brokers

    def _crash(self) -> None:
        """Cut the power of a broker, or kill only its process: then everything that was written is still there."""
        node = self._leader() if self.chance(0.6, "a leader") else self._any_node()
        if not node.is_up:
            return
        if self.chance(0.5, "kill"):
            try:
                node.files.sync_all("/")
            except PowerCut:  # it was to come within some step
                self._world.sometimes["power cut within a step"] += 1
            self._reached("broker killed")
        else:
            self._reached("power of a broker cut")
        self._crash_for(node, (50, 300, 1_000, 4_000), shortest_ms=1)

    def _fence(self) -> None:
        """Let the controller take a broker for dead that lives."""
        node = self._leader()
        broker = self._cluster.metadata.image.brokers.get(node.node_id)
        if broker is not None and not broker.fenced:
            self._reached("false alarm")
            self._cluster.metadata.decide(FenceBroker(broker_id=node.node_id, broker_epoch=broker.broker_epoch))

    def _move(self) -> None:
        """Make another replica the preferred leader; it leads if it can."""
        name, metadata = self._any_partition(), self._cluster.metadata
        state = metadata.image.partition(*name)
        assert state is not None
        replicas = (*state.replicas[1:], state.replicas[0])
        metadata.decide(AlterReassignments(reassignments=(Reassignment(topic_partition=name, replicas=replicas),)))
        metadata.decide(ElectLeaders(type=ElectionType.PREFERRED, partitions=(name,)))
        after = metadata.image.partition(*name)
        if after is not None and after.leader != state.leader:
            self._reached("coordinator moved" if name.topic in _COORDINATED else "leader moved")

    def _jump_clock(self) -> None:
        node = self._any_node()
        if node.is_up:
            self._reached("clock jumped")
            longest_ms = self.choice((500, 5_000, 3_600_000), "longest")
            node.clock.wall_error_ms += self.between(-longest_ms, longest_ms, "jump")

    # The network

    def _cut_network(self) -> None:
        network = self._cluster.network
        network.heal()
        brokers = list(self._cluster.nodes)
        ids = [CONTROLLER, *CLIENTS, *brokers]
        kind = self.choice(("split", "one way", "isolate a leader", "brokers apart"), "kind")
        if kind == "split":
            left = [host for host in ids if self.chance(0.5, f"side of {host}")]
            network.separate(left, [host for host in ids if host not in left])
        elif kind == "one way":
            network.block([self.choice(brokers, "from")], ids)
        elif kind == "isolate a leader":
            network.separate([self._leader().node_id], [host for host in ids if host not in CLIENTS])
        else:
            network.separate([self._leader().node_id], brokers)
        self._reached(f"partition: {kind}")
        self._world.after(self.between(100, 2_500, "healing"), network.heal)

    # Clients

    def _any_id(self) -> Instances:
        return self.choice(self._ids, "id")

    def _any_process(self) -> tuple[Instances, Conversation] | None:
        instances = self._any_id()
        processes = instances.processes
        return (instances, self.choice(processes, "process")) if processes else None

    def _start_rival(self) -> None:
        self._reached("rival")
        self._any_id().start()

    def _kill_client(self) -> None:
        if (found := self._any_process()) is not None:
            self._reached("client killed")
            found[0].kill(found[1])

    def _hold_client(self) -> None:
        if (found := self._any_process()) is not None:
            self._reached("client held")
            found[1].hold(self.between(1, self.choice((300, 2_000, 6_000), "longest"), "hold"))
