"""KIP-848, "The Next Generation of the Consumer Rebalance Protocol", rule by rule. Sentences are quoted in short."""

from typing import Any

import pytest

from tailrace.coordinators.groups.consumer.heartbeat import MOST_EXPRESSIONS
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from tailrace.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tailrace.protocol.messages.membership import LeaveGroupRequest, MemberIdentity
from tailrace.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember, describe
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import Exchange
from testkit.nodes.ports import RecordingConnection
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode
SESSION_MS = 45_000


def _node(files: SimulatedDisk | None = None, *, start: int = 1, **settings: str) -> GroupPath:
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    node = GroupPath("/data", files=files or SimulatedDisk(seed=1), start=start, settings=texts)
    if start == 1:
        node.create_topics("orders", partitions=4)
        node.create_topics("returns", partitions=4)
        node.find_coordinator("g")
    return node


@pytest.fixture
def node() -> GroupPath:
    return _node()


def _two_members(node: GroupPath, **options: Any) -> tuple[TableMember, TableMember]:
    """A stable group of two with two partitions each."""
    a, b = TableMember(node, "a", **options), TableMember(node, "b", **options)
    assert (a.join(), b.join()) == (E.NONE, E.NONE)
    for member in (a, a, b):
        assert member.beat() is E.NONE
    assert len(a.partitions()) == len(b.partitions()) == 2
    assert describe(node).group_state == "Stable"
    return a, b


class TestReconciliation:
    def test_the_first_member_has_all_at_once(self, node: GroupPath) -> None:
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

    def test_a_member_that_does_not_say_what_it_owns_may_own_all(self, node: GroupPath) -> None:
        a, b = TableMember(node, "a"), TableMember(node, "b")
        a.join()
        b.join()
        a.beat()
        a.beat(says_owned=False)
        assert a.epoch == 1
        a.beat()
        assert a.epoch == 2

    def test_a_leaving_member_frees_its_partitions_at_once(self, node: GroupPath) -> None:
        a, b = _two_members(node)
        assert b.leave() is E.NONE
        a.beat()
        assert a.partitions() == {0, 1, 2, 3}
        assert b.beat() is E.UNKNOWN_MEMBER_ID

    def test_another_subscription_is_another_assignment(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        a.subscribe("returns")
        assert (a.partitions(), a.partitions("returns")) == (set(), set()), "first it must let go"
        a.beat()
        assert (a.partitions(), a.partitions("returns")) == (set(), {0, 1, 2, 3})

    def test_a_new_topic_and_a_deleted_one_begin_a_new_epoch(self, node: GroupPath) -> None:
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

    def test_a_change_of_topics_is_not_missed_behind_a_refused_heartbeat(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=("orders", "later"))
        a.join()
        node.create_topics("later", partitions=2)
        assert a.beat(epoch=99) is E.FENCED_MEMBER_EPOCH
        a.beat()
        assert a.partitions("later") == {0, 1}

    def test_a_lost_answer_does_no_harm(self, node: GroupPath) -> None:
        """ "previous member epoch": the answer with the new epoch was lost, the member repeats the old epoch."""
        a, b = _two_members(node)
        c = TableMember(node, "c")
        c.join()
        before = b.epoch
        for member in (a, b, a, b):
            member.beat()
        assert b.beat(epoch=before) is E.NONE
        assert b.beat(epoch=before - 1) is E.FENCED_MEMBER_EPOCH


class TestRegularExpressions:
    """ "SubscribedTopicRegex": "resolved by the group coordinator", with the syntax of RE2/J."""

    def test_topics_are_matched_as_a_whole(self, node: GroupPath) -> None:
        node.create_topics("orders-eu", partitions=1)
        a = TableMember(node, "a", topics=(), regex="orders")
        assert a.join() is E.NONE
        assert a.topics_read == {"orders"}
        a.subscribe_to_pattern("orders.*")
        a.beat()
        assert a.topics_read == {"orders", "orders-eu"}
        (member,) = describe(node).members
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), "orders.*")

    def test_names_and_an_expression_add_up(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=("returns",), regex="ord.*")
        a.join()
        assert a.topics_read == {"orders", "returns"}

    def test_an_empty_expression_matches_nothing_from_then_on(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=(), regex="ord.*")
        a.join()
        a.subscribe_to_pattern("", "returns")
        a.beat()
        assert a.topics_read == {"returns"}
        stored = node.coordinators.host_of("g").machine.committed.groups["g"].consumer
        assert stored is not None
        assert stored.expressions == {}, "none is kept without a subscription"

    def test_an_invalid_expression_is_refused_with_the_reason(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="a", member_epoch=a.epoch, subscribed_topic_regex="a(b"
        )
        answer = node.send(request, 1).response
        assert answer.error_code == E.INVALID_REGULAR_EXPRESSION
        assert "missing ): a(b" in (answer.error_message or "")
        assert a.beat() is E.NONE, "the member is as it was"

    def test_topics_that_come_and_go(self, node: GroupPath) -> None:
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

    def test_internal_topics_match_nothing(self, node: GroupPath) -> None:
        a = TableMember(node, "a", topics=(), regex=".*")
        a.join()
        assert a.topics_read == {"orders", "returns"}

    def test_one_that_leaves_takes_its_expression_along(self, node: GroupPath) -> None:
        a, b = TableMember(node, "a", topics=(), regex="ord.*"), TableMember(node, "b", topics=(), regex="ret.*")
        a.join()
        b.join()
        machine = node.coordinators.host_of("g").machine
        group = machine.committed.groups["g"].consumer
        assert group is not None
        assert group.expressions == {"ord.*": {"orders"}, "ret.*": {"returns"}}
        a.leave()
        assert machine.committed.groups["g"].consumer.expressions == {"ret.*": {"returns"}}  # type: ignore[union-attr]

    def test_a_group_has_so_many_expressions_and_no_more(self, node: GroupPath) -> None:
        for number in range(MOST_EXPRESSIONS):
            assert TableMember(node, f"m{number}", topics=(), regex=f"a{number}").join() is E.NONE
        assert TableMember(node, "more", topics=(), regex="b").join() is E.INVALID_REGULAR_EXPRESSION
        assert TableMember(node, "more", topics=(), regex="a7").join() is E.NONE

    def test_different_subscriptions_of_a_group_have_so_many_names_and_no_more(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tailrace.coordinators.groups.consumer.heartbeat.MOST_NAMES", 5)
        for member in "abc":
            assert TableMember(node, member, topics=("orders", "returns", "others")).join() is E.NONE
        assert TableMember(node, "d", topics=("orders", "returns", "more")).join() is E.GROUP_MAX_SIZE_REACHED
        assert TableMember(node, "d", topics=("orders", "returns")).join() is E.NONE

    def test_a_resolved_regular_expression_outlives_the_coordinator(self) -> None:
        files = SimulatedDisk(seed=1)
        node = _node(files)
        a = TableMember(node, "a", topics=(), regex="ord.*")
        a.join()
        files.power_cut()
        files.reboot()
        a.node = _node(files, start=2)
        assert a.beat() is E.NONE
        assert (a.epoch, a.topics_read) == (1, {"orders"}), "no new epoch: nothing has changed"
        a.node.create_topics("order-lines", partitions=1)
        a.beat()
        assert a.topics_read == {"orders", "order-lines"}

    def test_one_that_matches_more_than_a_record_holds_is_refused(self) -> None:
        node = _node(group_max_metadata_bytes="30")
        assert TableMember(node, "a", topics=(), regex="ord.*").join() is E.NONE
        for name in ("orders-in-europe", "orders-in-asia"):
            node.create_topics(name, partitions=1)
        assert TableMember(node, "b", topics=(), regex="orders-.*").join() is E.INVALID_REGULAR_EXPRESSION

    def test_a_client_that_has_gone_keeps_no_expression_busy(
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


class TestFencing:
    @pytest.mark.parametrize(("ahead", "code"), [(1, E.FENCED_MEMBER_EPOCH), (0, E.NONE), (-1, E.FENCED_MEMBER_EPOCH)])
    def test_another_epoch_is_fenced(self, node: GroupPath, ahead: int, code: ErrorCode) -> None:
        a, _ = _two_members(node)
        assert a.beat(epoch=a.epoch + ahead, says_owned=ahead == 0) is code

    def test_silence_ends_the_session(self, node: GroupPath) -> None:
        """group.consumer.session.timeout.ms 45000."""
        a, b = _two_members(node)
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

    def test_each_revocation_has_its_own_time(self, node: GroupPath) -> None:
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
        a, _ = _two_members(node)
        a.beat(epoch=99)
        assert a.join() is E.NONE
        assert len(a.partitions()) == 2

    def test_unknown_members_and_groups(self, node: GroupPath) -> None:
        assert TableMember(node, "x", epoch=3).beat() is E.GROUP_ID_NOT_FOUND
        _two_members(node)
        assert TableMember(node, "x", epoch=3).beat() is E.UNKNOWN_MEMBER_ID
        assert TableMember(node, "x").leave() is E.UNKNOWN_MEMBER_ID


class TestStaticMembers:
    def test_a_member_that_comes_back_keeps_its_partitions_and_moves_no_other(self, node: GroupPath) -> None:
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

    def test_one_that_has_not_heard_the_answer_joins_again(self, node: GroupPath) -> None:
        """ "still used by another member": not by this member."""
        a = TableMember(node, "a", instance_id="i")
        assert (a.join(), a.join()) == (E.NONE, E.NONE)
        assert a.partitions() == {0, 1, 2, 3}
        assert a.leave(LEAVE_FOR_A_WHILE) is E.NONE
        assert a.join() is E.NONE
        assert a.partitions() == {0, 1, 2, 3}
        assert TableMember(node, "b", instance_id="i").join() is E.UNRELEASED_INSTANCE_ID

    def test_one_that_stays_away_is_out_when_its_session_ends(self, node: GroupPath) -> None:
        a = TableMember(node, "a", instance_id="i")
        a.join()
        a.leave(LEAVE_FOR_A_WHILE)
        node.clock.advance(SESSION_MS)
        assert describe(node).group_state == "Empty"


VALID: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ("orders",),
    "topic_partitions": (),
}
OWNS = (HeartbeatTopicPartitions(topic_id=bytes(15) + b"\1", partitions=(0,)),)


class TestRequests:
    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({}, E.NONE),
            ({"group_id": ""}, E.INVALID_REQUEST),
            ({"group_id": "  "}, E.INVALID_REQUEST),
            ({"member_id": ""}, E.INVALID_REQUEST),
            ({"member_id": "  "}, E.INVALID_REQUEST),
            ({"instance_id": ""}, E.INVALID_REQUEST),
            ({"rack_id": ""}, E.INVALID_REQUEST),
            ({"member_epoch": -3}, E.INVALID_REQUEST),
            ({"member_epoch": -2}, E.INVALID_REQUEST),
            ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
            ({"topic_partitions": None}, E.INVALID_REQUEST),
            ({"topic_partitions": OWNS}, E.INVALID_REQUEST),
            ({"subscribed_topic_names": None}, E.INVALID_REQUEST),
            ({"subscribed_topic_names": ()}, E.NONE),
            ({"subscribed_topic_names": ("x" * 30_000,) * 280}, E.INVALID_REQUEST),
            ({"server_assignor": "mine"}, E.UNSUPPORTED_ASSIGNOR),
            ({"server_assignor": "range"}, E.NONE),
            ({"subscribed_topic_regex": "o.*"}, E.NONE),
            ({"subscribed_topic_names": None, "subscribed_topic_regex": "o.*"}, E.NONE),
            ({"subscribed_topic_regex": "("}, E.INVALID_REGULAR_EXPRESSION),
            ({"subscribed_topic_regex": "(?=o)"}, E.INVALID_REGULAR_EXPRESSION),
            ({"subscribed_topic_regex": "o" * 4093 + "o{2}"}, E.INVALID_REGULAR_EXPRESSION),
            ({"subscribed_topic_regex": "((a{100}){100}){100}"}, E.INVALID_REGULAR_EXPRESSION),
        ],
    )
    def test_first_requests(self, node: GroupPath, change: dict[str, Any], code: ErrorCode) -> None:
        assert node.send(ConsumerGroupHeartbeatRequest(**{**VALID, **change}), 1).response.error_code == code

    def test_before_v1_the_coordinator_makes_the_member_id(self, node: GroupPath) -> None:
        answer = node.send(ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""}), 0).response
        assert answer.error_code == E.NONE
        assert answer.member_id

    def test_a_long_client_id_is_no_part_of_the_member_id(self, node: GroupPath) -> None:
        """Clients name themselves in up to 32,767 bytes, and a record's key has room for a member id of as many."""
        request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""})
        answer = node.send(request, 0, client_id="z" * 32_760).response
        assert (answer.error_code, "z" in answer.member_id) == (E.NONE, False)

    def test_a_heartbeat_that_no_record_can_hold_leaves_nothing_behind(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = node.coordinators.host_of("g").machine
        monkeypatch.setattr(machine, "_new_member_id", lambda prefix: "m" * 40_000)
        request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""})
        assert node.send(request, 0).response.error_code == E.INVALID_REQUEST
        assert not machine.has_group("g")
        assert (machine._histories, machine._consumers._topics_seen) == ({}, {})
        assert machine.next_deadline_ms is None or machine.tick(machine.next_deadline_ms) == []

    def test_a_heartbeat_that_no_record_can_hold_does_not_use_up_what_is_new(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a = TableMember(node, "a")
        a.join()
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        node.create_topics("orders", partitions=6)
        machine = node.coordinators.host_of("g").machine
        monkeypatch.setattr(machine, "_new_member_id", lambda prefix: "m" * 40_000)
        request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""})
        assert node.send(request, 0).response.error_code == E.INVALID_REQUEST
        for _ in range(3):
            a.beat()
        assert len(a.partitions()) == 6

    def test_a_group_has_its_fill(self) -> None:
        node = _node(group_consumer_max_size="1")
        assert TableMember(node, "a").join() is E.NONE
        assert TableMember(node, "b").join() is E.GROUP_MAX_SIZE_REACHED
        assert TableMember(node, "a").join() is E.NONE

    def test_the_answer_says_how_often_to_come(self, node: GroupPath) -> None:
        assert node.send(ConsumerGroupHeartbeatRequest(**VALID), 1).response.heartbeat_interval_ms == 5_000


def _code_of_commit(exchange: Any) -> ErrorCode:
    return ErrorCode(exchange.response.topics[0].partitions[0].error_code)


class TestOffsets:
    @pytest.mark.parametrize(
        ("member", "ahead", "version", "code"),
        [
            ("a", 0, 9, E.NONE),
            ("a", -1, 9, E.STALE_MEMBER_EPOCH),
            ("a", 1, 9, E.STALE_MEMBER_EPOCH),
            ("x", 0, 9, E.UNKNOWN_MEMBER_ID),
            ("a", 0, 8, E.UNSUPPORTED_VERSION),
        ],
    )
    def test_a_commit_needs_the_members_epoch(
        self, node: GroupPath, member: str, ahead: int, version: int, code: ErrorCode
    ) -> None:
        a, _ = _two_members(node)
        commit = node.commit("g", "orders", 7, generation_id=a.epoch + ahead, member_id=member, version=version)
        assert _code_of_commit(commit) is code

    def test_an_administrator_commits_only_for_an_empty_group(self, node: GroupPath) -> None:
        a, b = _two_members(node)
        assert _code_of_commit(node.commit("g", "orders", 7)) is E.UNKNOWN_MEMBER_ID
        a.leave()
        b.leave()
        assert _code_of_commit(node.commit("g", "orders", 7)) is E.NONE

    @pytest.mark.parametrize(
        ("member", "ahead", "code"),
        [("a", 0, E.NONE), ("a", 1, E.STALE_MEMBER_EPOCH), ("x", 0, E.UNKNOWN_MEMBER_ID), (None, None, E.NONE)],
    )
    def test_a_fetch_is_checked_if_it_names_its_replica(
        self, node: GroupPath, member: str | None, ahead: int | None, code: ErrorCode
    ) -> None:
        a, _ = _two_members(node)
        topics = (OffsetFetchRequestTopics(name="orders", partition_indexes=(0,)),)
        epoch = -1 if ahead is None else a.epoch + ahead
        asked = OffsetFetchRequestGroup(group_id="g", member_id=member, member_epoch=epoch, topics=topics)
        (group,) = node.send(OffsetFetchRequest(groups=(asked,)), 9).response.groups
        assert group.error_code == code


class TestBesideClassicGroups:
    def test_a_classic_group_with_members_stays_one(self, node: GroupPath) -> None:
        """group.consumer.migration.policy=disabled: GROUP_ID_NOT_FOUND, INCONSISTENT_GROUP_PROTOCOL."""
        node.form_group("g")
        assert TableMember(node, "a").join() is E.GROUP_ID_NOT_FOUND
        assert describe(node).error_code == E.GROUP_ID_NOT_FOUND

    def test_a_consumer_group_with_members_stays_one(self, node: GroupPath) -> None:
        _two_members(node)
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
        node = _node(files)
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
        a.node = _node(files, start=2)
        assert a.beat() is E.NONE, "it is a consumer group, and nothing else"

    def test_a_consumer_group_whose_end_was_not_written_is_none_after_the_next_try(self) -> None:
        files = SimulatedDisk(seed=6)
        node = _node(files)
        a = TableMember(node, "a")
        a.join()
        a.leave()
        files.fail_at(files.operations + 1)
        member_id = node.join("g").response.member_id
        generation_id = node.join("g", member_id).response.generation_id
        assert node.sync("g", member_id, generation_id, {member_id: b"mine"}).response.error_code == E.NONE
        assert describe(node).error_code == E.GROUP_ID_NOT_FOUND
        commit = node.commit("g", "orders", 7, generation_id=generation_id, member_id=member_id)
        assert _code_of_commit(commit) is E.NONE

    def test_a_refused_classic_join_leaves_an_empty_consumer_group_as_it_is(self, node: GroupPath) -> None:
        a = TableMember(node, "a")
        a.join()
        a.leave()
        before = describe(node)
        assert node.join("g", "somebody").response.error_code == E.UNKNOWN_MEMBER_ID
        assert describe(node) == before
        assert a.join() is E.NONE

    @pytest.mark.parametrize(("wanted", "names"), [((), ["c", "g"]), (("consumer",), ["g"]), (("classic",), ["c"])])
    def test_a_list_tells_the_types(self, node: GroupPath, wanted: tuple[str, ...], names: list[str]) -> None:
        _two_members(node)
        node.find_coordinator("c")
        node.form_group("c")
        listed = node.send(ListGroupsRequest(types_filter=wanted), 5).response.groups
        assert [group.group_id for group in listed] == names
        assert {group.group_id: group.group_type for group in listed}.get("g", "consumer") == "consumer"

    def test_an_empty_one_is_deleted_whole(self, node: GroupPath) -> None:
        a, b = _two_members(node)
        node.commit("g", "orders", 7, generation_id=a.epoch, member_id="a")
        a.leave()
        b.leave()
        (deleted,) = node.send(DeleteGroupsRequest(groups_names=("g",)), 2).response.results
        assert deleted.error_code == E.NONE
        assert all(not host.machine.committed.groups for host in node.coordinators.active_hosts())


def test_a_restart_is_a_replay_and_members_go_on() -> None:
    files = SimulatedDisk(seed=3)
    node = _node(files)
    a, b = _two_members(node)
    before = describe(node)
    files.power_cut()
    files.reboot()
    again = _node(files, start=2)
    assert describe(again) == before
    a.node = b.node = again
    assert (a.beat(), b.beat()) == (E.NONE, E.NONE)
    again.clock.advance(SESSION_MS)
    assert describe(again).group_state == "Empty"


def test_offsets_expire_by_subscription_and_the_group_with_the_last_one() -> None:
    """KIP-211 for these groups: what a member subscribes to stays."""
    node = _node(offsets_retention_minutes="1", offsets_retention_check_interval_ms="10000")
    a = TableMember(node, "a")
    a.join()
    for topic in ("orders", "returns"):
        node.commit("g", topic, 7, generation_id=a.epoch, member_id="a")
    for _ in range(7):
        node.clock.advance(10_000)
        a.beat()
    assert (node.committed("g", "orders"), node.committed("g", "returns")) == (7, -1)
    a.leave()
    node.clock.advance(10_000)
    assert all(not host.machine.committed.groups for host in node.coordinators.active_hosts())


def test_a_group_that_is_named_twice_is_described_once(node: GroupPath) -> None:
    _two_members(node)
    request = ConsumerGroupDescribeRequest(group_ids=("g", "h", "g", "g"))
    assert [group.group_id for group in node.send(request, 1).response.groups] == ["g", "h"]


def test_a_write_that_fails_changes_no_member() -> None:
    files = SimulatedDisk(seed=4)
    node = _node(files)
    a = TableMember(node, "a")
    a.join()
    before = describe(node)
    files.fail_at(files.operations + 1)
    assert TableMember(node, "b").join() is E.NOT_COORDINATOR
    assert describe(node) == before


def test_the_history_tells_epochs_and_why_members_went(node: GroupPath) -> None:
    a, _ = _two_members(node)
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


def test_a_groups_own_settings_are_in_force_at_its_next_heartbeat(node: GroupPath) -> None:
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


def test_the_assignor_that_most_ask_for_is_taken(node: GroupPath) -> None:
    _two_members(node, assignor="range", topics=("orders", "returns"))
    group = describe(node)
    assert group.assignor_name == "range"
    for member in group.members:
        assert len({topic.partitions for topic in member.assignment.topic_partitions}) == 1, "alike in both topics"
