"""Foreign administrators' clients against a node: what they ask for happens, and they read the answers."""

from collections.abc import Iterator
from uuid import uuid4

import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    OffsetSpec,
)

from tailrace.client.admin import BROKER, TOPIC
from tailrace.client.blocking import Admin, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

pytestmark = pytest.mark.interop

DEADLINE_S = 30


@pytest.fixture
def ours(tailrace_cluster: Cluster) -> Iterator[Admin]:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def confluent(tailrace_cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": tailrace_cluster.bootstrap_servers})


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


def test_confluent_adds_partitions(confluent: AdminClient, ours: Admin, topic: str) -> None:
    confluent.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    assert partition_count(ours, topic) == 3
    confluent.create_partitions([NewPartitions(topic, 4, [[1]])])[topic].result(DEADLINE_S)
    assert partition_count(ours, topic) == 4
    confluent.create_partitions([NewPartitions(topic, 9)], validate_only=True)[topic].result(DEADLINE_S)
    assert partition_count(ours, topic) == 4
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        confluent.create_partitions([NewPartitions(topic, 4)])[topic].result(DEADLINE_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS


def test_confluent_changes_settings_one_by_one(confluent: AdminClient, ours: Admin, topic: str) -> None:
    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        confluent.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    change("retention.ms", "5000", AlterConfigOpType.SET)
    change("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert own_settings(ours, topic) == {"retention.ms": "5000", "cleanup.policy": "delete,compact"}
    change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    change("retention.ms", None, AlterConfigOpType.DELETE)
    assert own_settings(ours, topic) == {"cleanup.policy": "compact"}
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        change("retention.ms", "soon", AlterConfigOpType.SET)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
def test_confluent_reads_settings_changes_one_and_writes_all(confluent: AdminClient, ours: Admin, topic: str) -> None:
    ours.alter_configs(TOPIC, topic, {"segment.ms": "9000"})
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    described = confluent.describe_configs([asked])[asked].result(DEADLINE_S)
    assert described["segment.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    own = {
        entry.name: entry.value
        for entry in described.values()
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
    changed = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={**own, "retention.ms": "5000"})
    confluent.alter_configs([changed])[changed].result(DEADLINE_S)
    assert own_settings(ours, topic) == {"segment.ms": "9000", "retention.ms": "5000"}


def test_confluent_changes_what_holds_for_all_brokers(confluent: AdminClient, ours: Admin) -> None:
    def change(value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.roll.jitter.ms", value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        confluent.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    change("7", AlterConfigOpType.SET)
    assert own_settings(ours, "1", BROKER, source=2) == {"log.roll.jitter.ms": "7"}
    change(None, AlterConfigOpType.DELETE)
    assert own_settings(ours, "1", BROKER, source=2) == {}


def test_confluent_deletes_records(confluent: AdminClient, ours: Admin, filled: str) -> None:
    def delete(offset: int) -> int:
        wanted = confluent_kafka.TopicPartition(filled, 0, offset)
        (future,) = confluent.delete_records([wanted]).values()
        low_watermark: int = future.result(DEADLINE_S).low_watermark
        return low_watermark

    def earliest() -> int:
        asked = confluent_kafka.TopicPartition(filled, 0)
        offset: int = confluent.list_offsets({asked: OffsetSpec.earliest()})[asked].result(DEADLINE_S).offset
        return offset

    assert (delete(4), earliest()) == (4, 4)
    assert (delete(confluent_kafka.OFFSET_END), earliest()) == (10, 10)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        delete(11)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE


def test_kafka_python_adds_partitions(kafka_python: kafka.KafkaAdminClient, ours: Admin, topic: str) -> None:
    kafka_python.create_partitions({topic: kafka.admin.NewPartitions(3)})
    assert partition_count(ours, topic) == 3
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        kafka_python.create_partitions({topic: kafka.admin.NewPartitions(2)})


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_changes_one_setting_and_keeps_the_others(
    kafka_python: kafka.KafkaAdminClient, ours: Admin, topic: str, incremental: bool
) -> None:
    """Without IncrementalAlterConfigs it reads the settings first and writes all of them."""
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


def test_kafka_python_sees_who_writes(
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
