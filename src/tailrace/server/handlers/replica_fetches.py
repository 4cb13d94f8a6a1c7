"""What the fetches of followers mean to the partitions that this node leads.

A follower's fetch offset is an acknowledgement. It counts only from a replica of the partition, in the leader epoch in
which this node leads, and not from before the follower's last start as far as this node has heard of it (KIP-903). It
counts once: not again when the fetch is tried again after a wait.
"""

from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest
from tailrace.replication.outcomes import PartitionRead
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import ReplicaFetch
from tailrace.server.hosts.in_sync_keeper import InSyncKeeper
from tailrace.server.ports import Controller

FIRST_WITH_REPLICA_STATE: Final = 15
_UNKNOWN: Final = -1


class ReplicaFetches:
    """Knows who the other brokers are, and tells the keeper who has caught up."""

    def __init__(self, *, controller: Controller, keeper: InSyncKeeper) -> None:
        self._controller = controller
        self._keeper = keeper

    def reader(self, request: FetchRequest, version: int) -> "FetchingReplica | None":
        """The follower that asks; None for a consumer."""
        replica_id, broker_epoch = request.replica_id, _UNKNOWN
        if version >= FIRST_WITH_REPLICA_STATE:
            replica_id, broker_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
        if replica_id < 0:
            return None
        known = self._controller.image.brokers.get(BrokerId(replica_id))
        return FetchingReplica(
            BrokerId(replica_id),
            broker_epoch,
            is_old=known is not None and _UNKNOWN < broker_epoch < known.broker_epoch,
            may_join=known is not None and known.is_alive and broker_epoch in (_UNKNOWN, known.broker_epoch),
            keeper=self._keeper,
        )


class FetchingReplica:
    """A follower, for the time of one request."""

    __slots__ = ("_broker_epoch", "_is_noted", "_is_old", "_keeper", "_may_join", "_replica_id")

    def __init__(
        self, replica_id: BrokerId, broker_epoch: int, *, is_old: bool, may_join: bool, keeper: InSyncKeeper
    ) -> None:
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._is_old = is_old
        self._may_join = may_join
        self._keeper = keeper
        self._is_noted = False

    def check(self, partition: Partition, wanted: FetchPartition) -> None:
        """Raises KafkaError FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75) or NOT_LEADER_OR_FOLLOWER (6)."""
        partition.check_leader(wanted.current_leader_epoch)
        if self._is_old:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._replica_id} has been registered again since epoch {self._broker_epoch}",
            )
        if partition.state is None or self._replica_id not in partition.state.replicas:
            has_epoch = wanted.current_leader_epoch >= 0
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._replica_id} is no replica of {partition.topic_partition} here",
            )

    def read(
        self, partition: Partition, wanted: FetchPartition, *, max_bytes: int, min_one_message: bool
    ) -> PartitionRead:
        """What the follower gets. Its log does not part from this one up to its fetch offset, so this is noted."""
        got = partition.read_for_replica(wanted.fetch_offset, max_bytes=max_bytes, min_one_message=min_one_message)
        if not self._is_noted:
            fetch = ReplicaFetch(wanted.fetch_offset, wanted.log_start_offset, self._broker_epoch, self._may_join)
            if partition.take_replica_fetch(self._replica_id, fetch):
                self._keeper.consider(partition)
            got.high_watermark, got.last_stable_offset = partition.high_watermark, partition.last_stable_offset
        return got

    def noted(self) -> None:
        """The request has been carried out once."""
        self._is_noted = True

    def is_behind(self, partition: Partition, wanted: FetchPartition) -> bool:
        """Whether it has something to learn that is no record: then it must not wait (KIP-392)."""
        return wanted.high_watermark < partition.high_watermark
