"""Views of the topics of an image, by name and by id."""

import dataclasses

import pytest

from tailrace.metadata.feature_levels import FIRST_WITH_KEY_RANGES, METADATA_VERSION_FEATURE
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ConfigResource, ResourceType, TopicImage
from tailrace.metadata.views import MAX_VIEW_PARTITIONS, ViewImage, Views, id_of, view_refusal, view_refusal_by_id
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.key_ranges import of_slots
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.views import folded_id

VIEWS = Views()


def state(topic_id: TopicId, leader: int) -> PartitionState:
    return PartitionState(
        topic_id=topic_id,
        replicas=(BrokerId(1), BrokerId(2)),
        in_sync_replicas=(BrokerId(leader),),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader),
        partition_epoch=0,
    )


def id_of_number(number: int) -> TopicId:
    return TopicId(bytes(14) + bytes((number, 0x30)))


def image_of(*names: str, partitions: int = 2, version: int = FIRST_WITH_KEY_RANGES) -> ClusterImage:
    topics = {}
    for number, name in enumerate(names, start=1):
        topic_id = id_of_number(number)
        states = {index: state(topic_id, 1 + index % 2) for index in range(partitions)}
        topics[name] = TopicImage(name=name, topic_id=topic_id, partitions=states)
    return dataclasses.replace(
        EMPTY_IMAGE,
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        features={METADATA_VERSION_FEATURE: version},
    )


def view(image: ClusterImage, name: str) -> ViewImage:
    found = VIEWS.topic(image, name)
    assert isinstance(found, ViewImage)
    return found


def test_a_view_has_its_topics_partitions_several_times() -> None:
    image = image_of("orders")
    found = view(image, "orders.shared-4")
    assert (found.name, found.topic_id) == ("orders.shared-4", folded_id(id_of_number(1), 4))
    assert list(found.partitions) == list(range(8))
    assert [found.partitions[number].leader for number in range(8)] == [1] * 4 + [2] * 4
    assert found.stored_as(6) == TopicPartition("orders", 1)
    assert found.key_range(6) == of_slots(128, 191)
    assert 8 not in found.partitions
    assert -1 not in found.partitions


def test_a_topic_is_stored_as_itself() -> None:
    topic = VIEWS.topic(image_of("orders"), "orders")
    assert topic is not None
    assert topic.stored_as(1) == TopicPartition("orders", 1)


def test_a_view_is_found_by_its_id() -> None:
    image = image_of("orders", "others")
    for fan_out in (2, 256):
        found = VIEWS.topic_by_id(image, folded_id(id_of_number(2), fan_out))
        assert found is not None
        assert found.name == f"others.shared-{fan_out}"
    assert VIEWS.topic_by_id(image, id_of_number(2)) is image.topics["others"]


@pytest.mark.parametrize("topic_id", [b"", bytes(16), bytes(15), id_of_number(9), folded_id(id_of_number(9), 4)])
def test_an_id_that_folds_to_nothing_is_no_views(topic_id: bytes) -> None:
    assert VIEWS.topic_by_id(image_of("orders"), topic_id) is None


def test_an_id_that_is_near_that_of_a_view_is_no_views() -> None:
    beyond = bytearray(id_of_number(1))
    beyond[15] ^= 9
    assert VIEWS.topic_by_id(image_of("orders"), bytes(beyond)) is None


def test_a_topic_with_the_name_of_a_view_goes_first() -> None:
    image = image_of("orders", "orders.shared-4")
    assert VIEWS.topic(image, "orders.shared-4") is image.topics["orders.shared-4"]
    assert VIEWS.topic_by_id(image, folded_id(id_of_number(1), 4)) is None
    assert view(image, "orders.shared-8").fan_out == 8
    assert view(image, "orders.shared-4.shared-2").source is image.topics["orders.shared-4"]


def test_a_topic_with_the_id_of_a_view_goes_first() -> None:
    image = image_of("orders")
    other = TopicImage(name="other", topic_id=folded_id(id_of_number(1), 4), partitions={})
    image = dataclasses.replace(
        image,
        topics={**image.topics, "other": other},
        topic_names={**image.topic_names, other.topic_id: "other"},
    )
    assert VIEWS.topic_by_id(image, other.topic_id) is other


def test_a_view_of_a_view_does_not_exist() -> None:
    assert VIEWS.topic(image_of("orders"), "orders.shared-16.shared-4") is None


def test_a_view_ends_with_its_topic() -> None:
    assert VIEWS.topic(image_of("others"), "orders.shared-4") is None


def test_there_are_no_views_if_the_broker_may_not_serve_them() -> None:
    views, image = Views(is_allowed=False), image_of("orders")
    assert views.topic(image, "orders.shared-4") is None
    assert views.topic_by_id(image, folded_id(id_of_number(1), 4)) is None
    assert views.topic(image, "orders") is image.topics["orders"]


def test_there_are_no_views_while_a_broker_may_not_know_them() -> None:
    image = image_of("orders", version=FIRST_WITH_KEY_RANGES - 1)
    assert VIEWS.topic(image, "orders.shared-4") is None
    assert VIEWS.topic_by_id(image, folded_id(id_of_number(1), 4)) is None


def unshared(image: ClusterImage) -> ClusterImage:
    return dataclasses.replace(
        image, configs={ConfigResource(ResourceType.TOPIC, "orders"): {"key.ranges.enable": "false"}}
    )


def test_there_are_no_views_of_a_topic_that_is_not_shared() -> None:
    image = unshared(image_of("orders", "others"))
    assert VIEWS.topic(image, "orders.shared-4") is None
    assert VIEWS.topic_by_id(image, folded_id(id_of_number(1), 4)) is None
    assert view(image, "others.shared-4").fan_out == 4


def test_a_view_keeps_its_id_while_it_is_not_served() -> None:
    image = unshared(image_of("orders"))
    assert id_of(image, "orders.shared-4") == folded_id(id_of_number(1), 4)
    assert id_of(image, "orders") == id_of_number(1)
    assert id_of(image, "others.shared-4") is None
    assert id_of(image, "others") is None


def test_a_view_of_too_many_partitions_does_not_exist() -> None:
    image = image_of("orders", partitions=MAX_VIEW_PARTITIONS // 256 + 1)
    assert VIEWS.topic(image, "orders.shared-256") is None
    assert VIEWS.topic_by_id(image, folded_id(id_of_number(1), 256)) is None
    assert view(image, "orders.shared-128").fan_out == 128


def test_a_view_is_refused_with_the_reason() -> None:
    image = image_of("orders", "orders.shared-8")
    refusal = view_refusal(image, "orders.shared-4")
    assert refusal is not None
    assert refusal.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "view of orders" in refusal.detail
    by_id = view_refusal_by_id(image, folded_id(id_of_number(1), 4))
    assert by_id is not None
    assert by_id.detail == refusal.detail
    for other in ("orders", "orders.shared-8", "nothing.shared-4", "orders.shared-3"):
        assert view_refusal(image, other) is None
    assert view_refusal_by_id(image, id_of_number(1)) is None
