"""The trouble that a client reports while it retries."""

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

SECONDS = 60.0


def test_the_trouble_of_a_consumer_and_a_producer_lasts_as_long_as_the_fault() -> None:
    with (
        Cluster() as cluster,
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        producer.send("orders", b"first", partition=0).result(SECONDS)
        consumer.assign([TopicPartition("orders", 0)])
        assert [record.value for record in consumer.poll(SECONDS)] == [b"first"]
        assert producer.trouble is None
        assert consumer.trouble is None

        cluster.kill()
        second = producer.send("orders", b"second", partition=0)
        wait_until(lambda: producer.trouble is not None)
        wait_until(lambda: consumer.poll(0.05) == [] and consumer.trouble is not None)
        for trouble in (producer.trouble, consumer.trouble):
            assert isinstance(trouble, KafkaError)
            assert trouble.code is ErrorCode.NETWORK_EXCEPTION
            assert cluster.bootstrap_servers in trouble.detail

        cluster.restart()
        second.result(SECONDS)
        assert [record.value for record in consumer.poll(SECONDS)] == [b"second"]
        assert producer.trouble is None
        assert consumer.trouble is None


def test_a_topic_that_is_gone_is_no_trouble_when_its_records_have_failed() -> None:
    with (
        Cluster(config={"auto.create.topics.enable": "false"}) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        admin.create_topics({"gone": 1})
        producer.send("gone", b"v").result(SECONDS)
        admin.delete_topics(["gone"])
        producer._client.get()._accumulator.delivery_timeout_ms = 1_000
        assert producer.send("gone", b"v").exception(SECONDS) is not None
        wait_until(lambda: producer.trouble is None)


def test_a_member_of_a_group_names_a_coordinator_that_is_gone() -> None:
    with Cluster() as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("orders", b"first").result(SECONDS)
        consumer = Consumer(
            cluster.bootstrap_servers,
            group="g",
            topics=["orders"],
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
        )
        with consumer:
            assert consumer.poll(SECONDS)
            cluster.kill()
            wait_until(lambda: consumer.poll(0.05) == [] and consumer.trouble is not None)
            cluster.restart()
            wait_until(lambda: consumer.poll(0.05) == [] and consumer.trouble is None)
