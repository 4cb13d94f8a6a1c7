"""KIP-392: fetches of consumers from a follower. A test for each sentence that a broker can keep or break, in short.

Where the text and Apache Kafka differ, the text holds; docs/compatibility.md has the differences. Offsets out of range
and the choice of the replica have files of their own. The consumer's part: tests/unit/client.
"""

import pytest

from scenarios.fetch.follower_reads import DEBUGGING, WAIT_MS, code, following, values
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import ReplicaState
from tailrace.replication.outcomes import NotLeader
from tailrace.replication.replica_progress import FollowerFetch
from tailrace.replication.watchers import Change
from testkit.nodes.replica_reads import LEADER_EPOCH, FollowingBroker


@pytest.mark.parametrize("version", range(11, 19))
def test_consumers_may_fetch_from_any_replica(version: int) -> None:
    """'We propose to extend the fetch protocol to allow consumer fetching from any replica.'"""
    bench = following(b"a", b"b")
    answer = bench.consume(0, version=version).fetched
    assert (answer.error_code, values(answer)) == (0, [b"a", b"b"])
    assert (answer.high_watermark, answer.log_start_offset, answer.preferred_read_replica) == (2, 0, -1)


@pytest.mark.parametrize("version", range(4, 11))
def test_consumers_before_fetch_v11_read_from_the_leader_alone(version: int) -> None:
    """'The only complication is that older versions will not allow us to use the more specific out of range error
    codes' (rejected alternatives)."""
    assert code(following(b"a").consume(0, version=version)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [4, 10, 14, 17])
def test_the_replica_id_for_debugging_reads_from_a_follower_in_every_version(version: int) -> None:
    """'-2, which was originally intended to be used for debugging and allows fetching from followers'"""
    sender = {"replica_id": DEBUGGING} if version < 15 else {"replica_state": ReplicaState(replica_id=DEBUGGING)}
    answer = following(b"a").consume(0, version=version, **sender).fetched
    assert (answer.error_code, values(answer)) == (0, [b"a"])


def test_a_follower_returns_committed_records_alone() -> None:
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


def test_a_closed_replica_refuses_fetches() -> None:
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


def test_a_truncation_of_the_follower_wakes_a_waiting_consumer_that_gets_no_truncated_record() -> None:
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


def test_a_log_start_above_the_offset_ends_the_wait_of_a_consumer() -> None:
    bench = following(b"a", b"b", b"c")
    waiting = bench.consume(0, max_wait_ms=WAIT_MS, min_bytes=100_000)
    assert not waiting.is_answered
    bench.hear(3, log_start_offset=2)
    assert code(waiting) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert waiting.fetched.log_start_offset == 2


def test_a_log_that_fails_ends_the_wait_of_a_consumer() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.partition.log.condemn("a scrub has found a wrong checksum")
    bench.node.end_turn()
    assert code(waiting) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_follower_that_is_removed_ends_the_wait_of_a_consumer() -> None:
    bench = following(b"a")
    waiting = bench.consume(1, max_wait_ms=WAIT_MS)
    bench.node.table.delete("orders", 0)
    bench.node.end_turn()
    assert code(waiting) is ErrorCode.UNKNOWN_TOPIC_ID, "this node's metadata does not have it"


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
