"""The group coordinators of this node: a coordinator for each partition of `__consumer_offsets` that this node leads.

In addition to the work of every coordinator host, this host passes requests of members and the time to the machine,
carries out the machine's effects, and writes the markers of transactions that set offsets.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from logging import WARNING
from typing import Final

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.commands import (
    Command,
    CommitOffsets,
    ExpireOffsets,
    ForgetLostTopics,
)
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
    PersistGroup,
    Retire,
)
from tailrace.coordinators.groups.group import RequestId
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
    pending_offset,
)
from tailrace.coordinators.groups.reports import GroupInsight
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.views import Views
from tailrace.model.committed_progress import CommittedProgress
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.model.views import views_of
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.protocol.records.record import Record
from tailrace.protocol.schema import replace
from tailrace.replication.partition import Partition
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.callbacks import Alarm, call_safely
from tailrace.server.coordination.coordinator_log import IN_NONE, CoordinatorLog, InTransaction
from tailrace.server.coordination.host import CoordinatorHost, CoordinatorService
from tailrace.server.groups.topic_patterns import TopicPatterns
from tailrace.server.groups.topics import GroupTopics
from tailrace.server.ports import Clock
from tailrace.server.transactions.markers import TransactionMarker
from tailrace.server.waiters import Deadlines

Codes = tuple[ErrorCode, ...]
EventOf = Callable[[RequestId], Asked]
Respond = Callable[[MembershipResponse], None]
OnBeat = Callable[[ConsumerGroupHeartbeatResponse | KafkaError], None]
OnDone = Callable[[Codes | KafkaError], None]

_GROUPS_PER_STEP: Final = 64
"""Groups that one decision of the sweep of expired offsets covers."""


class GroupCoordinatorHost(CoordinatorHost[str, Command, GroupLogRecord, Codes]):
    """The coordinator of one partition, by group id."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: GroupConfig,
        new_member_id: NewMemberId,
        topics: GroupTopics,
        ranged_offsets: RangedOffsets,
        clock: Clock,
        deadlines: Deadlines,
    ) -> None:
        self.machine = GroupCoordinator(
            config=config, new_member_id=new_member_id, topics=topics, ranged_offsets=ranged_offsets
        )
        log: CoordinatorLog[GroupLogRecord] = CoordinatorLog(
            partition,
            encode=encode_record,
            decode=decode_log_record,
            on_marker=self._load_marker,
            clock=clock,
            deadlines=deadlines,
            timeout_ms=config.offsets_commit_timeout_ms,
        )
        super().__init__(log, self.machine, keys="groups", reads_latest=True)
        self._config = config
        self._topics = topics
        self._ranged_offsets = ranged_offsets
        self._waiting: dict[RequestId, Respond] = {}
        self._requests = 0
        self._alarm = Alarm(clock, self._tick)

    def has(self, key: str) -> bool:
        return self.machine.has_group(key)

    @property
    def key_count(self) -> int:
        return self.machine.group_count

    def _load_marker(self, producer_id: int, marker: EndTransactionMarker) -> None:
        self.machine.end_transaction(producer_id, is_committed=marker.type is ControlType.COMMIT)

    def _activated(self) -> None:
        self.machine.begin(self._clock.monotonic_ms())
        self._set_timer()
        self._repeat(self._config.offsets_retention_check_interval_ms, self._expire_offsets)
        # Topics may have been deleted while no coordinator was active.
        self.forget_lost_topics(self.machine.committed.topic_names)

    def _expire_offsets(self) -> None:
        group_ids = list(self.machine.committed.groups)
        self.decide_until_done(
            ExpireOffsets(group_ids=tuple(group_ids[start : start + _GROUPS_PER_STEP]))
            for start in range(0, len(group_ids), _GROUPS_PER_STEP)
        )

    def forget_lost_topics(self, names: Collection[str]) -> None:
        """Delete the offsets in each of these topics that does not exist any more; a load does the same."""
        self.decide_until_done((ForgetLostTopics(topics=self._topics.ids_now(names)),))

    def ask(self, group_id: str, event_of: EventOf, respond: Respond) -> None:
        """Pass a member's request to its group; `respond` is called once, now or later."""
        self._requests += 1
        request_id = RequestId(self._requests)
        self._waiting[request_id] = respond
        self._carry_out(self.machine.step(group_id, event_of(request_id), self._clock.monotonic_ms()))

    def heartbeat(self, command: ConsumerHeartbeat, on_done: OnBeat) -> None:
        """Decide a consumer group's heartbeat and commit its records; `on_done` is called once, now or later."""
        try:
            self.check_active()
            decision, effects = self.machine.heartbeat(command, self._clock.monotonic_ms())
        except KafkaError as refusal:
            self._answer(on_done, refusal)
            return
        if decision.records:
            self._append_of_consumer_group(command.request.group_id, decision, on_done)
        else:
            self._answer(on_done, decision.response)
        self._carry_out(effects)

    def _append_of_consumer_group(self, group_id: str, decision: HeartbeatDecision, on_done: OnBeat) -> None:
        """Append the records. The machine has applied the decision already, so a failure is reported to the machine."""
        member_id = decision.response.member_id or ""
        self._append_decided(
            group_id,
            member_id,
            decision.records,
            lambda failure: call_safely("answer-failed", on_done, failure or decision.response),
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
            if failure is not None and self.is_active:
                failed()
                self._set_timer()
            on_done(failure)

        try:
            self._append(records, outcome, is_atomic=is_atomic)
        except KafkaError as refusal:  # the decision has a record that cannot be encoded
            failed()
            refused = refusal
            self._log.when_committed(lambda failure: on_done(failure or refused))

    def _commit_then_answer(self, effect: Decided) -> None:
        respond = self._waiting.pop(effect.event.request_id)

        def done(failure: KafkaError | None) -> None:
            refused = None if failure is None else answers.refused(effect.event, failure.code)
            call_safely("answer-failed", respond, refused or effect.response)

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

    def ranged_progress(self, group_id: str) -> Iterator[tuple[TopicPartition, CommittedProgress, int]]:
        """The progress in the partitions of which the group has committed ranges, and for how many ms the stable offset
        has not moved there."""
        offsets = self.machine.reports.offsets(group_id)
        ranged = {partition: value for partition, value in offsets.items() if value.ranges}
        if ranged:
            moves, now_ms = self.insight(group_id).progress, self._clock.now_ms()
            for partition, value in ranged.items():
                progress = self._ranged_offsets.progress(value, self._topics.hashes_of(partition)).committed
                yield partition, progress, max(now_ms - moves[partition].moved_at_ms, 0)

    def insight(self, group_id: str) -> GroupInsight:
        """`GroupReports.insight` at this moment."""
        return self.machine.reports.insight(group_id, now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.now_ms())

    def submit(self, command: Command, on_done: OnDone, *, within: InTransaction = IN_NONE) -> None:
        """Decide a command, see `CoordinatorHost.submit`. `within` is the transaction that the offsets belong to."""
        refusal = self._decide(command, on_done, within=within)
        if not isinstance(command, CommitOffsets):
            return
        now_ms = self._clock.monotonic_ms()
        if refusal is None and command.member_id:  # the commit shows that the member is alive
            committed = OffsetsCommitted(member_id=command.member_id)
            self._carry_out(self.machine.step(command.group_id, committed, now_ms))
        elif refusal is not None and command.producer_id is None:
            self.machine.record_refused_commit(command.group_id, command.member_id, refusal.code, now_ms)

    def complete_transaction(self, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]) -> None:
        """Write the marker. When the marker is committed, the offsets of its transaction are committed or dropped."""
        ends = self.machine.ends_of(marker.producer_id, is_committed=marker.is_commit)
        self._log.append_marker(
            marker.control_record,
            ends,
            lambda failure: on_done(ErrorCode.NONE if failure is None else _as_of_partition(failure.code)),
            within=InTransaction(marker.producer_id, marker.producer_epoch),
            transaction_version=marker.transaction_version,
        )
        self.machine.stage(ends)

    def _closed(self) -> None:
        self._alarm.cancel()
        self._carry_out(self.machine.abandon())

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    call_safely("answer-failed", self._waiting.pop(effect.request_id), effect.response)
                case PersistGroup():
                    self._persist(effect)
                case Retire():
                    self._append(effect.records, lambda _: None)
                case Decided():
                    self._commit_then_answer(effect)
                case MemberExpired():
                    self._remove_expired(effect)
        self._set_timer()

    def _persist(self, effect: PersistGroup) -> None:
        metadata = replace(effect.metadata, current_state_timestamp=self._clock.now_ms())

        def outcome(failure: KafkaError | None) -> None:
            if not self.is_active:
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
        if self.is_active and deadline_ms is not None:
            self._alarm.set(deadline_ms)

    def _tick(self) -> None:
        if self.is_active:
            self._carry_out(self.machine.tick(self._clock.monotonic_ms()))


def _as_of_partition(code: ErrorCode) -> ErrorCode:
    """A coordinator's error code as the code of its partition."""
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def decode_log_record(record: Record, producer_id: int) -> GroupLogRecord | None:
    """The machine's record; an offset in a transaction is pending until the marker."""
    decoded = decode_record(record.key, record.value)
    if producer_id >= 0 and isinstance(decoded, OffsetRecord) and decoded.value is not None:
        return pending_offset(decoded, producer_id, decoded.value)
    return decoded


class GroupCoordinatorService(CoordinatorService[str, GroupCoordinatorHost]):
    """The coordinators by group id. Also the `OffsetTransactions` of markers."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: GroupConfig,
        new_member_id: NewMemberId,
        clock: Clock,
        views: Views,
        authorizer: Authorizer = PERMIT_ALL,
    ) -> None:
        """`authorizer` decides on the topics that regular expressions match for a member."""
        super().__init__(
            GROUP_OFFSETS_TOPIC,
            noun="group id",
            key_text=str,
            invalid_key=ErrorCode.INVALID_GROUP_ID,
            max_keys=config.group_max_groups,
            limit="group.max.groups",
            broker_id=broker_id,
            find_partition=find_partition,
            clock=clock,
        )
        self.config = config
        self.size_refusals: Final = BoundedLines("group-request-refused", clock=clock, level=WARNING)
        """Requests that are too large, or of too many members: clients do not show the setting that has refused the
        request."""
        self.ranged_offsets: Final = RangedOffsets(max_rectangles=config.offsets_max_ranges_per_partition)
        self.patterns = TopicPatterns(clock=clock, max_bytes=config.group_max_metadata_bytes)
        self.views: Final = views
        """The views that groups may subscribe to, and have offsets in."""
        self._topics = GroupTopics(self.patterns, views, authorizer)
        self._new_member_id = new_member_id

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Follow the image, see `CoordinatorService.on_image`. Deletes offsets in deleted topics and in their views."""
        self._topics.on_image(image, delta)
        super().on_image(image, delta)
        if delta.deleted_topics:
            names = {name for topic in delta.deleted_topics for name in (topic.name, *views_of(topic.name))}
            for host in self._hosts.values():
                host.forget_lost_topics(names)

    def _host(self, partition: Partition) -> GroupCoordinatorHost:
        return GroupCoordinatorHost(
            partition,
            config=self.config,
            new_member_id=self._new_member_id,
            topics=self._topics,
            ranged_offsets=self.ranged_offsets,
            clock=self._clock,
            deadlines=self._deadlines,
        )

    def complete_transaction(
        self, partition: TopicPartition, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Write the marker to this partition; commit or drop the offsets of its transaction."""
        host = self._host_at(partition.partition)
        if host is None or not host.is_active:
            # The sender of markers expects the codes of a partition, and tries again.
            on_done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            host.complete_transaction(marker, on_done)
