"""Any history of a classic group, against what must always hold.

Clients here are as real clients: each remembers its id and generation and acts on answers; in between come strangers,
expiries, failing writes and new coordinators.

- A request is answered once, never lost: when nothing is held back and time passes, every request has its answer.
- A member's assignment is what the leader of that generation gave this very member, and was committed before.
- All members with a generation's assignment got it from one leader's one assignment.
- The committed state equals the replay of the log, and a new coordinator continues from it.
- A commit that was acknowledged came from a member of the current generation, or the group had no members.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.events import SyncAsked
from tailrace.coordinators.groups.group import GroupState, RequestId
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord
from tailrace.coordinators.groups.store import GroupStore
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.membership import JoinGroupResponse, SyncGroupResponse
from testkit.coordinators.group_coordinator import GroupScene

E = ErrorCode
SESSION_MS, REBALANCE_MS = 10_000, 20_000
PROTOCOLS = st.sampled_from([{"range": b"1"}, {"range": b"1", "sticky": b"2"}, {"sticky": b"2", "range": b"3"}])


@dataclass
class ConsumerProcess:
    """A consumer process."""

    instance_id: str | None = None
    member_id: str = ""
    generation_id: int = -1
    joining: RequestId | None = None
    syncing: RequestId | None = None
    others: tuple[str, ...] = ()
    """The members, if it leads."""
    leads: bool = False
    is_synced: bool = False


CLIENTS = st.integers(0, 4)


class GroupHistory(RuleBasedStateMachine):
    """Clients 0 and 1 are dynamic, 2 and 3 static; client 4 takes the instance id of client 3 now and then."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([1000, 3]))
    def start(self, delay_ms: int, max_size: int) -> None:
        self.config = GroupConfig(group_initial_rebalance_delay_ms=delay_ms, group_max_size=max_size)
        self.scene = GroupScene(config=self.config)
        self.clients = [ConsumerProcess(instance_id=instance) for instance in (None, None, "s1", "s2", "s2")]
        self.assignments_made: dict[tuple[int, str, int], dict[str, bytes]] = {}
        self.handed_out: dict[int, dict[str, bytes]] = {}
        self.assignments = 0

    @rule(numbers=st.permutations(range(4)), protocols=PROTOCOLS, version=st.sampled_from([3, 5, 9]))
    def clients_do_what_they_should(self, numbers: list[int], protocols: dict[str, bytes], version: int) -> None:
        """Most of the time nothing strange happens: a group forms, and lives until something does."""
        for number in numbers:
            client = self.clients[number]
            if client.joining is not None or client.syncing is not None:
                continue
            if client.generation_id < 0:
                self.join(number=number, protocols=protocols, version=version)
            elif not client.is_synced:
                self.sync(number=number)
            else:
                self.heartbeat(number=number)

    @rule()
    def a_moment_passes(self) -> None:
        self.scene.pass_time(0 if self.config.group_initial_rebalance_delay_ms == 0 else 1_000)
        self.take_answers()

    @rule(number=CLIENTS, protocols=PROTOCOLS, version=st.sampled_from([3, 5, 9]))
    def join(self, number: int, protocols: dict[str, bytes], version: int) -> None:
        client = self.clients[number]
        client.joining = self.scene.join(
            client.member_id,
            protocols=protocols,
            instance_id=client.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            version=version,
            client_id=f"c{number}",
        )
        self.take_answers()

    @rule(
        data=st.data(),
        instance_id=st.sampled_from([None, "s1", "s2", "s9"]),
        generation_id=st.integers(-1, 5),
        protocols=st.dictionaries(st.sampled_from(["range", "sticky", "", "x"]), st.binary(max_size=2), max_size=3),
    )
    def a_liar_asks(
        self, data: st.DataObject, instance_id: str | None, generation_id: int, protocols: dict[str, bytes]
    ) -> None:
        """Any id that ever was, with anything: it may spoil its group, and nothing else."""
        ids = ["", "nobody", *(f"{prefix}-{n}" for n in range(1, 8) for prefix in ("c0", "s1", "s2"))]
        member_id = data.draw(st.sampled_from(ids))
        match data.draw(st.integers(0, 3)):
            case 0:
                self.scene.join(member_id, protocols=protocols, instance_id=instance_id, protocol_type="consumer")
            case 1:
                self.scene.sync(member_id, generation_id, instance_id=instance_id)
            case 2:
                self.scene.heartbeat(member_id, generation_id, instance_id=instance_id)
            case _:
                self.scene.leave((member_id, instance_id))
        self.take_answers()

    @rule(number=CLIENTS)
    def sync(self, number: int) -> None:
        client = self.clients[number]
        given: dict[str, bytes] = {}
        if client.leads:
            self.assignments += 1
            given = {member_id: f"{member_id}/{self.assignments}".encode() for member_id in client.others}
        client.syncing = self.scene.sync(client.member_id, client.generation_id, given, instance_id=client.instance_id)
        if client.leads:
            self.assignments_made[client.generation_id, client.member_id, client.syncing] = given
        self.take_answers()

    @rule(number=CLIENTS)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        code = self.scene.heartbeat(client.member_id, client.generation_id, instance_id=client.instance_id)
        if code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.forget(client)
        elif code is not E.NONE:
            client.generation_id = -1

    @rule(number=CLIENTS)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        self.scene.leave((client.member_id, client.instance_id))
        self.take_answers()
        self.forget(client)

    @rule(number=CLIENTS, offset=st.integers(0, 9), alone=st.booleans())
    def commit(self, number: int, offset: int, alone: bool) -> None:
        client = self.clients[number]
        state = self.scene.state
        members = () if state is GroupState.DEAD else self.scene.members
        generation_id, member_id = (-1, "") if alone else (client.generation_id, client.member_id)
        code = self.scene.commit_offset(offset, generation_id=generation_id, member_id=member_id)
        if code is not E.NONE:
            return
        assert (not members and generation_id < 0) or (
            member_id in members and generation_id == self.current_generation()
        )

    @rule()
    def delete(self) -> None:
        members = () if self.scene.state is GroupState.DEAD else self.scene.members
        if self.scene.delete_group() is E.NONE:
            assert not members
            self.handed_out.clear()  # the next group of this name counts its generations anew

    @rule(milliseconds=st.sampled_from([1, 2_500, 3_000, 5_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.scene.pass_time(milliseconds)
        self.take_answers()

    @rule()
    def hold_writes(self) -> None:
        self.scene.holds_writes = True

    @precondition(lambda self: self.scene.held_writes)
    @rule(fails=st.booleans())
    def settle_write(self, fails: bool) -> None:
        if fails:
            self.scene.fail_write()
        else:
            self.scene.commit_write()
        self.take_answers()

    @rule()
    def release_writes(self) -> None:
        self.scene.holds_writes = False
        while self.scene.held_writes:
            self.scene.commit_write()
        self.take_answers()

    @precondition(lambda self: len(self.scene.log) > 2)
    @rule()
    def another_coordinator_takes_over(self) -> None:
        self.scene.abandon()
        self.take_answers()
        self.all_are_answered(self.scene)
        self.scene = GroupScene(config=self.config, log=self.scene.log)
        # Ids stay unique over coordinators: in the product they are random.
        self.scene._ids = 1_000 * (1 + len(self.scene.log))
        self.handed_out.clear()
        self.assignments_made.clear()
        for client in self.clients:
            client.joining = client.syncing = None

    def current_generation(self) -> int:
        return self.scene.coordinator._memberships[self.scene.group_id].group.generation_id

    def take_answers(self) -> None:
        for client in self.clients:
            if client.syncing is not None and self.scene.is_answered(client.syncing):
                self.take_assignment(client, client.syncing)
                client.syncing = None
            if client.joining is not None and self.scene.is_answered(client.joining):
                self.take_generation(client, client.joining)
                client.joining = None

    def take_generation(self, client: ConsumerProcess, request_id: RequestId) -> None:
        response = self.scene.join_answer(request_id)
        assert isinstance(response, JoinGroupResponse)
        if response.error_code == E.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif response.error_code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.forget(client)
        elif response.error_code == E.NONE:
            client.member_id, client.generation_id = response.member_id, response.generation_id
            client.is_synced = False
            client.leads = response.leader == response.member_id and not response.skip_assignment
            client.others = tuple(member.member_id for member in response.members)
            assert client.leads <= (client.member_id in client.others)

    def take_assignment(self, client: ConsumerProcess, request_id: RequestId) -> None:
        response = self.scene.answers[request_id]
        assert isinstance(response, SyncGroupResponse)
        if response.error_code != E.NONE:
            client.generation_id = -1
            return
        client.is_synced = True
        request = self.scene.requests[request_id]
        assert isinstance(request, SyncAsked)
        generation_id, member_id = request.request.generation_id, request.request.member_id
        committed = [
            record.value
            for record in self.scene.log
            if isinstance(record, GroupRecord) and record.value is not None and record.value.generation == generation_id
        ]
        assert committed, "handed out before it was committed"
        mine = [member.assignment for member in committed[-1].members if member.member_id == member_id]
        assert mine == [response.assignment], "each gets what was committed for it"
        assert (
            self.handed_out.setdefault(generation_id, {}).setdefault(member_id, response.assignment)
            == response.assignment
        )
        numbers = {assignment.split(b"/")[1] for assignment in self.handed_out[generation_id].values() if assignment}
        assert len(numbers) <= 1, "one generation has one assignment"

    def forget(self, client: ConsumerProcess) -> None:
        client.member_id, client.generation_id = "", -1
        client.leads, client.others = False, ()

    def all_are_answered(self, scene: GroupScene) -> None:
        unanswered = [
            request for number, request in enumerate(scene.requests) if RequestId(number) not in scene.answers
        ]
        assert not unanswered, unanswered

    @invariant()
    def committed_state_is_the_replay_of_the_log(self) -> None:
        if hasattr(self, "scene"):
            assert self.scene.coordinator.committed.groups == _replay(self.scene.log).groups

    @invariant()
    def a_group_with_members_has_a_leader_among_them(self) -> None:
        if not hasattr(self, "scene") or self.scene.group_id not in self.scene.coordinator._memberships:
            return
        group = self.scene.coordinator._memberships[self.scene.group_id].group
        assert (group.leader in group.members) if group.members else group.leader is None
        assert set(group.static_members.values()) == {
            member.member_id for member in group.members.values() if member.group_instance_id is not None
        }
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.members
            assert all(any(p.name == group.protocol_name for p in m.protocols) for m in group.members.values())
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not group.members

    def teardown(self) -> None:
        """In the end every member gets an answer, and silent members are forgotten."""
        if not hasattr(self, "scene"):
            return
        self.release_writes()
        self.scene.pass_time(3_600_000)
        self.all_are_answered(self.scene)
        assert self.scene.state in (GroupState.EMPTY, GroupState.DEAD)


def _replay(log: Iterable[GroupLogRecord]) -> GroupStore:
    store = GroupStore()
    for record in log:
        store.apply(record)
    return store


GroupHistory.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestGroupHistory = GroupHistory.TestCase
