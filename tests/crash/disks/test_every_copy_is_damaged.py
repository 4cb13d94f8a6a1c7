"""Every copy of a partition is damaged: an administrator chooses a copy, and sees its losses."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace.client.blocking import Admin, Consumer, KafkaError, NewTopic, Producer
from tailrace.model.ids import NO_LEADER
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

RECORDS = 20
WITHIN_S = 120
LOG = "orders-0/00000000000000000000.log"


def leader(admin: Admin, topic: str = "orders") -> int:
    (found,) = admin.describe_topics([topic])
    return found.partitions[0].leader


def write(servers: str, count: int, topic: str = "orders", first: int = 0) -> None:
    """Write a batch per record."""
    with Producer(servers) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"value %d" % number).result(WITHIN_S)


def read(servers: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        deadline = time.monotonic() + WITHIN_S
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(1)]
    return values


def flip_bit_of_record(directory: Path, number: int) -> None:
    """In the value of this record, whose batch is its own."""
    file = directory / LOG
    content = bytearray(file.read_bytes())
    content[content.index(b"value %d" % number)] ^= 1
    file.write_bytes(content)


def elect(servers: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "tailrace", "topics", "elect", "orders", "--unclean", *words]
    done = subprocess.run(
        [*command, "--bootstrap-server", servers, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.crash
def test_the_only_copy_is_cut_when_an_administrator_says_so(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(name="orders", partitions=1), NewTopic(name="others", partitions=1)])
            write(servers, RECORDS)
            cluster.kill()
            flip_bit_of_record(cluster.data_dir(), 12)
            content = (cluster.data_dir() / LOG).read_bytes()
            cluster.start()
            write(servers, 1, "others")
            wait_until(lambda: leader(admin) == NO_LEADER, "the damage is reported")
            (row,), output = elect(servers)
            assert (row["Replica"], row["State"], row["Choice"]) == (1, "damaged", "recommended")
            assert (row["GoodEnd"], row["AcknowledgedEnd"], row["Lost"]) == (12, RECORDS, RECORDS - 12)
            assert "nothing was changed; --force elects" in output
            assert leader(admin) == NO_LEADER
            assert (cluster.data_dir() / LOG).read_bytes() == content
            rows, output = elect(servers, "--force")
            assert [row["Election"] for row in rows] == ["elected"]
            assert f"broker 1 is to lead; up to {RECORDS - 12} records are given up" in output
            write(servers, 1, first=100)
            expected = [b"value %d" % number for number in (*range(12), 100)]
            assert read(servers, len(expected)) == expected
            (aside,) = cluster.data_dir().glob("orders-0.*-damaged")
            assert (aside / Path(LOG).name).read_bytes() == content
            cluster.kill()
            cluster.start()
            assert read(servers, len(expected)) == expected, "it leads again by itself"


@pytest.mark.crash
def test_of_three_damaged_copies_the_one_that_has_most_is_recommended(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(name="orders", partitions=1, replication_factor=3)])
            write(servers, RECORDS)
            cluster.kill(1, 2, 3)
            for node, number in ((1, 5), (2, 15), (3, 10)):
                flip_bit_of_record(cluster.data_dir(node), number)
            cluster.start(1, 2, 3)
            found: list[dict[str, Any]] = []

            def all_are_damaged() -> bool:
                try:
                    found[:] = elect(servers)[0]
                except (AssertionError, KafkaError):
                    return False
                return sorted(row["State"] for row in found) == ["damaged"] * 3

            wait_until(all_are_damaged, "three damaged copies")
            ends = {row["Replica"]: (row["GoodEnd"], row["Lost"], row["Choice"]) for row in found}
            assert ends == {1: (5, 15, ""), 2: (15, 5, "recommended"), 3: (10, 10, "")}
            rows, _ = elect(servers, "--force")
            assert [row["Election"] for row in rows] == ["elected"]
            write(servers, 1, first=100)
            expected = [b"value %d" % number for number in (*range(15), 100)]
            assert read(servers, len(expected)) == expected
            wait_until(lambda: leader(admin) == 2, "every broker knows the leader")

            def all_are_in_sync() -> bool:
                (topic,) = admin.describe_topics(["orders"])
                return sorted(topic.partitions[0].in_sync_replicas) == [1, 2, 3]

            wait_until(all_are_in_sync, "the others are fetched anew")
