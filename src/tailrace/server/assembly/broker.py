"""A broker, whole and synchronous: partitions, hosts, handlers and dispatcher, built from settings and ports.

`node` gives the broker threads, sockets and a real clock, and starts and stops the broker. The simulation and the test
kit pass ports of their own. No timer runs before `load`. All parts are attributes.
"""

from collections.abc import Callable
from typing import Final, Protocol

from tailrace.metadata.broker_commands import RegisterBroker
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.views import Views
from tailrace.model.errors import KafkaError
from tailrace.protocol.messages import (
    api_versions,
    configs,
    fetch,
    list_offsets,
    log_dirs,
    metadata,
    produce,
    security,
    topics,
    transactions,
)
from tailrace.protocol.registry import Listeners
from tailrace.server.admin.config_entries import AdjustableSettings, LiveSettings
from tailrace.server.admin.configs import DescribeConfigsHandler, ListConfigResourcesHandler
from tailrace.server.admin.delete_records import DeleteRecordsHandler
from tailrace.server.admin.log_dirs import AlterReplicaLogDirsHandler, DescribeLogDirsHandler
from tailrace.server.admin.quotas import DescribeClientQuotasHandler
from tailrace.server.admin.users import DescribeUserScramCredentialsHandler
from tailrace.server.administration import audited
from tailrace.server.api_versions import FinalizedFeatures
from tailrace.server.assembly.config import BrokerConfig, BrokerPorts
from tailrace.server.assembly.coordination import Coordination
from tailrace.server.assembly.replicas import LocalReplicas
from tailrace.server.assembly.security import security_handlers
from tailrace.server.audit import NO_AUDIT, DeniedAccesses
from tailrace.server.authentication.gate import SaslHandler
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.controller_link.broker_session import Applied, BrokerSession
from tailrace.server.dispatch import Dispatcher, HandlerTable, by_api
from tailrace.server.fetch.broker_proofs import BrokerProofs
from tailrace.server.fetch.fetch import FetchHandler
from tailrace.server.fetch.follower_readers import FollowerReaders
from tailrace.server.fetch.key_reads import KeyRangeReads
from tailrace.server.fetch.offset_lookups import ListOffsetsHandler, OffsetForLeaderEpochHandler
from tailrace.server.fetch.params import SentBytes
from tailrace.server.fetch.replica_choice import ReplicaChoices
from tailrace.server.fetch.session_descriptions import DescribeFetchSessionsHandler
from tailrace.server.fetch.sessions import FetchSessions
from tailrace.server.fetch.views import ReadableViews
from tailrace.server.groups.group_lags import GroupLags
from tailrace.server.guard import guarded
from tailrace.server.metadata.cluster import DescribeClusterHandler, LeaderEndpoints
from tailrace.server.metadata.metadata import MetadataHandler
from tailrace.server.metadata.topic_partitions import DescribeTopicPartitionsHandler
from tailrace.server.partitions.acknowledged_ends import AcknowledgedEnds
from tailrace.server.ports import Controller
from tailrace.server.produce.produce import ProduceHandler
from tailrace.server.quorum.controller import OnImage
from tailrace.server.quotas.meter import QuotaMeter
from tailrace.server.slices import LongRequests, Slices
from tailrace.server.transactions.queries import DescribeProducersHandler
from tailrace.server.waiters import Deadlines, LongPolls

_LAG_TIMEOUT_MS: Final = 1_000
"""The longest wait of a page of metrics for the counts of another broker."""


class AppliedMetadata(Protocol):
    """The metadata as far as this node has applied its log."""

    @property
    def image(self) -> ClusterImage: ...

    @property
    def applied_end_offset(self) -> int: ...


class Broker:
    """A broker: call `open`, `load` when the applier has carried out an image, then `start`; at the end `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        ports: BrokerPorts,
        settings: AdjustableSettings,
        metadata: AppliedMetadata,
        controller: Controller,
        admin: HandlerTable,
        on_broken_invariant: Callable[[BaseException], None],
        authorizer: Authorizer = PERMIT_ALL,
        denied: DeniedAccesses | None = None,
    ) -> None:
        """`settings`: the settings of this node that the cluster may change. `controller` reaches the active
        controller; `admin` has the handlers that forward requests to the active controller, where their accesses are
        checked. `authorizer` decides on the access of requests; `denied` takes note of denials, and has the
        audit of administration."""
        clock = ports.clock
        self.config: Final = config
        self.ports: Final = ports
        self.settings: Final = LiveSettings(settings)
        self.metadata: Final = metadata
        self.controller: Final = controller
        self._views: Final = Views(is_allowed=config.key_ranges.group_key_ranges_enable)
        self.replicas: Final = LocalReplicas(
            config, ports=ports, controller=controller, settings=self.settings, views=self._views
        )
        self.partitions: Final = self.replicas.partitions
        self.coordination: Final = Coordination(
            config,
            ports=ports,
            controller=controller,
            partitions=self.partitions,
            views=self._views,
            authorizer=authorizer,
        )
        self.deadlines: Final = Deadlines(clock)
        """The deadlines of waiting requests: fetches that wait for records, and produces that wait for replicas and
        disks."""
        self.polls: Final = LongPolls(clock=clock, deadlines=self.deadlines)
        """The fetches that wait, with their deadlines in `deadlines`."""
        self.slices: Final = Slices(clock)
        """The steps of long requests."""
        self.long: Final = LongRequests(self.slices)
        """Carries out requests with many names."""
        self.fetch_sessions: Final = FetchSessions(
            clock=clock, slots=config.fetch_session_slots, random_bytes=ports.random_bytes
        )
        self.choices: Final = ReplicaChoices(
            ports.replica_selector, controller=controller, broker_id=config.broker_id, clock=clock
        )
        """The choice of other replicas for consumers."""
        self.sent: Final = SentBytes()
        """The bytes of records that were sent."""
        self._key_reads: Final = KeyRangeReads(
            clock, config.key_ranges, is_known=lambda: self.metadata.image.knows_key_ranges
        )
        self.quotas: Final = QuotaMeter(config.quotas, clock=clock, process_ns=ports.process_ns)
        """The quotas of clients: the dispatcher has this meter while a client has a quota."""
        self.readable_views: Final = ReadableViews(
            self._views, controller=controller, partitions=self.partitions, key_reads=self._key_reads, clock=clock
        )
        """The views of topics that readers can use."""
        self.group_lags: Final = GroupLags(
            broker_id=config.broker_id,
            find_partition=self.partitions.find,
            image=lambda: controller.image,
            views=self._views,
            readable=self.readable_views,
            peer=ports.peers,
            timeout_ms=_LAG_TIMEOUT_MS,
        )
        self.sasl: Final = SaslHandler()
        """Takes the gates of listeners with SASL."""
        has_acls = authorizer is not PERMIT_ALL
        audit = NO_AUDIT if denied is None else denied.audit
        own: HandlerTable = {
            **self._of_records(),
            **self._of_metadata(),
            **security_handlers(Listeners.CLIENTS, controller if has_acls else None),
            **self.coordination.handlers(self.deadlines),
        }
        self.handlers: Final[HandlerTable] = {**audited(guarded(own) if has_acls else own, audit), **admin}
        """The handlers of all APIs for clients but ApiVersions, which the dispatcher answers."""
        self.dispatcher: Final = Dispatcher(
            self.handlers,
            on_broken_invariant=on_broken_invariant,
            finalized=self.finalized_features,
            long=self.long,
            authorizer=authorizer,
            denied=denied,
        )

    def finalized_features(self) -> FinalizedFeatures:
        """The finalized features of the cluster, by the last metadata record that this node has applied."""
        image = self.metadata.image
        epoch = self.metadata.applied_end_offset - 1
        return FinalizedFeatures(image.features, epoch, self._key_reads.is_enabled, image.knows_sinks)

    def new_session(
        self, registration: RegisterBroker, *, applied: Applied, on_fatal: Callable[[KafkaError], None]
    ) -> BrokerSession:
        """A new session of this broker at the controller, which begins with the given registration."""
        return BrokerSession(
            controller=self.controller,
            applied=applied,
            clock=self.ports.clock,
            registration=registration,
            heartbeat_interval_ms=self.config.heartbeat_interval_ms,
            session_timeout_ms=self.config.session_timeout_ms,
            registration_timeout_ms=self.config.registration_timeout_ms,
            on_fatal=on_fatal,
        )

    # Start and stop

    def open(self) -> None:
        """Read the log directory."""
        self.partitions.open()

    def load(self, image: ClusterImage) -> None:
        """Begin with an image that `replicas.applier` has carried out. Later changes go to `listeners`."""
        self.replicas.load(image)
        self.coordination.load(image)
        self.take_quotas(image)

    def take_quotas(self, image: ClusterImage, delta: ImageDelta | None = None) -> None:
        """Take over the quotas of this image, and measure requests as long as a client has a quota."""
        self.quotas.take(image)
        self.dispatcher.meter = self.quotas if self.quotas.is_needed else None

    @property
    def listeners(self) -> tuple[OnImage, ...]:
        """Receivers of every change of the metadata, in this order, which must come after `replicas.applier`."""
        own = (self.fetch_sessions.on_image, self.take_quotas)
        return (*self.replicas.listeners, *self.coordination.listeners, *own)

    def start(self) -> None:
        """Start the periodic work: in-sync replicas, retention, compaction, checkpoints."""
        self.replicas.keeper.start()
        self.replicas.periodic_work.start()
        self.coordination.checkpoints.start()

    def stop(self) -> None:
        """Stop the proposals of in-sync replicas, the reports of failures and the repairs."""
        self.replicas.keeper.stop()
        self.replicas.failures.stop()
        self.replicas.repairs.stop()

    # Handlers

    def _of_records(self) -> HandlerTable:
        config, partitions, clock = self.config, self.partitions, self.ports.clock
        endpoints, path = LeaderEndpoints(self.controller), config.shown_log_directory
        ends = AcknowledgedEnds(self.deadlines)
        proofs = BrokerProofs(self.controller)
        return by_api(
            {
                produce.ProduceRequest: ProduceHandler(
                    partitions=partitions,
                    deadlines=self.deadlines,
                    clock=clock,
                    verifier=self.coordination.verifier,
                    is_verified=config.verifies_transactions,
                    endpoints=endpoints,
                ),
                fetch.FetchRequest: FetchHandler(
                    partitions=partitions,
                    polls=self.polls,
                    fetch_max_bytes=config.fetch_max_bytes,
                    followers=FollowerReaders(
                        proofs=proofs,
                        keeper=self.replicas.keeper,
                        throttles=self.replicas.throttles,
                        sent=self.sent,
                    ),
                    sessions=self.fetch_sessions,
                    slices=self.slices,
                    choices=self.choices,
                    sent=self.sent,
                    endpoints=endpoints,
                    views=self.readable_views,
                ),
                fetch.DescribeFetchSessionsRequest: DescribeFetchSessionsHandler(
                    cache=self.fetch_sessions.cache, clock=clock
                ),
                list_offsets.ListOffsetsRequest: ListOffsetsHandler(
                    partitions=partitions, views=self.readable_views, ends=ends, proofs=proofs
                ),
                list_offsets.OffsetForLeaderEpochRequest: OffsetForLeaderEpochHandler(
                    partitions=partitions, views=self.readable_views, ends=ends, proofs=proofs
                ),
                topics.DeleteRecordsRequest: DeleteRecordsHandler(partitions=partitions, clock=clock, ends=ends),
                transactions.DescribeProducersRequest: DescribeProducersHandler(partitions=partitions),
                log_dirs.DescribeLogDirsRequest: DescribeLogDirsHandler(partitions=partitions, path=path),
                log_dirs.AlterReplicaLogDirsRequest: AlterReplicaLogDirsHandler(partitions=partitions, path=path),
            }
        )

    def _of_metadata(self) -> HandlerTable:
        controller, broker_id, cluster_id = self.controller, self.config.broker_id, self.config.cluster_id
        offline_replica = self.partitions.offline_replica
        return by_api(
            {
                metadata.MetadataRequest: MetadataHandler(
                    controller=controller,
                    broker_id=broker_id,
                    cluster_id=cluster_id,
                    auto_create=self.config.auto_create_topics,
                    offline_replica=offline_replica,
                    views=self._views,
                ),
                metadata.DescribeClusterRequest: DescribeClusterHandler(
                    controller=controller, broker_id=broker_id, cluster_id=cluster_id
                ),
                metadata.DescribeTopicPartitionsRequest: DescribeTopicPartitionsHandler(
                    controller=controller, offline_replica=offline_replica, views=self._views
                ),
                configs.DescribeConfigsRequest: DescribeConfigsHandler(
                    controller=controller, settings=self.settings, views=self._views
                ),
                configs.ListConfigResourcesRequest: ListConfigResourcesHandler(controller=controller),
                configs.DescribeClientQuotasRequest: DescribeClientQuotasHandler(controller=controller),
                security.DescribeUserScramCredentialsRequest: DescribeUserScramCredentialsHandler(
                    controller=controller
                ),
                api_versions.SaslHandshakeRequest: self.sasl,
                api_versions.SaslAuthenticateRequest: self.sasl,
            }
        )
