"""The groups of one partition of `__consumer_offsets`.

Two entries:
- `step` takes the events of members, changes the memory of this coordinator, and returns effects such as writes;
- `decide` takes commits and deletions, and changes nothing. The records of both entries go into the log: the host calls
  `stage` for appended records, and then `commit` or `discard`.

`reports` has the groups as clients see them.

Decisions are made on the appended state; clients see the committed state.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import count

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.commands import Command, CommitOffsets
from tailrace.coordinators.groups.consumer.change import retirement
from tailrace.coordinators.groups.consumer.conversion import as_consumer_group
from tailrace.coordinators.groups.consumer.coordinator import ConsumerGroups
from tailrace.coordinators.groups.consumer.group import ConsumerGroup, Topics
from tailrace.coordinators.groups.consumer.heartbeat import (
    JOINING,
    ConsumerHeartbeat,
    HeartbeatDecision,
)
from tailrace.coordinators.groups.consumer.sessions import MemberKey
from tailrace.coordinators.groups.consumer_records import ConsumerGroupRecord, ConsumerRecordKind
from tailrace.coordinators.groups.events import (
    Abandoned,
    Answer,
    Decided,
    Effect,
    Event,
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MemberExpired,
    OffsetsCommitted,
    PersistGroup,
    Retire,
    SyncAsked,
)
from tailrace.coordinators.groups.group import ClassicGroup, GroupState
from tailrace.coordinators.groups.history import GroupEventKind, GroupHistory, ProgressBook
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.coordinators.groups.membership import GroupMembership
from tailrace.coordinators.groups.offset_commits import GroupDecision, OffsetCommits
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord, PendingOffset, TransactionEnd
from tailrace.coordinators.groups.removals import GroupRemovals
from tailrace.coordinators.groups.reports import GroupReports
from tailrace.coordinators.groups.schedule import Schedule
from tailrace.coordinators.groups.store import GroupStore, LatestGroups
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Tick
from tailrace.protocol.schema import replace


class GroupCoordinator:
    """The machine of one coordinator partition. Deadlines in ms of the host's monotonic clock."""

    def __init__(
        self, *, config: GroupConfig, new_member_id: NewMemberId, topics: Topics, ranged_offsets: RangedOffsets
    ) -> None:
        self._config = config
        self._topics = topics
        self._new_member_id = new_member_id
        self.committed = GroupStore()
        self._latest = LatestGroups(self.committed)
        self._memberships: dict[str, GroupMembership] = {}
        self._commits = OffsetCommits(
            self._latest, self._memberships, ranged_offsets, max_metadata=config.offset_metadata_max_bytes
        )
        self._removals = GroupRemovals(self._latest, self._memberships, retention_ms=config.offsets_retention_ms)
        self._histories: dict[str, GroupHistory] = {}
        self._consumers = ConsumerGroups(config, self._histories, topics=topics, new_member_id=new_member_id)
        self._progress = ProgressBook()
        self.reports = GroupReports(self.committed, self._memberships, self._consumers, self._histories, self._progress)
        self._schedule: Schedule[str] = Schedule()
        self._write_ids = count(1)
        self._now_ms = 0
        """The time of the last event, at which sessions of a converted group begin."""
        self._upgrading: set[str] = set()
        """Classic groups that have members and a staged tombstone: their conversion is being written."""
        self._late_effects: list[Effect] = []
        """Effects of failed writes, which the next `tick` returns."""

    def apply(self, record: GroupLogRecord) -> None:
        """Apply one record of a replay."""
        for offset in self.committed.apply(record):
            self._progress.apply(offset)

    def begin(self, now_ms: int) -> None:
        """Start every session: the log has been replayed."""
        self._now_ms = now_ms
        for group_id, stored in self.committed.groups.items():
            if stored.consumer is not None:
                self._consumers.begin(group_id, stored.consumer, now_ms)
            if stored.metadata is not None:
                self._open(group_id, now_ms)
                reason = f"this broker took over the group in generation {stored.metadata.generation}"
                self._histories[group_id].add(GroupEventKind.LOADED, now_ms, reason)

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time of the next call of `tick`."""
        if self._late_effects:
            return self._now_ms
        deadlines = (self._schedule.next_deadline_ms, self._consumers.next_deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        """Act on all deadlines that have passed."""
        self._now_ms = now_ms
        effects, self._late_effects = self._late_effects, []
        for group_id in self._schedule.take_due(now_ms):
            effects += self.step(group_id, Tick(), now_ms)
        for (group_id, member_id), reason in self._consumers.take_due(now_ms):
            effects.append(MemberExpired(group_id=group_id, member_id=member_id, reason=reason))
        return effects

    def step(self, group_id: str, event: Event, now_ms: int) -> Sequence[Effect]:
        """Pass an event to the members of a group."""
        self._now_ms = now_ms
        membership = self._memberships.get(group_id)
        # An empty consumer group of this name may still be in the log, though the classic group has members: the write
        # of its tombstones may have failed.
        may_matter = isinstance(event, JoinAsked | SyncAsked) or membership is None
        consumer = self._latest.consumer(group_id) if may_matter else None
        if membership is None and consumer is not None and consumer.members:
            return self._step_in_consumer_group(group_id, consumer, event, now_ms)
        if membership is None:
            if not isinstance(event, JoinAsked | SyncAsked | HeartbeatAsked | LeaveAsked):
                return ()
            if not isinstance(event, JoinAsked) or (event.request.member_id and self._latest.get(group_id) is None):
                refused = answers.refused(event, ErrorCode.UNKNOWN_MEMBER_ID)
                return (Answer(request_id=event.request_id, response=refused),)
            membership = self._open(group_id, now_ms)
        effects = membership.step(event, now_ms)
        if consumer is not None and not consumer.members and not membership.is_idle:
            effects = (Retire(records=retirement(group_id, consumer)), *effects)
            consumer = None
        is_leaving_a_trace = any(isinstance(effect, PersistGroup) for effect in effects)
        is_nothing = consumer is not None or self._latest.get(group_id) is None
        if membership.is_idle and not is_leaving_a_trace and is_nothing:
            self._close(group_id)
        else:
            self._schedule.set(group_id, membership.next_deadline_ms)
        return effects

    def _step_in_consumer_group(
        self, group_id: str, group: ConsumerGroup, event: Event, now_ms: int
    ) -> Sequence[Effect]:
        if isinstance(event, OffsetsCommitted):
            self._consumers.committed(group_id, group, event.member_id, now_ms)
        if not isinstance(event, JoinAsked | SyncAsked | HeartbeatAsked | LeaveAsked):
            return ()
        member_id = "" if isinstance(event, LeaveAsked) else event.request.member_id
        try:
            decision = self._consumers.classic(group_id, group, event, now_ms)
        except KafkaError as refusal:
            if isinstance(event, JoinAsked):
                self._histories.setdefault(group_id, GroupHistory()).add_refusal(
                    "JoinGroup", refusal.code, now_ms, member_id
                )
            response = answers.refused(event, refusal.code)
            return (Decided(event=event, group_id=group_id, member_id=member_id, response=response),)
        return (
            Decided(
                event=event,
                group_id=group_id,
                member_id=getattr(decision.response, "member_id", member_id),
                records=decision.records,
                response=decision.response,
                is_conversion=decision.is_conversion,
            ),
        )

    def abandon(self) -> list[Effect]:
        """The answers to all waiting members at the end of the leadership."""
        late, self._late_effects = self._late_effects, []
        return late + [
            effect for membership in self._memberships.values() for effect in membership.step(Abandoned(), now_ms=0)
        ]

    def _open(self, group_id: str, now_ms: int) -> GroupMembership:
        stored = self._latest.get(group_id)
        if stored is None or stored.metadata is None:
            group = ClassicGroup(group_id)
        else:
            group = ClassicGroup.restored(group_id, stored.metadata, now_ms)
        membership = self._keep(group)
        if group.members and group.leader is None:
            membership.begin_rebalance(now_ms, "no member leads: the group was a consumer group until now")
            self._schedule.set(group_id, membership.next_deadline_ms)
        return membership

    def _keep(self, group: ClassicGroup) -> GroupMembership:
        membership = GroupMembership(
            group,
            config=self._config,
            history=self._histories.setdefault(group.group_id, GroupHistory()),
            new_member_id=self._new_member_id,
            write_ids=self._write_ids,
        )
        self._memberships[group.group_id] = membership
        self._schedule.set(group.group_id, membership.next_deadline_ms)
        return membership

    def _close(self, group_id: str) -> None:
        group = self._memberships.pop(group_id).group
        if group.members or group.state is not GroupState.EMPTY:
            self._upgrading.add(group_id)
        else:
            group.transition_to(GroupState.DEAD)
        if self._latest.get(group_id) is None:
            self._histories.pop(group_id, None)
        self._schedule.set(group_id, None)

    def heartbeat(self, command: ConsumerHeartbeat, now_ms: int) -> tuple[HeartbeatDecision, Sequence[Effect]]:
        """The decision on a consumer group's heartbeat, and the effects on waiting requests; `now_ms` monotonic.

        A consumer group replaces an empty classic group; a classic group with members is converted if
        group.consumer.migration.policy allows it. Raises KafkaError with Kafka's code.
        """
        self._now_ms = now_ms
        request = command.request
        if not request.member_id:
            # The id has no client id as prefix: with the longest client ids it would not fit into a record's key.
            request = replace(request, member_id=self._new_member_id(_CONSUMER))
            command = dataclasses.replace(command, request=request)
        group_id = request.group_id
        membership = self._memberships.get(group_id)
        if membership is not None and request.member_epoch != JOINING:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is not a consumer group")
        if membership is not None and membership.group.members:
            return self._upgrade(membership, command, now_ms)
        # Pending members have an id and have not joined under this id yet; they may still join.
        decision = self._consumers.heartbeat(self._latest.consumer(group_id), command, now_ms)
        if membership is not None or self._latest.has_generation(group_id):
            decision.records = (GroupRecord(group_id=group_id, value=None), *decision.records)
        return decision, ()

    def _upgrade(
        self, membership: GroupMembership, command: ConsumerHeartbeat, now_ms: int
    ) -> tuple[HeartbeatDecision, Sequence[Effect]]:
        """Convert a classic group with members; the member of the heartbeat joins the consumer group."""
        classic = membership.group
        group, records = as_consumer_group(classic, self._topics, self._config)
        decision = self._consumers.heartbeat(group, command, now_ms, conversion=records)
        for member_id in group.members.keys() - {command.request.member_id}:
            if member_id in decision.group.members:
                self._consumers.watch(classic.group_id, group, member_id, now_ms)
        reason = f"to a consumer group: {command.request.member_id} speaks the consumer protocol"
        self._histories[classic.group_id].add(GroupEventKind.CONVERTED, now_ms, reason)
        # Every member has to join again, even if the write fails.
        return decision, membership.step(Abandoned(code=ErrorCode.REBALANCE_IN_PROGRESS), now_ms)

    def heartbeat_failed(self, group_id: str, member_id: str, now_ms: int) -> None:
        """The write of a member's heartbeat, or of its removal, has failed."""
        self._consumers.write_failed(
            MemberKey(group_id, member_id),
            self._latest.consumer(group_id),
            now_ms,
            keeps_history=group_id in self._memberships,
        )

    def remove_expired(self, effect: MemberExpired, now_ms: int) -> HeartbeatDecision | None:
        """The decision to remove an expired member; None if the member is removed already."""
        key = MemberKey(effect.group_id, effect.member_id)
        return self._consumers.remove(key, self._latest.consumer(effect.group_id), effect.reason, now_ms)

    def record_refused_commit(self, group_id: str, member_id: str, code: ErrorCode, now_ms: int) -> None:
        """Record the refusal of a commit in the history; `now_ms` monotonic."""
        history = self._histories.get(group_id)
        if history is not None:
            history.add_refusal("OffsetCommit", code, now_ms, member_id)

    def decide(self, command: Command, now_ms: int) -> GroupDecision:
        """The records and the answer; `now_ms` since 1970. Raises KafkaError if the command fails as a whole."""
        if isinstance(command, CommitOffsets):
            self._commits.check_member(command)
            return self._commits.commit(command, now_ms)
        return self._removals.decide(command, now_ms)

    def stage(self, records: Iterable[GroupLogRecord]) -> None:
        """Add appended records, which are not committed yet."""
        records = tuple(records)
        self._latest.stage(records)
        generations = {each.group_id for each in records if isinstance(each, GroupRecord) and each.value is not None}
        for record in records:
            if isinstance(record, PendingOffset | TransactionEnd) or record.value is not None:
                continue
            is_joined = record.group_id in self._memberships
            if isinstance(record, GroupRecord) and is_joined:
                self._close(record.group_id)
            elif isinstance(record, ConsumerGroupRecord) and record.kind is ConsumerRecordKind.GROUP:
                self._consumers.close(record.group_id, keeps_history=is_joined or record.group_id in generations)
        for group_id in generations - self._memberships.keys():
            self._open(group_id, self._now_ms)

    def commit(self, records: Sequence[GroupLogRecord]) -> None:
        """Apply staged records, which are committed now."""
        for offset in self._latest.commit(records):
            self._progress.apply(offset)
        self._upgrading.difference_update(
            each.group_id for each in records if isinstance(each, GroupRecord) and each.value is None
        )
        if self._memberships:
            self._close_idle(records)

    def discard(self, records: Sequence[GroupLogRecord]) -> None:
        """Drop staged records that are not in the log: their write has failed."""
        self._latest.discard(records)
        for record in records:
            if isinstance(record, GroupRecord) and record.value is None:
                self._reopen(record.group_id)
            elif isinstance(record, GroupRecord):
                self._keep_consumer_group(record.group_id)
        self._close_idle(records)

    def _reopen(self, group_id: str) -> None:
        """Restore a group whose tombstone is not in the log.

        The group is restored without members, unless it was being converted: only a conversion writes a tombstone for a
        group with members.
        """
        stored = self._latest.get(group_id)
        if group_id in self._memberships or stored is None or stored.metadata is None:
            self._upgrading.discard(group_id)
        elif group_id in self._upgrading:
            self._upgrading.remove(group_id)
            self._open(group_id, self._now_ms)
        else:
            self._keep(ClassicGroup.restored(group_id, replace(stored.metadata, members=()), now_ms=0))

    def _keep_consumer_group(self, group_id: str) -> None:
        """Restore the members of a consumer group whose conversion to a classic group is not in the log."""
        consumer, membership = self._latest.consumer(group_id), self._memberships.get(group_id)
        if consumer is None or not consumer.members or membership is None:
            return
        self._late_effects += membership.step(Abandoned(code=ErrorCode.REBALANCE_IN_PROGRESS), self._now_ms)
        del self._memberships[group_id]
        self._schedule.set(group_id, None)
        self._consumers.begin(group_id, consumer, self._now_ms)

    def _close_idle(self, records: Iterable[GroupLogRecord]) -> None:
        """Close groups without members and without records, after their writes are complete."""
        for group_id in {record.group_id for record in records}:
            membership = self._memberships.get(group_id)
            if membership is not None and membership.is_idle and self._latest.get(group_id) is None:
                self._close(group_id)

    def has_group(self, group_id: str) -> bool:
        """Whether clients can see the group."""
        return group_id in self._memberships or group_id in self.committed.groups

    @property
    def group_count(self) -> int:
        """The approximate number of groups: groups that have only members, or only committed state, may be left out."""
        return max(len(self._memberships), len(self.committed.groups))

    def ends_of(self, producer_id: int, *, is_committed: bool) -> tuple[TransactionEnd, ...]:
        """The records to stage at the end of a producer's transaction, per group with offsets in the transaction."""
        return tuple(
            TransactionEnd(group_id=group_id, producer_id=producer_id, is_committed=is_committed)
            for group_id in sorted(self._latest.groups_waiting_for(producer_id))
        )

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """Apply one marker of a replay."""
        for group_id in sorted(self.committed.groups_waiting_for(producer_id)):
            self.apply(TransactionEnd(group_id=group_id, producer_id=producer_id, is_committed=is_committed))


_CONSUMER = "consumer"
