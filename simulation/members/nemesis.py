"""The faults of a group: processes that end or stand still, brokers that crash, the network that is cut."""

from collections.abc import Collection

from simulation.harness.nemesis import Nemesis
from simulation.harness.turns import Turn
from simulation.members.brokers import CoordinatorBroker, GroupBrokers
from simulation.members.plan import LONGEST_PAUSE_MS, MemberPlan
from simulation.members.process import GroupProcess

_MOST_PARTITIONS = 12


class MemberNemesis(Nemesis[CoordinatorBroker, MemberPlan]):
    """Acts on brokers and on processes."""

    def __init__(self, cluster: GroupBrokers, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns that are taken before calm begins; None means every turn."""
        super().__init__(cluster, only)
        self._group = cluster

    def start(self) -> None:
        plan = self._group.plan
        self.repeat("joins", plan.joins_per_s, self._join)
        self.repeat("kills", plan.kills_per_s, self._kill)
        self.repeat("closes", plan.closes_per_s, self._close)
        self.repeat("pauses", plan.pauses_per_s, self._pause)
        self.repeat("isolations", plan.isolations_per_s, self._isolate)
        self.repeat("moves", plan.moves_per_s, self._group.move_coordinator)
        self.repeat("crashes", plan.crashes_per_s, self._crash)
        self.repeat("growths", plan.growths_per_s, self._grow)

    def _count(self, what: str) -> None:
        self._world.sometimes[what] += 1

    def _join(self) -> None:
        processes = self._group.processes
        free = [node_id for node_id in self._group.slots if node_id not in processes or processes[node_id].is_over]
        if free:
            self._count("a process begins")
            self._group.begin_process(self.choice(free, "slot"))

    def _victim_process(self) -> GroupProcess | None:
        living = self._group.living
        return self.choice(living, "process") if living else None

    def _kill(self) -> None:
        process = self._victim_process()
        if process is not None:
            self._count("process killed")
            self._world.note(f"{process.name} is killed")
            process.kill()

    def _close(self) -> None:
        process = self._victim_process()
        if process is not None:
            self._count("process closed")
            self._world.note(f"{process.name} is closed")
            process.close()

    def _pause(self) -> None:
        process = self._victim_process()
        if process is not None:
            self._count("process paused")
            process.pause(self.between(200, LONGEST_PAUSE_MS, "pause"))

    def _isolate(self) -> None:
        """Heal the network, or cut a process off, one way or both."""
        process, network = self._victim_process(), self._group.network
        network.heal()
        kind = self.choice(("heal", "requests", "answers", "both"), "kind")
        if process is None or kind == "heal":
            return
        self._count("process isolated")
        self._world.note(f"{process.name} is isolated: {kind}")
        brokers = sorted(self._group.nodes)
        if kind != "answers":
            network.block([process.node_id], brokers)
        if kind != "requests":
            network.block(brokers, [process.node_id])

    def _crash(self) -> None:
        node = self._group.nodes[self._group.coordinator_id]
        if node.is_up:
            self._count("broker crashed")
            self._crash_for(node, (100, 1_000, 5_000))

    def _grow(self) -> None:
        topics = self._group.topics
        name = self.choice(sorted(topics.counts), "topic")
        if topics.counts[name] < _MOST_PARTITIONS:
            self._count("a topic grows")
            topics.grow(name, topics.counts[name] + 1)
