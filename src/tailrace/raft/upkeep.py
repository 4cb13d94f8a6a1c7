"""Keeping the log short: where it may start, and which snapshots are no longer of use (KIP-630)."""

from tailrace.raft.effects import DeleteSnapshots, RaiseLogStart
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Follower, Leader
from tailrace.raft.snapshots import follower_log_start, leader_log_start, recently_served, superfluous_snapshots


class Upkeep:
    """Looks at log start and snapshots when something has changed, and every now and then."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica
        self._next_ms: int | None = 0

    def look_again(self) -> None:
        """Something has changed: look at the end of this step."""
        self._next_ms = 0

    def poll(self, now_ms: int) -> None:
        """Raise the log start and delete snapshots as far as they may."""
        if self._next_ms is None or self._next_ms > now_ms:
            return
        replica = self._replica
        role, snapshots = replica.role, replica.log.snapshots
        if isinstance(role, Leader):
            self._forget_silent(role, now_ms)
        elif not snapshots or replica.installing is not None:
            self._next_ms = None  # until there is one
            return
        self._next_ms = now_ms + replica.config.upkeep_interval_ms
        if not snapshots:
            return
        start = self._log_start(now_ms)
        if start > replica.log.log_start_offset:
            replica.outbox.add(RaiseLogStart(start))
            replica.voters.trim(start)
        served = role.served if isinstance(role, Leader) else ()
        if superfluous := superfluous_snapshots(snapshots, start, served):
            replica.outbox.add(DeleteSnapshots(superfluous))

    def _forget_silent(self, leader: Leader, now_ms: int) -> None:
        """Forget observers that have gone, and snapshots that are no longer fetched."""
        config = self._replica.config
        leader.replicas.drop_silent(self._replica.voters.current.keys, now_ms, config.live_replica_ms)
        leader.served = recently_served(leader.served, now_ms, config.served_snapshot_ms)

    def _log_start(self, now_ms: int) -> int:
        replica = self._replica
        config, role = replica.config, replica.role
        start = replica.log.log_start_offset
        match role:
            case Leader():
                live = role.replicas.live(now_ms, config.live_replica_ms)
                return leader_log_start(
                    replica.log.snapshots, start, live, role.served, now_ms, config.start_offset_lag_ms
                )
            case Follower():
                return follower_log_start(replica.log.snapshots, start, role.leader_log_start_offset)
            case _:
                return start

    def next_deadline_ms(self) -> int | None:
        return self._next_ms
