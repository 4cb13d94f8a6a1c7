"""The proof that topics were deleted, from images and their changes."""

from dataclasses import replace

import pytest

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.brokers import RegisterBrokerRecord, UnregisterBrokerRecord
from tailrace.metadata.records.topics import RemoveTopicRecord, TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import difference
from tailrace.model.ids import BrokerId, TopicId
from tailrace.server.replicas import removed_topics
from tailrace.server.replicas.removed_topics import RemovedTopics

BROKER = BrokerId(1)
ORDERS, RETURNS = TopicId(b"o" * 16), TopicId(b"r" * 16)
TOPICS = (TopicRecord(name="orders", topic_id=ORDERS), TopicRecord(name="returns", topic_id=RETURNS))
NO_ORDERS = RemoveTopicRecord(topic_id=ORDERS)


def registration(broker_id: int = BROKER, *, incarnation: bytes = b"i" * 16, epoch: int = 10) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id, incarnation_id=incarnation, broker_epoch=epoch, end_points=(), features=(), rack=None
    )


def proven(*images: ClusterImage) -> RemovedTopics:
    """The proof by snapshots, of which each replaces the metadata before it."""
    found, before = RemovedTopics(BROKER), EMPTY_IMAGE
    for image in images:
        found.on_image(image, difference(before, image))
        before = image
    return found


KNOWN, _ = apply_all(EMPTY_IMAGE, (registration(), *TOPICS))


def test_a_record_proves_a_deletion() -> None:
    found = proven(KNOWN)
    found.on_image(*apply_all(KNOWN, (NO_ORDERS,)))
    assert ORDERS in found
    assert RETURNS not in found


def test_a_record_proves_the_deletion_of_a_topic_that_was_created_in_the_same_read() -> None:
    found = RemovedTopics(BROKER)
    found.on_image(*apply_all(EMPTY_IMAGE, (*TOPICS, NO_ORDERS)))
    assert ORDERS in found
    assert RETURNS not in found


def test_a_snapshot_that_continues_the_metadata_proves_a_deletion() -> None:
    later, _ = apply_all(KNOWN, (registration(2, epoch=20), NO_ORDERS))
    found = proven(KNOWN, later)
    assert ORDERS in found
    assert RETURNS not in found


def test_a_snapshot_proves_it_in_each_portion_of_its_changes() -> None:
    later, _ = apply_all(KNOWN, (NO_ORDERS, RemoveTopicRecord(topic_id=RETURNS)))
    found = proven(KNOWN)
    for piece in difference(KNOWN, later).pieces(1):
        found.on_image(later, piece)
    assert ORDERS in found
    assert RETURNS in found


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((), id="nothing at all"),
        pytest.param((registration(2),), id="another broker alone"),
        pytest.param((registration(incarnation=b"x" * 16),), id="another incarnation"),
        pytest.param((registration(epoch=11),), id="another epoch"),
        pytest.param((registration(incarnation=b"x" * 16), TOPICS[1]), id="a topic of this id"),
    ],
)
def test_a_snapshot_of_other_metadata_proves_nothing(other: tuple[RegisterBrokerRecord | TopicRecord, ...]) -> None:
    anew, _ = apply_all(EMPTY_IMAGE, other)
    assert ORDERS not in proven(KNOWN, anew)


def test_a_snapshot_without_the_broker_proves_nothing() -> None:
    later, _ = apply_all(KNOWN, (UnregisterBrokerRecord(broker_id=BROKER, broker_epoch=10), NO_ORDERS))
    assert ORDERS not in proven(KNOWN, later)


def test_the_first_snapshot_proves_no_removed_topic() -> None:
    assert ORDERS not in proven(apply_all(KNOWN, (NO_ORDERS,))[0])


def test_no_removed_topic_is_proven_by_changes_after_the_start() -> None:
    found = proven(KNOWN)
    found.on_image(*apply_all(KNOWN, (NO_ORDERS,)))
    found.stop()
    assert ORDERS not in found
    found.on_image(*apply_all(KNOWN, (NO_ORDERS,)))
    assert ORDERS not in found


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_topics, "MOST_REMOVED", 2)
    found = proven(KNOWN)
    _, delta = apply_all(KNOWN, (NO_ORDERS,))
    ids = [TopicId(bytes([number]) * 16) for number in range(3)]
    found.on_image(KNOWN, replace(delta, removed_ids=tuple(ids)))
    assert [topic_id in found for topic_id in ids] == [False, True, True]
