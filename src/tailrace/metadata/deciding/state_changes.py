"""Changes of partitions that are written into the log: new states, and the records that lead to these states (pure)."""

from collections.abc import Callable

from tailrace.metadata import rules_26
from tailrace.metadata.derive import departure_steps
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageCircumstances
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE, RECOVERING, PartitionChangeRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId, format_topic_id
from tailrace.model.partitions import PartitionState
from tailrace.model.steps import result_of

RECOVERED = 0


def found_partition(image: ClusterImage, topic_id: TopicId, number: int) -> tuple[str, PartitionState]:
    """The name and the state of a partition. Raises KafkaError UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION."""
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {format_topic_id(topic_id)}")
    name, state = f"{topic.name}-{number}", topic.partitions.get(number)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}")
    return name, state


def with_in_sync(
    image: ClusterImage,
    state: PartitionState,
    in_sync: tuple[BrokerId, ...],
    *,
    may_lead: Callable[[BrokerId], bool] | None = None,
    unclean_election: bool | None = None,
) -> PartitionState:
    """The state with these in-sync replicas, and the leader and eligible leaders that follow.

    By default a leader must be alive, and the topic's setting decides about an unclean election.
    """
    circumstances = ImageCircumstances(image)
    if unclean_election is None:
        unclean_election = circumstances.allows_unclean_election(state.topic_id)
    return rules_26.with_in_sync(
        state,
        in_sync,
        min_in_sync=circumstances.min_in_sync_replicas(state.topic_id),
        may_lead=may_lead or circumstances.is_alive,
        unclean_election=unclean_election,
    )


def change_record(number: int, before: PartitionState, after: PartitionState) -> PartitionChangeRecord:
    """The record that changes the state `before` into the state `after`. Applying the record raises the epochs."""

    def changed(old: tuple[BrokerId, ...], new: tuple[BrokerId, ...]) -> tuple[int, ...] | None:
        return None if old == new else new

    recovery = RECOVERING if after.is_recovering else RECOVERED
    # A replica that was removed and does not know must not count by its fetches in the epoch before.
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
    """Explicit changes of the partitions of a broker that will not come back."""
    circumstances = ImageCircumstances(image)
    records = []
    derived = result_of(departure_steps(broker_id, image.partitions(), circumstances, unclean=True))
    for topic_id, number, after in derived.changes:
        topic = image.topic_by_id(topic_id)
        assert topic is not None
        records.append(change_record(number, topic.partitions[number], after))
    return tuple(records)
