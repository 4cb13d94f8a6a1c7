"""kill -9 in the middle of transactions: a transaction is there whole or not at all, and none stays open.

A transaction whose end was decided ends like that, although the node dies before the markers are written.
"""

import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

from crash.transactions.committed_reads import committed_values, is_nothing_open
from crash.transactions.writer import REPLICATED, TOPICS, TransactionWriter
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

KILLS = int(os.environ.get("KILLS", "5"))


def _numbers(bootstrap: str, topic: str) -> list[int]:
    return [int(value) for value in committed_values(bootstrap, TopicPartition(topic, 0))]


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_transaction_is_there_whole_or_not_at_all(tmp_path: Path, chance: random.Random, brokers: int) -> None:
    """With three brokers one dies at a time, and comes back: its transactions end under another coordinator."""
    with Cluster(brokers=brokers, directory=tmp_path, config=REPLICATED if brokers > 1 else {}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(dict.fromkeys(TOPICS, 1))
        writer = TransactionWriter(cluster.bootstrap_servers)
        writer.start()
        for _ in range(KILLS):
            wait_until(
                partial(writer.has_ended_or_reached, len(writer.committed) + 5), "five transactions are committed"
            )
            time.sleep(chance.uniform(0, 0.1))
            victim = chance.choice(cluster.broker_ids)
            cluster.kill(victim)
            cluster.start(victim)
        writer.stop()
        assert not writer.faults, writer.faults
        writer.new_producer()  # the next instance aborts what the last one left open
        partitions = [TopicPartition(topic, 0) for topic in TOPICS]
        wait_until(partial(is_nothing_open, cluster.bootstrap_servers, partitions), "no transaction is open")
        left, right = (_numbers(cluster.bootstrap_servers, topic) for topic in TOPICS)
    assert left == right, "half a transaction"
    assert left == sorted(set(left)), "out of order or twice"
    lost = set(writer.committed) - set(left)
    assert not lost, f"acknowledged and lost: {sorted(lost)}"
    assert not writer.aborted & set(left), "aborted and read"
    assert len(writer.committed) >= 5 * KILLS
