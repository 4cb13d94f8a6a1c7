"""KIP-392: offsets out of range, and the offsets that replicas give by ListOffsets and OffsetForLeaderEpoch."""

import pytest

from scenarios.fetch.follower_reads import DEBUGGING, WAIT_MS, code, following, values
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from testkit.nodes.data_path import DataPath
from testkit.nodes.replica_reads import LEADER_EPOCH, FollowingBroker, LeadingBroker

LATEST, EARLIEST = -1, -2


def test_case_1_a_fetch_of_an_uncommitted_offset_waits_and_is_not_available() -> None:
    """'When the broker receives a fetch for an offset between the local high watermark and the log end offset, whether
    it's on the leader or follower, we will return the OFFSET_NOT_AVAILABLE error code.'"""
    bench = following(b"a", uncommitted=(b"b", b"c"))
    for offset in (2, 3):
        waiting = bench.consume(offset, max_wait_ms=WAIT_MS)
        assert not waiting.is_answered
        bench.clock.advance(WAIT_MS)
        assert (code(waiting), waiting.fetched.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, 1)
        assert code(bench.consume(offset)) is ErrorCode.OFFSET_NOT_AVAILABLE, "without a wait it is so at once"


def test_case_1_a_fetch_of_an_uncommitted_offset_waits_on_the_leader_too() -> None:
    bench = LeadingBroker()
    bench.produce(b"a", b"b")
    for offset in (1, 2):
        waiting = bench.consume(offset, max_wait_ms=WAIT_MS, rack="b")
        bench.clock.advance(WAIT_MS)
        assert code(waiting) is ErrorCode.OFFSET_NOT_AVAILABLE


def test_case_1_an_offset_that_is_committed_within_the_wait_is_read() -> None:
    bench = following(b"a", uncommitted=(b"b", b"c"))
    waiting = bench.consume(2, max_wait_ms=WAIT_MS)
    bench.hear(3)
    assert values(waiting.fetched) == [b"b", b"c"]


@pytest.mark.parametrize("version", [4, 10])
def test_case_1_an_old_client_gets_an_empty_answer(version: int) -> None:
    bench = following(b"a", uncommitted=(b"b", b"c"))
    waiting = bench.consume(2, version=version, max_wait_ms=WAIT_MS, replica_id=DEBUGGING)
    bench.clock.advance(WAIT_MS)
    assert (code(waiting), values(waiting.fetched)) == (ErrorCode.NONE, [])


def test_a_fetch_at_the_high_watermark_of_a_follower_is_an_ordinary_wait() -> None:
    """The end of what is committed is where every tailing consumer waits."""
    bench = following(b"a", uncommitted=(b"b",))
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.clock.advance(WAIT_MS)
    assert (code(waiting), values(waiting.fetched)) == (ErrorCode.NONE, [])


def test_a_fetch_between_last_stable_offset_and_high_watermark_is_an_ordinary_wait() -> None:
    bench = LeadingBroker(selector_class="LeaderSelector")
    bench.commit(b"a")
    waiting = bench.consume(1, isolation=1, max_wait_ms=WAIT_MS)
    bench.clock.advance(WAIT_MS)
    assert code(waiting) is ErrorCode.NONE


@pytest.mark.parametrize("offset", [3, 5, 9])
def test_case_2_a_fetch_of_an_offset_that_the_follower_lacks_waits_and_is_not_available(offset: int) -> None:
    """'a fetch at an offset between the log end offset and the high watermark received from the leader is known to be
    committed though the replica does not have the data. [...] also return OFFSET_NOT_AVAILABLE'"""
    bench = FollowingBroker()
    bench.receive(b"a", b"b")
    bench.hear(9)
    waiting = bench.consume(offset, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    bench.clock.advance(WAIT_MS)
    assert (code(waiting), waiting.fetched.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, 2)


def test_case_2_an_offset_that_arrives_at_the_follower_within_the_wait_is_read() -> None:
    bench = FollowingBroker()
    bench.receive(b"a", b"b")
    bench.hear(4)
    waiting = bench.consume(3, max_wait_ms=WAIT_MS)
    bench.receive(b"c", b"d")
    bench.hear(4)
    assert values(waiting.fetched) == [b"c", b"d"]


def test_a_follower_forgets_the_high_watermark_of_its_former_leader() -> None:
    bench = FollowingBroker()
    bench.receive(b"a")
    bench.hear(9)
    bench.follow_anew(LEADER_EPOCH + 1)
    assert code(bench.consume(5)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_case_3_an_offset_too_small_is_out_of_range_with_the_range() -> None:
    """'When returning an OUT_OF_RANGE error, the broker will provide its current log start offset and high
    watermark.'"""
    bench = following(b"a", b"b", b"c")
    bench.hear(3, log_start_offset=2)
    answer = bench.consume(1, max_wait_ms=WAIT_MS)
    assert answer.is_answered
    assert code(answer) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.fetched.log_start_offset, answer.fetched.high_watermark) == (2, 3)


@pytest.mark.parametrize("version", range(5, 19))
def test_an_offset_out_of_range_is_answered_with_the_range_in_all_fetch_versions(version: int) -> None:
    """'We will also modify the behavior of all fetch versions so that the current log start offset and high watermark
    are returned if the fetch offset is out of range.'"""
    bench = LeadingBroker(selector_class="LeaderSelector")
    bench.commit(b"a", b"b")
    for offset in (-1, 3):
        answer = bench.consume(offset, version=version).fetched
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (answer.log_start_offset, answer.high_watermark) == (0, 2)


def test_a_follower_whose_log_starts_above_its_leaders_sends_the_consumer_there() -> None:
    """'The log start offset for the leader is not guaranteed to be present on the follower': error 1 would make the
    consumer skip records that the leader still has."""
    bench = following(b"a", b"b", b"c")
    bench.hear(3, log_start_offset=2)
    bench.follow_anew(LEADER_EPOCH + 1)  # a leader that had not received the deletion
    assert code(bench.consume(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has not said yet where its log starts"
    bench.hear(3, log_start_offset=1)
    refused = bench.consume(1, version=12)
    assert code(refused) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.fetched.current_leader.leader_id == 2
    bench.hear(3, log_start_offset=2)
    assert code(bench.consume(1)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_case_4_an_offset_too_large_is_out_of_range_when_the_wait_is_over() -> None:
    """'larger than the last high watermark value received from the leader. The replica has no choice in this case but
    to return OFFSET_OUT_OF_RANGE.' It waits first: the leader's next answer often makes it case 2, or brings the
    records."""
    bench = FollowingBroker()
    bench.receive(b"a", b"b")
    bench.hear(2)
    waiting = bench.consume(5, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    bench.clock.advance(WAIT_MS)
    answer = waiting.fetched
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.log_start_offset, answer.high_watermark) == (0, 2)


def test_case_4_a_too_large_offset_is_read_when_the_records_come_within_the_wait() -> None:
    bench = following(b"a")
    waiting = bench.consume(2, max_wait_ms=WAIT_MS)
    bench.receive(b"b", b"c")
    bench.hear(3)
    assert values(waiting.fetched) == [b"b", b"c"]


def test_on_the_leader_an_offset_too_large_is_out_of_range_at_once() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    assert code(bench.consume(2, rack="b", max_wait_ms=WAIT_MS)) is ErrorCode.OFFSET_OUT_OF_RANGE


def listed(
    node: DataPath, timestamp: int, *, replica_id: int = -1, version: int = 9, isolation: int = 0
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=(ListOffsetsTopic(name="orders", partitions=(wanted,)),),
    )
    answer: ListOffsetsPartitionResponse = node.send(request, version).response.topics[0].partitions[0]
    return answer


@pytest.mark.parametrize("version", range(1, 10))
def test_list_offsets_gives_a_followers_own_log_start(version: int) -> None:
    """'when we need to send a ListOffsets request to a follower in order to find the log start offset, we will use the
    same sentinel for the replica id field'"""
    bench = following(b"a", b"b", b"c")
    bench.hear(3, log_start_offset=2)
    answer = listed(bench.node, EARLIEST, replica_id=DEBUGGING, version=version)
    assert (answer.error_code, answer.offset) == (0, 2)


def test_list_offsets_of_a_consumer_is_for_the_leader() -> None:
    """'If the reset policy is "latest," fetch the log end offset from the leader.'"""
    bench = following(b"a")
    for timestamp in (LATEST, EARLIEST):
        for replica_id in (-1, -3, 2, 7):
            answer = listed(bench.node, timestamp, replica_id=replica_id)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("isolation", [0, 1])
def test_list_offsets_never_shows_an_uncommitted_offset(isolation: int) -> None:
    bench = following(b"a", uncommitted=(b"b", b"c"))
    answer = listed(bench.node, LATEST, replica_id=DEBUGGING, isolation=isolation)
    assert (answer.error_code, answer.offset) == (0, 1)
    leading = LeadingBroker()
    leading.commit(b"a")
    leading.produce(b"b")
    assert listed(leading.node, LATEST, replica_id=DEBUGGING, isolation=isolation).offset == 1


def test_list_offsets_by_time_finds_nothing_above_the_followers_high_watermark() -> None:
    bench = following(uncommitted=(b"a",))
    for timestamp in (0, -3):
        answer = listed(bench.node, timestamp, replica_id=DEBUGGING)
        assert (answer.error_code, answer.offset) == (0, -1)


def end_of_epoch(node: DataPath, epoch: int, current: int = -1) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="orders", partitions=(wanted,)),))
    answer: EpochEndOffset = node.send(request, 4).response.topics[0].partitions[0]
    return answer


def test_the_end_of_an_epoch_is_limited_to_the_high_watermark() -> None:
    """'When an OffsetsForLeaderEpoch request is received from a consumer, the returned offset will be limited to the
    high watermark.'"""
    bench = LeadingBroker()
    bench.commit(b"a", b"b")
    bench.produce(b"c")
    answer = end_of_epoch(bench.node, LEADER_EPOCH)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, LEADER_EPOCH, 2)


def test_the_end_of_an_epoch_is_not_available_while_the_new_leader_does_not_know_it() -> None:
    """'when a leader has just been elected, the true high watermark is not known for a short time [...] the leader will
    respond with the OFFSET_NOT_AVAILABLE error code'"""
    bench = LeadingBroker()
    bench.commit(b"a")
    bench.produce(b"b")
    bench.node.create(leader_epoch=LEADER_EPOCH + 1, in_sync=(1, 2, 3), replicas=(1, 2, 3))
    bench.node.end_turn()
    assert end_of_epoch(bench.node, LEADER_EPOCH + 1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert end_of_epoch(bench.node, LEADER_EPOCH).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


def test_only_leaders_handle_offset_for_leader_epoch() -> None:
    """'only leaders are allowed to handle OffsetsForLeaderEpoch queries'"""
    assert end_of_epoch(following(b"a").node, LEADER_EPOCH).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
