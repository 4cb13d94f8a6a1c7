"""KIP-848: the regular expressions in the subscriptions of consumer groups."""

import pytest

from scenarios.groups.consumer_group_nodes import VALID, new_node
from tailrace.coordinators.groups.consumer.heartbeat import MOST_EXPRESSIONS
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.consumer_groups import TableMember, describe
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import Exchange
from testkit.nodes.ports import RecordingConnection
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode


class TestRegularExpressions:
    """ "SubscribedTopicRegex": "resolved by the group coordinator", with the syntax of RE2/J."""

    def test_a_regular_expression_matches_whole_names_of_topics(self, node: GroupPath) -> None:
        node.create_topics("orders-eu", partitions=1)
        a = TableMember(node, "a", topics=(), regex="orders")
        assert a.join() is E.NONE
        assert a.topics_read == {"orders"}
        a.subscribe_to_pattern("orders.*")
        a.beat()
        assert a.topics_read == {"orders", "orders-eu"}
        (member,) = describe(node).members
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), "orders.*")

    def test_names_and_a_regular_expression_of_a_subscription_add_up(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=("returns",), regex="ord.*")
        a.join()
        assert a.topics_read == {"orders", "returns"}

    def test_an_empty_regular_expression_matches_no_topic_from_then_on(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=(), regex="ord.*")
        a.join()
        a.subscribe_to_pattern("", "returns")
        a.beat()
        assert a.topics_read == {"returns"}
        stored = node.coordinators.host_of("g").machine.committed.groups["g"].consumer
        assert stored is not None
        assert stored.expressions == {}, "none is kept without a subscription"

    def test_an_invalid_regular_expression_is_refused_with_the_reason(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="a", member_epoch=a.epoch, subscribed_topic_regex="a(b"
        )
        answer = node.send(request, 1).response
        assert answer.error_code == E.INVALID_REGULAR_EXPRESSION
        assert "missing ): a(b" in (answer.error_message or "")
        assert a.beat() is E.NONE, "the member is as it was"

    def test_a_regular_expression_matches_topics_that_come_and_go(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=(), regex="ord.*")
        a.join()
        node.create_topics("order-lines", partitions=1)
        node.create_topics("elsewhere", partitions=1)
        a.beat()
        assert (a.epoch, a.topics_read) == (2, {"orders", "order-lines"})
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        a.beat()
        a.beat()
        assert a.topics_read == {"order-lines"}

    def test_a_regular_expression_matches_no_internal_topic(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=(), regex=".*")
        a.join()
        assert a.topics_read == {"orders", "returns"}

    def test_a_member_that_leaves_takes_its_regular_expression_along(self, node: GroupPath) -> None:
        a, b = TableMember(node, "a", topics=(), regex="ord.*"), TableMember(node, "b", topics=(), regex="ret.*")
        a.join()
        b.join()
        machine = node.coordinators.host_of("g").machine
        group = machine.committed.groups["g"].consumer
        assert group is not None
        assert group.expressions == {"ord.*": {"orders"}, "ret.*": {"returns"}}
        a.leave()
        assert machine.committed.groups["g"].consumer.expressions == {"ret.*": {"returns"}}  # type: ignore[union-attr]

    def test_a_consumer_group_takes_no_more_regular_expressions_than_the_limit(self, node: GroupPath) -> None:
        for number in range(MOST_EXPRESSIONS):
            assert TableMember(node, f"m{number}", topics=(), regex=f"a{number}").join() is E.NONE
        assert TableMember(node, "more", topics=(), regex="b").join() is E.INVALID_REGULAR_EXPRESSION
        assert TableMember(node, "more", topics=(), regex="a7").join() is E.NONE

    def test_the_subscriptions_of_a_consumer_group_name_no_more_topics_than_the_limit(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tailrace.coordinators.groups.consumer.heartbeat.MOST_NAMES", 5)
        for member in "abc":
            assert TableMember(node, member, topics=("orders", "returns", "others")).join() is E.NONE
        assert TableMember(node, "d", topics=("orders", "returns", "more")).join() is E.GROUP_MAX_SIZE_REACHED
        assert TableMember(node, "d", topics=("orders", "returns")).join() is E.NONE

    def test_a_resolved_regular_expression_outlives_the_coordinator(self) -> None:
        files = SimulatedDisk(seed=1)
        node = new_node(files)
        a = TableMember(node, "a", topics=(), regex="ord.*")
        a.join()
        files.power_cut()
        files.reboot()
        a.node = new_node(files, start=2)
        assert a.beat() is E.NONE
        assert (a.epoch, a.topics_read) == (1, {"orders"}), "no new epoch: nothing has changed"
        a.node.create_topics("order-lines", partitions=1)
        a.beat()
        assert a.topics_read == {"orders", "order-lines"}

    def test_a_regular_expression_that_matches_more_than_a_record_holds_is_refused(self) -> None:
        node = new_node(group_max_metadata_bytes="30")
        assert TableMember(node, "a", topics=(), regex="ord.*").join() is E.NONE
        for name in ("orders-in-europe", "orders-in-asia"):
            node.create_topics(name, partitions=1)
        assert TableMember(node, "b", topics=(), regex="orders-.*").join() is E.INVALID_REGULAR_EXPRESSION

    def test_the_regular_expressions_of_a_closed_connection_are_not_resolved(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node.create_topics(*(f"t{number}" for number in range(20)))
        monkeypatch.setattr("tailrace.server.groups.topic_patterns._NAMES_PER_TURN", 1)
        gone, there = RecordingConnection(), RecordingConnection()

        def ask(connection: RecordingConnection, regex: str) -> Exchange:
            request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": regex, "subscribed_topic_regex": regex})
            return node.send(request, 1, connection=connection, same_turn=True)

        for number in range(8):
            assert not ask(gone, f"a{number}").is_answered
        one_too_many = ask(gone, "a8")
        assert one_too_many.response.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        waiting = ask(there, "a7")
        gone.hang_up()
        assert list(node.coordinators.patterns._expressions) == ["a7"], "another client waits for this one"
        there.hang_up()
        assert not node.coordinators.patterns._expressions
        node.end_turn()
        node.clock.advance(1_000)
        assert not waiting.is_answered
