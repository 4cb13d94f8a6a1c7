"""Foreign administrators' clients against a node: what they ask for happens, and they read the answers."""

from collections.abc import Iterator
from uuid import uuid4

import kafka
import kafka.admin
import kafka.errors
import pytest

from interop.librdkafka import DEADLINE_S, ConfluentAdmin, librdkafka
from tailrace.client.admin.configs import BROKER, TOPIC
from tailrace.client.blocking import Admin, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

pytestmark = pytest.mark.interop

DYNAMIC_TOPIC = 1
"""The source of a setting that was made for the topic itself."""


@pytest.fixture
def ours(tailrace_cluster: Cluster) -> Iterator[Admin]:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def confluent(tailrace_cluster: Cluster) -> ConfluentAdmin:
    admin: ConfluentAdmin = librdkafka().ConfluentAdmin(tailrace_cluster.bootstrap_servers)
    return admin


@pytest.fixture
def kafka_python(tailrace_cluster: Cluster) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=tailrace_cluster.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def topic(ours: Admin) -> str:
    """A topic of one partition."""
    name = f"admin-{uuid4()}"
    ours.create_topics({name: 1})
    return name


@pytest.fixture
def filled(tailrace_cluster: Cluster, topic: str) -> str:
    """The same with ten records."""
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for _ in range(10):
            producer.send(topic, b"value")
        producer.flush()
    return topic


def own_settings(ours: Admin, name: str, kind: int = TOPIC, source: int = 1) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in ours.describe_configs(kind, name) if entry.source == source}


def partition_count(ours: Admin, name: str) -> int:
    return len(ours.describe_topics([name])[0].partitions)


def test_confluent_adds_partitions(confluent: ConfluentAdmin, ours: Admin, topic: str) -> None:
    assert confluent.add_partitions(topic, 3) is None
    assert partition_count(ours, topic) == 3
    assert confluent.add_partitions(topic, 4, [[1]]) is None
    assert partition_count(ours, topic) == 4
    assert confluent.add_partitions(topic, 9, validate_only=True) is None
    assert partition_count(ours, topic) == 4
    assert confluent.add_partitions(topic, 4) == "INVALID_PARTITIONS"


def test_confluent_changes_settings_one_by_one(confluent: ConfluentAdmin, ours: Admin, topic: str) -> None:
    assert confluent.change_setting("TOPIC", topic, "SET", "retention.ms", "5000") is None
    assert confluent.change_setting("TOPIC", topic, "APPEND", "cleanup.policy", "compact") is None
    assert own_settings(ours, topic) == {"retention.ms": "5000", "cleanup.policy": "delete,compact"}
    assert confluent.change_setting("TOPIC", topic, "SUBTRACT", "cleanup.policy", "delete") is None
    assert confluent.change_setting("TOPIC", topic, "DELETE", "retention.ms", None) is None
    assert own_settings(ours, topic) == {"cleanup.policy": "compact"}
    assert confluent.change_setting("TOPIC", topic, "SET", "retention.ms", "soon") == "INVALID_CONFIG"


def test_confluent_reads_settings_changes_one_and_writes_all(
    confluent: ConfluentAdmin, ours: Admin, topic: str
) -> None:
    ours.alter_configs(TOPIC, topic, {"segment.ms": "9000"})
    own = {name: value for name, (value, source) in confluent.settings(topic).items() if source == DYNAMIC_TOPIC}
    assert own == {"segment.ms": "9000"}
    assert confluent.write_settings(topic, {**own, "retention.ms": "5000"}) is None
    assert own_settings(ours, topic) == {"segment.ms": "9000", "retention.ms": "5000"}


def test_confluent_changes_what_holds_for_all_brokers(confluent: ConfluentAdmin, ours: Admin) -> None:
    assert confluent.change_setting("BROKER", "1", "SET", "log.roll.jitter.ms", "7") is None
    assert own_settings(ours, "1", BROKER, source=2) == {"log.roll.jitter.ms": "7"}
    assert confluent.change_setting("BROKER", "1", "DELETE", "log.roll.jitter.ms", None) is None
    assert own_settings(ours, "1", BROKER, source=2) == {}


def test_confluent_deletes_records(confluent: ConfluentAdmin, filled: str) -> None:
    assert (confluent.delete_records(filled, 4), confluent.earliest(filled)) == (4, 4)
    to_the_end = -1
    assert (confluent.delete_records(filled, to_the_end), confluent.earliest(filled)) == (10, 10)
    assert confluent.delete_records(filled, 11) == "OFFSET_OUT_OF_RANGE"


def test_kafka_python_adds_partitions(kafka_python: kafka.KafkaAdminClient, ours: Admin, topic: str) -> None:
    kafka_python.create_partitions({topic: kafka.admin.NewPartitions(3)})
    assert partition_count(ours, topic) == 3
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        kafka_python.create_partitions({topic: kafka.admin.NewPartitions(2)})


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_changes_one_setting_and_keeps_the_others(
    kafka_python: kafka.KafkaAdminClient, ours: Admin, topic: str, incremental: bool
) -> None:
    """Without IncrementalAlterConfigs the client reads the settings first and writes all settings."""
    ours.alter_configs(TOPIC, topic, {"segment.ms": "9000"})
    asked = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
    assert "segment.ms" in str(kafka_python.describe_configs([asked]))
    changed = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, configs={"retention.ms": "5000"})
    kafka_python.alter_configs([changed], incremental=incremental)
    assert own_settings(ours, topic) == {"segment.ms": "9000", "retention.ms": "5000"}


def test_kafka_python_deletes_records(kafka_python: kafka.KafkaAdminClient, ours: Admin, filled: str) -> None:
    kafka_python.delete_records({kafka.TopicPartition(filled, 0): 6})
    assert ours.list_offsets({TopicPartition(filled, 0): -2})[TopicPartition(filled, 0)].offset == 6


def test_kafka_python_sees_how_large_a_partition_is(
    tailrace_cluster: Cluster, kafka_python: kafka.KafkaAdminClient, ours: Admin, filled: str
) -> None:
    ((directory,),) = ours.describe_log_dirs().values()
    assert directory.path == str(tailrace_cluster.data_dir())
    assert directory.total_bytes >= directory.usable_bytes > 0
    size = directory.partitions[TopicPartition(filled, 0)].size_bytes
    assert size > 0
    told = str(kafka_python.describe_log_dirs())
    assert filled in told
    assert str(size) in told


def test_our_client_does_all_of_it(ours: Admin, filled: str) -> None:
    partition = TopicPartition(filled, 0)
    assert ours.delete_records({partition: 3}) == {partition: 3}
    assert ours.delete_records({partition: -1}) == {partition: 10}
    ours.create_partitions({filled: 2})
    assert partition_count(ours, filled) == 2
    ours.alter_configs(TOPIC, filled, {"retention.ms": "5"}, validate_only=True)
    assert own_settings(ours, filled) == {}


def test_kafka_python_sees_the_producers(
    tailrace_cluster: Cluster, kafka_python: kafka.KafkaAdminClient, topic: str
) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=tailrace_cluster.bootstrap_servers, enable_idempotence=True)
    producer.send(topic, b"value").get(timeout=DEADLINE_S)
    producer.close()
    partition = kafka.TopicPartition(topic, 0)
    (state,) = kafka_python.describe_producers([partition])[partition].active_producers
    assert (state.producer_epoch, state.last_sequence) == (0, 0)


def test_kafka_python_describes_partitions_page_by_page(
    kafka_python: kafka.KafkaAdminClient, ours: Admin, topic: str
) -> None:
    ours.create_partitions({topic: 3})
    page = kafka_python.describe_topic_partitions([topic], response_partition_limit=2)
    assert topic in str(page)
    assert "next_cursor" in str(page)


def test_kafka_python_has_a_group_forget_a_topic(
    kafka_python: kafka.KafkaAdminClient, ours: Admin, filled: str
) -> None:
    group, partition = f"group-of-{filled}", TopicPartition(filled, 0)
    ours.commit_offsets(group, {partition: 4})
    kafka_python.delete_group_offsets(group, [kafka.TopicPartition(filled, 0)])
    assert ours.group_offsets(group) == {}
