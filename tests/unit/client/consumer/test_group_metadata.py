"""The identity of a consumer's commits, for a producer that makes them in a transaction."""

import pytest

from tailrace.client.blocking import Consumer
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """A topic with one record."""
    return new_topic(tailrace_cluster, b"v")


def test_a_member_is_named_with_its_generation(tailrace_cluster: Cluster, topic: str) -> None:
    servers, group = tailrace_cluster.bootstrap_servers, f"g-{topic}"
    with Consumer(
        servers, group=group, topics=[topic], auto_offset_reset="earliest", group_instance_id="one"
    ) as consumer:
        with pytest.raises(KafkaError, match="the next poll joins again") as refused:
            consumer.group_metadata()
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID, "as no member it would pass for a client of no group"
        while not consumer.poll(SECONDS):
            pass
        found = consumer.group_metadata()
    assert (found.group_id, found.group_instance_id) == (group, "one")
    assert found.generation_id > 0
    assert found.member_id


def test_chosen_partitions_belong_to_no_member(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, group="g") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.group_metadata() == ConsumerGroupMetadata("g", -1, "", None)
    with Consumer(tailrace_cluster.bootstrap_servers) as alone:
        with pytest.raises(KafkaError) as refused:
            alone.group_metadata()
        assert refused.value.code is ErrorCode.INVALID_GROUP_ID
