"""Runs the group coordinators of this node: one machine for each partition of `__consumer_offsets` that it leads.

1. While loading every request is refused with COORDINATOR_LOAD_IN_PROGRESS (14): a client that were told "no offset"
   would start from an end of the log.
2. Nobody hears of a decision before it is committed; reads see committed state only.
3. On loss of leadership whoever waits hears NOT_COORDINATOR (16), and the machine is dropped.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from tailrace.coordinators.groups.commands import (
    Command,
    CommitOffsets,
    CommitOffsetsInTransaction,
    ExpireOffsets,
    ForgetLostTopics,
    GroupInsight,
)
from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.groups.consumer.assignors import TopicInfo
from tailrace.coordinators.groups.consumer.heartbeat import ConsumerHeartbeat
from tailrace.coordinators.groups.coordinator import GroupCoordinator
from tailrace.coordinators.groups.events import (
    Answer,
    Asked,
    Effect,
    MemberExpired,
    MembershipResponse,
    MetadataCommitted,
    MetadataFailed,
    OffsetsCommitted,
    Persist,
    Retire,
)
from tailrace.coordinators.groups.group import RequestId
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
    pending_offset,
)
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.protocol.records.record import Record
from tailrace.protocol.schema import replace
from tailrace.replication.partition import Partition
from tailrace.replication.verification import Verification
from tailrace.server.data.transaction_markers import TransactionMarker
from tailrace.server.hosts.coordinator_log import CoordinatorLog, InTransaction
from tailrace.server.hosts.led_coordinators import HostState, LedCoordinators
from tailrace.server.hosts.sweep import Sweep
from tailrace.server.ports import Clock, Timer
from tailrace.server.waiters import Deadlines

T = TypeVar("T")

EventOf = Callable[[RequestId], Asked]
Respond = Callable[[MembershipResponse], None]
OnBeat = Callable[[ConsumerGroupHeartbeatResponse | KafkaError], None]
OnDone = Callable[[tuple[ErrorCode, ...] | KafkaError], None]

_logger = logging.getLogger("tailrace.server")


class GroupCoordinatorHost:
    """The coordinator of one partition, from the moment this node leads it until it no longer does."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: GroupConfig,
        new_member_id: NewMemberId,
        clock: Clock,
        deadlines: Deadlines,
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine = GroupCoordinator(config=config, new_member_id=new_member_id)
        self.state = HostState.LOADING
        self._config = config
        self._clock = clock
        self._log: CoordinatorLog[GroupLogRecord] = CoordinatorLog(
            partition,
            encode=encode_record,
            on_committed=self.machine.commit,
            on_discarded=self.machine.discard,
            clock=clock,
            deadlines=deadlines,
            timeout_ms=config.offsets_commit_timeout_ms,
        )
        self._waiting: dict[RequestId, Respond] = {}
        self._requests = 0
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._expiry_timer: Timer | None = None

    def start(self, on_active: Callable[[], None]) -> None:
        """Read the log; `on_active` is called when requests are served, or never."""
        self._log.replay(self._load, partial(self._loaded, on_active), self._load_failed, on_marker=self._load_marker)

    def _load(self, record: Record, producer_id: int) -> None:
        decoded = decode_record(record.key, record.value)
        if decoded is None:
            return
        if producer_id >= 0 and isinstance(decoded, OffsetRecord) and decoded.value is not None:
            self.machine.apply(pending_offset(decoded, producer_id, decoded.value))
        else:
            self.machine.apply(decoded)

    def _load_marker(self, producer_id: int, marker: EndTransactionMarker) -> None:
        self.machine.end_transaction(producer_id, is_committed=marker.type is ControlType.COMMIT)

    def _loaded(self, on_active: Callable[[], None]) -> None:
        self.machine.begin(self._clock.monotonic_ms())
        self.state = HostState.ACTIVE
        self._set_timer()
        groups = len(self.machine.committed.groups)
        level = logging.INFO if groups else logging.DEBUG  # a new cluster has 50 of them, and nothing in any
        _logger.log(level, "event=coordinator-loaded partition=%s groups=%d", self.partition.topic_partition, groups)
        self._set_expiry_timer()
        on_active()

    def _set_expiry_timer(self) -> None:
        at_ms = self._clock.monotonic_ms() + self._config.offsets_retention_check_interval_ms
        self._expiry_timer = self._clock.call_at(at_ms, self._expire_offsets)

    def _expire_offsets(self) -> None:
        if self.state is HostState.ACTIVE:
            group_ids = list(self.machine.committed.groups)
            self.sweep(
                ExpireOffsets(group_ids=tuple(group_ids[start : start + _GROUPS_PER_STEP]))
                for start in range(0, len(group_ids), _GROUPS_PER_STEP)
            )
            self._set_expiry_timer()

    def _load_failed(self, fault: KafkaError) -> None:
        self.state = HostState.FAILED
        _logger.error("event=coordinator-failed partition=%s fault=%s", self.partition.topic_partition, fault)

    def check_active(self) -> None:
        """Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS (14), COORDINATOR_NOT_AVAILABLE (15), NOT_COORDINATOR (16)."""
        self.state.check_active(self.partition.topic_partition)

    def ask(self, group_id: str, event_of: EventOf, respond: Respond) -> None:
        """Hand a member's request to its group; `respond` is called once, now or later."""
        self.check_active()
        self._requests += 1
        request_id = RequestId(self._requests)
        self._waiting[request_id] = respond
        self._carry_out(self.machine.step(group_id, event_of(request_id), self._clock.monotonic_ms()))

    def heartbeat(self, command: ConsumerHeartbeat, topics_version: int, on_done: OnBeat) -> None:
        """Have a consumer group's heartbeat decided and committed; `on_done` is called once, now or later."""
        self.check_active()
        try:
            decision = self.machine.heartbeat(command, topics_version, self._clock.monotonic_ms())
            if decision.records:
                self._append(decision.records, self._watched(command.request.group_id, decision.response, on_done))
        except KafkaError as refusal:
            error = refusal
            self._log.when_committed(lambda failure: _tell(on_done, failure or error))
            return
        if not decision.records:
            self._log.when_committed(lambda failure: _tell(on_done, failure or decision.response))
        self._set_timer()

    def _watched(
        self, group_id: str, response: ConsumerGroupHeartbeatResponse, on_done: OnBeat
    ) -> Callable[[KafkaError | None], None]:
        """The outcome of a consumer group's write, of which the machine has to know if it failed."""

        def outcome(failure: KafkaError | None) -> None:
            if failure is not None and self.state is HostState.ACTIVE:
                self.machine.heartbeat_failed(group_id, self._clock.monotonic_ms())
                self._set_timer()
            _tell(on_done, failure or response)

        return outcome

    def _remove_expired(self, effect: MemberExpired) -> None:
        decision = self.machine.remove_expired(effect, self._clock.monotonic_ms())
        if decision is not None:
            outcome = self._watched(effect.group_id, decision.response, lambda _: None)
            self._append(decision.records, outcome)

    def insight(self, group_id: str) -> GroupInsight:
        """As the machine's, now."""
        return self.machine.insight(group_id, now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.now_ms())

    def submit(self, command: Command, on_done: OnDone) -> None:
        """Have a command decided and committed; `on_done` is called once, now or later."""
        self.check_active()
        try:
            decision = self.machine.decide(command, self._clock.now_ms())
            if decision.records:
                self._append(decision.records, lambda failure: _tell(on_done, failure or decision.response))
        except KafkaError as refusal:
            error = refusal
            if isinstance(command, CommitOffsets):
                now_ms = self._clock.monotonic_ms()
                self.machine.note_refused_commit(command.group_id, command.member_id, error.code, now_ms)
            self._log.when_committed(lambda failure: _tell(on_done, failure or error))
            return
        if not decision.records:
            self._log.when_committed(lambda failure: _tell(on_done, failure or decision.response))
        if isinstance(command, CommitOffsets) and command.member_id:
            sign_of_life = OffsetsCommitted(member_id=command.member_id)
            self._carry_out(self.machine.step(command.group_id, sign_of_life, self._clock.monotonic_ms()))

    def commit_in_transaction(
        self, command: CommitOffsetsInTransaction, verification: Verification | None, on_done: OnDone
    ) -> None:
        """As `submit`, for offsets that count when the producer's transaction commits."""
        self.check_active()
        within = InTransaction(command.producer_id, command.producer_epoch, verification)
        try:
            decision = self.machine.decide(command, self._clock.now_ms())
            if decision.records:
                outcome = partial(_tell_outcome, on_done, decision.response)
                self._log.append(decision.records, outcome, within=within)
                self.machine.stage(decision.records)
        except KafkaError as refusal:
            error = refusal
            self._log.when_committed(lambda failure: _tell(on_done, failure or error))
            return
        if not decision.records:
            self._log.when_committed(lambda failure: _tell(on_done, failure or decision.response))
        if command.member_id:
            sign_of_life = OffsetsCommitted(member_id=command.member_id)
            self._carry_out(self.machine.step(command.group_id, sign_of_life, self._clock.monotonic_ms()))

    def complete_transaction(self, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]) -> None:
        """Write the marker; the offsets of its transaction count, or are gone, from when it is committed."""
        ends = self.machine.ends_of(marker.producer_id, is_committed=marker.is_commit)
        self._log.append_marker(
            marker.control_record,
            ends,
            lambda failure: on_done(ErrorCode.NONE if failure is None else _as_of_partition(failure.code)),
            within=InTransaction(marker.producer_id, marker.producer_epoch),
        )
        self.machine.stage(ends)

    def sweep(self, commands: Iterable[Command]) -> None:
        """Have each of these decided until it has nothing more to write."""
        Sweep(str(self.partition.topic_partition), commands, decide=self._decide_sweep, clock=self._clock).go_on()

    def _decide_sweep(self, command: Command, on_done: Callable[[int | KafkaError], None]) -> None:
        if self.state is not HostState.ACTIVE:
            return
        records = self.machine.decide(command, self._clock.now_ms()).records
        if records:
            self._append(records, lambda failure: on_done(failure or len(records)))
        else:
            on_done(0)

    def close(self) -> None:
        """The leadership is gone: tell everybody who waits."""
        if self.state is HostState.CLOSED:
            return
        self.state = HostState.CLOSED
        for timer in (self._timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        self._log.close(KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.partition.topic_partition} has moved"))
        self._carry_out(self.machine.abandon())

    def _append(self, records: tuple[GroupLogRecord, ...], outcome: Callable[[KafkaError | None], None]) -> None:
        self._log.append(records, outcome)
        self.machine.stage(records)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    self._answer(effect)
                case Persist():
                    self._persist(effect)
                case Retire():
                    self._append(effect.records, lambda _: None)
                case MemberExpired():
                    self._remove_expired(effect)
        self._set_timer()

    def _answer(self, answer: Answer) -> None:
        _tell(self._waiting.pop(answer.request_id), answer.response)

    def _persist(self, effect: Persist) -> None:
        metadata = replace(effect.metadata, current_state_timestamp=self._clock.now_ms())

        def outcome(failure: KafkaError | None) -> None:
            if self.state is not HostState.ACTIVE:
                return
            event = (
                MetadataCommitted(write_id=effect.write_id)
                if failure is None
                else MetadataFailed(write_id=effect.write_id, code=failure.code)
            )
            self._carry_out(self.machine.step(effect.group_id, event, self._clock.monotonic_ms()))

        try:
            self._append((GroupRecord(group_id=effect.group_id, value=metadata),), outcome)
        except KafkaError as refusal:
            outcome(refusal)

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms
        if self.state is not HostState.ACTIVE or deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._clock.call_at(deadline_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.state is HostState.ACTIVE:
            self._carry_out(self.machine.tick(self._clock.monotonic_ms()))


class GroupCoordinators:
    """All coordinators of this node, by partition of `__consumer_offsets`.

    Knows nothing and refuses everybody until the first `on_image`.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: GroupConfig,
        new_member_id: NewMemberId,
        clock: Clock,
    ) -> None:
        self._config = config
        self._new_member_id = new_member_id
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self._led = LedCoordinators(
            GROUP_OFFSETS_TOPIC, broker_id=broker_id, find_partition=find_partition, take_over=self._take_over
        )
        self.topics_version = 0
        """Another number after each change of the cluster's metadata."""

    @property
    def config(self) -> GroupConfig:
        return self._config

    def find_topic(self, name: str) -> TopicInfo | None:
        """The topic that has this name now."""
        topic = self._led.image.topics.get(name)
        return None if topic is None else TopicInfo(topic.topic_id, len(topic.partitions))

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take over and give up partitions as the image says. To be called when the partitions have their roles."""
        self.topics_version += 1
        self._led.on_image(image)
        if delta.deleted_topics:
            names = {topic.name for topic in delta.deleted_topics}
            for host in self._led.by_number.values():
                self._forget_lost_topics(host, names)

    def _take_over(self, partition: Partition) -> GroupCoordinatorHost:
        host = GroupCoordinatorHost(
            partition,
            config=self._config,
            new_member_id=self._new_member_id,
            clock=self._clock,
            deadlines=self._deadlines,
        )
        # Topics may have gone while nobody coordinated.
        host.start(lambda: self._forget_lost_topics(host, host.machine.committed.topics.names))
        return host

    def _forget_lost_topics(self, host: GroupCoordinatorHost, names: Iterable[str]) -> None:
        if host.state is HostState.ACTIVE:
            found = {name: self._led.image.topics.get(name) for name in names}
            ids = {name: None if topic is None else topic.topic_id for name, topic in found.items()}
            host.sweep((ForgetLostTopics(topics=ids),))

    def host_of(self, group_id: str) -> GroupCoordinatorHost:
        """The group's coordinator, ready to serve.

        Raises KafkaError INVALID_GROUP_ID (24), NOT_COORDINATOR (16), or what `check_active` raises.
        """
        if not group_id or len(group_id) > _LONGEST_GROUP_ID:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty, and not longer than a record's key")
        host = self._led.of_key(group_id)
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate group {group_id!r}")
        host.check_active()
        return host

    def check_room_for(self, group_id: str) -> None:
        """Raises KafkaError INVALID_REQUEST if the group would be new and this node has its fill of groups."""
        if self.host_of(group_id).machine.has_group(group_id):
            return
        if sum(host.machine.group_count for host in self._led.by_number.values()) >= self._config.group_max_groups:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this broker has {self._config.group_max_groups} groups, as many as it takes; delete old ones",
            )

    def active_hosts(self) -> list[GroupCoordinatorHost]:
        """All coordinators here. Raises what `check_active` raises if one is not ready."""
        for host in self._led.by_number.values():
            host.check_active()
        return list(self._led.by_number.values())

    def complete_transaction(
        self, partition: TopicPartition, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Write the marker to this partition, and apply or drop the offsets it decides about."""
        host = self._led.of_partition(partition.partition)
        if host is None or host.state is not HostState.ACTIVE:
            # Whoever writes markers knows the codes of partitions, and tries again.
            on_done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            host.complete_transaction(marker, on_done)

    def close(self) -> None:
        """The node stops: whoever waits is sent elsewhere."""
        self._led.close()


def _as_of_partition(code: ErrorCode) -> ErrorCode:
    """What a coordinator says about itself, as said about its partition."""
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def _tell_outcome(on_done: OnDone, response: tuple[ErrorCode, ...], failure: KafkaError | None) -> None:
    _tell(on_done, failure or response)


def _tell(callback: Callable[[T], None], answer: T) -> None:
    try:
        callback(answer)
    except AssertionError:
        raise
    except Exception:
        # One answer that cannot be sent must not keep the others from theirs.
        _logger.exception("event=answer-failed answer=%s", type(answer).__name__)


_LONGEST_GROUP_ID = 8191
"""Characters: at most 32,764 bytes, which an int16 can count."""

_GROUPS_PER_STEP = 64
"""Looked at in one turn when offsets expire."""
