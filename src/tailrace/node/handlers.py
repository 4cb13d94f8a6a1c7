"""Which handler serves which API: the table that the dispatcher is built from."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.model.ids import BrokerId
from tailrace.node.settings.config import NodeConfig
from tailrace.node.transactions import Transactions
from tailrace.protocol.messages import (
    configs,
    consumer_groups,
    coordinators,
    fetch,
    groups,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    offsets,
    produce,
    producers,
    sasl,
    topics,
    transactions,
)
from tailrace.protocol.registry import api_of
from tailrace.server.admin.config_resources import ListConfigResourcesHandler
from tailrace.server.admin.configs import DescribeConfigsHandler
from tailrace.server.admin.delete_records import DeleteRecordsHandler
from tailrace.server.admin.live_settings import LiveSettings
from tailrace.server.admin.log_dir_moves import AlterReplicaLogDirsHandler
from tailrace.server.admin.log_dirs import DescribeLogDirsHandler
from tailrace.server.api_versions import FinalizedFeatures
from tailrace.server.coordination.find_coordinator import FindCoordinatorHandler
from tailrace.server.dispatch import Handler
from tailrace.server.fetch.fetch import FetchHandler
from tailrace.server.fetch.leader_epochs import OffsetForLeaderEpochHandler
from tailrace.server.fetch.list_offsets import ListOffsetsHandler
from tailrace.server.fetch.replica_fetches import ReplicaFetches
from tailrace.server.groups.consumer_groups import ConsumerGroupDescribeHandler, ConsumerGroupHeartbeatHandler
from tailrace.server.groups.groups import DeleteGroupsHandler, DescribeGroupsHandler, ListGroupsHandler
from tailrace.server.groups.membership import HeartbeatHandler, JoinGroupHandler, LeaveGroupHandler, SyncGroupHandler
from tailrace.server.groups.offset_deletion import OffsetDeleteHandler
from tailrace.server.groups.offsets import OffsetCommitHandler, OffsetFetchHandler
from tailrace.server.groups.service import GroupCoordinatorService
from tailrace.server.metadata.cluster import DescribeClusterHandler
from tailrace.server.metadata.metadata import MetadataHandler
from tailrace.server.metadata.reachable_brokers import LeaderEndpoints
from tailrace.server.metadata.topic_partitions import DescribeTopicPartitionsHandler
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Controller
from tailrace.server.produce.produce import ProduceHandler
from tailrace.server.produce.producers import DescribeProducersHandler
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.sasl import NoSaslHandler
from tailrace.server.transactions.marker_handler import WriteTxnMarkersHandler
from tailrace.server.waiters import Deadlines, LongPolls


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers of one node work with."""

    config: NodeConfig
    cluster_id: str
    clock: Clock
    controller: Controller
    """For what this broker itself wants of the active one, wherever that is."""
    metadata: QuorumController
    admin: Mapping[int, Handler]
    """What only the active controller can carry out, with a way there."""
    replicas: ReplicaFetches
    partitions: PartitionTable
    coordinators: GroupCoordinatorService
    groups: GroupConfig
    transactions: Transactions


class Waiting:
    """The requests for records that wait: fetches for records, produces for replicas and disks."""

    def __init__(self, clock: Clock) -> None:
        self.deadlines = Deadlines(clock)
        self.polls = LongPolls(clock=clock, deadlines=self.deadlines)

    @property
    def fetches(self) -> int:
        return len(self.polls)

    @property
    def produces(self) -> int:
        return len(self.deadlines) - len(self.polls)


def build_handlers(services: Services, waiting: Waiting | None = None) -> Mapping[int, Handler]:
    """The handler of every API this node serves, by key; ApiVersions is the dispatcher's own."""
    of_records = _of_records(services, waiting if waiting is not None else Waiting(services.clock))
    return (
        of_records | _of_metadata(services) | _of_groups(services) | _of_transactions(services) | dict(services.admin)
    )


def finalized_features(services: Services) -> FinalizedFeatures:
    """What the cluster has agreed on, as of the last record that this node shows the effects of."""
    return FinalizedFeatures(services.controller.image.features, services.metadata.applied_end_offset - 1)


def _of_records(services: Services, waiting: Waiting) -> dict[int, Handler]:
    partitions, clock = services.partitions, services.clock
    deadlines = waiting.deadlines
    endpoints = LeaderEndpoints(services.controller)
    path = str(services.config.data_directory.absolute())
    return {
        _key(produce.ProduceRequest): ProduceHandler(
            partitions=partitions,
            deadlines=deadlines,
            clock=clock,
            verifier=services.transactions.verifier,
            is_verified=services.transactions.is_verified,
            endpoints=endpoints,
        ),
        _key(fetch.FetchRequest): FetchHandler(
            partitions=partitions,
            polls=waiting.polls,
            fetch_max_bytes=services.config.integer("fetch.max.bytes"),
            replicas=services.replicas,
            endpoints=endpoints,
        ),
        _key(list_offsets.ListOffsetsRequest): ListOffsetsHandler(partitions=partitions),
        _key(list_offsets.OffsetForLeaderEpochRequest): OffsetForLeaderEpochHandler(partitions=partitions),
        _key(topics.DeleteRecordsRequest): DeleteRecordsHandler(partitions=partitions, clock=clock),
        _key(producers.DescribeProducersRequest): DescribeProducersHandler(partitions=partitions),
        _key(transactions.WriteTxnMarkersRequest): WriteTxnMarkersHandler(
            partitions=partitions, clock=clock, deadlines=deadlines, pending_offsets=services.coordinators
        ),
        _key(log_dirs.DescribeLogDirsRequest): DescribeLogDirsHandler(partitions=partitions, path=path),
        _key(log_dirs.AlterReplicaLogDirsRequest): AlterReplicaLogDirsHandler(partitions=partitions, path=path),
    }


def _of_metadata(services: Services) -> dict[int, Handler]:
    config, controller, cluster_id = services.config, services.controller, services.cluster_id
    settings = LiveSettings(config)
    no_sasl = NoSaslHandler()
    return {
        _key(metadata.MetadataRequest): MetadataHandler(
            controller=controller,
            broker_id=BrokerId(config.node_id),
            cluster_id=cluster_id,
            auto_create=config.flag("auto.create.topics.enable"),
            offline_replica=services.partitions.offline_replica,
        ),
        _key(metadata.DescribeClusterRequest): DescribeClusterHandler(
            controller=controller, broker_id=BrokerId(config.node_id), cluster_id=cluster_id
        ),
        _key(metadata.DescribeTopicPartitionsRequest): DescribeTopicPartitionsHandler(
            controller=controller, offline_replica=services.partitions.offline_replica
        ),
        _key(configs.DescribeConfigsRequest): DescribeConfigsHandler(controller=controller, settings=settings),
        _key(configs.ListConfigResourcesRequest): ListConfigResourcesHandler(controller=controller),
        _key(sasl.SaslHandshakeRequest): no_sasl,
        _key(sasl.SaslAuthenticateRequest): no_sasl,
    }


def _of_groups(services: Services) -> dict[int, Handler]:
    controller, hosts = services.controller, services.coordinators
    return {
        _key(coordinators.FindCoordinatorRequest): FindCoordinatorHandler(
            controller=controller, config=services.groups, transactions=services.transactions.config
        ),
        _key(membership.JoinGroupRequest): JoinGroupHandler(coordinators=hosts),
        _key(membership.SyncGroupRequest): SyncGroupHandler(coordinators=hosts),
        _key(membership.HeartbeatRequest): HeartbeatHandler(coordinators=hosts),
        _key(membership.LeaveGroupRequest): LeaveGroupHandler(coordinators=hosts),
        _key(offsets.OffsetCommitRequest): OffsetCommitHandler(coordinators=hosts, controller=controller),
        _key(offsets.OffsetFetchRequest): OffsetFetchHandler(coordinators=hosts, controller=controller),
        _key(offsets.OffsetDeleteRequest): OffsetDeleteHandler(coordinators=hosts, controller=controller),
        _key(groups.DescribeGroupsRequest): DescribeGroupsHandler(coordinators=hosts),
        _key(groups.ListGroupsRequest): ListGroupsHandler(coordinators=hosts),
        _key(groups.DeleteGroupsRequest): DeleteGroupsHandler(coordinators=hosts),
        _key(consumer_groups.ConsumerGroupHeartbeatRequest): ConsumerGroupHeartbeatHandler(coordinators=hosts),
        _key(consumer_groups.ConsumerGroupDescribeRequest): ConsumerGroupDescribeHandler(
            coordinators=hosts, controller=controller
        ),
    }


def _of_transactions(services: Services) -> dict[int, Handler]:
    return dict(services.transactions.handlers(services.groups))


def _key(request: type[object]) -> int:
    return api_of(request).key
