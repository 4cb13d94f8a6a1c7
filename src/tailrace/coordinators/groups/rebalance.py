"""The rebalances of a classic group: members join, the leader assigns, the assignment is committed and sent.

    Empty --join--> PreparingRebalance --all joined, or time is up--> CompletingRebalance
    CompletingRebalance --the leader's assignment is committed--> Stable --join, leave, expiry--> PreparingRebalance

Rules:
1. A joining member waits for the other members, at most their longest rebalance timeout. A member that has not joined
   by then is removed; a static member is removed only at the end of its session (KIP-345).
2. The first rebalance of an empty group waits `group.initial.rebalance.delay.ms` in any case, and again while new
   members join, up to the rebalance timeout (KIP-134).
3. An assignment is sent after its commit, and only in its own generation.
4. A joined member that sends no SyncGroup within the rebalance timeout is removed.
"""

from collections.abc import Mapping

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.events import GroupEffects, WriteId
from tailrace.coordinators.groups.group import ClassicGroup, GroupState, Member
from tailrace.coordinators.groups.history import GroupEventKind, GroupHistory
from tailrace.coordinators.groups.moves import moves_of_classic
from tailrace.model.errors import ErrorCode


class Rebalance:
    """The rebalances of one group. Deadlines in ms of the host's monotonic clock."""

    def __init__(self, group: ClassicGroup, effects: GroupEffects, config: GroupConfig, history: GroupHistory) -> None:
        self._group = group
        self._effects = effects
        self._config = config
        self._history = history
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self._delay_left_ms: int | None = None
        """The remaining delay of the first rebalance of an empty group; None in any other rebalance."""
        self._has_new_members = False
        """Whether members have joined during the present delay."""
        self._unsynced: set[str] = set()
        """Members of the generation that have not sent SyncGroup."""
        self._assignments: Mapping[str, bytes] = {}
        self._write_id: WriteId | None = None
        """The write of `_assignments` that is under way."""

    def admit(self, member: Member, protocol_type: str, now_ms: int) -> None:
        """Add a new member, which waits in its JoinGroup."""
        self._has_new_members = True
        self._group.add(member, protocol_type)
        self.membership_changed(now_ms, f"{member.member_id} joined")

    def remove(self, member_id: str, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Remove a member; its waiting requests get `code`. Call `membership_changed` after the last removal."""
        member = self._group.members[member_id]
        self.release_join(member, code)
        self.release_sync(member, code)
        self._unsynced.discard(member_id)
        self._group.remove(member_id)

    def release_join(self, member: Member, code: ErrorCode) -> None:
        """Answer the member's JoinGroup, if it waits."""
        if member.joining is not None:
            self._effects.answer(member.joining, answers.join_refused(code, member.member_id))
            member.joining = None

    def release_sync(self, member: Member, code: ErrorCode) -> None:
        """Answer the member's SyncGroup, if it waits."""
        if member.syncing is not None:
            self._effects.answer(member.syncing, answers.sync_refused(code))
            member.syncing = None

    def membership_changed(self, now_ms: int, cause: str) -> None:
        """Act on a member that has joined, left, or changed its protocols. `cause` names the event, for logs and
        `describe`."""
        if self._group.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_all_are_here(now_ms)
        elif self._group.members or self._group.state is not GroupState.EMPTY:
            self.prepare(now_ms, cause)

    def prepare(self, now_ms: int, cause: str) -> None:
        """Begin a rebalance: all members must join again."""
        self._history.add(GroupEventKind.REBALANCE, now_ms, cause)
        self._call_off_assignment(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self.sync_deadline_ms = None
        self._unsynced.clear()
        is_first = self._group.state is GroupState.EMPTY
        self._group.transition_to(GroupState.PREPARING_REBALANCE)
        if is_first:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self.join_deadline_ms = now_ms + delay_ms
            self._delay_left_ms = max(self._group.rebalance_timeout_ms - delay_ms, 0)
            self._has_new_members = False
        else:
            self._complete_join_if_all_are_here(now_ms)

    def _complete_join_if_all_are_here(self, now_ms: int) -> None:
        if self._delay_left_ms is not None:
            return
        if self._group.all_joined and not self._group.pending_members:
            self._complete_join(now_ms)
        elif self.join_deadline_ms is None:
            self.join_deadline_ms = now_ms + self._group.rebalance_timeout_ms

    def _join_time_is_up(self, now_ms: int) -> None:
        if self._delay_left_ms and self._has_new_members:
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, self._delay_left_ms)
            self.join_deadline_ms = now_ms + delay_ms
            self._delay_left_ms -= delay_ms
            self._has_new_members = False
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        group = self._group
        self.join_deadline_ms = self._delay_left_ms = None
        absent = [member for member in group.members.values() if member.joining is None]
        for member in absent:
            if member.group_instance_id is None:
                self._expire(member, now_ms, "it did not join again within", group.rebalance_timeout_ms)
        group.elect_leader()
        if group.members and not group.is_leader_joined:
            # Only static members are left, and no member has joined: wait until a member joins or its session ends.
            self.join_deadline_ms = now_ms + group.rebalance_timeout_ms
            return
        group.next_generation()
        self._note_generation(now_ms)
        if group.state is GroupState.EMPTY:
            self._effects.persist(group.metadata({}))
        else:
            self._announce_generation(now_ms)

    def _expire(self, member: Member, now_ms: int, fault: str, timeout_ms: int) -> None:
        reason = f"{fault} rebalance.timeout.ms={timeout_ms} (a consumer's max.poll.interval.ms)"
        self._history.add(GroupEventKind.EXPIRED, now_ms, reason, member.member_id)
        self.remove(member.member_id)

    def _note_generation(self, now_ms: int) -> None:
        group = self._group
        reason = f"generation {group.generation_id}: members: {len(group.members)}"
        if group.members:
            reason += f", protocol: {group.protocol_name}, leader: {group.leader}"
        self._history.add(GroupEventKind.GENERATION, now_ms, reason)

    def _announce_generation(self, now_ms: int) -> None:
        for member in self._group.members.values():
            if member.joining is not None:
                self._effects.answer(member.joining, answers.joined(self._group, member))
                member.joining = None
                member.is_new = False
                self._group.keep_alive(member, now_ms)
                self._unsynced.add(member.member_id)
        self.sync_deadline_ms = now_ms + self._group.rebalance_timeout_ms

    def synced(self, member_id: str) -> None:
        """Note that the member has sent SyncGroup."""
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self.sync_deadline_ms = None

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Commit the leader's assignments, by member id; in a generation only the first assignments count."""
        if self._write_id is None:
            self._assignments = assignments
            self._write_id = self._effects.persist(self._group.metadata(assignments))

    def metadata_committed(self, write_id: WriteId, now_ms: int) -> None:
        """Send the assignments, if this write has committed the assignments."""
        if write_id != self._write_id:
            return
        group = self._group
        group.transition_to(GroupState.STABLE)
        before = {member.member_id: member.assignment for member in group.members.values()}
        moves = moves_of_classic(group.protocol_type, before, self._assignments)
        self._history.add(GroupEventKind.ASSIGNED, now_ms, f"generation {group.generation_id}{moves}")
        for member in group.members.values():
            member.assignment = self._assignments.get(member.member_id, b"")
            if member.syncing is not None:
                self._effects.answer(member.syncing, answers.assigned(group, member))
                member.syncing = None
                group.keep_alive(member, now_ms)
        self._write_id, self._assignments = None, {}

    def metadata_failed(self, write_id: WriteId, code: ErrorCode, now_ms: int) -> None:
        """After a failed write of the assignments, drop the assignments and let all members join again."""
        if write_id == self._write_id:
            self._call_off_assignment(code, now_ms)
            self.prepare(now_ms, f"the assignment could not be committed: {code.name}")

    def _call_off_assignment(self, code: ErrorCode, now_ms: int) -> None:
        self._write_id, self._assignments = None, {}
        for member in self._group.members.values():
            if member.syncing is not None:
                self.release_sync(member, code)
                self._group.keep_alive(member, now_ms)

    def tick(self, now_ms: int) -> None:
        """Handle the deadlines that have passed."""
        if self.join_deadline_ms is not None and self.join_deadline_ms <= now_ms:
            self._join_time_is_up(now_ms)
        if self.sync_deadline_ms is not None and self.sync_deadline_ms <= now_ms:
            timeout_ms = self._group.rebalance_timeout_ms
            for member_id in tuple(self._unsynced):
                member = self._group.members[member_id]
                self._expire(member, now_ms, "it did not ask for its assignment within", timeout_ms)
            self.prepare(now_ms, "members did not ask for their assignments")
