"""Faults of whole nodes: power, disks, the network, clocks; and voters that come and go."""

from functools import partial

from simulation.harness.nemesis import PowerNemesis
from simulation.quorum.node import QuorumNode
from simulation.quorum.plan import QuorumPlan
from tailrace.model.errors import ErrorCode
from tailrace.raft import events
from tailrace.raft.voters import Voter
from tailrace.testing.disk import TOTAL_SPACE


class QuorumNemesis(PowerNemesis[QuorumNode, QuorumPlan]):
    """Faults of whole nodes."""

    def start(self) -> None:
        plan = self._cluster.plan
        self.repeat("crashes", plan.crashes_per_s, self._crash)
        self.repeat("blackouts", plan.blackouts_per_s, partial(self._black_out, shortest_ms=10))
        self.repeat("cuts", plan.cuts_within_steps_per_s, self._cut_within_a_step)
        self.repeat("errors", plan.disk_errors_per_s, self._fail_disk)
        self.repeat("full disks", plan.full_disks_per_s, self._fill_disk)
        self.repeat("wipes", plan.wipes_per_s, self._wipe)
        self.repeat("voter changes", plan.voter_changes_per_s, self._change_voters)
        self.repeat("partitions", plan.partitions_per_s, self._partition)
        self.repeat("clocks", plan.clock_jumps_per_s, self._jump_clock)

    # Power

    def _crash(self) -> None:
        node = self._victim()
        if not node.is_up:
            return
        self._world.sometimes["crash"] += 1
        self._world.sometimes["active controller crashed"] += node.controller.is_active
        self._crash_for(node, (500, 2000, 6000))

    # Disks

    def _fail_disk(self) -> None:
        node = self._any_node()
        node.files.fail_at(node.files.operations + self.between(1, 20, "operations"))

    def _fill_disk(self) -> None:
        """Leave space for a few more bytes on a disk, until space is freed."""
        node = self._victim()
        files = node.files
        if files.free_space < TOTAL_SPACE // 2:
            return
        files.free_space = self.between(0, 400, "bytes left")
        self._world.note(f"the disk of {node.key.id} has space for {files.free_space} bytes")

        def free_space_again() -> None:
            files.free_space = TOTAL_SPACE

        self._world.after(self.between(300, 4000, "full"), free_space_again)

    def _wipe(self) -> None:
        """Let a replica lose its disk: but no second replica before the first lost replica is removed from all sets of
        voters."""
        nodes = self._cluster.nodes.values()
        keys = {node.key for node in nodes}
        sets = [node.host.node.voters for node in nodes if node.is_up]
        if len(sets) < len(nodes) or any(len(voters) < 3 or not keys.issuperset(voters.keys) for voters in sets):
            return
        node = self._any_node()
        self._world.sometimes["disk of a voter lost"] += any(voters.has(node.key) for voters in sets)
        node.wipe()
        self._cluster.revive_in(self.between(10, 1000, "down"), node)

    # Voters

    def _change_voters(self) -> None:
        leader = self._cluster.leader()
        if leader is None:
            return
        for what in ("node", "other")[: 1 + self.chance(0.3, "two at once")]:
            change = self._wanted_change(leader, self._any_node(what))
            if change is not None and leader.is_up:
                leader.do(partial(leader.host.change_voters, change, partial(self._changed, change)))

    def _wanted_change(self, leader: QuorumNode, node: QuorumNode) -> events.VoterChange | None:
        voters = leader.host.node.voters
        lost = [key for key in voters.keys if key != self._cluster.nodes[key.id].key]
        if lost:  # only a fool removes another one first: the rest might be no majority
            return events.RemoveVoter(lost[0])
        others = [node for node in self._cluster.nodes.values() if voters.find(node.node_id) is None]
        if others and (len(voters) < self._cluster.plan.voters or node in others):
            return events.AddVoter(Voter(self.choice(others, "new voter").key))
        if len(voters) == 1 or (self._cluster.plan.wipes_per_s and len(voters) <= 3 and self.chance(0.7, "keep three")):
            return None
        self._world.sometimes["leader removes itself"] += node is leader
        return events.RemoveVoter(node.key)

    def _changed(self, change: events.VoterChange, error: ErrorCode, detail: str) -> None:
        sometimes = self._world.sometimes
        self._world.note(f"{change}: {error.name} {detail}")
        if error is not ErrorCode.NONE:
            sometimes["change of voters refused or not committed in time"] += 1
        elif isinstance(change, events.AddVoter):
            sometimes["voter added"] += 1
            sometimes["voter added again on another disk"] += self._cluster.nodes[change.voter.key.id].wipes > 0
        elif isinstance(change, events.RemoveVoter):
            sometimes["voter removed"] += 1
            sometimes["lost voter removed"] += self._cluster.nodes[change.key.id].key != change.key

    # The rest of the world

    def _jump_clock(self) -> None:
        node = self._any_node()
        if node.is_up:
            node.clock.wall_error_ms = self.between(-3_600_000, 3_600_000, "error")
            self._world.sometimes["clock jumped"] += 1
