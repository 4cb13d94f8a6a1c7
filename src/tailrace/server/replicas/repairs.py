"""The repair of replicas that have lost records: the log is renamed, and fetched again from the leader.

A replica is repaired when the image does not count on it any more (`replicas.failures` proposes its removal), and
another replica leads that has just answered a read. The read is needed when all nodes start together: then the image
may name a leader that has not started yet, and whose log is damaged too. Without a leader nothing is changed. The
steps, each durable before the next:

1. The directory of the damaged log is renamed. The files stay there until an administrator removes them.
2. The entries of the log leave the checkpoints.
3. An empty log is made, and fetched.

If an administrator has chosen this replica to lead in spite of its loss (`PartitionState.accepts_loss`), its log is cut
at the damage instead (`server.partitions.damage_cut`), and the replica leads. No other election cuts a log.

A crash before step 1 leaves a damaged log, a crash before step 2 no log: in both cases the next start reports the
replica as lost, and never takes its log for a short and healthy log. Each further repair of a replica waits longer.
"""

import logging
from typing import Final, NamedTuple, Protocol

from tailrace.metadata.commands import LeaveReason
from tailrace.metadata.deciding.in_sync_changes import is_wanted
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import Alarm
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.renamed_directories import KeptLogs
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Controller, Peer

LOOK_MS: Final = 500
FIRST_BACKOFF_MS: Final = 5_000
"""The wait before the second repair of a replica; each later repair waits twice as long."""
LONGEST_BACKOFF_MS: Final = 300_000
_FIRST_WITH_TOPIC_IDS: Final = 13
_OF_LEADERS: Final = (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE)
FORGOTTEN_MS: Final = 600_000
"""The time without damage after which the next repair counts as the first."""

_logger = logging.getLogger("tailrace.server")


class LostReplicas(Protocol):
    """The replicas that have been lost here: `server.replicas.failures.ReplicaFailures`."""

    @property
    def lost_replicas(self) -> tuple[TopicPartition, ...]: ...

    def recovered(self, topic_partition: TopicPartition, /) -> None:
        """Clear the failure of a replica: missing records were given up, or are fetched before the replica is in
        sync."""
        ...

    def given_up(self, topic_partition: TopicPartition, /) -> None:
        """Report a lost replica that was chosen to lead, and whose log cannot be cut."""
        ...


class Opener(Protocol):
    """Adds partitions: `server.replicas.metadata_applier.MetadataApplier`."""

    def reopen(self, image: ClusterImage, topic_partition: TopicPartition, /) -> None: ...

    def config_of(self, image: ClusterImage, topic: str, /) -> TopicConfig: ...


class Fetchers(Protocol):
    """Fetches partitions: `server.replicas.fetchers.ReplicaFetchers`."""

    def is_fetching(self, topic_partition: TopicPartition, /) -> bool: ...

    def follow_anew(self, topic_partition: TopicPartition, /) -> None: ...


class Keeper(Protocol):
    """Proposes the end of a leader's recovery: `server.replicas.in_sync_keeper.InSyncKeeper`."""

    def consider(self, partition: Partition, /) -> None: ...


class _Repairs(NamedTuple):
    """The repairs of one replica: their number, and the time of the last."""

    times: int
    last_ms: int

    @property
    def due_ms(self) -> int:
        return self.last_ms + min(LONGEST_BACKOFF_MS, FIRST_BACKOFF_MS << min(self.times - 1, 16))


class ReplicaRepairs:
    """The repairs of one broker. `on_image` follows the partitions' new roles."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        partitions: PartitionTable,
        failures: LostReplicas,
        opener: Opener,
        fetchers: Fetchers,
        keeper: Keeper,
        peer: Peer,
        controller: Controller,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._failures = failures
        self._opener = opener
        self._fetchers = fetchers
        self._keeper = keeper
        self._peer = peer
        self._read_from: set[TopicPartition] = set()  # a read of their leader is under way
        self._controller = controller
        self._clock = clock
        self._under_way: set[TopicPartition] = set()  # the old log is being renamed, or the new log is not durable yet
        self._fetching: dict[TopicPartition, int] = {}  # with the time at which the repair began
        self._repairs: dict[TopicPartition, _Repairs] = {}
        self._given_up: dict[TopicPartition, PartitionState] = {}
        """The states in which a cut has failed: the replica leaves, since each further attempt would copy the log
        again."""
        self._next_look = Alarm(clock, self._look)
        self._is_stopped = False
        self.repaired = 0
        """The number of replicas that are in sync again after a repair."""

    @property
    def in_repair(self) -> int:
        """The number of replicas that are not in sync again yet since their repair began."""
        return len(self._under_way) + len(self._fetching)

    @property
    def kept_logs(self) -> KeptLogs:
        """The damaged logs that are kept on this node."""
        return self._partitions.directory.renamed.kept_logs

    def start(self) -> None:
        """Begin to repair. Call this when the partitions have their roles."""
        self._look()

    def stop(self) -> None:
        """Begin no more repairs."""
        self._is_stopped = True
        self._next_look.cancel()

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """End the repairs of replicas that are in sync again, or deleted."""
        for topic in delta.deleted_topics:
            for number in topic.partitions:
                self._fetching.pop(TopicPartition(topic.name, number), None)
                self._given_up.pop(TopicPartition(topic.name, number), None)
        if not self._fetching:
            return
        for topic_partition, state in delta.changed_partitions:
            if self._broker_id in state.in_sync_replicas and topic_partition in self._fetching:
                took_ms = self._clock.monotonic_ms() - self._fetching.pop(topic_partition)
                self.repaired += 1
                _logger.info(
                    "event=replica-repaired partition=%s leader=%d took_ms=%d", topic_partition, state.leader, took_ms
                )
            elif self._broker_id not in state.replicas:
                self._fetching.pop(topic_partition, None)

    def _look(self) -> None:
        """Begin the repairs that are due, and look again soon."""
        if self._is_stopped:
            return
        image, now_ms = self._controller.image, self._clock.monotonic_ms()
        for topic_partition in self._failures.lost_replicas:
            state = image.partition(*topic_partition)
            if state is not None and state.accepts_loss and state.leader == self._broker_id:
                self._lead_with_what_is_left(topic_partition, state)
                continue
            if state is None or not self._can_be_fetched(topic_partition, state):
                continue
            if not self._partitions.offline.why(topic_partition):
                self._failures.recovered(topic_partition)  # the log is short, and not damaged any more
            elif self._is_due(topic_partition, now_ms):
                self._ask_leader(topic_partition, state)
        self._next_look.set(now_ms + LOOK_MS)

    def _can_be_fetched(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Whether another replica leads, and neither the image nor the leader counts on this log.

        After the report of a lost replica the leader begins a new epoch, and in this epoch the replica does not fetch
        before its repair.
        """
        if topic_partition in self._under_way or self._partitions.is_leaving(topic_partition):
            return False
        is_follower = self._broker_id in state.replicas and state.leader not in (NO_LEADER, self._broker_id)
        is_fetching = self._fetchers.is_fetching(topic_partition)
        return is_follower and not is_fetching and not is_wanted(self._broker_id, state, LeaveReason.LOST)

    def _is_due(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        before = self._repairs.get(topic_partition)
        return before is None or now_ms >= before.due_ms

    def _ask_leader(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Send the leader a read, and repair the replica after the answer."""
        if topic_partition in self._read_from:
            return
        self._read_from.add(topic_partition)

        def answered(response: FetchResponse | None) -> None:
            self._read_from.discard(topic_partition)
            now = self._controller.image.partition(*topic_partition)
            if self._is_stopped or now is None or response is None or not _serves(response):
                return  # the next check tries again
            is_same = _is_same_epoch(state, now)
            is_lost = topic_partition in self._failures.lost_replicas and self._partitions.offline.why(topic_partition)
            if is_same and is_lost and self._can_be_fetched(topic_partition, now):
                self._repair(topic_partition, now, self._clock.monotonic_ms())

        self._peer.send(state.leader, _read(topic_partition, state), answered, oldest_version=_FIRST_WITH_TOPIC_IDS)

    def _repair(self, topic_partition: TopicPartition, state: PartitionState, now_ms: int) -> None:
        before = self._repairs.get(topic_partition)
        if before is None or now_ms - before.last_ms >= FORGOTTEN_MS:
            before = _Repairs(0, 0)
        self._repairs[topic_partition] = _Repairs(before.times + 1, now_ms)
        self._under_way.add(topic_partition)
        self._fetching.pop(topic_partition, None)
        reason = self._partitions.offline.why(topic_partition)

        def renamed(path: str | None) -> None:
            if path is None:  # the replica stays offline, and the repair is tried again
                self._under_way.discard(topic_partition)
                self._discard_if_gone(topic_partition, state)
                return
            _logger.warning(
                "event=replica-repair partition=%s leader=%d repairs=%d reason='%s' renamed_to=%s"
                " hint='the replica is fetched anew; remove the old files when it is in sync'",
                topic_partition,
                state.leader,
                before.times + 1,
                reason,
                path,
            )
            self._opener.reopen(self._controller.image, topic_partition)
            self._partitions.when_made(lambda: self._made(topic_partition, now_ms))

        self._partitions.damaged.rename(topic_partition, state.topic_id, renamed)

    def _lead_with_what_is_left(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Cut the log at its damage, and lead: an administrator has chosen this replica."""
        if topic_partition in self._under_way or self._partitions.is_leaving(topic_partition):
            return
        reason = self._partitions.offline.why(topic_partition)
        if not reason:
            self._lead(topic_partition)  # the log is short, and not damaged any more
            return
        given_up = self._given_up.get(topic_partition)
        if given_up is not None and _is_same_epoch(given_up, state):
            return
        self._under_way.add(topic_partition)

        def done(cut: DamageCut) -> None:
            self._under_way.discard(topic_partition)
            if self._discard_if_gone(topic_partition, state):
                return
            self._opener.reopen(self._controller.image, topic_partition)
            if cut.fault is not None or self._partitions.offline.why(topic_partition):
                _logger.error(
                    "event=replica-cut-failed partition=%s fault='%s' reason='%s' hint='choose another replica'",
                    topic_partition,
                    cut.fault or self._partitions.offline.why(topic_partition),
                    reason,
                )
                self._given_up[topic_partition] = state
                self._failures.given_up(topic_partition)
                return
            _logger.warning(
                "event=replica-cut partition=%s end_offset=%d acknowledged_up_to=%d reason='%s' copied_to=%s"
                " hint='an administrator has chosen this replica; remove the copy of the records that were cut off"
                " when you no longer need it'",
                topic_partition,
                cut.end_offset,
                cut.acknowledged_end_offset,
                reason,
                cut.copy_path,
            )
            self._lead(topic_partition)

        config = self._opener.config_of(self._controller.image, topic_partition.topic)
        self._partitions.damaged.cut(topic_partition, state, config, done)

    def _discard_if_gone(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Remove the directory of the damaged log if the partition was deleted meanwhile, or has no replica here any
        more."""
        now = self._controller.image.partition(*topic_partition)
        is_here = now is not None and now.topic_id == state.topic_id and self._broker_id in now.replicas
        if not is_here:
            self._partitions.damaged.discard(topic_partition, state.topic_id)
        return not is_here

    def _lead(self, topic_partition: TopicPartition) -> None:
        self._given_up.pop(topic_partition, None)
        self._failures.recovered(topic_partition)
        partition = self._partitions.find(*topic_partition)
        if partition is not None and not self._is_stopped:
            self._keeper.consider(partition)

    def _made(self, topic_partition: TopicPartition, since_ms: int) -> None:
        """Fetch the replica: its empty log is durable."""
        self._under_way.discard(topic_partition)
        if self._is_stopped or not self._partitions.has(*topic_partition):
            return
        self._fetching[topic_partition] = since_ms
        self._failures.recovered(topic_partition)
        self._fetchers.follow_anew(topic_partition)


def _read(topic_partition: TopicPartition, state: PartitionState) -> FetchRequest:
    """A read as a consumer, which is answered at once, and does not acknowledge an offset of this replica."""
    partition = FetchPartition(
        partition=topic_partition.partition,
        current_leader_epoch=state.leader_epoch,
        fetch_offset=0,
        partition_max_bytes=1,
    )
    topic = FetchTopic(topic_id=state.topic_id, partitions=(partition,))
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=(topic,))


def _serves(response: FetchResponse) -> bool:
    """Whether the response is from a leader whose log can be read, even if the offset has no record."""
    answers = [answer.error_code for topic in response.responses for answer in topic.partitions]
    return response.error_code == ErrorCode.NONE and bool(answers) and all(code in _OF_LEADERS for code in answers)


def _is_same_epoch(before: PartitionState, now: PartitionState) -> bool:
    """Whether both states belong to the same topic and the same election."""
    return (before.topic_id, before.leader_epoch) == (now.topic_id, now.leader_epoch)
