"""A consumer that unsubscribes leaves its group, and may subscribe or assign anew."""

from typing import Any

import pytest

from tailrace.client.blocking import Admin, Consumer, ConsumerRebalanceListener
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0
RECORDS = 6


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Records in one partition."""
    return new_topic(tailrace_cluster, *(b"%d" % number for number in range(RECORDS)))


class Notes(ConsumerRebalanceListener):
    """Notes what comes and leaves."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.lines.append(f"+{len(partitions)}")

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.lines.append(f"-{len(partitions)}")


def read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        values += [record.value or b"" for record in consumer.poll(SECONDS, max_records=count - len(values))]
    return values


@pytest.mark.parametrize(
    "settings",
    [
        {"group_protocol": "consumer"},
        {"group_protocol": "classic"},
        {"group_protocol": "classic", "group_instance_id": "static"},
        {"allow_individual_commit": True},
    ],
    ids=["consumer", "classic", "static", "by key"],
)
def test_a_member_commits_and_leaves_and_may_come_again(
    tailrace_cluster: Cluster, topic: str, settings: dict[str, Any]
) -> None:
    servers, group, notes = tailrace_cluster.bootstrap_servers, f"g-{topic}", Notes()
    with Consumer(servers, group=group, auto_offset_reset="earliest", **settings) as consumer, Admin(servers) as admin:
        consumer.subscribe([topic], listener=notes)
        assert consumer.subscription() == {topic}
        first = read(consumer, 2)
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription()) == (frozenset(), frozenset())
        assert notes.lines[0].startswith("+")
        assert notes.lines[-1].startswith("-")
        with pytest.raises(KafkaError, match="nothing to read: give topics, or call assign"):
            consumer.poll(0)
        if "group_instance_id" not in settings:  # a static member keeps its place for a while
            assert admin.describe_groups([group])[0].members == ()
        consumer.subscribe([topic])
        assert sorted(first + read(consumer, RECORDS - 2)) == [b"%d" % number for number in range(RECORDS)]


def test_a_consumer_that_has_unsubscribed_may_assign_partitions(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, topics=[topic], group=f"g-{topic}") as consumer:
        consumer.poll(SECONDS if consumer.assignment() else 0.1)
        with pytest.raises(KafkaError, match=r"unsubscribe\(\) comes before assign\(\)"):
            consumer.assign([(topic, 0)])
        consumer.unsubscribe()
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), RECORDS - 1)
        assert consumer.subscription() == frozenset()
        assert read(consumer, 1) == [b"%d" % (RECORDS - 1)]
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        consumer.unsubscribe()
    with pytest.raises(KafkaError, match="closed") as closed:
        consumer.unsubscribe()
    assert closed.value.code is ErrorCode.INVALID_REQUEST


def test_a_reader_without_a_group_unsubscribes(tailrace_cluster: Cluster, topic: str) -> None:
    servers = tailrace_cluster.bootstrap_servers
    with Consumer(servers, topics=[topic], auto_offset_reset="earliest", until="end") as consumer:
        assert consumer.subscription() == {topic}
        assert read(consumer, 1) == [b"0"]
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.is_at_end) == (frozenset(), False)
        consumer.subscribe([topic])
        assert [record.value for record in consumer] == [b"%d" % number for number in range(RECORDS)]
