"""Events from outside a simulated quorum: things break, snapshots are written and asked for, voters come and go."""

from functools import partial

from simulation.harness.nemesis import Nemesis
from simulation.raft.faults import DiskFault
from simulation.raft.host import RaftHost
from simulation.raft.plan import RaftPlan
from tailrace.raft import events
from tailrace.raft.rpc import FetchSnapshot
from tailrace.raft.voters import ReplicaKey, Voter


class RaftNemesis(Nemesis[RaftHost, RaftPlan]):
    """A nemesis of Raft machines. Snapshots are written and requested in calm, too."""

    def start(self) -> None:
        plan = self._cluster.plan
        self.repeat("snapshots", plan.snapshots_per_s, self._snapshot, in_calm=True)
        self.repeat("readers of snapshots", plan.readers_per_s, self._ask)
        self.repeat("crashes", plan.crashes_per_s, self._crash)
        self.repeat("partitions", plan.partitions_per_s, partial(self._partition, side="side", source="host"))
        self.repeat("wipes", plan.wipes_per_s, self._wipe)
        self.repeat("disk faults", plan.disk_faults_per_s, self._break_disk)
        self.repeat("clock jumps", plan.clock_jumps_per_s, self._jump)
        self.repeat("voter changes", plan.voter_changes_per_s, self._change_voters)

    def _any_node(self, what: str = "host") -> RaftHost:
        return super()._any_node(what)

    def _snapshot(self) -> None:
        host = self._any_node()
        if not host.is_up:
            return
        # Often just where another log ends: there a stale tail can be taken for the log's own.
        kind = self.choice(("now", "where a log ends", "where a log ends", "anywhere"), "kind")
        if kind == "where a log ends":
            host.write_snapshot(self._any_node("other").log.end_offset)
        elif kind == "anywhere":
            host.write_snapshot(self.between(host.log.log_start_offset, host.log.end_offset, "end"))
        else:
            host.write_snapshot()

    def _ask(self) -> None:
        """Request a snapshot from a random node."""
        host = self._any_node()
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

    def _crash(self) -> None:
        host = self._victim()
        if not host.is_up:
            return
        self._world.sometimes["crash"] += 1
        self._world.sometimes["leader crashed"] += host.node.is_leader
        self._crash_for(host, (1000, 3000, 10_000))

    def _wipe(self) -> None:
        """Let a replica lose its disk: but no second replica before the first lost replica is removed from all sets of
        voters."""
        hosts = self._cluster.nodes.values()
        keys = {host.key for host in hosts}
        sets = [host.node.voters for host in hosts if host.is_up]
        if len(sets) < len(hosts) or any(len(voters) < 3 or not keys.issuperset(voters.keys) for voters in sets):
            return
        host = self._any_node()
        host.wipe()
        self._world.sometimes["disk lost"] += 1
        self._cluster.revive_in(self.between(10, 1000, "down"), host)

    def _break_disk(self) -> None:
        """Let a disk fail or be full; after a while the disk is repaired and the node starts again."""
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
        host = self._any_node()
        self._world.sometimes["clock jump"] += 1
        host.jump(self.between(50, 5000, "jump"), self.between(-20_000, 20_000, "time of day"))

    def _change_voters(self) -> None:
        leader = self._cluster.leader()
        if leader is None:
            return
        for what in ("host", "other")[: 1 + self.chance(0.3, "two at once")]:
            change = self._wanted_change(leader, self._any_node(what))
            if change is not None and leader.is_up:
                leader.step(events.ChangeVoters(self._cluster.next_number(), change, 5000, ack_when_committed=True))

    def _wanted_change(self, leader: RaftHost, host: RaftHost) -> events.VoterChange | None:
        voters, sometimes = leader.node.voters, self._world.sometimes
        lost = [key for key in voters.keys if key != self._cluster.nodes[key.id].key]
        if lost:  # only a fool removes another one first: the rest might be no majority
            host = self._cluster.nodes[lost[0].id]
        voter = voters.find(host.key.id)
        if voter is None:
            return events.AddVoter(Voter(host.key))
        if len(voters) == 1:
            return None
        sometimes["leader removes itself"] += host is leader
        sometimes["lost replica removed"] += voter.key != host.key
        return events.RemoveVoter(voter.key)
