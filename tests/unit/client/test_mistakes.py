"""A mistake of a caller fails by itself: the error names the record, and the producer goes on."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster

SECONDS = 60.0


@pytest.mark.parametrize("timestamp", [-1, 2**63, "now", 1.5])
def test_a_timestamp_that_cannot_be_one_is_refused_at_once(tailrace_cluster: Cluster, timestamp: Any) -> None:
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        with pytest.raises(KafkaError, match="milliseconds since 1970"):
            producer.send("mistakes", b"v", timestamp=timestamp)
        producer.send("mistakes", b"v").result(SECONDS)


def test_a_partitioner_that_raises_fails_its_record_only(tailrace_cluster: Cluster) -> None:
    def choose(topic: str, key: bytes | None, count: int) -> int:
        return {b"good": 0}[key or b""]

    with Producer(tailrace_cluster.bootstrap_servers, partitioner=choose) as producer:
        wrong, right = (producer.send("mistakes", b"v", key=key) for key in (b"bad", b"good"))
        right.result(SECONDS)
        with pytest.raises(KafkaError, match="b'bad'"):
            wrong.result(SECONDS)


def test_a_callback_may_send_although_the_buffer_is_full(tailrace_cluster: Cluster) -> None:
    """Callbacks run on the thread that frees the space: a wait for space there would never end."""
    sent = []
    with Producer(tailrace_cluster.bootstrap_servers, buffer_memory=1_000, max_block_ms=60_000) as producer:
        first = producer.send("mistakes", b"x" * 900)
        first.add_done_callback(lambda _: sent.append(producer.send("mistakes", b"y" * 900)))
        producer.send("mistakes", b"z" * 900).result(SECONDS)
        producer.flush()
        assert [future.result(SECONDS).offset >= 0 for future in sent] == [True]


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin, name: admin.delete_topics(name),
        lambda admin, name: admin.describe_topics(name),
        lambda admin, name: admin.describe_topic_configs(name),
        lambda admin, name: admin.describe_groups(name),
        lambda admin, name: admin.delete_groups(name),
    ],
    ids=["delete_topics", "describe_topics", "describe_topic_configs", "describe_groups", "delete_groups"],
)
def test_one_name_is_not_taken_for_a_list_of_letters(
    tailrace_cluster: Cluster, ask: Callable[[Admin, str], object]
) -> None:
    """Deleting "ab" must not delete the topics "a" and "b"."""
    with Admin(tailrace_cluster.bootstrap_servers) as admin, pytest.raises(KafkaError, match=r"say \['ab'\]") as caught:
        ask(admin, "ab")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_one_topic_is_not_taken_for_a_list_of_letters_by_a_consumer(tailrace_cluster: Cluster) -> None:
    with pytest.raises(KafkaError, match=r"say \['ab'\]"):
        Consumer(tailrace_cluster.bootstrap_servers, group=str(uuid4()), topics="ab")  # type: ignore[arg-type]
    consumer = Consumer(tailrace_cluster.bootstrap_servers, group=str(uuid4()))
    with consumer, pytest.raises(KafkaError, match=r"say \['ab'\]"):
        consumer.subscribe("ab")  # type: ignore[arg-type]


def test_a_consumer_without_topics_says_so_at_the_first_poll(tailrace_cluster: Cluster) -> None:
    for group in (None, str(uuid4())):
        consumer = Consumer(tailrace_cluster.bootstrap_servers, group=group)
        with consumer, pytest.raises(KafkaError, match="nothing to read"):
            consumer.poll(0.1)


def test_a_consumers_bad_settings_are_refused_when_it_is_made(tailrace_cluster: Cluster) -> None:
    servers = tailrace_cluster.bootstrap_servers
    with pytest.raises(KafkaError, match=r"auto\.offset\.reset 'least'; known are earliest, latest, none"):
        Consumer(servers, auto_offset_reset="least")  # type: ignore[arg-type]
    with pytest.raises(KafkaError, match="isolation level 'committed'; known are read_uncommitted, read_committed"):
        Consumer(servers, isolation_level="committed")  # type: ignore[arg-type]


def refusal(consumer: Consumer) -> KafkaError:
    """The error by which a poll says that the group has refused the consumer."""
    while True:
        try:
            consumer.poll(1)
        except KafkaError as error:
            return error


def test_a_session_that_the_broker_refuses_is_named_with_its_limits(tailrace_cluster: Cluster) -> None:
    servers = tailrace_cluster.bootstrap_servers
    with Consumer(servers, group=str(uuid4()), topics=["t"], session_timeout_ms=4_000) as consumer:
        error = refusal(consumer)
    assert error.code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert error.detail.startswith("session.timeout.ms 4000; the broker of group")
    assert error.detail.endswith("by default 6000 to 1800000")


def is_member(consumer: Consumer) -> bool:
    try:
        return consumer.group_metadata().generation_id >= 0
    except KafkaError:
        return False


def test_strategies_that_members_do_not_share_are_named(tailrace_cluster: Cluster) -> None:
    servers, group = tailrace_cluster.bootstrap_servers, str(uuid4())
    settings: dict[str, Any] = {"group": group, "topics": ["t"], "group_protocol": "classic"}
    with (
        Consumer(servers, partition_assignment_strategy=["range"], **settings) as first,
        Consumer(servers, partition_assignment_strategy=["roundrobin"], **settings) as second,
    ):
        while not is_member(first):
            first.poll(0.1)
        error = refusal(second)
    assert error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error.detail.startswith(f"partition.assignment.strategy roundrobin; the members of group '{group}' have no")
