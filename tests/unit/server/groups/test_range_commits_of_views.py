"""Commits of ranges in the partitions of a view (KIP-X): the hashes of its slot, at the offsets of the partition."""

import pytest

from tailrace.model.key_ranges import HASH_SPACE, WHOLE, KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import key_range_of
from tailrace.protocol.messages.list_offsets import ListOffsetsRequest
from tailrace.protocol.messages.offsets import OffsetCommitResponse, WireRangeBudget, WireRectangle
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.groups.commits import OffsetCommitHandler
from tailrace.server.groups.partition_ends import PartitionEnds
from tailrace.server.response_errors import ResponseErrors
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.ports import DeferredPeer
from unit.server.groups.range_commits_of_node import (
    LAST,
    RECORDS,
    E,
    commit,
    commit_all,
    filled,
    new_node,
    partition_of,
    request_of,
    stand,
)

FAN_OUT = 8
VIEW = f"orders.shared-{FAN_OUT}"
NUMBER = 3
SLOT = key_range_of(NUMBER, FAN_OUT)
MIDDLE = (SLOT.first + SLOT.last) // 2


@pytest.fixture
def node() -> TransactionPath:
    return filled(new_node())


def done(first: int, last: int, hashes: KeyRange = WHOLE) -> WireRectangle:
    return WireRectangle(first_offset=first, last_offset=last, first_hash=hashes.first, last_hash=hashes.last)


def of_view(node: TransactionPath) -> tuple[int, tuple[WireRectangle, ...], int]:
    return stand(node, topic=VIEW, partition=NUMBER)


@pytest.mark.parametrize("version", [8, 9, 10])
def test_the_whole_hash_space_is_the_whole_of_a_view_partition(node: TransactionPath, version: int) -> None:
    (taken,) = commit_all(node, partition_of(done(0, 9), partition=NUMBER), topic=VIEW, version=version)
    assert (taken.error_code, taken.range_budget) == (E.NONE, WireRangeBudget(used=0, limit=4096))
    assert of_view(node) == (10, (), 0)
    assert stand(node)[0] == -1, "the topic's own progress is another"


def test_the_offset_of_a_view_partition_is_the_lowest_frontier_of_its_slot(node: TransactionPath) -> None:
    below, beyond = KeyRange(SLOT.first, MIDDLE), KeyRange(MIDDLE + 1, SLOT.last)
    commit_all(node, partition_of(done(0, 19, below), partition=NUMBER), topic=VIEW)
    assert of_view(node) == (0, (done(0, 19, below),), 0)
    commit_all(node, partition_of(done(0, 4, beyond), partition=NUMBER), topic=VIEW)
    assert of_view(node) == (5, (done(5, 19, below),), 0)


def test_hashes_outside_of_the_slot_say_nothing(node: TransactionPath) -> None:
    """A reader that does not know of slots leaves a hole for a key: its ranges reach from 0 to the last hash."""
    around = (done(0, 9), done(10, 19, KeyRange(0, MIDDLE - 1)), done(10, 19, KeyRange(MIDDLE + 1, LAST)))
    commit_all(node, partition_of(*around, partition=NUMBER), topic=VIEW)
    expected = (done(10, 19, KeyRange(SLOT.first, MIDDLE - 1)), done(10, 19, KeyRange(MIDDLE + 1, SLOT.last)))
    assert of_view(node) == (10, expected, 0)
    outside = (done(30, 39, KeyRange(0, SLOT.first - 1)), done(20, 29, SLOT))
    commit_all(node, partition_of(*outside, partition=NUMBER), topic=VIEW)
    assert of_view(node)[1][0] == done(10, 29, KeyRange(SLOT.first, MIDDLE - 1))
    assert of_view(node)[0] == 10


def test_ranges_of_other_slots_alone_are_refused(node: TransactionPath) -> None:
    other = key_range_of(NUMBER + 1, FAN_OUT)
    refused = partition_of(done(0, 9, other), done(0, 9, KeyRange(0, SLOT.first - 1)), partition=NUMBER)
    (answer,) = commit_all(node, refused, topic=VIEW)
    assert answer.error_code == E.INVALID_REQUEST
    assert of_view(node)[0] == -1


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param((done(5, 4),), id="inverted"),
        pytest.param((done(0, 1, KeyRange(0, HASH_SPACE)),), id="a hash too large"),
        pytest.param((done(0, 4, SLOT), done(4, 5)), id="overlapping"),
        pytest.param((done(0, RECORDS),), id="behind the end of the partition"),
    ],
)
def test_bad_ranges_of_a_view_partition_change_nothing(
    node: TransactionPath, ranges: tuple[WireRectangle, ...]
) -> None:
    commit_all(node, partition_of(done(0, 9), partition=NUMBER), topic=VIEW)
    (answer,) = commit_all(node, partition_of(*ranges, partition=NUMBER), topic=VIEW)
    assert answer.error_code == E.INVALID_REQUEST
    assert of_view(node) == (10, (), 0)


def test_a_reset_of_a_view_partition_fences_commits_of_ranges(node: TransactionPath) -> None:
    commit_all(node, partition_of(done(0, 9), done(20, 29), partition=NUMBER), topic=VIEW)
    assert of_view(node) == (10, (done(20, 29, SLOT),), 0)
    commit_all(node, partition_of(offset=5, partition=NUMBER), topic=VIEW)
    assert of_view(node) == (5, (), 1)
    (late,) = commit_all(node, partition_of(done(0, 9), partition=NUMBER, state_epoch=0), topic=VIEW)
    assert late.error_code == E.FENCED_STATE_EPOCH


def test_a_members_commit_forward_joins_the_ranges_of_a_view_partition(node: TransactionPath) -> None:
    member = node.form_group("g")
    commit_all(node, partition_of(done(0, 9), done(20, 29), partition=NUMBER), topic=VIEW, member=member)
    commit_all(node, partition_of(offset=20, partition=NUMBER), topic=VIEW, member=member)
    assert of_view(node) == (30, (), 0)


def test_a_log_that_was_cut_has_nothing_done_in_a_view_partition_from_there_on(node: TransactionPath) -> None:
    commit_all(node, partition_of(done(0, 9), done(20, 29), partition=NUMBER), topic=VIEW)
    commit_all(node, partition_of(offset=25, state_epoch=0, partition=NUMBER), topic=VIEW)
    assert of_view(node) == (10, (done(20, 24, SLOT),), 1)


def test_metrics_count_the_records_that_are_done_beyond_the_offset(node: TransactionPath) -> None:
    """Half of the slot is done for 48 offsets more, a 16th of all hashes: three records, about."""
    half = KeyRange(SLOT.first, MIDDLE)
    commit_all(node, partition_of(done(0, 9), done(10, 57, half), partition=NUMBER), topic=VIEW)
    ((where, progress, _),) = node.coordinators.host_of("g").ranged_progress("g")
    assert where == TopicPartition(VIEW, NUMBER)
    assert (progress.stable_offset, progress.ahead) == (10, 3)
    assert list(progress.gaps()) == [KeyRange(MIDDLE + 1, SLOT.last)]


def test_the_leader_of_the_partition_confirms_the_ends_of_its_view_partitions_at_once(node: TransactionPath) -> None:
    peer = DeferredPeer()
    taken: list[OffsetCommitResponse] = []
    context = RequestContext(node.connection, 0, 8, 9, 1, "test", RequestServices(ResponseErrors()))
    ends = PartitionEnds(
        find_partition=lambda *_: None, image=lambda: node.coordinators.image, peer=peer, timeout_ms=5000
    )
    handler = OffsetCommitHandler(coordinators=node.coordinators, ends=ends, takes_ranges=lambda: True)
    wanted = (partition_of(done(0, 9), partition=0), partition_of(done(0, 29), partition=7))
    assert list(handler.handle(request_of(*wanted, topic=VIEW), context.intercepted(taken.append))) == []
    ((_, request, on_reply),) = peer.waiting
    assert isinstance(request, ListOffsetsRequest)
    asked = [(topic.name, [each.partition_index for each in topic.partitions]) for topic in request.topics]
    assert asked == [("orders", [0])]
    on_reply(None)
    node.end_turn()
    assert [each.error_code for each in taken[0].topics[0].partitions] == [E.REQUEST_TIMED_OUT] * 2
    assert commit(node, done(0, 9), topic=VIEW).error_code == E.NONE, "here the leader is asked itself"
