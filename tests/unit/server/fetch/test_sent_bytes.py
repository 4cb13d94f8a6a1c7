from tailrace.server.fetch.params import SentBytes
from testkit.nodes.replica_reads import FollowingBroker, LeadingBroker


def counts(sent: SentBytes) -> tuple[int, int, int]:
    return sent.to_followers, sent.to_consumers_by_leader, sent.to_consumers_by_follower


def test_a_leader_counts_what_followers_and_consumers_get() -> None:
    bench = LeadingBroker(selector_class="LeaderSelector")
    bench.commit(b"a")
    size = bench.partition.log.size_bytes
    assert counts(bench.node.broker.sent) == (0, 0, 0)
    bench.follow(2, 0, high_watermark=1)
    bench.consume(0)
    bench.consume(0, rack="b")
    assert counts(bench.node.broker.sent) == (size, 2 * size, 0)
    assert bench.partition.traffic.bytes_out == 3 * size


def test_a_follower_counts_what_consumers_get() -> None:
    bench = FollowingBroker()
    bench.receive(b"a")
    bench.hear(1)
    bench.consume(0)
    assert counts(bench.node.broker.sent) == (0, 0, bench.partition.log.size_bytes)


def test_a_redirection_sends_nothing() -> None:
    bench = LeadingBroker()
    bench.commit(b"a")
    assert bench.preferred(0, "b") == 2
    assert counts(bench.node.broker.sent) == (0, 0, 0)
