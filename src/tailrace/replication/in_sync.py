"""The in-sync replicas of a partition that is led here, and the high watermark that they allow (KIP-966).

1. The high watermark does not advance while fewer replicas are in sync than `min.insync.replicas` asks for. How far it
   may advance otherwise: `replication.leadership`.
2. A topic with fewer replicas than `min.insync.replicas` is held to the number that it has.
"""

from collections.abc import Collection

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.replication.leadership import AfterAnswer, Horizon, InSyncProposal, Leadership
from tailrace.replication.replica import Replica
from tailrace.replication.replica_progress import ReplicaFetch


def has_enough_in_sync(
    *, in_sync: Collection[BrokerId], replicas: Collection[BrokerId], min_insync_replicas: int
) -> bool:
    """Whether acks=all may be accepted, and the high watermark may advance."""
    return len(in_sync) >= min(min_insync_replicas, len(replicas))


class InSyncReplicas:
    """The leading side of one partition. It takes every state, and knows no follower while another broker leads."""

    __slots__ = ("_replica", "has_enough", "leadership")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.has_enough = True
        """Whether as many replicas are in sync as acks=all asks for."""
        self.leadership: Leadership | None = None
        """Of a leader that has followers, or has something to tell the controller."""

    def take_state(self, state: PartitionState) -> None:
        """Go by what the controller has decided. The role that it gives this broker must have been taken before."""
        replica = self._replica
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

    def take_fetch(self, replica_id: BrokerId, fetch: ReplicaFetch) -> bool:
        """A follower has all below its fetch offset: the high watermark may advance.

        Gives whether the in-sync replicas should change because of it. Raises KafkaError as `Leadership.take_fetch`
        and `check_leader`.
        """
        self._replica.check_leader()
        if self.leadership is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica_id} is no replica of {self._replica.topic_partition} here",
            )
        wants_change = self.leadership.take_fetch(replica_id, fetch, self._horizon())
        self.advance_high_watermark(self._replica.own_end_offset)
        return wants_change

    def exclude(self, broker_ids: Collection[BrokerId]) -> None:
        """These brokers are fenced, or stop: the high watermark does not wait for them to come in sync."""
        if self.leadership is not None and self.leadership.exclude(broker_ids):
            self.advance_high_watermark(self._replica.own_end_offset)

    def propose(self) -> InSyncProposal | None:
        """The in-sync replicas that should be, if others are and nothing is proposed yet; see `on_response`."""
        replica = self._replica
        if self.leadership is None or replica.is_closed:
            return None
        if replica.log.is_damaged and replica.state is not None and replica.state.is_recovering:
            return None  # it has not recovered before the damage is cut
        return self.leadership.propose(self._horizon())

    def on_response(self, proposal: InSyncProposal, outcome: PartitionState | KafkaError) -> AfterAnswer:
        """The controller's answer to a proposal, and what is to be done now.

        A replica has left when the image says so: the controller may have used a higher `min.insync.replicas` than this
        node has, which the image brings first.
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
        return next_step

    def is_proposed(self, proposal: InSyncProposal) -> bool:
        """Whether this proposal is still under way."""
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

    def advance_high_watermark(self, own_end_offset: int) -> None:
        """Take notice of how far the own log counts: flushed, or written under page-cache durability."""
        replica, leadership, advanced = self._replica, self.leadership, own_end_offset
        if leadership is not None:
            advanced = leadership.safe_end_offset(
                own_end_offset,
                log_end_offset=replica.log.log_end_offset,
                now_ms=replica.context.monotonic_ms(),
                lag_ms=replica.context.lag_ms,
            )
        if advanced <= replica.high_watermark.offset or not (replica.is_leader and self.has_enough):
            return
        is_noted = replica.context.is_flushed or leadership is not None
        replica.rise(advanced, None if is_noted else replica.written_bytes)
