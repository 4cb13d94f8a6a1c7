"""KIP-392: fetch from the closest replica. A test for each sentence that a broker can keep or break, quoted in short.

Where the text and Apache Kafka differ, the text holds; docs/compatibility.md has the differences. The consumer's part:
tests/unit/client.
"""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import PartitionData, ReplicaState
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
from tailrace.replication.outcomes import NotLeader
from tailrace.replication.replica_progress import FollowerFetch
from tailrace.replication.watchers import Change
from testkit.nodes.data_path import DataPath, Exchange, records_of
from testkit.nodes.replica_reads import LEADER_EPOCH, FollowingBroker, LeadingBroker

WAIT_MS = 500
DEBUGGING = -2
LATEST, EARLIEST = -1, -2


def values(answer: PartitionData) -> list[bytes | None]:
    return [record.value for record in records_of(answer.records)]


def code(exchange: Exchange) -> ErrorCode:
    return ErrorCode(exchange.fetched.error_code)


def following(*committed: bytes, uncommitted: tuple[bytes, ...] = ()) -> FollowingBroker:
    """A follower that has these records, and knows how far they are committed."""
    bench = FollowingBroker()
    if committed:
        bench.receive(*committed)
    if uncommitted:
        bench.receive(*uncommitted)
    bench.hear(len(committed))
    return bench


# Follower fetching


@pytest.mark.parametrize("version", range(11, 19))
def test_consumers_may_fetch_from_any_replica(version: int) -> None:
    """'We propose to extend the fetch protocol to allow consumer fetching from any replica.'"""
    bench = following(b"a", b"b")
    answer = bench.consume(0, version=version).fetched
    assert (answer.error_code, values(answer)) == (0, [b"a", b"b"])
    assert (answer.high_watermark, answer.log_start_offset, answer.preferred_read_replica) == (2, 0, -1)


@pytest.mark.parametrize("version", range(4, 11))
def test_older_versions_read_from_the_leader_alone(version: int) -> None:
    """'The only complication is that older versions will not allow us to use the more specific out of range error
    codes' (rejected alternatives)."""
    assert code(following(b"a").consume(0, version=version)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [4, 10, 14, 17])
def test_the_sentinel_for_debugging_allows_it_in_every_version(version: int) -> None:
    """'-2, which was originally intended to be used for debugging and allows fetching from followers'"""
    sender = {"replica_id": DEBUGGING} if version < 15 else {"replica_state": ReplicaState(replica_id=DEBUGGING)}
    answer = following(b"a").consume(0, version=version, **sender).fetched
    assert (answer.error_code, values(answer)) == (0, [b"a"])


def test_only_committed_data_is_returned() -> None:
    """'only committed data is returned to the consumer. This relies on propagation of the high watermark'"""
    bench = following(b"a", uncommitted=(b"b",))
    assert values(bench.consume(0).fetched) == [b"a"]
    bench.hear(2)
    assert values(bench.consume(1).fetched) == [b"b"]


def test_records_that_a_follower_has_not_flushed_are_not_returned_though_they_are_committed() -> None:
    bench = FollowingBroker()
    bench.receive(b"a")
    bench.hear(2)  # the leader has two
    answer = bench.consume(0).fetched
    assert (values(answer), answer.high_watermark) == ([b"a"], 1)


def test_a_replica_that_is_closed_refuses() -> None:
    bench = following(b"a")
    bench.partition.close()
    with pytest.raises(NotLeader):
        bench.partition.check_replica(-1)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, ErrorCode.NONE),
        (LEADER_EPOCH, ErrorCode.NONE),
        (LEADER_EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (LEADER_EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_followers_check_the_leader_epoch_as_leaders_do(epoch: int, expected: ErrorCode) -> None:
    """KIP-320; the epoch comes before the role."""
    bench = following(b"a")
    assert code(bench.consume(0, leader_epoch=epoch)) is expected
    if expected is not ErrorCode.NONE:
        assert code(bench.consume(0, leader_epoch=epoch, version=10)) is expected


def test_a_follower_that_is_behind_takes_no_epoch_of_the_consumer_for_a_divergence() -> None:
    """KIP-320 has the leader find truncations. A follower lacks epochs that it has not fetched yet."""
    bench = FollowingBroker()
    bench.receive(b"a", epoch=1)
    bench.hear(1)
    answer = bench.consume(1, leader_epoch=LEADER_EPOCH, max_wait_ms=WAIT_MS)
    assert not answer.is_answered


# Waiting on a follower


def test_a_waiting_consumer_is_woken_when_the_followers_high_watermark_rises() -> None:
    bench = following(b"a", uncommitted=(b"b",))
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    bench.hear(2)
    assert values(waiting.fetched) == [b"b"]


def test_a_consumer_of_committed_transactions_waits_for_the_followers_last_stable_offset() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS, isolation=1)
    bench.receive(b"b")
    assert not waiting.is_answered
    bench.hear(2)
    assert (values(waiting.fetched), waiting.fetched.last_stable_offset) == ([b"b"], 2)


def test_a_cut_wakes_and_what_was_cut_off_is_not_returned() -> None:
    bench = following(b"a", uncommitted=(b"b", b"c"))
    changes: list[int] = []

    class CutWatcher:
        def changed(self, partition: object, kinds: int) -> None:
            changes.append(kinds)

    bench.partition.watch(CutWatcher(), Change.HIGH_WATERMARK)
    waiting = bench.consume(2, max_wait_ms=WAIT_MS)
    bench.partition.following.truncate_to(1)
    bench.node.end_turn()
    assert changes
    assert not waiting.is_answered, "another record may get the offset"
    bench.receive(b"x", b"y")
    bench.hear(3)
    assert values(waiting.fetched) == [b"x", b"y"], "a whole batch; the client leaves out what is before its offset"


def test_a_new_leader_epoch_ends_the_wait_of_a_consumer_that_names_the_old_one() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS, leader_epoch=LEADER_EPOCH)
    bench.follow_anew(LEADER_EPOCH + 1)
    assert code(waiting) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_consumer_that_names_no_epoch_goes_on_when_the_follower_becomes_the_leader() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.lead(LEADER_EPOCH + 1)
    assert not waiting.is_answered
    bench.node.produce("orders", b"b", acks=1)
    bench.partition.in_sync.take_fetch(BrokerId(2), FollowerFetch(2))
    bench.node.end_turn()
    assert values(waiting.fetched) == [b"b"]


def test_a_log_start_above_its_offset_ends_the_wait() -> None:
    bench = following(b"a", b"b", b"c")
    waiting = bench.consume(0, max_wait_ms=WAIT_MS, min_bytes=100_000)
    assert not waiting.is_answered
    bench.hear(3, log_start_offset=2)
    assert code(waiting) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert waiting.fetched.log_start_offset == 2


def test_a_log_that_fails_ends_the_wait() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.partition.log.condemn("a scrub has found a wrong checksum")
    bench.node.end_turn()
    assert code(waiting) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_that_is_removed_ends_the_wait() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.node.table.delete("orders", 0)
    bench.node.end_turn()
    assert code(waiting) is ErrorCode.UNKNOWN_TOPIC_ID, "this node's metadata does not have it"


# High watermark propagation


@pytest.mark.parametrize("version", range(15, 19))
def test_a_follower_with_a_stale_high_watermark_is_answered_at_once(version: int) -> None:
    """'The leader will respond to a fetch immediately if the follower has a stale high watermark.'

    Before v18 a follower does not state its own: it has what it was sent, when its next fetch shows that.
    """
    bench = LeadingBroker()
    bench.produce(b"a")
    for replica in (2, 3):
        bench.follow(replica, 1, version=version)
    assert bench.partition.high_watermark == 1
    stale = bench.follow(2, 1, version=version, max_wait_ms=WAIT_MS)
    assert stale.fetched.high_watermark == 1
    waiting = bench.follow(2, 1, version=version, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered, "that fetch has acknowledged it"


def test_the_first_fetch_of_a_follower_does_not_block() -> None:
    """'the first request in a fetch session will not block on the leader in order to ensure that the follower has the
    latest high watermark'"""
    bench = LeadingBroker()
    assert bench.follow(2, 0, version=17, max_wait_ms=WAIT_MS).is_answered
    assert not bench.follow(2, 0, version=17, max_wait_ms=WAIT_MS).is_answered


def test_a_follower_that_has_started_anew_is_answered_at_once_again() -> None:
    bench = LeadingBroker()
    bench.follow(2, 0, version=17)
    bench.change_broker(2, broker_epoch=21)
    assert bench.follow(2, 0, version=17, broker_epoch=21, max_wait_ms=WAIT_MS).is_answered


def test_a_waiting_follower_is_answered_when_the_high_watermark_rises() -> None:
    bench = LeadingBroker()
    bench.produce(b"a")
    bench.follow(2, 1, version=17)
    waiting = bench.follow(2, 1, version=17, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    bench.follow(3, 1, version=17)
    assert waiting.fetched.high_watermark == 1


# Out of range handling: the four cases


def test_case_1_an_uncommitted_offset_waits_and_is_not_available() -> None:
    """'When the broker receives a fetch for an offset between the local high watermark and the log end offset, whether
    it's on the leader or follower, we will return the OFFSET_NOT_AVAILABLE error code.'"""
    bench = following(b"a", uncommitted=(b"b", b"c"))
    for offset in (2, 3):
        waiting = bench.consume(offset, max_wait_ms=WAIT_MS)
        assert not waiting.is_answered
        bench.clock.advance(WAIT_MS)
        assert (code(waiting), waiting.fetched.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, 1)
        assert code(bench.consume(offset)) is ErrorCode.OFFSET_NOT_AVAILABLE, "without a wait it is so at once"


def test_case_1_on_the_leader() -> None:
    bench = LeadingBroker()
    bench.produce(b"a", b"b")
    for offset in (1, 2):
        waiting = bench.consume(offset, max_wait_ms=WAIT_MS, rack="b")
        bench.clock.advance(WAIT_MS)
        assert code(waiting) is ErrorCode.OFFSET_NOT_AVAILABLE


def test_case_1_becomes_readable_within_the_wait() -> None:
    bench = following(b"a", uncommitted=(b"b", b"c"))
    waiting = bench.consume(2, max_wait_ms=WAIT_MS)
    bench.hear(3)
    assert values(waiting.fetched) == [b"b", b"c"]


@pytest.mark.parametrize("version", [4, 10])
def test_case_1_is_an_empty_answer_for_old_clients(version: int) -> None:
    bench = following(b"a", uncommitted=(b"b", b"c"))
    waiting = bench.consume(2, version=version, max_wait_ms=WAIT_MS, replica_id=DEBUGGING)
    bench.clock.advance(WAIT_MS)
    assert (code(waiting), values(waiting.fetched)) == (ErrorCode.NONE, [])


def test_the_high_watermark_itself_is_an_ordinary_wait() -> None:
    """The end of what is committed is where every tailing consumer waits."""
    bench = following(b"a", uncommitted=(b"b",))
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.clock.advance(WAIT_MS)
    assert (code(waiting), values(waiting.fetched)) == (ErrorCode.NONE, [])


def test_between_last_stable_offset_and_high_watermark_is_an_ordinary_wait() -> None:
    bench = LeadingBroker(selector_class="LeaderSelector")
    bench.commit(b"a")
    waiting = bench.consume(1, isolation=1, max_wait_ms=WAIT_MS)
    bench.clock.advance(WAIT_MS)
    assert code(waiting) is ErrorCode.NONE


@pytest.mark.parametrize("offset", [3, 5, 9])
def test_case_2_an_offset_that_has_not_arrived_waits_and_is_not_available(offset: int) -> None:
    """'a fetch at an offset between the log end offset and the high watermark received from the leader is known to be
    committed though the replica does not have the data. [...] also return OFFSET_NOT_AVAILABLE'"""
    bench = FollowingBroker()
    bench.receive(b"a", b"b")
    bench.hear(9)
    waiting = bench.consume(offset, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    bench.clock.advance(WAIT_MS)
    assert (code(waiting), waiting.fetched.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, 2)


def test_case_2_is_read_when_it_arrives_within_the_wait() -> None:
    bench = FollowingBroker()
    bench.receive(b"a", b"b")
    bench.hear(4)
    waiting = bench.consume(3, max_wait_ms=WAIT_MS)
    bench.receive(b"c", b"d")
    bench.hear(4)
    assert values(waiting.fetched) == [b"c", b"d"]


def test_a_new_leader_has_not_said_how_much_is_committed() -> None:
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
def test_the_range_is_in_all_versions(version: int) -> None:
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


def test_case_4_is_forgotten_when_the_records_come() -> None:
    bench = following(b"a")
    waiting = bench.consume(2, max_wait_ms=WAIT_MS)
    bench.receive(b"b", b"c")
    bench.hear(3)
    assert values(waiting.fetched) == [b"b", b"c"]


def test_on_the_leader_an_offset_too_large_is_out_of_range_at_once() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    assert code(bench.consume(2, rack="b", max_wait_ms=WAIT_MS)) is ErrorCode.OFFSET_OUT_OF_RANGE


# Finding the preferred follower


def test_the_leader_names_the_preferred_replica_at_once_and_without_records() -> None:
    """'In the response, the broker will indicate a preferred replica to fetch from.'"""
    bench = LeadingBroker()
    bench.commit(b"a", b"b")
    exchange = bench.consume(0, rack="b", max_wait_ms=WAIT_MS, min_bytes=100_000)
    assert exchange.is_answered
    answer = exchange.fetched
    assert (answer.error_code, answer.preferred_read_replica, answer.records or b"") == (0, 2, b"")
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (2, 2, 0)
    assert bench.node.broker.choices.redirects == 1


def test_a_tailing_consumer_is_sent_to_its_rack_without_a_wait() -> None:
    bench = LeadingBroker()
    end = bench.commit(b"a")
    assert bench.preferred(end, "c", max_wait_ms=WAIT_MS) == 3


def test_a_waiting_consumer_is_sent_there_when_the_follower_can_serve_it() -> None:
    bench = LeadingBroker()
    bench.produce(b"a")
    for replica in (2, 3):
        bench.follow(replica, 1, high_watermark=0)
    waiting = bench.consume(1, rack="b", max_wait_ms=WAIT_MS)
    assert not waiting.is_answered, "no follower knows yet that the offset is committed"
    bench.follow(2, 1, high_watermark=1)
    bench.clock.advance(WAIT_MS)
    assert waiting.fetched.preferred_read_replica == 2


@pytest.mark.parametrize("version", range(4, 19))
def test_only_versions_with_a_rack_are_sent_elsewhere(version: int) -> None:
    """'RackId, versions 11+' and 'PreferredReadReplica, versions 11+'"""
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, "b", version=version) == (2 if version >= 11 else -1)


def test_other_partitions_of_the_request_are_read_and_the_whole_request_is_answered() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    bench.node.create("alone")
    bench.node.produce("alone", b"z")
    assert bench.preferred(1, "b", max_wait_ms=WAIT_MS) == 2
    assert values(bench.node.fetch("alone", 0, rack_id="b").fetched) == [b"z"], "no other replica: the leader"


def test_by_default_every_consumer_reads_from_the_leader() -> None:
    """'By default, Kafka will use an implementation which always returns the current partition leader'"""
    for selector_class in ("", "LeaderSelector", "org.apache.kafka.common.replica.LeaderSelector"):
        bench = LeadingBroker(selector_class=selector_class)
        bench.commit(b"a")
        answer = bench.consume(0, rack="b").fetched
        assert (answer.preferred_read_replica, values(answer)) == (-1, [b"a"])


@pytest.mark.parametrize(
    ("rack", "preferred"),
    [("a", -1), ("b", 2), ("c", 3), ("d", -1), ("", -1)],
    ids=["the leader's own", "b", "c", "without a replica", "no rack"],
)
def test_racks_are_matched_exactly(rack: str, preferred: int) -> None:
    """'if one or more exists with matching rackId, choose the most caught-up replica from among them, otherwise return
    the current leader'"""
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, rack) == preferred


def test_a_follower_names_no_other_replica() -> None:
    bench = following(b"a")
    assert bench.consume(0, rack_id="elsewhere").fetched.preferred_read_replica == -1


# The redirect rule: in sync, log start <= offset <= acknowledged high watermark


def test_a_replica_out_of_sync_is_not_named() -> None:
    """'Ideally, consumers should fetch only from the ISR'"""
    bench = LeadingBroker(in_sync=(1, 3), settings={"min.insync.replicas": "1"})
    bench.produce(b"a")
    for replica in (2, 3, 2, 3):
        bench.follow(replica, 1, high_watermark=bench.partition.high_watermark)
    assert bench.preferred(0, "c") == 3
    assert bench.preferred(0, "b") == -1


def test_a_replica_that_does_not_know_the_offset_to_be_committed_is_not_named() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    bench.produce(b"b", b"c")
    for replica in (2, 3):
        bench.follow(replica, 3, high_watermark=1)
    assert bench.partition.high_watermark == 3
    assert [bench.preferred(offset, "b") for offset in (0, 1, 2, 3)] == [2, 2, -1, -1]
    bench.follow(2, 3, high_watermark=3)
    assert [bench.preferred(offset, "b") for offset in (2, 3)] == [2, 2]


def test_before_version_18_the_answer_counts_when_the_next_fetch_shows_it() -> None:
    bench = LeadingBroker()
    bench.produce(b"a")
    for replica in (2, 3):
        bench.follow(replica, 1, version=17)
    assert bench.partition.high_watermark == 1
    assert bench.preferred(1, "b") == -1
    bench.follow(2, 1, version=17)
    assert bench.preferred(1, "b") == -1, "it was sent, and may be lost"
    bench.follow(2, 1, version=17)
    assert bench.preferred(1, "b") == 2


def test_a_high_watermark_that_a_session_has_acknowledged_counts() -> None:
    bench = LeadingBroker()
    bench.produce(b"a")
    for replica in (2, 3):
        bench.follow(replica, 1, high_watermark=0)
    assert bench.preferred(1, "b") == -1
    bench.partition.in_sync.acknowledge_high_watermark(BrokerId(2), 1)
    assert bench.preferred(1, "b") == 2


def test_a_replica_whose_log_starts_above_the_offset_is_not_named() -> None:
    bench = LeadingBroker()
    end = bench.commit(b"a", b"b", b"c")
    bench.follow(2, end, high_watermark=end, log_start_offset=2)
    assert [bench.preferred(offset, "b") for offset in (0, 1, 2, 3)] == [-1, -1, 2, 2]


def test_an_offset_that_the_leader_has_deleted_is_not_read_from_a_follower_that_still_has_it() -> None:
    bench = LeadingBroker()
    bench.commit(b"a", b"b")
    bench.partition.delete_records(1)
    assert code(bench.consume(0, rack="b")) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_replica_that_leaves_the_isr_or_the_cluster_is_not_named_any_more() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, "b") == 2
    bench.node.create(leader_epoch=LEADER_EPOCH, in_sync=(1, 3), replicas=(1, 2, 3))
    assert bench.preferred(0, "b") == -1


def test_a_new_leader_knows_no_followers_high_watermark() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, "b") == 2
    bench.node.create(leader_epoch=LEADER_EPOCH + 1, in_sync=(1, 2, 3), replicas=(1, 2, 3))
    assert bench.preferred(0, "b") == -1


# ListOffsets and OffsetForLeaderEpoch


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
def test_list_offsets_never_shows_what_is_not_committed(isolation: int) -> None:
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


# Log starts


def test_a_followers_log_start_follows_its_leaders_and_no_retention_of_its_own() -> None:
    """'only allow the leader to enforce retention and to rely only on the propagation of the log start offset' (a
    rejected alternative there, and built here)."""
    bench = following(b"a", b"b")
    bench.partition.take_config(TopicConfig(retention_ms=1, segment_bytes=14))
    bench.clock.advance(1_000_000)
    bench.partition.apply_retention(bench.clock.now_ms())
    assert bench.partition.log.log_start_offset == 0
    bench.hear(2, log_start_offset=1)
    assert bench.partition.log.log_start_offset == 1
