"""Faults of brokers that keep copies: power, flipped bits, the network, false alarms; and moves of replicas.

Random draws depend on the names of faults, not on turns: these worlds, and the seeds kept for them, are older than
turns.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from simulation.harness.turns import Turn, Turns
from simulation.replicas.brokers import ReplicaBrokers
from simulation.replicas.consumer import CONSUMER
from simulation.replicas.metadata import CONTROLLER, Subscriber
from simulation.replicas.node import DATA, ReplicaNode
from simulation.replicas.producer import CLIENT
from tailrace.metadata.broker_commands import FenceBroker
from tailrace.metadata.commands import AlterPartition, AlterReassignments, ElectLeaders, Reassignment
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from tailrace.testing.disk import PowerCut, SimulatedDisk


class ReplicaNemesis(Turns):
    """Acts on the brokers, and on the partitions of one topic."""

    def __init__(self, cluster: ReplicaBrokers, topic: str, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns that are taken before calm begins; None means every turn."""
        super().__init__(cluster.world, only)
        self._cluster = cluster
        self._topic = topic
        cluster.metadata.before_decision = self._refuse_growth

    def start(self) -> None:
        plan = self._cluster.plan
        self.repeat("crashes", plan.crashes_per_s, self._crash)
        self.repeat("blackouts", plan.blackouts_per_s, self._black_out)
        self.repeat("cuts", plan.cuts_within_steps_per_s, self._cut_within_a_step)
        self.repeat("partitions", plan.partitions_per_s, self._partition)
        self.repeat("fencings", plan.fencings_per_s, self._fence)
        self.repeat("elections", plan.elections_per_s, self._elect)
        self.repeat("reassignments", plan.reassignments_per_s, self._reassign)
        self.repeat("damages", plan.damages_per_s, self._damage)

    def any_node(self, name: str) -> ReplicaNode:
        """A random broker, by the chances of the fault with this name."""
        nodes = self._cluster.nodes
        return nodes[self._world.choice(sorted(nodes), "node", name)]

    def _any_partition(self, name: str) -> TopicPartition:
        last = self._cluster.plan.partitions - 1
        return TopicPartition(self._topic, self._world.between(0, last, "partition", name))

    # Power and disks

    def _crash(self) -> None:
        node = self.any_node("crash")
        if self._world.chance(0.4, "crash", "leader"):
            node = self._cluster.leader_of(self._any_partition("crash")) or node
        if node.is_up and (self._cluster.plan.is_flushed or self._cluster.has_all_in_sync()):
            self._world.sometimes["crash"] += 1
            self._world.sometimes["crash that loses what is in the page cache"] += not self._cluster.plan.is_flushed
            self._world.sometimes["leader crashed"] += any(partition.is_leader for partition in node.table)
            node.crash()
            longest_ms = self._world.choice((50, 1000, 4000), "down", "longest")
            self._cluster.revive_in(self._world.between(1, longest_ms, "down", node.node_id), node)

    def _black_out(self) -> None:
        """The power goes everywhere at once: only what was synced survives."""
        self._world.sometimes["blackout"] += 1
        for node in self._cluster.nodes.values():
            node.crash()
            self._cluster.revive_in(self._world.between(1, 500, "down", node.node_id), node)

    def _damage(self) -> None:
        """Flip a bit of one copy, whether its broker is up or down. Every copy is in sync at that time, so another copy
        has every record."""
        up = [node for node in self._cluster.nodes.values() if node.is_up]
        is_hurt = any(node.failures.lost_replicas or node.repairs.in_repair for node in up)
        # With a single copy in sync this may be the damaged copy: an explicit election is needed then.
        if is_hurt or self._cluster.plan.min_in_sync < 2 or not self._cluster.has_all_in_sync():
            return
        node = self.any_node("damage")
        if self._world.chance(0.4, "damage", "found"):
            copy = node.table.find(*self._any_partition("found"))
            if copy is not None:
                self._world.sometimes["damage found"] += 1
                self._cluster.laws.damaged.add((node.node_id, copy.topic_partition))
                copy.log.condemn("a bit has flipped")
            return
        # As a kill of its process: a power cut may besides take the note of how far the log was flushed.
        try:
            node.files.sync_all("/")
        except PowerCut:  # it was to come within some step
            node.crash()
            return
        if self._world.chance(0.5, "damage", "blackout"):
            self._black_out()
        else:
            node.crash()
            self._cluster.revive_in(self._world.between(1, 2000, "down", node.node_id), node)
        name = self._any_partition("damage")
        self._cluster.laws.damaged.add((node.node_id, name))
        if flip_some_bit(node.files, f"{DATA}/{name}", lambda most: self._world.between(0, most, "flip", name)):
            self._world.sometimes["bit flipped"] += 1

    def _cut_within_a_step(self) -> None:
        node = self.any_node("cut")
        ahead = self._world.between(1, 20, "operations", node.node_id)
        node.files.cut_power_at(node.files.operations + ahead, after=self._world.chance(0.5, "after", node.node_id))

    # Network and controller

    def _partition(self) -> None:
        self._cluster.network.heal()
        ids = [CONTROLLER, CLIENT, CONSUMER, *self._cluster.nodes]
        kinds = ("heal", "split", "one way", "isolate leader", "silence followers")
        kind = self._world.choice(kinds, "kind", "partition")
        if kind == "split":
            left = [node_id for node_id in ids if self._world.chance(0.5, "side", node_id)]
            self._cluster.network.separate(left, [node_id for node_id in ids if node_id not in left])
        elif kind == "one way":
            self._cluster.network.block([self._world.choice(list(self._cluster.nodes), "from", "partition")], ids)
        elif (
            kind == "isolate leader" and (leader := self._cluster.leader_of(self._any_partition("cut off"))) is not None
        ):
            self._cluster.network.separate([leader.node_id], [node_id for node_id in ids if node_id != CLIENT])
        elif (
            kind == "silence followers"
            and (leader := self._cluster.leader_of(self._any_partition("silent"))) is not None
        ):
            self._cluster.network.separate(
                [leader.node_id], self._cluster.nodes
            )  # the controller is heard on both sides
        self._world.sometimes[f"partition: {kind}"] += 1
        self._world.after(self._world.between(100, 2500, "healing", kind), self._cluster.network.heal)

    def silence_followers(self) -> None:
        """Let the leader of the first partition reach only the controller from now on, and no other broker."""
        leader = self._cluster.leader_of(TopicPartition(self._topic, 0))
        assert leader is not None
        self._cluster.network.separate([leader.node_id], self._cluster.nodes)

    def _refuse_growth(self, leader: Subscriber, command: Any) -> None:
        """Refuse a proposal to add a replica: fence the replica just before. When another copy of the proposal comes,
        the replica lags."""
        if not (self._cluster.plan.refused_growth and self.is_chaos and isinstance(command, AlterPartition)):
            return
        for change in command.changes:
            topic = self._cluster.metadata.image.topic_by_id(change.topic_id)
            known = () if topic is None else topic.partitions[change.partition].in_sync_replicas
            for member in change.in_sync_replicas:
                broker = self._cluster.metadata.image.brokers.get(member.broker_id)
                is_new = member.broker_id not in (leader.node_id, *known)
                if (
                    is_new
                    and broker
                    and broker.is_alive
                    and self._world.chance(self._cluster.plan.refused_growth, "refused", member.broker_id)
                ):
                    self._cluster.network.separate([leader.node_id], [member.broker_id])
                    self._cluster.metadata.decide(
                        FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
                    )
                    self._repeat_when_alive(broker.broker_id, command)
                    return

    def _repeat_when_alive(self, broker_id: BrokerId, command: AlterPartition) -> None:
        broker = self._cluster.metadata.image.brokers.get(broker_id)
        if broker is not None and not broker.is_alive and self.is_chaos:
            self._world.after(10, partial(self._repeat_when_alive, broker_id, command))
            return
        self._world.sometimes["refused proposal again"] += 1
        self._cluster.metadata.decide(command)
        self._cluster.network.heal()

    def _fence(self) -> None:
        """Let the controller take a broker for dead that lives."""
        node = self.any_node("fence")
        broker = self._cluster.metadata.image.brokers.get(node.node_id)
        if broker is not None and not broker.fenced:
            self._world.sometimes["false alarm"] += 1
            self._cluster.metadata.decide(FenceBroker(broker_id=node.node_id, broker_epoch=broker.broker_epoch))

    def _elect(self) -> None:
        name = self._any_partition("elect")
        self._world.sometimes["election asked for"] += 1
        self._cluster.metadata.decide(ElectLeaders(type=ElectionType.PREFERRED, partitions=(name,)))

    def _reassign(self) -> None:
        name = self._any_partition("reassign")
        ids = sorted(self._cluster.nodes)
        turn = self._world.between(0, len(ids) - 1, "turn", name)
        replicas = tuple(BrokerId(node_id) for node_id in (ids[turn:] + ids[:turn])[:3])
        self._world.sometimes["reassignment"] += 1
        self._cluster.metadata.decide(
            AlterReassignments(reassignments=(Reassignment(topic_partition=name, replicas=replicas),))
        )


def flip_some_bit(files: SimulatedDisk, directory: str, draw: Callable[[int], int]) -> bool:
    """Flip one bit of one file in a directory of a broker that is down; whether there was such a file. `draw` returns a
    number from 0 up to its argument. Segments that are not written any more are left out: only a scrubber finds such
    damage, and these brokers have no scrubber.
    """
    files.reboot()
    try:
        names = files.list_dir(directory) if files.exists(directory) else []
        at_rest = [name for name in names if name.endswith(".log")][:-1]
        paths = [f"{directory}/{name}" for name in names if name not in at_rest]
        paths = [path for path in paths if files.size_of(path)]
        if paths:
            path = paths[draw(len(paths) - 1)]
            files.flip_bit(path, draw(files.size_of(path) - 1), draw(7))
        return bool(paths)
    finally:
        files.has_power = False
