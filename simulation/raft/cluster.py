"""A quorum in a simulated world: how a run goes, and what must hold in the end."""

from collections.abc import Collection

from simulation.harness.breach import Breach
from simulation.harness.network import Network
from simulation.harness.turns import Turn
from simulation.harness.world import World
from simulation.raft.host import RaftHost
from simulation.raft.invariants import RaftInvariants
from simulation.raft.nemesis import RaftNemesis, Revive
from simulation.raft.plan import SMALL, Plan
from simulation.raft.state import key_of
from tailrace.raft.ports import RaftConfig
from tailrace.raft.voters import Voter, VoterSet


class RaftCluster:
    """Voters from id 1 on, observers behind them."""

    def __init__(self, seed: int, plan: Plan, config: RaftConfig = SMALL, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of the nemesis that are taken; None means all."""
        self.world = World(seed)
        self.plan = plan
        self.network = Network(self.world, plan.network)
        self.laws = RaftInvariants()
        ids = range(1, plan.voters + plan.observers + 1)
        initial = VoterSet.of(Voter(key_of(node_id)) for node_id in ids[: plan.voters])
        self.hosts = {
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
        self.laws.hosts = list(self.hosts.values())
        self._values = 0
        self.nemesis = RaftNemesis(self, only)

    # The run

    def run(self) -> None:
        """Chaos, then calm; raises Breach if a law is broken, or if the cluster does not come to rest."""
        world, plan = self.world, self.plan
        for host in self.hosts.values():
            host.crash_in_step = plan.crash_in_step
            world.after(world.between(0, 50, "start", host.key.id), host.start)
        self.nemesis.start()
        world.run(until_ms=plan.chaos_ms)
        self.nemesis.stop()
        self.network.calm()
        world.note("calm begins")
        for host in self.hosts.values():
            host.crash_in_step = 0.0
            if not host.is_up:
                world.after(100, Revive(host))
        world.run(until_ms=plan.chaos_ms + 500)  # those that crashed within a step come back by themselves
        before = self.laws.committed_end
        if not world.run(until_ms=plan.chaos_ms + plan.converge_ms, stop=lambda: self._is_at_rest(before)):
            raise Breach("faults end and everything converges", self.describe())
        self._check_acked()

    def _find(self, node_id: int) -> RaftHost | None:
        return self.hosts.get(node_id)

    def leaders(self) -> list[RaftHost]:
        """All that run and believe that they lead."""
        return [host for host in self.hosts.values() if host.is_up and host.node.is_leader]

    def leader(self) -> RaftHost | None:
        """The one of the highest epoch."""
        return max(self.leaders(), key=lambda host: host.node.epoch, default=None)

    def next_value(self) -> int:
        """A value that has not been written before."""
        self._values += 1
        return self._values

    # The end

    def _is_at_rest(self, before: int) -> bool:
        """One leader, everything committed everywhere, nothing pending, and more committed than when calm began."""
        leader = self.leader()
        if leader is None or leader.node.high_watermark is None:
            return False
        committed = leader.node.high_watermark
        others = [host for host in self.hosts.values() if host is not leader]
        return (
            committed > before
            and committed == leader.log.end_offset == self.laws.committed_end
            and all(host.is_up and host.node.leader_id == leader.key.id for host in others)
            and all(host.state.offset == committed for host in self.hosts.values())
        )

    def _check_acked(self) -> None:
        values = {entry.value for entry in self.laws.committed_entries if isinstance(entry.value, int)}
        for host in self.hosts.values():
            lost = [value for value in host.acked if value not in values]
            if lost:
                raise Breach("what was acknowledged is never lost", f"{host.key} acknowledged {lost}")

    @property
    def acked(self) -> int:
        """The number of appends that were acknowledged to clients."""
        return sum(len(host.acked) for host in self.hosts.values())

    @property
    def faults(self) -> set[str]:
        """The kinds of fault that this run has had."""
        network, sometimes = self.network.counts, self.world.sometimes
        kinds = {
            "loss": network["lost"],
            "duplication": network["duplicated"],
            "delay": network["delayed"],
            "crash": sometimes["crash"],
            "crash between two effects": sometimes["crash between two effects"],
            "partition": sum(count for state, count in sometimes.items() if state.startswith("partition: ")),
            "damage": sometimes["damaged snapshot refused"],
            "torn write": sometimes["a write was torn"],
            "clock jump": sometimes["clock jump"],
            "failing disk": sum(sometimes[f"the disk of a {one} fails every write"] for one in ("leader", "follower")),
            "full disk": sum(sometimes[f"the disk of a {one} is full"] for one in ("leader", "follower")),
            "loss of a disk": sometimes["disk lost"],
        }
        return {kind for kind, count in kinds.items() if count}

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough to be counted."""
        return (
            self.plan.voters >= 3
            and self.world.events >= 2000
            and len(self.faults) >= 3
            and len(self.laws.leaders) >= 2
            and self.acked >= 100
        )

    def describe(self) -> str:
        """The state of all nodes, for a failure's message."""
        lines = []
        for host in self.hosts.values():
            if host.is_up:
                node = host.node
                lines.append(
                    f"{host.key.id}: {type(node.role).__name__} of {node.epoch}, leader {node.leader_id}, "
                    f"log {host.log.log_start_offset} to {node.end_offset} ({host.log.last_epoch}), "
                    f"committed {node.high_watermark}, voters {[key.id for key in node.voters.keys]}"
                )
            else:
                lines.append(f"{host.key.id}: down")
        return f"at {self.world.now_ms} ms, committed {self.laws.committed_end}; " + "; ".join(lines)


def run_seed(seed: int) -> RaftCluster:
    """A whole run. Raises Breach."""
    cluster = RaftCluster(seed, Plan.of(seed))
    cluster.run()
    return cluster
