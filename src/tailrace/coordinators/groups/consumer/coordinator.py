"""The consumer groups of one partition of `__consumer_offsets`: decisions on the latest state, and sessions."""

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.consumer.change import ConsumerGroupDecision
from tailrace.coordinators.groups.consumer.classic_members import ClassicDecision, ClassicMembers
from tailrace.coordinators.groups.consumer.conversion import check_upgrade_fits
from tailrace.coordinators.groups.consumer.group import (
    NOT_THERE,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topics,
)
from tailrace.coordinators.groups.consumer.heartbeat import (
    JOINING,
    ConsumerHeartbeat,
    HeartbeatDecision,
    heartbeat,
    removal,
)
from tailrace.coordinators.groups.consumer.sessions import MemberKey, Sessions
from tailrace.coordinators.groups.events import Asked, HeartbeatAsked, JoinAsked, LeaveAsked, SyncAsked
from tailrace.coordinators.groups.history import GroupHistory
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.coordinators.groups.records import GroupLogRecord
from tailrace.model.errors import ErrorCode, KafkaError


class ConsumerGroups:
    """The state of consumer groups that is not in the log, and that only the active coordinator has. Deadlines are on
    the host's monotonic clock."""

    def __init__(
        self,
        config: GroupConfig,
        histories: MutableMapping[str, GroupHistory],
        *,
        topics: Topics,
        new_member_id: NewMemberId,
    ) -> None:
        self._config = config
        self._topics = topics
        self._new_member_id = new_member_id
        self._histories = histories
        self._sessions = Sessions(config.session_timeout_ms)
        self._topics_seen: dict[str, int] = {}
        """Group -> the version of the cluster's topics at the last check of its epoch."""

    @property
    def next_deadline_ms(self) -> int | None:
        return self._sessions.next_deadline_ms

    def begin(self, group_id: str, group: ConsumerGroup, now_ms: int) -> None:
        """Take the group over: the sessions of its members, and their times for revocations, start now."""
        for member_id in group.members:
            self.watch(group_id, group, member_id, now_ms)

    def heartbeat(
        self,
        group: ConsumerGroup | None,
        command: ConsumerHeartbeat,
        now_ms: int,
        *,
        conversion: tuple[GroupLogRecord, ...] = (),
    ) -> HeartbeatDecision:
        """The decision on a heartbeat; the member's session starts again. Raises KafkaError.

        `conversion` has the records that make the group a consumer group, in one batch with the heartbeat's records.
        """
        group_id, member_id = command.request.group_id, command.request.member_id
        topics_version = self._topics.version
        command = replace(command, must_check_topics=self._topics_seen.get(group_id) != topics_version)
        try:
            decision = heartbeat(group, command, self._topics, self._config)
            if conversion:
                decision.records = (*conversion, *decision.records)
                decision.is_conversion = True
                check_upgrade_fits(group_id, decision.records)
        except KafkaError as refusal:
            history = self._histories.get(group_id)
            if history is not None:
                history.add_refusal("ConsumerGroupHeartbeat", refusal.code, now_ms, member_id)
            raise
        self._take_down(group_id, group, decision, now_ms)
        if command.request.member_epoch >= JOINING:
            self._topics_seen[group_id] = topics_version
        if _revokes_anew(group, decision.group, member_id):
            self._sessions.expect_nothing(MemberKey(group_id, member_id))
        self._watch(group_id, decision.group, member_id, now_ms)
        return decision

    def classic(self, group_id: str, group: ConsumerGroup, event: Asked, now_ms: int) -> ClassicDecision:
        """The decision on the request of a member with the classic protocol. Raises KafkaError."""
        topics_version = self._topics.version
        members = ClassicMembers(
            group_id,
            group,
            topics=self._topics,
            must_check_topics=self._topics_seen.get(group_id) != topics_version,
            config=self._config,
            new_member_id=self._new_member_id,
        )
        decision = members.decide(event)
        self._take_down(group_id, group, decision, now_ms)
        if isinstance(event, JoinAsked | HeartbeatAsked) and decision.group.members:
            self._topics_seen[group_id] = topics_version
        self._watch_classic(group_id, decision, event, now_ms)
        return decision

    def _watch_classic(self, group_id: str, decision: ClassicDecision, event: Asked, now_ms: int) -> None:
        """Start the member's session again, and its rebalance timeout if the member has to join or to sync."""
        if isinstance(event, LeaveAsked):
            return
        response = decision.response
        member_id = getattr(response, "member_id", event.request.member_id)
        member, key = decision.group.members.get(member_id), MemberKey(group_id, member_id)
        if member is None:
            return
        self._heard(key, member, now_ms)
        timeout_ms = max(member.subscription.rebalance_timeout_ms, 0)
        if isinstance(event, JoinAsked):
            self._sessions.expect_nothing(key)
            self._sessions.expect(key, timeout_ms, now_ms, "it did not ask for its assignment")
        elif response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            if isinstance(event, SyncAsked):
                self._sessions.expect_nothing(key)
            self._sessions.expect(key, timeout_ms, now_ms, "it did not join again")
        elif isinstance(event, SyncAsked):
            self._sessions.expect_nothing(key)

    def committed(self, group_id: str, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Note that a member has committed offsets: for a member with the classic protocol, the session starts
        again."""
        member = group.members.get(member_id)
        if member is not None and member.is_classic:
            self._heard(MemberKey(group_id, member_id), member, now_ms)

    def _heard(self, key: MemberKey, member: ConsumerMember, now_ms: int) -> None:
        classic = member.subscription.classic_member_metadata
        self._sessions.heard(key, now_ms, None if classic is None else classic.session_timeout_ms)

    def _take_down(
        self, group_id: str, before: ConsumerGroup | None, decision: ConsumerGroupDecision[Any], now_ms: int
    ) -> None:
        """Record the events of a decision, and end the sessions of removed members."""
        for former in before.members.keys() - decision.group.members.keys() if before is not None else ():
            self._sessions.forget(MemberKey(group_id, former))
        if decision.events:
            history = self._histories.setdefault(group_id, GroupHistory())
            for kind, member_id, reason in decision.events:
                history.add(kind, now_ms, reason, member_id)

    def session_timeout_ms(self, group_id: str, group: ConsumerGroup, member_id: str) -> int:
        """The session timeout of a member that is in the group."""
        classic = group.members[member_id].subscription.classic_member_metadata
        return self._config.session_timeout_ms(group_id) if classic is None else classic.session_timeout_ms

    def watch(self, group_id: str, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Start the member's session."""
        self._sessions.forget(MemberKey(group_id, member_id))
        self._watch(group_id, group, member_id, now_ms)

    def _watch(self, group_id: str, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        key, member = MemberKey(group_id, member_id), group.members.get(member_id)
        if member is None:
            self._sessions.forget(key)
            return
        self._heard(key, member, now_ms)
        if member.is_classic:
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch != NOT_THERE:
            timeout_ms = max(member.subscription.rebalance_timeout_ms, 0)
            self._sessions.expect(key, timeout_ms, now_ms, "it did not give up partitions")
        else:
            self._sessions.expect_nothing(key)

    def write_failed(self, key: MemberKey, group: ConsumerGroup | None, now_ms: int, *, keeps_history: bool) -> None:
        """Undo a change that was not written: keep only the sessions of members that are in the log."""
        group_id = key.group_id
        if group is None or key.member_id not in group.members:
            self._sessions.forget(key)
        if group is None:
            self.close(group_id, keeps_history=keeps_history)
            return
        self._topics_seen.pop(group_id, None)
        for member in group.members.values():
            if self._sessions.silent_ms(MemberKey(group_id, member.member_id), now_ms) is None:
                self._heard(MemberKey(group_id, member.member_id), member, now_ms)

    def take_due(self, now_ms: int) -> Iterator[tuple[MemberKey, str]]:
        """Take the members whose session or rebalance has timed out, with the reason: the caller removes these
        members."""
        yield from self._sessions.take_due(now_ms)

    def remove(self, key: MemberKey, group: ConsumerGroup | None, reason: str, now_ms: int) -> HeartbeatDecision | None:
        """Remove a member; None if the member has left the group."""
        if group is None or key.member_id not in group.members:
            return None
        decision = removal(key.group_id, group, key.member_id, reason, self._topics, self._config)
        self._take_down(key.group_id, group, decision, now_ms)
        return decision

    def close(self, group_id: str, *, keeps_history: bool) -> None:
        """Forget a group that has ended. `keeps_history`: a classic group takes its name."""
        self._topics_seen.pop(group_id, None)
        if not keeps_history:
            self._histories.pop(group_id, None)

    def silent_ms(self, group_id: str, member_id: str, now_ms: int) -> int:
        """The time since the member's last heartbeat."""
        return self._sessions.silent_ms(MemberKey(group_id, member_id), now_ms) or 0


def _revokes_anew(before: ConsumerGroup | None, after: ConsumerGroup, member_id: str) -> bool:
    """Whether the member has completed a revocation and has to make another revocation, whose time starts now."""
    known = None if before is None else before.members.get(member_id)
    member = after.members.get(member_id)
    if known is None or member is None:
        return False
    return bool(known.pending_revocation) and not member.pending_revocation <= known.pending_revocation
