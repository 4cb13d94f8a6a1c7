"""Topics that a broker wants created for its clients or its coordinators, as CreateTopics (19), and the answer."""

from typing import Final

from tailrace.metadata.commands import CreateTopics, TopicCreated, TopicRefused, TopicsCreated, TopicSpec
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CREATE_TOPICS_VERSION: Final = 7
_TIMEOUT_MS: Final = 30_000


def create_topics_request(command: CreateTopics) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=tuple(map(_creatable, command.topics)), timeout_ms=_TIMEOUT_MS, validate_only=command.validate_only
    )


def _creatable(topic: TopicSpec) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=one.partition, broker_ids=one.broker_ids)
            for one in topic.assignments
        ),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs),
    )


def topics_created(command: CreateTopics, response: CreateTopicsResponse) -> TopicsCreated:
    """The results by name. The settings that a topic was given are those of the command."""
    configs = {topic.name: topic.configs for topic in command.topics}

    def result(told: CreatableTopicResult) -> TopicCreated | TopicRefused:
        if told.error_code:
            error = KafkaError(_code(told.error_code), told.error_message or "")
            return TopicRefused(name=told.name, error=error)
        return TopicCreated(
            name=told.name,
            topic_id=TopicId(told.topic_id),
            num_partitions=told.num_partitions,
            replication_factor=told.replication_factor,
            overrides={name: value for name, value in configs.get(told.name, ()) if value is not None},
        )

    return TopicsCreated(results=tuple(map(result, response.topics)))


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
