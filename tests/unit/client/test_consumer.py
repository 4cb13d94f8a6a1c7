"""A consumer in trouble: it keeps to its time, and commits nothing that is not its own any more."""

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

SECONDS = 20.0
RECORDS = 10


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Ten records in one partition, of two."""
    name = f"topic-{uuid4()}"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 2})
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=0)
    return name


def _until_records(consumer: Consumer) -> int:
    deadline = time.monotonic() + SECONDS
    count = 0
    while not count and time.monotonic() < deadline:
        count = len(consumer.poll(0.2))
    return count


def test_a_poll_takes_its_time_and_no_more_while_the_coordinator_is_gone() -> None:
    with Cluster() as cluster, Consumer(cluster.bootstrap_servers, group="g", auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
            admin.create_topics({"orders": 2})
            producer.send("orders", b"v", partition=1).result(SECONDS)
        consumer.assign(partitions[:1])
        consumer.poll(0.1)
        consumer.assign(partitions)
        cluster.kill()
        began = time.monotonic()
        assert consumer.poll(0.3) == []
        assert time.monotonic() - began < 5
        cluster.restart()
        assert _until_records(consumer) == 1


@pytest.fixture
def overdue(tailrace_cluster: Cluster, topic: str) -> Iterator[Consumer]:
    """A member that was given records and did not poll for max.poll.interval.ms: the group has put it out."""
    with Consumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        max_poll_interval_ms=500,
    ) as consumer:
        assert _until_records(consumer) == RECORDS
        deadline = time.monotonic() + SECONDS
        while consumer.assignment():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield consumer


def test_a_member_that_was_put_out_cannot_commit_as_if_it_were_in(
    tailrace_cluster: Cluster, topic: str, overdue: Consumer
) -> None:
    for offsets in (None, {TopicPartition(topic, 0): 3}):
        with pytest.raises(KafkaError, match="no member of group") as caught:
            overdue.commit(offsets)
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        assert admin.group_offsets(f"group-{topic}") == {}


def test_a_member_that_was_put_out_comes_back_with_the_next_poll_and_commits(
    tailrace_cluster: Cluster, topic: str, overdue: Consumer
) -> None:
    assert _until_records(overdue) == RECORDS
    overdue.commit()
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        (committed,) = [at.offset for tp, at in admin.group_offsets(f"group-{topic}").items() if tp.partition == 0]
    assert committed == RECORDS


def test_a_commit_before_the_first_poll_has_nothing_to_commit(tailrace_cluster: Cluster, topic: str) -> None:
    with Consumer(tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic]) as consumer:
        consumer.commit()


@pytest.mark.parametrize(("reset", "read"), [("earliest", RECORDS), ("latest", 0)])
def test_an_offset_out_of_range_is_decided_by_the_reset_rule(
    tailrace_cluster: Cluster, topic: str, reset: str, read: int
) -> None:
    partition = TopicPartition(topic, 0)
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset=reset) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        deadline = time.monotonic() + SECONDS
        records = 0
        while consumer.position(partition) != RECORDS and time.monotonic() < deadline:
            records += len(consumer.poll(0.1))
        assert (consumer.position(partition), records) == (RECORDS, read)


def test_an_offset_out_of_range_without_a_reset_rule_is_an_error_until_somebody_seeks(
    tailrace_cluster: Cluster, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    with Consumer(tailrace_cluster.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        for _ in range(2):
            with pytest.raises(KafkaError, match=f"{partition}: .*auto.offset.reset is none"):
                _until_records(consumer)
        consumer.seek(partition, 4)
        assert _until_records(consumer) == RECORDS - 4


def test_a_leader_that_cannot_describe_the_topics_tries_again(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may go between the join and the assignment: the group must not wait for this leader for ever."""
    refresh = Router.refresh
    failures = [KafkaError(ErrorCode.NETWORK_EXCEPTION, "the node has gone")]

    async def failing_once(self: Router, *arguments: object, **options: object) -> None:
        if options.get("allow_auto_create") and failures:
            raise failures.pop()
        await refresh(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "refresh", failing_once)
    settings = {"group": f"group-{topic}", "topics": [topic], "auto_offset_reset": "earliest"}
    with Consumer(tailrace_cluster.bootstrap_servers, **settings) as consumer:  # type: ignore[arg-type]
        assert _until_records(consumer) == RECORDS
    assert not failures


def test_a_group_reads_partitions_that_are_added_while_it_runs(tailrace_cluster: Cluster, topic: str) -> None:
    with (
        Admin(tailrace_cluster.bootstrap_servers) as admin,
        Producer(tailrace_cluster.bootstrap_servers) as producer,
        Consumer(
            tailrace_cluster.bootstrap_servers,
            group=f"group-{topic}",
            topics=[topic],
            auto_offset_reset="earliest",
            metadata_max_age_ms=200,
        ) as consumer,
    ):
        assert _until_records(consumer) == RECORDS
        admin.create_partitions({topic: 3})
        assert producer.partition_count(topic) == 3
        producer.send(topic, b"v", partition=2).result(SECONDS)
        assert _until_records(consumer) == 1
        assert len(consumer.assignment()) == 3


def test_a_group_reads_a_topic_that_is_created_later() -> None:
    with (
        Cluster(config={"auto.create.topics.enable": "false"}) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(cluster.bootstrap_servers, group="g", topics=["later"], auto_offset_reset="earliest") as consumer,
    ):
        assert consumer.poll(0.5) == []
        admin.create_topics({"later": 1})
        producer.send("later", b"v").result(SECONDS)
        assert _until_records(consumer) == 1
