"""All groups of one partition of `__consumer_offsets`.

Two ways in:
- `step` for the life of members: it changes what only this coordinator knows, and asks for writes;
- `decide` for commits and deletions: it changes nothing. Its records, and those that `step` asks for, go into the log;
  `stage`, then `commit` or `discard` tell how they fared.

Decisions read what is appended, clients see what is committed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import assert_never

from tailrace.coordinators.groups import answers, offsets
from tailrace.coordinators.groups.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    ForgetLostTopics,
    GroupDescription,
    GroupOverview,
    MemberDescription,
)
from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.groups.events import (
    Abandoned,
    Answer,
    Asked,
    Effect,
    Event,
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MembershipResponse,
    Persist,
    SyncAsked,
    Tick,
)
from tailrace.coordinators.groups.group import ClassicGroup, GroupState, Member
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.coordinators.groups.membership import Membership
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord, OffsetCommitValue
from tailrace.coordinators.groups.schedule import Schedule
from tailrace.coordinators.groups.store import GroupStore, LatestGroups
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.membership import HeartbeatResponse, LeaveGroupResponse, MemberResponse

GroupDecision = Decision[GroupLogRecord, tuple[ErrorCode, ...]]

_NOTHING: Mapping[TopicPartition, OffsetCommitValue] = {}


class GroupCoordinator:
    """The machine of one coordinator partition. Deadlines in ms of the host's monotonic clock."""

    def __init__(self, *, config: GroupConfig, new_member_id: NewMemberId) -> None:
        self._config = config
        self._new_member_id = new_member_id
        self.committed = GroupStore()
        self._latest = LatestGroups(self.committed)
        self._memberships: dict[str, Membership] = {}
        self._schedule = Schedule()
        self._write_ids = count(1)

    def apply(self, record: GroupLogRecord) -> None:
        """Take one record of the log that is being replayed."""
        self.committed.apply(record)

    def begin(self, now_ms: int) -> None:
        """The log is replayed: every session starts now."""
        for group_id, stored in self.committed.groups.items():
            if stored.metadata is not None:
                self._open(group_id, now_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called at the latest."""
        return self._schedule.next_deadline_ms

    def tick(self, now_ms: int) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        for group_id in self._schedule.take_due(now_ms):
            effects += self.step(group_id, Tick(), now_ms)
        return effects

    def step(self, group_id: str, event: Event, now_ms: int) -> Sequence[Effect]:
        """Something happened to the members of a group."""
        membership = self._memberships.get(group_id)
        if membership is None:
            if not isinstance(event, JoinAsked | SyncAsked | HeartbeatAsked | LeaveAsked):
                return ()
            if not isinstance(event, JoinAsked) or (event.request.member_id and self._latest.get(group_id) is None):
                return (Answer(request_id=event.request_id, response=_unknown_member(event)),)
            membership = self._open(group_id, now_ms)
        effects = membership.step(event, now_ms)
        is_leaving_a_trace = any(isinstance(effect, Persist) for effect in effects)
        if membership.is_idle and not is_leaving_a_trace and self._latest.get(group_id) is None:
            self._close(group_id)
        else:
            self._schedule.set(group_id, membership.next_deadline_ms)
        return effects

    def abandon(self) -> list[Effect]:
        """This is not the coordinator any more: the last answers of all who wait."""
        return [
            effect for membership in self._memberships.values() for effect in membership.step(Abandoned(), now_ms=0)
        ]

    def _open(self, group_id: str, now_ms: int) -> Membership:
        stored = self._latest.get(group_id)
        if stored is None or stored.metadata is None:
            group = ClassicGroup(group_id)
        else:
            group = ClassicGroup.restored(group_id, stored.metadata, now_ms)
        membership = Membership(
            group, config=self._config, new_member_id=self._new_member_id, write_ids=self._write_ids
        )
        self._memberships[group_id] = membership
        self._schedule.set(group_id, membership.next_deadline_ms)
        return membership

    def _close(self, group_id: str) -> None:
        self._memberships.pop(group_id).group.transition_to(GroupState.DEAD)
        self._schedule.set(group_id, None)

    def decide(self, command: Command, now_ms: int) -> GroupDecision:
        """The records and the answer; `now_ms` since 1970. Raises KafkaError if the command fails as a whole."""
        match command:
            case CommitOffsets():
                fault = self._fault_of_commit(command)
                if fault:
                    raise KafkaError(fault, f"group {command.group_id} does not take offsets of this member now")
                return offsets.commit(command, now_ms, max_metadata=self._config.offset_metadata_max_bytes)
            case DeleteGroup():
                return self._delete(command.group_id)
            case ForgetLostTopics():
                return Decision(records=tuple(self._lost(command)), response=())
            case _:
                assert_never(command)

    def _fault_of_commit(self, command: CommitOffsets) -> ErrorCode:
        membership = self._memberships.get(command.group_id)
        if membership is not None:
            return membership.fault_of_commit(
                generation_id=command.generation_id,
                member_id=command.member_id,
                group_instance_id=command.group_instance_id,
            )
        if command.generation_id < 0:
            return ErrorCode.NONE
        is_known = self._latest.get(command.group_id) is not None
        return ErrorCode.UNKNOWN_MEMBER_ID if is_known else ErrorCode.GROUP_ID_NOT_FOUND

    def _delete(self, group_id: str) -> GroupDecision:
        membership, stored = self._memberships.get(group_id), self._latest.get(group_id)
        if membership is None and stored is None:
            raise _no_such_group(group_id)
        if membership is not None and membership.group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop them first")
        return Decision(records=tuple(offsets.deletion(group_id, stored)), response=(ErrorCode.NONE,))

    def _lost(self, command: ForgetLostTopics) -> Iterator[GroupLogRecord]:
        for group_id, stored in self._latest.items():
            yield from offsets.lost(group_id, stored, command.topics)

    def stage(self, records: Iterable[GroupLogRecord]) -> None:
        """These are on their way into the log."""
        for record in records:
            self._latest.stage((record,))
            if isinstance(record, GroupRecord) and record.value is None and record.group_id in self._memberships:
                self._close(record.group_id)

    def commit(self, records: Sequence[GroupLogRecord]) -> None:
        """These, staged before, are committed."""
        self._latest.commit(records)

    def discard(self, records: Sequence[GroupLogRecord]) -> None:
        """These, staged before, are not in the log."""
        self._latest.discard(records)

    @property
    def group_ids(self) -> set[str]:
        """Every group that clients can see."""
        return {*self._memberships, *self.committed.groups}

    def has_group(self, group_id: str) -> bool:
        return group_id in self._memberships or group_id in self.committed.groups

    @property
    def group_count(self) -> int:
        """How many groups there are; too few by those that have members and nothing committed, or the reverse."""
        return max(len(self._memberships), len(self.committed.groups))

    def committed_offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """The group's progress; empty if it has none."""
        stored = self.committed.get(group_id)
        return _NOTHING if stored is None else stored.offsets

    def overview(self) -> list[GroupOverview]:
        """Every group, in short."""
        return [self._overview(group_id) for group_id in self.group_ids]

    def _overview(self, group_id: str) -> GroupOverview:
        membership = self._memberships.get(group_id)
        if membership is None:
            return GroupOverview(group_id=group_id, protocol_type="", state=GroupState.EMPTY)
        group = membership.group
        return GroupOverview(group_id=group_id, protocol_type=group.protocol_type or "", state=group.state)

    def describe(self, group_id: str) -> GroupDescription:
        """The group in full. Raises KafkaError GROUP_ID_NOT_FOUND (69)."""
        if not self.has_group(group_id):
            raise _no_such_group(group_id)
        overview = self._overview(group_id)
        membership = self._memberships.get(group_id)
        is_stable = overview.state is GroupState.STABLE
        members = () if membership is None else membership.group.members.values()
        protocol_name = None if membership is None or not is_stable else membership.group.protocol_name
        return GroupDescription(
            group_id=group_id,
            state=overview.state,
            protocol_type=overview.protocol_type,
            protocol_name=protocol_name or "",
            members=tuple(_described(member, protocol_name, is_stable=is_stable) for member in members),
        )


def _described(member: Member, protocol_name: str | None, *, is_stable: bool) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=member.metadata_for(protocol_name) if is_stable else b"",
        assignment=member.assignment if is_stable else b"",
    )


def _no_such_group(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _unknown_member(event: Asked) -> MembershipResponse:
    """The answer to a member of a group that does not exist."""
    code = ErrorCode.UNKNOWN_MEMBER_ID
    match event:
        case JoinAsked():
            return answers.join_refused(code, event.request.member_id)
        case SyncAsked():
            return answers.sync_refused(code)
        case HeartbeatAsked():
            return HeartbeatResponse(error_code=code)
        case LeaveAsked():
            return LeaveGroupResponse(
                members=tuple(
                    MemberResponse(
                        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
                    )
                    for member in event.request.members
                )
            )
        case _:
            assert_never(event)
