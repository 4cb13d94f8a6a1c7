"""Replicas move between four nodes under acks=all load: no produce fails, and no record is there twice.

The end of a move raises the leader epoch. So a leader that stays has produces waiting for replicas in an epoch that is
over. REASSIGNMENTS in the environment says how often all partitions move; SEED=n chooses the same places again.
"""

import os
import random
from pathlib import Path

import pytest

from crash.replicas.replicated_load import PARTITIONS
from crash.replicas.two_loads import TOPICS, TwoLoads
from tailrace.client.blocking import Admin, TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

ROUNDS = int(os.environ.get("REASSIGNMENTS", "5"))
PLACES = [TopicPartition(topic, number) for topic in TOPICS for number in range(PARTITIONS)]


def epochs(admin: Admin) -> dict[TopicPartition, tuple[int | None, int]]:
    """The leader of each partition, and its epoch."""
    return {
        TopicPartition(topic.name, partition.partition): (partition.leader, partition.leader_epoch)
        for topic in admin.describe_topics(TOPICS)
        for partition in topic.partitions
    }


@pytest.mark.crash
@pytest.mark.in_turn(1)
@pytest.mark.timeout(900)
def test_no_produce_fails_while_replicas_move(tmp_path: Path, chance: random.Random) -> None:
    stayed = 0
    with Cluster(brokers=4, directory=tmp_path / "cluster") as cluster:
        loads = TwoLoads(cluster, tmp_path / "history")
        with loads.running(), Admin(cluster.bootstrap_servers) as admin:
            for _ in range(ROUNDS):
                before = epochs(admin)
                admin.alter_partition_reassignments({place: chance.sample(cluster.broker_ids, 3) for place in PLACES})
                wait_until(lambda: not admin.list_partition_reassignments(), "all replicas have moved")
                after = epochs(admin)
                stayed += sum(
                    after[place][0] == leader and after[place][1] > epoch for place, (leader, epoch) in before.items()
                )
        figures = loads.check()
    assert stayed, "a leader that stays has begun a new epoch"
    print(f"{figures}, {ROUNDS} rounds, {stayed} times a leader stayed in a new epoch")  # noqa: T201
