"""Rebalances of a classic group: the first rebalance, and rebalances because members come, leave or are silent."""

import pytest

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.group import GroupState
from tailrace.coordinators.groups.records import TransactionEnd
from tailrace.model.errors import ErrorCode
from testkit.coordinators.group_coordinator import GroupScene

E = ErrorCode


class TestFirstRebalanceOfAClassicGroup:
    def test_a_new_member_of_a_classic_group_is_sent_back_with_an_id_made_of_its_client_id(
        self, scene: GroupScene
    ) -> None:
        refused = scene.join_answer(scene.join(client_id="billing"))
        assert (refused.error_code, refused.member_id) == (E.MEMBER_ID_REQUIRED, "billing-1")
        assert refused.generation_id == -1
        assert scene.state is GroupState.EMPTY

    def test_below_version_4_a_new_member_joins_at_once(self, scene: GroupScene) -> None:
        joining = scene.join(version=3)
        scene.pass_time(0)
        assert scene.code(joining) is E.NONE
        assert scene.join_answer(joining).member_id == "c-1"

    def test_a_member_id_that_was_given_out_lapses_with_the_session_timeout(self, scene: GroupScene) -> None:
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

    def test_only_the_leader_of_a_group_gets_the_members_and_their_metadata(self, scene: GroupScene) -> None:
        first = scene.join(version=3, client_id="one", protocols={"range": b"1"})
        second = scene.join(version=3, client_id="two", protocols={"range": b"2"})
        scene.pass_time(0)
        leader, follower = scene.join_answer(first), scene.join_answer(second)
        assert leader.leader == follower.leader == leader.member_id
        assert [(member.member_id, member.metadata) for member in leader.members] == [("one-1", b"1"), ("two-2", b"2")]
        assert follower.members == ()
        assert leader.generation_id == follower.generation_id == 1
        assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")

    def test_the_assignor_of_a_group_is_what_most_members_prefer_among_those_that_all_support(
        self, scene: GroupScene
    ) -> None:
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

    def test_the_metadata_of_a_group_member_is_bounded(self) -> None:
        scene = GroupScene(config=GroupConfig(group_max_metadata_bytes=10))
        assert scene.code(scene.join(protocols={"range": b"12345", "sticky": b"123456"})) is E.INVALID_REQUEST

    def test_the_metadata_of_all_members_of_a_group_together_is_bounded(self) -> None:
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

    def test_the_protocol_names_of_a_group_member_are_bounded_with_its_metadata(self) -> None:
        scene = GroupScene(config=GroupConfig(group_max_metadata_bytes=10))
        assert scene.code(scene.join(protocols={"x" * 11: b""})) is E.INVALID_REQUEST
        scene = GroupScene()
        assert scene.code(scene.join(protocols={f"{n}": b"" for n in range(101)})) is E.INVALID_REQUEST
        assert scene.code(scene.join(protocols={f"{n}": b"" for n in range(100)})) is E.MEMBER_ID_REQUIRED

    def test_a_classic_group_takes_no_more_members_than_the_limit(self) -> None:
        scene = GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
        ids, generation_id = scene.form_group("a", "b")
        assert scene.code(scene.join()) is E.GROUP_MAX_SIZE_REACHED
        assert scene.state is GroupState.STABLE
        assert scene.heartbeat(ids[0], generation_id) is E.NONE


class TestRebalancesOfAClassicGroup:
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

    def test_a_group_whose_leader_leaves_has_another_leader_at_once(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a", "b")
        assert scene.leave(ids[0]) == (E.NONE,)
        assert scene.state is GroupState.PREPARING_REBALANCE
        again = scene.join_answer(scene.join(ids[1]))
        assert again.leader == ids[1]
        assert len(again.members) == 1

    def test_a_leave_request_is_answered_for_each_member(self, scene: GroupScene) -> None:
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

    def test_a_rebalance_waits_for_member_ids_that_were_given_out(self, scene: GroupScene) -> None:
        ids, _ = scene.form_group("a")
        pending = scene.new_id(session_timeout_ms=6_000)
        joining = scene.join(ids[0])
        assert not scene.is_answered(joining)
        scene.pass_time(6_000)
        assert scene.code(joining) is E.NONE
        assert scene.code(scene.join(pending)) is E.UNKNOWN_MEMBER_ID

    def test_heartbeats_of_another_generation_of_the_group_are_refused(self, scene: GroupScene) -> None:
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
