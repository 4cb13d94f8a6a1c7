"""The rules of members of a classic consumer group, each rule by itself (KIP-134, 394 and 814 among them).

Rebalances, static members and offsets have files of their own.
"""

import pytest

from tailrace.coordinators.groups.group import TRANSITIONS, GroupState
from tailrace.model.errors import ErrorCode
from testkit.coordinators.group_coordinator import GroupScene

E = ErrorCode


def _joined(scene: GroupScene, *client_ids: str) -> list[str]:
    """Members of a group that waits for the assignment of its leader, the first member."""
    ids = [scene.new_id(client_id=client_id) for client_id in client_ids]
    for member_id in ids:
        scene.join(member_id)
    scene.pass_time(0)
    return ids


class TestAssignmentsOfClassicGroups:
    def test_members_wait_for_the_leaders_assignment_and_each_gets_its_own(self, scene: GroupScene) -> None:
        ids = _joined(scene, "a", "b")
        follower = scene.sync(ids[1], 1)
        assert not scene.is_answered(follower)
        leader = scene.sync(ids[0], 1, {ids[0]: b"for-a", ids[1]: b"for-b"})
        assert (scene.assignment(leader), scene.assignment(follower)) == (b"for-a", b"for-b")
        assert scene.state is GroupState.STABLE

    def test_an_assignment_of_a_group_is_committed_before_members_get_it(self, scene: GroupScene) -> None:
        (member_id,) = _joined(scene, "a")
        scene.holds_writes = True
        syncing = scene.sync(member_id, 1, {member_id: b"x"})
        assert not scene.is_answered(syncing)
        assert scene.state is GroupState.COMPLETING_REBALANCE
        scene.commit_write()
        assert scene.assignment(syncing) == b"x"

    def test_an_assignment_that_cannot_be_committed_makes_all_join_again(self, scene: GroupScene) -> None:
        (member_id,) = _joined(scene, "a")
        scene.holds_writes = True
        syncing = scene.sync(member_id, 1, {member_id: b"x"})
        scene.fail_write(E.COORDINATOR_NOT_AVAILABLE)
        assert scene.code(syncing) is E.COORDINATOR_NOT_AVAILABLE
        assert scene.state is GroupState.PREPARING_REBALANCE
        scene.holds_writes = False
        again = scene.join(member_id)
        assert scene.join_answer(again).generation_id == 2

    def test_an_assignment_of_an_overtaken_generation_reaches_no_member(self, scene: GroupScene) -> None:
        (first,) = _joined(scene, "a")
        scene.holds_writes = True
        syncing = scene.sync(first, 1, {first: b"old"})
        newcomer = scene.new_id(client_id="b")
        scene.join(newcomer)
        assert scene.code(syncing) is E.REBALANCE_IN_PROGRESS
        scene.commit_write()
        assert scene.state is GroupState.PREPARING_REBALANCE
        assert scene.code(scene.sync(first, 1)) is E.REBALANCE_IN_PROGRESS

    def test_a_second_sync_of_a_waiting_member_replaces_the_first_sync(self, scene: GroupScene) -> None:
        ids = _joined(scene, "a", "b")
        first = scene.sync(ids[1], 1)
        second = scene.sync(ids[1], 1)
        assert scene.code(first) is E.REBALANCE_IN_PROGRESS
        scene.sync(ids[0], 1, {ids[1]: b"x"})
        assert scene.assignment(second) == b"x"

    def test_the_first_assignment_of_a_generation_counts(self, scene: GroupScene) -> None:
        (member_id,) = _joined(scene, "a")
        scene.holds_writes = True
        scene.sync(member_id, 1, {member_id: b"first"})
        again = scene.sync(member_id, 1, {member_id: b"second"})
        assert scene.held_writes == 1
        scene.commit_write()
        assert scene.assignment(again) == b"first"

    def test_a_member_without_an_assignment_gets_no_partition_and_stays_in_the_group(self, scene: GroupScene) -> None:
        ids = _joined(scene, "a", "b")
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
    def test_a_sync_of_another_generation_or_member_is_refused(
        self, scene: GroupScene, generation_id: int, member_id: str, code: ErrorCode
    ) -> None:
        scene.form_group("a")
        assert scene.code(scene.sync(member_id, generation_id)) is code

    def test_a_sync_under_another_protocol_is_refused(self, scene: GroupScene) -> None:
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


class TestRestartOfTheGroupCoordinator:
    def test_a_stable_group_goes_on_at_a_coordinator_that_reads_its_log(self) -> None:
        before = GroupScene()
        ids, generation_id = before.form_group("a", "b")
        after = GroupScene(log=before.log)
        assert after.state is GroupState.STABLE
        assert after.heartbeat(ids[1], generation_id) is E.NONE
        assert after.assignment(after.sync(ids[1], generation_id)) == ids[1].encode()

    def test_silent_members_expire_a_whole_session_after_the_coordinator_has_read_its_log(self) -> None:
        before = GroupScene()
        ids, generation_id = before.form_group("a", "b", session_timeout_ms=10_000)
        after = GroupScene(log=before.log)
        after.pass_time(9_999)
        assert after.heartbeat(ids[0], generation_id) is E.NONE
        after.pass_time(1)
        assert after.members == (ids[0],)

    def test_generations_go_on_counting_at_a_coordinator_that_reads_its_log(self) -> None:
        before = GroupScene()
        ids, generation_id = before.form_group("a")
        before.leave(ids[0])
        after = GroupScene(log=before.log)
        _, later = after.form_group("n")
        assert later > generation_id + 1


def test_each_state_of_a_classic_group_is_reached_and_dead_groups_stay_dead() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert TRANSITIONS[GroupState.DEAD] == frozenset()
    reachable = {state for targets in TRANSITIONS.values() for state in targets}
    assert reachable == set(GroupState)
