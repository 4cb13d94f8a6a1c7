"""Elections that administrators request (KIP-460, pure): of the preferred leader, of any live replica, or of a named
replica (KIP-966)."""

from dataclasses import replace

from tailrace.metadata.commands import ElectLeaders, LeadersElected, PartitionOutcome
from tailrace.metadata.deciding.placement import MAX_PARTITIONS_PER_REQUEST
from tailrace.metadata.deciding.state_changes import change_record, with_in_sync
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageCircumstances
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.views import view_refusal
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.machines import Decision
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition


def with_preferred_leader(state: PartitionState) -> PartitionState:
    """The state in which the first replica leads, in a new leader epoch."""
    return replace(
        state,
        leader=state.replicas[0],
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        partition_epoch=state.partition_epoch + 1,
    )


class LeaderElections:
    """The decision on an ElectLeaders command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._circumstances = ImageCircumstances(image)

    def decide(self, command: ElectLeaders) -> Decision[MetadataRecord, LeadersElected]:
        """Records of the elections, and an outcome for every partition that is named or changes."""
        desired_leaders = command.desired_leaders

        def elect(where: TopicPartition, state: PartitionState) -> PartitionState:
            if where in desired_leaders:
                return self._named(where, state, desired_leaders[where], command.type)
            return self._preferred(where, state) if command.type == ElectionType.PREFERRED else self._any(where, state)

        records: list[MetadataRecord] = []
        outcomes = []
        # A partition that is named twice is decided once: the second decision would not see the change of the first.
        for topic_partition in self._all() if command.partitions is None else dict.fromkeys(command.partitions):
            error = None
            try:
                if len(records) == MAX_PARTITIONS_PER_REQUEST:
                    raise _too_many()
                state = self._state(topic_partition)
                records.append(change_record(topic_partition.partition, state, elect(topic_partition, state)))
            except KafkaError as refusal:
                if command.partitions is None and refusal.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                error = refusal.without_frames()
            outcomes.append(PartitionOutcome(topic_partition=topic_partition, error=error))
            if command.partitions is None and len(records) == MAX_PARTITIONS_PER_REQUEST:
                break  # a further command can elect the rest
        return Decision(records=tuple(records), response=LeadersElected(outcomes=tuple(outcomes)))

    def _all(self) -> list[TopicPartition]:
        topics = self._image.topics.values()
        return [TopicPartition(topic.name, number) for topic in topics for number in sorted(topic.partitions)]

    def _state(self, topic_partition: TopicPartition) -> PartitionState:
        state = self._image.partition(*topic_partition)
        if state is None:
            raise view_refusal(self._image, topic_partition.topic) or KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_partition}"
            )
        return state

    def _preferred(self, where: TopicPartition, state: PartitionState) -> PartitionState:
        preferred = state.replicas[0]
        if state.leader == preferred:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{where} is led by its preferred leader {preferred}")
        if preferred not in state.in_sync_replicas or not self._circumstances.is_alive(preferred):
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"{where}: the preferred leader {preferred} is not alive and in sync",
            )
        return with_preferred_leader(state)

    def _named(
        self, where: TopicPartition, state: PartitionState, desired: BrokerId, kind: ElectionType
    ) -> PartitionState:
        """The state in which the desired replica leads, alone in sync. Records that the desired replica does not have
        are lost; if its log is damaged, the replica may cut the log."""
        if kind != ElectionType.UNCLEAN:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{where}: only an unclean election takes a desired leader")
        if desired not in state.replicas:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{where}: broker {desired} has no replica of it; its replicas are on brokers {list(state.replicas)}",
            )
        if state.leader != NO_LEADER:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{where} is led by broker {state.leader}")
        if not self._circumstances.is_alive(desired):
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{where}: broker {desired} is not alive")
        return replace(
            state,
            leader=desired,
            leader_epoch=LeaderEpoch(state.leader_epoch + 1),
            partition_epoch=state.partition_epoch + 1,
            in_sync_replicas=(desired,),
            eligible_leader_replicas=(),
            last_known_leaders=(),
            is_recovering=True,
            accepts_loss=True,
        )

    def _any(self, where: TopicPartition, state: PartitionState) -> PartitionState:
        if state.leader != NO_LEADER:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{where} is led by broker {state.leader}")
        alive = tuple(r for r in state.in_sync_replicas if self._circumstances.is_alive(r))
        after = with_in_sync(self._image, state, alive, unclean_election=True)
        if after.leader == NO_LEADER:
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{where}: no replica of it is alive")
        return after


def _too_many() -> KafkaError:
    """The refusal of a command with too many elections: the records of a command are one batch in the log."""
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"{MAX_PARTITIONS_PER_REQUEST} leaders have been elected, which is as many as one request may; ask in several",
    )
