"""Apache Kafka's tools throttle a move of replicas on our cluster: its bytes keep the rate, and --verify ends it."""

import json
import time
from pathlib import Path

import pytest

from interop.kafka_tools import run
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(300)]

PARTITIONS = 4
RECORD = bytes(10_000)
RECORDS = 60
"""Records of each partition: 2.4 MB in all."""
RATE = 300_000
SMALL_ANSWERS = {"replica.fetch.response.max.bytes": "50000", "replica.fetch.max.bytes": "50000"}
"""An answer goes out whole, however low the rate is: with Kafka's 10 MiB it would be all there is."""
THROTTLES = ("leader.replication.throttled", "follower.replication.throttled")


def throttles_in_force(servers: str) -> set[str]:
    """The settings of throttles that brokers and the topic have: kind of resource and name."""
    shown = ""
    for entity in (("brokers", "1"), ("brokers", "2"), ("topics", "orders")):
        options = ("--describe", "--entity-type", entity[0], "--entity-name", entity[1])
        shown += run("kafka-configs", "--bootstrap-server", servers, *options).out
    return {f"{side}.{what}" for side in THROTTLES for what in ("rate", "replicas") if f"{side}.{what}=" in shown}


def test_a_throttled_move_keeps_the_rate_and_verify_takes_the_throttles_away(tmp_path: Path) -> None:
    moves = tmp_path / "moves.json"
    places = [{"topic": "orders", "partition": number, "replicas": [1, 2]} for number in range(PARTITIONS)]
    moves.write_text(json.dumps({"version": 1, "partitions": places}))
    with Cluster(brokers=2, config=SMALL_ANSWERS) as cluster:
        servers = cluster.bootstrap_servers

        def reassign(action: str, *options: str) -> str:
            file = ("--reassignment-json-file", str(moves))
            return run("kafka-reassign-partitions", "--bootstrap-server", servers, action, *file, *options).out

        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topics([NewTopic(name="orders", assignments={number: [1] for number in range(PARTITIONS)})])
            for _ in range(RECORDS):
                for number in range(PARTITIONS):
                    producer.send("orders", RECORD, partition=number)
            producer.flush()
            began = time.monotonic()
            assert "Successfully started" in reassign("--execute", "--throttle", str(RATE))
            assert throttles_in_force(servers) == {
                f"{side}.{what}" for side in THROTTLES for what in ("rate", "replicas")
            }

            def are_in_sync() -> bool:
                (topic,) = admin.describe_topics(["orders"])
                return all(len(partition.in_sync_replicas) == 2 for partition in topic.partitions)

            wait_until(are_in_sync, "the moved replicas are in sync")
            seconds = time.monotonic() - began
        told = reassign("--verify")
        assert told.count("is completed") == PARTITIONS
        assert throttles_in_force(servers) == set()
    sent = PARTITIONS * RECORDS * len(RECORD)
    assert sent / seconds < 2 * RATE, f"{sent} bytes in {seconds:.1f} s"
    print(f"{sent} bytes in {seconds:.1f} s: {sent / seconds:.0f} a second, throttled to {RATE}")  # noqa: T201
