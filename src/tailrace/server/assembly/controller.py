"""The handlers of the APIs that a node with the controller role serves: to controllers and brokers on the controllers'
listener, and to clients through a broker (`server.controller_link.forwarding`)."""

from collections.abc import Callable
from typing import Final

from tailrace.metadata.views import Views
from tailrace.model.access import Operation
from tailrace.protocol.access import on_cluster
from tailrace.protocol.messages import (
    api_versions,
    configs,
    envelope,
    fetch,
    log_dirs,
    metadata,
    quorum,
    registrations,
    replicas,
    security,
    topics,
    transactions,
)
from tailrace.protocol.registry import CONTROLLER_APIS, Api, Listeners, api_of
from tailrace.raft.voters import ReplicaKey
from tailrace.server.admin.acls import CreateAclsHandler, DeleteAclsHandler
from tailrace.server.admin.config_changes import AlterConfigsHandler
from tailrace.server.admin.config_entries import AdjustableSettings, LiveSettings
from tailrace.server.admin.configs import DescribeConfigsHandler
from tailrace.server.admin.features import UnregisterBrokerHandler, UpdateFeaturesHandler
from tailrace.server.admin.quotas import AlterClientQuotasHandler
from tailrace.server.admin.replicas import (
    AlterPartitionReassignmentsHandler,
    ElectLeadersHandler,
    ListPartitionReassignmentsHandler,
)
from tailrace.server.admin.topics import CreatePartitionsHandler, CreateTopicsHandler, DeleteTopicsHandler
from tailrace.server.admin.users import AlterUserScramCredentialsHandler, DescribeUserScramCredentialsHandler
from tailrace.server.administration import audited
from tailrace.server.assembly.security import security_handlers
from tailrace.server.audit import NO_AUDIT, DeniedAccesses
from tailrace.server.authentication.gate import SaslHandler
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.controller_link.controller_peers import (
    AllocateProducerIdsHandler,
    AlterPartitionHandler,
    AssignReplicasToDirsHandler,
    BrokerHeartbeatHandler,
    BrokerRegistrationHandler,
    ControllerRegistrationHandler,
)
from tailrace.server.controller_link.envelopes import EnvelopeHandler
from tailrace.server.dispatch import Dispatcher, Handler, HandlerTable, by_api
from tailrace.server.guard import guarded
from tailrace.server.metadata.cluster import DescribeControllersHandler
from tailrace.server.ports import Clock, Controller
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.description import FounderHandler, NotFoundedHandler, QuorumDescriptionHandler
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.raft_rpcs import (
    AddRaftVoterHandler,
    RaftRpcHandler,
    RemoveRaftVoterHandler,
    UpdateRaftVoterHandler,
)
from tailrace.server.slices import LongRequests, Slices


class ControllerApis:
    """The APIs of a node with the controller role, active controller or not."""

    def __init__(
        self,
        *,
        cluster_id: str,
        deletion_enabled: bool,
        settings: AdjustableSettings,
        clock: Clock,
        host: QuorumHost,
        controller: QuorumController,
        creating: Controller,
        on_broken_invariant: Callable[[BaseException], None],
        authorizer: Authorizer = PERMIT_ALL,
        denied: DeniedAccesses | None = None,
    ) -> None:
        """`deletion_enabled` is delete.topic.enable. `creating` is the port to the same controller that may refuse to
        create topics beyond this process's limit of descriptors. `authorizer` decides on the access of requests;
        `denied` takes note of denials, and has the audit of administration."""
        self.cluster_id: Final = cluster_id
        self.settings: Final = LiveSettings(settings)
        self.host: Final = host
        self.controller: Final = controller
        self.sasl: Final = SaslHandler()
        """Takes the gates of listeners with SASL."""
        admin = self._of_administrators(creating, clock, deletion_enabled=deletion_enabled)
        has_acls = authorizer is not PERMIT_ALL
        if has_acls:
            admin = guarded({**admin, **self._of_acls()})
        self.admin: Final[HandlerTable] = audited(admin, NO_AUDIT if denied is None else denied.audit)
        """The APIs that only the active controller can carry out: any other controller answers NOT_CONTROLLER."""
        long = LongRequests(Slices(clock))
        opened = EnvelopeHandler(
            quorum=controller,
            handlers=self.admin,
            on_broken_invariant=on_broken_invariant,
            long=long,
            authorizer=authorizer,
            denied=denied,
        )
        others: HandlerTable = {
            **security_handlers(Listeners.CONTROLLERS, controller if has_acls else None),
            **self._of_replicas(),
            **self._of_brokers(),
            **by_api({envelope.EnvelopeRequest: opened}),
        }
        if has_acls:
            others = guarded(others, accesses={fetch.FetchRequest: on_cluster(Operation.CLUSTER_ACTION)})
        self.handlers: Final[HandlerTable] = {**others, **self.admin}
        """The handlers of all APIs on a listener of controllers, except ApiVersions."""
        self.dispatcher: Final = Dispatcher(
            self.handlers, on_broken_invariant=on_broken_invariant, long=long, authorizer=authorizer, denied=denied
        )

    def _of_administrators(self, creating: Controller, clock: Clock, *, deletion_enabled: bool) -> HandlerTable:
        controller, host = self.controller, self.host
        altering = AlterConfigsHandler(controller=controller)
        return by_api(
            {
                topics.CreateTopicsRequest: CreateTopicsHandler(controller=creating, settings=self.settings),
                topics.DeleteTopicsRequest: DeleteTopicsHandler(
                    controller=controller, deletion_enabled=deletion_enabled
                ),
                topics.CreatePartitionsRequest: CreatePartitionsHandler(controller=controller),
                configs.AlterConfigsRequest: altering,
                configs.IncrementalAlterConfigsRequest: altering,
                replicas.ElectLeadersRequest: ElectLeadersHandler(controller=controller),
                replicas.AlterPartitionReassignmentsRequest: AlterPartitionReassignmentsHandler(controller=controller),
                replicas.ListPartitionReassignmentsRequest: ListPartitionReassignmentsHandler(controller=controller),
                registrations.UpdateFeaturesRequest: UpdateFeaturesHandler(controller=controller),
                registrations.UnregisterBrokerRequest: UnregisterBrokerHandler(controller=controller),
                security.AlterUserScramCredentialsRequest: AlterUserScramCredentialsHandler(controller=controller),
                configs.AlterClientQuotasRequest: AlterClientQuotasHandler(controller=controller),
                quorum.DescribeQuorumRequest: QuorumDescriptionHandler(host, clock=clock, controller=controller),
                quorum.AddRaftVoterRequest: AddRaftVoterHandler(host),
                quorum.RemoveRaftVoterRequest: RemoveRaftVoterHandler(host),
            }
        )

    def _of_acls(self) -> HandlerTable:
        return by_api(
            {
                security.CreateAclsRequest: CreateAclsHandler(controller=self.controller),
                security.DeleteAclsRequest: DeleteAclsHandler(controller=self.controller),
            }
        )

    def _of_replicas(self) -> HandlerTable:
        host = self.host
        rpcs = RaftRpcHandler(host)
        return by_api(
            {
                fetch.FetchRequest: rpcs,
                quorum.VoteRequest: rpcs,
                quorum.BeginQuorumEpochRequest: rpcs,
                quorum.EndQuorumEpochRequest: rpcs,
                quorum.FetchSnapshotRequest: rpcs,
                quorum.UpdateRaftVoterRequest: UpdateRaftVoterHandler(host),
                api_versions.SaslHandshakeRequest: self.sasl,
                api_versions.SaslAuthenticateRequest: self.sasl,
            }
        )

    def _of_brokers(self) -> HandlerTable:
        controller, cluster_id = self.controller, self.cluster_id
        return by_api(
            {
                metadata.DescribeClusterRequest: DescribeControllersHandler(self.host, cluster_id=cluster_id),
                configs.DescribeConfigsRequest: DescribeConfigsHandler(
                    controller=controller, settings=self.settings, views=Views(is_allowed=True)
                ),
                security.DescribeUserScramCredentialsRequest: DescribeUserScramCredentialsHandler(
                    controller=controller
                ),
                registrations.BrokerRegistrationRequest: BrokerRegistrationHandler(
                    controller=controller, cluster_id=cluster_id
                ),
                registrations.BrokerHeartbeatRequest: BrokerHeartbeatHandler(controller=controller),
                registrations.ControllerRegistrationRequest: ControllerRegistrationHandler(controller=controller),
                transactions.AllocateProducerIdsRequest: AllocateProducerIdsHandler(controller=controller),
                replicas.AlterPartitionRequest: AlterPartitionHandler(controller=controller),
                log_dirs.AssignReplicasToDirsRequest: AssignReplicasToDirsHandler(controller=controller),
            }
        )


def founder_dispatcher(key: ReplicaKey, *, on_broken_invariant: Callable[[BaseException], None]) -> Dispatcher:
    """The dispatcher of the controllers' listener before the quorum is founded: it describes this replica, and refuses
    every other request."""
    handlers: dict[Api, Handler] = dict.fromkeys(CONTROLLER_APIS.values(), NotFoundedHandler())
    handlers[api_of(quorum.DescribeQuorumRequest)] = FounderHandler(key)
    return Dispatcher(handlers, on_broken_invariant=on_broken_invariant)
