"""The faults of a test cluster: cuts between nodes, full disks, and what a fault refuses."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tailrace import Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster, ClusterError
from testkit.programs.waiting import wait_until

SETTINGS = {"default.replication.factor": "3", "replica.lag.time.max.ms": "1000"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    """The cluster without faults, before and after the test."""
    yield nodes
    nodes.resume()
    nodes.heal()
    nodes.free_disk()
    nodes.start()
    nodes.wait_until_in_sync()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    return cluster.create_topic(f"faults-{uuid4()}", 1, replication_factor=3)


def test_a_follower_that_is_cut_off_leaves_the_replicas_in_sync_until_the_cut_is_healed(
    cluster: Cluster, topic: str
) -> None:
    leader = cluster.wait_until_leader(topic)
    follower = next(node for node in cluster.broker_ids if node not in (leader, cluster.controller_id))
    cluster.cut(leader, follower)
    cluster.produce(topic, ["tea"])
    with pytest.raises(TimeoutError, match=rf"{topic}-0 has \d,\d of 1,2,3 in sync"):
        cluster.wait_until_in_sync(topic, timeout=5)
    cluster.heal(leader, follower)
    cluster.wait_until_in_sync(topic)
    cluster.assert_holds(topic, ["tea"])


def test_a_leader_that_is_cut_off_from_all_other_nodes_is_replaced(cluster: Cluster, topic: str) -> None:
    leader = cluster.wait_until_leader(topic)
    others = [node for node in cluster.broker_ids if node != leader]
    cluster.cut(leader)
    cluster.pause(leader)  # clients reach the node, which says that it leads
    try:
        assert cluster.wait_until_leader(topic) in others
    finally:
        cluster.resume(leader)
    cluster.heal()
    cluster.wait_until_in_sync(topic)


def test_a_cut_lasts_while_its_nodes_restart(cluster: Cluster, topic: str) -> None:
    leader = cluster.wait_until_leader(topic)
    follower = next(node for node in cluster.broker_ids if node not in (leader, cluster.controller_id))
    cluster.cut(leader, follower)
    cluster.kill(follower)
    cluster.start(follower, wait=False)  # the node waits for the controller, which may be the leader
    cluster.produce(topic, ["tea"])
    with pytest.raises(TimeoutError, match="in sync; seen last: "):
        cluster.wait_until_in_sync(topic, timeout=3)
    cluster.heal(follower)
    cluster.wait_until_in_sync(topic)


def test_producers_of_a_full_disk_are_refused_until_there_is_space(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        cluster.produce("orders", ["tea"])
        cluster.fill_disk(1)
        with (
            Producer(cluster.bootstrap_servers, delivery_timeout_ms=1_500, request_timeout_ms=1_000) as producer,
            pytest.raises(KafkaError) as caught,
        ):
            producer.send("orders", b"milk").result(60)
        assert caught.value.code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
        assert "event=disk-" in cluster.log_text()
        cluster.free_disk(1)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("orders", b"rum").result(60)
        assert [record.value for record in cluster.read_all("orders")][-1] == b"rum"


def test_the_faults_of_a_node_outlive_its_fresh_start_after_a_full_disk(cluster: Cluster, topic: str) -> None:
    """The node replaces its process, and the new program takes orders too, also while it waits for the disk."""
    leader = cluster.wait_until_leader(topic)
    node = next(node for node in cluster.broker_ids if node not in (leader, cluster.controller_id))
    cluster.fill_disk(node)
    with suppress(KafkaError):  # the node may be asked, and its answer be lost
        cluster.create_topic(f"faults-{uuid4()}", replication_factor=2)  # the node must write metadata
    wait_until(lambda: "event=node-failed action=wait-for-disk" in cluster.log_text(node))
    cluster.cut(leader, node)
    assert "event=disk-answers" not in cluster.log_text(node)
    cluster.free_disk(node)
    wait_until(lambda: "event=disk-answers" in cluster.log_text(node))
    cluster.produce(topic, ["tea"])
    with pytest.raises(TimeoutError, match=rf"{topic}-0 has \d,\d of 1,2,3 in sync"):
        cluster.wait_until_in_sync(topic, timeout=3)
    cluster.heal()
    cluster.wait_until_in_sync(topic)
    cluster.assert_holds(topic, ["tea"])


def test_a_fault_that_cannot_be_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="no node 7; its nodes are 1, 2, 3"):
        cluster.cut(1, 7)
    with pytest.raises(ClusterError, match=r"cut\(1, 1\): a node has no network to itself"):
        cluster.cut(1, 1)
    with pytest.raises(ClusterError, match="no node 7"):
        cluster.fill_disk(7)
    cluster.pause(2)
    with pytest.raises(ClusterError, match=r"node 2 is paused and takes no fault: resume\(2\) first"):
        cluster.fill_disk(2)
    cluster.resume(2)
    cluster.heal()
    assert not cluster._nodes[2].faults.is_any, "a fault that was refused comes with no later order"
    with Cluster() as lone, pytest.raises(ClusterError, match="one node has no network between nodes"):
        lone.cut(1, 2)


def test_a_node_that_dies_at_an_order_is_no_fault_of_the_order(cluster: Cluster) -> None:
    cluster.kill(3)
    cluster.cut(1, 3)
    cluster.heal()
    cluster.start(3)
    wait_until(lambda: cluster.is_running(3))
