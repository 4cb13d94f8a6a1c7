"""Events from outside a simulated quorum: clients write, and things break."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from simulation.harness.turns import Turn, Turns
from simulation.raft.faults import DiskFault
from simulation.raft.host import RaftHost
from tailrace.raft import events
from tailrace.raft.rpc import FetchSnapshot
from tailrace.raft.voters import ReplicaKey, Voter

if TYPE_CHECKING:
    from simulation.raft.cluster import RaftCluster


class RaftNemesis(Turns):
    """Acts on a cluster from the start of a run until `stop`; clients and snapshots go on after that."""

    def __init__(self, cluster: "RaftCluster", only: Collection[Turn] | None = None) -> None:
        """`only`: the turns that are taken before calm begins; None means all."""
        super().__init__(cluster.world, only)
        self._cluster = cluster

    def start(self) -> None:
        """Begin. How often is in the plan."""
        plan = self._cluster.plan
        self.repeat("appends", plan.appends_per_s, self._append, in_calm=True)
        self.repeat("snapshots", plan.snapshots_per_s, self._snapshot, in_calm=True)
        self.repeat("readers of snapshots", plan.readers_per_s, self._ask)
        self.repeat("crashes", plan.crashes_per_s, self._crash)
        self.repeat("partitions", plan.partitions_per_s, self._partition)
        self.repeat("wipes", plan.wipes_per_s, self._wipe)
        self.repeat("disk faults", plan.disk_faults_per_s, self._break_disk)
        self.repeat("clock jumps", plan.clock_jumps_per_s, self._jump)
        self.repeat("voter changes", plan.voter_changes_per_s, self._change_voters)

    # Chances of this turn

    def _any_host(self, what: str = "host") -> RaftHost:
        hosts = self._cluster.hosts
        return hosts[self.choice(sorted(hosts), what)]

    # Turns

    def _append(self) -> None:
        for host in self._cluster.leaders():  # clients of a deposed leader are clients too
            value = self._cluster.next_value()
            host.step(events.ClientAppend(value, host.node.epoch, (value,), 1))

    def _snapshot(self) -> None:
        host = self._any_host()
        if not host.is_up:
            return
        # Often just where another log ends: there a stale tail can be taken for the log's own.
        kind = self.choice(("now", "where a log ends", "where a log ends", "anywhere"), "kind")
        if kind == "where a log ends":
            host.write_snapshot(self._any_host("other").log.end_offset)
        elif kind == "anywhere":
            host.write_snapshot(self.between(host.log.log_start_offset, host.log.end_offset, "end"))
        else:
            host.write_snapshot()

    def _ask(self) -> None:
        """A random node gets a request for a snapshot."""
        host = self._any_host()
        if not host.is_up or not host.log.snapshots:
            return
        snapshot = self.choice(host.log.snapshots, "snapshot")
        host.stray(
            FetchSnapshot(
                cluster_id="simulated",
                replica=ReplicaKey(-1),
                leader_epoch=host.node.epoch,
                snapshot_id=snapshot.id,
                position=self.between(-1, snapshot.size_bytes + 1, "position"),
                max_bytes=100,
            )
        )

    def _victim(self) -> RaftHost:
        """A random node, more often the leader."""
        host = self._any_host()
        if self.chance(0.3, "the leader"):
            host = self._cluster.leader() or host
        return host

    def _crash(self) -> None:
        host = self._victim()
        if not host.is_up:
            return
        self._world.sometimes["crash"] += 1
        self._world.sometimes["leader crashed"] += host.node.is_leader
        host.crash()
        longest_ms = self.choice((1000, 3000, 10_000), "longest")
        self._world.after(self.between(10, longest_ms, "down"), Revive(host))

    def _partition(self) -> None:
        network, ids = self._cluster.network, sorted(self._cluster.hosts)
        network.heal()
        kind = self.choice(("heal", "split", "one way", "isolate leader"), "kind")
        if kind == "split":
            left = [node_id for node_id in ids if self.chance(0.5, "side")]
            network.separate(left, [node_id for node_id in ids if node_id not in left])
        elif kind == "one way":
            network.block([self._any_host().key.id], ids)
        elif kind == "isolate leader" and (leader := self._cluster.leader()) is not None:
            network.separate([leader.key.id], ids)
        self._world.sometimes[f"partition: {kind}"] += 1
        self._world.note(f"partition: {kind}")

    def _wipe(self) -> None:
        """One replica loses its disk: never a second one before the first has been removed from all sets of voters."""
        hosts = self._cluster.hosts.values()
        keys = {host.key for host in hosts}
        sets = [host.node.voters for host in hosts if host.is_up]
        if len(sets) < len(hosts) or any(len(one) < 3 or not keys.issuperset(one.keys) for one in sets):
            return
        host = self._any_host()
        host.wipe()
        self._world.sometimes["disk lost"] += 1
        self._world.after(self.between(10, 1000, "down"), Revive(host))

    def _break_disk(self) -> None:
        """A disk fails or is full; after a while it is repaired and the node starts again."""
        host = self._victim()
        if not host.is_up or host.fault is not None:
            return
        host.fail_disk(self.choice(list(DiskFault), "fault"))
        life = host.life

        def repair() -> None:
            if host.life is life and host.is_up:
                host.crash()
                host.start()

        self._world.after(self.between(500, 5000, "broken"), repair)

    def _jump(self) -> None:
        host = self._any_host()
        self._world.sometimes["clock jump"] += 1
        host.jump(self.between(50, 5000, "jump"), self.between(-20_000, 20_000, "time of day"))

    def _change_voters(self) -> None:
        leader = self._cluster.leader()
        if leader is None:
            return
        for what in ("host", "other")[: 1 + self.chance(0.3, "two at once")]:
            change = self._wanted_change(leader, self._any_host(what))
            if change is not None and leader.is_up:
                leader.step(events.ChangeVoters(self._cluster.next_value(), change, 5000, ack_when_committed=True))

    def _wanted_change(self, leader: RaftHost, host: RaftHost) -> events.VoterChange | None:
        voters, sometimes = leader.node.voters, self._world.sometimes
        lost = [key for key in voters.keys if key != self._cluster.hosts[key.id].key]
        if lost:  # only a fool removes another one first: the rest might be no majority
            host = self._cluster.hosts[lost[0].id]
        voter = voters.find(host.key.id)
        if voter is None:
            return events.AddVoter(Voter(host.key))
        if len(voters) == 1:
            return None
        sometimes["leader removes itself"] += host is leader
        sometimes["lost replica removed"] += voter.key != host.key
        return events.RemoveVoter(voter.key)


class Revive:
    """Starts a host unless something else has."""

    def __init__(self, host: RaftHost) -> None:
        self._host = host

    def __call__(self) -> None:
        if not self._host.is_up:
            self._host.start()
