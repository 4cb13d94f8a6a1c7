"""A classic group in the memory of its coordinator: members, generation and state, and their invariants.

Invariants:
1. `state` changes by `transition_to` only, along TRANSITIONS.
2. Stable and CompletingRebalance: there are members, a member leads, and a protocol is chosen that all support. A
   group that was restored without a leader is stable until its rebalance begins, and gets no request before that.
3. Empty and Dead: no members.
4. A static member (KIP-345) has one entry in `static_members`, under its instance id.

Requests and events are in `membership`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from tailrace.coordinators.groups.records import GroupMetadataValue, MemberMetadata
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.membership import JoinGroupRequestProtocol, JoinGroupResponseMember

RequestId = NewType("RequestId", int)
"""A request that waits for its answer, by the number that the host has given to the request."""


class GroupState(StrEnum):
    """A state, with its name for clients."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits until its members have joined again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members have joined; the group waits for the leader's assignment, and then for its commit."""
    STABLE = "Stable"
    DEAD = "Dead"
    """Deleted: the last state."""


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset((GroupState.PREPARING_REBALANCE, GroupState.DEAD)),
    GroupState.PREPARING_REBALANCE: frozenset((GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)),
    GroupState.COMPLETING_REBALANCE: frozenset((GroupState.STABLE, GroupState.PREPARING_REBALANCE)),
    GroupState.STABLE: frozenset((GroupState.PREPARING_REBALANCE,)),
    GroupState.DEAD: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of the group. Deadlines in ms of the host's monotonic clock."""

    member_id: str
    group_instance_id: str | None
    """The instance id of a static member, which keeps its assignment over a restart."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupRequestProtocol, ...]
    """Assignors by preference, with the member's metadata per assignor."""
    session_deadline_ms: int
    assignment: bytes = b""
    joining: RequestId | None = None
    """The JoinGroup that waits for the end of the rebalance."""
    syncing: RequestId | None = None
    """The SyncGroup that waits for the assignment."""
    is_new: bool = False
    """Whether the member waits in its first JoinGroup: the client does not know the member id yet."""

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this assignor; empty if the member does not support the assignor."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def is_expired(self, now_ms: int) -> bool:
        """Whether the member's session is over. While a request of the member waits, the session is not over, except in
        the first join."""
        return self.session_deadline_ms <= now_ms and (self.is_new or not self.is_waiting)

    @property
    def metadata_bytes(self) -> int:
        """The size of the names of the member's assignors and of the metadata per assignor."""
        return size_of(self.protocols)

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def silent_ms(self, now_ms: int) -> int:
        """The time since the member's last heartbeat; 0 while a request of the member waits."""
        return 0 if self.is_waiting else max(now_ms - (self.session_deadline_ms - self.session_timeout_ms), 0)


def size_of(protocols: Iterable[JoinGroupRequestProtocol]) -> int:
    """The bytes of a member's assignors and of the metadata per assignor."""
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


class ClassicGroup:
    """Members, generation and state of one group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.is_converted = False
        """Whether the group was a consumer group until now: then the generations of its members are different
        epochs."""
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        """The members by member id, in the order of their joins."""
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.pending_members: dict[str, int] = {}
        """The ids given to new members that have not joined with their id yet (KIP-394), with the time at which each id
        lapses."""
        self.session_alarm_ms: int | None = None
        """A time that is not after the next end of a session or pending id. Before this time no session has to be
        checked."""
        self.metadata_bytes = 0
        """`Member.metadata_bytes` of all members together."""
        self._supporters: Counter[str] = Counter()
        """Protocol name -> number of members that support the protocol, for the check of every join."""

    @classmethod
    def restored(cls, group_id: str, metadata: GroupMetadataValue, now_ms: int) -> "ClassicGroup":
        """The group by its last committed generation, with every session starting now.

        A group that was converted from a consumer group has no leader (`conversion`), and has to rebalance first.
        """
        group = cls(group_id)
        group.generation_id = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        if not metadata.members:
            return group
        group.protocol_name = metadata.protocol
        for stored in metadata.members:
            group.add(_restored_member(stored, metadata.protocol, now_ms))
        group.leader = metadata.leader if metadata.leader in group.members else None
        group.is_converted = group.leader is None
        group.state = GroupState.STABLE
        return group

    def transition_to(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"group {self.group_id}: {self.state} -> {state}"
        self.state = state

    def keep_alive(self, member: Member, now_ms: int) -> None:
        """Start the member's session again."""
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def wake_by(self, deadline_ms: int) -> None:
        if self.session_alarm_ms is None or deadline_ms < self.session_alarm_ms:
            self.session_alarm_ms = deadline_ms

    def reset_alarm(self, now_ms: int) -> None:
        """Set the alarm by the sessions of all members; sessions of waiting members count again after their answers."""
        waking = [m.session_deadline_ms for m in self.members.values() if m.session_deadline_ms > now_ms]
        self.session_alarm_ms = min((*waking, *self.pending_members.values()), default=None)

    def fault_of_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """The error if no present member has the ids, else NONE."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def fault_of_commit(
        self, member_id: str, generation_id: int, group_instance_id: str | None, *, in_transaction: bool
    ) -> ErrorCode:
        """The error of this commit of offsets, or NONE.

        A consumer that assigns itself commits with generation -1 and no member id, and only while the group is empty. A
        commit in a transaction is also accepted during a rebalance.
        """
        if not in_transaction and generation_id < 0:
            if self.state is GroupState.EMPTY:
                return ErrorCode.NONE
            if not member_id and group_instance_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        fault = self.fault_of_member(member_id, group_instance_id)
        if fault:
            return fault
        if not self.is_current(generation_id):
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE and not in_transaction:
            # The member has the generation but no assignment yet: its offsets belong to the generation before.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def is_current(self, generation_id: int) -> bool:
        """Whether a member may name this generation: the present generation or, in a converted group, an earlier
        generation.

        Members of a converted group have assignments of different epochs, until the next join. Kafka accepts the last
        epoch only; so other members cannot commit records that they have read, and read these records again.
        """
        return generation_id == self.generation_id or (self.is_converted and 0 <= generation_id < self.generation_id)

    def supports(self, protocol_type: str, protocols: tuple[JoinGroupRequestProtocol, ...]) -> bool:
        """Whether all members have a protocol of `protocols` in common."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and not self._common_protocols().isdisjoint(
            protocol.name for protocol in protocols
        )

    def _common_protocols(self) -> set[str]:
        count = len(self.members)
        return {name for name, supporters in self._supporters.items() if supporters == count}

    def vote(self) -> str:
        """The assignor with the most votes that every member supports; of equals, the first with a vote."""
        candidates = self._common_protocols()
        assert candidates, f"group {self.group_id}: its members have no protocol in common"
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in candidates)
            for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        return all(member.joining is not None for member in self.members.values())

    @property
    def is_leader_joined(self) -> bool:
        return self.leader is not None and self.members[self.leader].joining is not None

    def described_members(self) -> tuple[JoinGroupResponseMember, ...]:
        """The members and their metadata, which the leader needs to assign."""
        return tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata_for(self.protocol_name),
            )
            for member in self.members.values()
        )

    def metadata(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """This generation with these assignments by member id, for the log; its timestamp is added later."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader,
            members=tuple(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata_for(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    def add(self, member: Member, protocol_type: str | None = None) -> None:
        """Add a member. The first member leads, and has the protocol type of the group."""
        assert member.member_id not in self.members
        if not self.members and protocol_type is not None:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self.wake_by(member.session_deadline_ms)
        self._supporters.update({protocol.name for protocol in member.protocols})
        self.metadata_bytes += member.metadata_bytes
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._withdraw_support(member)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = None
            self.elect_leader()

    def change_protocols(self, member: Member, protocols: tuple[JoinGroupRequestProtocol, ...]) -> None:
        """Set the protocols of a member, which `supports` has accepted."""
        self._withdraw_support(member)
        member.protocols = protocols
        self._supporters.update({protocol.name for protocol in protocols})
        self.metadata_bytes += member.metadata_bytes

    def _withdraw_support(self, member: Member) -> None:
        self._supporters -= Counter({protocol.name for protocol in member.protocols})
        self.metadata_bytes -= member.metadata_bytes

    def elect_leader(self) -> None:
        """Keep a leader that has joined; else the first joined member leads, else the first member."""
        if not self.members or self.is_leader_joined:
            return
        joined = (member.member_id for member in self.members.values() if member.joining is not None)
        self.leader = next(joined, self.leader or next(iter(self.members)))

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member that is back its new id, at the same place in the order."""
        old_id = member.member_id
        assert member.group_instance_id is not None
        member.member_id = member_id
        self.members = {other.member_id: other for other in self.members.values()}
        self.static_members[member.group_instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def next_generation(self) -> None:
        """End the join phase: the group becomes Empty without members, else CompletingRebalance with the protocol of
        the vote."""
        self.generation_id += 1
        self.is_converted = False
        if self.members:
            self.protocol_name = self.vote()
            self.transition_to(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY)


def _restored_member(stored: MemberMetadata, protocol_name: str | None, now_ms: int) -> Member:
    # Only the chosen protocol's metadata is stored. A member that joins again with further protocols starts a
    # rebalance.
    return Member(
        member_id=stored.member_id,
        group_instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout,
        rebalance_timeout_ms=stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout,
        protocols=(JoinGroupRequestProtocol(name=protocol_name or "", metadata=stored.subscription),),
        session_deadline_ms=now_ms + stored.session_timeout,
        assignment=stored.assignment,
    )
