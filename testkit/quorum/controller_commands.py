"""Commands to the controller from a client whose name is not known."""

from tailrace.metadata.commands import (
    AlterConfigs,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    PartitionIncrease,
    ResourceChanges,
    TopicReference,
    TopicSpec,
)


def create_topics(*topics: TopicSpec, validate_only: bool = False) -> CreateTopics:
    return CreateTopics(topics=topics, validate_only=validate_only, requested_by="")


def delete_topics(*topics: TopicReference) -> DeleteTopics:
    return DeleteTopics(topics=topics, requested_by="")


def create_partitions(*topics: PartitionIncrease, validate_only: bool = False) -> CreatePartitions:
    return CreatePartitions(topics=topics, validate_only=validate_only, requested_by="")


def alter_configs(*resources: ResourceChanges, validate_only: bool = False) -> AlterConfigs:
    return AlterConfigs(resources=resources, validate_only=validate_only, requested_by="")
