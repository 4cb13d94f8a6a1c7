"""The rules of members of a classic consumer group, each rule by itself (KIP-134, 345, 394 and 814 among them)."""

import pytest

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.commands import DeleteOffsets
from tailrace.coordinators.groups.group import TRANSITIONS, GroupState
from tailrace.coordinators.groups.records import TransactionEnd
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from testkit.coordinators.group_coordinator import GroupScene

E = ErrorCode


@pytest.fixture
def scene() -> GroupScene:
    return GroupScene()


class TestFirstRebalance:
    def test_a_new_member_is_sent_back_with_an_id_made_of_its_client_id(self, scene: GroupScene) -> None:
        refused = scene.join_answer(scene.join(client_id="billing"))
        assert (refused.error_code, refused.member_id) == (E.MEMBER_ID_REQUIRED, "billing-1")
        assert refused.generation_id == -1
        assert scene.state is GroupState.EMPTY

    def test_below_version_4_a_new_member_joins_at_once(self, scene: GroupScene) -> None:
        joining = scene.join(version=3)
        scene.pass_time(0)
        assert scene.code(joining) is E.NONE
        assert scene.join_answer(joining).member_id == "c-1"

    def test_an_id_that_was_given_out_lapses_with_the_session_timeout(self, scene: GroupScene) -> None:
        member_id = scene.new_id(session_timeout_ms=10_000)
        scene.pass_time(10_000)
        assert scene.code(scene.join(member_id)) is E.UNKNOWN_MEMBER_ID
        assert scene.state is GroupState.DEAD, "a group without members leaves no trace"

    def test_the_first_rebalance_waits_for_more_members_as_long_as_they_come(self) -> None:
        scene = GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
        first = scene.join(version=3, rebalance_timeout_ms=30_000)
        scene.pass_time(2_000)
        second = scene.join(version=3)
        scene.pass_time(1_000)
        assert not scene.is_answered(first), "a member came: wait again"
        scene.pass_time(2_999)
        assert not scene.is_answered(first)
        scene.pass_time(1)
        assert scene.code(first) is scene.code(second) is E.NONE

    def test_the_first_rebalance_ends_at_the_rebalance_timeout_even_if_members_still_come(self) -> None:
        scene = GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
        first = scene.join(version=3, rebalance_timeout_ms=8_000)
        for _ in range(7):
            scene.pass_time(1_000)
            scene.join(version=3, rebalance_timeout_ms=8_000)
        assert not scene.is_answered(first)
        scene.pass_time(1_000)
        assert scene.code(first) is E.NONE

    def test_only_the_leader_gets_the_members_and_their_metadata(self, scene: GroupScene) -> None:
        first = scene.join(version=3, client_id="one", protocols={"range": b"1"})
        second = scene.join(version=3, client_id="two", protocols={"range": b"2"})
        scene.pass_time(0)
        leader, follower = scene.join_answer(first), scene.join_answer(second)
        assert leader.leader == follower.leader == leader.member_id
        assert [(member.member_id, member.metadata) for member in leader.members] == [("one-1", b"1"), ("two-2", b"2")]
        assert follower.members == ()
        assert leader.generation_id == follower.generation_id == 1
        assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")

    def test_the_protocol_is_the_one_most_members_prefer_of_those_all_support(self, scene: GroupScene) -> None:
        joined = scene.join(version=3, protocols={"sticky": b"", "range": b"", "roundrobin": b""})
        scene.join(version=3, protocols={"roundrobin": b"", "range": b""})
        scene.join(version=3, protocols={"range": b"", "roundrobin": b""})
        scene.pass_time(0)
        assert scene.join_answer(joined).protocol_name == "range"

    def test_an_assignor_without_other_supporters_is_refused(self, scene: GroupScene) -> None:
        scene.join(version=3, protocols={"range": b""})
        assert scene.code(scene.join(version=3, protocols={"sticky": b""})) is E.INCONSISTENT_GROUP_PROTOCOL
        assert scene.code(scene.join(version=3, protocol_type="connect")) is E.INCONSISTENT_GROUP_PROTOCOL
        assert scene.code(scene.join(version=3, protocols={})) is E.INCONSISTENT_GROUP_PROTOCOL

    @pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
    def test_a_session_timeout_out_of_bounds_is_refused(self, scene: GroupScene, session_timeout_ms: int) -> None:
        assert scene.code(scene.join(session_timeout_ms=session_timeout_ms)) is E.INVALID_SESSION_TIMEOUT

    def test_metadata_is_bounded(self) -> None:
        scene = GroupScene(config=GroupConfig(group_max_metadata_bytes=10))
        assert scene.code(scene.join(protocols={"range": b"12345", "sticky": b"123456"})) is E.INVALID_REQUEST

    def test_the_metadata_of_all_members_together_is_bounded(self) -> None:
        config = GroupConfig(group_initial_rebalance_delay_ms=0, group_max_metadata_bytes=10)
        scene = GroupScene(config=config)
        assert config.group_max_total_metadata_bytes == 60
        joins = [scene.join(version=3, client_id=f"{n}", protocols={"a": b"123456789"}) for n in range(7)]
        assert scene.code(joins.pop()) is E.GROUP_MAX_SIZE_REACHED
        scene.pass_time(0)
        leader = scene.join_answer(joins[0])
        assert len(leader.members) == 6, "a member that joins again does not count twice"
        assert scene.code(scene.sync(leader.member_id, 1, {leader.member_id: b"x" * 7})) is E.GROUP_MAX_SIZE_REACHED
        assert scene.code(scene.sync(leader.member_id, 1, {leader.member_id: b"x" * 11})) is E.INVALID_REQUEST
        assert scene.code(scene.sync(leader.member_id, 1, {leader.member_id: b"x" * 6})) is E.NONE

    def test_names_of_protocols_are_bounded_with_their_metadata(self) -> None:
        scene = GroupScene(config=GroupConfig(group_max_metadata_bytes=10))
        assert scene.code(scene.join(protocols={"x" * 11: b""})) is E.INVALID_REQUEST
        scene = GroupScene()
        assert scene.code(scene.join(protocols={f"{n}": b"" for n in range(101)})) is E.INVALID_REQUEST
        assert scene.code(scene.join(protocols={f"{n}": b"" for n in range(100)})) is E.MEMBER_ID_REQUIRED

    def test_a_group_takes_no_more_members_than_it_may_have(self) -> None:
        scene = GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
        ids, generation_id = scene.form_group("a", "b")
        assert scene.code(scene.join()) is E.GROUP_MAX_SIZE_REACHED
        assert scene.state is GroupState.STABLE
        assert scene.heartbeat(ids[0], generation_id) is E.NONE


class TestAssignment:
    def test_members_wait_for_the_leaders_assignment_and_each_gets_its_own(self, scene: GroupScene) -> None:
        ids = [scene.new_id(client_id=name) for name in "ab"]
        for member_id in ids:
            scene.join(member_id)
        scene.pass_time(0)
        follower = scene.sync(ids[1], 1)
        assert not scene.is_answered(follower)
        leader = scene.sync(ids[0], 1, {ids[0]: b"for-a", ids[1]: b"for-b"})
        assert (scene.assignment(leader), scene.assignment(follower)) == (b"for-a", b"for-b")
        assert scene.state is GroupState.STABLE

    def test_an_assignment_is_committed_before_it_is_handed_out(self, scene: GroupScene) -> None:
        member_id = scene.new_id()
        scene.join(member_id)
        scene.pass_time(0)
        scene.holds_writes = True
        syncing = scene.sync(member_id, 1, {member_id: b"x"})
        assert not scene.is_answered(syncing)
        assert scene.state is GroupState.COMPLETING_REBALANCE
        scene.commit_write()
        assert scene.assignment(syncing) == b"x"

    def test_an_assignment_that_cannot_be_committed_makes_all_join_again(self, scene: GroupScene) -> None:
        member_id = scene.new_id()
        scene.join(member_id)
        scene.pass_time(0)
        scene.holds_writes = True
        syncing = scene.sync(member_id, 1, {member_id: b"x"})
        scene.fail_write(E.COORDINATOR_NOT_AVAILABLE)
        assert scene.code(syncing) is E.COORDINATOR_NOT_AVAILABLE
        assert scene.state is GroupState.PREPARING_REBALANCE
        scene.holds_writes = False
        again = scene.join(member_id)
        assert scene.join_answer(again).generation_id == 2

    def test_an_assignment_of_an_overtaken_generation_reaches_no_member(self, scene: GroupScene) -> None:
        first = scene.new_id(client_id="a")
        scene.join(first)
        scene.pass_time(0)
        scene.holds_writes = True
        syncing = scene.sync(first, 1, {first: b"old"})
        newcomer = scene.new_id(client_id="b")
        scene.join(newcomer)
        assert scene.code(syncing) is E.REBALANCE_IN_PROGRESS
        scene.commit_write()
        assert scene.state is GroupState.PREPARING_REBALANCE
        assert scene.code(scene.sync(first, 1)) is E.REBALANCE_IN_PROGRESS

    def test_a_second_sync_of_a_waiting_member_takes_the_place_of_the_first(self, scene: GroupScene) -> None:
        ids = [scene.new_id(client_id=name) for name in "ab"]
        for member_id in ids:
            scene.join(member_id)
        scene.pass_time(0)
        first = scene.sync(ids[1], 1)
        second = scene.sync(ids[1], 1)
        assert scene.code(first) is E.REBALANCE_IN_PROGRESS
        scene.sync(ids[0], 1, {ids[1]: b"x"})
        assert scene.assignment(second) == b"x"

    def test_the_first_assignment_of_a_generation_counts(self, scene: GroupScene) -> None:
        member_id = scene.new_id()
        scene.join(member_id)
        scene.pass_time(0)
        scene.holds_writes = True
        scene.sync(member_id, 1, {member_id: b"first"})
        again = scene.sync(member_id, 1, {member_id: b"second"})
        assert scene.held_writes == 1
        scene.commit_write()
        assert scene.assignment(again) == b"first"

    def test_a_member_without_an_assignment_gets_nothing_and_stays(self, scene: GroupScene) -> None:
        ids = [scene.new_id() for _ in range(2)]
        for member_id in ids:
            scene.join(member_id)
        scene.pass_time(0)
        follower = scene.sync(ids[1], 1)
        scene.sync(ids[0], 1, {ids[0]: b"all"})
        assert scene.assignment(follower) == b""

    def test_a_late_follower_gets_its_assignment_from_the_stable_group(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b")
        assert scene.assignment(scene.sync(ids[1], generation_id)) == ids[1].encode()

    @pytest.mark.parametrize(
        ("generation_id", "member_id", "code"),
        [(2, "a-1", E.ILLEGAL_GENERATION), (1, "x", E.UNKNOWN_MEMBER_ID), (0, "a-1", E.ILLEGAL_GENERATION)],
    )
    def test_sync_is_for_members_of_the_generation(
        self, scene: GroupScene, generation_id: int, member_id: str, code: ErrorCode
    ) -> None:
        scene.form_group("a")
        assert scene.code(scene.sync(member_id, generation_id)) is code

    def test_sync_under_another_protocol_is_refused(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a")
        wrong_name = scene.sync(ids[0], generation_id, protocol_name="sticky")
        wrong_type = scene.sync(ids[0], generation_id, protocol_type="connect")
        assert scene.code(wrong_name) is scene.code(wrong_type) is E.INCONSISTENT_GROUP_PROTOCOL

    def test_a_member_that_never_asks_for_its_assignment_is_removed(self, scene: GroupScene) -> None:
        ids = [scene.new_id(client_id=name) for name in "ab"]
        for member_id in ids:
            scene.join(member_id, rebalance_timeout_ms=8_000, session_timeout_ms=30_000)
        scene.pass_time(0)
        scene.sync(ids[0], 1, {})
        scene.pass_time(8_000)
        assert scene.state is GroupState.PREPARING_REBALANCE
        assert scene.members == (ids[0],)


class TestChange:
    def test_a_newcomer_makes_all_members_join_again(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b")
        newcomer = scene.join(scene.new_id(client_id="n"))
        assert scene.state is GroupState.PREPARING_REBALANCE
        for member_id in ids:
            assert scene.heartbeat(member_id, generation_id) is E.REBALANCE_IN_PROGRESS
        joins = [scene.join(member_id) for member_id in ids]
        assert {scene.join_answer(joining).generation_id for joining in (newcomer, *joins)} == {generation_id + 1}
        assert len(scene.join_answer(joins[0]).members) == 3, "the leader stays the leader"

    def test_a_newcomer_that_sends_its_first_join_again_waits_on(self, scene: GroupScene) -> None:
        """A newcomer cannot send heartbeats before it knows its generation, so its session has not begun."""
        ids, generation_id = scene.form_group("a", rebalance_timeout_ms=300_000)
        newcomer = scene.new_id(client_id="n")
        lost = scene.join(newcomer)
        scene.pass_time(5_000)
        assert scene.heartbeat(ids[0], generation_id) is E.REBALANCE_IN_PROGRESS
        again = scene.join(newcomer)
        assert scene.code(lost) is E.REBALANCE_IN_PROGRESS
        for _ in range(12):
            scene.pass_time(5_000)
            assert scene.heartbeat(ids[0], generation_id) is E.REBALANCE_IN_PROGRESS
        assert not scene.is_answered(again)
        scene.join(ids[0], rebalance_timeout_ms=300_000)
        assert scene.join_answer(again).generation_id == generation_id + 1
        scene.pass_time(9_999)
        assert newcomer in scene.members
        scene.pass_time(1)
        assert newcomer not in scene.members, "from here on its session counts"

    def test_a_newcomer_that_joins_again_and_again_does_not_wait_for_longer(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", rebalance_timeout_ms=600_000)
        newcomer = scene.new_id(client_id="n")
        for _ in range(60):
            scene.join(newcomer)
            scene.pass_time(5_000)
            scene.heartbeat(ids[0], generation_id)
        assert newcomer not in scene.members

    def test_a_member_that_does_not_join_again_within_the_rebalance_timeout_is_removed(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b", rebalance_timeout_ms=20_000, session_timeout_ms=30_000)
        newcomer = scene.join(scene.new_id(session_timeout_ms=30_000), rebalance_timeout_ms=20_000)
        again = scene.join(ids[0], rebalance_timeout_ms=20_000)
        scene.pass_time(19_999)
        assert not scene.is_answered(newcomer)
        scene.pass_time(1)
        assert scene.code(newcomer) is scene.code(again) is E.NONE
        assert scene.heartbeat(ids[1], generation_id) is E.UNKNOWN_MEMBER_ID

    def test_a_member_whose_session_ends_is_out_and_the_others_rebalance(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b", session_timeout_ms=10_000)
        scene.pass_time(9_000)
        assert scene.heartbeat(ids[0], generation_id) is E.NONE
        scene.pass_time(1_000)
        assert scene.members == (ids[0],)
        assert scene.heartbeat(ids[0], generation_id) is E.REBALANCE_IN_PROGRESS
        assert scene.heartbeat(ids[1], generation_id) is E.UNKNOWN_MEMBER_ID

    def test_the_last_member_to_expire_leaves_an_empty_group_in_a_new_generation(self, scene: GroupScene) -> None:
        scene.form_group("a")
        scene.pass_time(10_000)
        assert scene.state is GroupState.EMPTY
        last = scene.log[-1]
        assert not isinstance(last, TransactionEnd)
        assert last.value is not None
        assert GroupScene(log=scene.log).state is GroupState.EMPTY

    def test_leaving_is_at_once_and_the_leader_is_replaced(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        assert scene.leave(ids[0]) == (E.NONE,)
        assert scene.state is GroupState.PREPARING_REBALANCE
        again = scene.join_answer(scene.join(ids[1]))
        assert again.leader == ids[1]
        assert len(again.members) == 1

    def test_leaving_answers_for_each_member(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        pending = scene.new_id()
        assert scene.leave(ids[0], "stranger", pending) == (E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE)
        assert scene.leave("x") == (E.UNKNOWN_MEMBER_ID,)

    def test_a_leaving_member_that_waits_in_a_join_is_answered(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        joining = scene.join(ids[0])
        scene.leave(ids[0])
        assert scene.code(joining) is E.UNKNOWN_MEMBER_ID

    def test_a_follower_that_joins_again_unchanged_receives_its_generation(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b")
        again = scene.join_answer(scene.join(ids[1]))
        assert (again.error_code, again.generation_id, again.members) == (E.NONE, generation_id, ())
        assert scene.state is GroupState.STABLE

    def test_a_leader_that_joins_again_starts_a_rebalance(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        scene.join(ids[0])
        assert scene.state is GroupState.PREPARING_REBALANCE

    def test_a_follower_with_new_metadata_starts_a_rebalance(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        scene.join(ids[1], protocols={"range": b"other topics"})
        assert scene.state is GroupState.PREPARING_REBALANCE

    def test_a_repeated_join_before_the_assignment_is_answered_as_before(self, scene: GroupScene) -> None:
        ids = [scene.new_id(client_id=name) for name in "ab"]
        for member_id in ids:
            scene.join(member_id)
        scene.pass_time(0)
        leader, follower = scene.join_answer(scene.join(ids[0])), scene.join_answer(scene.join(ids[1]))
        assert (leader.generation_id, len(leader.members)) == (1, 2)
        assert (follower.generation_id, follower.members) == (1, ())

    def test_a_second_join_of_a_waiting_member_takes_the_place_of_the_first(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        first = scene.join(ids[0])
        second = scene.join(ids[0])
        assert scene.code(first) is E.REBALANCE_IN_PROGRESS
        scene.join(ids[1])
        assert scene.code(second) is E.NONE

    def test_a_first_join_that_waits_five_minutes_is_answered_and_forgotten(self) -> None:
        scene = GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=400_000))
        joining = scene.join(version=3, rebalance_timeout_ms=600_000)
        scene.pass_time(299_999)
        assert not scene.is_answered(joining)
        scene.pass_time(1)
        assert scene.code(joining) is E.UNKNOWN_MEMBER_ID

    def test_first_joins_end_one_after_the_other_when_each_has_waited_five_minutes(self) -> None:
        scene = GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=400_000))
        first = scene.join(version=3, rebalance_timeout_ms=600_000)
        scene.pass_time(1_000)
        second = scene.join(version=3, rebalance_timeout_ms=600_000)
        scene.pass_time(299_000)
        assert (scene.is_answered(first), scene.is_answered(second)) == (True, False)
        scene.pass_time(1_000)
        assert scene.is_answered(second)

    def test_a_rebalance_waits_for_ids_that_were_given_out(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a")
        pending = scene.new_id(session_timeout_ms=6_000)
        joining = scene.join(ids[0])
        assert not scene.is_answered(joining)
        scene.pass_time(6_000)
        assert scene.code(joining) is E.NONE
        assert scene.code(scene.join(pending)) is E.UNKNOWN_MEMBER_ID

    def test_heartbeats_of_another_generation_are_refused(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a")
        assert scene.heartbeat(ids[0], generation_id + 1) is E.ILLEGAL_GENERATION
        assert scene.heartbeat("x", generation_id) is E.UNKNOWN_MEMBER_ID

    def test_members_of_a_group_that_does_not_exist_are_unknown(self, scene: GroupScene) -> None:
        assert scene.heartbeat("x", 1) is E.UNKNOWN_MEMBER_ID
        assert scene.code(scene.sync("x", 1)) is E.UNKNOWN_MEMBER_ID
        assert scene.code(scene.join("x")) is E.UNKNOWN_MEMBER_ID
        assert scene.leave("x", "y") == (E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID)
        assert scene.state is GroupState.DEAD

    def test_a_coordinator_that_loses_its_role_answers_all_waiting_requests(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b")
        joining = scene.join(ids[0])
        scene.abandon()
        assert scene.code(joining) is E.NOT_COORDINATOR
        assert generation_id == 1


class TestStaticMembers:
    def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance(self, scene: GroupScene) -> None:
        leader, follower, generation_id = _static_pair(scene)
        again = scene.join_answer(scene.join(instance_id="two"))
        assert (again.error_code, again.generation_id, again.members) == (E.NONE, generation_id, ())
        assert again.member_id != follower
        assert again.leader == leader
        synced = scene.sync(again.member_id, generation_id, instance_id="two")
        assert scene.assignment(synced) == b"for-two"
        assert scene.state is GroupState.STABLE

    def test_the_process_it_replaces_is_fenced(self, scene: GroupScene) -> None:
        _, follower, generation_id = _static_pair(scene)
        scene.join(instance_id="two")
        assert scene.heartbeat(follower, generation_id, instance_id="two") is E.FENCED_INSTANCE_ID
        assert scene.code(scene.sync(follower, generation_id, instance_id="two")) is E.FENCED_INSTANCE_ID
        assert scene.code(scene.join(follower, instance_id="two")) is E.FENCED_INSTANCE_ID
        assert scene.heartbeat(follower, generation_id) is E.UNKNOWN_MEMBER_ID

    def test_a_static_leader_that_restarts_need_not_assign(self, scene: GroupScene) -> None:
        leader, _, _ = _static_pair(scene)
        again = scene.join_answer(scene.join(instance_id="one"))
        assert again.skip_assignment
        assert again.leader == again.member_id != leader
        assert len(again.members) == 2

    def test_a_static_leader_of_before_version_9_receives_its_old_id_as_leader(self, scene: GroupScene) -> None:
        leader, _, _ = _static_pair(scene)
        again = scene.join_answer(scene.join(instance_id="one", version=8))
        assert (again.leader, again.skip_assignment, again.members) == (leader, False, ())

    def test_a_static_member_that_returns_with_another_protocol_starts_a_rebalance(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", protocols={"sticky": b"", "range": b""})
        static = scene.join(instance_id="s", protocols={"range": b"", "sticky": b""})
        scene.join(ids[0], protocols={"sticky": b"", "range": b""})
        generation_id = scene.join_answer(static).generation_id
        scene.sync(ids[0], generation_id, {})
        scene.sync(scene.join_answer(static).member_id, generation_id, instance_id="s")
        assert scene.state is GroupState.STABLE
        scene.join(instance_id="s", protocols={"range": b""})
        assert scene.state is GroupState.PREPARING_REBALANCE

    def test_a_static_member_that_is_away_during_a_rebalance_stays_until_its_session_ends(
        self, scene: GroupScene
    ) -> None:
        leader, follower, _ = _static_pair(scene, rebalance_timeout_ms=6_000, session_timeout_ms=10_000)
        again = scene.join(leader, instance_id="one", rebalance_timeout_ms=6_000)
        scene.pass_time(6_000)
        assert len(scene.join_answer(again).members) == 2
        generation_id = scene.join_answer(again).generation_id
        scene.sync(leader, generation_id, {}, instance_id="one")
        scene.pass_time(3_999)
        assert scene.heartbeat(leader, generation_id, instance_id="one") is E.NONE
        scene.pass_time(1)
        assert scene.members == (leader,)
        assert follower != leader

    def test_a_new_static_member_that_restarts_while_it_waits_waits_on(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", rebalance_timeout_ms=300_000)
        scene.join(instance_id="s")
        again = scene.join(instance_id="s")
        for _ in range(12):
            scene.pass_time(5_000)
            scene.heartbeat(ids[0], generation_id)
        assert not scene.is_answered(again)
        scene.join(ids[0], rebalance_timeout_ms=300_000)
        assert scene.code(again) is E.NONE

    def test_an_id_for_a_dynamic_member_is_not_good_for_a_static_one(self, scene: GroupScene) -> None:
        _static_pair(scene)
        member_id = scene.new_id()
        assert scene.code(scene.join(member_id, instance_id="one")) is E.UNKNOWN_MEMBER_ID
        assert scene.code(scene.join(member_id, instance_id="new")) is E.UNKNOWN_MEMBER_ID

    def test_an_administrator_removes_a_static_member_by_its_instance_id(self, scene: GroupScene) -> None:
        leader, _, _ = _static_pair(scene)
        assert scene.leave(("", "two")) == (E.NONE,)
        assert scene.leave(("", "two")) == (E.UNKNOWN_MEMBER_ID,)
        assert scene.leave(("other", "one")) == (E.FENCED_INSTANCE_ID,)
        assert scene.members == (leader,)

    def test_a_return_that_cannot_be_committed_is_refused_and_all_join_again(self, scene: GroupScene) -> None:
        _static_pair(scene)
        scene.holds_writes = True
        returning = scene.join(instance_id="two")
        assert not scene.is_answered(returning)
        scene.fail_write()
        assert scene.code(returning) is E.COORDINATOR_NOT_AVAILABLE
        assert scene.state is GroupState.PREPARING_REBALANCE

    def test_a_static_member_whose_return_failed_late_has_a_whole_session_to_try_again(self, scene: GroupScene) -> None:
        leader, _, generation_id = _static_pair(scene, session_timeout_ms=10_000)
        scene.holds_writes = True
        returning = scene.join(instance_id="two", session_timeout_ms=10_000)
        scene.pass_time(6_000)
        assert scene.heartbeat(leader, generation_id, instance_id="one") is E.NONE
        scene.pass_time(6_000)
        scene.fail_write()
        scene.holds_writes = False
        assert scene.code(returning) is E.COORDINATOR_NOT_AVAILABLE
        scene.pass_time(9_999)
        assert len(scene.members) == 1, "the leader has been silent for longer"
        assert leader not in scene.members
        scene.pass_time(1)
        assert scene.state is GroupState.EMPTY


def _static_pair(
    scene: GroupScene, *, rebalance_timeout_ms: int = 30_000, session_timeout_ms: int = 10_000
) -> tuple[str, str, int]:
    """A stable group of the static members "one", which leads, and "two"."""
    joins = [
        scene.join(instance_id=name, rebalance_timeout_ms=rebalance_timeout_ms, session_timeout_ms=session_timeout_ms)
        for name in ("one", "two")
    ]
    scene.pass_time(0)
    leader, follower = (scene.join_answer(joining).member_id for joining in joins)
    generation_id = scene.join_answer(joins[0]).generation_id
    scene.sync(follower, generation_id, instance_id="two")
    scene.sync(leader, generation_id, {leader: b"for-one", follower: b"for-two"}, instance_id="one")
    assert scene.state is GroupState.STABLE
    return leader, follower, generation_id


class TestOffsets:
    def test_a_consumer_that_assigns_itself_commits_while_the_group_has_no_members(self, scene: GroupScene) -> None:
        assert scene.commit_offset(7) is E.NONE
        assert scene.state is GroupState.EMPTY
        scene.form_group("a")
        assert scene.commit_offset(8) is E.UNKNOWN_MEMBER_ID
        assert _offset(scene) == 7

    def test_members_commit_in_their_generation(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a")
        assert scene.commit_offset(7, generation_id=generation_id, member_id=ids[0]) is E.NONE
        assert scene.commit_offset(8, generation_id=generation_id - 1, member_id=ids[0]) is E.ILLEGAL_GENERATION
        assert scene.commit_offset(9, generation_id=generation_id, member_id="x") is E.UNKNOWN_MEMBER_ID
        assert _offset(scene) == 7

    def test_members_may_commit_what_they_have_read_until_they_join_again(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a", "b")
        scene.join(ids[0])
        assert scene.state is GroupState.PREPARING_REBALANCE
        assert scene.commit_offset(7, generation_id=generation_id, member_id=ids[1]) is E.NONE
        scene.join(ids[1])
        assert scene.state is GroupState.COMPLETING_REBALANCE
        assert scene.commit_offset(8, generation_id=generation_id + 1, member_id=ids[1]) is E.REBALANCE_IN_PROGRESS

    def test_a_member_of_a_group_that_does_not_exist_cannot_commit(self, scene: GroupScene) -> None:
        assert scene.commit_offset(7, generation_id=3, member_id="x") is E.GROUP_ID_NOT_FOUND

    def test_a_text_that_is_too_long_spares_the_other_offsets(self) -> None:
        scene = GroupScene(config=GroupConfig(offset_metadata_max_bytes=3))
        assert scene.commit_offset(7, metadata="four") is E.OFFSET_METADATA_TOO_LARGE
        assert scene.commit_offset(7, metadata="3rd") is E.NONE

    def test_readers_see_an_offset_when_it_is_committed_and_not_before(self, scene: GroupScene) -> None:
        scene.holds_writes = True
        scene.commit_offset(7)
        assert _offset(scene) is None
        scene.commit_write()
        assert _offset(scene) == 7

    def test_a_commit_that_fails_never_was(self, scene: GroupScene) -> None:
        scene.commit_offset(7)
        scene.holds_writes = True
        scene.commit_offset(8)
        scene.commit_offset(9)
        scene.fail_write()
        scene.commit_write()
        assert _offset(scene) == 9
        assert _offset(GroupScene(log=scene.log)) == 9


def _offset(scene: GroupScene) -> int | None:
    offsets = scene.coordinator.reports.offsets(scene.group_id)
    return next((value.offset for value in offsets.values()), None)


class TestDeletion:
    def test_an_empty_group_is_deleted_with_its_offsets(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a")
        scene.leave(ids[0])
        scene.commit_offset(7)
        assert scene.delete_group() is E.NONE
        assert scene.state is GroupState.DEAD
        assert scene.delete_group() is E.GROUP_ID_NOT_FOUND
        assert GroupScene(log=scene.log).state is GroupState.DEAD

    def test_a_group_with_members_is_not_deleted(self, scene: GroupScene) -> None:
        scene.form_group("a")
        assert scene.delete_group() is E.NON_EMPTY_GROUP

    def test_offsets_that_are_still_on_their_way_are_deleted_too(self, scene: GroupScene) -> None:
        scene.holds_writes = True
        scene.commit_offset(7)
        assert scene.delete_group() is E.NONE
        assert scene.delete_group() is E.GROUP_ID_NOT_FOUND, "decisions see what is appended"
        scene.commit_write()
        assert _offset(scene) == 7
        scene.commit_write()
        assert scene.state is GroupState.DEAD

    def test_a_write_for_a_deleted_group_does_not_answer_its_successor(self, scene: GroupScene) -> None:
        scene.holds_writes = True
        scene.join(version=3)
        scene.pass_time(10_000)
        assert scene.held_writes == 1, "the generation in which the group is empty"
        assert scene.delete_group() is E.NONE
        member_id = scene.new_id()
        scene.join(member_id)
        scene.pass_time(0)
        syncing = scene.sync(member_id, 1, {member_id: b"x"})
        for _ in range(2):
            scene.commit_write()
            assert not scene.is_answered(syncing)
        scene.commit_write()
        assert scene.assignment(syncing) == b"x"

    @pytest.mark.parametrize("has_id", [False, True])
    def test_a_group_that_never_had_a_member_goes_with_its_last_offset(self, scene: GroupScene, has_id: bool) -> None:
        scene.commit_offset(7)
        if has_id:
            scene.new_id()
            scene.pass_time(10_000)
        else:
            assert scene.code(scene.join(session_timeout_ms=1)) is E.INVALID_SESSION_TIMEOUT
        assert scene.submit(DeleteOffsets(group_id="g", partitions=(TopicPartition("t", 0),))) is E.NONE
        assert (scene.state, scene.coordinator.group_count) == (GroupState.DEAD, 0)

    def test_a_group_whose_first_offset_was_not_written_is_none(self, scene: GroupScene) -> None:
        scene.holds_writes = True
        scene.commit_offset(7)
        scene.join(session_timeout_ms=1)
        scene.fail_write()
        assert (scene.state, scene.coordinator.group_count) == (GroupState.DEAD, 0)

    def test_a_group_with_a_joining_member_outlives_its_last_offset(self, scene: GroupScene) -> None:
        scene.commit_offset(7)
        member_id = scene.new_id()
        scene.submit(DeleteOffsets(group_id="g", partitions=(TopicPartition("t", 0),)))
        joining = scene.join(member_id)
        scene.pass_time(0)
        assert scene.code(joining) is E.NONE

    def test_a_deletion_that_fails_never_was(self, scene: GroupScene) -> None:
        scene.commit_offset(7)
        scene.holds_writes = True
        scene.delete_group()
        scene.fail_write()
        assert _offset(scene) == 7
        assert scene.delete_group() is E.NONE

    def test_a_group_whose_deletion_failed_is_still_one_that_was_joined(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a")
        scene.commit_offset(7, generation_id=generation_id, member_id=ids[0])
        scene.leave(ids[0])
        before = scene.coordinator.reports.overview()
        scene.holds_writes = True
        assert scene.delete_group() is E.NONE
        assert scene.delete_group() is E.GROUP_ID_NOT_FOUND
        scene.fail_write()
        scene.holds_writes = False
        assert scene.coordinator.reports.overview() == before
        assert scene.form_group("b")[1] > generation_id + 1

    def test_a_group_that_was_joined_anew_while_its_deletion_failed_is_left_alone(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a")
        scene.leave(ids[0])
        scene.holds_writes = True
        scene.delete_group()
        joining = scene.join(scene.new_id())
        scene.fail_write()
        scene.pass_time(0)
        assert scene.code(joining) is E.NONE

    def test_a_group_whose_end_was_not_written_is_empty_when_its_deletion_fails_too(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a")
        scene.holds_writes = True
        scene.leave(ids[0])
        scene.fail_write()
        scene.delete_group()
        scene.fail_write()
        assert (scene.state, scene.members) == (GroupState.EMPTY, ())


class TestRestart:
    def test_a_stable_group_goes_on_where_it_was(self) -> None:
        before = GroupScene()
        ids, generation_id = before.form_group("a", "b")
        after = GroupScene(log=before.log)
        assert after.state is GroupState.STABLE
        assert after.heartbeat(ids[1], generation_id) is E.NONE
        assert after.assignment(after.sync(ids[1], generation_id)) == ids[1].encode()

    def test_members_that_are_gone_expire_after_a_whole_session(self) -> None:
        before = GroupScene()
        ids, generation_id = before.form_group("a", "b", session_timeout_ms=10_000)
        after = GroupScene(log=before.log)
        after.pass_time(9_999)
        assert after.heartbeat(ids[0], generation_id) is E.NONE
        after.pass_time(1)
        assert after.members == (ids[0],)

    def test_generations_go_on_counting(self) -> None:
        before = GroupScene()
        ids, generation_id = before.form_group("a")
        before.leave(ids[0])
        after = GroupScene(log=before.log)
        _, later = after.form_group("n")
        assert later > generation_id + 1


def test_states_lead_only_where_the_table_says() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert TRANSITIONS[GroupState.DEAD] == frozenset()
    reachable = {state for targets in TRANSITIONS.values() for state in targets}
    assert reachable == set(GroupState)
