"""A real client's group of KIP-848 as our own tools see it."""

from contextlib import closing
from uuid import uuid4

import pytest

from interop.clients import ForeignClient, absent
from interop.java_client import JavaPatternConsumer
from interop.librdkafka import ConfluentConsumerProtocol, Message
from tailrace.client.admin.group_health import MemberHealth, verdict
from tailrace.client.blocking import Admin, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until


@pytest.mark.interop
@pytest.mark.parametrize("client", [ConfluentConsumerProtocol(), JavaPatternConsumer()], ids=lambda client: client.name)
def test_a_subscription_by_regular_expression_follows_the_topics(
    tailrace_cluster: Cluster, client: ForeignClient
) -> None:
    if why := absent(client):
        pytest.skip(why)
    bootstrap, prefix = tailrace_cluster.bootstrap_servers, f"patterned-{uuid4()}"
    read: list[Message] = []
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics({f"{prefix}-1": 2, f"not-{prefix}": 1})
        for topic in (f"{prefix}-1", f"not-{prefix}"):
            producer.send(topic, value=topic.encode())
        producer.flush()
        with closing(client.join(bootstrap, f"^{prefix}-.*", f"group-{prefix}")) as member:

            def has_read(count: int) -> bool:
                read.extend(member.poll())
                return len(read) == count

            wait_until(lambda: has_read(1), "the topic that is there is read")
            admin.create_topics({f"{prefix}-2": 1})
            producer.send(f"{prefix}-2", value=f"{prefix}-2".encode())
            producer.flush()
            wait_until(lambda: has_read(2), "the topic that comes later is read too")
        assert [message.value for message in read] == [f"{prefix}-1".encode(), f"{prefix}-2".encode()]


@pytest.mark.interop
def test_a_group_is_listed_described_and_judged(tailrace_cluster: Cluster) -> None:
    bootstrap, topic, group = tailrace_cluster.bootstrap_servers, f"judged-{uuid4()}", f"group-{uuid4()}"
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics({topic: 1})
        producer.send(topic, value=b"1")
        producer.flush()
        with closing(ConfluentConsumerProtocol().join(bootstrap, topic, group)) as member:
            wait_until(lambda: len(member.poll()) > 0, "the record is read")
            (described,) = admin.describe_groups([group])
            assert (described.state, described.assignor) == ("Stable", "uniform")
            assert described.members[0].assignment == (TopicPartition(topic, 0),)
            listed = {listing.group: listing.type for listing in admin.list_groups()}
            assert listed[group] == "consumer"
            assert described.details is not None
            assert [event.kind for event in described.details.events][:3] == ["join", "rebalance", "assigned"]
        (left,) = admin.describe_groups([group])
        assert left.state == "Empty"
        health = admin.partition_health({TopicPartition(topic, 0): 1}, described.details, timeout_ms=60_000)
        judged = verdict(described.details.members[0], list(health.values()), described.details.now_ms)
        assert judged is MemberHealth.IDLE
        admin.delete_groups([group])
