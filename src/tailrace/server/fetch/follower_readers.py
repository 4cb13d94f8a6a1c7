"""The effects of followers' fetches on the partitions that this node leads.

A follower's fetch offset is an acknowledgement, and a follower reads uncommitted records. So a fetch in the name of a
broker is answered only if that broker is a replica of the partition, and if the fetch has the leader epoch in which
this node leads, and the broker epoch (KIP-903: Fetch v15) and the secret of the registration in this node's image. Any
other fetch is refused and changes nothing: either the follower has sent the fetch before its last start, or so soon
after its start that this node's image does not have the registration yet, or a client imitates a follower. Kafka's
leaders accept a fetch without the two epochs.

An acknowledgement is recorded once, not again when a waiting fetch is read again.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from tailrace.metadata.image import BrokerImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.replication.outcomes import PartitionRead
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import FollowerFetch, SessionVisits
from tailrace.server.fetch.broker_proofs import BrokerProofs
from tailrace.server.fetch.params import FetchSender, Reader, SentBytes, WantedPartition
from tailrace.server.replicas.in_sync_keeper import InSyncKeeper
from tailrace.server.replicas.replication_throttles import ReplicationThrottles
from tailrace.storage import ReadLimits

_UNKNOWN: Final = -1
_NOT_STATED: Final = 2**63 - 1
"""The value of the high watermark in a fetch that states no high watermark: the default from v18 on, and every fetch
before v18."""


class FollowerReaders:
    """Makes the reader for each fetch of a follower. The reader uses what this node knows and counts."""

    def __init__(
        self, *, proofs: BrokerProofs, keeper: InSyncKeeper, throttles: ReplicationThrottles, sent: SentBytes
    ) -> None:
        """`sent` counts the bytes of the answers."""
        self.proofs: Final = proofs
        self.keeper: Final = keeper
        self.throttles: Final = throttles
        self.sent: Final = sent

    def reader(self, sender: FetchSender) -> "FetchingFollower":
        """The follower that has sent a request."""
        return FetchingFollower(self, sender)


class FetchingFollower(Reader):
    """A follower, as the `Reader` of one request."""

    is_replica = True
    must_check = True

    __slots__ = (
        "_broker_epoch",
        "_is_recorded",
        "_marks",
        "_may_join",
        "_must_note_sent",
        "_node",
        "_replica_id",
        "_secret",
    )

    def __init__(self, node: FollowerReaders, sender: FetchSender) -> None:
        self._node = node
        self._replica_id = BrokerId(sender.replica_id)
        self._broker_epoch = sender.broker_epoch
        self._secret = sender.secret
        self._may_join = False
        self._is_recorded = False
        self._must_note_sent = False
        self._marks: dict[Partition, int] = {}
        """The high watermarks that the answer has, to be noted when the answer leaves: by then the partitions may have
        other high watermarks."""

    def check(self, partition: Partition, wanted: WantedPartition) -> None:
        """Raises KafkaError FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75) or NOT_LEADER_OR_FOLLOWER (6)."""
        leader_epoch, replica_id = wanted.current_leader_epoch, self._replica_id
        partition.check_leader(leader_epoch)
        if leader_epoch < 0:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the fetch of broker {replica_id} has no leader epoch")
        known = self._registration
        if known is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the fetch of broker {replica_id} has broker epoch {self._broker_epoch}, and not the epoch and the"
                " secret of its registration here",
            )
        if partition.state is None or replica_id not in partition.state.replicas:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica_id} is no replica of {partition.topic_partition} here",
            )
        self._may_join = known.is_alive

    def read(self, partition: Partition, wanted: WantedPartition, limits: ReadLimits) -> PartitionRead:
        """The records for the follower. The follower's log equals this log up to the fetch offset, which is
        recorded."""
        is_held_back = self._node.throttles.holds_back(partition, self._replica_id)
        if is_held_back:  # the fetch offset is still checked and recorded
            limits = ReadLimits(limits.offset, 0, limits.isolation, limits.leader_epoch, min_one_message=False)
        got = partition.read_for_replica(limits)
        if is_held_back:
            got.reaches_end = True  # records that the follower may not get yet must not end its wait
        if not self._is_recorded:
            stated = wanted.high_watermark
            if stated >= _NOT_STATED:
                self._must_note_sent = True
            fetch = FollowerFetch(
                wanted.fetch_offset,
                wanted.log_start_offset,
                self._broker_epoch,
                self._may_join,
                stated if stated < _NOT_STATED else _UNKNOWN,
            )
            if partition.in_sync.take_fetch(self._replica_id, fetch):
                self._node.keeper.consider(partition)
            got.high_watermark, got.last_stable_offset = partition.high_watermark, partition.last_stable_offset
        if self._must_note_sent:
            self._marks[partition] = got.high_watermark
        return got

    def deleted_keys(self, partition: Partition, wanted: WantedPartition) -> bytes:
        noted = partition.log.keys.noted
        if noted is None or noted.known is None:
            return b""
        place = wanted.fetch_offset, wanted.log_start_offset
        is_wanted = partition.in_sync.wants_deleted_keys(self._replica_id, noted.version, place)
        return noted.known.to_bytes() if is_wanted else b""

    def mark_recorded(self) -> None:
        """Note that the acknowledgements of this request are recorded."""
        self._is_recorded = True

    def acknowledge(self, known: Iterable[tuple[Partition, int]]) -> None:
        if self.is_registered:  # a fetch from before the last start proves nothing about the present run
            for partition, high_watermark in known:
                partition.in_sync.acknowledge_high_watermark(self._replica_id, high_watermark)

    def new_visits(self) -> SessionVisits:
        known = self._registration
        return SessionVisits(broker_epoch=self._broker_epoch, may_join=known is not None and known.is_alive)

    def rest(self, partition: Partition, visits: SessionVisits | None) -> bool:
        return visits is not None and partition.in_sync.rest(self._replica_id, visits)

    def end_rest(self, partition: Partition, visits: SessionVisits | None) -> None:
        if visits is not None:
            partition.in_sync.end_rest(self._replica_id, visits)

    @property
    def _registration(self) -> BrokerImage | None:
        """The registration that this node knows, if the fetch was sent in this registration."""
        known = self._node.proofs.registration(self._replica_id, self._secret)
        return known if known is not None and known.broker_epoch == self._broker_epoch else None

    @property
    def is_proven(self) -> bool:
        return self._node.proofs.registration(self._replica_id, self._secret) is not None

    @property
    def is_registered(self) -> bool:
        return self._registration is not None

    @property
    def conditions(self) -> Hashable:
        known = self._registration
        return self._broker_epoch, None if known is None else known.is_alive

    def is_behind(self, partition: Partition, wanted: WantedPartition) -> bool:
        """Whether the follower's high watermark is behind: then a full fetch must not wait (KIP-392).

        A follower before Fetch v18 does not state its high watermark: the high watermark that its fetches have
        acknowledged counts.
        """
        if wanted.high_watermark < _NOT_STATED:
            return wanted.high_watermark < partition.high_watermark
        return not partition.in_sync.knows_high_watermark(self._replica_id)

    def mark_sent(self, given: Sequence[tuple[Partition, int]], *, has_session: bool) -> None:
        """Note the high watermarks in an answer to a fetch that states no high watermark: the next fetch acknowledges
        these high watermarks.

        In a session only the session's next fetch acknowledges the answer: a full fetch in its place shows that the
        answer was lost. Without a session any next fetch counts as the acknowledgement.
        """
        self._node.sent.count(given, is_replica=True)
        must_note = self._must_note_sent and not has_session
        for partition, size_bytes in given:
            if size_bytes:
                self._node.throttles.count_sent(partition, size_bytes)
            if must_note:
                partition.in_sync.note_sent(self._replica_id, self._marks.get(partition, partition.high_watermark))
