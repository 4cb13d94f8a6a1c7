"""Changes of partitions that are written out one by one: new states, and the records that lead to them (pure)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from tailrace.metadata import derive, rules_26
from tailrace.metadata.deciding.placement import MAX_PARTITIONS_PER_REQUEST
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    OLDEST_METADATA_VERSION,
    RECOVERING,
    MetadataRecord,
    PartitionChangeRecord,
)
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState

RECOVERED = 0
FIRST_WITH_ELIGIBLE_LEADERS = 26


class ImageCircumstances:
    """The state that rules may read, from a finished image."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def is_alive(self, broker_id: BrokerId, /) -> bool:
        broker = self._image.brokers.get(broker_id)
        return broker is not None and broker.is_alive

    def min_in_sync_replicas(self, topic_id: TopicId, /) -> int:
        return int(self._image.cluster_setting(self._image.topic_names[topic_id], "min.insync.replicas") or 1)

    def allows_unclean_election(self, topic_id: TopicId, /) -> bool:
        name = self._image.topic_names[topic_id]
        return self._image.cluster_setting(name, "unclean.leader.election.enable") == "true"


def finalized_version(image: ClusterImage) -> int:
    """The metadata.version whose rules hold."""
    return image.metadata_version or OLDEST_METADATA_VERSION


def has_eligible_leaders(image: ClusterImage) -> bool:
    """Whether the cluster keeps eligible leaders (KIP-966), as those of metadata.version 26 do."""
    return finalized_version(image) >= FIRST_WITH_ELIGIBLE_LEADERS


def with_in_sync(
    image: ClusterImage,
    state: PartitionState,
    in_sync: tuple[BrokerId, ...],
    *,
    may_lead: Callable[[BrokerId], bool] | None = None,
    unclean_election: bool | None = None,
) -> PartitionState:
    """The state with these in-sync replicas, and the leader and eligible leaders that follow.

    By default a leader must be alive, and an unclean election is what the topic's setting says.
    """
    circumstances = ImageCircumstances(image)
    if unclean_election is None:
        unclean_election = circumstances.allows_unclean_election(state.topic_id)
    after = rules_26.with_in_sync(
        state,
        in_sync,
        min_in_sync=circumstances.min_in_sync_replicas(state.topic_id),
        may_lead=may_lead or circumstances.is_alive,
        unclean_election=unclean_election,
    )
    return after if has_eligible_leaders(image) else without_eligible_leaders(after)


def without_eligible_leaders(state: PartitionState) -> PartitionState:
    """The state in which only in-sync replicas may lead."""
    return replace(state, eligible_leader_replicas=(), last_known_leaders=())


def change_record(number: int, before: PartitionState, after: PartitionState) -> PartitionChangeRecord:
    """The record that makes the one state of the other. Applying it raises the epochs."""

    def changed(old: tuple[BrokerId, ...], new: tuple[BrokerId, ...]) -> tuple[int, ...] | None:
        return None if old == new else new

    recovery = RECOVERING if after.is_recovering else RECOVERED
    # A replica that has left, and does not know it, must not be counted for what it fetches in the epoch before.
    has_left = not set(before.replicas) <= set(after.replicas)
    return PartitionChangeRecord(
        partition_id=number,
        topic_id=before.topic_id,
        isr=changed(before.in_sync_replicas, after.in_sync_replicas),
        leader=after.leader if after.leader_epoch != before.leader_epoch or has_left else NO_LEADER_CHANGE,
        replicas=changed(before.replicas, after.replicas),
        removing_replicas=changed(before.removing_replicas, after.removing_replicas),
        adding_replicas=changed(before.adding_replicas, after.adding_replicas),
        leader_recovery_state=NO_RECOVERY_CHANGE if after.is_recovering == before.is_recovering else recovery,
        directories=None if after.directories == before.directories else after.directories,
        eligible_leader_replicas=changed(before.eligible_leader_replicas, after.eligible_leader_replicas),
        last_known_elr=changed(before.last_known_leaders, after.last_known_leaders),
        accepts_loss=after.accepts_loss and not before.accepts_loss,
    )


def departure_records(image: ClusterImage, broker_id: BrokerId) -> tuple[MetadataRecord, ...]:
    """Changes of the partitions of a broker that will not come back, explicit ones."""
    rules = derive.rules_of(finalized_version(image))
    circumstances = ImageCircumstances(image)
    return _written_out(image, derive.on_departure(broker_id, image.partitions(), circumstances, rules, unclean=True))


def handover_records(image: ClusterImage, broker_id: BrokerId) -> tuple[MetadataRecord, ...]:
    """New leaders for the partitions of a broker that shuts down, as explicit changes: at most one batch."""
    rules = derive.rules_of(finalized_version(image))
    led = (one for one in image.partitions() if one[2].leader == broker_id)
    some = islice(led, MAX_PARTITIONS_PER_REQUEST)
    return _written_out(image, derive.on_departure(broker_id, some, ImageCircumstances(image), rules))


def _written_out(image: ClusterImage, changes: Iterable[derive.PartitionChange]) -> tuple[MetadataRecord, ...]:
    records = []
    for topic_id, number, after in changes:
        topic = image.topic_by_id(topic_id)
        assert topic is not None
        records.append(change_record(number, topic.partitions[number], after))
    return tuple(records)
