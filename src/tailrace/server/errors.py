"""From a KafkaError to the response of an API: the one place where an error finds its field.

A response that has an error per partition, topic or group repeats the error for each one that was asked for, as Kafka
does; clients look there and not at the top.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages import (
    api_versions,
    configs,
    consumer_groups,
    coordinators,
    delete_records,
    directories,
    envelope,
    features,
    fetch,
    fetch_snapshot,
    groups,
    in_sync,
    leader_epochs,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    offsets,
    produce,
    producer_ids,
    producers,
    quorum,
    raft_voters,
    registrations,
    replicas,
    sasl,
    topics,
    transaction_markers,
    transactions,
)
from tailrace.protocol.schema import ZERO_UUID
from tailrace.server.hosts.raft_wire import unknown_snapshot_part


def error_response(request: Any, version: int, error: KafkaError) -> Any:
    """The response to `request` that says `error`. Raises LookupError for a request that has no such response."""
    return _BUILDERS[type(request)](request, version, error)


def _message(error: KafkaError) -> str | None:
    """What a person may read; nothing of an inner fault."""
    return None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else error.detail or None


def _produce(request: produce.ProduceRequest, version: int, error: KafkaError) -> produce.ProduceResponse:
    return produce.ProduceResponse(
        responses=tuple(
            produce.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    produce.PartitionProduceResponse(
                        index=partition.index, error_code=error.code, base_offset=-1, error_message=_message(error)
                    )
                    for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


_FIRST_FETCH_WITH_ERROR = 7


def _fetch(request: fetch.FetchRequest, version: int, error: KafkaError) -> fetch.FetchResponse:
    if version >= _FIRST_FETCH_WITH_ERROR:
        return fetch.FetchResponse(error_code=error.code, responses=())
    return fetch.FetchResponse(
        responses=tuple(
            fetch.FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    fetch.PartitionData(
                        partition_index=partition.partition,
                        error_code=error.code,
                        high_watermark=-1,
                        aborted_transactions=None,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _list_offsets(
    request: list_offsets.ListOffsetsRequest, version: int, error: KafkaError
) -> list_offsets.ListOffsetsResponse:
    return list_offsets.ListOffsetsResponse(
        topics=tuple(
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index, error_code=error.code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _metadata(request: metadata.MetadataRequest, version: int, error: KafkaError) -> metadata.MetadataResponse:
    return metadata.MetadataResponse(
        brokers=(),
        topics=tuple(
            metadata.MetadataResponseTopic(
                error_code=error.code,
                name=topic.name if topic.name is not None or version >= 12 else "",
                topic_id=topic.topic_id,
                partitions=(),
            )
            for topic in request.topics or ()
        ),
        error_code=error.code,
    )


def _describe_cluster(
    request: metadata.DescribeClusterRequest, version: int, error: KafkaError
) -> metadata.DescribeClusterResponse:
    return metadata.DescribeClusterResponse(
        error_code=error.code,
        error_message=_message(error),
        cluster_id="",
        brokers=(),
    )


def _offset_commit(
    request: offsets.OffsetCommitRequest, version: int, error: KafkaError
) -> offsets.OffsetCommitResponse:
    return offsets.OffsetCommitResponse(
        topics=tuple(
            offsets.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    offsets.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error.code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _offset_fetch(request: offsets.OffsetFetchRequest, version: int, error: KafkaError) -> offsets.OffsetFetchResponse:
    return offsets.OffsetFetchResponse(
        error_code=error.code,
        groups=tuple(
            offsets.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code) for group in request.groups
        ),
        # Version 1 has no error of its own: it stands at each partition.
        topics=tuple(
            offsets.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    offsets.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, error_code=error.code
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics or ()
        ),
    )


def _find_coordinator(
    request: coordinators.FindCoordinatorRequest, version: int, error: KafkaError
) -> coordinators.FindCoordinatorResponse:
    return coordinators.FindCoordinatorResponse(
        error_code=error.code,
        error_message=_message(error),
        node_id=-1,
        port=-1,
        coordinators=tuple(
            coordinators.Coordinator(key=key, node_id=-1, port=-1, error_code=error.code, error_message=_message(error))
            for key in request.coordinator_keys
        ),
    )


_FIRST_JOIN_WITHOUT_NAME = 7


def _join_group(request: membership.JoinGroupRequest, version: int, error: KafkaError) -> membership.JoinGroupResponse:
    return membership.JoinGroupResponse(
        error_code=error.code,
        protocol_name=None if version >= _FIRST_JOIN_WITHOUT_NAME else "",
        leader="",
        member_id=request.member_id,
        members=(),
    )


def _sync_group(request: membership.SyncGroupRequest, version: int, error: KafkaError) -> membership.SyncGroupResponse:
    return membership.SyncGroupResponse(error_code=error.code, assignment=b"")


def _consumer_heartbeat(
    request: consumer_groups.ConsumerGroupHeartbeatRequest, version: int, error: KafkaError
) -> consumer_groups.ConsumerGroupHeartbeatResponse:
    return consumer_groups.ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=_message(error))


def _describe_consumer_groups(
    request: consumer_groups.ConsumerGroupDescribeRequest, version: int, error: KafkaError
) -> consumer_groups.ConsumerGroupDescribeResponse:
    return consumer_groups.ConsumerGroupDescribeResponse(
        groups=tuple(
            consumer_groups.DescribedConsumerGroup(
                error_code=error.code,
                error_message=_message(error),
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=(),
            )
            for group_id in request.group_ids
        )
    )


def _describe_groups(
    request: groups.DescribeGroupsRequest, version: int, error: KafkaError
) -> groups.DescribeGroupsResponse:
    return groups.DescribeGroupsResponse(
        groups=tuple(
            groups.DescribedGroup(
                error_code=error.code,
                error_message=_message(error),
                group_id=group_id,
                group_state="",
                protocol_type="",
                protocol_data="",
                members=(),
            )
            for group_id in request.groups
        )
    )


def _delete_groups(request: groups.DeleteGroupsRequest, version: int, error: KafkaError) -> groups.DeleteGroupsResponse:
    return groups.DeleteGroupsResponse(
        results=tuple(
            groups.DeletableGroupResult(group_id=group_id, error_code=error.code) for group_id in request.groups_names
        )
    )


def _create_topics(request: topics.CreateTopicsRequest, version: int, error: KafkaError) -> topics.CreateTopicsResponse:
    return topics.CreateTopicsResponse(
        topics=tuple(
            topics.CreatableTopicResult(name=topic.name, error_code=error.code, error_message=_message(error))
            for topic in request.topics
        )
    )


def _delete_topics(request: topics.DeleteTopicsRequest, version: int, error: KafkaError) -> topics.DeleteTopicsResponse:
    asked = request.topics or tuple(topics.DeleteTopicState(name=name) for name in request.topic_names)
    return topics.DeleteTopicsResponse(
        responses=tuple(
            topics.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=_message(error)
            )
            for topic in asked
        )
    )


def _leader_epochs(
    request: leader_epochs.OffsetForLeaderEpochRequest, version: int, error: KafkaError
) -> leader_epochs.OffsetForLeaderEpochResponse:
    return leader_epochs.OffsetForLeaderEpochResponse(
        topics=tuple(
            leader_epochs.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    leader_epochs.EpochEndOffset(error_code=error.code, partition=partition.partition)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _describe_configs(
    request: configs.DescribeConfigsRequest, version: int, error: KafkaError
) -> configs.DescribeConfigsResponse:
    return configs.DescribeConfigsResponse(
        results=tuple(
            configs.DescribeConfigsResult(
                error_code=error.code,
                error_message=_message(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(),
            )
            for resource in request.resources
        )
    )


def _describe_topic_partitions(
    request: metadata.DescribeTopicPartitionsRequest, version: int, error: KafkaError
) -> metadata.DescribeTopicPartitionsResponse:
    return metadata.DescribeTopicPartitionsResponse(
        topics=tuple(
            metadata.DescribeTopicPartitionsResponseTopic(
                error_code=error.code, name=topic.name, topic_id=ZERO_UUID, partitions=()
            )
            for topic in request.topics
        )
    )


def _create_partitions(
    request: topics.CreatePartitionsRequest, version: int, error: KafkaError
) -> topics.CreatePartitionsResponse:
    return topics.CreatePartitionsResponse(
        results=tuple(
            topics.CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=_message(error))
            for topic in request.topics
        )
    )


def _altered(
    request: configs.AlterConfigsRequest | configs.IncrementalAlterConfigsRequest, error: KafkaError
) -> tuple[configs.AlterConfigsResourceResponse, ...]:
    return tuple(
        configs.AlterConfigsResourceResponse(
            error_code=error.code,
            error_message=_message(error),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    )


def _delete_records(
    request: delete_records.DeleteRecordsRequest, version: int, error: KafkaError
) -> delete_records.DeleteRecordsResponse:
    return delete_records.DeleteRecordsResponse(
        topics=tuple(
            delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index, low_watermark=-1, error_code=error.code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _describe_producers(
    request: producers.DescribeProducersRequest, version: int, error: KafkaError
) -> producers.DescribeProducersResponse:
    return producers.DescribeProducersResponse(
        topics=tuple(
            producers.TopicProducers(
                name=topic.name,
                partitions=tuple(
                    producers.PartitionProducers(
                        partition_index=index,
                        error_code=error.code,
                        error_message=_message(error),
                        active_producers=(),
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        )
    )


def _elect_leaders(
    request: replicas.ElectLeadersRequest, version: int, error: KafkaError
) -> replicas.ElectLeadersResponse:
    return replicas.ElectLeadersResponse(
        error_code=error.code,
        # Version 0 has no error of its own: it stands at each partition.
        replica_election_results=tuple(
            replicas.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    replicas.PartitionResult(partition_id=index, error_code=error.code, error_message=_message(error))
                    for index in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


def _alter_replica_log_dirs(
    request: log_dirs.AlterReplicaLogDirsRequest, version: int, error: KafkaError
) -> log_dirs.AlterReplicaLogDirsResponse:
    return log_dirs.AlterReplicaLogDirsResponse(
        results=tuple(
            log_dirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=tuple(
                    log_dirs.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error.code)
                    for index in topic.partitions
                ),
            )
            for directory in request.dirs
            for topic in directory.topics
        )
    )


def _sasl_authenticate(
    request: sasl.SaslAuthenticateRequest, version: int, error: KafkaError
) -> sasl.SaslAuthenticateResponse:
    return sasl.SaslAuthenticateResponse(error_code=error.code, error_message=_message(error), auth_bytes=b"")


def _fetch_snapshot(
    request: fetch_snapshot.FetchSnapshotRequest, _: int, error: KafkaError
) -> fetch_snapshot.FetchSnapshotResponse:
    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return fetch_snapshot.FetchSnapshotResponse(error_code=error.code, topics=())
    return fetch_snapshot.FetchSnapshotResponse(
        topics=tuple(
            fetch_snapshot.SnapshotPartTopic(
                name=topic.name, partitions=tuple(unknown_snapshot_part(one) for one in topic.partitions)
            )
            for topic in request.topics
        )
    )


def _write_txn_markers(
    request: transaction_markers.WriteTxnMarkersRequest, version: int, error: KafkaError
) -> transaction_markers.WriteTxnMarkersResponse:
    return transaction_markers.WriteTxnMarkersResponse(
        markers=tuple(
            transaction_markers.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    transaction_markers.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            transaction_markers.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=error.code
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def _add_partitions_to_txn(
    request: transactions.AddPartitionsToTxnRequest, version: int, error: KafkaError
) -> transactions.AddPartitionsToTxnResponse:
    def refused(
        topics: tuple[transactions.AddPartitionsToTxnTopic, ...],
    ) -> tuple[transactions.AddPartitionsToTxnTopicResult, ...]:
        return tuple(
            transactions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    transactions.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=error.code
                    )
                    for index in topic.partitions
                ),
            )
            for topic in topics
        )

    return transactions.AddPartitionsToTxnResponse(
        error_code=error.code,
        results_by_transaction=tuple(
            transactions.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id, topic_results=refused(transaction.topics)
            )
            for transaction in request.transactions
        ),
        results_by_topic_v3_and_below=refused(request.v3_and_below_topics),
    )


def _txn_offset_commit(
    request: transactions.TxnOffsetCommitRequest, version: int, error: KafkaError
) -> transactions.TxnOffsetCommitResponse:
    return transactions.TxnOffsetCommitResponse(
        topics=tuple(
            transactions.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    transactions.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error.code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _describe_transactions(
    request: transactions.DescribeTransactionsRequest, version: int, error: KafkaError
) -> transactions.DescribeTransactionsResponse:
    return transactions.DescribeTransactionsResponse(
        transaction_states=tuple(
            transactions.DescribedTransaction(
                error_code=error.code,
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=0,
                producer_id=0,
                producer_epoch=0,
                topics=(),
            )
            for transactional_id in request.transactional_ids
        )
    )


_BUILDERS: Mapping[type[Any], Callable[[Any, int, KafkaError], Any]] = {
    produce.ProduceRequest: _produce,
    fetch.FetchRequest: _fetch,
    list_offsets.ListOffsetsRequest: _list_offsets,
    transaction_markers.WriteTxnMarkersRequest: _write_txn_markers,
    transactions.AddPartitionsToTxnRequest: _add_partitions_to_txn,
    transactions.AddOffsetsToTxnRequest: lambda _, __, error: transactions.AddOffsetsToTxnResponse(
        error_code=error.code
    ),
    transactions.EndTxnRequest: lambda _, __, error: transactions.EndTxnResponse(error_code=error.code),
    transactions.TxnOffsetCommitRequest: _txn_offset_commit,
    transactions.DescribeTransactionsRequest: _describe_transactions,
    transactions.ListTransactionsRequest: lambda _, __, error: transactions.ListTransactionsResponse(
        error_code=error.code, transaction_states=()
    ),
    metadata.MetadataRequest: _metadata,
    metadata.DescribeClusterRequest: _describe_cluster,
    offsets.OffsetCommitRequest: _offset_commit,
    offsets.OffsetFetchRequest: _offset_fetch,
    coordinators.FindCoordinatorRequest: _find_coordinator,
    membership.JoinGroupRequest: _join_group,
    membership.HeartbeatRequest: lambda _, __, error: membership.HeartbeatResponse(error_code=error.code),
    membership.LeaveGroupRequest: lambda _, __, error: membership.LeaveGroupResponse(error_code=error.code),
    membership.SyncGroupRequest: _sync_group,
    groups.DescribeGroupsRequest: _describe_groups,
    consumer_groups.ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
    consumer_groups.ConsumerGroupDescribeRequest: _describe_consumer_groups,
    groups.ListGroupsRequest: lambda _, __, error: groups.ListGroupsResponse(error_code=error.code, groups=()),
    groups.DeleteGroupsRequest: _delete_groups,
    api_versions.ApiVersionsRequest: lambda _, __, error: api_versions.ApiVersionsResponse(
        error_code=error.code, api_keys=()
    ),
    topics.CreateTopicsRequest: _create_topics,
    topics.DeleteTopicsRequest: _delete_topics,
    producer_ids.InitProducerIdRequest: lambda _, __, error: producer_ids.InitProducerIdResponse(
        error_code=error.code, producer_epoch=-1
    ),
    leader_epochs.OffsetForLeaderEpochRequest: _leader_epochs,
    configs.DescribeConfigsRequest: _describe_configs,
    metadata.DescribeTopicPartitionsRequest: _describe_topic_partitions,
    topics.CreatePartitionsRequest: _create_partitions,
    configs.AlterConfigsRequest: lambda request, _, error: configs.AlterConfigsResponse(
        responses=_altered(request, error)
    ),
    configs.IncrementalAlterConfigsRequest: lambda request, _, error: configs.IncrementalAlterConfigsResponse(
        responses=_altered(request, error)
    ),
    delete_records.DeleteRecordsRequest: _delete_records,
    log_dirs.DescribeLogDirsRequest: lambda _, __, error: log_dirs.DescribeLogDirsResponse(
        error_code=error.code, results=()
    ),
    producers.DescribeProducersRequest: _describe_producers,
    offsets.OffsetDeleteRequest: lambda _, __, error: offsets.OffsetDeleteResponse(error_code=error.code, topics=()),
    sasl.SaslHandshakeRequest: lambda _, __, error: sasl.SaslHandshakeResponse(error_code=error.code, mechanisms=()),
    sasl.SaslAuthenticateRequest: _sasl_authenticate,
    log_dirs.AlterReplicaLogDirsRequest: _alter_replica_log_dirs,
    replicas.ElectLeadersRequest: _elect_leaders,
    replicas.AlterPartitionReassignmentsRequest: lambda _, __, error: replicas.AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=_message(error), responses=()
    ),
    replicas.ListPartitionReassignmentsRequest: lambda _, __, error: replicas.ListPartitionReassignmentsResponse(
        error_code=error.code, error_message=_message(error), topics=()
    ),
    quorum.DescribeQuorumRequest: lambda _, __, error: quorum.DescribeQuorumResponse(
        error_code=error.code, error_message=_message(error), topics=()
    ),
    quorum.VoteRequest: lambda _, __, error: quorum.VoteResponse(error_code=error.code, topics=()),
    quorum.BeginQuorumEpochRequest: lambda _, __, error: quorum.BeginQuorumEpochResponse(
        error_code=error.code, topics=()
    ),
    quorum.EndQuorumEpochRequest: lambda _, __, error: quorum.EndQuorumEpochResponse(error_code=error.code, topics=()),
    fetch_snapshot.FetchSnapshotRequest: _fetch_snapshot,
    raft_voters.AddRaftVoterRequest: lambda _, __, error: raft_voters.AddRaftVoterResponse(
        error_code=error.code, error_message=_message(error)
    ),
    raft_voters.RemoveRaftVoterRequest: lambda _, __, error: raft_voters.RemoveRaftVoterResponse(
        error_code=error.code, error_message=_message(error)
    ),
    raft_voters.UpdateRaftVoterRequest: lambda _, __, error: raft_voters.UpdateRaftVoterResponse(error_code=error.code),
    features.UpdateFeaturesRequest: lambda _, __, error: features.UpdateFeaturesResponse(
        error_code=error.code, error_message=_message(error)
    ),
    in_sync.AlterPartitionRequest: lambda _, __, error: in_sync.AlterPartitionResponse(
        error_code=error.code, topics=()
    ),
    envelope.EnvelopeRequest: lambda _, __, error: envelope.EnvelopeResponse(error_code=error.code),
    registrations.BrokerRegistrationRequest: lambda _, __, error: registrations.BrokerRegistrationResponse(
        error_code=error.code
    ),
    registrations.BrokerHeartbeatRequest: lambda _, __, error: registrations.BrokerHeartbeatResponse(
        error_code=error.code, should_shut_down=False
    ),
    producer_ids.AllocateProducerIdsRequest: lambda _, __, error: producer_ids.AllocateProducerIdsResponse(
        error_code=error.code
    ),
    registrations.ControllerRegistrationRequest: lambda _, __, error: registrations.ControllerRegistrationResponse(
        error_code=error.code, error_message=_message(error)
    ),
    directories.AssignReplicasToDirsRequest: lambda _, __, error: directories.AssignReplicasToDirsResponse(
        error_code=error.code, directories=()
    ),
    registrations.UnregisterBrokerRequest: lambda _, __, error: registrations.UnregisterBrokerResponse(
        error_code=error.code, error_message=_message(error)
    ),
    configs.ListConfigResourcesRequest: lambda _, __, error: configs.ListConfigResourcesResponse(
        error_code=error.code, config_resources=()
    ),
}
