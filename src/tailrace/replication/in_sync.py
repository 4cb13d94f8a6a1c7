"""The in-sync replicas of a partition that is led here, and the high watermark that they allow (KIP-966).

1. The high watermark does not advance while fewer replicas are in sync than `min.insync.replicas` asks for. How far
   the high watermark may advance otherwise: `replication.leadership`.
2. A topic with fewer replicas than `min.insync.replicas` needs all its replicas in sync.
"""

from collections.abc import Collection

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.replication.leadership import AfterAnswer, Horizon, InSyncProposal, Leadership
from tailrace.replication.replica import Replica
from tailrace.replication.replica_progress import FollowerFetch, ReplicaProgress, SessionVisits
from tailrace.replication.watchers import Change


def has_enough_in_sync(
    *, in_sync: Collection[BrokerId], replicas: Collection[BrokerId], min_insync_replicas: int
) -> bool:
    """Whether so many replicas are in sync that acks=all may be accepted and the high watermark may advance."""
    return len(in_sync) >= min(min_insync_replicas, len(replicas))


def _has_same_replicas(state: PartitionState, other: PartitionState) -> bool:
    """Whether two states agree on everything that a follower's fetch may change."""
    return (
        state.in_sync_replicas == other.in_sync_replicas
        and state.replicas == other.replicas
        and state.is_recovering == other.is_recovering
    )


class InSyncReplicas:
    """The leading side of one partition. The object takes every state of the partition, and has followers only while
    this broker leads."""

    __slots__ = ("_replica", "has_enough", "leadership")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.has_enough = True
        """Whether as many replicas are in sync as acks=all needs."""
        self.leadership: Leadership | None = None
        """The leadership of a leader with followers, or with a recovery to report to the controller."""

    def take_state(self, state: PartitionState) -> None:
        """Take the controller's latest state. This broker must already have its role in that state."""
        replica, before = self._replica, self._replica.state
        own_id = replica.context.broker_id
        replica.state = state
        is_alone = state.replicas == (own_id,)
        if not replica.is_leader or (is_alone and not state.is_recovering):
            self.leadership = None
        elif self.leadership is None:
            self.leadership = Leadership(state, own_id=own_id, now_ms=replica.context.monotonic_ms())
        else:
            self.leadership.take_state(state)
        self.has_enough = has_enough_in_sync(
            in_sync=state.in_sync_replicas,
            replicas=state.replicas,
            min_insync_replicas=replica.config.min_insync_replicas,
        )
        if before is None or not _has_same_replicas(before, state):
            replica.notify(Change.IN_SYNC | Change.CANDIDATES)

    @property
    def is_alone(self) -> bool:
        """Whether records can be read before any follower has them: no follower is in sync or proposed."""
        return self.leadership is None or self.leadership.is_alone

    def waits_for_own_flush(self, end_offset: int) -> bool:
        """Whether nothing but this leader's own flush keeps the high watermark below `end_offset`."""
        replica, leadership = self._replica, self.leadership
        if not (replica.is_leader and self.has_enough) or replica.own_end_offset >= end_offset:
            return False
        return leadership is None or leadership.others_have(end_offset)

    def check_enough(self) -> None:
        """Raises KafkaError NOT_ENOUGH_REPLICAS (19) if acks=all is refused now."""
        if not self.has_enough:
            replica = self._replica
            in_sync = () if replica.state is None else replica.state.in_sync_replicas
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{replica.topic_partition} has {len(in_sync)} in-sync replicas; min.insync.replicas is "
                f"{replica.config.min_insync_replicas}",
            )

    def take_fetch(self, replica_id: BrokerId, fetch: FollowerFetch) -> bool:
        """Record a follower's fetch, which acknowledges every record below its offset, and advance the high watermark.

        Returns whether the in-sync replicas should change after this fetch. Raises KafkaError as
        `Leadership.take_fetch` and `check_leader`.
        """
        self._replica.check_leader()
        if self.leadership is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica_id} is no replica of {self._replica.topic_partition} here",
            )
        wants_change = self.leadership.take_fetch(replica_id, fetch, self._horizon())
        self._replica.notify(Change.CANDIDATES)
        self.advance_high_watermark(self._replica.own_end_offset)
        return wants_change

    def rest(self, replica_id: BrokerId, visits: SessionVisits) -> bool:
        """Count the fetches of this session for the follower from now on, though they do not name the partition.

        Returns whether the fetches count; if not, the next fetch has to be recorded. See `SessionVisits`.
        """
        progress = self._progress(replica_id)
        return progress is not None and progress.rest(visits, leader_end_offset=self._replica.log.log_end_offset)

    def end_rest(self, replica_id: BrokerId, visits: SessionVisits) -> None:
        """Stop counting the fetches of this session for the follower, if the follower rests in this session."""
        progress = self._progress(replica_id)
        if progress is not None:
            progress.end_rest(visits)

    # High watermarks of followers

    def note_sent(self, replica_id: BrokerId, high_watermark: int) -> None:
        """Note that this follower is sent this high watermark. The follower's next fetch acknowledges it, or states
        another high watermark."""
        progress = self._progress(replica_id)
        if progress is not None:
            progress.sent_high_watermark = high_watermark

    def acknowledge_high_watermark(self, replica_id: BrokerId, high_watermark: int) -> None:
        """Note that this follower has got this high watermark from an answer. A later fetch of the session, which need
        not name the partition, has acknowledged the answer."""
        progress = self._progress(replica_id)
        if progress is not None and progress.known_high_watermark != high_watermark:
            progress.known_high_watermark = high_watermark
            self._replica.notify(Change.CANDIDATES)

    def knows_high_watermark(self, replica_id: BrokerId) -> bool:
        """Whether this follower has acknowledged or stated the present high watermark."""
        progress = self._progress(replica_id)
        return progress is not None and progress.known_high_watermark >= self._replica.high_watermark.offset

    def wants_deleted_keys(self, replica_id: BrokerId, version: int, place: tuple[int, int]) -> bool:
        """Whether the answer to this follower is to have the note of deleted keys (`ReplicaProgress`)."""
        progress = self._progress(replica_id)
        return progress is not None and progress.wants_deleted_keys(version, place)

    def serving(self, offset: int) -> list[tuple[BrokerId, ReplicaProgress]]:
        """The followers in sync that can serve a consumer at this offset, because they know that the offset is
        committed.

        Empty for an offset that this leader itself has not committed, or does not have any more (KIP-392).
        """
        replica, leadership = self._replica, self.leadership
        if leadership is None or replica.log.is_offline:
            return []
        if not replica.log.log_start_offset <= offset <= replica.high_watermark.offset:
            return []
        in_sync = leadership.state.in_sync_replicas
        return [
            (replica_id, progress)
            for replica_id, progress in leadership.replicas.items()
            if replica_id in in_sync
            and 0 <= progress.log_start_offset <= offset <= progress.acknowledged_high_watermark
        ]

    def _progress(self, replica_id: BrokerId) -> ReplicaProgress | None:
        return None if self.leadership is None else self.leadership.replicas.get(replica_id)

    def exclude(self, broker_ids: Collection[BrokerId]) -> None:
        """Let the high watermark no longer wait for these brokers to come in sync: the brokers are fenced, or stop."""
        if self.leadership is not None:
            if self.leadership.exclude(broker_ids):
                self.advance_high_watermark(self._replica.own_end_offset)
            self._replica.notify(Change.IN_SYNC)

    def propose(self) -> InSyncProposal | None:
        """A proposal if the in-sync replicas should change and none is pending; `on_response` takes its answer."""
        replica = self._replica
        if self.leadership is None or replica.is_closed:
            return None
        if replica.log.is_damaged and replica.state is not None and replica.state.is_recovering:
            return None  # the damage must be cut off before the recovery may end
        return self.leadership.propose(self._horizon())

    def on_response(self, proposal: InSyncProposal, outcome: PartitionState | KafkaError) -> AfterAnswer:
        """Take the controller's answer to a proposal; returns the leader's next step.

        An answer that removes a replica from the in-sync replicas takes effect only with the metadata image: the
        controller may have decided with a higher `min.insync.replicas` than this node has applied.
        """
        replica, leadership, known = self._replica, self.leadership, self._replica.state
        if leadership is None or known is None:
            return AfterAnswer.NOTHING
        next_step = leadership.on_response(proposal, outcome)
        if isinstance(outcome, PartitionState):
            is_news = outcome.partition_epoch > known.partition_epoch
            keeps_all = set(known.in_sync_replicas) <= set(outcome.in_sync_replicas)
            leads_on = (outcome.leader, outcome.leader_epoch) == (replica.context.broker_id, replica.leader_epoch)
            if is_news and keeps_all and leads_on:
                self.take_state(outcome)
        self.advance_high_watermark(replica.own_end_offset)
        return self.reconsider() if next_step is AfterAnswer.NOTHING else next_step

    def reconsider(self) -> AfterAnswer:
        """The next step when another state has come, or a proposal has an outcome: see `Leadership.reconsider`."""
        if self.leadership is None or self._replica.is_closed:
            return AfterAnswer.NOTHING
        return self.leadership.reconsider(self._horizon())

    def is_proposed(self, proposal: InSyncProposal) -> bool:
        """Whether this proposal is still pending."""
        return self.leadership is not None and self.leadership.pending is proposal

    def _horizon(self) -> Horizon:
        replica = self._replica
        return Horizon(
            high_watermark=replica.high_watermark.offset,
            epoch_start_offset=replica.leader_epoch_start_offset,
            log_end_offset=replica.log.log_end_offset,
            now_ms=replica.context.monotonic_ms(),
            lag_ms=replica.context.lag_ms,
        )

    def look_again(self) -> None:
        """Advance the high watermark, if it was held back by a replica whose time is over (rule 2 of
        `replication.leadership`)."""
        if not self._replica.is_closed:
            self.advance_high_watermark(self._replica.own_end_offset)

    def advance_high_watermark(self, own_end_offset: int) -> None:
        """Advance the high watermark to the lowest end of the replicas in sync. The end of this replica is
        `own_end_offset`, the end of its stored log."""
        replica, leadership, advanced = self._replica, self.leadership, own_end_offset
        if leadership is not None:
            advanced = leadership.safe_end_offset(
                own_end_offset,
                log_end_offset=replica.log.log_end_offset,
                now_ms=replica.context.monotonic_ms(),
                lag_ms=replica.context.lag_ms,
            )
            if leadership.held_until_ms is not None and self.has_enough:
                replica.context.on_held_back(self, leadership.held_until_ms)
        if advanced <= replica.high_watermark.offset or not (replica.is_leader and self.has_enough):
            return
        is_noted = replica.context.is_flushed or leadership is not None
        replica.rise(advanced, None if is_noted else replica.written_bytes)
