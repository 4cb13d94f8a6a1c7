"""Many partitions of three replicas are created, lose their leaders and come back; no live broker is fenced.

By default few partitions, and a session that no busy machine outlasts: the verdict is not on time. With MANY_PARTITIONS
in the environment there are that many, product settings, and two busy processes beside the nodes:

    MANY_PARTITIONS=10000 python -m pytest -s tests/crash/replicas/test_many_partitions.py
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.client.blocking import Admin, NewTopic
from tailrace.client.cluster_view import PartitionInfo
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.testing import Cluster

MANY = int(os.environ.get("MANY_PARTITIONS", "0"))
PARTITIONS = MANY or 120
TOPICS = 10
PATIENT = {"broker.session.timeout.ms": "60000", "log.dir.stall.timeout.ms": "60000"}
SETTINGS = {"max.partitions.per.node": "100000", **({} if MANY else PATIENT)}
DEADLINE_S = 900 if MANY else 120


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds_until_none(admin: Admin, lacks: Callable[[PartitionInfo], bool], what: str) -> float:
    """Wait until no partition lacks it; returns the seconds. From outside a cluster can only be asked again."""
    began = time.monotonic()
    while True:
        try:
            missing = sum(lacks(partition) for topic in admin.describe_topics() for partition in topic.partitions)
        except KafkaError:
            missing = -1  # the node that was asked is gone, or has only just come back
        seconds = time.monotonic() - began
        if not missing:
            return seconds
        assert seconds < DEADLINE_S, f"{missing} partitions lack {what}"
        time.sleep(0.2)


def wait_until_in_sync(admin: Admin) -> float:
    """Wait until every replica of every partition is in sync; returns the seconds."""
    return seconds_until_none(admin, lambda partition: len(partition.in_sync_replicas) < 3, "a replica in sync")


def wait_until_led_by_others(admin: Admin, gone: BrokerId) -> float:
    """Wait until no partition is led by this broker, and each has a leader; returns the seconds."""
    return seconds_until_none(admin, lambda partition: partition.leader in (gone, -1), "a leader that is alive")


def fenced(cluster: Cluster) -> list[tuple[int, str]]:
    """The brokers that were fenced, and the reasons, by the logs of all controllers."""
    logs = "\n".join(map(cluster.log_text, cluster.node_ids))
    return [(int(node), why) for node, why in re.findall(r"event=broker-fenced broker=(\d+) reason='([^']*)'", logs)]


@pytest.mark.crash
@pytest.mark.timeout(4 * DEADLINE_S)
def test_many_partitions_are_created_fail_over_and_come_back_and_no_live_broker_is_fenced(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path, config=SETTINGS) as cluster, busy_processes(2 if MANY else 0):
        with Admin(cluster.bootstrap_servers) as admin:
            began = time.monotonic()
            for number in range(TOPICS):
                topic = NewTopic(name=f"many-{number}", partitions=PARTITIONS // TOPICS, replication_factor=3)
                try:
                    admin.create_topics([topic])
                except KafkaError as fault:
                    if fault.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # asked for twice, as in an election
                        raise
            created_s = time.monotonic() - began
            in_sync_s = wait_until_in_sync(admin)
            assert fenced(cluster) == []
            restarted = 1 + cluster.controller_id % 3
            began = time.monotonic()
            cluster.restart(restarted)
            restarted_s = time.monotonic() - began
            whole_s = wait_until_in_sync(admin)
            killed = cluster.controller_id
            cluster.kill(killed)
            moved_s = wait_until_led_by_others(admin, BrokerId(killed))
            cluster.start(killed)
            back_s = wait_until_in_sync(admin)
        others = [(node, why) for node, why in fenced(cluster) if node not in (restarted, killed)]
        assert others == []
        stalled = [node for node in cluster.node_ids if "event=log-directory-stalled" in cluster.log_text(node)]
        assert stalled == []
    print(  # noqa: T201
        f"{PARTITIONS} partitions: created in {created_s:.1f} s, in sync {in_sync_s:.1f} s later; a node restarted in"
        f" {restarted_s:.1f} s, in sync {whole_s:.1f} s later; the controller's node killed, its partitions led by"
        f" others after {moved_s:.1f} s, in sync {back_s:.1f} s after it was back"
    )
