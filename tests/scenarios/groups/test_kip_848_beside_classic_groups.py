"""KIP-848: consumer groups and classic groups on a node, each of which keeps its kind while it has members."""

import pytest

from scenarios.groups.consumer_group_nodes import code_of_commit, new_node, two_members
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tailrace.protocol.messages.membership import LeaveGroupRequest, MemberIdentity
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.consumer_groups import TableMember, describe
from testkit.coordinators.group_path import GroupPath

E = ErrorCode


class TestBesideClassicGroups:
    def test_a_classic_group_with_members_stays_one(self, node: GroupPath) -> None:
        """group.consumer.migration.policy=disabled: GROUP_ID_NOT_FOUND, INCONSISTENT_GROUP_PROTOCOL."""
        node.form_group("g")
        assert TableMember(node, "a").join() is E.GROUP_ID_NOT_FOUND
        assert describe(node).error_code == E.GROUP_ID_NOT_FOUND

    def test_a_consumer_group_with_members_stays_one(self, node: GroupPath) -> None:
        two_members(node)
        assert node.join("g").response.error_code == E.INCONSISTENT_GROUP_PROTOCOL
        (group,) = node.send(DescribeGroupsRequest(groups=("g",)), 6).response.groups
        assert group.error_code == E.GROUP_ID_NOT_FOUND
        (deleted,) = node.send(DeleteGroupsRequest(groups_names=("g",)), 2).response.results
        assert deleted.error_code == E.NON_EMPTY_GROUP

    def test_an_empty_group_becomes_the_other_kind_and_keeps_its_offsets(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        node.commit("g", "orders", 7, generation_id=a.epoch, member_id="a")
        a.leave()
        member_id, _ = node.form_group("g")
        assert describe(node).error_code == E.GROUP_ID_NOT_FOUND
        assert node.committed("g", "orders") == 7
        node.send(LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=member_id),)), 5)
        assert a.join() is E.NONE
        assert describe(node).group_state == "Stable"
        assert node.committed("g", "orders") == 7

    def test_a_classic_group_whose_end_was_not_written_is_none_after_the_next_try(self) -> None:
        files = SimulatedDisk(seed=5)
        node = new_node(files)
        member_id, _ = node.form_group("g")
        node.send(LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=member_id),)), 5)
        a = TableMember(node, "a")
        files.fail_at(files.operations + 1)
        assert a.join() is E.NOT_COORDINATOR
        assert node.coordinators.host_of("g").machine._consumers._topics_seen == {}
        (group,) = node.send(ListGroupsRequest(), 5).response.groups
        assert (group.protocol_type, group.group_state) == ("consumer", "Empty"), "a classic group, as before"
        assert a.join() is E.NONE
        node.stop()
        a.node = new_node(files, start=2)
        assert a.beat() is E.NONE, "it is a consumer group, and nothing else"

    def test_a_consumer_group_whose_end_was_not_written_is_none_after_the_next_try(self) -> None:
        files = SimulatedDisk(seed=6)
        node = new_node(files)
        a = TableMember(node, "a")
        a.join()
        a.leave()
        files.fail_at(files.operations + 1)
        member_id = node.join("g").response.member_id
        generation_id = node.join("g", member_id).response.generation_id
        assert node.sync("g", member_id, generation_id, {member_id: b"mine"}).response.error_code == E.NONE
        assert describe(node).error_code == E.GROUP_ID_NOT_FOUND
        commit = node.commit("g", "orders", 7, generation_id=generation_id, member_id=member_id)
        assert code_of_commit(commit) is E.NONE

    def test_a_refused_classic_join_leaves_an_empty_consumer_group_as_it_is(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        a.leave()
        before = describe(node)
        assert node.join("g", "no-such-member").response.error_code == E.UNKNOWN_MEMBER_ID
        assert describe(node) == before
        assert a.join() is E.NONE

    @pytest.mark.parametrize(("wanted", "names"), [((), ["c", "g"]), (("consumer",), ["g"]), (("classic",), ["c"])])
    def test_a_list_of_groups_tells_their_types(
        self, node: GroupPath, wanted: tuple[str, ...], names: list[str]
    ) -> None:
        two_members(node)
        node.find_coordinator("c")
        node.form_group("c")
        listed = node.send(ListGroupsRequest(types_filter=wanted), 5).response.groups
        assert [group.group_id for group in listed] == names
        assert {group.group_id: group.group_type for group in listed}.get("g", "consumer") == "consumer"

    def test_an_empty_consumer_group_is_deleted_with_its_offsets(self, node: GroupPath) -> None:
        a, b = two_members(node)
        node.commit("g", "orders", 7, generation_id=a.epoch, member_id="a")
        a.leave()
        b.leave()
        (deleted,) = node.send(DeleteGroupsRequest(groups_names=("g",)), 2).response.results
        assert deleted.error_code == E.NONE
        assert all(not host.machine.committed.groups for host in node.coordinators.active_hosts())
