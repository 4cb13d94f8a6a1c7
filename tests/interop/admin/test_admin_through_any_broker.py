"""Foreign administrators' clients at a broker that is not the active controller, while the controller is killed."""

from collections.abc import Iterator
from uuid import uuid4

import kafka
import kafka.admin
import pytest

from interop.librdkafka import ConfluentAdmin, librdkafka
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

DEATHS = 3
PATIENT = {"broker.session.timeout.ms": "9000"}
"""Topics of three replicas need all three brokers, however busy the machine is."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=PATIENT) as started:
        yield started


@pytest.fixture
def follower(cluster: Cluster) -> str:
    """The address of a broker that is not the active controller."""
    leader_id = cluster.controller_id
    return cluster.address(next(node_id for node_id in cluster.broker_ids if node_id != leader_id))


@pytest.fixture
def confluent(follower: str) -> ConfluentAdmin:
    admin: ConfluentAdmin = librdkafka().ConfluentAdmin(follower)
    return admin


@pytest.fixture
def kafka_python(follower: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=follower)
    yield client
    client.close()


def topics_at(address: str) -> dict[str, int]:
    """The number of partitions of each topic, by one broker's answer."""
    with Admin(address) as admin:
        return {topic.name: len(topic.partitions) for topic in admin.describe_topics()}


def test_librdkafka_creates_changes_and_deletes_topics(cluster: Cluster, confluent: ConfluentAdmin) -> None:
    """The client chooses the broker of each request; a change reaches other brokers a moment after the answer."""

    def is_everywhere(partitions: int | None) -> bool:
        return all(topics_at(cluster.address(broker_id)).get(topic) == partitions for broker_id in cluster.broker_ids)

    topic = f"confluent-{uuid4()}"
    assert confluent.create_topic(topic, 2, 3) is None
    wait_until(lambda: is_everywhere(2), "all know the topic")
    assert confluent.add_partitions(topic, 5) is None
    wait_until(lambda: is_everywhere(5), "all know its partitions")
    assert confluent.write_settings(topic, {"retention.ms": "1234"}) is None
    wait_until(lambda: confluent.settings(topic)["retention.ms"][0] == "1234", "the setting is visible")
    assert confluent.delete_topic(topic) is None
    wait_until(lambda: is_everywhere(None), "all agree")


def test_kafka_python_creates_changes_and_deletes_topics(
    cluster: Cluster, kafka_python: kafka.KafkaAdminClient
) -> None:
    """The next request to the same broker sees the change. The client chooses a broker, and stays with that broker."""
    topic = f"kafka-python-{uuid4()}"
    kafka_python.create_topics([kafka.admin.NewTopic(topic, num_partitions=2, replication_factor=3)])
    asked = cluster.address(kafka_python._controller_id)
    assert topics_at(asked)[topic] == 2
    kafka_python.create_partitions({topic: kafka.admin.NewPartitions(total_count=3)})
    assert topics_at(asked)[topic] == 3
    kafka_python.delete_topics([topic])
    assert topic not in topics_at(asked)


def test_an_error_of_the_controller_comes_back_through_any_broker(confluent: ConfluentAdmin) -> None:
    topic = f"twice-{uuid4()}"
    assert confluent.create_topic(topic, 1, 1) is None
    assert confluent.create_topic(topic, 1, 1) == "TOPIC_ALREADY_EXISTS"
    assert confluent.create_topic(f"many-{uuid4()}", 1, 9) == "INVALID_REPLICATION_FACTOR"


def test_requests_outlive_the_controller(cluster: Cluster) -> None:
    created = []
    for _ in range(DEATHS):
        leader_id = cluster.controller_id
        survivor = cluster.address(next(node_id for node_id in cluster.broker_ids if node_id != leader_id))
        admin: ConfluentAdmin = librdkafka().ConfluentAdmin(survivor)
        topic = f"survivor-{uuid4()}"
        assert admin.create_topic(f"{topic}-before", 1, 2) is None
        cluster.kill(leader_id)
        assert admin.create_topic(topic, 1, 2) is None
        created.append(topic)
        assert admin.delete_topic(f"{topic}-before") is None
        cluster.start(leader_id)

    def is_complete(node_id: int) -> bool:
        there = topics_at(cluster.address(node_id))
        return set(created) <= set(there) and not any(topic.endswith("-before") for topic in there)

    wait_until(lambda: all(map(is_complete, cluster.broker_ids)), "every broker knows what was created and deleted")
