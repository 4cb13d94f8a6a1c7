"""Which handler serves which API: the table that the dispatcher is built from."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.model.ids import BrokerId
from tailrace.node.config import NodeConfig
from tailrace.protocol.messages import (
    configs,
    coordinators,
    fetch,
    groups,
    leader_epochs,
    list_offsets,
    membership,
    metadata,
    offsets,
    produce,
    producer_ids,
    topics,
)
from tailrace.protocol.registry import api_of
from tailrace.server.data.partitions import PartitionTable
from tailrace.server.dispatch import Handler
from tailrace.server.handlers.cluster import DescribeClusterHandler
from tailrace.server.handlers.configs import DescribeConfigsHandler
from tailrace.server.handlers.coordinators import FindCoordinatorHandler
from tailrace.server.handlers.fetch import FetchHandler
from tailrace.server.handlers.groups import DeleteGroupsHandler, DescribeGroupsHandler, ListGroupsHandler
from tailrace.server.handlers.leader_epochs import OffsetForLeaderEpochHandler
from tailrace.server.handlers.list_offsets import ListOffsetsHandler
from tailrace.server.handlers.membership import HeartbeatHandler, JoinGroupHandler, LeaveGroupHandler, SyncGroupHandler
from tailrace.server.handlers.metadata import MetadataHandler
from tailrace.server.handlers.offsets import OffsetCommitHandler, OffsetFetchHandler
from tailrace.server.handlers.produce import ProduceHandler
from tailrace.server.handlers.producer_ids import InitProducerIdHandler, ProducerIdPool
from tailrace.server.handlers.topics import CreateTopicsHandler, DeleteTopicsHandler
from tailrace.server.hosts.coordinator import GroupCoordinators
from tailrace.server.ports import Clock, Controller
from tailrace.server.waiters import Deadlines, LongPolls


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers of one node work with."""

    config: NodeConfig
    cluster_id: str
    clock: Clock
    controller: Controller
    partitions: PartitionTable
    coordinators: GroupCoordinators
    groups: GroupConfig


def build_handlers(services: Services) -> Mapping[int, Handler]:
    """The handler of every API this node serves, by key; ApiVersions is the dispatcher's own."""
    return _of_records(services) | _of_metadata(services) | _of_groups(services)


def _of_records(services: Services) -> dict[int, Handler]:
    partitions, clock = services.partitions, services.clock
    deadlines = Deadlines(clock)
    return {
        _key(produce.ProduceRequest): ProduceHandler(partitions=partitions, deadlines=deadlines, clock=clock),
        _key(fetch.FetchRequest): FetchHandler(
            partitions=partitions,
            polls=LongPolls(clock=clock, deadlines=deadlines),
            fetch_max_bytes=services.config.integer("fetch.max.bytes"),
        ),
        _key(list_offsets.ListOffsetsRequest): ListOffsetsHandler(partitions=partitions),
        _key(leader_epochs.OffsetForLeaderEpochRequest): OffsetForLeaderEpochHandler(partitions=partitions),
    }


def _of_metadata(services: Services) -> dict[int, Handler]:
    config, controller, cluster_id = services.config, services.controller, services.cluster_id
    pool = ProducerIdPool(controller=controller, broker_id=BrokerId(config.node_id))
    return {
        _key(metadata.MetadataRequest): MetadataHandler(
            controller=controller, cluster_id=cluster_id, auto_create=config.flag("auto.create.topics.enable")
        ),
        _key(metadata.DescribeClusterRequest): DescribeClusterHandler(controller=controller, cluster_id=cluster_id),
        _key(topics.CreateTopicsRequest): CreateTopicsHandler(controller=controller, broker=config),
        _key(topics.DeleteTopicsRequest): DeleteTopicsHandler(
            controller=controller, deletion_enabled=config.flag("delete.topic.enable")
        ),
        _key(configs.DescribeConfigsRequest): DescribeConfigsHandler(controller=controller, broker=config),
        _key(producer_ids.InitProducerIdRequest): InitProducerIdHandler(producer_ids=pool),
    }


def _of_groups(services: Services) -> dict[int, Handler]:
    controller, hosts = services.controller, services.coordinators
    return {
        _key(coordinators.FindCoordinatorRequest): FindCoordinatorHandler(
            controller=controller, config=services.groups
        ),
        _key(membership.JoinGroupRequest): JoinGroupHandler(coordinators=hosts),
        _key(membership.SyncGroupRequest): SyncGroupHandler(coordinators=hosts),
        _key(membership.HeartbeatRequest): HeartbeatHandler(coordinators=hosts),
        _key(membership.LeaveGroupRequest): LeaveGroupHandler(coordinators=hosts),
        _key(offsets.OffsetCommitRequest): OffsetCommitHandler(coordinators=hosts, controller=controller),
        _key(offsets.OffsetFetchRequest): OffsetFetchHandler(coordinators=hosts, controller=controller),
        _key(groups.DescribeGroupsRequest): DescribeGroupsHandler(coordinators=hosts),
        _key(groups.ListGroupsRequest): ListGroupsHandler(coordinators=hosts),
        _key(groups.DeleteGroupsRequest): DeleteGroupsHandler(coordinators=hosts),
    }


def _key(request: type[object]) -> int:
    return api_of(request).key
