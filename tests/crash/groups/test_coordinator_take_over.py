"""kill -9 of the coordinator of groups when its log has checkpoints: all commits are there, and served from them."""

import re
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest

from tailrace.client.blocking import Admin
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

GROUP, TOPIC, PARTITIONS = "readers", "orders", 12
OFFSETS_LOG = f"{GROUP_OFFSETS_TOPIC}-0"
METADATA = "m" * 4_000
"""Beside each offset, so that a few hundred commits make a checkpoint due."""
PATIENCE_S = 90.0
REPLICATED = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


def _consumer(bootstrap: str) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, "log_level": 0}
    return confluent_kafka.Consumer(settings)


def _commit(consumer: confluent_kafka.Consumer, offset: int) -> None:
    """This offset of every partition; tried again until it is answered without an error."""
    wanted = [confluent_kafka.TopicPartition(TOPIC, number, offset, METADATA) for number in range(PARTITIONS)]

    def is_committed() -> bool:
        try:
            return all(done.error is None for done in consumer.commit(offsets=wanted, asynchronous=False))
        except confluent_kafka.KafkaException:
            return False

    wait_until(is_committed, f"a commit of {offset}")


def _committed(bootstrap: str) -> set[int]:
    """The offsets of all partitions, as a set of a single offset: there are no others."""
    consumer, found = _consumer(bootstrap), set[int]()
    asked = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]

    def is_answered() -> bool:
        try:
            found.update(answer.offset for answer in consumer.committed(asked, 10))
        except confluent_kafka.KafkaException:
            return False
        return True

    try:
        wait_until(is_answered, "an answer to OffsetFetch")
    finally:
        consumer.close()
    return found


def _checkpoints(cluster: Cluster, node: int) -> list[Path]:
    return list((cluster.data_dir(node) / OFFSETS_LOG).glob("*.checkpoint"))


def _commit_until_all_have_checkpoints(cluster: Cluster, consumer: confluent_kafka.Consumer) -> None:
    for offset in range(1, 121):
        _commit(consumer, offset)
    for node in cluster.broker_ids:
        wait_until(partial(_checkpoints, cluster, node), f"a checkpoint on node {node}")


def _leader(bootstrap: str) -> int:
    with Admin(bootstrap) as admin:
        (topic,) = admin.describe_topics([GROUP_OFFSETS_TOPIC])
        return topic.partitions[0].leader


def _loads(cluster: Cluster, node: int) -> list[int]:
    """The offsets from which the node's coordinator of the group has read its log, oldest first."""
    line = rf"event=coordinator-loaded partition={OFFSETS_LOG} groups=1 from_offset=(\d+)"
    return [int(offset) for offset in re.findall(line, cluster.log_text(node))]


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_a_follower_takes_over_from_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path, config=REPLICATED) as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap) as admin:
            admin.create_topics({TOPIC: PARTITIONS})
        consumer = _consumer(bootstrap)
        _commit_until_all_have_checkpoints(cluster, consumer)
        _commit(consumer, 500)
        first = _leader(bootstrap)
        cluster.kill(first)
        assert _committed(bootstrap) == {500}
        second = _leader(bootstrap)
        assert second != first
        assert _loads(cluster, second)[-1] > 0, cluster.log_text(second)
        _commit(consumer, 501)
        consumer.close()
        cluster.kill(*(node for node in cluster.broker_ids if node != first))
        cluster.start()
        assert _committed(bootstrap) == {501}


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_killed_node_takes_over_from_its_checkpoint_unless_that_is_damaged(tmp_path: Path, is_damaged: bool) -> None:
    settings = {"offsets.topic.num.partitions": "1"}
    with Cluster(directory=tmp_path, config=settings) as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap) as admin:
            admin.create_topics({TOPIC: PARTITIONS})
        consumer = _consumer(bootstrap)
        _commit_until_all_have_checkpoints(cluster, consumer)
        _commit(consumer, 500)
        consumer.close()
        cluster.kill()
        if is_damaged:
            (path,) = _checkpoints(cluster, 1)
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.write_bytes(content)
        cluster.start()
        assert _committed(bootstrap) == {500}
        assert (_loads(cluster, 1)[-1] == 0) == is_damaged
        assert ("event=checkpoint-dropped" in cluster.log_text()) == is_damaged
