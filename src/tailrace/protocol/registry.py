"""The table of requests: which key means what, in which versions. The one owner of API keys and versions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tailrace.protocol.declaration import schema_of
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


class Api(NamedTuple):
    """One kind of request. Versions `min_version` to `max_version` are served, `advertised_min` and up announced."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    advertised_min: int
    flexible_from: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


_PAIRS: tuple[tuple[type[Any], type[Any]], ...] = (
    (produce.ProduceRequest, produce.ProduceResponse),
    (fetch.FetchRequest, fetch.FetchResponse),
    (list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse),
    (metadata.MetadataRequest, metadata.MetadataResponse),
    (offsets.OffsetCommitRequest, offsets.OffsetCommitResponse),
    (offsets.OffsetFetchRequest, offsets.OffsetFetchResponse),
    (coordinators.FindCoordinatorRequest, coordinators.FindCoordinatorResponse),
    (membership.JoinGroupRequest, membership.JoinGroupResponse),
    (membership.HeartbeatRequest, membership.HeartbeatResponse),
    (membership.LeaveGroupRequest, membership.LeaveGroupResponse),
    (membership.SyncGroupRequest, membership.SyncGroupResponse),
    (groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    (groups.ListGroupsRequest, groups.ListGroupsResponse),
    (api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse),
    (topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    (topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    (producer_ids.InitProducerIdRequest, producer_ids.InitProducerIdResponse),
    (leader_epochs.OffsetForLeaderEpochRequest, leader_epochs.OffsetForLeaderEpochResponse),
    (configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    (groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    (metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
    (consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse),
    (consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse),
    (metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse),
    (topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    (configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    (configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse),
    (delete_records.DeleteRecordsRequest, delete_records.DeleteRecordsResponse),
    (log_dirs.DescribeLogDirsRequest, log_dirs.DescribeLogDirsResponse),
    (producers.DescribeProducersRequest, producers.DescribeProducersResponse),
    (offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse),
    (sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse),
    (sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse),
    (log_dirs.AlterReplicaLogDirsRequest, log_dirs.AlterReplicaLogDirsResponse),
    (replicas.ElectLeadersRequest, replicas.ElectLeadersResponse),
    (replicas.AlterPartitionReassignmentsRequest, replicas.AlterPartitionReassignmentsResponse),
    (replicas.ListPartitionReassignmentsRequest, replicas.ListPartitionReassignmentsResponse),
    (quorum.VoteRequest, quorum.VoteResponse),
    (quorum.BeginQuorumEpochRequest, quorum.BeginQuorumEpochResponse),
    (quorum.EndQuorumEpochRequest, quorum.EndQuorumEpochResponse),
    (quorum.DescribeQuorumRequest, quorum.DescribeQuorumResponse),
    (in_sync.AlterPartitionRequest, in_sync.AlterPartitionResponse),
    (envelope.EnvelopeRequest, envelope.EnvelopeResponse),
    (fetch_snapshot.FetchSnapshotRequest, fetch_snapshot.FetchSnapshotResponse),
    (registrations.BrokerRegistrationRequest, registrations.BrokerRegistrationResponse),
    (registrations.BrokerHeartbeatRequest, registrations.BrokerHeartbeatResponse),
    (features.UpdateFeaturesRequest, features.UpdateFeaturesResponse),
    (registrations.UnregisterBrokerRequest, registrations.UnregisterBrokerResponse),
    (producer_ids.AllocateProducerIdsRequest, producer_ids.AllocateProducerIdsResponse),
    (registrations.ControllerRegistrationRequest, registrations.ControllerRegistrationResponse),
    (directories.AssignReplicasToDirsRequest, directories.AssignReplicasToDirsResponse),
    (configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse),
    (transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
    (transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
    (transactions.EndTxnRequest, transactions.EndTxnResponse),
    (transaction_markers.WriteTxnMarkersRequest, transaction_markers.WriteTxnMarkersResponse),
    (transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    (transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse),
    (transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
    (raft_voters.AddRaftVoterRequest, raft_voters.AddRaftVoterResponse),
    (raft_voters.RemoveRaftVoterRequest, raft_voters.RemoveRaftVoterResponse),
    (raft_voters.UpdateRaftVoterRequest, raft_voters.UpdateRaftVoterResponse),
)

_FOR_CONTROLLERS = frozenset((52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82))
"""What a listener for clients does not serve, whoever asks (`listeners` in Kafka's definitions)."""
_FOR_BOTH = frozenset((1, 17, 18, 19, 20, 32, 33, 36, 37, 43, 44, 45, 46, 55, 57, 60, 64, 80, 81))
"""What a listener of controllers serves besides."""

_ADVERTISED_MIN = {0: 0}
"""librdkafka turns codecs off unless Produce is announced from version 0 (KAFKA-18659). 0 to 2 are refused."""


def _api(request: type[Any], response: type[Any]) -> Api:
    schema = schema_of(request)
    key, versions = schema.api_key, schema.versions
    assert key is not None
    assert schema_of(response).versions == versions
    return Api(
        key=key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=versions.first,
        max_version=versions.last,
        advertised_min=_ADVERTISED_MIN.get(key, versions.first),
        flexible_from=schema.flexible.first,
    )


APIS: Mapping[int, Api] = MappingProxyType({api.key: api for api in (_api(*pair) for pair in _PAIRS)})

CONTROLLER_APIS: Mapping[int, Api] = MappingProxyType(
    {key: api for key, api in APIS.items() if key in _FOR_CONTROLLERS or key in _FOR_BOTH}
)
"""Those that a listener of controllers may serve."""

CLIENT_APIS: Mapping[int, Api] = MappingProxyType(
    {key: api for key, api in APIS.items() if key not in _FOR_CONTROLLERS}
)
"""Those that a listener for clients may serve."""

_BY_CLASS = {cls: api for api in APIS.values() for cls in (api.request, api.response)}


def request_type(key: int) -> type[Any]:
    """The request class of an API key. Raises KeyError for a key that is not served."""
    return APIS[key].request


def api_of(cls: type[Any]) -> Api:
    """The API that a request or response class belongs to. Raises KeyError for any other class."""
    return _BY_CLASS[cls]
