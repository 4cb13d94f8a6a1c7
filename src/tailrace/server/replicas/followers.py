"""Keeps the replicas that this node follows like their leaders': one `replication.follower` machine per leader.

What the image says of leaders is followed when the partitions have taken their roles. A partition begins to be fetched
when all that its log has counts: after a leadership, the end of it may still be on its way to the disk.

Nothing that belongs to an older leader epoch is carried out: between an effect and the disk's answer a partition may
have got another leader, become one, or have been deleted.

A disk that hangs keeps the image of this node from going on. So a replica that leaves because of it is not fetched from
the time when the controller is asked: a fetch of an idle partition shows a replica that is caught up, and its leader
would put it back in sync.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.replication.follower import (
    Answered,
    Cut,
    Effect,
    Event,
    Follow,
    Follower,
    PartitionKey,
    Position,
    ReportStall,
    Restart,
    SendFetch,
    Store,
    Stored,
    StoreFailed,
    Tick,
    Unfollow,
    cut_offset,
    may_cut,
)
from tailrace.replication.partition import Partition
from tailrace.replication.replica_fetch import OLDEST_VERSION, Fetches, FullFetches, ReplicaFetchConfig
from tailrace.server.alarm import Alarm
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Peer, Timer

_RETRY_MS: Final = 200
"""How soon a partition is looked for again that should be here and is not yet."""
_SLICE_MS: Final = 5
_UNKNOWN: Final = -1
_WHILE_ASKED: Final = 1 << 31
"""Above all partition epochs."""
_REPORTS_PER_MS: Final = 60_000
_MOST_REPORTS: Final = 20
"""Stalled replicas of one leader that are named within that time; the others are counted."""

_logger = logging.getLogger("tailrace.server")


class _Leader(NamedTuple):
    """Whom a partition follows."""

    broker_id: BrokerId
    leader_epoch: int


class FollowerHosts:
    """All that this node follows. `load` comes first, then `on_image` after the partitions have their roles."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        partitions: PartitionTable,
        peer: Peer,
        clock: Clock,
        config: ReplicaFetchConfig | None = None,
    ) -> None:
        """`peer` reaches the other brokers."""
        self._broker_id = broker_id
        self._partitions = partitions
        self._peer = peer
        self._clock = clock
        self._config = config or ReplicaFetchConfig()
        self._image = EMPTY_IMAGE
        self._hosts: dict[BrokerId, FollowerHost] = {}
        self._failed_before = 0  # fetches of leaders that nothing is fetched from any more
        self._leaders: dict[PartitionKey, _Leader] = {}
        self._names: dict[PartitionKey, TopicPartition] = {}
        self._to_begin: dict[PartitionKey, None] = {}  # to be followed, and not looked at yet
        self._missing: dict[PartitionKey, None] = {}  # looked at, and not here yet
        self._retry: Timer | None = None
        self._only_in_sync = False
        self._left: dict[PartitionKey, int] = {}  # not fetched by what an image of an earlier partition epoch says
        self._is_closed = False

    # What can be seen from outside

    @property
    def failed_fetches(self) -> int:
        """Fetches that got no answer, and answers for a partition that were errors."""
        return self._failed_before + sum(host.failed_fetches for host in self._hosts.values())

    @property
    def max_lag(self) -> int:
        """The most records that a replica here is behind its leader's high watermark."""
        return max((host.machine.max_lag for host in self._hosts.values()), default=0)

    @property
    def failed_partitions(self) -> int:
        """Replicas that cannot be stored. Some until a later try (damaged bytes of the leader, a full disk), some until
        there is a new leader or a new start: their log failed, or their leader lacks what is committed."""
        return sum(host.machine.broken for host in self._hosts.values())

    @property
    def stalled_partitions(self) -> int:
        """Replicas that their leader has refused for a while, always for the same reason."""
        return sum(host.machine.stalled for host in self._hosts.values())

    @property
    def partitions(self) -> int:
        """How many replicas here follow a leader."""
        return len(self._leaders)

    @property
    def broker_epoch(self) -> int:
        """Of this node's registration, as far as it knows."""
        registered = self._image.brokers.get(self._broker_id)
        return _UNKNOWN if registered is None else registered.broker_epoch

    # Life

    def load(self, image: ClusterImage) -> None:
        """Begin with what this image says."""
        self._image = image
        for topic in image.topics.values():
            for number, state in topic.partitions.items():
                self._go_by(TopicPartition(topic.name, number), state)

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Follow whom the image says."""
        self._image = image
        if self._is_closed:
            return
        for topic in delta.deleted_topics:
            for number in topic.partitions:
                key = PartitionKey(topic.topic_id, number)
                self._drop(key)
                self._left.pop(key, None)
        for topic in delta.created_topics:
            for number, state in topic.partitions.items():
                self._go_by(TopicPartition(topic.name, number), state)
        for topic_partition, state in delta.changed_partitions:
            self._go_by(topic_partition, state)

    def is_fetching(self, topic_partition: TopicPartition) -> bool:
        """Whether its leader is, or was, asked for it in this leader epoch."""
        state = self._image.partition(*topic_partition)
        key = None if state is None else PartitionKey(state.topic_id, topic_partition.partition)
        return key is not None and any(host.has(key) for host in self._hosts.values())

    def follow_anew(self, topic_partition: TopicPartition) -> None:
        """Follow the partition as if it had just come: its log is another one."""
        state = self._image.partition(*topic_partition)
        if state is not None and not self._is_closed:
            self._drop(PartitionKey(state.topic_id, topic_partition.partition))
            self._go_by(topic_partition, state)

    def fetch_only_in_sync(self, only: bool, /) -> None:
        """Fetch nothing that is out of sync, from now on, since the disk cannot take it; or fetch all of it again."""
        self._only_in_sync = only
        self._left.clear()
        if not self._is_closed:
            self.load(self._image)

    def pause(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Do not fetch this replica while the controller is asked to let it go; only while `fetch_only_in_sync` holds.

        Until `left` or `resume`. Of a fetch that left before, its leader hears before it hears of the controller's
        decision, unless that fetch takes longer than the decision and the way of the metadata together.
        """
        self._go_not_by_images_before(_WHILE_ASKED, topic_partition, state)

    def left(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """The controller has let this replica go, which this image may not say for long: do not fetch it until then."""
        self._go_not_by_images_before(state.partition_epoch, topic_partition, state)

    def resume(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """This replica stays, or nothing is asked any more: fetch it if the image says so."""
        key = PartitionKey(state.topic_id, topic_partition.partition)
        known = self._image.partition(*topic_partition)
        if self._left.pop(key, None) is not None and known is not None and known.topic_id == state.topic_id:
            self._go_by(topic_partition, known)

    def _go_not_by_images_before(
        self, partition_epoch: int, topic_partition: TopicPartition, state: PartitionState
    ) -> None:
        if self._only_in_sync and not self._is_closed:
            key = PartitionKey(state.topic_id, topic_partition.partition)
            self._left[key] = partition_epoch
            known = self._image.partition(*topic_partition)
            if known is None or known.topic_id != state.topic_id:
                del self._left[key]  # the topic is deleted, and nothing will end this
            else:
                self._go_by(topic_partition, known)

    def close(self) -> None:
        """Ask nobody any more."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
        self._leaders.clear()  # what is on its way to the disk is not followed any more

    def _go_by(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        key = PartitionKey(state.topic_id, topic_partition.partition)
        if self._broker_id not in state.replicas or state.leader in (NO_LEADER, self._broker_id):
            self._drop(key)
            return
        if self._only_in_sync and self._broker_id not in state.in_sync_replicas:
            self._drop(key)
            return
        if state.partition_epoch < self._left.get(key, _UNKNOWN):
            self._drop(key)
            return
        leader = _Leader(state.leader, state.leader_epoch)
        if self._leaders.get(key) != leader:
            self._drop(key)
            self._leaders[key] = leader
            self._names[key] = topic_partition
            self._to_begin[key] = None
            if len(self._to_begin) == 1:
                self._clock.call_soon(self._begin_some)

    def _drop(self, key: PartitionKey) -> None:
        leader = self._leaders.pop(key, None)
        if leader is None:
            return
        del self._names[key]
        self._missing.pop(key, None)
        self._to_begin.pop(key, None)
        host = self._hosts.get(leader.broker_id)
        if host is not None:
            host.step(Unfollow(key=key))
            if host.machine.is_idle:
                host.close()
                self._failed_before += host.failed_fetches
                del self._hosts[leader.broker_id]

    def _begin_some(self) -> None:
        """Begin for a few milliseconds: partitions may have to be opened for it. Then go on soon."""
        until_ms = self._clock.monotonic_ms() + _SLICE_MS
        while self._to_begin and not self._is_closed:
            if self._clock.monotonic_ms() >= until_ms:
                self._clock.call_soon(self._begin_some)
                return
            key = next(iter(self._to_begin))
            del self._to_begin[key]
            self._begin(key)

    def _begin(self, key: PartitionKey) -> None:
        """Have the partition fetched as soon as all that it has counts."""
        leader = self._leaders[key]
        partition = self._partitions.find(*self._names[key])
        if partition is None or partition.topic_id != key.topic_id or partition.leader_epoch != leader.leader_epoch:
            # Its predecessor is on its way out, or its log cannot be opened.
            self._missing[key] = None
            if self._retry is None:
                self._retry = self._clock.call_at(self._clock.monotonic_ms() + _RETRY_MS, self._look_again)
            return

        def flushed(fault: KafkaError | None) -> None:
            if fault is None and self._leaders.get(key) is leader:
                self._host_of(leader.broker_id).follow(key, partition)

        partition.flush_as_follower(flushed)

    def _look_again(self) -> None:
        self._retry = None
        missing, self._missing = self._missing, {}
        is_idle = not self._to_begin
        self._to_begin |= missing
        if is_idle:
            self._begin_some()

    def _host_of(self, leader: BrokerId) -> "FollowerHost":
        host = self._hosts.get(leader)
        if host is None:
            host = self._hosts[leader] = FollowerHost(
                leader,
                partitions=self._partitions,
                peer=self._peer,
                clock=self._clock,
                config=self._config,
                fetches=FullFetches(broker_id=self._broker_id, config=self._config),
                broker_epoch=lambda: self.broker_epoch,
            )
        return host


class _ToldFault(NamedTuple):
    """The last line about a replica that could not be stored."""

    text: str
    at_ms: int


class FollowerHost:
    """What is fetched from one leader."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        partitions: PartitionTable,
        peer: Peer,
        clock: Clock,
        config: ReplicaFetchConfig,
        fetches: Fetches,
        broker_epoch: Callable[[], int],
    ) -> None:
        self.leader = leader
        self.machine = Follower(backoff_ms=config.replica_fetch_backoff_ms)
        self._table = partitions
        self._peer = peer
        self._clock = clock
        self._config = config
        self._fetches = fetches
        self._broker_epoch = broker_epoch
        self._partitions: dict[PartitionKey, Partition] = {}
        self._cuts: dict[PartitionKey, Cut | Restart] = {}  # the last one of each, which may be done
        self._alarm = Alarm(clock, self._tick)
        self._reports_since_ms = clock.monotonic_ms()
        self._reports = 0
        self._told_faults: dict[PartitionKey, _ToldFault] = {}
        self._failures = BoundedLines("replica-failed", clock=clock, level=logging.WARNING)
        self._final_failures = BoundedLines("replica-failed", clock=clock, level=logging.ERROR)
        self._is_closed = False

    def __iter__(self) -> Iterator[Partition]:
        """What is fetched."""
        return iter(self._partitions.values())

    def has(self, key: PartitionKey) -> bool:
        """Whether this partition is fetched."""
        return key in self._partitions

    @property
    def failed_fetches(self) -> int:
        """Fetches that got no answer, and answers for a partition that were errors."""
        return self.machine.failed_fetches + self.machine.failed_answers

    def follow(self, key: PartitionKey, partition: Partition) -> None:
        """Fetch this partition from now on; all that its log has counts."""
        self._partitions[key] = partition
        self.step(Follow(key=key, leader_epoch=partition.leader_epoch, position=_position(partition)))

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._is_closed = True
        self._cuts.clear()
        self._alarm.cancel()

    def step(self, event: Event) -> None:
        """Give the machine an event, and do what it wants."""
        if self._is_closed:
            return
        if isinstance(event, Unfollow):
            self._partitions.pop(event.key, None)
            self._cuts.pop(event.key, None)
            self._told_faults.pop(event.key, None)
        for effect in self.machine.step(event, self._clock.monotonic_ms()):
            self._carry_out(effect)
        self._set_timer()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SendFetch):
            self._send(effect)
            return
        partition = self._partitions.get(effect.key)
        if partition is None or not _follows(partition, effect.leader_epoch):
            return  # the image has moved on, and this machine will hear of it
        try:
            match effect:
                case Store():
                    self._store(effect, partition)
                case Cut():
                    self._cut(effect, partition)
                case Restart():
                    self._restart(effect, partition)
                case ReportStall():
                    self._report_stall(effect, partition)
        except KafkaError as fault:
            assert not isinstance(effect, ReportStall)
            self._failed(effect, fault)

    def _send(self, effect: SendFetch) -> None:
        request = self._fetches.request(effect.changed, effect.forgotten, broker_epoch=self._broker_epoch())
        # A leader may keep a fetch waiting for as long as it says, and answers then.
        timeout_ms = self._config.replica_fetch_wait_max_ms + self._config.replica_socket_timeout_ms
        self._peer.send(self.leader, request, self._answered, oldest_version=OLDEST_VERSION, timeout_ms=timeout_ms)

    def _answered(self, response: Any) -> None:
        if not self._is_closed:
            self.step(Answered(answers=self._fetches.answers(response)))

    def _store(self, effect: Store, partition: Partition) -> None:
        answer = effect.answer
        if len(answer.records):
            partition.append_as_follower(answer.records)

        def flushed(fault: KafkaError | None) -> None:
            if not _follows(partition, effect.leader_epoch):
                return
            if fault is not None:
                self._failed(effect, fault)
            else:
                partition.follow_leader(high_watermark=answer.high_watermark, log_start_offset=answer.log_start_offset)
                self._stored(effect, partition)

        answer = answer._replace(records=b"")  # the bytes are not ours to keep
        partition.flush_as_follower(flushed)

    def _cut(self, effect: Cut, partition: Partition) -> None:
        log = partition.log
        offset = cut_offset(log.epochs, log.log_end_offset, effect.diverging)
        if not self._may_cut(effect, partition, offset):
            return
        self._note_cut(partition, offset, f"epoch-{effect.diverging.epoch}-ends-at-{effect.diverging.offset}")
        if offset < log.log_start_offset:
            self._when_cuttable(effect, partition, 0, lambda: partition.restart_at(offset))
        else:
            self._when_cuttable(effect, partition, offset, lambda: partition.truncate_to(offset))

    def _restart(self, effect: Restart, partition: Partition) -> None:
        start = effect.log_start_offset
        if self._may_cut(effect, partition, start):
            self._note_cut(partition, start, "the-leaders-log-begins-there")
            self._when_cuttable(effect, partition, 0, lambda: partition.restart_at(start))

    def _may_cut(self, effect: Cut | Restart, partition: Partition, offset: int) -> bool:
        """Whether the log may be cut here; if not, this partition stops until it has another leader."""
        position = _position(partition)
        agreed_epoch = max(partition.agreed_epoch, position.last_epoch)
        unclean_epoch = _UNKNOWN if partition.state is None else partition.state.unclean_epoch
        if may_cut(
            offset,
            high_watermark=position.high_watermark,
            agreed_epoch=agreed_epoch,
            unclean_epoch=unclean_epoch,
        ):
            return True
        if position.last_epoch > effect.leader_epoch:
            # No leader has told it so: the records are damaged that say this, and are fetched anew.
            partition.log.condemn(
                f"leader epoch {position.last_epoch}, in which its last batch says to be, never began",
                offset=partition.log.log_end_offset,
            )
            self.step(StoreFailed(key=effect.key, leader_epoch=effect.leader_epoch, is_final=True))
            return False
        topic, number = partition.topic_partition
        _logger.error(
            "event=replica-stopped partition=%s leader=%d leader_epoch=%d agreed_epoch=%d unclean_epoch=%d"
            " high_watermark=%d end_offset=%d cut_asked_at=%d reason='the leader lacks committed records that are here'"
            " hint='stop broker %d so that a replica that has them leads; if none does then, choose this one:"
            " tailrace topics elect %s --partition %d --unclean --force --replica %d'",
            partition.topic_partition,
            self.leader,
            effect.leader_epoch,
            agreed_epoch,
            unclean_epoch,
            position.high_watermark,
            position.end_offset,
            offset,
            self.leader,
            topic,
            number,
            partition.broker_id,
        )
        self.step(StoreFailed(key=effect.key, leader_epoch=effect.leader_epoch, is_final=True))
        return False

    def _report_stall(self, effect: ReportStall, partition: Partition) -> None:
        """One line, unless this minute has had many: a leader may refuse all that is followed there."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._reports_since_ms >= _REPORTS_PER_MS:
            if self._reports > _MOST_REPORTS:
                _logger.warning(
                    "event=replicas-stalled leader=%d partitions=%d", self.leader, self._reports - _MOST_REPORTS
                )
            self._reports_since_ms, self._reports = now_ms, 0
        self._reports += 1
        if self._reports <= _MOST_REPORTS:
            position = _position(partition)
            _logger.warning(
                "event=replica-stalled partition=%s leader=%d leader_epoch=%d error=%s for_ms=%d log_start_offset=%d"
                " end_offset=%d last_epoch=%d",
                partition.topic_partition,
                self.leader,
                effect.leader_epoch,
                effect.error.name,
                effect.for_ms,
                position.log_start_offset,
                position.end_offset,
                position.last_epoch,
            )

    def _when_cuttable(self, effect: Cut | Restart, partition: Partition, offset: int, cut: Callable[[], None]) -> None:
        """Cut when no recovery point says that a shorter log is a damaged one.

        `offset` is the lowest end that a crash on the way may leave: 0 for a log that is dropped whole.
        """

        self._cuts[effect.key] = effect

        def is_current() -> bool:
            # The partition may have been let go and taken up again meanwhile, in the same epoch: that cut is another.
            return self._cuts.get(effect.key) is effect and _follows(partition, effect.leader_epoch)

        def lowered(fault: KafkaError | None) -> None:
            if not is_current():
                return
            try:
                if fault is not None:
                    raise fault
                assert partition.recovery_bound is not None, f"{partition.topic_partition}: a recovery point has risen"
                cut()
            except KafkaError as failure:
                self._failed(effect, failure)
            else:
                partition.flush_as_follower(flushed)

        def flushed(fault: KafkaError | None) -> None:
            if not is_current():
                return
            if fault is not None:
                self._failed(effect, fault)
            else:
                self._stored(effect, partition)

        self._table.lower_recovery_point(partition, min(offset, partition.log.log_start_offset), lowered)

    def _stored(self, effect: Store | Cut | Restart, partition: Partition) -> None:
        self.step(Stored(key=effect.key, leader_epoch=effect.leader_epoch, position=_position(partition)))

    def _failed(self, effect: Store | Cut | Restart, fault: KafkaError) -> None:
        partition = self._partitions.get(effect.key)
        if partition is None:
            return
        is_final = partition.log.is_offline  # a disk that was full may have room again
        self._report_failure(effect.key, partition, fault, is_final=is_final)
        self.step(StoreFailed(key=effect.key, leader_epoch=effect.leader_epoch, is_final=is_final))

    def _report_failure(self, key: PartitionKey, partition: Partition, fault: KafkaError, *, is_final: bool) -> None:
        """One line, and for the same fault of the same partition no other within a minute: it is tried all the time."""
        text, now_ms = str(fault), self._clock.monotonic_ms()
        told = self._told_faults.get(key)
        if told is not None and told.text == text and now_ms - told.at_ms < _REPORTS_PER_MS:
            return
        self._told_faults[key] = _ToldFault(text, now_ms)
        lines = self._final_failures if is_final else self._failures
        lines.write("partition=%s leader=%d fault=%s", partition.topic_partition, self.leader, text)

    def _note_cut(self, partition: Partition, offset: int, why: str) -> None:
        is_loss = offset < partition.high_watermark
        _logger.log(
            # Only after an election that was not clean, or of a log that lags behind its leader's retention.
            logging.WARNING if is_loss else logging.INFO,
            "event=log-cut partition=%s end_offset=%d at=%d high_watermark=%d leader=%d reason=%s",
            partition.topic_partition,
            partition.log.log_end_offset,
            offset,
            partition.high_watermark,
            self.leader,
            why,
        )

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms
        if deadline_ms is not None and not self._is_closed:
            self._alarm.set(deadline_ms)

    def _tick(self) -> None:
        self.step(Tick())


def _follows(partition: Partition, leader_epoch: int) -> bool:
    """Whether the partition is here and still follows the leader of this epoch."""
    return not partition.is_closed and not partition.is_leader and partition.leader_epoch == leader_epoch


def _position(partition: Partition) -> Position:
    log = partition.log
    return Position(
        log.log_end_offset,
        log.epochs.epoch_of(log.log_end_offset - 1) if log.log_end_offset > log.log_start_offset else _UNKNOWN,
        log.log_start_offset,
        partition.high_watermark,
    )
