"""Changes of partitions that follow from new settings (pure): explicit, in the batch of the settings themselves.

1. `min.insync.replicas` falls to the number of replicas in sync: the high watermark moves again, and an eligible
   replica that is not in sync lacks the records it passes from now on. No replica is eligible there any more (KIP-966).
   Kafka forgets the eligible leaders of all partitions concerned, whichever way the setting goes; a partition without
   a leader could then only get one by an unclean election.
2. `unclean.leader.election.enable` is true: a partition without a leader gets one, if any replica is alive. Kafka
   looks for such partitions now and then.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tailrace.metadata.deciding.state_changes import (
    ImageCircumstances,
    change_record,
    has_eligible_leaders,
    with_in_sync,
    without_eligible_leaders,
)
from tailrace.metadata.image import ALL_BROKERS, ClusterImage, ConfigResource, ResourceType, TopicImage
from tailrace.metadata.records import ConfigRecord, MetadataRecord
from tailrace.metadata.replay import apply_all
from tailrace.model.ids import NO_LEADER
from tailrace.model.partitions import PartitionState

MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
DECISIVE: Final = (MIN_IN_SYNC, UNCLEAN_ELECTION)
"""The settings that decide on leaders: the controller's decisions and the derived changes of all nodes."""


def consequences(before: ClusterImage, settings: Sequence[ConfigRecord]) -> Iterator[MetadataRecord]:
    """A record for each partition that becomes another under these settings."""
    decisive = [record for record in settings if record.name in DECISIVE]
    if not decisive:
        return
    image, _ = apply_all(before, settings)
    circumstances = ImageCircumstances(image)
    for topic in _concerned(image, decisive):
        least = circumstances.min_in_sync_replicas(topic.topic_id)
        is_unclean = circumstances.allows_unclean_election(topic.topic_id)
        for number, state in topic.partitions.items():
            after = state
            if state.leader != NO_LEADER:
                after = _led(state, least)
            elif is_unclean:
                after = _elected(image, state)
            if after is not state:
                yield change_record(number, state, after)


def _concerned(image: ClusterImage, settings: Iterable[ConfigRecord]) -> Iterable[TopicImage]:
    resources = {ConfigResource(record.resource_type, record.resource_name) for record in settings}
    if ALL_BROKERS in resources:
        return image.topics.values()
    return [image.topics[name] for kind, name in sorted(resources) if kind == ResourceType.TOPIC]


def _led(state: PartitionState, min_in_sync: int) -> PartitionState:
    has_enough = len(state.in_sync_replicas) >= min(min_in_sync, len(state.replicas))
    if has_enough and (state.eligible_leader_replicas or state.last_known_leaders):
        return without_eligible_leaders(state)
    return state


def _elected(image: ClusterImage, state: PartitionState) -> PartitionState:
    """An unclean election, as it can be requested (`elections`)."""
    is_alive = ImageCircumstances(image).is_alive
    alive = tuple(replica for replica in state.in_sync_replicas if is_alive(replica))
    after = with_in_sync(image, state, alive)
    return state if after.leader == NO_LEADER else after


def broker_settings_to_forget(image: ClusterImage) -> Iterator[ConfigRecord]:
    """A broker's own `min.insync.replicas` is removed when eligible leaders are enabled, as in Kafka: from then on no
    broker may commit on fewer replicas than the controller counts on."""
    if has_eligible_leaders(image):
        return
    for resource, settings in image.configs.items():
        if resource.type == ResourceType.BROKER and resource.name and MIN_IN_SYNC in settings:
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=MIN_IN_SYNC, value=None)
