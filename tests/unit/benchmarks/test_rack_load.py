"""Bytes by broker are read from librdkafka's statistics."""

import json

from benchmarks.loads.racks import consume, received_bytes
from tailrace.client.blocking import Admin, Producer
from tailrace.testing import Cluster


def test_connections_to_one_broker_count_together_and_unknown_ones_apart() -> None:
    brokers = {
        "127.0.0.1:1/1": {"nodeid": 1, "rxbytes": 100},
        "127.0.0.1:2/2": {"nodeid": 2, "rxbytes": 7},
        "127.0.0.1:1/bootstrap": {"nodeid": -1, "rxbytes": 20},
        "127.0.0.1:2/bootstrap": {"nodeid": -1, "rxbytes": 3},
    }
    assert received_bytes(json.dumps({"brokers": brokers})) == {1: 100, 2: 7, -1: 23}


def test_a_consumer_has_received_at_least_the_records(tailrace_cluster: Cluster) -> None:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({"rack-load": 2})
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(100):
            producer.send("rack-load", bytes(1_000), partition=number % 2)
    received = consume(tailrace_cluster.bootstrap_servers, "rack-load", 2, 100, "")
    assert sum(size for node, size in received.items() if node > 0) >= 100 * 1_000
