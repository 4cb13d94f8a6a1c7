"""Which handler serves which API where the controller is: for controllers and brokers on their own listener, and for
clients through their broker (`server.controller_link.forwarding`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.messages import (
    configs,
    envelope,
    features,
    fetch,
    fetch_snapshot,
    log_dirs,
    metadata,
    producers,
    quorum,
    registrations,
    replicas,
    sasl,
    topics,
)
from tailrace.protocol.registry import api_of
from tailrace.server.admin.brokers import UnregisterBrokerHandler
from tailrace.server.admin.config_changes import AlterConfigsHandler
from tailrace.server.admin.configs import DescribeConfigsHandler
from tailrace.server.admin.features import UpdateFeaturesHandler
from tailrace.server.admin.live_settings import LiveSettings
from tailrace.server.admin.replicas import (
    AlterPartitionReassignmentsHandler,
    ElectLeadersHandler,
    ListPartitionReassignmentsHandler,
)
from tailrace.server.admin.topics import CreatePartitionsHandler, CreateTopicsHandler, DeleteTopicsHandler
from tailrace.server.controller_link.controller_peers import (
    AllocateProducerIdsHandler,
    AlterPartitionHandler,
    AssignReplicasToDirsHandler,
    BrokerHeartbeatHandler,
    BrokerRegistrationHandler,
    ControllerRegistrationHandler,
)
from tailrace.server.controller_link.envelope_handler import EnvelopeHandler
from tailrace.server.dispatch import Handler
from tailrace.server.metadata.cluster import DescribeControllersHandler
from tailrace.server.ports import Clock, Controller
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.description import QuorumDescriptionHandler
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.raft_rpcs import RaftRpcHandler
from tailrace.server.quorum.raft_voters import AddRaftVoterHandler, RemoveRaftVoterHandler, UpdateRaftVoterHandler
from tailrace.server.sasl import NoSaslHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerServices:
    """What the handlers work with, all of it on this node."""

    config: NodeConfig
    cluster_id: str
    clock: Clock
    host: QuorumHost
    metadata: QuorumController
    creating: Controller
    """The same, but careful where topics are created."""
    on_broken_invariant: Callable[[BaseException], None]


def build_admin_handlers(services: ControllerServices) -> Mapping[int, Handler]:
    """The APIs that only the active controller can carry out, by key: refused with NOT_CONTROLLER by any other."""
    config, controller, host = services.config, services.metadata, services.host
    settings = LiveSettings(config)
    altering = AlterConfigsHandler(controller=controller)
    return {
        _key(topics.CreateTopicsRequest): CreateTopicsHandler(controller=services.creating, settings=settings),
        _key(topics.DeleteTopicsRequest): DeleteTopicsHandler(
            controller=controller, deletion_enabled=config.flag("delete.topic.enable")
        ),
        _key(topics.CreatePartitionsRequest): CreatePartitionsHandler(controller=controller),
        _key(configs.AlterConfigsRequest): altering,
        _key(configs.IncrementalAlterConfigsRequest): altering,
        _key(replicas.ElectLeadersRequest): ElectLeadersHandler(controller=controller),
        _key(replicas.AlterPartitionReassignmentsRequest): AlterPartitionReassignmentsHandler(controller=controller),
        _key(replicas.ListPartitionReassignmentsRequest): ListPartitionReassignmentsHandler(controller=controller),
        _key(features.UpdateFeaturesRequest): UpdateFeaturesHandler(controller=controller),
        _key(registrations.UnregisterBrokerRequest): UnregisterBrokerHandler(controller=controller),
        _key(quorum.DescribeQuorumRequest): QuorumDescriptionHandler(host, clock=services.clock, controller=controller),
        _key(quorum.AddRaftVoterRequest): AddRaftVoterHandler(host),
        _key(quorum.RemoveRaftVoterRequest): RemoveRaftVoterHandler(host),
    }


def build_controller_handlers(services: ControllerServices) -> Mapping[int, Handler]:
    """The handler of every API that a listener of controllers serves, by key."""
    admin = build_admin_handlers(services)
    opened = EnvelopeHandler(quorum=services.metadata, handlers=admin, on_broken_invariant=services.on_broken_invariant)
    return {**admin, **_of_replicas(services), **_of_brokers(services), _key(envelope.EnvelopeRequest): opened}


def _of_replicas(services: ControllerServices) -> dict[int, Handler]:
    host, no_sasl = services.host, NoSaslHandler()
    replicas_ask = RaftRpcHandler(host)
    return {
        _key(fetch.FetchRequest): replicas_ask,
        _key(quorum.VoteRequest): replicas_ask,
        _key(quorum.BeginQuorumEpochRequest): replicas_ask,
        _key(quorum.EndQuorumEpochRequest): replicas_ask,
        _key(fetch_snapshot.FetchSnapshotRequest): replicas_ask,
        _key(quorum.UpdateRaftVoterRequest): UpdateRaftVoterHandler(host),
        _key(sasl.SaslHandshakeRequest): no_sasl,
        _key(sasl.SaslAuthenticateRequest): no_sasl,
    }


def _of_brokers(services: ControllerServices) -> dict[int, Handler]:
    controller, cluster_id = services.metadata, services.cluster_id
    return {
        _key(metadata.DescribeClusterRequest): DescribeControllersHandler(services.host, cluster_id=cluster_id),
        _key(configs.DescribeConfigsRequest): DescribeConfigsHandler(
            controller=controller, settings=LiveSettings(services.config)
        ),
        _key(registrations.BrokerRegistrationRequest): BrokerRegistrationHandler(
            controller=controller, cluster_id=cluster_id
        ),
        _key(registrations.BrokerHeartbeatRequest): BrokerHeartbeatHandler(controller=controller),
        _key(registrations.ControllerRegistrationRequest): ControllerRegistrationHandler(controller=controller),
        _key(producers.AllocateProducerIdsRequest): AllocateProducerIdsHandler(controller=controller),
        _key(replicas.AlterPartitionRequest): AlterPartitionHandler(controller=controller),
        _key(log_dirs.AssignReplicasToDirsRequest): AssignReplicasToDirsHandler(controller=controller),
    }


def _key(request: type[object]) -> int:
    return api_of(request).key
