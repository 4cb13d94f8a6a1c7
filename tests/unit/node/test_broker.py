"""A broker's changes of metadata are carried out in their order, also while thousands of logs are being opened."""

import asyncio
from collections.abc import Mapping

from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.node.broker import ImageFeed
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.replicas.metadata_applier import MetadataApplier
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import BROKER
from testkit.nodes.listeners import silent_turns


def fail(broken: BaseException) -> None:
    raise broken


class SlowPartitions:
    """Notes the changes of partitions; the metadata changes while the first partition is opened."""

    def __init__(self, node: AdminPath) -> None:
        self.node = node
        self.story: list[str] = []

    def has(self, topic: str, partition: int, /) -> bool:
        return f"add {topic}-{partition}" in self.story

    def add(self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig) -> None:
        self.story.append(f"add {topic_partition}")
        if len(self.story) == 1:
            self.node.create_topics("late")
            assert "late" in self.node.controller.image.topics

    def update(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig, /) -> None:
        self.story.append(f"update {topic_partition}")

    def update_configs(self, configs: Mapping[str, TopicConfig], /) -> None: ...

    def delete(self, topic: str, index: int, /) -> None: ...


async def test_changes_of_metadata_during_the_first_image_follow_it() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("early", partitions=3)
    partitions = SlowPartitions(node)
    story = partitions.story

    turns = silent_turns(call_soon=asyncio.get_running_loop().call_soon, on_broken_invariant=fail)
    applier = MetadataApplier(partitions=partitions, broker_id=BROKER, settings=LiveSettings(node.config))
    feed = ImageFeed(node.controller, applier=applier, turns=turns)

    def load(image: ClusterImage) -> None:
        story.append(f"load {','.join(sorted(image.topics))}")

    def changed(image: ClusterImage, delta: ImageDelta) -> None:
        story.append(f"changed {','.join(topic.name for topic in delta.created_topics)}")

    await feed.begin(load, (changed,))
    node.create_topics("later")
    assert story == [
        *(f"add early-{number}" for number in range(3)),
        "load early",
        *("add late-0", "changed late"),
        *("add later-0", "changed later"),
    ]


async def test_a_listener_of_images_that_cannot_act_on_a_change_keeps_the_others_from_nothing() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    partitions = SlowPartitions(node)
    heard: list[str] = []

    def broken(*_: object) -> None:
        raise ValueError("cannot act on it")

    def changed(_: ClusterImage, delta: ImageDelta) -> None:
        heard.extend(topic.name for topic in delta.created_topics)

    turns = silent_turns(call_soon=asyncio.get_running_loop().call_soon, on_broken_invariant=fail)
    applier = MetadataApplier(partitions=partitions, broker_id=BROKER, settings=LiveSettings(node.config))
    applier.on_image = broken  # type: ignore[assignment, method-assign]
    await ImageFeed(node.controller, applier=applier, turns=turns).begin(lambda _: None, (broken, changed))
    node.create_topics("orders", "returns")
    assert heard == ["orders", "returns"]
