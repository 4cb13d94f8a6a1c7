"""The table of requests: one row per API with every difference between APIs except handler and fields.

The key and the versions of a row stand in its message's declaration. The rows are read for the listeners that serve an
API (`node`), the elements a request may have (`server.dispatch`), the length of its frame (`net.limits`), forwarding to
the active controller (`server.controller_link`), the connection to a peer that it takes (`node.peers`), and the access
that a client needs.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, Flag, StrEnum, auto
from sys import modules
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tailrace.model.access import Operation
from tailrace.protocol.access import (
    EVERYONE,
    Accesses,
    on_added_partitions,
    on_all_topics,
    on_cluster,
    on_configured,
    on_coordinated,
    on_described_controllers,
    on_each_group,
    on_each_transactional_id,
    on_fetched_groups,
    on_fetched_topics,
    on_groups,
    on_producer,
    on_token_owner,
    on_token_owners,
    on_topics,
    on_transactional_ids,
)
from tailrace.protocol.declaration import api_key_of, schema_of
from tailrace.protocol.messages import (
    api_versions,
    configs,
    consumer_groups,
    envelope,
    fetch,
    groups,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    offsets,
    produce,
    quorum,
    registrations,
    replicas,
    security,
    sinks,
    topics,
    transactions,
)
from tailrace.protocol.schema import MAX_ELEMENTS


class Listeners(Flag):
    """The listeners that serve an API (`listeners` in Kafka's definitions)."""

    CLIENTS = auto()
    """The listeners for clients, also for brokers as peers."""
    CONTROLLERS = auto()


class FrameClass(Enum):
    """The class of a frame, by which a listener limits its size."""

    LARGE = auto()
    """The frame carries bytes that clients made, as many as the clients' own settings allow."""
    FETCH = auto()
    OTHER = auto()


class ForwardingKind(Enum):
    """Whether a broker passes a request on to the active controller, in an envelope (KIP-590)."""

    NEVER = auto()
    QUESTION = auto()
    """Passed on; changes nothing."""
    CHANGE = auto()
    CHANGE_OF_BROKER = auto()
    """A change that may be about one broker, and is then refused by other brokers."""


class PeerConnection(StrEnum):
    """The connections from one node to another: answers come in the order of their requests, so a request that can wait
    at the other end, or must not wait, has one of its own."""

    REQUESTS = "requests"
    FETCH = "fetch"
    SNAPSHOT = "snapshot"
    QUORUM = "quorum"
    HEARTBEAT = "heartbeat"
    ENVELOPE = "envelope"
    MARKERS = "markers"


class Api(NamedTuple):
    """A kind of request. Versions `min_version` to `max_version` are served, `advertised_min` and up announced."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    advertised_min: int
    flexible_from: int
    listeners: Listeners
    frame_class: FrameClass
    max_elements: int
    """The elements that all arrays of one request may have together."""
    forwarding: ForwardingKind
    connection: PeerConnection
    access: Accesses
    """The accesses that a request needs (decision 0089)."""

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


_CONTROLLERS: Final = Listeners.CONTROLLERS
_BOTH: Final = Listeners.CLIENTS | Listeners.CONTROLLERS
_COSTLY: Final = 20_000
"""The most elements of a request whose elements cost 10 us and more each: 190,000 names to delete held up all other
requests for 5 s. The limit is twice that of Kafka's controller; for more elements a tool has to send several
requests."""
_OF_FETCH: Final = 2 * MAX_ELEMENTS
"""A Fetch has 200,000 partitions at most, and beside them their topics. The frame's size limits the number that can
come."""

_FIRST_FOR_LIBRDKAFKA: Final = 0
"""librdkafka turns codecs off unless Produce is announced from version 0 (KAFKA-18659). 0 to 2 are refused."""


def _api(
    request: type[Any],
    access: Accesses,
    *,
    listeners: Listeners = Listeners.CLIENTS,
    frame_class: FrameClass = FrameClass.OTHER,
    max_elements: int = MAX_ELEMENTS,
    forwarding: ForwardingKind = ForwardingKind.NEVER,
    connection: PeerConnection = PeerConnection.REQUESTS,
    advertised_min: int | None = None,
) -> Api:
    """A row; the response stands beside its request. Forwarded APIs are served by both listeners."""
    name = request.__name__.removesuffix("Request")
    response = getattr(modules[request.__module__], f"{name}Response")
    schema = schema_of(request)
    versions = schema.versions
    assert schema_of(response).versions == versions
    return Api(
        key=api_key_of(request),
        name=name,
        request=request,
        response=response,
        min_version=versions.first,
        max_version=versions.last,
        advertised_min=versions.first if advertised_min is None else advertised_min,
        flexible_from=schema.flexible.first,
        listeners=listeners if forwarding is ForwardingKind.NEVER else _BOTH,
        frame_class=frame_class,
        max_elements=max_elements,
        forwarding=forwarding,
        connection=connection,
        access=access,
    )


READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE

_DESCRIBED: Final = on_cluster(DESCRIBE)
_ALTERED: Final = on_cluster(ALTER)
_PEER: Final = on_cluster(Operation.CLUSTER_ACTION)
"""The access of a broker or a controller to another node."""
_MEMBER: Final = on_groups(READ, "group_id")
_TRANSACTION: Final = on_transactional_ids(WRITE, "transactional_id")
_SINK: Final = on_transactional_ids(WRITE, "sink_id")

_ROWS: Final = (
    _api(
        produce.ProduceRequest,
        on_topics(WRITE, "topic_data") + on_transactional_ids(WRITE, "transactional_id"),
        frame_class=FrameClass.LARGE,
        advertised_min=_FIRST_FOR_LIBRDKAFKA,
    ),
    _api(
        fetch.FetchRequest,
        on_fetched_topics(),
        listeners=_BOTH,
        frame_class=FrameClass.FETCH,
        max_elements=_OF_FETCH,
        connection=PeerConnection.FETCH,
    ),
    _api(list_offsets.ListOffsetsRequest, on_topics(DESCRIBE, "topics")),
    _api(metadata.MetadataRequest, on_topics(DESCRIBE, "topics")),
    _api(offsets.OffsetCommitRequest, _MEMBER + on_topics(READ, "topics"), frame_class=FrameClass.LARGE),
    _api(
        offsets.OffsetFetchRequest,
        on_fetched_groups() + on_topics(DESCRIBE, "topics") + on_topics(DESCRIBE, "groups", "topics"),
    ),
    _api(groups.FindCoordinatorRequest, on_coordinated(), max_elements=_COSTLY),
    _api(membership.JoinGroupRequest, _MEMBER, frame_class=FrameClass.LARGE),
    _api(membership.HeartbeatRequest, _MEMBER),
    _api(membership.LeaveGroupRequest, _MEMBER, max_elements=_COSTLY),
    _api(membership.SyncGroupRequest, _MEMBER, frame_class=FrameClass.LARGE),
    _api(groups.DescribeGroupsRequest, on_each_group(DESCRIBE, "groups"), max_elements=_COSTLY),
    _api(groups.ListGroupsRequest, _DESCRIBED),
    _api(api_versions.SaslHandshakeRequest, EVERYONE, listeners=_BOTH),
    _api(api_versions.ApiVersionsRequest, EVERYONE, listeners=_BOTH),
    _api(
        topics.CreateTopicsRequest, on_topics(CREATE, "topics"), max_elements=_COSTLY, forwarding=ForwardingKind.CHANGE
    ),
    _api(
        topics.DeleteTopicsRequest,
        on_topics(DELETE, "topics") + on_topics(DELETE, "topic_names"),
        max_elements=_COSTLY,
        forwarding=ForwardingKind.CHANGE,
    ),
    _api(topics.DeleteRecordsRequest, on_topics(DELETE, "topics"), max_elements=_COSTLY),
    _api(transactions.InitProducerIdRequest, on_producer()),
    _api(list_offsets.OffsetForLeaderEpochRequest, on_topics(DESCRIBE, "topics")),
    _api(transactions.AddPartitionsToTxnRequest, on_added_partitions(), max_elements=_COSTLY),
    _api(transactions.AddOffsetsToTxnRequest, _TRANSACTION + _MEMBER),
    _api(transactions.EndTxnRequest, _TRANSACTION),
    _api(transactions.WriteTxnMarkersRequest, _PEER, max_elements=_COSTLY, connection=PeerConnection.MARKERS),
    _api(
        transactions.TxnOffsetCommitRequest,
        _TRANSACTION + _MEMBER + on_topics(READ, "topics"),
        frame_class=FrameClass.LARGE,
    ),
    _api(security.DescribeAclsRequest, _DESCRIBED, listeners=_BOTH),
    _api(security.CreateAclsRequest, _ALTERED, max_elements=_COSTLY, forwarding=ForwardingKind.CHANGE),
    _api(security.DeleteAclsRequest, _ALTERED, max_elements=_COSTLY, forwarding=ForwardingKind.CHANGE),
    _api(
        configs.DescribeConfigsRequest, on_configured(Operation.DESCRIBE_CONFIGS), listeners=_BOTH, max_elements=_COSTLY
    ),
    _api(
        configs.AlterConfigsRequest,
        on_configured(Operation.ALTER_CONFIGS),
        max_elements=_COSTLY,
        forwarding=ForwardingKind.CHANGE_OF_BROKER,
    ),
    _api(log_dirs.AlterReplicaLogDirsRequest, _ALTERED),
    _api(log_dirs.DescribeLogDirsRequest, _DESCRIBED),
    _api(api_versions.SaslAuthenticateRequest, EVERYONE, listeners=_BOTH),
    _api(
        topics.CreatePartitionsRequest,
        on_topics(ALTER, "topics"),
        max_elements=_COSTLY,
        forwarding=ForwardingKind.CHANGE,
    ),
    _api(security.CreateDelegationTokenRequest, on_token_owner(), listeners=_BOTH),
    _api(security.RenewDelegationTokenRequest, EVERYONE, listeners=_BOTH),
    _api(security.ExpireDelegationTokenRequest, EVERYONE, listeners=_BOTH),
    _api(security.DescribeDelegationTokenRequest, on_token_owners()),
    _api(groups.DeleteGroupsRequest, on_each_group(DELETE, "groups_names"), max_elements=_COSTLY),
    _api(replicas.ElectLeadersRequest, _ALTERED, max_elements=_COSTLY, forwarding=ForwardingKind.CHANGE),
    _api(
        configs.IncrementalAlterConfigsRequest,
        on_configured(Operation.ALTER_CONFIGS),
        max_elements=_COSTLY,
        forwarding=ForwardingKind.CHANGE_OF_BROKER,
    ),
    _api(replicas.AlterPartitionReassignmentsRequest, _ALTERED, forwarding=ForwardingKind.CHANGE),
    _api(replicas.ListPartitionReassignmentsRequest, _DESCRIBED, forwarding=ForwardingKind.QUESTION),
    _api(offsets.OffsetDeleteRequest, on_groups(DELETE, "group_id") + on_topics(READ, "topics"), max_elements=_COSTLY),
    _api(configs.DescribeClientQuotasRequest, on_cluster(Operation.DESCRIBE_CONFIGS), max_elements=_COSTLY),
    _api(
        configs.AlterClientQuotasRequest,
        on_cluster(Operation.ALTER_CONFIGS),
        max_elements=_COSTLY,
        forwarding=ForwardingKind.CHANGE,
    ),
    _api(security.DescribeUserScramCredentialsRequest, _DESCRIBED, listeners=_BOTH, max_elements=_COSTLY),
    _api(
        security.AlterUserScramCredentialsRequest,
        _ALTERED,
        max_elements=_COSTLY,
        forwarding=ForwardingKind.CHANGE,
    ),
    _api(quorum.VoteRequest, _PEER, listeners=_CONTROLLERS, connection=PeerConnection.QUORUM),
    _api(quorum.BeginQuorumEpochRequest, _PEER, listeners=_CONTROLLERS, connection=PeerConnection.QUORUM),
    _api(quorum.EndQuorumEpochRequest, _PEER, listeners=_CONTROLLERS, connection=PeerConnection.QUORUM),
    _api(quorum.DescribeQuorumRequest, _DESCRIBED, forwarding=ForwardingKind.QUESTION),
    _api(replicas.AlterPartitionRequest, _PEER, listeners=_CONTROLLERS),
    _api(registrations.UpdateFeaturesRequest, _ALTERED, forwarding=ForwardingKind.CHANGE),
    _api(envelope.EnvelopeRequest, _PEER, listeners=_CONTROLLERS, connection=PeerConnection.ENVELOPE),
    _api(quorum.FetchSnapshotRequest, _PEER, listeners=_CONTROLLERS, connection=PeerConnection.SNAPSHOT),
    _api(metadata.DescribeClusterRequest, on_described_controllers(), listeners=_BOTH),
    _api(transactions.DescribeProducersRequest, on_topics(READ, "topics"), max_elements=_COSTLY),
    _api(registrations.BrokerRegistrationRequest, _PEER, listeners=_CONTROLLERS),
    _api(registrations.BrokerHeartbeatRequest, _PEER, listeners=_CONTROLLERS, connection=PeerConnection.HEARTBEAT),
    _api(registrations.UnregisterBrokerRequest, _ALTERED, forwarding=ForwardingKind.CHANGE),
    _api(
        transactions.DescribeTransactionsRequest,
        on_each_transactional_id(DESCRIBE, "transactional_ids"),
        max_elements=_COSTLY,
    ),
    _api(transactions.ListTransactionsRequest, EVERYONE),
    _api(transactions.AllocateProducerIdsRequest, _PEER, listeners=_CONTROLLERS),
    _api(consumer_groups.ConsumerGroupHeartbeatRequest, _MEMBER + on_all_topics(DESCRIBE, "subscribed_topic_names")),
    _api(consumer_groups.ConsumerGroupDescribeRequest, on_each_group(DESCRIBE, "group_ids"), max_elements=_COSTLY),
    _api(registrations.ControllerRegistrationRequest, _PEER, listeners=_CONTROLLERS),
    _api(log_dirs.AssignReplicasToDirsRequest, _PEER, listeners=_CONTROLLERS),
    _api(configs.ListConfigResourcesRequest, on_cluster(Operation.DESCRIBE_CONFIGS)),
    _api(metadata.DescribeTopicPartitionsRequest, on_topics(DESCRIBE, "topics")),
    _api(quorum.AddRaftVoterRequest, _ALTERED, forwarding=ForwardingKind.CHANGE),
    _api(quorum.RemoveRaftVoterRequest, _ALTERED, forwarding=ForwardingKind.CHANGE),
    _api(quorum.UpdateRaftVoterRequest, _PEER, listeners=_CONTROLLERS),
    _api(fetch.DescribeFetchSessionsRequest, _DESCRIBED),
    _api(sinks.CommitSinkRequest, _SINK + on_transactional_ids(WRITE, "members", "transactional_id")),
    _api(sinks.DescribeSinksRequest, on_each_transactional_id(DESCRIBE, "sink_ids"), max_elements=_COSTLY),
    _api(sinks.RenewSinkRunRequest, _SINK),
)


def _by_key(apis: Iterable[Api]) -> Mapping[int, Api]:
    return MappingProxyType({api.key: api for api in apis})


APIS: Final = _by_key(_ROWS)

CONTROLLER_APIS: Final = _by_key(api for api in APIS.values() if Listeners.CONTROLLERS in api.listeners)
"""The APIs of listeners of controllers."""

CLIENT_APIS: Final = _by_key(api for api in APIS.values() if Listeners.CLIENTS in api.listeners)
"""The APIs of listeners for clients."""

FORWARDED_APIS: Final = _by_key(api for api in APIS.values() if api.forwarding is not ForwardingKind.NEVER)
"""The APIs that brokers pass on, and that an envelope may hold."""

FIRST_KEY_OF_OURS: Final = 10_000
"""Kafka has no key from here on (decision 0053)."""

OWN_APIS: Final = _by_key(api for api in APIS.values() if api.key >= FIRST_KEY_OF_OURS)
"""The APIs that Kafka does not have."""

_BY_CLASS = {cls: api for api in APIS.values() for cls in (api.request, api.response)}


def request_type(key: int) -> type[Any]:
    """The request class of an API key. Raises KeyError for a key that is not served."""
    return APIS[key].request


def api_of(cls: type[Any]) -> Api:
    """The API that a request or response class belongs to. Raises KeyError for any other class."""
    return _BY_CLASS[cls]
