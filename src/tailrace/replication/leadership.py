"""What the leader of a partition knows of its followers, and which of them it wants in sync. Pure.

1. The high watermark counts the *maximal* in-sync replicas: those that are agreed on, and those that the leader has
   proposed to add. Whatever becomes of a proposal, everything below the high watermark is on every replica in sync.
2. A replica that is about to join, since it keeps up, holds the high watermark back too: otherwise a leader that is
   alone in sync would run away from it for as long as records keep coming.
3. One proposal is under way at a time. Its outcome is known when a state of a later partition epoch is, or when the
   controller has refused it in a way that says that nothing of it will happen.
4. A replica joins when it has all below the high watermark, and has reached the start of the leader's epoch: what lies
   below that is then the same in both logs. It leaves when it has not been caught up for replica.lag.time.max.ms.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.replication.replica_progress import NEVER, UNKNOWN, ReplicaFetch, ReplicaProgress

DEFAULT_LAG_MS: Final = 30_000

_NOTHING_HAPPENS: Final = frozenset(
    (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)
)
"""The proposal was refused whole, and so was any earlier copy of it."""
_NEWS_WILL_COME: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
"""The controller has a later state than the leader, perhaps because of this very proposal; the image will bring it."""


class InSyncProposal(NamedTuple):
    """The in-sync replicas that a leader wants, and the state on which it wants them."""

    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[BrokerId, int], ...]
    """(broker, the epoch of its registration; -1 for who has not told it)"""


class Horizon(NamedTuple):
    """Where the leader's own log stands."""

    high_watermark: int
    epoch_start_offset: int
    """Where the leader's epoch begins."""
    log_end_offset: int
    now_ms: int
    lag_ms: int


class Leadership:
    """One leader's view, for as long as it leads in one epoch."""

    __slots__ = ("_maximal", "_own_id", "pending", "replicas", "state")

    def __init__(self, state: PartitionState, *, own_id: BrokerId, now_ms: int) -> None:
        self.state = state
        self._own_id = own_id
        self.pending: InSyncProposal | None = None
        """The proposal that is under way."""
        self.replicas = {
            replica: ReplicaProgress(caught_up_ms=now_ms) if replica in state.in_sync_replicas else ReplicaProgress()
            for replica in state.replicas
            if replica != own_id
        }
        """All others, by id."""
        self._maximal = frozenset(state.in_sync_replicas)

    def resume(self, pending: InSyncProposal | None) -> None:
        """Take this proposal, or none, for the one that is under way."""
        self.pending = pending
        self._note_maximal()

    def take_state(self, state: PartitionState) -> None:
        """Go by what has been agreed on now, in the same leader epoch."""
        self.state = state
        if self.pending is not None and state.partition_epoch > self.pending.partition_epoch:
            self.pending = None
        known = self.replicas
        self.replicas = {
            replica: known.get(replica) or ReplicaProgress() for replica in state.replicas if replica != self._own_id
        }
        self._note_maximal()

    def _note_maximal(self) -> None:
        proposed = () if self.pending is None else (member for member, _ in self.pending.members)
        self._maximal = frozenset((*self.state.in_sync_replicas, *proposed))

    def exclude(self, replica_ids: Collection[BrokerId]) -> bool:
        """These are not alive any more: nobody waits for them before they ask again, and have caught up.

        Whether the high watermark may have waited for one of them, which is not in sync.
        """
        may_have_waited = False
        for replica_id in replica_ids:
            progress = self.replicas.get(replica_id)
            if progress is not None:
                may_have_waited = may_have_waited or (progress.may_join and replica_id not in self._maximal)
                progress.may_join = False
                progress.caught_up_ms = NEVER
        return may_have_waited

    def take_fetch(self, replica_id: BrokerId, fetch: ReplicaFetch, horizon: Horizon) -> bool:
        """Take notice of a follower's fetch. Whether the in-sync replicas should change because of it.

        Raises KafkaError UNKNOWN_LEADER_EPOCH (75) for who is no replica as far as is known here, and
        NOT_LEADER_OR_FOLLOWER (6) for a fetch from before the follower's last start.
        """
        progress = self.replicas.get(replica_id)
        if progress is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica_id} is no replica here")
        if progress.is_stale(fetch):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica_id} asks in epoch {fetch.broker_epoch}, and has been registered again since",
            )
        progress.take(fetch, leader_end_offset=horizon.log_end_offset, now_ms=horizon.now_ms)
        return replica_id not in self._maximal and self._can_join(progress, horizon)

    def safe_end_offset(self, own_end_offset: int, *, log_end_offset: int, now_ms: int, lag_ms: int) -> int:
        """Up to where every replica in sync has everything: the high watermark, if it may advance at all."""
        lowest = own_end_offset
        for replica_id, progress in self.replicas.items():
            if progress.end_offset < lowest and (
                replica_id in self._maximal
                or (
                    progress.may_join
                    and progress.is_caught_up(leader_end_offset=log_end_offset, now_ms=now_ms, lag_ms=lag_ms)
                )
            ):
                lowest = progress.end_offset
        return lowest

    def _can_join(self, progress: ReplicaProgress, horizon: Horizon) -> bool:
        has_all = progress.end_offset >= max(horizon.high_watermark, horizon.epoch_start_offset)
        return progress.may_join and has_all and not self.state.is_recovering

    def propose(self, horizon: Horizon) -> InSyncProposal | None:
        """The in-sync replicas that should be, as a proposal that is under way from now on; None if all is well."""
        if self.pending is not None:
            return None
        state = self.state
        wanted = tuple(replica for replica in state.replicas if self._belongs(replica, horizon))
        if set(wanted) == set(state.in_sync_replicas) and not state.is_recovering:
            return None
        members = tuple((replica, self._broker_epoch(replica)) for replica in wanted)
        proposal = InSyncProposal(state.leader_epoch, state.partition_epoch, members)
        self.resume(proposal)
        return proposal

    def _belongs(self, replica: BrokerId, horizon: Horizon) -> bool:
        if replica == self._own_id:
            return True
        progress = self.replicas[replica]
        if replica not in self.state.in_sync_replicas:
            return self._can_join(progress, horizon)
        return progress.is_caught_up(
            leader_end_offset=horizon.log_end_offset, now_ms=horizon.now_ms, lag_ms=horizon.lag_ms
        )

    def _broker_epoch(self, replica: BrokerId) -> int:
        return UNKNOWN if replica == self._own_id else self.replicas[replica].broker_epoch

    def answered(self, proposal: InSyncProposal, outcome: PartitionState | KafkaError) -> bool:
        """Take notice of the controller's answer; whether the same is to be proposed again.

        A state is taken by `take_state`. Before a doubtful failure the proposal may have been carried out: it stays
        under way, and with it rule 1, until there is news.
        """
        if proposal is not self.pending:
            return False
        if not isinstance(outcome, KafkaError):
            if outcome.partition_epoch == proposal.partition_epoch:
                self.resume(None)  # it was so already
            return False
        if outcome.code in _NOTHING_HAPPENS:
            self.resume(None)
            return False
        return outcome.code not in _NEWS_WILL_COME
