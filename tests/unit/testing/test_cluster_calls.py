"""The calls of a test cluster for topics, records and waits, and what they say when they fail."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tailrace import Admin, Consumer, Producer
from tailrace.model.errors import KafkaError
from tailrace.testing import Cluster, ClusterError, InputRecord
from testkit.programs.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"default.replication.factor": "3"}) as cluster:
        yield cluster
        cluster.resume()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    return cluster.create_topic(f"calls-{uuid4()}", 2, replication_factor=3)


def test_produced_records_are_read_by_partition_and_offset(cluster: Cluster, topic: str) -> None:
    rows: list[Any] = [
        "tea",
        ("bob", {"drink": "gin"}),
        InputRecord(b"milk", partition=1),
        InputRecord(b"rum", partition=0),
    ]
    places = cluster.produce(topic, rows)
    records = cluster.read_all(topic)
    assert [(each.partition, each.offset) for each in records] == sorted(
        (place.partition, place.offset) for place in places
    )
    cluster.assert_holds(topic, ["rum", "milk", ("bob", {"drink": "gin"}), "tea"])


def test_records_of_an_aborted_transaction_are_read_only_when_asked_for(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never")
        producer.flush()
        producer.abort_transaction()
    cluster.assert_holds(topic, [])
    cluster.assert_holds(topic, ["never"], isolation="read_uncommitted")


def test_a_topic_that_does_not_exist_is_named_with_its_neighbours(cluster: Cluster, topic: str) -> None:
    with pytest.raises(KafkaError, match=f"topic '{topic[:-1]}' does not exist; topics that exist: '{topic}'"):
        cluster.read_all(topic[:-1])
    with Admin(cluster.bootstrap_servers) as admin:
        assert topic[:-1] not in {known.name for known in admin.list_topics()}


def test_a_topic_that_a_service_has_yet_to_create_is_waited_for(cluster: Cluster, topic: str) -> None:
    late = f"late-{uuid4()}"
    cluster.assert_holds(late, [])
    cluster.assert_holds(topic, [])
    with pytest.raises(AssertionError, match=f"^topic '{late}' does not exist; topics that exist: '"):
        cluster.assert_holds(late, ["tea"], timeout=0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(cluster.assert_holds, late, ["tea"], timeout=60)
        cluster.produce(late, ("tea",))
        waiting.result(90)
    cluster.produce(late, ["tea"])
    with pytest.raises(AssertionError, match="there again: 1 "):
        cluster.assert_holds(late, ["tea"])
    cluster.assert_holds(late, ["tea"], allow_duplicates=True)


def test_the_lag_of_a_group_is_waited_for(cluster: Cluster, topic: str) -> None:
    cluster.produce(topic, ["tea", "milk", "rum"])
    with pytest.raises(TimeoutError, match="until group 'none' has a lag of at most 2 on topic .*seen last: lag 3: "):
        cluster.wait_for_lag("none", topic, at_most=2, timeout=0)
    assert cluster.wait_for_lag("none", topic, at_most=3) == 3
    group = f"group-{topic}"
    with Consumer(cluster.bootstrap_servers, group=group, topics=[topic], auto_offset_reset="earliest") as consumer:
        for _, _record in zip(range(3), consumer, strict=False):
            pass
        consumer.commit()
        assert cluster.wait_for_lag(group, topic) == 0
    with pytest.raises(TimeoutError, match="topic 'no-topic' does not exist"):
        cluster.wait_for_lag(group, "no-topic", timeout=0)


def test_a_lag_that_stays_is_shown_with_the_members_of_the_group_and_with_other_groups(
    cluster: Cluster, topic: str
) -> None:
    def failure(group: str, of: str = topic) -> str:
        with pytest.raises(TimeoutError) as caught:
            cluster.wait_for_lag(group, of, timeout=0)
        return str(caught.value)

    group = f"shipping-{topic}"
    cluster.produce(topic, ["tea"])
    assert failure("none").endswith("nothing committed of 0; group 'none' does not exist")
    with Consumer(cluster.bootstrap_servers, group=group, topics=[topic], auto_offset_reset="earliest") as consumer:
        next(iter(consumer))
        consumer.commit()
        cluster.produce(topic, ["milk"])
        assert failure(group).endswith("; the group has 1 member")
        assert failure("none").endswith(
            f"; group 'none' does not exist; other groups with offsets on this topic: '{group}'"
        )
    cluster.produce(topic, ["rum", "gin"])
    assert failure(group).endswith("; the group has no members")
    assert failure(group, "no-topic").endswith("topic 'no-topic' does not exist; the group has no members")


def test_a_wait_that_blocks_an_event_loop_says_so(cluster: Cluster, topic: str) -> None:
    cluster.produce(topic, ["tea"])

    async def wait() -> None:
        cluster.wait_for_lag("none", topic, timeout=0)

    with pytest.raises(
        TimeoutError,
        match=r"the event loop of this thread was blocked .* `await asyncio.to_thread\(cluster.wait_for_lag",
    ):
        asyncio.run(wait())


def test_another_leader_and_the_whole_isr_are_waited_for(cluster: Cluster, topic: str) -> None:
    first = cluster.wait_until_leader(topic)
    cluster.kill(first)
    assert cluster.wait_until_leader(topic) != first
    with pytest.raises(TimeoutError, match=rf"all replicas of topic '{topic}' are in sync; seen last: {topic}-\d has "):
        cluster.wait_until_in_sync(topic, timeout=0)
    cluster.start(first)
    cluster.wait_until_in_sync(topic)
    cluster.wait_until_in_sync()


def test_a_paused_leader_is_no_leader(cluster: Cluster, topic: str) -> None:
    first = cluster.wait_until_leader(topic, 1)
    cluster.pause(first)
    try:
        assert cluster.wait_until_leader(topic, 1) != first
    finally:
        cluster.resume(first)
    cluster.wait_until_in_sync(topic)


def test_a_new_topic_waits_for_a_broker_that_has_just_started(cluster: Cluster) -> None:
    cluster.kill(2)
    with Admin(cluster.running_servers) as admin:
        wait_until(lambda: any(broker.is_fenced for broker in admin.list_brokers()), "the broker is fenced")
    with pytest.raises(KafkaError, match="replication factor 3 needs as many brokers, and 2 can be used"):
        cluster.create_topic(f"calls-{uuid4()}", replication_factor=3)
    cluster.start(2, wait=False)
    cluster.wait_until_in_sync(cluster.create_topic(f"calls-{uuid4()}", replication_factor=3))


def test_waits_name_what_does_not_exist(cluster: Cluster, topic: str) -> None:
    with pytest.raises(TimeoutError, match="seen last: topic 'no-topic' does not exist"):
        cluster.wait_until_leader("no-topic", timeout=0)
    with pytest.raises(TimeoutError, match=f"until partition {topic}-9 has a leader; seen last: topic .* has 2 part"):
        cluster.wait_until_leader(topic, 9, timeout=0)
    with pytest.raises(TimeoutError, match="seen last: topic 'no-topic' does not exist"):
        cluster.wait_until_in_sync("no-topic", timeout=0)


def test_a_node_that_the_cluster_lacks_is_refused_with_the_nodes_that_it_has(cluster: Cluster) -> None:
    for call in (cluster.kill, cluster.stop, cluster.start, cluster.restart, cluster.pause, cluster.resume):
        with pytest.raises(ClusterError, match="the cluster has no node 7; its nodes are 1, 2, 3"):
            call(7)
    for look in (cluster.address, cluster.is_running, cluster.process_id, cluster.data_dir, cluster.log_text):
        with pytest.raises(ClusterError, match="no node 7"):
            look(7)
    assert all(map(cluster.is_running, cluster.node_ids))


def test_a_cluster_that_was_not_started_says_so() -> None:
    cluster = Cluster()
    with pytest.raises(ClusterError, match="not started, or it was closed: say `with Cluster"):
        _ = cluster.bootstrap_servers
    for call in (cluster.kill, cluster.address, cluster.log_text):
        with pytest.raises(ClusterError, match="the cluster has no nodes"):
            call(1)
    with pytest.raises(ClusterError, match="the cluster has no nodes"):
        cluster.read_all("orders")
    cluster.close()


def test_calls_on_a_cluster_without_a_running_broker_say_how_to_start_it() -> None:
    way_out = "no broker of the cluster runs: start\\(\\) starts the nodes"
    with Cluster() as dead:
        dead.kill()
        with pytest.raises(KafkaError, match=f"^BROKER_NOT_AVAILABLE: {way_out}"):
            dead.assert_holds("orders", [], timeout=0)
        with pytest.raises(TimeoutError, match=f"seen last: BROKER_NOT_AVAILABLE: {way_out}"):
            dead.wait_for_lag("billing", "orders", timeout=0)
