"""Static members of a classic group (KIP-345)."""

from tailrace.coordinators.groups.group import GroupState
from tailrace.model.errors import ErrorCode
from testkit.coordinators.group_coordinator import GroupScene

E = ErrorCode


class TestStaticMembersOfClassicGroups:
    def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance(self, scene: GroupScene) -> None:
        leader, follower, generation_id = _static_pair(scene)
        again = scene.join_answer(scene.join(instance_id="two"))
        assert (again.error_code, again.generation_id, again.members) == (E.NONE, generation_id, ())
        assert again.member_id != follower
        assert again.leader == leader
        synced = scene.sync(again.member_id, generation_id, instance_id="two")
        assert scene.assignment(synced) == b"for-two"
        assert scene.state is GroupState.STABLE

    def test_the_process_that_a_static_member_replaces_is_fenced(self, scene: GroupScene) -> None:
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

    def test_the_id_of_a_dynamic_member_is_no_id_for_a_static_member(self, scene: GroupScene) -> None:
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

    def test_a_return_of_a_static_member_that_cannot_be_committed_makes_all_members_join_again(
        self, scene: GroupScene
    ) -> None:
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
