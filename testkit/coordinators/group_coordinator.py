"""A group coordinator for tests: requests, time and commits happen when a test says so."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.commands import Command, CommitOffsets, DeleteGroup, OffsetToCommit
from tailrace.coordinators.groups.consumer.group import SubscribableTopic
from tailrace.coordinators.groups.consumer_records import RegularExpressionValue
from tailrace.coordinators.groups.coordinator import GroupCoordinator
from tailrace.coordinators.groups.events import (
    Answer,
    Asked,
    Effect,
    Event,
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MembershipResponse,
    MetadataCommitted,
    MetadataFailed,
    PersistGroup,
    SyncAsked,
)
from tailrace.coordinators.groups.group import GroupState, RequestId
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tailrace.protocol.schema import replace

NEWEST_JOIN = 9
_FIRST_JOIN_WITH_GIVEN_ID = 4
Identity = tuple[str, str | None]


class NoTopics:
    """A cluster without topics."""

    version = 0

    def find(self, name: str) -> SubscribableTopic | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return None

    def matches(self, expression: str) -> RegularExpressionValue | None:
        return None

    def described_by(self, principal: str, client_host: str, names: frozenset[str]) -> frozenset[str]:
        return names


class GroupScene:
    """A group "g" and its coordinator. Writes are committed at once unless `holds_writes`."""

    group_id = "g"

    def __init__(self, *, config: GroupConfig | None = None, log: Iterable[GroupLogRecord] = ()) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self._ids = 0
        self.now_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.coordinator = GroupCoordinator(
            config=self.config,
            new_member_id=self._new_member_id,
            topics=NoTopics(),
            ranged_offsets=RangedOffsets(max_rectangles=self.config.offsets_max_ranges_per_partition),
        )
        self.log: list[GroupLogRecord] = list(log)
        """The committed records, in order."""
        for record in self.log:
            self.coordinator.apply(record)
        self.coordinator.begin(self.now_ms)
        self.holds_writes = False
        self._staged: deque[tuple[tuple[GroupLogRecord, ...], PersistGroup | None]] = deque()
        """The writes that are held back, oldest first; each with the write that the group has requested, if any."""
        self.answers: dict[RequestId, MembershipResponse] = {}
        self.requests: list[Asked] = []

    def _new_member_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    def join(
        self,
        member_id: str = "",
        *,
        protocols: Mapping[str, bytes] | None = None,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 30_000,
        instance_id: str | None = None,
        version: int = NEWEST_JOIN,
        client_id: str = "c",
        protocol_type: str = "consumer",
    ) -> RequestId:
        """Send JoinGroup."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=tuple(
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in ({"range": b"topics"} if protocols is None else protocols).items()
            ),
        )
        return self._ask(
            lambda request_id: JoinAsked(
                request_id=request_id,
                request=request,
                client_id=client_id,
                client_host="/127.0.0.1",
                must_know_its_id=version >= _FIRST_JOIN_WITH_GIVEN_ID,
                may_skip_assignment=version >= NEWEST_JOIN,
            )
        )

    def new_id(self, **options: Any) -> str:
        """Ask for a member id as new clients do (KIP-394)."""
        refused = self.join_answer(self.join(**options))
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED, refused
        return refused.member_id

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_name: str | None = None,
        protocol_type: str | None = None,
    ) -> RequestId:
        """Send SyncGroup; the leader with `assignments`."""
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=name, assignment=assignment)
                for name, assignment in (assignments or {}).items()
            ),
        )
        return self._ask(lambda request_id: SyncAsked(request_id=request_id, request=request))

    def heartbeat(self, member_id: str, generation_id: int, *, instance_id: str | None = None) -> ErrorCode:
        """Send Heartbeat; the answer always comes at once."""
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
        )
        request_id = self._ask(lambda request_id: HeartbeatAsked(request_id=request_id, request=request))
        return self.code(request_id)

    def leave(self, *members: str | Identity) -> tuple[ErrorCode, ...]:
        """Send LeaveGroup; returns a code for each member."""
        identities = [(member, None) if isinstance(member, str) else member for member in members]
        request = LeaveGroupRequest(
            group_id=self.group_id,
            members=tuple(MemberIdentity(member_id=name, group_instance_id=instance) for name, instance in identities),
        )
        response = self.answers[self._ask(lambda request_id: LeaveAsked(request_id=request_id, request=request))]
        assert isinstance(response, LeaveGroupResponse)
        return tuple(ErrorCode(result.error_code) for result in response.members)

    def commit_offset(
        self,
        offset: int,
        *,
        generation_id: int = -1,
        member_id: str = "",
        metadata: str = "",
        topic: str = "t",
        retention_time_ms: int = -1,
    ) -> ErrorCode:
        """Commit an offset of partition 0; returns the code of the whole answer or of the partition."""
        wanted = OffsetToCommit(
            topic=topic, topic_id=ZERO_TOPIC_ID, partition=0, offset=offset, leader_epoch=-1, metadata=metadata
        )
        return self.submit(
            CommitOffsets(
                group_id=self.group_id,
                generation_id=generation_id,
                member_id=member_id,
                group_instance_id=None,
                knows_epochs=True,
                retention_time_ms=retention_time_ms,
                offsets=(wanted,),
            )
        )

    def delete_group(self) -> ErrorCode:
        """Send DeleteGroups."""
        return self.submit(DeleteGroup(group_id=self.group_id))

    def submit(self, command: Command) -> ErrorCode:
        """Let the coordinator decide a command; its records are committed at once, or held."""
        try:
            decision = self.coordinator.decide(command, self.wall_ms)
        except KafkaError as refusal:
            return refusal.code
        self._write(decision.records)
        return decision.response[0] if decision.response else ErrorCode.NONE

    def form_group(self, *names: str, rebalance_timeout_ms: int = 30_000, **options: Any) -> tuple[list[str], int]:
        """Form a group; returns the members, the leader first, and the generation. The assignment of a member is its
        own id."""
        ids = [self.new_id(client_id=name, rebalance_timeout_ms=rebalance_timeout_ms, **options) for name in names]
        joins = [self.join(member_id, rebalance_timeout_ms=rebalance_timeout_ms, **options) for member_id in ids]
        self.pass_time(0)
        generation_id = self.join_answer(joins[0]).generation_id
        for member_id in ids[1:]:
            self.sync(member_id, generation_id)
        self.sync(ids[0], generation_id, {member_id: member_id.encode() for member_id in ids})
        assert self.state is GroupState.STABLE
        return ids, generation_id

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and carry out every deadline at its time."""
        end_ms = self.now_ms + milliseconds
        while (deadline_ms := self.coordinator.next_deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self._carry_out(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    def commit_write(self) -> None:
        """Let the oldest write that is held be committed."""
        records, asked = self._staged.popleft()
        self.coordinator.commit(records)
        self.log.extend(records)
        if asked is not None:
            self._step(MetadataCommitted(write_id=asked.write_id))

    def fail_write(self, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Let the oldest write that is held fail."""
        records, asked = self._staged.popleft()
        self.coordinator.discard(records)
        if asked is not None:
            self._step(MetadataFailed(write_id=asked.write_id, code=code))

    @property
    def held_writes(self) -> int:
        return len(self._staged)

    @property
    def state(self) -> GroupState:
        """The state of the group; Dead if there is no group."""
        if not self.coordinator.has_group(self.group_id):
            return GroupState.DEAD
        return GroupState(self.coordinator.reports.describe(self.group_id).group_state)

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(member.member_id for member in self.coordinator.reports.describe(self.group_id).members)

    def is_answered(self, request_id: RequestId) -> bool:
        return request_id in self.answers

    def join_answer(self, request_id: RequestId) -> JoinGroupResponse:
        response = self.answers[request_id]
        assert isinstance(response, JoinGroupResponse)
        return response

    def assignment(self, request_id: RequestId) -> bytes:
        """The answer to a SyncGroup, which must have succeeded."""
        assert self.code(request_id) is ErrorCode.NONE
        assignment: bytes = getattr(self.answers[request_id], "assignment")  # noqa: B009 - a union of responses
        return assignment

    def code(self, request_id: RequestId) -> ErrorCode:
        return ErrorCode(self.answers[request_id].error_code)

    def abandon(self) -> None:
        """Let another broker take over the group."""
        self._carry_out(self.coordinator.abandon())

    def _ask(self, event_of: Callable[[RequestId], Asked]) -> RequestId:
        request_id = RequestId(len(self.requests))
        event = event_of(request_id)
        self.requests.append(event)
        self._step(event)
        return request_id

    def _step(self, event: Event) -> None:
        self._carry_out(self.coordinator.step(self.group_id, event, self.now_ms))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    assert effect.request_id not in self.answers, f"request {effect.request_id} is answered twice"
                    self.answers[effect.request_id] = effect.response
                case PersistGroup():
                    metadata = replace(effect.metadata, current_state_timestamp=self.wall_ms)
                    self._write((GroupRecord(group_id=effect.group_id, value=metadata),), effect)

    def _write(self, records: tuple[GroupLogRecord, ...], asked: PersistGroup | None = None) -> None:
        self.coordinator.stage(records)
        self._staged.append((records, asked))
        if not self.holds_writes:
            self.commit_write()
