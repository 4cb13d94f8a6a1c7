"""Topics that are deleted while a node is down: its directories go at its next start, however often it is killed."""

import random
import shutil
import time
from pathlib import Path

import pytest

from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.crash

PARTITIONS = 3
SETTINGS = {"log.segment.delete.delay.ms": "100"}
DELETED, AGAIN, KEPT = "deleted", "made-again", "kept"


def directories(cluster: Cluster, node: int) -> dict[str, str]:
    """The topic of each partition's directory on a node."""
    names = (path.name for path in cluster.data_dir(node).iterdir() if path.is_dir())
    return {name: name.rpartition("-")[0] for name in names if name.startswith((DELETED, AGAIN, KEPT))}


def lines_of(cluster: Cluster, node: int, event: str) -> list[str]:
    return [line for line in cluster.log_text(node).splitlines() if f"event={event} " in line]


def names_of(admin: Admin) -> set[str]:
    return {topic.name for topic in admin.list_topics()}


def fill(admin: Admin, cluster: Cluster, *topics: str, replicas: int) -> None:
    admin.create_topics([NewTopic(name=name, partitions=PARTITIONS, replication_factor=replicas) for name in topics])
    with Producer(cluster.bootstrap_servers) as producer:
        for topic in topics:
            for number in range(PARTITIONS):
                producer.send(topic, b"a record", partition=number)
        producer.flush()


def test_the_directories_of_deleted_topics_go_after_any_number_of_kills(tmp_path: Path) -> None:
    chance = random.Random(7)
    with Cluster(brokers=3, directory=tmp_path, config=SETTINGS) as cluster, Admin(cluster.bootstrap_servers) as admin:
        fill(admin, cluster, DELETED, AGAIN, KEPT, replicas=3)
        assert len(directories(cluster, 3)) == 3 * PARTITIONS
        cluster.kill(3)
        admin.delete_topics([DELETED, AGAIN])
        wait_until(lambda: AGAIN not in names_of(admin), "the deletion")
        admin.create_topics([NewTopic(name=AGAIN, assignments=dict.fromkeys(range(PARTITIONS), (1, 2)))])
        for _ in range(4):
            cluster.start(3, wait=False)
            time.sleep(chance.uniform(0.3, 2))  # the fault is a kill at any moment of a start
            cluster.kill(3)
        cluster.start(3)
        wait_until(lambda: set(directories(cluster, 3).values()) == {KEPT}, "the removal")
        assert len(directories(cluster, 3)) == PARTITIONS
        assert not lines_of(cluster, 3, "directories-unclaimed")
        with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(KEPT, number) for number in range(PARTITIONS)])
            found: list[bytes | None] = []

            def has_all() -> bool:
                found.extend(record.value for record in consumer.poll(1))
                return len(found) >= PARTITIONS

            wait_until(has_all, "the records")
        assert found == [b"a record"] * PARTITIONS


def test_one_line_says_what_was_removed(tmp_path: Path) -> None:
    with Cluster(brokers=2, directory=tmp_path, config=SETTINGS) as cluster, Admin(cluster.bootstrap_servers) as admin:
        fill(admin, cluster, DELETED, KEPT, replicas=2)
        (down,) = {1, 2} - {cluster.controller_id}
        cluster.stop(down)
        admin.delete_topics([DELETED])
        cluster.start(down)
        wait_until(lambda: set(directories(cluster, down).values()) == {KEPT}, "the removal")
        (line,) = lines_of(cluster, down, "deleted-replicas-removed")
        assert f"partitions={PARTITIONS} first=deleted-0,deleted-1,deleted-2: " in line
        cluster.restart(down)
        assert len(lines_of(cluster, down, "deleted-replicas-removed")) == 1


def test_directories_stay_where_the_metadata_was_lost(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path, config=SETTINGS) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            fill(admin, cluster, DELETED, KEPT, replicas=1)
            admin.delete_topics([DELETED])
            wait_until(lambda: set(directories(cluster, 1).values()) == {KEPT}, "the removal")
        cluster.kill()
        shutil.rmtree(cluster.data_dir() / "__cluster_metadata-0")
        cluster.start()
        with Admin(cluster.bootstrap_servers) as admin:
            assert KEPT not in names_of(admin)
        wait_until(lambda: bool(lines_of(cluster, 1, "directories-unclaimed")), "the line")
        cluster.restart()
        assert set(directories(cluster, 1).values()) == {KEPT}
        assert not lines_of(cluster, 1, "deleted-replicas-removed")
