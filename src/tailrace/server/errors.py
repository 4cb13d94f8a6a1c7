"""The error response of each API: only this module puts a KafkaError into the fields of a response.

1. Every field `error_code` or `partition_error_code` gets the code of the error, and every `error_message` gets the
   text for a person.
2. A response that has an error per partition, topic or group repeats the error for each requested partition, topic or
   group, as Kafka does: clients look at each partition, topic or group, not at the top. `_REPEATED` has the fields.
3. A field without a default and without meaning in an error is blank: no text, no elements, 0.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.steps import result_of
from tailrace.protocol.declaration import BOOL, REQUIRED, Array, Fixed, RecordBytes, Text, WireType
from tailrace.protocol.messages import (
    configs,
    consumer_groups,
    fetch,
    groups,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    offsets,
    produce,
    quorum,
    replicas,
    security,
    topics,
    transactions,
)
from tailrace.protocol.registry import api_of
from tailrace.protocol.schema import replace, schema_of
from tailrace.server.slices import STEP, Stepwise, mapped

T = TypeVar("T")

_ITSELF: Final = ""
_CODES: Final = ("error_code", "partition_error_code")
_FIRST_FETCH_WITH_ERROR = 7
_FIRST_JOIN_WITHOUT_NAME = 7
_FIRST_METADATA_WITHOUT_NAME = 12


def error_response(request: Any, version: int, error: KafkaError) -> Any:
    """The response to `request` with `error`. Raises LookupError for a request without an error response."""
    return result_of(error_response_in_steps(request, version, error))


def error_response_in_steps(request: Any, version: int, error: KafkaError) -> Stepwise[Any]:
    """The same as `error_response`, in steps."""
    kind = type(request)
    if kind is metadata.MetadataRequest:
        return (yield from _metadata(request, version, error))
    if (build := _OF_ANOTHER_SHAPE.get(kind)) is not None:
        return build(request, version, error)
    return (yield from _part(api_of(kind).response, request, _REPEATED.get(kind, {}), error))


def refused_elements_in_steps(request: Any, version: int, error: KafkaError) -> Stepwise[Any]:
    """The response to `request` with `error` for each element, and without an error of the whole response. Raises
    LookupError as `error_response`."""
    kind = type(request)
    if kind is offsets.OffsetDeleteRequest:
        response = yield from _part(api_of(kind).response, request, _DELETED_OFFSETS, error)
    else:
        response = yield from error_response_in_steps(request, version, error)
    return replace(response, error_code=ErrorCode.NONE) if hasattr(response, "error_code") else response


class _Each(NamedTuple):
    """An element of the response for each element of the request; a null array counts as empty."""

    source: str
    """The attribute of the request, or of its part, with the elements."""
    kind: type[Any]
    fields: Mapping[str, Any]


def _each(source: str, kind: type[Any], **fields: Any) -> _Each:
    """Fields by name: a text names an attribute of the requested element, `_ITSELF` is that element, another `_Each`
    describes its parts, and anything else is a value."""
    return _Each(source, kind, fields)


def _part(kind: type[Any], requested: Any, fields: Mapping[str, Any], error: KafkaError) -> Stepwise[Any]:
    """A response, or a part of a response, of this kind."""
    values: dict[str, Any] = {}
    for field in schema_of(kind).fields:
        name = field.name
        if name in fields:
            values[name] = yield from _found(fields[name], requested, error)
        else:
            values |= _in_error(field, error)
    return kind(**values)


def refused_part(kind: type[T], error: KafkaError, **values: Any) -> T:
    """A part of a response that has an error of its own, and these values."""
    for field in schema_of(kind).fields:
        if field.name not in values:
            values |= _in_error(field, error)
    return kind(**values)


def _in_error(field: Any, error: KafkaError) -> dict[str, Any]:
    if field.name in _CODES:
        return {field.name: error.code}
    if field.name == "error_message":
        return {field.name: _message(error)}
    return {field.name: _blank(field.type)} if field.default is REQUIRED else {}


def _found(origin: Any, requested: Any, error: KafkaError) -> Stepwise[Any]:
    if isinstance(origin, _Each):
        parts: list[Any] = []
        for element in getattr(requested, origin.source) or ():
            if len(parts) % STEP == STEP - 1:
                yield
            parts.append((yield from _part(origin.kind, element, origin.fields, error)))
        return tuple(parts)
    if isinstance(origin, str):
        return requested if origin == _ITSELF else getattr(requested, origin)
    return origin


def _blank(wire: WireType) -> Any:
    match wire:
        case Text():
            return ""
        case Array():
            return ()
        case RecordBytes():
            return None
        case Fixed(code="16s", size=size):
            return bytes(size)
        case Fixed():
            return False if wire == BOOL else 0
        case _:
            return b""


def _message(error: KafkaError) -> str | None:
    """The text of the error for users, without details of an internal fault."""
    return None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else error.detail or None


def _transaction_topics(source: str) -> _Each:
    partitions = _each("partitions", transactions.AddPartitionsToTxnPartitionResult, partition_index=_ITSELF)
    return _each(source, transactions.AddPartitionsToTxnTopicResult, name="name", results_by_partition=partitions)


_ALTERED = {
    "responses": _each(
        "resources",
        configs.AlterConfigsResourceResponse,
        resource_type="resource_type",
        resource_name="resource_name",
    )
}

_REPEATED: Mapping[type[Any], Mapping[str, Any]] = {
    produce.ProduceRequest: {
        "responses": _each(
            "topic_data",
            produce.TopicProduceResponse,
            name="name",
            topic_id="topic_id",
            partition_responses=_each(
                "partition_data", produce.PartitionProduceResponse, index="index", base_offset=-1
            ),
        )
    },
    list_offsets.ListOffsetsRequest: {
        "topics": _each(
            "topics",
            list_offsets.ListOffsetsTopicResponse,
            name="name",
            partitions=_each(
                "partitions", list_offsets.ListOffsetsPartitionResponse, partition_index="partition_index"
            ),
        )
    },
    list_offsets.OffsetForLeaderEpochRequest: {
        "topics": _each(
            "topics",
            list_offsets.OffsetForLeaderTopicResult,
            topic="topic",
            partitions=_each("partitions", list_offsets.EpochEndOffset, partition="partition"),
        )
    },
    topics.DeleteRecordsRequest: {
        "topics": _each(
            "topics",
            topics.DeleteRecordsTopicResult,
            name="name",
            partitions=_each(
                "partitions",
                topics.DeleteRecordsPartitionResult,
                partition_index="partition_index",
                low_watermark=-1,
            ),
        )
    },
    transactions.DescribeProducersRequest: {
        "topics": _each(
            "topics",
            transactions.TopicProducers,
            name="name",
            partitions=_each("partition_indexes", transactions.PartitionProducers, partition_index=_ITSELF),
        )
    },
    transactions.InitProducerIdRequest: {"producer_epoch": -1},
    topics.CreateTopicsRequest: {"topics": _each("topics", topics.CreatableTopicResult, name="name")},
    topics.CreatePartitionsRequest: {"results": _each("topics", topics.CreatePartitionsTopicResult, name="name")},
    metadata.DescribeTopicPartitionsRequest: {
        "topics": _each("topics", metadata.DescribeTopicPartitionsResponseTopic, name="name")
    },
    security.CreateAclsRequest: {"results": _each("creations", security.AclCreationResult)},
    security.DeleteAclsRequest: {"filter_results": _each("filters", security.DeleteAclsFilterResult)},
    configs.DescribeClientQuotasRequest: {"entries": None},
    configs.AlterClientQuotasRequest: {"entries": _each("entries", configs.AlteredQuotasResult, entity="entity")},
    configs.DescribeConfigsRequest: {
        "results": _each(
            "resources", configs.DescribeConfigsResult, resource_type="resource_type", resource_name="resource_name"
        )
    },
    configs.AlterConfigsRequest: _ALTERED,
    configs.IncrementalAlterConfigsRequest: _ALTERED,
    replicas.ElectLeadersRequest: {
        # Version 0 has no top-level error: each partition has the error.
        "replica_election_results": _each(
            "topic_partitions",
            replicas.ReplicaElectionResult,
            topic="topic",
            partition_result=_each("partitions", replicas.PartitionResult, partition_id=_ITSELF),
        )
    },
    groups.FindCoordinatorRequest: {
        "node_id": -1,
        "port": -1,
        "coordinators": _each("coordinator_keys", groups.Coordinator, key=_ITSELF, node_id=-1, port=-1),
    },
    groups.DescribeGroupsRequest: {"groups": _each("groups", groups.DescribedGroup, group_id=_ITSELF)},
    groups.DeleteGroupsRequest: {"results": _each("groups_names", groups.DeletableGroupResult, group_id=_ITSELF)},
    consumer_groups.ConsumerGroupDescribeRequest: {
        "groups": _each("group_ids", consumer_groups.DescribedConsumerGroup, group_id=_ITSELF)
    },
    offsets.OffsetCommitRequest: {
        "topics": _each(
            "topics",
            offsets.OffsetCommitResponseTopic,
            name="name",
            topic_id="topic_id",
            partitions=_each("partitions", offsets.OffsetCommitResponsePartition, partition_index="partition_index"),
        )
    },
    offsets.OffsetFetchRequest: {
        "groups": _each("groups", offsets.OffsetFetchResponseGroup, group_id="group_id"),
        # Version 1 has no top-level error: each partition has it.
        "topics": _each(
            "topics",
            offsets.OffsetFetchResponseTopic,
            name="name",
            partitions=_each(
                "partition_indexes", offsets.OffsetFetchResponsePartition, partition_index=_ITSELF, committed_offset=-1
            ),
        ),
    },
    transactions.WriteTxnMarkersRequest: {
        "markers": _each(
            "markers",
            transactions.WritableTxnMarkerResult,
            producer_id="producer_id",
            topics=_each(
                "topics",
                transactions.WritableTxnMarkerTopicResult,
                name="name",
                partitions=_each(
                    "partition_indexes", transactions.WritableTxnMarkerPartitionResult, partition_index=_ITSELF
                ),
            ),
        )
    },
    transactions.AddPartitionsToTxnRequest: {
        "results_by_transaction": _each(
            "transactions",
            transactions.AddPartitionsToTxnResult,
            transactional_id="transactional_id",
            topic_results=_transaction_topics("topics"),
        ),
        "results_by_topic_v3_and_below": _transaction_topics("v3_and_below_topics"),
    },
    transactions.TxnOffsetCommitRequest: {
        "topics": _each(
            "topics",
            transactions.TxnOffsetCommitResponseTopic,
            name="name",
            partitions=_each(
                "partitions", transactions.TxnOffsetCommitResponsePartition, partition_index="partition_index"
            ),
        )
    },
    transactions.DescribeTransactionsRequest: {
        "transaction_states": _each("transactional_ids", transactions.DescribedTransaction, transactional_id=_ITSELF)
    },
}

_DELETED_OFFSETS = {
    "topics": _each(
        "topics",
        offsets.OffsetDeleteResponseTopic,
        name="name",
        partitions=_each("partitions", offsets.OffsetDeleteResponsePartition, partition_index="partition_index"),
    )
}
"""The elements of OffsetDelete: an error of the whole response names no elements."""

_FETCHED = {
    "responses": _each(
        "topics",
        fetch.FetchableTopicResponse,
        topic="topic",
        partitions=_each(
            "partitions",
            fetch.PartitionData,
            partition_index="partition",
            high_watermark=-1,
            aborted_transactions=None,
        ),
    )
}


def _fetch(request: fetch.FetchRequest, version: int, error: KafkaError) -> fetch.FetchResponse:
    if version >= _FIRST_FETCH_WITH_ERROR:
        return fetch.FetchResponse(error_code=error.code, responses=())
    response: fetch.FetchResponse = result_of(
        _part(fetch.FetchResponse, request, {**_FETCHED, "error_code": ErrorCode.NONE}, error)
    )
    return response


def _metadata(
    request: metadata.MetadataRequest, version: int, error: KafkaError
) -> Stepwise[metadata.MetadataResponse]:
    topics = yield from mapped(
        lambda topic: metadata.MetadataResponseTopic(
            error_code=error.code,
            name=topic.name if topic.name is not None or version >= _FIRST_METADATA_WITHOUT_NAME else "",
            topic_id=topic.topic_id,
            partitions=(),
        ),
        request.topics or (),
    )
    return metadata.MetadataResponse(brokers=(), topics=topics, error_code=error.code)


def _join_group(request: membership.JoinGroupRequest, version: int, error: KafkaError) -> membership.JoinGroupResponse:
    return membership.JoinGroupResponse(
        error_code=error.code,
        protocol_name=None if version >= _FIRST_JOIN_WITHOUT_NAME else "",
        leader="",
        member_id=request.member_id,
        members=(),
    )


def _delete_topics(request: topics.DeleteTopicsRequest, version: int, error: KafkaError) -> topics.DeleteTopicsResponse:
    requested = request.topics or tuple(topics.DeleteTopicState(name=name) for name in request.topic_names)
    return topics.DeleteTopicsResponse(
        responses=tuple(
            topics.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=_message(error)
            )
            for topic in requested
        )
    )


def _alter_replica_log_dirs(
    request: log_dirs.AlterReplicaLogDirsRequest, version: int, error: KafkaError
) -> log_dirs.AlterReplicaLogDirsResponse:
    partitions = _each("partitions", log_dirs.AlterReplicaLogDirPartitionResult, partition_index=_ITSELF)
    by_topic = _each("topics", log_dirs.AlterReplicaLogDirTopicResult, topic_name="name", partitions=partitions)
    return log_dirs.AlterReplicaLogDirsResponse(
        results=tuple(result for directory in request.dirs for result in result_of(_found(by_topic, directory, error)))
    )


def _alter_scram_users(
    request: security.AlterUserScramCredentialsRequest, _: int, error: KafkaError
) -> security.AlterUserScramCredentialsResponse:
    names = dict.fromkeys(
        [*(deletion.name for deletion in request.deletions), *(upsertion.name for upsertion in request.upsertions)]
    )
    return security.AlterUserScramCredentialsResponse(
        results=tuple(
            security.AlteredScramUser(user=name, error_code=error.code, error_message=_message(error)) for name in names
        )
    )


def unknown_snapshot_part(
    wanted: quorum.SnapshotPosition, error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
) -> quorum.SnapshotPart:
    """The answer for a partition without snapshots."""
    return quorum.SnapshotPart(
        index=wanted.partition,
        error_code=error,
        snapshot_id=wanted.snapshot_id,
        size=0,
        position=wanted.position,
        unaligned_records=b"",
    )


def _fetch_snapshot(request: quorum.FetchSnapshotRequest, _: int, error: KafkaError) -> quorum.FetchSnapshotResponse:
    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return quorum.FetchSnapshotResponse(error_code=error.code, topics=())
    return quorum.FetchSnapshotResponse(
        topics=tuple(
            quorum.SnapshotPartTopic(
                name=topic.name, partitions=tuple(unknown_snapshot_part(partition) for partition in topic.partitions)
            )
            for topic in request.topics
        )
    )


_OF_ANOTHER_SHAPE: Mapping[type[Any], Callable[[Any, int, KafkaError], Any]] = {
    fetch.FetchRequest: _fetch,
    membership.JoinGroupRequest: _join_group,
    topics.DeleteTopicsRequest: _delete_topics,
    log_dirs.AlterReplicaLogDirsRequest: _alter_replica_log_dirs,
    quorum.FetchSnapshotRequest: _fetch_snapshot,
    security.AlterUserScramCredentialsRequest: _alter_scram_users,
}
"""Error responses that depend on the version, or have another shape than the request."""
