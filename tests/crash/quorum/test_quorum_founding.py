"""The founding of a metadata quorum, and its members, with real processes (decision 0018)."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.topics import make_topic, wait_until_known
from tailrace.client.admin.quorum import QuorumDescription
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.testing import Cluster

PATIENCE_S = 60.0


def described(cluster: Cluster, node: int = 1) -> QuorumDescription:
    with Admin(cluster.address(node)) as admin:
        return admin.describe_quorum()


def until(holds: Callable[[], bool]) -> None:
    """Return when it holds. A request without an answer, as in an election, is sent again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        why: KafkaError | None = None
        try:
            if holds():
                return
        except KafkaError as fault:
            why = fault
        assert time.monotonic() < deadline, f"it did not come to that in time: {why}"
        time.sleep(0.05)


def serving_brokers(cluster: Cluster, node: int) -> list[int]:
    """As this node has them: those that are not fenced."""
    with Admin(cluster.address(node)) as admin:
        return sorted(int(broker.node_id) for broker in admin.describe_cluster().brokers)


def role_of(cluster: Cluster, node: int) -> str:
    """The last role that the node has logged."""
    return str(re.findall(r"event=quorum-role .*role=(\S+)", cluster.log_text(node))[-1])


def directory_ids(description: QuorumDescription) -> dict[int, bytes]:
    return {voter.replica_id: bytes(voter.directory_id) for voter in description.voters}


def text_after(path: Path, key: str) -> str:
    lines = path.read_text().splitlines()
    return next(line.removeprefix(key + "=") for line in lines if line.startswith(key + "="))


def test_three_fresh_directories_become_one_quorum_in_any_order(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        description = described(cluster, 3)
        assert [voter.replica_id for voter in description.voters] == [1, 2, 3]
        assert len(set(directory_ids(description).values())) == 3
        assert not any(directory == bytes(16) for directory in directory_ids(description).values())
        metas = [cluster.data_dir(node) / "meta.properties" for node in cluster.node_ids]
        assert len({text_after(meta, "cluster.id") for meta in metas}) == 1
        until(lambda: serving_brokers(cluster, 2) == [1, 2, 3])


def test_founders_wait_for_each_other_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    cluster = Cluster(brokers=3, directory=tmp_path)
    try:
        cluster.prepare()
        cluster.start(2, 3, wait=False)
        until(lambda: all("quorum-not-found" in cluster.log_text(node) for node in (2, 3)))
        assert "waiting-for=1@127.0.0.1" in cluster.log_text(2)
        cluster.stop(2, 3)
        cluster.start(1, 2, wait=False)
        cluster.start()
        assert len(described(cluster).voters) == 3
    finally:
        cluster.close()


def test_a_voter_that_comes_back_with_an_empty_directory_is_named_and_does_not_vote(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        make_topic(cluster.bootstrap_servers, NewTopic(name="orders", partitions=3, replication_factor=3))
        before = directory_ids(described(cluster))
        cluster.kill(2)
        shutil.rmtree(cluster.data_dir(2))
        cluster.start(2)
        assert "event=voter-lost-its-directory node=2" in cluster.log_text(2)
        until(lambda: [observer.replica_id for observer in described(cluster, 2).observers] == [2])
        description = described(cluster, 2)
        assert directory_ids(description) == before
        assert all(bytes(observer.directory_id) != before[2] for observer in description.observers)
        metas = [cluster.data_dir(node) / "meta.properties" for node in cluster.node_ids]
        assert len({text_after(meta, "cluster.id") for meta in metas}) == 1
        # The node has all of the metadata again, and yet is no part of a majority.
        wait_until_known(cluster, [2], {"orders"})
        other, left = (1, 3) if cluster.controller_id == 3 else (3, 1)
        cluster.kill(other)
        killed_at = len(cluster.log_text(left))
        until(lambda: role_of(cluster, left) not in ("leader", "follower"))
        assert "role=leader" not in cluster.log_text(left)[killed_at:]
        assert "role=leader" not in cluster.log_text(2).split("voter-lost-its-directory")[1]
        cluster.start(other)
        until(lambda: described(cluster, other).leader_id in (1, 3))


@pytest.mark.parametrize("wiped", [(1, 2)])
def test_several_wiped_voters_do_not_found_a_second_quorum_while_one_remembers(
    tmp_path: Path, wiped: tuple[int, int]
) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        cluster_id = text_after(cluster.data_dir(3) / "meta.properties", "cluster.id")
        cluster.kill()
        for node in wiped:
            shutil.rmtree(cluster.data_dir(node))
        cluster.start(wait=False)
        until(lambda: all("voter-lost-its-directory" in cluster.log_text(node) for node in wiped))
        for node in wiped:
            meta = cluster.data_dir(node) / "meta.properties"
            until(lambda meta=meta: f"cluster.id={cluster_id}\n" in meta.read_text())  # type: ignore[misc]
            assert "quorum-founded" not in cluster.log_text(node).split("voter-lost-its-directory")[1]


def test_controllers_alone_and_brokers_alone_make_a_cluster(tmp_path: Path) -> None:
    with Cluster(brokers=2, controllers=3, directory=tmp_path) as cluster:
        description = described(cluster)
        assert [voter.replica_id for voter in description.voters] == [3, 4, 5]
        until(lambda: {observer.replica_id for observer in described(cluster).observers} == {1, 2})
        make_topic(cluster.bootstrap_servers, NewTopic(name="orders", partitions=2, replication_factor=2))
        for node in cluster.broker_ids:
            until(lambda node=node: serving_brokers(cluster, node) == [1, 2])  # type: ignore[misc]
        leader = cluster.controller_id
        cluster.kill(leader)
        make_topic(cluster.bootstrap_servers, NewTopic(name="returns", partitions=2, replication_factor=2))
        wait_until_known(cluster, cluster.broker_ids, {"orders", "returns"})


def test_a_node_of_another_cluster_reports_it_and_takes_no_part(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with Cluster(brokers=2, directory=tmp_path / "ours") as cluster:
        meta = cluster.data_dir(2) / "meta.properties"
        cluster.stop(2)
        lines = [
            "cluster.id=c3RyYW5nZXJzLWNsdXN0ZQ" if "cluster.id" in line else line
            for line in meta.read_text().splitlines()
        ]
        meta.write_text("\n".join(lines) + "\n")
        cluster.start(2, wait=False)
        until(lambda: "event=other-cluster node=2" in cluster.log_text(2))
        until(lambda: "event=no-controller node=2" in cluster.log_text(2))


def test_all_killed_at_once_come_back_by_themselves(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        make_topic(cluster.bootstrap_servers, NewTopic(name="orders", partitions=3, replication_factor=3))
        voters = directory_ids(described(cluster))
        cluster.kill()
        cluster.start()
        assert directory_ids(described(cluster)) == voters
        with Admin(cluster.address(3)) as admin:
            (topic,) = [topic for topic in admin.list_topics() if topic.name == "orders"]
            assert len(topic.partitions) == 3


def test_a_voter_that_listens_elsewhere_tells_the_others(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster, ReservedPorts() as ports:
        moved = BrokerId(2 if cluster.controller_id != 2 else 3)
        old = described(cluster).endpoints[moved][0].port
        new = ports.reserve("127.0.0.1", 0)
        cluster.stop(moved)
        settings = cluster.config_file(moved)
        settings.write_text(settings.read_text().replace(f":{old}", f":{new}"))
        cluster.start(moved)
        until(lambda: described(cluster).endpoints[moved][0].port == new)
        # The next leader has to find it: no other node has the new port.
        leader = cluster.controller_id
        if leader != moved:  # else both other nodes have found it since
            cluster.kill(leader)
            until(lambda: described(cluster, moved).leader_id not in (-1, leader))
