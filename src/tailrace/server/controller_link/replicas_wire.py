"""Changes of in-sync replicas that leaders request, as Kafka's messages: to the wire and back. The rules of
`controller_wire` hold here too."""

from dataclasses import replace

from tailrace.metadata.commands import (
    AlterPartition,
    InSyncChange,
    InSyncOutcome,
    InSyncReplica,
    LeaveReason,
    PartitionsAltered,
)
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId, format_topic_id
from tailrace.model.partitions import PartitionState
from tailrace.protocol.messages import replicas
from tailrace.server.controller_link.controller_wire import refusal

_FIRST_WITH_BROKER_EPOCHS = 3
_RECOVERED, _RECOVERING = 0, 1
_STAYS = 0


def alter_partition_request(command: AlterPartition) -> replicas.AlterPartitionRequest:
    topics: dict[TopicId, list[InSyncChange]] = {}
    for change in command.changes:
        topics.setdefault(change.topic_id, []).append(change)
    return replicas.AlterPartitionRequest(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        topics=tuple(
            replicas.AlterPartitionTopic(topic_id=topic_id, partitions=tuple(map(_proposal, changes)))
            for topic_id, changes in topics.items()
        ),
        secret=command.secret,
        # A replica that leaves may be unable to apply records, so the controller's answer is used at once.
        wants_end_offset=not any(change.leaving for change in command.changes),
    )


def _proposal(change: InSyncChange) -> replicas.AlterPartitionData:
    return replicas.AlterPartitionData(
        partition_index=change.partition,
        leader_epoch=change.leader_epoch,
        new_isr=tuple(replica.broker_id for replica in change.in_sync_replicas),
        new_isr_with_epochs=tuple(
            replicas.InSyncBroker(broker_id=replica.broker_id, broker_epoch=replica.broker_epoch)
            for replica in change.in_sync_replicas
        ),
        leader_recovery_state=_RECOVERING if change.is_recovering else _RECOVERED,
        partition_epoch=change.partition_epoch,
        leaving=_STAYS if change.leaving is None else change.leaving,
    )


def alter_partition_command(request: replicas.AlterPartitionRequest, version: int) -> AlterPartition:
    """Raises KafkaError INVALID_REQUEST for an unknown reason to leave."""
    return AlterPartition(
        broker_id=BrokerId(request.broker_id),
        broker_epoch=request.broker_epoch,
        secret=request.secret,
        changes=tuple(
            InSyncChange(
                topic_id=TopicId(topic.topic_id),
                partition=proposal.partition_index,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                in_sync_replicas=_replicas(proposal, version),
                is_recovering=proposal.leader_recovery_state == _RECOVERING,
                leaving=_leaving(proposal),
            )
            for topic in request.topics
            for proposal in topic.partitions
        ),
    )


def _leaving(proposal: replicas.AlterPartitionData) -> LeaveReason | None:
    if proposal.leaving == _STAYS:
        return None
    try:
        return LeaveReason(proposal.leaving)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no replica leaves for reason {proposal.leaving}") from None


def _replicas(proposal: replicas.AlterPartitionData, version: int) -> tuple[InSyncReplica, ...]:
    if version < _FIRST_WITH_BROKER_EPOCHS:
        return tuple(InSyncReplica(broker_id=BrokerId(broker_id)) for broker_id in proposal.new_isr)
    return tuple(
        InSyncReplica(broker_id=BrokerId(replica.broker_id), broker_epoch=replica.broker_epoch)
        for replica in proposal.new_isr_with_epochs
    )


def altered_response(answer: PartitionsAltered, end_offset: int) -> replicas.AlterPartitionResponse:
    """`end_offset`: -1 if the request did not ask for the offset."""
    topics: dict[TopicId, list[replicas.AlteredPartition]] = {}
    for outcome in answer.outcomes:
        topics.setdefault(outcome.topic_id, []).append(_altered(outcome))
    return replicas.AlterPartitionResponse(
        topics=tuple(
            replicas.AlteredTopic(topic_id=topic_id, partitions=tuple(altered)) for topic_id, altered in topics.items()
        ),
        metadata_end_offset=end_offset,
    )


def _altered(outcome: InSyncOutcome) -> replicas.AlteredPartition:
    state = outcome.result
    if isinstance(state, KafkaError):
        return replicas.AlteredPartition(
            partition_index=outcome.partition, error_code=state.code, leader_id=-1, leader_epoch=-1, partition_epoch=-1
        )
    return replicas.AlteredPartition(
        partition_index=outcome.partition,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.in_sync_replicas,
        leader_recovery_state=_RECOVERING if state.is_recovering else _RECOVERED,
        partition_epoch=state.partition_epoch,
    )


def partitions_altered(
    command: AlterPartition, response: replicas.AlterPartitionResponse, image: ClusterImage
) -> PartitionsAltered | KafkaError:
    """An outcome per change, in order. Fields that the response does not have are taken from `image`."""
    error = refusal(response.error_code, "the in-sync replicas")
    if error is not None:
        return error
    answered = {
        (topic.topic_id, altered.partition_index): altered for topic in response.topics for altered in topic.partitions
    }
    return PartitionsAltered(
        outcomes=tuple(
            InSyncOutcome(
                topic_id=change.topic_id,
                partition=change.partition,
                result=_result(change, answered.get((change.topic_id, change.partition)), image),
            )
            for change in command.changes
        )
    )


def _result(
    change: InSyncChange, answered: replicas.AlteredPartition | None, image: ClusterImage
) -> PartitionState | KafkaError:
    where = f"partition {change.partition} of {format_topic_id(change.topic_id)}"
    if answered is None:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the controller says nothing of {where}")
    error = refusal(answered.error_code, where)
    if error is not None:
        return error
    topic = image.topic_by_id(change.topic_id)
    state = None if topic is None else topic.partitions.get(change.partition)
    if state is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{where} is gone")
    return replace(
        state,
        leader=BrokerId(answered.leader_id),
        leader_epoch=LeaderEpoch(answered.leader_epoch),
        in_sync_replicas=tuple(BrokerId(broker_id) for broker_id in answered.isr),
        is_recovering=answered.leader_recovery_state == _RECOVERING,
        partition_epoch=answered.partition_epoch,
    )
