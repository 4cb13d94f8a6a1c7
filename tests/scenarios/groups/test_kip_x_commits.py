"""KIP-X, individual commit: progress by offsets and key hashes. With clients and real nodes.

Single nodes without sockets: tests/unit/server/groups/test_range_commits_of_node.py.
"""

from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import HASH_SPACE, KeyRange, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

ORDERS = TopicPartition("orders", 0)
RECORDS = 1_000
KEYS = [None if number % 9 == 0 else b"key-%d" % (number % 200) for number in range(RECORDS)]
HALF = HASH_SPACE // 2
LOW = KeyRange(0, HALF - 1)
HIGH = KeyRange(HALF, HASH_SPACE - 1)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes, with a partition of records that has a replica on each node."""
    with Cluster(brokers=3, config={"offsets.max.ranges.per.partition": "8"}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=ORDERS.topic, partitions=1, replication_factor=3)])
        with Producer(cluster.bootstrap_servers, acks=-1, linger_ms=5) as producer:
            for number, key in enumerate(KEYS):
                producer.send(ORDERS.topic, b"value-%d" % number, key=key, partition=0)
            producer.flush()
        yield cluster


def reader_of(cluster: Cluster, *ranges: KeyRange) -> Consumer:
    consumer = Consumer(
        cluster.bootstrap_servers, group="workers", auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign({ORDERS: list(ranges)})
    return consumer


def rectangle(first_offset: int, last_offset: int, hashes: KeyRange) -> Rectangle:
    return Rectangle(first_offset, last_offset, hashes.first, hashes.last)


def test_two_readers_keep_their_progress_apart_and_the_group_has_one_offset(cluster: Cluster) -> None:
    """'Stable offset': 'everything up to it is committed'; 'the commit carries a list of offset ranges'."""
    with reader_of(cluster, LOW) as low, reader_of(cluster, HIGH) as high:
        assert low.takes_ranges()
        assert low.committed(ORDERS) is None
        assert low.commit(ranges={ORDERS: [rectangle(0, 599, LOW)]})[ORDERS].used == 1
        budget = high.commit(ranges={ORDERS: [rectangle(0, 99, HIGH)]})[ORDERS]
        assert budget == (1, 8)
        progress = high.committed(ORDERS)
        assert progress is not None
        assert (progress.stable_offset, progress.ranges) == (100, (rectangle(100, 599, LOW),))
        assert (progress.frontier([LOW]), progress.frontier([HIGH]), progress.frontier()) == (600, 100, 100)
        assert progress.is_committed(599, 5)
        assert not progress.is_committed(599, HALF)
        assert high.committed([ORDERS])[ORDERS].offset == 100, "and clients that know no ranges see that one"
        assert low.commit(ranges={}) == {}


def test_a_reader_starts_at_its_frontier_and_skips_what_is_committed(cluster: Cluster) -> None:
    """'poll() drops records already committed': after a restart only what no commit covers comes again; through the
    end of the leader."""
    with reader_of(cluster, LOW) as low:
        low.commit(ranges={ORDERS: [rectangle(0, 399, LOW), rectangle(500, 549, LOW)]})
    with Admin(cluster.bootstrap_servers) as admin:
        (topic,) = admin.describe_topics([ORDERS.topic])
    cluster.kill(topic.partitions[0].leader)
    with reader_of(cluster, LOW, HIGH) as both:
        progress = both.committed(ORDERS)
        assert progress is not None
        assert progress.ranges == (rectangle(0, 399, LOW), rectangle(500, 549, LOW))
        both.seek(ORDERS, progress.frontier([LOW, HIGH]))
        seen: list[int] = []
        while both.position(ORDERS) != RECORDS:
            seen += [
                record.offset
                for record in both.poll(0.1)
                if not progress.is_committed(record.offset, hash_of(record.key, record.offset))
            ]
    assert seen == [
        offset
        for offset, key in enumerate(KEYS)
        if hash_of(key, offset) >= HALF or not (offset < 400 or 500 <= offset < 550)
    ]


def test_a_reset_fences_commits_from_before_it(cluster: Cluster) -> None:
    """A late commit would have the repetition skip what it is to do again."""
    with reader_of(cluster, LOW) as low, reader_of(cluster) as tool:
        low.commit(ranges={ORDERS: [rectangle(0, 99, LOW)]})
        assert low.committed(ORDERS) is not None
        tool.commit({ORDERS: 0})
        with pytest.raises(KafkaError) as fenced:
            low.commit(ranges={ORDERS: [rectangle(100, 199, LOW)]})
        assert fenced.value.code is ErrorCode.FENCED_STATE_EPOCH
        progress = low.committed(ORDERS)
        assert progress is not None
        assert (progress.stable_offset, progress.ranges, progress.state_epoch) == (0, (), 1)
        low.commit(ranges={ORDERS: [rectangle(0, 9, LOW)]})


def test_a_client_with_too_many_committed_ranges_is_refused_with_the_oldest_gap(cluster: Cluster) -> None:
    """'At 100 % error 12 names group, partition, oldest gap; nothing is ever dropped.'"""
    with reader_of(cluster, LOW) as low:
        holes = [rectangle(10 * number + 5, 10 * number + 6, LOW) for number in range(8)]
        assert low.commit(ranges={ORDERS: holes})[ORDERS] == (8, 8)
        with pytest.raises(KafkaError) as refused:
            low.commit(ranges={ORDERS: [rectangle(200, 201, LOW)]})
        assert refused.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE
        for named in ("'workers'", "orders-0", "offset 0", "0-4294967295"):
            assert named in refused.value.detail
        progress = low.committed(ORDERS)
        assert progress is not None
        assert list(progress.ranges) == holes


def test_ranges_behind_the_end_that_the_leader_confirms_are_refused(cluster: Cluster) -> None:
    with reader_of(cluster) as reader:
        with pytest.raises(KafkaError) as refused:
            reader.commit(ranges={ORDERS: [Rectangle(0, RECORDS)]})
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert reader.committed(ORDERS) is None
        reader.commit(ranges={ORDERS: [Rectangle(0, RECORDS - 1)]})
        assert reader.committed([ORDERS])[ORDERS].offset == RECORDS


def test_offsets_and_ranges_are_committed_one_at_a_time(cluster: Cluster) -> None:
    with reader_of(cluster) as reader, pytest.raises(KafkaError, match="not both"):
        reader.commit({ORDERS: 1}, ranges={ORDERS: [Rectangle(0, 1)]})


def test_a_server_that_takes_no_ranges_gets_none() -> None:
    """'All the commit request with hash range configured shall fail' before the server is upgraded: here before it is
    sent, since it would store the offset -1."""
    with Cluster(brokers=1, config={"group.key.ranges.enable": "false"}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=ORDERS.topic, partitions=1, replication_factor=1)])
        with reader_of(cluster) as reader:
            assert not reader.takes_ranges()
            with pytest.raises(KafkaError) as refused:
                reader.commit(ranges={ORDERS: [Rectangle(0, 1)]})
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
            assert reader.committed([ORDERS]) == {}
