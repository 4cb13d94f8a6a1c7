"""KIP-392: the replica that a leader names to a consumer, and the high watermarks of followers by which it chooses."""

import pytest

from scenarios.fetch.follower_reads import WAIT_MS, code, following, values
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from testkit.nodes.replica_reads import LEADER_EPOCH, LeadingBroker


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


def test_the_first_fetch_of_a_follower_is_answered_without_a_wait() -> None:
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


def test_a_waiting_consumer_is_sent_to_its_rack_when_the_follower_can_serve_it() -> None:
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
def test_only_fetch_versions_with_a_rack_get_a_preferred_replica(version: int) -> None:
    """'RackId, versions 11+' and 'PreferredReadReplica, versions 11+'"""
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, "b", version=version) == (2 if version >= 11 else -1)


def test_a_preferred_replica_of_a_partition_ends_the_wait_of_the_fetch_and_others_are_read() -> None:
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


def test_a_follower_names_no_preferred_replica() -> None:
    bench = following(b"a")
    assert bench.consume(0, rack_id="elsewhere").fetched.preferred_read_replica == -1


def test_a_replica_out_of_sync_is_not_preferred() -> None:
    """'Ideally, consumers should fetch only from the ISR'"""
    bench = LeadingBroker(in_sync=(1, 3), settings={"min.insync.replicas": "1"})
    bench.produce(b"a")
    for replica in (2, 3, 2, 3):
        bench.follow(replica, 1, high_watermark=bench.partition.high_watermark)
    assert bench.preferred(0, "c") == 3
    assert bench.preferred(0, "b") == -1


def test_a_replica_that_does_not_know_the_offset_to_be_committed_is_not_preferred() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    bench.produce(b"b", b"c")
    for replica in (2, 3):
        bench.follow(replica, 3, high_watermark=1)
    assert bench.partition.high_watermark == 3
    assert [bench.preferred(offset, "b") for offset in (0, 1, 2, 3)] == [2, 2, -1, -1]
    bench.follow(2, 3, high_watermark=3)
    assert [bench.preferred(offset, "b") for offset in (2, 3)] == [2, 2]


def test_a_follower_before_fetch_v18_has_the_high_watermark_that_its_next_fetch_shows() -> None:
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


def test_a_high_watermark_that_a_followers_session_has_acknowledged_counts() -> None:
    bench = LeadingBroker()
    bench.produce(b"a")
    for replica in (2, 3):
        bench.follow(replica, 1, high_watermark=0)
    assert bench.preferred(1, "b") == -1
    bench.partition.in_sync.acknowledge_high_watermark(BrokerId(2), 1)
    assert bench.preferred(1, "b") == 2


def test_a_replica_whose_log_starts_above_the_offset_is_not_preferred() -> None:
    bench = LeadingBroker()
    end = bench.commit(b"a", b"b", b"c")
    bench.follow(2, end, high_watermark=end, log_start_offset=2)
    assert [bench.preferred(offset, "b") for offset in (0, 1, 2, 3)] == [-1, -1, 2, 2]


def test_an_offset_that_the_leader_has_deleted_is_not_read_from_a_follower_that_still_has_it() -> None:
    bench = LeadingBroker()
    bench.commit(b"a", b"b")
    bench.partition.delete_records(1)
    assert code(bench.consume(0, rack="b")) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_replica_that_leaves_the_isr_is_not_preferred_any_more() -> None:
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
