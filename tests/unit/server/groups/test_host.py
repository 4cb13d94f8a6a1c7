"""The coordinators of a node on a real partition, a real metadata log and a simulated disk."""

import logging
from typing import Any

import pytest

from tailrace.coordinators.config import GroupConfig
from tailrace.metadata.commands import TopicReference
from tailrace.metadata.image import full_delta
from tailrace.metadata.views import Views
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.protocol.messages.groups import DeleteGroupsRequest
from tailrace.protocol.messages.membership import HeartbeatRequest
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.protocol.records.control import NO_DECISION
from tailrace.replication.verification import UNVERIFIED
from tailrace.server.coordination.host import HostState
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.transactions.markers import DecisionNumber, TransactionMarker
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import BROKER
from testkit.nodes.ports import HoldingDisk
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode


def _holding_node() -> tuple[GroupPath, HoldingDisk]:
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    return _node(clock=clock, disk=disk), disk


def _node(
    files: SimulatedDisk | None = None, *, start: int = 1, settings: dict[str, str] | None = None, **ports: Any
) -> GroupPath:
    node = GroupPath("/data", files=files or SimulatedDisk(seed=1), settings=settings, start=start, **ports)
    if start == 1:
        node.create_topics("orders", partitions=2)
        assert node.find_coordinator("g") is E.NONE
    return node


def _code_of_commit(exchange: object) -> ErrorCode:
    return ErrorCode(exchange.response.topics[0].partitions[0].error_code)  # type: ignore[attr-defined]


def test_commits_and_groups_survive_a_power_cut() -> None:
    files = SimulatedDisk(seed=3)
    node = _node(files)
    member_id, generation_id = node.form_group("g")
    assert _code_of_commit(node.commit("g", "orders", 7, generation_id=generation_id, member_id=member_id)) is E.NONE
    files.power_cut()
    files.reboot()
    again = _node(files, start=2)
    assert again.committed("g", "orders") == 7
    beat = HeartbeatRequest(group_id="g", generation_id=generation_id, member_id=member_id)
    assert again.send(beat, 4).response.error_code == E.NONE
    assert again.sync("g", member_id, generation_id).response.assignment == b"mine"


def test_no_request_is_answered_before_its_records_are_on_disk() -> None:
    node, disk = _holding_node()
    disk.holds = True
    committing = node.commit("g", "orders", 7)
    assert not committing.is_answered
    assert node.committed("g", "orders") == -1, "an offset that may be lost is not shown"
    disk.run()
    assert _code_of_commit(committing) is E.NONE
    assert node.committed("g", "orders") == 7


def test_a_refusal_waits_for_the_records_that_its_decision_has_read() -> None:
    node, disk = _holding_node()
    node.commit("g", "orders", 7)
    disk.holds = True
    deleting = node.send(DeleteGroupsRequest(groups_names=("g",)), 2)
    again = node.send(DeleteGroupsRequest(groups_names=("g",)), 2)
    assert not deleting.is_answered
    assert not again.is_answered
    disk.run()
    assert deleting.response.results[0].error_code == E.NONE
    assert again.response.results[0].error_code == E.GROUP_ID_NOT_FOUND


def test_a_failed_write_changes_nothing_and_is_answered_with_an_error() -> None:
    files = SimulatedDisk(seed=4)
    node = _node(files)
    node.commit("g", "orders", 7)
    files.fail_at(files.operations + 1)
    assert _code_of_commit(node.commit("g", "orders", 8)) is E.NOT_COORDINATOR
    assert node.committed("g", "orders") == 7


def test_a_commit_that_takes_too_long_is_answered_and_may_still_happen() -> None:
    node, disk = _holding_node()
    disk.holds = True
    committing = node.commit("g", "orders", 7)
    node.clock.advance(4_999)
    assert not committing.is_answered
    node.clock.advance(1)
    assert _code_of_commit(committing) is E.COORDINATOR_NOT_AVAILABLE
    disk.run()
    assert node.committed("g", "orders") == 7


def test_an_answer_that_rests_on_a_late_commit_has_a_time_limit() -> None:
    node, disk = _holding_node()
    disk.holds = True
    node.commit("g", "orders", 7)
    node.clock.advance(6_000)
    refused = node.commit("g", "orders", 8, generation_id=3, member_id="nobody")
    assert not refused.is_answered, "it rests on a commit that is still on its way"
    node.clock.advance(5_000)
    assert _code_of_commit(refused) is E.COORDINATOR_NOT_AVAILABLE
    disk.run()
    assert node.committed("g", "orders") == 7


def _coordinators_of_another_start(node: GroupPath, config: GroupConfig | None = None) -> GroupCoordinatorService:
    """Coordinators that have just taken over the partitions of this node."""
    coordinators = GroupCoordinatorService(
        broker_id=BROKER,
        find_partition=node.table.find,
        config=config or GroupConfig(),
        new_member_id=lambda prefix: prefix,
        clock=node.clock,
        views=Views(),
    )
    coordinators.on_image(node.controller.image, full_delta(node.controller.image))
    return coordinators


def _refusal(coordinators: GroupCoordinatorService, group_id: str) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        coordinators.host_of(group_id)
    return caught.value.code


def test_a_loading_coordinator_never_answers_no_offset() -> None:
    node = _node()
    node.commit("g", "orders", 7)
    coordinators = _coordinators_of_another_start(node)
    assert _refusal(coordinators, "g") is E.COORDINATOR_LOAD_IN_PROGRESS
    node.clock.advance(0)
    (value,) = coordinators.host_of("g").machine.reports.offsets("g").values()
    assert value.offset == 7


def test_no_partition_is_taken_over_before_the_first_image() -> None:
    """Otherwise all offsets would be taken for offsets of deleted topics."""
    node = _node()
    node.commit("g", "orders", 7)
    coordinators = GroupCoordinatorService(
        broker_id=BROKER,
        find_partition=node.table.find,
        config=GroupConfig(),
        new_member_id=lambda prefix: prefix,
        clock=node.clock,
        views=Views(),
    )
    marker = TransactionMarker(7, 0, 0, DecisionNumber(0, NO_DECISION), True, ())
    codes: list[ErrorCode] = []
    for number in range(4):
        coordinators.complete_transaction(TopicPartition(GROUP_OFFSETS_TOPIC, number), marker, codes.append)
    node.end_turn()
    assert codes == [E.NOT_LEADER_OR_FOLLOWER] * 4
    assert coordinators.active_hosts() == []
    assert node.committed("g", "orders") == 7


def test_loading_waits_until_the_records_of_the_log_are_committed() -> None:
    node, disk = _holding_node()
    disk.holds = True
    node.commit("g", "orders", 7)
    coordinators = _coordinators_of_another_start(node)
    node.clock.advance(0)
    assert _refusal(coordinators, "g") is E.COORDINATOR_LOAD_IN_PROGRESS
    disk.run()
    node.clock.advance(0)
    assert len(coordinators.host_of("g").machine.reports.offsets("g")) == 1


def test_a_log_that_cannot_be_read_makes_its_coordinator_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    node = _node()
    for number in range(4):
        partition = node.table.get(GROUP_OFFSETS_TOPIC, number)
        partition.staging.append_records(
            [(b"\x00\x01", b"\x00\x09")],
            now_ms=0,
            on_done=lambda _: None,
            producer_id=-1,
            producer_epoch=-1,
            verification=UNVERIFIED,
        )
    node.end_turn()
    with caplog.at_level(logging.ERROR, logger="tailrace.server"):
        coordinators = _coordinators_of_another_start(node)
        node.clock.advance(0)
    assert _refusal(coordinators, "g") is E.COORDINATOR_NOT_AVAILABLE
    assert "coordinator-failed" in caplog.text
    assert not node.table.get(GROUP_OFFSETS_TOPIC, 0).log.is_offline, "every replica has the same: none is damaged"


def test_a_damaged_log_goes_offline_so_that_another_replica_has_the_coordinator() -> None:
    files = SimulatedDisk(seed=1)
    node = _node(files)
    node.commit("g", "orders", 7)
    (partition,) = [
        candidate
        for candidate in node.table
        if candidate.topic_partition.topic == GROUP_OFFSETS_TOPIC and candidate.log.size_bytes
    ]
    assert not partition.log.flushes.has_work
    path = f"/data/{partition.topic_partition}/00000000000000000000.log"
    files.flip_bit(path, partition.log.size_bytes - 1)
    coordinators = _coordinators_of_another_start(node)
    node.clock.advance(0)
    assert _refusal(coordinators, "g") is E.COORDINATOR_NOT_AVAILABLE
    assert partition.log.is_damaged
    assert partition.log.is_offline


@pytest.mark.parametrize("group_id", ["", "x" * 8192])
def test_a_group_id_that_has_no_place_in_the_log_is_refused(group_id: str) -> None:
    assert _refusal(_node().coordinators, group_id) is E.INVALID_GROUP_ID


def test_a_node_without_the_offsets_topic_coordinates_no_group() -> None:
    node = GroupPath("/data", files=SimulatedDisk(seed=1))
    assert _refusal(node.coordinators, "g") is E.NOT_COORDINATOR


def test_new_groups_are_refused_when_there_are_too_many() -> None:
    node = _node()
    node.commit("g", "orders", 7)
    coordinators = _coordinators_of_another_start(node, GroupConfig(group_max_groups=1))
    node.clock.advance(0)
    coordinators.host_of("g", check_limit=True)
    with pytest.raises(KafkaError) as caught:
        coordinators.host_of("h", check_limit=True)
    assert caught.value.code is E.INVALID_REQUEST


def test_a_loss_of_leadership_redirects_waiting_requests() -> None:
    node = _node()
    member_id, generation_id = node.form_group("g")
    other: str = node.join("g").response.member_id
    joining = node.join("g", other)
    assert not joining.is_answered
    (host,) = [host for host in node.coordinators.active_hosts() if host.machine.has_group("g")]
    host.close()
    assert joining.response.error_code == E.NOT_COORDINATOR
    assert host.state is HostState.CLOSED
    assert node.committed("g", "orders") == E.NOT_COORDINATOR
    assert node.commit("g", "orders", 1, generation_id=generation_id, member_id=member_id).is_answered


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    files = SimulatedDisk(seed=6)
    node = _node(files)
    node.create_topics("other")
    node.commit("g", "orders", 7)
    node.commit("g", "other", 8)
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    node.create_topics("orders", partitions=2)
    assert node.committed("g", "orders") == -1
    assert node.committed("g", "other") == 8
    node.stop()
    assert _node(files, start=2).committed("g", "orders") == -1


def test_offsets_of_a_topic_that_took_the_name_meanwhile_stay() -> None:
    """The tombstones of the one before take their time, and are looked after once more when they are committed."""
    node, disk = _holding_node()
    node.commit("g", "orders", 7)
    disk.holds = True
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    disk.run()
    node.end_turn()
    assert "orders" not in node.controller.image.topics
    disk.holds = False
    node.create_topics("orders", partitions=2)
    assert _code_of_commit(node.commit("g", "orders", 3)) is E.NONE
    disk.run()
    node.end_turn()
    assert node.committed("g", "orders") == 3


def test_many_offsets_in_one_request_are_written_in_several_batches() -> None:
    node = _node()
    node.create_topics("wide", partitions=400)
    request = OffsetCommitRequest(
        group_id="g",
        member_id="",
        topics=(
            OffsetCommitRequestTopic(
                name="wide",
                partitions=tuple(
                    OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="x" * 4096)
                    for n in range(400)
                ),
            ),
        ),
    )
    response = node.send(request, 8).response
    assert {partition.error_code for partition in response.topics[0].partitions} == {E.NONE}
    assert node.committed("g", "wide", partition=399) == 399


def test_a_load_of_many_group_records_takes_several_turns() -> None:
    files = SimulatedDisk(seed=7)
    node = _node(files, settings={"offsets.topic.num.partitions": "1"})
    for offset in range(300):
        node.commit("g", "orders", offset, metadata="m" * 1000, same_turn=offset % 10 != 0)
    node.end_turn()
    node.stop()
    again = GroupPath("/data", files=files, settings={"offsets.topic.num.partitions": "1"}, start=2)
    assert again.committed("g", "orders") == 299
    partition = again.table.get(GROUP_OFFSETS_TOPIC, 0)
    assert partition.log.size_bytes > 3 * 64 * 1024


def test_a_member_whose_connection_is_gone_expires_without_harm() -> None:
    node = _node()
    member_id, _ = node.form_group("g")
    other: str = node.join("g").response.member_id
    joining = node.join("g", other)
    node.connection.hang_up()
    node.clock.advance(30_000 + 10_000)
    assert not joining.is_answered
    (group,) = [group for host in node.coordinators.active_hosts() for group in host.machine.reports.overview()]
    assert (group.group_id, group.group_state) == ("g", "Empty")
    assert member_id != other


def test_a_rebalance_ends_with_the_session_of_the_missing_member() -> None:
    node = _node()
    node.form_group("g")
    other: str = node.join("g").response.member_id
    joining = node.join("g", other)
    node.clock.advance(9_999)
    assert not joining.is_answered
    node.clock.advance(1)
    assert joining.response.error_code == E.NONE


def _committed_group_ids(node: GroupPath) -> set[str]:
    return {name for host in node.coordinators.active_hosts() for name in host.machine.committed.groups}


def test_old_offsets_and_their_groups_are_deleted_in_the_background() -> None:
    files = SimulatedDisk(seed=5)
    settings = {"offsets.retention.minutes": "2", "offsets.retention.check.interval.ms": "60000"}
    node = _node(files, settings=settings)
    names = [f"group-{number}" for number in range(200)]
    for name in names:
        node.commit(name, "orders", 7)
    node.clock.advance(60_000)
    node.commit("g", "orders", 7)
    assert _committed_group_ids(node) == {*names, "g"}
    node.clock.advance(60_000)
    assert _committed_group_ids(node) == {"g"}
    node.stop()
    assert _committed_group_ids(_node(files, start=2, settings=settings)) == {"g"}


def test_offsets_of_a_deleted_topic_go_and_no_others() -> None:
    node = _node()
    node.create_topics("returns", partitions=1)
    for name in ("g", "h"):
        node.commit(name, "returns", 7)
    node.commit("g", "orders", 7)
    node.submit(delete_topics(TopicReference(name="returns")))
    node.end_turn()
    assert _committed_group_ids(node) == {"g"}
    assert node.committed("g", "orders") == 7
