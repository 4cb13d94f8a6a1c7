"""The progress of a partition's followers in its leader's view, and its proposals for the ISR. Pure.

1. The high watermark needs the *maximal* in-sync replicas: the committed replicas, and the replicas that the leader has
   proposed to add. With any outcome of a proposal, everything below the high watermark is on every replica in sync.
2. A replica that is about to join, since it keeps up, holds the high watermark back too: otherwise a leader that is
   alone in sync would run away from it for as long as records keep coming. When the time of that replica is over, the
   high watermark advances again, even if no replica fetches.
3. One proposal is under way at a time. Its outcome is known when the leader has a state with a later partition epoch.
4. A refusal says that this copy of the proposal changed nothing. Another copy of the proposal may arrive later, when
   the fenced replica is not fenced any more, and be carried out. So the replicas that the proposal would have added are
   *doubted*: rule 1 includes doubted replicas until the partition epoch has risen. The leader raises the epoch at once,
   by proposing the present in-sync replicas: the controller writes a record also for a proposal without a change
   (decision 0025).
5. A replica joins when its log has everything below the high watermark, and has reached the start of the leader's
   epoch: below that start both logs are then the same. The replica must also have fetched since the last look, or been
   caught up within replica.lag.time.max.ms: while the high watermark stands still, a silent replica seems complete for
   ever. A replica leaves when it was not caught up for that time.
"""

from collections.abc import Collection
from enum import Enum
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.replication.replica_progress import UNKNOWN, FollowerFetch, ReplicaProgress

DEFAULT_LAG_MS: Final = 30_000
_JOINING_MS: Final = 1_000
"""A replica that is about to join holds the high watermark back for this time after its last fetch. A live replica
fetches again sooner (replica.fetch.wait.max.ms is 500). The time is short, since the last fetch of a replica that has
left may arrive late."""

_REFUSED: Final = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))
"""This copy of the proposal changed nothing. The next copy may change the state: brokers are fenced and unfenced
without a new partition epoch."""
_NEVER_POSSIBLE: Final = ErrorCode.INVALID_REQUEST
"""No copy of the proposal changes the state: the fault depends only on the proposal and the partition epoch."""
_NEWS_WILL_COME: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
"""The controller has a later state than the leader, perhaps by this same proposal. The metadata image will bring that
state."""


class InSyncProposal(NamedTuple):
    """The in-sync replicas that a leader proposes, and the epochs of the state before the proposal."""

    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[BrokerId, int], ...]
    """(broker id, epoch of the broker's registration or -1 if not known)"""


class AfterAnswer(Enum):
    """The leader's next step after the controller's answer to a proposal."""

    NOTHING = "nothing"
    REPEAT = "repeat"
    """Send the same proposal again, a little later: the outcome is not known."""
    PROPOSE_ANEW = "propose anew"
    """`propose` gives another proposal now."""
    PROPOSE_LATER = "propose later"
    """`propose` gives another proposal after a while: the controller has just refused the same proposal."""


class Horizon(NamedTuple):
    """The offsets and times of a leader against which its followers are measured at one moment."""

    high_watermark: int
    epoch_start_offset: int
    """The start offset of the leader's epoch."""
    log_end_offset: int
    now_ms: int
    lag_ms: int


class Leadership:
    """The followers and proposals of one leader in one leader epoch."""

    __slots__ = ("_maximal", "_own_id", "_refused", "doubted", "held_until_ms", "pending", "replicas", "state")

    def __init__(self, state: PartitionState, *, own_id: BrokerId, now_ms: int) -> None:
        self.state = state
        self._own_id = own_id
        self.pending: InSyncProposal | None = None
        """The proposal without an outcome yet."""
        self.doubted: frozenset[BrokerId] = frozenset()
        """Replicas whose proposal was refused in this partition epoch: a late copy of the proposal may still add these
        replicas (rule 4)."""
        self._refused: frozenset[BrokerId] = frozenset()
        """Replicas that the controller has refused, and that have not fetched since: the leader proposes them again
        after a while."""
        self.held_until_ms: int | None = None
        """The time from which `safe_end_offset` is higher even without a fetch: until then rule 2 holds the result of
        the last call back. None if rule 2 did not lower that result."""
        self.replicas = {
            replica: ReplicaProgress(caught_up_ms=now_ms) if replica in state.in_sync_replicas else ReplicaProgress()
            for replica in state.replicas
            if replica != own_id
        }
        """The other replicas, by id."""
        self._maximal = frozenset(state.in_sync_replicas)

    def resume(self, pending: InSyncProposal | None, doubted: frozenset[BrokerId] = frozenset()) -> None:
        """Set the pending proposal, or none, and the doubted replicas."""
        self.pending = pending
        self.doubted = doubted
        self._note_maximal()

    def take_state(self, state: PartitionState) -> None:
        """Take another state of the same leader epoch."""
        if state.partition_epoch > self.state.partition_epoch:
            self.pending = None  # the proposal was made in an earlier epoch, like every doubted proposal
            self.doubted = frozenset()
        left = frozenset(self.state.in_sync_replicas).difference(state.in_sync_replicas)
        self.state = state
        known = self.replicas
        self.replicas = {
            replica: known.get(replica) or ReplicaProgress() for replica in state.replicas if replica != self._own_id
        }
        self._note_maximal()
        self.exclude(left)  # a replica may have left because its disk is full

    def _note_maximal(self) -> None:
        proposed = () if self.pending is None else (member for member, _ in self.pending.members)
        self._maximal = frozenset((*self.state.in_sync_replicas, *proposed, *self.doubted))

    @property
    def is_alone(self) -> bool:
        """Whether rule 1 waits for no follower."""
        return self._maximal.issubset((self._own_id,))

    def others_have(self, end_offset: int) -> bool:
        """Whether each follower that rule 1 waits for has stored its log up to this offset."""
        replicas = self.replicas.items()
        return all(progress.end_offset >= end_offset for key, progress in replicas if key in self._maximal)

    def exclude(self, replica_ids: Collection[BrokerId]) -> bool:
        """Exclude these replicas, which are fenced or gone, from the high watermark until the next time they catch up.

        Returns whether the high watermark may have waited for an excluded replica that is not in sync.
        """
        may_have_waited = False
        for replica_id in replica_ids:
            progress = self.replicas.get(replica_id)
            if progress is not None:
                may_have_waited = may_have_waited or (progress.may_join and replica_id not in self._maximal)
                progress.exclude()
        return may_have_waited

    def take_fetch(self, replica_id: BrokerId, fetch: FollowerFetch, horizon: Horizon) -> bool:
        """Record a follower's fetch; returns whether the in-sync replicas should change after this fetch.

        Raises KafkaError UNKNOWN_LEADER_EPOCH (75) for a broker that is no replica as far as is known here, and
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
        progress.record(fetch, leader_end_offset=horizon.log_end_offset, now_ms=horizon.now_ms)
        if self._refused:
            self._refused -= {replica_id}
        return replica_id not in self._maximal and self._can_join(progress, horizon)

    def safe_end_offset(self, own_end_offset: int, *, log_end_offset: int, now_ms: int, lag_ms: int) -> int:
        """The end of the records that all replicas in sync have: the new high watermark, if an advance is allowed.

        Sets `held_until_ms`.
        """
        lowest = joining_end = own_end_offset
        joining: ReplicaProgress | None = None
        for replica_id, progress in self.replicas.items():
            if replica_id in self._maximal:
                lowest = min(lowest, progress.end_offset)
            elif (
                progress.end_offset < joining_end
                and progress.may_join
                and now_ms - progress.fetched_ms <= _JOINING_MS
                and progress.is_caught_up(leader_end_offset=log_end_offset, now_ms=now_ms, lag_ms=lag_ms)
            ):
                joining_end, joining = progress.end_offset, progress
        if joining is None or joining_end >= lowest:
            self.held_until_ms = None
            return lowest
        self.held_until_ms = min(joining.fetched_ms + _JOINING_MS, joining.caught_up_ms + lag_ms) + 1
        return joining_end

    def _can_join(self, progress: ReplicaProgress, horizon: Horizon) -> bool:
        has_all = progress.end_offset >= max(horizon.high_watermark, horizon.epoch_start_offset)
        return progress.may_join and has_all and not self.state.is_recovering

    def propose(self, horizon: Horizon) -> InSyncProposal | None:
        """A proposal of the in-sync replicas as they should be. The proposal is pending from now on. None if no change
        is needed.

        While replicas are doubted the proposal names the present in-sync replicas, so that the partition epoch rises.
        Each call is a look in the sense of `ReplicaProgress.may_be_wanted`.
        """
        state = self.state
        wanted = tuple(replica for replica in state.replicas if self._belongs(replica, horizon))
        for progress in self.replicas.values():
            progress.looked_at()
        if self.pending is not None:
            return None
        if self.doubted:
            wanted = state.in_sync_replicas
        elif set(wanted) == set(state.in_sync_replicas) and not state.is_recovering:
            return None
        members = tuple((replica, self._broker_epoch(replica)) for replica in wanted)
        proposal = InSyncProposal(state.leader_epoch, state.partition_epoch, members)
        self.resume(proposal, self.doubted)
        return proposal

    def _belongs(self, replica: BrokerId, horizon: Horizon) -> bool:
        if replica == self._own_id:
            return True
        progress = self.replicas[replica]
        if replica not in self.state.in_sync_replicas:
            is_heard = progress.may_be_wanted(now_ms=horizon.now_ms, lag_ms=horizon.lag_ms)
            return is_heard and self._can_join(progress, horizon)
        return progress.is_caught_up(
            leader_end_offset=horizon.log_end_offset, now_ms=horizon.now_ms, lag_ms=horizon.lag_ms
        )

    def _broker_epoch(self, replica: BrokerId) -> int:
        return UNKNOWN if replica == self._own_id else self.replicas[replica].broker_epoch

    def on_response(self, proposal: InSyncProposal, outcome: PartitionState | KafkaError) -> AfterAnswer:
        """Take the controller's answer to a proposal. If the answer is a state, the caller passes the state to
        `take_state` too.

        After a failure that does not say whether the proposal was carried out, the proposal stays pending until a later
        state comes (rule 3).
        """
        if proposal is not self.pending:
            return AfterAnswer.NOTHING
        if not isinstance(outcome, KafkaError):
            if outcome.partition_epoch == proposal.partition_epoch:
                self.resume(None)  # no change was needed; Apache Kafka's controller then raises no epoch
            return AfterAnswer.NOTHING
        if outcome.code in _NEWS_WILL_COME:
            return AfterAnswer.NOTHING
        if outcome.code not in _REFUSED and outcome.code is not _NEVER_POSSIBLE:
            return AfterAnswer.REPEAT
        joining = frozenset(member for member, _ in proposal.members).difference(self.state.in_sync_replicas)
        self._refused |= joining
        doubted = self.doubted if outcome.code is _NEVER_POSSIBLE else self.doubted | joining
        is_new = doubted != self.doubted
        self.resume(None, doubted)
        return AfterAnswer.PROPOSE_ANEW if is_new else AfterAnswer.NOTHING

    def reconsider(self, horizon: Horizon) -> AfterAnswer:
        """The next step when no proposal is pending any more: some replicas may join without another fetch.

        When these replicas fetched, they could not be proposed: another proposal was pending, the leader was
        recovering, or the controller had refused.
        """
        state = self.state
        if self.pending is not None:
            return AfterAnswer.NOTHING
        if self.doubted:
            return AfterAnswer.PROPOSE_LATER  # the high watermark waits for doubted replicas
        joining = [
            replica
            for replica in state.replicas
            if replica not in state.in_sync_replicas and self._belongs(replica, horizon)
        ]
        if not joining:
            return AfterAnswer.NOTHING
        return AfterAnswer.PROPOSE_LATER if self._refused.issuperset(joining) else AfterAnswer.PROPOSE_ANEW
