"""KIP-848, "Upgrading to the new protocol", "Downgrading": a running group changes its kind. Sentences in short."""

import pytest

from scenarios.groups.changing_groups import ALL, classic_group, kind_of_group, partitions_read_once, settle
from scenarios.groups.consumer_group_nodes import new_node
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.messages.groups import DescribeGroupsRequest
from tailrace.protocol.messages.membership import LeaveGroupRequest, MemberIdentity
from testkit.coordinators.classic_members import ClassicTableMember
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember, describe
from testkit.coordinators.group_path import GroupPath
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_a_running_group_is_upgraded_and_downgraded(node: GroupPath, is_cooperative: bool) -> None:
    """ "rolling upgrade": members are replaced in turn; "the group is converted when the first ... joins"."""
    a, b = classic_group(node, is_cooperative=is_cooperative)
    c = TableMember(node, "c")
    assert c.join() is E.NONE
    assert kind_of_group(node) == "consumer"
    assert c.partitions() == set(), "all is held by members that have not got their new assignment yet"
    settle(a, b, c)
    assert partitions_read_once((a, b, c)) == ALL
    assert {member.member_type for member in describe(node).members} == {0, 1}
    assert describe(node).group_state == "Stable"

    assert a.leave() is E.NONE
    d = TableMember(node, "d")
    d.join()
    settle(b, c, d)
    assert partitions_read_once((b, c, d)) == ALL
    b.leave()
    settle(c, d)
    assert partitions_read_once((c, d)) == ALL

    e, f = (ClassicTableMember(node, name, is_cooperative=is_cooperative) for name in "ef")
    e.act()
    settle(c, d, e)
    assert partitions_read_once((c, d, e)) == ALL
    c.leave()
    f.act()
    settle(d, e, f)
    assert kind_of_group(node) == "consumer"
    d.leave()
    assert kind_of_group(node) == "classic", "the last member that speaks the consumer protocol has left"
    settle(e, f)
    assert partitions_read_once((e, f)) == ALL
    (described,) = node.send(DescribeGroupsRequest(groups=("g",)), 5).response.groups
    assert (described.group_state, len(described.members)) == ("Stable", 2)


def test_offsets_outlive_a_migration_and_each_kind_of_member_commits_in_its_own_way(node: GroupPath) -> None:
    """ "the member epoch ... is the generation id" of members with the classic protocol."""
    a, b = classic_group(node)
    node.commit("g", "orders", 5, generation_id=a.generation, member_id=a.member_id)
    c = TableMember(node, "c")
    c.join()

    def code(generation_id: int, member_id: str, version: int) -> ErrorCode:
        answer = node.commit("g", "orders", 7, generation_id=generation_id, member_id=member_id, version=version)
        return ErrorCode(answer.response.topics[0].partitions[0].error_code)

    assert node.committed("g", "orders") == 5
    assert code(a.generation, a.member_id, 8) is E.NONE, "classic clients may be older than the epochs"
    settle(a, b, c)
    assert code(a.generation, a.member_id, 9) is E.NONE
    assert code(a.generation - 1, a.member_id, 9) is E.ILLEGAL_GENERATION
    assert code(c.epoch, "c", 9) is E.NONE
    assert code(c.epoch - 1, "c", 9) is E.STALE_MEMBER_EPOCH
    assert code(-1, "", 9) is E.UNKNOWN_MEMBER_ID
    c.leave()
    assert code(a.generation, a.member_id, 9) is E.NONE, "it has not joined again, and is in the group"
    settle(a, b)
    assert node.committed("g", "orders") == 7


def test_a_member_that_is_behind_keeps_what_it_has_read_when_the_group_is_converted_back(node: GroupPath) -> None:
    """Unlike in Kafka: there only members in the last epoch have to join again, and others lose their partitions."""
    c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
    c.join()
    d.act()
    settle(c, d)
    e = TableMember(node, "e")
    e.join()
    e.leave()
    c.leave()
    assert (kind_of_group(node), describe(node).error_code) == ("classic", E.GROUP_ID_NOT_FOUND)
    read = node.commit("g", "orders", 7, generation_id=d.generation, member_id=d.member_id)
    assert read.response.topics[0].partitions[0].error_code == E.NONE
    assert d.beat() is E.REBALANCE_IN_PROGRESS
    behind = d.generation
    settle(d)
    assert partitions_read_once((d,)) == ALL
    assert d.generation > behind
    d.generation = behind
    assert d.beat() is E.ILLEGAL_GENERATION, "once it has joined, it is as in any classic group"


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_migration_policy_allows_upgrades_and_downgrades(policy: str, upgrades: bool, downgrades: bool) -> None:
    """group.consumer.migration.policy."""
    node = new_node(group_consumer_migration_policy=policy)
    a, _ = classic_group(node)
    code = TableMember(node, "c").join()
    assert (code, kind_of_group(node)) == ((E.NONE, "consumer") if upgrades else (E.GROUP_ID_NOT_FOUND, "classic"))
    assert a.beat() is (E.REBALANCE_IN_PROGRESS if upgrades else E.NONE)

    other = new_node(group_consumer_migration_policy=policy)
    c, d = TableMember(other, "c"), ClassicTableMember(other, "d")
    c.join()
    d.act()
    settle(c, d)
    assert partitions_read_once((c, d)) == ALL
    c.leave()
    assert kind_of_group(other) == ("classic" if downgrades else "consumer")
    settle(d)
    assert partitions_read_once((d,)) == ALL


class TestClassicGroupsThatStay:
    def test_a_classic_group_of_another_protocol_type_is_not_converted(self, node: GroupPath) -> None:
        member_id = node.join("g").response.member_id
        node.join("g", member_id)  # its metadata is b"topics"
        assert TableMember(node, "c").join() is E.GROUP_ID_NOT_FOUND

    def test_a_classic_group_that_is_too_large_is_not_converted(self) -> None:
        node = new_node(group_consumer_max_size="1")
        classic_group(node)
        assert TableMember(node, "c").join() is E.GROUP_MAX_SIZE_REACHED
        assert kind_of_group(node) == "classic"

    def test_a_classic_group_whose_assignor_has_user_data_is_not_converted(self, node: GroupPath) -> None:
        a = ClassicTableMember(node, "a", says_beside=b"own")
        a.act()
        assert a.partitions() == ALL
        assert TableMember(node, "c").join() is E.UNSUPPORTED_VERSION
        assert a.beat() is E.NONE

    def test_a_classic_group_is_converted_by_a_join_alone(self, node: GroupPath) -> None:
        a, _ = classic_group(node)
        c = TableMember(node, "c")
        assert c.beat(epoch=3) is E.GROUP_ID_NOT_FOUND
        assert a.beat() is E.NONE


class TestClassicMembersInAConsumerGroup:
    def test_classic_members_share_an_assignor(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        assert ClassicTableMember(node, "e", is_cooperative=True).act() is E.INCONSISTENT_GROUP_PROTOCOL
        assert node.join("g", version=3).response.error_code == E.INCONSISTENT_GROUP_PROTOCOL, "metadata is no topics"

    def test_the_session_of_a_classic_member_ends_after_its_own_timeout(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d", session_timeout_ms=10_000)
        c.join()
        d.act()
        settle(c, d)
        node.clock.advance(9_999)
        assert d.beat() is E.NONE
        node.clock.advance(10_000)
        assert d.beat() is E.UNKNOWN_MEMBER_ID
        c.beat()
        assert c.partitions() == ALL

    def test_commits_of_a_classic_member_keep_its_session_alive(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d", session_timeout_ms=10_000)
        c.join()
        d.act()
        settle(c, d)
        for _ in range(3):
            node.clock.advance(9_000)
            node.commit("g", "orders", 1, generation_id=d.generation, member_id=d.member_id)
        assert d.beat() is E.NONE

    def test_a_classic_member_that_does_not_join_again_in_time_is_out(self, node: GroupPath) -> None:
        d = ClassicTableMember(node, "d", session_timeout_ms=60_000, rebalance_timeout_ms=20_000)
        c = TableMember(node, "c")
        c.join()
        d.act()
        settle(c, d)
        TableMember(node, "e").join()
        generation = d.generation
        for _ in range(2):
            d.generation = generation
            assert d.beat() is E.REBALANCE_IN_PROGRESS
            node.clock.advance(10_000)
        assert d.beat() is E.UNKNOWN_MEMBER_ID

    def test_a_classic_member_that_does_not_ask_for_its_assignment_in_time_is_out(self, node: GroupPath) -> None:
        d = ClassicTableMember(node, "d", session_timeout_ms=60_000, rebalance_timeout_ms=20_000)
        TableMember(node, "c").join()
        d.act()
        assert node.send(d.join_request(), 9).response.error_code == E.NONE
        node.clock.advance(19_999)
        assert [member.member_type for member in describe(node).members] == [1, 0]
        node.clock.advance(1)
        assert [member.member_type for member in describe(node).members] == [1]

    def test_requests_of_the_other_protocol_are_refused(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        settle(c, d)
        assert node.sync("g", "stranger", 1).response.error_code == E.UNKNOWN_MEMBER_ID
        assert node.sync("g", "c", c.epoch).response.error_code == E.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
        assert node.sync("g", d.member_id, d.generation + 1).response.error_code == E.ILLEGAL_GENERATION
        assert node.join("g", "c", version=9).response.error_code in (
            E.UNKNOWN_MEMBER_ID,
            E.INCONSISTENT_GROUP_PROTOCOL,
        )
        modern = ConsumerGroupHeartbeatRequest(group_id="g", member_id=d.member_id, member_epoch=d.generation)
        assert node.send(modern, 1).response.error_code == E.UNKNOWN_MEMBER_ID
        leaving = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="c"),))
        assert node.send(leaving, 5).response.members[0].error_code == E.UNKNOWN_MEMBER_ID
        assert d.beat() is E.NONE

    def test_members_of_either_kind_notice_new_and_deleted_topics(self) -> None:
        node = new_node(group_consumer_migration_policy="disabled")
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d", topics=("orders", "later"))
        c.join()
        d.act()
        settle(c, d)
        c.leave()
        settle(d)
        node.create_topics("later", partitions=2)
        settle(d)
        assert (d.partitions(), d.partitions("later")) == (ALL, {0, 1})
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        settle(d)
        assert d.reads == {("later", 0), ("later", 1)}


class TestStaticMembersOfAMigration:
    def test_a_static_member_may_come_back_with_the_other_protocol(self, node: GroupPath) -> None:
        """ "static members ... are replaced": the same instance id, another protocol."""
        old = [ClassicTableMember(node, name, instance_id=name) for name in "ab"]
        for member in old:
            member.act()
        settle(*old)
        a = TableMember(node, "a2", instance_id="a")
        assert a.join() is E.NONE
        assert {member.instance_id for member in describe(node).members} == {"a", "b"}
        assert old[0].beat() is E.FENCED_INSTANCE_ID
        settle(a, old[1])
        assert partitions_read_once((a, old[1])) == ALL
        b = TableMember(node, "b2", instance_id="b")
        assert b.join() is E.NONE
        settle(a, b)
        assert partitions_read_once((a, b)) == ALL

        for leaver in (a, b):
            assert leaver.leave(LEAVE_FOR_A_WHILE) is E.NONE
        again = [ClassicTableMember(node, name, instance_id=name) for name in "ab"]
        for member in again:
            member.act()
        assert kind_of_group(node) == "classic", "the last place was taken by a member with the classic protocol"
        settle(*again)
        assert partitions_read_once(again) == ALL

    def test_an_administrator_removes_a_static_member_by_its_instance_id(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c", instance_id="i"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        settle(c, d)
        leaving = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="", group_instance_id="i"),))
        assert node.send(leaving, 5).response.members[0].error_code == E.NONE
        assert kind_of_group(node) == "classic"
        settle(d)
        assert partitions_read_once((d,)) == ALL


def test_classic_members_that_wait_are_sent_back_when_the_group_is_converted(node: GroupPath) -> None:
    a, b = classic_group(node)
    a.join()  # it leads, so all join again
    assert a.joining is not None
    assert not a.joining.is_answered
    TableMember(node, "c").join()
    assert a.joining.is_answered
    assert a.joining.response.error_code == E.REBALANCE_IN_PROGRESS
    c = TableMember(node, "d")
    c.join()
    settle(a, b, c)
    assert partitions_read_once((a, b, c)) <= ALL


def test_the_history_of_a_group_has_its_conversions(node: GroupPath) -> None:
    a, b = classic_group(node)
    c = TableMember(node, "c")
    c.join()
    settle(a, b, c)
    c.leave()
    insight = node.coordinators.host_of("g").insight("g")
    assert [event.reason.split(":")[0] for event in insight.events if event.kind == "converted"] == [
        "to a consumer group",
        "to a classic group",
    ]
