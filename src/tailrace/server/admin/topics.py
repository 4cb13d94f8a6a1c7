"""CreateTopics (19), DeleteTopics (20) and CreatePartitions (37).

CreateTopics: v4 counts of -1 (KIP-464); v5 flexible, and counts and settings in the answer (KIP-525); v7 topic ids.
DeleteTopics: v3 error 73; v5 error messages; v6 by name or by id (KIP-516). CreatePartitions: v2 flexible; v3 as v2. A
topic that is named twice has one answer. The answer is sent when the change is committed and applied by this broker: so
the client may produce at once.
"""

from tailrace.metadata.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    PartitionIncrease,
    PartitionsCreated,
    ReplicaAssignment,
    TopicCreated,
    TopicDeletion,
    TopicReference,
    TopicRefused,
    TopicsCreated,
    TopicsDeleted,
    TopicSpec,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, BrokerId, TopicId
from tailrace.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tailrace.server.admin.config_entries import InheritedEntries, LiveSettings
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.slices import Stepwise, mapped

_FIRST_WITH_DELETION_DISABLED = 3


class CreateTopicsHandler:
    """Sends the creation of topics to the controller."""

    def __init__(self, *, controller: Controller, settings: LiveSettings) -> None:
        self._controller = controller
        self._settings = settings

    def handle(self, request: CreateTopicsRequest, context: RequestContext) -> None:
        command = CreateTopics(
            topics=tuple(_new_topic(topic) for topic in request.topics),
            validate_only=request.validate_only,
            requested_by=context.requested_by,
        )
        self._controller.submit(command, context.answering(request, self._response))

    def _response(self, outcome: TopicsCreated) -> Stepwise[CreateTopicsResponse]:
        inherited = self._settings.inherited_at(self._controller.image)
        topics = yield from mapped(lambda result: _result(result, inherited), outcome.results)
        return CreateTopicsResponse(topics=topics)


def _result(result: TopicCreated | TopicRefused, inherited: InheritedEntries) -> CreatableTopicResult:
    if isinstance(result, TopicRefused):
        return CreatableTopicResult(
            name=result.name, error_code=result.error.code, error_message=result.error.detail or None
        )
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.setting.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.setting.sensitive,
            )
            for entry in inherited.topic(result.overrides)
        ),
    )


def _new_topic(topic: CreatableTopic) -> TopicSpec:
    return TopicSpec(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            ReplicaAssignment(
                partition=assignment.partition_index,
                broker_ids=tuple(BrokerId(broker_id) for broker_id in assignment.broker_ids),
            )
            for assignment in topic.assignments
        ),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


class DeleteTopicsHandler:
    """Sends the deletion of topics to the controller."""

    def __init__(self, *, controller: Controller, deletion_enabled: bool) -> None:
        self._controller = controller
        self._deletion_enabled = deletion_enabled

    def handle(self, request: DeleteTopicsRequest, context: RequestContext) -> None:
        if not self._deletion_enabled:
            known = context.api_version >= _FIRST_WITH_DELETION_DISABLED
            code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
            raise KafkaError(code, "delete.topic.enable is false on this cluster")
        references = tuple(_reference(topic) for topic in request.topics) + tuple(
            TopicReference(name=name) for name in request.topic_names
        )
        command = DeleteTopics(topics=references, requested_by=context.requested_by)
        self._controller.submit(command, context.answering(request, _deletions))


def _reference(topic: DeleteTopicState) -> TopicReference:
    return TopicReference(
        name=topic.name, topic_id=None if topic.topic_id == ZERO_TOPIC_ID else TopicId(topic.topic_id)
    )


def _deletions(outcome: TopicsDeleted) -> Stepwise[DeleteTopicsResponse]:
    responses = yield from mapped(_deletion, outcome.results)
    return DeleteTopicsResponse(responses=responses)


def _deletion(result: TopicDeletion) -> DeletableTopicResult:
    error = result.error
    return DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id or ZERO_TOPIC_ID,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.detail or None,
    )


class CreatePartitionsHandler:
    """Sends the creation of partitions to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: CreatePartitionsRequest, context: RequestContext) -> None:
        topics = tuple(_more_partitions(topic) for topic in request.topics)
        command = CreatePartitions(
            topics=topics, validate_only=request.validate_only, requested_by=context.requested_by
        )
        self._controller.submit(command, context.answering(request, _added))


def _added(outcome: PartitionsCreated) -> CreatePartitionsResponse:
    results = tuple(
        CreatePartitionsTopicResult(
            name=topic.name,
            error_code=ErrorCode.NONE if topic.error is None else topic.error.code,
            error_message=None if topic.error is None else topic.error.detail or None,
        )
        for topic in outcome.outcomes
    )
    return CreatePartitionsResponse(results=results)


def _more_partitions(topic: CreatePartitionsTopic) -> PartitionIncrease:
    assignments = None
    if topic.assignments is not None:
        assignments = tuple(
            tuple(BrokerId(broker_id) for broker_id in replicas.broker_ids) for replicas in topic.assignments
        )
    return PartitionIncrease(name=topic.name, count=topic.count, assignments=assignments)
