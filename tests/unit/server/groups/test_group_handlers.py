"""The group APIs over frames, in every version they are served in."""

import uuid

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath

E = ErrorCode
NO_SUCH_ID = bytes(15) + b"\x63"


@pytest.fixture
def node() -> GroupPath:
    node = GroupPath("/data", files=SimulatedDisk(seed=1))
    node.create_topics("orders", partitions=2)
    node.find_coordinator("g")
    return node


class TestFindCoordinator:
    @pytest.mark.parametrize("version", range(7))
    def test_the_first_request_creates_the_offsets_topic_and_is_answered_after_that(self, version: int) -> None:
        node = GroupPath("/data", files=SimulatedDisk(seed=1))
        assert node.find_coordinator("g", version=version) is E.NONE
        image = node.controller.image
        assert len(image.topics[GROUP_OFFSETS_TOPIC].partitions) == 4
        assert image.topic_overrides(GROUP_OFFSETS_TOPIC) == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert node.committed("g", "orders") == -1, "it serves at once"

    def test_many_requests_at_once_create_it_once(self) -> None:
        node = GroupPath("/data", files=SimulatedDisk(seed=1))
        request = FindCoordinatorRequest(key="g")
        exchanges = [node.send(request, 2, same_turn=True) for _ in range(3)]
        node.end_turn()
        assert {exchange.response.error_code for exchange in exchanges} == {E.NONE}

    def test_the_answer_names_the_listener_that_was_asked(self, node: GroupPath) -> None:
        response = node.send(FindCoordinatorRequest(key="g"), 3).response
        assert (response.node_id, response.host, response.port) == (1, "127.0.0.1", 9092)

    def test_many_keys_have_an_answer_each(self, node: GroupPath) -> None:
        response = node.send(FindCoordinatorRequest(coordinator_keys=("a", "b")), 4).response
        assert [(found.key, found.error_code, found.node_id) for found in response.coordinators] == [
            ("a", 0, 1),
            ("b", 0, 1),
        ]

    @pytest.mark.parametrize("key_type", [2, 9])
    def test_other_kinds_of_coordinators_are_refused_with_the_reason(self, node: GroupPath, key_type: int) -> None:
        request = FindCoordinatorRequest(coordinator_keys=("a",), key_type=key_type)
        (found,) = node.send(request, 6).response.coordinators
        assert found.error_code == E.INVALID_REQUEST
        assert found.error_message
        single = FindCoordinatorRequest(key="a", key_type=key_type)
        assert node.send(single, 1).response.error_code == E.INVALID_REQUEST


class TestMembership:
    @pytest.mark.parametrize("version", range(10))
    def test_every_version_of_join_leads_into_the_group(self, node: GroupPath, version: int) -> None:
        member_id = ""
        if version >= 4:
            refused = node.join("g", version=version).response
            assert refused.error_code == E.MEMBER_ID_REQUIRED
            member_id = refused.member_id
        joined = node.join("g", member_id, version=version).response
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (E.NONE, 1, "range")
        assert joined.leader == joined.member_id
        assert joined.protocol_type == ("consumer" if version >= 7 else None)

    def test_a_member_id_has_the_client_id_and_a_random_uuid(self, node: GroupPath) -> None:
        first, second = (node.join("g", version=9).response.member_id for _ in range(2))
        assert first.startswith("test-")
        text = first.removeprefix("test-")
        found = uuid.UUID(text)
        assert (str(found), found.version, found.variant) == (text, 4, uuid.RFC_4122)
        assert first != second

    @pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
    def test_a_refused_join_has_no_protocol(self, node: GroupPath, version: int, name: str | None) -> None:
        refused = node.join("g", "stranger", version=version).response
        assert (refused.error_code, refused.protocol_name) == (E.UNKNOWN_MEMBER_ID, name)

    def test_a_name_that_no_record_can_hold_is_refused(self, node: GroupPath) -> None:
        assert node.join("g", protocol="p" * 8192).response.error_code == E.INVALID_REQUEST

    def test_a_client_id_leaves_room_for_the_rest_of_the_member_id(self, node: GroupPath) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b"topics"),),
        )
        rest = len("-") + len(str(uuid.uuid4()))
        for characters, code in ((8_191, E.INVALID_REQUEST), (8_182, E.MEMBER_ID_REQUIRED)):
            client_id = "\N{GRINNING FACE}" * characters
            assert node.send(request, 9, client_id=client_id).response.error_code == code
        assert len(client_id.encode()) + rest <= 32_767, "as long as a string of a record can be"

    @pytest.mark.parametrize(("kind", "name"), [(None, "range"), ("consumer", None), (None, None)])
    def test_a_sync_without_the_groups_protocol_is_refused(
        self, node: GroupPath, kind: str | None, name: str | None
    ) -> None:
        """KIP-559: both are mandatory from version 5 on."""
        member_id, generation_id = node.form_group("g")
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation_id,
            member_id=member_id,
            protocol_type=kind,
            protocol_name=name,
            assignments=(),
        )
        assert node.send(request, 4).response.error_code == E.NONE
        assert node.send(request, 5).response.error_code == E.INCONSISTENT_GROUP_PROTOCOL

    @pytest.mark.parametrize("version", range(5))
    def test_every_version_of_heartbeat(self, node: GroupPath, version: int) -> None:
        member_id, generation_id = node.form_group("g")
        for generation, code in ((generation_id, E.NONE), (generation_id + 1, E.ILLEGAL_GENERATION)):
            request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
            assert node.send(request, version).response.error_code == code

    @pytest.mark.parametrize("version", range(6))
    def test_every_version_of_leave(self, node: GroupPath, version: int) -> None:
        member_id, _ = node.form_group("g")
        for code in (E.NONE, E.UNKNOWN_MEMBER_ID):
            request = LeaveGroupRequest(
                group_id="g", member_id=member_id, members=(MemberIdentity(member_id=member_id),)
            )
            response = node.send(request, version).response
            if version < 3:
                assert response.error_code == code
            else:
                assert (response.error_code, response.members[0].error_code) == (E.NONE, code)

    def test_members_of_other_coordinators_are_sent_there(self, node: GroupPath) -> None:
        node.coordinators.close()
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert node.send(request, 4).response.error_code == E.NOT_COORDINATOR


class TestOffsets:
    @pytest.mark.parametrize("version", range(2, 11))
    def test_every_version_of_commit(self, node: GroupPath, version: int) -> None:
        response = node.commit("g", "orders", 7, partition=1, version=version, metadata="note").response
        assert response.topics[0].partitions[0].error_code == E.NONE
        assert node.committed("g", "orders", partition=1) == 7
        assert node.committed("g", "orders", partition=0) == -1

    def test_a_commit_without_a_note_is_one_with_an_empty_note(self, node: GroupPath) -> None:
        node.commit("g", "orders", 7, metadata=None)
        request = OffsetFetchRequest(group_id="g", topics=(_to_fetch("orders", 0),))
        assert node.send(request, 1).response.topics[0].partitions[0].metadata == ""

    def test_topics_and_partitions_that_do_not_exist_have_their_error_and_the_others_are_committed(
        self, node: GroupPath
    ) -> None:
        request = OffsetCommitRequest(
            group_id="g", member_id="", topics=(_to_commit("nothing", 0), _to_commit("orders", 0, 5, 1))
        )
        response = node.send(request, 8).response
        codes = [[partition.error_code for partition in topic.partitions] for topic in response.topics]
        missing = E.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[missing], [E.NONE, missing, E.NONE]]
        assert node.committed("g", "orders", partition=1) == 7

    def test_of_a_partition_that_is_named_repeatedly_the_last_offset_counts_and_only_that(
        self, node: GroupPath
    ) -> None:
        def named(*offsets: int) -> OffsetCommitRequestTopic:
            partitions = tuple(
                OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
                for offset in offsets
                for partition in (0, 9)
            )
            return OffsetCommitRequestTopic(name="orders", partitions=partitions)

        request = OffsetCommitRequest(group_id="g", member_id="", topics=(named(1, 2), named(3)))
        before = sum(host.partition.log.log_end_offset for host in node.coordinators.active_hosts())
        answer = node.send(request, 8).response
        codes = [[partition.error_code for partition in topic.partitions] for topic in answer.topics]
        absent = E.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [[E.NONE, absent, E.NONE, absent], [E.NONE, absent]]
        assert node.committed("g", "orders") == 3
        assert sum(host.partition.log.log_end_offset for host in node.coordinators.active_hosts()) == before + 1

    def test_a_topic_id_that_does_not_exist_has_its_error(self, node: GroupPath) -> None:
        topic = OffsetCommitRequestTopic(topic_id=NO_SUCH_ID, partitions=_to_commit("", 0).partitions)
        response = node.send(OffsetCommitRequest(group_id="g", member_id="", topics=(topic,)), 10).response
        assert response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID
        assert response.topics[0].topic_id == NO_SUCH_ID

    @pytest.mark.parametrize(("version", "code"), [(8, E.ILLEGAL_GENERATION), (9, E.GROUP_ID_NOT_FOUND)])
    def test_a_member_of_no_group_cannot_commit(self, node: GroupPath, version: int, code: ErrorCode) -> None:
        response = node.commit("none", "orders", 7, generation_id=3, member_id="m", version=version).response
        assert response.topics[0].partitions[0].error_code == code

    def test_missing_partitions_have_their_own_codes_when_the_group_refuses_a_commit(self, node: GroupPath) -> None:
        request = OffsetCommitRequest(
            group_id="g", member_id="m", generation_id_or_member_epoch=3, topics=(_to_commit("orders", 0, 5),)
        )
        node.commit("g", "orders", 7)
        (topic,) = node.send(request, 8).response.topics
        codes = [partition.error_code for partition in topic.partitions]
        assert codes == [E.UNKNOWN_MEMBER_ID, E.UNKNOWN_TOPIC_OR_PARTITION]

    @pytest.mark.parametrize("version", range(1, 8))
    def test_every_version_of_fetch_for_one_group(self, node: GroupPath, version: int) -> None:
        node.commit("g", "orders", 7, metadata="note")
        request = OffsetFetchRequest(group_id="g", topics=(_to_fetch("orders", 0, 1), _to_fetch("nothing", 0)))
        orders, nothing = node.send(request, version).response.topics
        assert [(p.committed_offset, p.metadata, p.error_code) for p in orders.partitions] == [
            (7, "note", 0),
            (-1, "", 0),
        ]
        assert [(p.committed_offset, p.error_code) for p in nothing.partitions] == [(-1, 0)]

    @pytest.mark.parametrize("version", range(2, 8))
    def test_null_asks_for_all_offsets_of_the_group(self, node: GroupPath, version: int) -> None:
        node.commit("g", "orders", 7)
        node.commit("g", "orders", 8, partition=1)
        (topic,) = node.send(OffsetFetchRequest(group_id="g", topics=None), version).response.topics
        assert {(p.partition_index, p.committed_offset) for p in topic.partitions} == {(0, 7), (1, 8)}

    @pytest.mark.parametrize("version", range(8, 11))
    def test_every_version_of_fetch_for_many_groups(self, node: GroupPath, version: int) -> None:
        node.commit("g", "orders", 7)
        topic_id = node.topic_id("orders")
        naming = {"name": "orders"} if version < 10 else {"topic_id": topic_id}
        topic = OffsetFetchRequestTopics(partition_indexes=(0,), **naming)
        request = OffsetFetchRequest(
            groups=(
                OffsetFetchRequestGroup(group_id="g", topics=(topic,)),
                OffsetFetchRequestGroup(group_id="h", topics=(topic,)),
                OffsetFetchRequestGroup(group_id="g", topics=None),
                OffsetFetchRequestGroup(group_id="", topics=None),
            )
        )
        named, other, everything, refused = node.send(request, version).response.groups
        assert named.topics[0].partitions[0].committed_offset == 7
        assert other.topics[0].partitions[0].committed_offset == -1
        assert everything.topics == named.topics
        assert refused.error_code == E.INVALID_GROUP_ID

    def test_a_fetch_by_an_unknown_topic_id_is_refused(self, node: GroupPath) -> None:
        unknown = OffsetFetchRequestTopics(topic_id=NO_SUCH_ID, partition_indexes=(0,))
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=(unknown,)),))
        (topic,) = node.send(request, 10).response.groups[0].topics
        assert (topic.partitions[0].committed_offset, topic.partitions[0].error_code) == (-1, E.UNKNOWN_TOPIC_ID)

    def test_a_coordinator_that_is_not_here_is_no_missing_offset(self, node: GroupPath) -> None:
        node.coordinators.close()
        request = OffsetFetchRequest(group_id="g", topics=(_to_fetch("orders", 0),))
        assert node.send(request, 1).response.topics[0].partitions[0].error_code == E.NOT_COORDINATOR
        assert node.send(request, 2).response.error_code == E.NOT_COORDINATOR
        assert node.committed("g", "orders") == E.NOT_COORDINATOR


def _to_fetch(topic: str, *partitions: int) -> OffsetFetchRequestTopic:
    return OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)


def _to_commit(topic: str, *partitions: int) -> OffsetCommitRequestTopic:
    return OffsetCommitRequestTopic(
        name=topic,
        partitions=tuple(
            OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="")
            for index in partitions
        ),
    )


class TestAdministration:
    @pytest.mark.parametrize("version", range(7))
    def test_every_version_of_describe(self, node: GroupPath, version: int) -> None:
        member_id, _ = node.form_group("g")
        request = DescribeGroupsRequest(groups=("g",), include_authorized_operations=version >= 3)
        (group,) = node.send(request, version).response.groups
        assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
            E.NONE,
            "Stable",
            "consumer",
            "range",
        )
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (b"topics", b"mine")
        assert group.authorized_operations == (0b1101_0100_1000 if version >= 3 else -(2**31))

    @pytest.mark.parametrize(("version", "code"), [(5, E.NONE), (6, E.GROUP_ID_NOT_FOUND)])
    def test_a_group_that_does_not_exist_is_dead(self, node: GroupPath, version: int, code: ErrorCode) -> None:
        (group,) = node.send(DescribeGroupsRequest(groups=("none",)), version).response.groups
        assert (group.error_code, group.group_state) == (code, "Dead")

    def test_a_member_shows_its_last_assignment_until_it_has_the_next(self, node: GroupPath) -> None:
        """As in Kafka: tools show the member that reads each partition, while a group rebalances too."""
        member_id, _ = node.form_group("g")
        node.join("g", node.join("g").response.member_id)
        (group,) = node.send(DescribeGroupsRequest(groups=("g",)), 6).response.groups
        assert group.group_state == "PreparingRebalance"
        assert {m.member_id: m.member_assignment for m in group.members}[member_id] == b"mine"

    def test_a_group_without_members_is_described_as_empty(self, node: GroupPath) -> None:
        node.commit("g", "orders", 7)
        (group,) = node.send(DescribeGroupsRequest(groups=("g",)), 6).response.groups
        assert (group.error_code, group.group_state, group.members) == (E.NONE, "Empty", ())

    @pytest.mark.parametrize("version", range(6))
    def test_every_version_of_list(self, node: GroupPath, version: int) -> None:
        node.form_group("g")
        node.commit("h", "orders", 7)
        groups = node.send(ListGroupsRequest(), version).response.groups
        assert [(group.group_id, group.protocol_type) for group in groups] == [("g", "consumer"), ("h", "")]
        if version >= 5:
            assert [(group.group_state, group.group_type) for group in groups] == [
                ("Stable", "classic"),
                ("Empty", "classic"),
            ]

    def test_a_list_can_be_filtered_by_state_and_type(self, node: GroupPath) -> None:
        node.form_group("g")
        node.commit("h", "orders", 7)
        stable = node.send(ListGroupsRequest(states_filter=("stable", "Dead")), 5).response
        assert [group.group_id for group in stable.groups] == ["g"]
        assert len(node.send(ListGroupsRequest(types_filter=("Classic",)), 5).response.groups) == 2
        assert node.send(ListGroupsRequest(types_filter=("consumer",)), 5).response.groups == ()

    @pytest.mark.parametrize("version", range(3))
    def test_every_version_of_delete(self, node: GroupPath, version: int) -> None:
        node.form_group("g")
        node.commit("h", "orders", 7)
        request = DeleteGroupsRequest(groups_names=("g", "h", "none", "", "h"))
        results = {result.group_id: result.error_code for result in node.send(request, version).response.results}
        assert results == {"g": E.NON_EMPTY_GROUP, "h": E.NONE, "none": E.GROUP_ID_NOT_FOUND, "": E.INVALID_GROUP_ID}
        assert node.committed("h", "orders") == -1

    def test_deleting_nothing_is_answered(self, node: GroupPath) -> None:
        assert node.send(DeleteGroupsRequest(groups_names=()), 2).response.results == ()


class TestAmplification:
    """A request must not make the node write the same long text once for every few bytes of the request."""

    def test_a_group_is_described_once(self, node: GroupPath) -> None:
        node.form_group("g")
        groups = node.send(DescribeGroupsRequest(groups=("g", "h", "g")), 5).response.groups
        assert [group.group_id for group in groups] == ["g", "h"]

    @pytest.mark.parametrize("version", [8, 9, 10])
    def test_an_offset_is_fetched_once(self, node: GroupPath, version: int) -> None:
        node.commit("g", "orders", 7, metadata="m" * 4_000)
        topic = OffsetFetchRequestTopics(
            name="orders", topic_id=node.topic_id("orders"), partition_indexes=(0,) * 5 + (1,)
        )
        group = OffsetFetchRequestGroup(group_id="g", topics=(topic, topic))
        response = node.send(OffsetFetchRequest(groups=(group, group)), version).response
        found = [
            (partition.partition_index, partition.committed_offset)
            for group in response.groups
            for topic in group.topics
            for partition in topic.partitions
        ]
        assert found == [(0, 7), (1, -1)]

    def test_a_group_that_a_fetch_names_in_many_forms_is_answered_twice_at_most(self, node: GroupPath) -> None:
        node.commit("g", "orders", 7, metadata="m" * 4_000)
        some = OffsetFetchRequestTopics(name="orders", partition_indexes=(0,))
        wanted = [
            OffsetFetchRequestGroup(group_id="g", member_id=member, topics=topics)
            for topics in ((some,), None)
            for member in (None, "a", "b")
        ]
        groups = node.send(OffsetFetchRequest(groups=tuple(wanted)), 9).response.groups
        refused = E.INVALID_REQUEST
        assert [group.error_code for group in groups] == [0, refused, refused, 0, refused, refused]
        assert [len(group.topics) for group in groups] == [1, 0, 0, 1, 0, 0]


class TestGroupDetails:
    """The extension of `protocol.messages.groups`."""

    def test_without_details_the_answer_is_kafkas(self, node: GroupPath) -> None:
        node.form_group("g")
        for version in range(7):
            (group,) = node.send(DescribeGroupsRequest(groups=("g",)), version).response.groups
            assert group.details == ()

    def test_details_have_history_liveness_and_progress(self, node: GroupPath) -> None:
        member_id, generation_id = node.form_group("g")
        node.commit("g", "orders", 7, generation_id=generation_id, member_id=member_id)
        committed_at_ms = node.clock.now_ms()
        node.commit("g", "orders", 8, generation_id=generation_id + 1, member_id=member_id)
        node.clock.advance(1_500)
        (group,) = node.send(DescribeGroupsRequest(groups=("g",), include_details=True), 6).response.groups
        (details,) = group.details
        assert details.now_ms == node.clock.now_ms()
        last = details.events[-1]
        assert (last.kind, last.member_id, last.reason) == ("refused", member_id, "OffsetCommit: ILLEGAL_GENERATION")
        assert (last.last_ms_ago, last.count) == (1_500, 1)
        (member,) = details.members
        assert (member.member_id, member.silent_ms, member.session_timeout_ms) == (member_id, 1_500, 10_000)
        ((topic,),) = ([topic.name for topic in details.topics],)
        (progress,) = details.topics[0].partitions
        assert (topic, progress.offset, progress.moved_at_ms) == ("orders", 7, committed_at_ms)

    def test_a_version_without_tagged_fields_asks_and_gets_nothing(self, node: GroupPath) -> None:
        node.form_group("g")
        (group,) = node.send(DescribeGroupsRequest(groups=("g",), include_details=True), 4).response.groups
        assert group.details == ()
