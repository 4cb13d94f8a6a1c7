"""Commits of ranges, and questions for them, as a node carries them out (KIP-X): from frame to `__consumer_offsets`."""

import pytest

from tailrace.coordinators.groups.commands import ExpireOffsets
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.metadata.commands import TopicReference
from tailrace.metadata.feature_levels import FIRST_WITH_KEY_RANGES
from tailrace.protocol.declaration import unknown_tags
from tailrace.protocol.messages.offsets import (
    NO_RANGE_BUDGET,
    UNKNOWN_STATE_EPOCH,
    OffsetCommitRequestPartition,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    WireRangeBudget,
    WireRectangle,
)
from tailrace.protocol.schema import decode, encode_bytes
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import TransactionalClient, TransactionPath
from testkit.quorum.controller_commands import delete_topics
from unit.server.groups.range_commits_of_node import (
    LAST,
    E,
    commit,
    commit_all,
    filled,
    high,
    low,
    new_node,
    partition_of,
    progress,
    request_of,
    stand,
)


@pytest.fixture
def node() -> TransactionPath:
    return filled(new_node())


def value_of(node: TransactionPath) -> OffsetCommitValue:
    """The only offset that the group has committed."""
    (value,) = node.coordinators.host_of("g").machine.reports.offsets("g").values()
    return value


@pytest.mark.parametrize("version", [8, 9, 10])
def test_ranges_are_committed_beside_earlier_ranges(node: TransactionPath, version: int) -> None:
    first = commit(node, low(0, 9), version=version)
    assert (first.error_code, first.range_budget) == (E.NONE, WireRangeBudget(used=1, limit=4096))
    assert stand(node) == (0, (low(0, 9),), 0)
    second = commit(node, high(0, 4), version=version)
    assert second.range_budget.used == 1
    assert stand(node) == (5, (low(5, 9),), 0)
    assert node.committed("g", "orders") == 5, "other clients see the stable offset"
    assert commit(node, high(5, 9), low(10, 11), version=version).range_budget.used == 1
    assert stand(node) == (10, (low(10, 11),), 0)


def test_a_repeated_commit_of_ranges_changes_nothing(node: TransactionPath) -> None:
    for _ in range(3):
        assert commit(node, low(20, 29), high(50, 59)).error_code == E.NONE
    assert stand(node) == (0, (low(20, 29), high(50, 59)), 0)


def test_ranges_of_a_group_without_progress_are_committed_from_the_offset_that_the_reader_knows(
    node: TransactionPath,
) -> None:
    commit(node, low(40, 44), offset=40)
    assert stand(node) == (40, (low(40, 44),), 0)


def test_many_commits_of_ranges_in_one_turn_lose_nothing(node: TransactionPath) -> None:
    """A decision reads what earlier decisions have appended, flushed or not."""
    exchanges = []
    for number in range(20):
        request = request_of(partition_of(low(4 * number, 4 * number + 1)))
        exchanges.append(node.send(request, 9, same_turn=True))
    node.end_turn()
    assert {exchange.response.topics[0].partitions[0].error_code for exchange in exchanges} == {E.NONE}
    assert stand(node)[1] == tuple(low(4 * number, 4 * number + 1) for number in range(20))


def test_committed_ranges_are_read_from_their_records_after_a_restart() -> None:
    files = SimulatedDisk(seed=1)
    node = filled(new_node(files))
    commit(node, low(3, 9), offset=2)
    commit(node, high(0, 9))
    before = stand(node)
    assert before == (2, (low(3, 9), high(2, 9)), 0)
    node.stop()
    again = new_node(files)
    again.find_coordinator("g")
    assert stand(again) == before


def test_ranges_are_committed_beside_plain_commits_of_other_partitions(node: TransactionPath) -> None:
    answers = commit_all(node, partition_of(low(0, 1)), partition_of(offset=0, partition=1))
    assert [answer.error_code for answer in answers] == [E.NONE, E.NONE]
    assert [answer.range_budget for answer in answers] == [WireRangeBudget(used=1, limit=4096), NO_RANGE_BUDGET]
    assert progress(node, partition=1).committed_ranges == ()


def test_a_members_plain_commit_forward_keeps_the_ranges_beyond(node: TransactionPath) -> None:
    member = node.form_group("g")
    commit(node, low(0, 9), member=member)
    assert commit(node, offset=5, member=member).error_code == E.NONE
    assert stand(node) == (5, (low(5, 9),), 0)


def test_a_members_plain_commit_backward_is_a_rewind_of_its_ranges(node: TransactionPath) -> None:
    member = node.form_group("g")
    commit(node, low(10, 19), offset=10, member=member)
    commit(node, offset=3, member=member)
    assert stand(node) == (3, (), 1)
    assert commit(node, low(10, 19), state_epoch=0, member=member).error_code == E.FENCED_STATE_EPOCH
    assert commit(node, low(10, 19), member=member).error_code == E.FENCED_STATE_EPOCH
    assert commit(node, low(10, 19), state_epoch=1, member=member).error_code == E.NONE


def test_a_plain_commit_outside_the_group_resets_the_ranges(node: TransactionPath) -> None:
    commit(node, low(0, 9))
    commit(node, offset=5)
    assert stand(node) == (5, (), 1)
    commit(node, offset=7)
    assert stand(node) == (7, (), 1), "forward, with nothing beyond: no frontier is lower"


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_plain_commit_with_a_retention_time_keeps_the_ranges(node: TransactionPath, version: int) -> None:
    """Their form of the record has no tagged fields."""
    member = node.form_group("g")
    commit(node, low(0, 9), member=member)
    plain = commit(node, offset=2, member=member, version=version, retention_ms=60_000)
    assert plain.error_code == E.NONE
    assert stand(node) == (2, (low(2, 9),), 0)


def test_plain_commits_of_a_group_without_ranges_are_as_ever(node: TransactionPath) -> None:
    commit(node, offset=50)
    assert stand(node) == (50, (), 0)
    commit(node, offset=60)
    assert stand(node) == (60, (), 0)
    assert commit(node, low(60, 69), state_epoch=0).error_code == E.NONE


def test_a_plain_commit_backward_is_known_to_later_readers_of_ranges(node: TransactionPath) -> None:
    """A reader that began at the offset before the rewind may commit late what it has done from there on."""
    commit(node, offset=50)
    commit(node, offset=20)
    assert stand(node) == (20, (), 1)
    assert commit(node, low(50, 59), state_epoch=0).error_code == E.FENCED_STATE_EPOCH


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_plain_commit_keeps_its_retention_time_after_a_rewind_without_ranges(
    node: TransactionPath, version: int
) -> None:
    """Their clients know no ranges: their groups are as ever."""
    commit(node, offset=9)
    for offset in (3, 5):
        assert commit(node, offset=offset, version=version, retention_ms=60_000).error_code == E.NONE
        value = value_of(node)
        assert (value.offset, value.expire_timestamp >= 0) == (offset, True)


def test_a_plain_commit_has_its_leader_epoch_for_its_own_offset_alone_beside_ranges(node: TransactionPath) -> None:
    """Ranges that join on to the offset move it on: the record before it has another epoch, perhaps."""
    member = node.form_group("g")
    commit(node, WireRectangle(first_offset=5, last_offset=9, first_hash=0, last_hash=LAST), member=member)
    plain = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_leader_epoch=3, committed_metadata=""
    )
    commit_all(node, plain, member=member)
    value = value_of(node)
    assert (value.offset, value.leader_epoch) == (10, -1)


def test_a_plain_commit_with_a_state_epoch_cuts_the_ranges_of_a_truncated_log(node: TransactionPath) -> None:
    """KIP-320: nothing is done from there on, and nothing below becomes done."""
    member = node.form_group("g")
    commit(node, low(3, 50), offset=2, member=member)
    assert commit(node, offset=30, state_epoch=1, member=member).error_code == E.FENCED_STATE_EPOCH
    assert commit(node, offset=30, state_epoch=0, member=member).error_code == E.NONE
    assert stand(node) == (2, (low(3, 29),), 1)
    assert commit(node, offset=1, state_epoch=1, member=member).error_code == E.NONE
    assert stand(node) == (1, (), 2)


def test_a_plain_commit_of_no_offset_keeps_the_state_epoch_of_ranges(node: TransactionPath) -> None:
    commit(node, low(0, 9))
    commit(node, offset=-1)
    assert commit(node, low(0, 9)).error_code == E.FENCED_STATE_EPOCH


def test_a_deleted_offset_takes_its_committed_ranges_along(node: TransactionPath) -> None:
    commit(node, low(0, 9))
    topics = (OffsetDeleteRequestTopic(name="orders", partitions=(OffsetDeleteRequestPartition(partition_index=0),)),)
    node.send(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert stand(node) == (-1, (), UNKNOWN_STATE_EPOCH)
    assert commit(node, low(10, 19), state_epoch=0).error_code == E.FENCED_STATE_EPOCH, "late"


def test_an_expired_offset_takes_its_committed_ranges_along() -> None:
    node = filled(new_node(offsets_retention_minutes="1"))
    commit(node, low(0, 9))
    node.clock.advance(61_000)
    host = node.coordinators.host_of("g")
    host.decide_until_done([ExpireOffsets(group_ids=("g",))])
    node.end_turn()
    assert node.committed("g", "orders") == -1


def test_a_topic_made_anew_has_no_committed_ranges(node: TransactionPath) -> None:
    commit(node, low(0, 9), offset=0)
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    node.create_topics("orders")
    assert stand(node) == (-1, (), UNKNOWN_STATE_EPOCH)


def test_a_transaction_that_has_set_the_offset_comes_before_a_commit_of_ranges(node: TransactionPath) -> None:
    """The transaction's end would replace the ranges, or the ranges would replace its offset."""
    commit(node, low(0, 9))
    client = TransactionalClient(node, "copier")
    assert client.initialize() is E.NONE
    assert client.add_offsets("g") is E.NONE
    assert client.commit_offset("g", "orders", 4) is E.NONE
    assert commit(node, low(10, 11)).error_code == E.UNSTABLE_OFFSET_COMMIT
    assert client.end(is_commit=True) is E.NONE
    assert stand(node) == (4, (low(4, 9),), 0), "forward, so what is done beyond is kept"
    assert commit(node, low(10, 11)).error_code == E.NONE


def test_a_broker_without_ranges_keeps_the_offset_of_their_record(node: TransactionPath) -> None:
    """A broker of the release before decodes the record, and sees the stable offset and tags that it does not know."""
    commit(node, low(3, 9), high(0, 4))
    value = value_of(node)
    assert value.ranges
    again = decode(OffsetCommitValue, 4, encode_bytes(value, 4))
    assert again == value
    assert not unknown_tags(again)


def test_commits_of_ranges_need_a_metadata_version(node: TransactionPath) -> None:
    assert node.controller.image.metadata_version == FIRST_WITH_KEY_RANGES
    assert node.controller.image.knows_key_ranges
