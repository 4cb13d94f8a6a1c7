"""Offsets of a classic group, and the deletion of the group with them."""

import pytest

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.commands import DeleteOffsets
from tailrace.coordinators.groups.group import GroupState
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from testkit.coordinators.group_coordinator import GroupScene

E = ErrorCode


class TestOffsetsOfClassicGroups:
    def test_a_consumer_that_assigns_itself_commits_while_the_group_has_no_members(self, scene: GroupScene) -> None:
        assert scene.commit_offset(7) is E.NONE
        assert scene.state is GroupState.EMPTY
        scene.form_group("a")
        assert scene.commit_offset(8) is E.UNKNOWN_MEMBER_ID
        assert offset_of(scene) == 7

    def test_members_of_a_classic_group_commit_in_their_generation(self, scene: GroupScene) -> None:
        ids, generation_id = scene.form_group("a")
        assert scene.commit_offset(7, generation_id=generation_id, member_id=ids[0]) is E.NONE
        assert scene.commit_offset(8, generation_id=generation_id - 1, member_id=ids[0]) is E.ILLEGAL_GENERATION
        assert scene.commit_offset(9, generation_id=generation_id, member_id="x") is E.UNKNOWN_MEMBER_ID
        assert offset_of(scene) == 7

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

    def test_an_offset_whose_metadata_is_too_long_spares_the_other_offsets(self) -> None:
        scene = GroupScene(config=GroupConfig(offset_metadata_max_bytes=3))
        assert scene.commit_offset(7, metadata="four") is E.OFFSET_METADATA_TOO_LARGE
        assert scene.commit_offset(7, metadata="3rd") is E.NONE

    def test_an_offset_is_readable_when_the_coordinator_has_committed_it_and_not_before(
        self, scene: GroupScene
    ) -> None:
        scene.holds_writes = True
        scene.commit_offset(7)
        assert offset_of(scene) is None
        scene.commit_write()
        assert offset_of(scene) == 7

    def test_an_offset_commit_that_fails_leaves_no_trace(self, scene: GroupScene) -> None:
        scene.commit_offset(7)
        scene.holds_writes = True
        scene.commit_offset(8)
        scene.commit_offset(9)
        scene.fail_write()
        scene.commit_write()
        assert offset_of(scene) == 9
        assert offset_of(GroupScene(log=scene.log)) == 9


def offset_of(scene: GroupScene) -> int | None:
    offsets = scene.coordinator.reports.offsets(scene.group_id)
    return next((value.offset for value in offsets.values()), None)


class TestDeletionOfClassicGroups:
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

    def test_offsets_that_are_not_committed_yet_are_deleted_with_their_group(self, scene: GroupScene) -> None:
        scene.holds_writes = True
        scene.commit_offset(7)
        assert scene.delete_group() is E.NONE
        assert scene.delete_group() is E.GROUP_ID_NOT_FOUND, "decisions see what is appended"
        scene.commit_write()
        assert offset_of(scene) == 7
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

    def test_a_group_whose_first_offset_was_not_written_does_not_exist(self, scene: GroupScene) -> None:
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

    def test_a_group_deletion_that_fails_leaves_the_group_and_its_offsets(self, scene: GroupScene) -> None:
        scene.commit_offset(7)
        scene.holds_writes = True
        scene.delete_group()
        scene.fail_write()
        assert offset_of(scene) == 7
        assert scene.delete_group() is E.NONE

    def test_a_group_whose_deletion_failed_goes_on_counting_generations(self, scene: GroupScene) -> None:
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
