"""A client's view of the cluster never goes back in time."""

import pytest

from tailrace.client.cluster_view import AbsentTopic, ClusterView
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ORDERS = TopicPartition("orders", 0)


def _answer(*, leader: int = 1, epoch: int = 5, topic_id: bytes = b"a" * 16, error: int = 0) -> MetadataResponse:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=(1, 2), isr_nodes=(1,)
    )
    topic = MetadataResponseTopic(
        error_code=error, name="orders", topic_id=topic_id, partitions=() if error else (partition,)
    )
    brokers = tuple(MetadataResponseBroker(node_id=node, host=f"host{node}", port=9092) for node in (1, 2))
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=2, topics=(topic,))


def _view(*answers: MetadataResponse) -> ClusterView:
    view = ClusterView(max_age_ms=1_000)
    for answer in answers:
        view.update(answer, 0)
    return view


def test_the_leader_is_the_broker_that_was_described() -> None:
    view = _view(_answer())
    assert view.leader(ORDERS).host == "host1"
    assert view.controller_id == 2
    assert view.topic_name(b"a" * 16) == "orders"


def test_an_answer_with_an_older_leader_epoch_does_not_count() -> None:
    assert _view(_answer(leader=2, epoch=6), _answer(leader=1, epoch=5)).leader(ORDERS).node_id == 2


def test_a_topic_created_again_starts_anew() -> None:
    view = _view(_answer(leader=2, epoch=6), _answer(leader=1, epoch=0, topic_id=b"b" * 16))
    assert view.leader(ORDERS).node_id == 1


def test_a_topic_is_asked_for_when_unknown_stale_leaderless_or_old() -> None:
    assert ClusterView(max_age_ms=1_000).needs_refresh(("orders",), 0) == ["orders"]
    view = _view(_answer())
    assert view.needs_refresh(("orders",), 999) == []
    assert view.needs_refresh(("orders",), 1_000) == ["orders"]
    view.mark_stale("orders")
    assert view.needs_refresh(("orders",), 1) == ["orders"]
    assert _view(_answer(leader=-1)).needs_refresh(("orders",), 1) == ["orders"]


def test_a_topic_is_asked_for_when_its_leader_is_no_broker_any_more() -> None:
    """An answer about another topic has shown that the node is gone; another node may lead."""
    view = _view(_answer(leader=1))
    survivor = MetadataResponseBroker(node_id=2, host="host2", port=9092)
    view.update(MetadataResponse(brokers=(survivor,), cluster_id="c", controller_id=2, topics=()), 0)
    assert view.needs_refresh(("orders",), 1) == ["orders"]


def test_topics_are_due_when_their_leader_cannot_be_reached() -> None:
    view = _view(_answer(leader=1))
    view.mark_led_by(BrokerId(2))
    assert view.needs_refresh(("orders",), 1) == []
    view.mark_led_by(BrokerId(1))
    assert view.needs_refresh(("orders",), 1) == ["orders"]


def test_a_topic_that_is_gone_is_forgotten_and_the_error_says_what_to_do() -> None:
    view = _view(_answer(), _answer(error=3))
    with pytest.raises(KafkaError, match="does not exist"):
        view.topic("orders")


def test_a_topic_that_no_answer_has_described_is_not_said_to_be_absent() -> None:
    view = ClusterView(max_age_ms=1_000)
    for look in (view.topic, lambda name: view.leader(TopicPartition(name, 0))):
        with pytest.raises(KafkaError, match="no broker has described topic 'orders' yet") as caught:
            look("orders")
        assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert caught.value.code.retriable
    assert not view.has_answer("orders")
    view.update(_answer(error=3), 0)
    assert view.has_answer("orders")


def test_a_deleted_topic_is_absent() -> None:
    view = _view(_answer())
    view.forget("orders")
    with pytest.raises(AbsentTopic, match="does not exist"):
        view.topic("orders")


def test_a_partition_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(KafkaError, match="partitions 0 to 0, not 7") as caught:
        _view(_answer()).leader(TopicPartition("orders", 7))
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_code_of_a_newer_server_is_an_unknown_server_error() -> None:
    with pytest.raises(KafkaError) as caught:
        _view(_answer(error=9_999)).topic("orders")
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "orders.shared-3",
            "a view of topic 'orders' has 2, 4, 8, 16, 32, 64, 128 or 256 at the end of its name, not '3'",
        ),
        ("orders.shared-512", "at the end of its name, not '512'"),
        (
            "orders.shared-16",
            "a view of topic 'orders', which does not exist (`tailrace topics create orders`), has key",
        ),
    ],
)
def test_the_error_of_a_missing_view_names_its_topic_and_the_numbers_of_views(name: str, text: str) -> None:
    view = ClusterView(max_age_ms=1_000)
    view.forget(name)
    with pytest.raises(AbsentTopic) as caught:
        view.topic(name)
    assert text in caught.value.detail


def test_the_error_of_a_missing_partition_of_a_view_names_the_partitions_of_its_topic() -> None:
    parts = tuple(
        MetadataResponsePartition(partition_index=number, leader_id=1, replica_nodes=(1,), isr_nodes=(1,))
        for number in range(8)
    )
    topic = MetadataResponseTopic(name="orders.shared-4", topic_id=b"a" * 16, partitions=parts)
    view = _view(MetadataResponse(brokers=(), cluster_id="c", controller_id=2, topics=(topic,)))
    with pytest.raises(AbsentTopic) as caught:
        view.leader(TopicPartition("orders.shared-4", 9))
    assert caught.value.detail == (
        "topic 'orders.shared-4' has partitions 0 to 7, not 9: partition p of 'orders' is 4 p to 4 p + 3 of the view,"
        " and 'orders' has partitions 0 to 1"
    )
