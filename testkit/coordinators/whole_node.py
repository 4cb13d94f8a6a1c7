"""A node that serves every API, and a request of each API that gets far on this node."""

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.metadata.feature_levels import METADATA_VERSION
from tailrace.model.identity import ANONYMOUS
from tailrace.protocol.declaration import Array, Blob, Fixed, Nested, RecordBytes, Text, WireType, schema_of
from tailrace.protocol.headers import encode_request
from tailrace.protocol.messages import (
    configs,
    consumer_groups,
    groups,
    list_offsets,
    membership,
    metadata,
    offsets,
    quorum,
    registrations,
    replicas,
)
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tailrace.protocol.messages.transactions import InitProducerIdRequest
from tailrace.protocol.registry import APIS, Api, api_of
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import BROKER, Exchange, batch_of
from testkit.nodes.ports import RecordingConnection

ALL_TIME_MS = 2**31


class WholeNode(GroupPath):
    """A node with every handler, two topics, the second empty, and a group of a single member that has committed."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, is_empty: bool = False) -> None:
        """`is_empty`: the node has no topics and no group."""
        settings = {"auto.create.topics.enable": "true", **(settings or {})}
        super().__init__("/data", files=SimulatedDisk(), settings=settings)
        # One listener for all: what controllers serve, under what brokers do.
        self.serve({**self.apis.handlers, **self.broker.handlers})
        if is_empty:
            return
        self.create_topics("orders", partitions=2)
        self.create_topics("empty")
        for _ in range(3):
            assert self.produce("orders", b"one", b"two").produced.error_code == 0
        self.find_coordinator("group")
        self.member_id, self.generation_id = self.form_group("group")
        self.commit("group", "orders", 1, generation_id=self.generation_id, member_id=self.member_id)

    def exchange(
        self, request: Any, version: int, *, client_id: str | None = "test", principal: str = ANONYMOUS
    ) -> tuple[Exchange, RecordingConnection]:
        """Send the request on a connection of its own, and wait for the end of all time."""
        connection = RecordingConnection(principal=principal)
        slot = connection.next_slot()
        frame = bytearray(b"".join(encode_request(request, version, correlation_id=7, client_id=client_id)))
        self.dispatcher.on_frame(connection, slot, memoryview(frame))
        self.end_turn()
        frame.append(0)  # raises BufferError if a view is kept, and with it the whole receive buffer
        exchange = Exchange(connection, slot, APIS[api_of(type(request)).key].response, version)
        if not exchange.is_answered:
            self.clock.advance(ALL_TIME_MS)
        return exchange, connection

    def check_alive(self) -> None:
        """The node serves others as if nothing had been."""
        self.create_topics("honest")
        offset = self.produce("honest", b"honest").produced.base_offset
        assert self.fetch("honest", offset).fetched.records is not None
        assert self.connection.is_open


def sensible(api: Api, node: WholeNode) -> Any:
    """A request that gets far, with every field of every version filled in."""
    if api.request in SENSIBLE:
        return SENSIBLE[api.request](node)
    return plain(Nested(schema_of(api.request)), "")


def plain(kind: WireType, name: str) -> Any:
    """A value of this type; names are of what exists."""
    match kind:
        case Fixed(code="?"):
            return True
        case Fixed(code="16s"):
            return b"an id of 16 byte"
        case Fixed():
            return 2 if name == "resource_type" else 0
        case Text():
            return "group" if name == "group_id" else "orders"
        case Blob() | RecordBytes():
            return b"bytes"
        case Array(element=element):
            return (plain(element, name),)
        case Nested(schema=schema):
            return schema.cls(**{field.name: plain(field.type, field.name) for field in schema.fields})


def produce_request(node: WholeNode) -> ProduceRequest:
    records = batch_of(b"value", now=node.clock.now_ms, producer_id=5, producer_epoch=0, base_sequence=0)
    data = PartitionProduceData(index=1, records=records)
    topic = TopicProduceData(name="orders", topic_id=node.topic_id("orders"), partition_data=(data,))
    return ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=(topic,))


def fetch_request(node: WholeNode) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1_000)
    topic = FetchTopic(topic="orders", topic_id=node.topic_id("orders"), partitions=(wanted,))
    return FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=10_000, topics=(topic,))


def list_offsets_request(_: WholeNode) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="orders", partitions=(wanted,)),))


def leader_epochs_request(_: WholeNode) -> list_offsets.OffsetForLeaderEpochRequest:
    wanted = list_offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = list_offsets.OffsetForLeaderTopic(topic="orders", partitions=(wanted,))
    return list_offsets.OffsetForLeaderEpochRequest(topics=(topic,))


def create_topics_request(_: WholeNode) -> CreateTopicsRequest:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=(BROKER,))
    config = CreatableTopicConfig(name="retention.ms", value="1000")
    counted = CreatableTopic(name="new", num_partitions=2, replication_factor=1, assignments=(), configs=(config,))
    placed = CreatableTopic(
        name="placed", num_partitions=-1, replication_factor=-1, assignments=(assignment,), configs=()
    )
    return CreateTopicsRequest(topics=(counted, placed))


def delete_topics_request(_: WholeNode) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=(DeleteTopicState(name="gone"),), topic_names=("gone",), timeout_ms=1_000)


def offset_commit_request(node: WholeNode) -> offsets.OffsetCommitRequest:
    partition = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m")
    topic = offsets.OffsetCommitRequestTopic(name="orders", topic_id=node.topic_id("orders"), partitions=(partition,))
    return offsets.OffsetCommitRequest(
        group_id="group",
        generation_id_or_member_epoch=node.generation_id,
        member_id=node.member_id,
        topics=(topic,),
    )


def offset_fetch_request(node: WholeNode) -> offsets.OffsetFetchRequest:
    topic = offsets.OffsetFetchRequestTopics(name="orders", topic_id=node.topic_id("orders"), partition_indexes=(0,))
    return offsets.OffsetFetchRequest(
        group_id="group",
        topics=(offsets.OffsetFetchRequestTopic(name="orders", partition_indexes=(0,)),),
        groups=(offsets.OffsetFetchRequestGroup(group_id="group", topics=(topic,)),),
    )


def join_request(node: WholeNode) -> membership.JoinGroupRequest:
    return membership.JoinGroupRequest(
        group_id="group",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=node.member_id,
        protocol_type="consumer",
        protocols=(membership.JoinGroupRequestProtocol(name="range", metadata=b"topics"),),
        reason="why",
    )


def sync_request(node: WholeNode) -> membership.SyncGroupRequest:
    assignment = membership.SyncGroupRequestAssignment(member_id=node.member_id, assignment=b"mine")
    return membership.SyncGroupRequest(
        group_id="group",
        generation_id=node.generation_id,
        member_id=node.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=(assignment,),
    )


def metadata_request(node: WholeNode) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(name="orders"),))


def election_request(_: WholeNode) -> replicas.ElectLeadersRequest:
    topic = replicas.ElectLeadersTopic(topic="orders", partitions=(0, 1))
    return replicas.ElectLeadersRequest(topic_partitions=(topic,), timeout_ms=1_000)


def reassignment_request(_: WholeNode) -> replicas.AlterPartitionReassignmentsRequest:
    partition = replicas.ReassignablePartition(partition_index=0, replicas=(BROKER,))
    topic = replicas.ReassignableTopic(name="orders", partitions=(partition,))
    return replicas.AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=(topic,))


def quorum_request(_: WholeNode) -> quorum.DescribeQuorumRequest:
    partition = quorum.DescribedQuorumPartition(partition_index=0)
    topic = quorum.DescribedQuorumTopic(topic_name="__cluster_metadata", partitions=(partition,))
    return quorum.DescribeQuorumRequest(topics=(topic,))


def features_request(_: WholeNode) -> registrations.UpdateFeaturesRequest:
    update = registrations.FeatureUpdateKey(feature="metadata.version", max_version_level=METADATA_VERSION)
    return registrations.UpdateFeaturesRequest(timeout_ms=1_000, feature_updates=(update,))


SENSIBLE: dict[type, Callable[[WholeNode], Any]] = {
    ProduceRequest: produce_request,
    FetchRequest: fetch_request,
    ListOffsetsRequest: list_offsets_request,
    list_offsets.OffsetForLeaderEpochRequest: leader_epochs_request,
    metadata.MetadataRequest: metadata_request,
    metadata.DescribeClusterRequest: lambda _: metadata.DescribeClusterRequest(
        include_cluster_authorized_operations=True
    ),
    CreateTopicsRequest: create_topics_request,
    DeleteTopicsRequest: delete_topics_request,
    configs.DescribeConfigsRequest: lambda _: configs.DescribeConfigsRequest(
        resources=(
            configs.DescribeConfigsResource(resource_type=2, resource_name="orders", configuration_keys=None),
            configs.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=("node.id",)),
        ),
        include_synonyms=True,
        include_documentation=True,
    ),
    InitProducerIdRequest: lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000),
    ApiVersionsRequest: lambda _: ApiVersionsRequest(client_software_name="test", client_software_version="1.0"),
    groups.FindCoordinatorRequest: lambda _: groups.FindCoordinatorRequest(key="group", coordinator_keys=("group",)),
    membership.JoinGroupRequest: join_request,
    membership.SyncGroupRequest: sync_request,
    membership.HeartbeatRequest: lambda node: membership.HeartbeatRequest(
        group_id="group", generation_id=node.generation_id, member_id=node.member_id
    ),
    membership.LeaveGroupRequest: lambda node: membership.LeaveGroupRequest(
        group_id="group",
        member_id=node.member_id,
        members=(membership.MemberIdentity(member_id=node.member_id, reason="why"),),
    ),
    offsets.OffsetCommitRequest: offset_commit_request,
    offsets.OffsetFetchRequest: offset_fetch_request,
    consumer_groups.ConsumerGroupHeartbeatRequest: lambda _: consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id="consumers",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=("orders",),
        topic_partitions=(),
    ),
    consumer_groups.ConsumerGroupDescribeRequest: lambda _: consumer_groups.ConsumerGroupDescribeRequest(
        group_ids=("consumers",), include_details=True
    ),
    groups.DescribeGroupsRequest: lambda _: groups.DescribeGroupsRequest(groups=("group",)),
    groups.ListGroupsRequest: lambda _: groups.ListGroupsRequest(states_filter=("Stable",), types_filter=("classic",)),
    replicas.ElectLeadersRequest: election_request,
    replicas.AlterPartitionReassignmentsRequest: reassignment_request,
    quorum.DescribeQuorumRequest: quorum_request,
    registrations.UpdateFeaturesRequest: features_request,
    groups.DeleteGroupsRequest: lambda _: groups.DeleteGroupsRequest(groups_names=("group",)),
}
