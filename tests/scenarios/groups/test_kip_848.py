"""KIP-848, "The Next Generation of the Consumer Rebalance Protocol", rule by rule. Sentences are quoted in short.

Regular expressions, first requests, offsets, and groups of both kinds have files of their own.
"""

import pytest

from scenarios.groups.consumer_group_nodes import SESSION_MS, new_node, two_members
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember, describe
from testkit.coordinators.group_path import GroupPath
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode


class TestConsumerGroupReconciliation:
    def test_the_first_member_is_assigned_all_partitions_at_once(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        assert a.join() is E.NONE
        assert (a.epoch, a.partitions()) == (1, {0, 1, 2, 3})

    def test_partitions_are_revoked_before_they_are_assigned(self, node: GroupPath) -> None:
        """ "the member revokes ... and acknowledges"; "a partition is assigned when it is free"."""
        a, b = TableMember(node, "a"), TableMember(node, "b")
        a.join()
        b.join()
        assert (b.epoch, b.partitions()) == (2, set()), "it is in the new epoch and gets nothing yet"
        held = set(a.partitions())
        a.beat()
        assert (a.epoch, len(a.partitions())) == (1, 2), "it keeps its epoch while it revokes"
        b.beat()
        assert b.partitions() == set(), "the revocation is not acknowledged"
        assert describe(node).group_state == "Reconciling"
        a.beat()
        assert a.epoch == 2
        b.beat()
        assert a.partitions() | b.partitions() == held
        assert not a.partitions() & b.partitions()
        assert describe(node).group_state == "Stable"

    def test_a_member_that_does_not_name_its_partitions_counts_as_the_owner_of_all(self, node: GroupPath) -> None:
        a, b = TableMember(node, "a"), TableMember(node, "b")
        a.join()
        b.join()
        a.beat()
        a.beat(says_owned=False)
        assert a.epoch == 1
        a.beat()
        assert a.epoch == 2

    def test_a_partition_that_a_member_has_given_up_is_free_while_the_member_keeps_another(
        self, node: GroupPath
    ) -> None:
        """In Kafka no revoked partition is free before the member has given up all of them."""
        a, b = TableMember(node, "a", rebalance_timeout_ms=10_000), TableMember(node, "b")
        a.join()
        b.join()
        held = set(a.partitions())
        a.beat()
        first, second = held - a.partitions()
        a.owned[node.topic_id("orders")].add(second)
        node.clock.advance(9_000)
        assert (a.beat(), b.beat()) == (E.NONE, E.NONE)
        assert (a.epoch, b.partitions()) == (1, {first})
        node.clock.advance(1_000)
        assert a.beat() is E.UNKNOWN_MEMBER_ID, "the rebalance timeout began with the revocation"
        b.beat()
        assert b.partitions() == held

    def test_a_member_that_waits_for_partitions_of_others_has_a_short_heartbeat_interval(self, node: GroupPath) -> None:
        a, b = TableMember(node, "a"), TableMember(node, "b")
        a.join()
        b.join()
        assert (a.interval_ms, b.interval_ms) == (5_000, 250)
        for member in (a, a, b):
            member.beat()
        assert (a.interval_ms, b.interval_ms) == (5_000, 5_000), "all have their partitions"

    def test_in_a_large_group_the_heartbeats_of_members_that_wait_have_a_bounded_rate(self, node: GroupPath) -> None:
        node.create_topics("many", partitions=100)
        members = [TableMember(node, f"member-{number:02}", topics=("many",)) for number in range(100)]
        for member in members:
            member.join()
        assert members[-1].interval_ms == 500

    def test_a_leaving_member_frees_its_partitions_at_once(self, node: GroupPath) -> None:
        a, b = two_members(node)
        assert b.leave() is E.NONE
        a.beat()
        assert a.partitions() == {0, 1, 2, 3}
        assert b.beat() is E.UNKNOWN_MEMBER_ID

    def test_a_changed_subscription_of_a_member_changes_its_assignment(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        a.subscribe("returns")
        assert (a.partitions(), a.partitions("returns")) == (set(), set()), "first it must let go"
        a.beat()
        assert (a.partitions(), a.partitions("returns")) == (set(), {0, 1, 2, 3})

    def test_a_new_topic_and_a_deleted_topic_begin_a_new_group_epoch(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=("orders", "later"))
        a.join()
        node.create_topics("later", partitions=2)
        a.beat()
        assert (a.epoch, a.partitions("later")) == (2, {0, 1})
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        a.beat()
        a.beat()
        assert a.epoch == 3
        assert list(a.owned) == [node.topic_id("later")]

    def test_a_member_gets_a_new_topic_after_a_refused_heartbeat(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=("orders", "later"))
        a.join()
        node.create_topics("later", partitions=2)
        assert a.beat(epoch=99) is E.FENCED_MEMBER_EPOCH
        a.beat()
        assert a.partitions("later") == {0, 1}

    def test_a_member_whose_heartbeat_was_answered_in_vain_may_repeat_its_epoch(self, node: GroupPath) -> None:
        """ "previous member epoch": the answer with the new epoch was lost, the member repeats the old epoch."""
        a, b = two_members(node)
        c = TableMember(node, "c")
        c.join()
        before = b.epoch
        for member in (a, b, a, b):
            member.beat()
        assert b.beat(epoch=before) is E.NONE
        assert b.beat(epoch=before - 1) is E.FENCED_MEMBER_EPOCH


class TestConsumerGroupFencing:
    @pytest.mark.parametrize(("ahead", "code"), [(1, E.FENCED_MEMBER_EPOCH), (0, E.NONE), (-1, E.FENCED_MEMBER_EPOCH)])
    def test_a_heartbeat_with_another_member_epoch_is_fenced(
        self, node: GroupPath, ahead: int, code: ErrorCode
    ) -> None:
        a, _ = two_members(node)
        assert a.beat(epoch=a.epoch + ahead, says_owned=ahead == 0) is code

    def test_a_silent_member_leaves_the_group_when_its_session_ends(self, node: GroupPath) -> None:
        """group.consumer.session.timeout.ms 45000."""
        a, b = two_members(node)
        node.clock.advance(SESSION_MS - 1)
        a.beat()
        node.clock.advance(1)
        assert [member.member_id for member in describe(node).members] == ["a"]
        assert b.beat() is E.UNKNOWN_MEMBER_ID
        a.beat()
        assert a.partitions() == {0, 1, 2, 3}

    def test_a_member_that_does_not_revoke_in_time_is_removed(self, node: GroupPath) -> None:
        """ "rebalance timeout": "fenced if it does not revoke within it"."""
        a, b = TableMember(node, "a", rebalance_timeout_ms=10_000), TableMember(node, "b")
        a.join()
        b.join()
        a.beat()
        for _ in range(3):
            node.clock.advance(3_000)
            assert a.beat(says_owned=False) is E.NONE
        node.clock.advance(1_000)
        assert a.beat() is E.UNKNOWN_MEMBER_ID
        b.beat()
        assert b.partitions() == {0, 1, 2, 3}

    def test_each_revocation_of_a_member_has_its_own_rebalance_timeout(self, node: GroupPath) -> None:
        a, others = TableMember(node, "a", rebalance_timeout_ms=10_000), [TableMember(node, name) for name in "bcd"]
        a.join()
        others[0].join()
        a.beat()
        assert len(a.partitions()) == 2, "two are to be given up"
        for other in others[1:]:
            other.join()
        node.clock.advance(9_000)
        assert a.beat() is E.NONE
        assert len(a.partitions()) == 1, "two are given up, and another partition is to be"
        node.clock.advance(9_000)
        assert a.beat(says_owned=False) is E.NONE
        node.clock.advance(1_000)
        assert a.beat() is E.UNKNOWN_MEMBER_ID

    def test_a_fenced_member_joins_again(self, node: GroupPath) -> None:
        a, _ = two_members(node)
        a.beat(epoch=99)
        assert a.join() is E.NONE
        assert len(a.partitions()) == 2

    def test_a_heartbeat_of_an_unknown_member_or_group_is_refused(self, node: GroupPath) -> None:
        assert TableMember(node, "x", epoch=3).beat() is E.GROUP_ID_NOT_FOUND
        two_members(node)
        assert TableMember(node, "x", epoch=3).beat() is E.UNKNOWN_MEMBER_ID
        assert TableMember(node, "x").leave() is E.UNKNOWN_MEMBER_ID


class TestStaticMembersOfConsumerGroups:
    def test_a_static_member_that_comes_back_keeps_its_partitions_and_moves_no_other(self, node: GroupPath) -> None:
        a = TableMember(node, "a", instance_id="i")
        b = TableMember(node, "b")
        a.join()
        b.join()
        for member in (a, a, b):
            member.beat()
        epoch, held = describe(node).group_epoch, set(a.partitions())
        assert a.leave(LEAVE_FOR_A_WHILE) is E.NONE
        b.beat()
        assert len(b.partitions()) == 2
        again = TableMember(node, "a2", instance_id="i")
        assert again.join() is E.NONE
        assert (again.partitions(), describe(node).group_epoch) == (held, epoch)
        assert a.beat() is E.FENCED_INSTANCE_ID

    def test_an_instance_id_in_use_is_not_released(self, node: GroupPath) -> None:
        a = TableMember(node, "a", instance_id="i")
        a.join()
        assert TableMember(node, "b", instance_id="i").join() is E.UNRELEASED_INSTANCE_ID

    def test_a_static_member_that_has_not_heard_the_answer_joins_again(self, node: GroupPath) -> None:
        """ "still used by another member": not by this member."""
        a = TableMember(node, "a", instance_id="i")
        assert (a.join(), a.join()) == (E.NONE, E.NONE)
        assert a.partitions() == {0, 1, 2, 3}
        assert a.leave(LEAVE_FOR_A_WHILE) is E.NONE
        assert a.join() is E.NONE
        assert a.partitions() == {0, 1, 2, 3}
        assert TableMember(node, "b", instance_id="i").join() is E.UNRELEASED_INSTANCE_ID

    def test_a_static_member_that_stays_away_is_out_when_its_session_ends(self, node: GroupPath) -> None:
        a = TableMember(node, "a", instance_id="i")
        a.join()
        a.leave(LEAVE_FOR_A_WHILE)
        node.clock.advance(SESSION_MS)
        assert describe(node).group_state == "Empty"


def test_members_of_a_consumer_group_go_on_after_a_power_cut_of_the_coordinator() -> None:
    files = SimulatedDisk(seed=3)
    node = new_node(files)
    a, b = two_members(node)
    before = describe(node)
    files.power_cut()
    files.reboot()
    again = new_node(files, start=2)
    assert describe(again) == before
    a.node = b.node = again
    assert (a.beat(), b.beat()) == (E.NONE, E.NONE)
    again.clock.advance(SESSION_MS)
    assert describe(again).group_state == "Empty"


def test_a_consumer_group_that_a_request_names_twice_is_described_once(node: GroupPath) -> None:
    two_members(node)
    request = ConsumerGroupDescribeRequest(group_ids=("g", "h", "g", "g"))
    assert [group.group_id for group in node.send(request, 1).response.groups] == ["g", "h"]


def test_a_failed_write_of_the_coordinator_changes_no_member() -> None:
    files = SimulatedDisk(seed=4)
    node = new_node(files)
    a = TableMember(node, "a")
    a.join()
    before = describe(node)
    files.fail_at(files.operations + 1)
    assert TableMember(node, "b").join() is E.NOT_COORDINATOR
    assert describe(node) == before


def test_the_history_of_a_consumer_group_has_epochs_and_why_members_left(node: GroupPath) -> None:
    a, _ = two_members(node)
    node.clock.advance(SESSION_MS - 1)
    a.beat()
    node.clock.advance(1)
    request = ConsumerGroupDescribeRequest(group_ids=("g",), include_details=True)
    (group,) = node.send(request, 1).response.groups
    (details,) = group.details
    events = [(event.kind, event.member_id) for event in details.events]
    assert ("join", "a") in events
    assert events[-2:] == [("expired", "b"), ("rebalance", "")]
    assert "group.consumer.session.timeout.ms=45000" in details.events[-2].reason
    assert [(member.member_id, member.silent_ms) for member in details.members] == [("a", 1)]


def test_the_settings_of_a_consumer_group_hold_from_its_next_heartbeat_on(node: GroupPath) -> None:
    """`consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms`; other groups keep the broker's."""
    mine, other = TableMember(node, "a"), TableMember(node, "a", group_id="h")
    node.find_coordinator("h")
    assert (mine.join(), other.join()) == (E.NONE, E.NONE)
    settings = (("consumer.session.timeout.ms", "50000"), ("consumer.heartbeat.interval.ms", "6000"))
    resource = IncrementalAlterConfigsResource(
        resource_type=32,
        resource_name="g",
        configs=tuple(
            IncrementallyAlterableConfig(name=name, config_operation=0, value=value) for name, value in settings
        ),
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (altered,) = node.send(request, 1).response.responses
    assert (altered.error_code, altered.error_message) == (0, None)
    assert (mine.beat(), other.beat()) == (E.NONE, E.NONE)
    intervals = {
        group_id: node.send(
            ConsumerGroupHeartbeatRequest(group_id=group_id, member_id="a", member_epoch=member.epoch), 1
        ).response.heartbeat_interval_ms
        for group_id, member in (("g", mine), ("h", other))
    }
    assert intervals == {"g": 6000, "h": 5000}
    node.clock.advance(SESSION_MS)
    assert (describe(node, "g").group_state, describe(node, "h").group_state) == ("Stable", "Empty")
    node.clock.advance(5_000)
    assert describe(node, "g").group_state == "Empty"


def test_a_consumer_group_uses_the_assignor_that_most_members_ask_for(node: GroupPath) -> None:
    two_members(node, assignor="range", topics=("orders", "returns"))
    group = describe(node)
    assert group.assignor_name == "range"
    for member in group.members:
        assert len({topic.partitions for topic in member.assignment.topic_partitions}) == 1, "alike in both topics"


def test_the_history_tells_which_partitions_get_another_owner() -> None:
    node = new_node()
    a, b = two_members(node)
    b.leave()
    assert a.beat() is E.NONE
    request = ConsumerGroupDescribeRequest(group_ids=("g",), include_details=True)
    (group,) = node.send(request, 0).response.groups
    (details,) = group.details
    assigned = [event.reason.partition(", members: ")[2] for event in details.events if event.kind == "assigned"]
    assert assigned == ["1; a gets orders 0-3", "2; b gets orders 2-3 of a", "1; a gets orders 2-3"]
