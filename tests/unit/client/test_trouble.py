"""The trouble that a client reports while it retries."""

import asyncio
import re
import socket

import pytest

from tailrace import aio
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


def test_a_wait_for_a_record_that_runs_out_of_time_names_the_reason() -> None:
    servers = "127.0.0.1:1"
    with Producer(servers, bootstrap_timeout_ms=60_000, buffer_memory=100, max_block_ms=0) as producer:
        sent = producer.send("orders", b"v" * 80)
        wait_until(lambda: producer.trouble is not None)
        reason = f"bootstrap.servers {servers}: cannot connect to {servers}: Connection refused"
        for wait in (sent.get, sent.result, sent.exception):
            with pytest.raises(TimeoutError) as late:
                wait(timeout=0)
            assert str(late.value).startswith(f"the record for topic 'orders' is not written after 0 s; {reason}")
            assert "until delivery.timeout.ms 120000 at most: wait longer, or set that time" in str(late.value)
        with pytest.raises(KafkaError) as unflushed:
            producer.flush(timeout=0)
        assert reason in unflushed.value.detail
        with pytest.raises(KafkaError) as full:
            producer.send("orders", b"v" * 80)
        assert full.value.detail.startswith(f"buffer.memory 100 stayed full for max.block.ms 0; {reason}")
        with pytest.raises(KafkaError, match="closed before the record was written"):
            producer.close(timeout=0)
        assert reason in str(sent.exception())


async def test_a_wait_for_space_of_an_asyncio_producer_names_the_reason() -> None:
    servers = "127.0.0.1:1"
    async with aio.Producer(servers, bootstrap_timeout_ms=60_000, buffer_memory=100, max_block_ms=100) as producer:
        sent = await producer.send("orders", b"v" * 80)
        await asyncio.to_thread(wait_until, lambda: producer.trouble is not None)
        with pytest.raises(
            KafkaError, match=r"stayed full for max.block.ms 100; bootstrap.servers 127.0.0.1:1: cannot"
        ):
            await producer.send("orders", b"v" * 80)
        with pytest.raises(KafkaError, match="1 record was not written"):
            await producer.close(timeout_ms=0)
        with pytest.raises(KafkaError, match="closed before the record was written; bootstrap.servers"):
            await sent


def test_a_server_that_does_not_answer_is_named_by_calls_that_run_out_of_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        reason = f"; bootstrap.servers {servers}: no broker has answered yet"
        producer = Producer(servers, transactional_id="t", max_block_ms=1)
        with producer, pytest.raises(KafkaError, match=re.escape(reason)):
            producer.init_transactions()
        with Admin(servers) as admin, pytest.raises(KafkaError, match=re.escape(reason)):
            admin.commit_offsets("g", {("t", 0): 1}, timeout_ms=1)
