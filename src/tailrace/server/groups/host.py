"""Runs one group coordinator: the machine of one partition of `__consumer_offsets` that this node leads.

1. While loading every request is refused with COORDINATOR_LOAD_IN_PROGRESS (14): a client that were told "no offset"
   would start from an end of the log.
2. Nobody hears of a decision before it is committed; reads see committed state only.
3. On loss of leadership whoever waits hears NOT_COORDINATOR (16), and the machine is dropped.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.commands import (
    Command,
    CommitOffsets,
    CommitOffsetsInTransaction,
    ExpireOffsets,
    GroupInsight,
)
from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.groups.consumer.group import Topics
from tailrace.coordinators.groups.consumer.heartbeat import ConsumerHeartbeat, HeartbeatDecision
from tailrace.coordinators.groups.coordinator import GroupCoordinator
from tailrace.coordinators.groups.events import (
    Answer,
    Asked,
    Decided,
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
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.protocol.records.record import Record
from tailrace.protocol.schema import replace
from tailrace.replication.partition import Partition
from tailrace.replication.verification import Verification
from tailrace.server.alarm import Alarm
from tailrace.server.coordination.coordinator_log import InTransaction
from tailrace.server.coordination.led_coordinators import HostState
from tailrace.server.coordination.led_machine import LedMachine
from tailrace.server.ports import Clock
from tailrace.server.transactions.markers import TransactionMarker
from tailrace.server.waiters import Deadlines

T = TypeVar("T")

EventOf = Callable[[RequestId], Asked]
Respond = Callable[[MembershipResponse], None]
OnBeat = Callable[[ConsumerGroupHeartbeatResponse | KafkaError], None]
OnDone = Callable[[tuple[ErrorCode, ...] | KafkaError], None]

_GROUPS_PER_STEP: Final = 64
"""Looked at in one turn when offsets expire."""

_logger = logging.getLogger("tailrace.server")


class GroupCoordinatorHost:
    """The coordinator of one partition, from the moment this node leads it until it no longer does."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: GroupConfig,
        new_member_id: NewMemberId,
        topics: Topics,
        clock: Clock,
        deadlines: Deadlines,
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine = GroupCoordinator(config=config, new_member_id=new_member_id, topics=topics)
        self._config = config
        self._clock = clock
        self._led: LedMachine[Command, GroupLogRecord] = LedMachine(
            partition,
            self.machine,
            encode=encode_record,
            on_committed=self.machine.commit,
            clock=clock,
            deadlines=deadlines,
            timeout_ms=config.offsets_commit_timeout_ms,
        )
        self._log = self._led.log
        self._waiting: dict[RequestId, Respond] = {}
        self._requests = 0
        self._alarm = Alarm(clock, self._tick)

    @property
    def state(self) -> HostState:
        return self._led.state

    def start(self, on_active: Callable[[], None]) -> None:
        """Read the log; `on_active` is called when requests are served, or never."""
        self._led.load(self._load, partial(self._loaded, on_active), kept="groups", on_marker=self._load_marker)

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

    def _loaded(self, on_active: Callable[[], None]) -> int:
        self.machine.begin(self._clock.monotonic_ms())
        self._set_timer()
        self._led.repeat(self._config.offsets_retention_check_interval_ms, self._expire_offsets)
        on_active()
        return len(self.machine.committed.groups)

    def _expire_offsets(self) -> None:
        group_ids = list(self.machine.committed.groups)
        self.sweep(
            ExpireOffsets(group_ids=tuple(group_ids[start : start + _GROUPS_PER_STEP]))
            for start in range(0, len(group_ids), _GROUPS_PER_STEP)
        )

    def check_active(self) -> None:
        """Raises what `LedMachine.check_active` raises."""
        self._led.check_active()

    def ask(self, group_id: str, event_of: EventOf, respond: Respond) -> None:
        """Hand a member's request to its group; `respond` is called once, now or later."""
        self.check_active()
        self._requests += 1
        request_id = RequestId(self._requests)
        self._waiting[request_id] = respond
        self._carry_out(self.machine.step(group_id, event_of(request_id), self._clock.monotonic_ms()))

    def heartbeat(self, command: ConsumerHeartbeat, on_done: OnBeat) -> None:
        """Have a consumer group's heartbeat decided and committed; `on_done` is called once, now or later."""
        self.check_active()
        try:
            decision, effects = self.machine.heartbeat(command, self._clock.monotonic_ms())
        except KafkaError as refusal:
            self._tell_when_committed(on_done, refusal)
            return
        if decision.records:
            self._append_of_consumer_group(command.request.group_id, decision, on_done)
        else:
            self._tell_when_committed(on_done, decision.response)
        self._carry_out(effects)

    def _append_of_consumer_group(self, group_id: str, decision: HeartbeatDecision, on_done: OnBeat) -> None:
        """Have it committed; the machine, which has taken it for granted, has to know if that failed."""
        member_id = decision.response.member_id or ""
        self._append_decided(
            group_id,
            member_id,
            decision.records,
            lambda failure: _tell(on_done, failure or decision.response),
            is_atomic=decision.is_conversion,
        )

    def _append_decided(
        self,
        group_id: str,
        member_id: str,
        records: Sequence[GroupLogRecord],
        on_done: Callable[[KafkaError | None], None],
        *,
        is_atomic: bool,
    ) -> None:
        def failed() -> None:
            self.machine.heartbeat_failed(group_id, member_id, self._clock.monotonic_ms())

        def outcome(failure: KafkaError | None) -> None:
            if failure is not None and self._led.is_active:
                failed()
                self._set_timer()
            on_done(failure)

        try:
            self._led.append(records, outcome, is_atomic=is_atomic)
        except KafkaError as refusal:  # a record that has no form in the log
            failed()
            refused = refusal
            self._log.when_committed(lambda failure: on_done(failure or refused))

    def _commit_then_answer(self, effect: Decided) -> None:
        respond = self._waiting.pop(effect.event.request_id)

        def done(failure: KafkaError | None) -> None:
            refused = None if failure is None else answers.refused(effect.event, failure.code)
            _tell(respond, refused or effect.response)

        if effect.records:
            self._append_decided(
                effect.group_id, effect.member_id, effect.records, done, is_atomic=effect.is_conversion
            )
        else:
            self._log.when_committed(done)

    def _remove_expired(self, effect: MemberExpired) -> None:
        decision = self.machine.remove_expired(effect, self._clock.monotonic_ms())
        if decision is not None:
            self._append_of_consumer_group(effect.group_id, decision, lambda _: None)

    def insight(self, group_id: str) -> GroupInsight:
        """As the machine's, now."""
        return self.machine.insight(group_id, now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.now_ms())

    def submit(self, command: Command, on_done: OnDone) -> None:
        """Have a command decided and committed; `on_done` is called once, now or later."""
        self.check_active()
        try:
            decision = self.machine.decide(command, self._clock.now_ms())
            if decision.records:
                self._led.append(decision.records, lambda failure: _tell(on_done, failure or decision.response))
            else:
                self._tell_when_committed(on_done, decision.response)
        except KafkaError as refusal:
            if isinstance(command, CommitOffsets):
                now_ms = self._clock.monotonic_ms()
                self.machine.note_refused_commit(command.group_id, command.member_id, refusal.code, now_ms)
            self._tell_when_committed(on_done, refusal)
            return
        if isinstance(command, CommitOffsets):
            self._take_for_sign_of_life(command)

    def commit_in_transaction(
        self, command: CommitOffsetsInTransaction, verification: Verification | None, on_done: OnDone
    ) -> None:
        """As `submit`, for offsets that count when the producer's transaction commits."""
        self.check_active()
        within = InTransaction(command.producer_id, command.producer_epoch, verification)
        try:
            decision = self.machine.decide(command, self._clock.now_ms())
            if decision.records:
                answer = decision.response
                self._led.append(decision.records, lambda failure: _tell(on_done, failure or answer), within=within)
            else:
                self._tell_when_committed(on_done, decision.response)
        except KafkaError as refusal:
            self._tell_when_committed(on_done, refusal)
            return
        self._take_for_sign_of_life(command)

    def _take_for_sign_of_life(self, commit: CommitOffsets | CommitOffsetsInTransaction) -> None:
        if commit.member_id:
            committed = OffsetsCommitted(member_id=commit.member_id)
            self._carry_out(self.machine.step(commit.group_id, committed, self._clock.monotonic_ms()))

    def _tell_when_committed(self, on_done: Callable[[T | KafkaError], None], answer: T | KafkaError) -> None:
        """An answer without records of its own rests on those that are on their way."""
        self._log.when_committed(lambda failure: _tell(on_done, failure or answer))

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
        self._led.sweep(commands)

    def close(self) -> None:
        """The leadership is gone: tell everybody who waits."""
        if self._led.close():
            self._alarm.cancel()
            self._carry_out(self.machine.abandon())

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    self._answer(effect)
                case Persist():
                    self._persist(effect)
                case Retire():
                    self._led.append(effect.records, lambda _: None)
                case Decided():
                    self._commit_then_answer(effect)
                case MemberExpired():
                    self._remove_expired(effect)
        self._set_timer()

    def _answer(self, answer: Answer) -> None:
        _tell(self._waiting.pop(answer.request_id), answer.response)

    def _persist(self, effect: Persist) -> None:
        metadata = replace(effect.metadata, current_state_timestamp=self._clock.now_ms())

        def outcome(failure: KafkaError | None) -> None:
            if not self._led.is_active:
                return
            event = (
                MetadataCommitted(write_id=effect.write_id)
                if failure is None
                else MetadataFailed(write_id=effect.write_id, code=failure.code)
            )
            self._carry_out(self.machine.step(effect.group_id, event, self._clock.monotonic_ms()))

        try:
            self._led.append((GroupRecord(group_id=effect.group_id, value=metadata),), outcome)
        except KafkaError as refusal:
            outcome(refusal)

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms
        if self._led.is_active and deadline_ms is not None:
            self._alarm.set(deadline_ms)

    def _tick(self) -> None:
        if self._led.is_active:
            self._carry_out(self.machine.tick(self._clock.monotonic_ms()))


def _as_of_partition(code: ErrorCode) -> ErrorCode:
    """What a coordinator says about itself, as said about its partition."""
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def _tell(callback: Callable[[T], None], answer: T) -> None:
    try:
        callback(answer)
    except AssertionError:
        raise
    except Exception:
        # One answer that cannot be sent must not keep the others from theirs.
        _logger.exception("event=answer-failed answer=%s", type(answer).__name__)
