"""A quorum in a simulated world: its nodes, its clients, and what must hold in the end."""

from collections.abc import Collection
from types import MappingProxyType

from simulation.harness.breach import Breach
from simulation.harness.cluster import SimulatedCluster
from simulation.harness.turns import Turn
from simulation.raft.host import RaftHost
from simulation.raft.invariants import RaftInvariants
from simulation.raft.nemesis import RaftNemesis
from simulation.raft.plan import SMALL, RaftPlan
from simulation.raft.state import key_of
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig
from tailrace.raft.voters import Voter, VoterSet


class RaftCluster(SimulatedCluster[RaftHost, RaftPlan]):
    """Voters from id 1 on, then the observers."""

    fault_states = MappingProxyType(
        {
            "crash": ("crash",),
            "crash between two effects": ("crash between two effects",),
            "damage": ("damaged snapshot refused",),
            "torn write": ("a write was torn",),
            "clock jump": ("clock jump",),
            "failing disk": ("the disk of a leader fails every write", "the disk of a follower fails every write"),
            "full disk": ("the disk of a leader is full", "the disk of a follower is full"),
            "loss of a disk": ("disk lost",),
        }
    )

    def __init__(
        self, seed: int, plan: RaftPlan, only: Collection[Turn] | None = None, *, config: RaftConfig = SMALL
    ) -> None:
        """`only`: the turns of the nemesis that are taken; None means every turn."""
        super().__init__(seed, plan)
        self.laws = RaftInvariants()
        ids = range(1, plan.voters + plan.observers + 1)
        initial = VoterSet.of(Voter(key_of(node_id)) for node_id in ids[: plan.voters])
        self.nodes = {
            node_id: RaftHost(
                self.world,
                self.network,
                key=key_of(node_id),
                initial_voters=initial,
                config=config,
                times=plan.times,
                watcher=self.laws,
                find=self._find,
            )
            for node_id in ids
        }
        self.laws.hosts = list(self.nodes.values())
        self.nemesis = RaftNemesis(self, only)
        self._before = 0
        """The end of the committed records when calm began."""

    # The run

    def _begin(self) -> None:
        world, plan = self.world, self.plan
        for host in self.nodes.values():
            host.crash_in_step = plan.crash_in_step
            world.after(world.between(0, 50, "start", host.node_id), host.start)
        self.nemesis.repeat("appends", plan.appends_per_s, self._append, in_calm=True)
        self.nemesis.start()

    def _append(self) -> None:
        for host in self.leaders():  # clients of a deposed leader are clients too
            value = self.next_number()
            host.step(events.ClientAppend(value, host.node.epoch, (value,), 1))

    def _calm(self) -> None:
        super()._calm()
        for host in self.nodes.values():
            host.crash_in_step = 0.0
            if not host.is_up:
                self.revive_in(100, host)
        self.world.run(until_ms=self.world.now_ms + 500)  # nodes that crashed within a step come back by themselves
        self._before = self.laws.committed_end

    def _find(self, node_id: int) -> RaftHost | None:
        return self.nodes.get(node_id)

    def leaders(self) -> list[RaftHost]:
        """The running nodes that believe that they lead."""
        return [host for host in self.nodes.values() if host.is_up and host.node.is_leader]

    def leader(self) -> RaftHost | None:
        """The leader of the highest epoch."""
        return max(self.leaders(), key=lambda host: host.node.epoch, default=None)

    # The end

    def _is_at_rest(self) -> bool:
        """Whether a leader has everything committed everywhere, nothing pending, and more committed than when calm
        began."""
        leader = self.leader()
        if leader is None or leader.node.high_watermark is None:
            return False
        committed = leader.node.high_watermark
        followers = [host for host in self.nodes.values() if host is not leader]
        return (
            committed > self._before
            and committed == leader.log.end_offset == self.laws.committed_end
            and all(host.is_up and host.node.leader_id == leader.node_id for host in followers)
            and all(host.state.offset == committed for host in self.nodes.values())
        )

    def _check_end(self) -> None:
        values = {entry.value for entry in self.laws.committed_entries if isinstance(entry.value, int)}
        for host in self.nodes.values():
            lost = [value for value in host.acked if value not in values]
            if lost:
                raise Breach("what was acknowledged is never lost", f"{host.key} acknowledged {lost}")

    @property
    def acked(self) -> int:
        """The number of appends that were acknowledged to clients."""
        return sum(len(host.acked) for host in self.nodes.values())

    @property
    def counts(self) -> bool:
        is_large = self.plan.voters >= 3 and self.acked >= 100
        return is_large and len(self.laws.leaders) >= 2 and super().counts

    @property
    def progress(self) -> str:
        return f"committed {self.laws.committed_end}"


def run_seed(seed: int) -> RaftCluster:
    """A whole run. Raises Breach."""
    cluster = RaftCluster(seed, RaftPlan.of(seed))
    cluster.run()
    return cluster
