"""Assignments of replicas to log directories of their brokers (KIP-858, pure). The codes are Kafka's."""

from collections.abc import Iterable
from dataclasses import replace

from tailrace.metadata.deciding.state_changes import change_record
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.partition_commands import AssignDirectories, DirectoriesAssigned, DirectoryAssignment
from tailrace.metadata.records import UNASSIGNED_DIRECTORY, MetadataRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId, format_topic_id
from tailrace.model.machines import Decision
from tailrace.model.partitions import PartitionState


class DirectoryAssignments:
    """One AssignDirectories command on its way to a decision."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._changed: dict[tuple[TopicId, int], PartitionState] = {}

    def decide(self, command: AssignDirectories) -> Decision[MetadataRecord, DirectoriesAssigned]:
        """One record per partition that changes; of two places for one replica the later holds, as in Kafka."""
        errors: list[KafkaError | None] = []
        for assignment in command.assignments:
            try:
                self._assign(command.broker_id, assignment)
            except KafkaError as refusal:
                errors.append(refusal)
            else:
                errors.append(None)
        return Decision(records=tuple(self._records()), response=DirectoriesAssigned(errors=tuple(errors)))

    def _records(self) -> Iterable[MetadataRecord]:
        for (topic_id, number), after in self._changed.items():
            before = self._state(topic_id, number)
            if after != before:
                yield change_record(number, before, after)

    def _assign(self, broker_id: BrokerId, assignment: DirectoryAssignment) -> None:
        where = (assignment.topic_id, assignment.partition)
        state = self._changed.get(where) or self._state(*where)
        if broker_id not in state.replicas:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has no replica of partition {where[1]}"
            )
        directories = list(state.directories or (UNASSIGNED_DIRECTORY,) * len(state.replicas))
        directories[state.replicas.index(broker_id)] = assignment.directory_id
        self._changed[where] = replace(state, directories=tuple(directories))

    def _state(self, topic_id: TopicId, number: int) -> PartitionState:
        topic = self._image.topic_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {format_topic_id(topic_id)}")
        state = topic.partitions.get(number)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{number}")
        return state
