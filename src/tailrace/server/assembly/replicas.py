"""The replicas of one broker: the partition table, and the hosts that apply the metadata to the table."""

from collections.abc import Container
from functools import partial
from typing import Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.views import Views
from tailrace.model.ids import TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.assembly.config import BrokerConfig, BrokerPorts
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.log_directory_health import LogDirectoryHealth, StallCause
from tailrace.server.partitions.periodic_work import PeriodicWork
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Controller
from tailrace.server.quorum.controller import OnImage
from tailrace.server.replicas.failures import ReplicaFailures
from tailrace.server.replicas.fetchers import ReplicaFetchers
from tailrace.server.replicas.gone_replicas import remove_gone_replicas
from tailrace.server.replicas.in_sync_keeper import InSyncKeeper
from tailrace.server.replicas.metadata_applier import ImageLeaders, MetadataApplier
from tailrace.server.replicas.repairs import ReplicaRepairs
from tailrace.server.replicas.replication_throttles import ReplicationThrottles


class LocalReplicas:
    """The partition table, the replica fetchers, the in-sync replicas, and failed replicas with their repair."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        ports: BrokerPorts,
        controller: Controller,
        settings: LiveSettings,
        views: Views,
    ) -> None:
        clock, broker_id = ports.clock, config.broker_id
        self._broker_id = broker_id
        self.failures: Final = ReplicaFailures(
            broker_id=broker_id,
            controller=controller,
            clock=clock,
            on_leaving=self._pause,
            on_left=self._resign,
            on_staying=self._resume,
        )
        self.log_directory: Final = LogDirectory(config.log_directory, files=ports.files, is_durable=config.is_flushed)
        self.partitions: Final = self._partition_table(config, ports, ImageLeaders(controller, views))
        self.keeper: Final = InSyncKeeper(
            broker_id=broker_id,
            partitions=self.partitions,
            controller=controller,
            clock=clock,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        )
        self.throttles: Final = ReplicationThrottles(
            broker_id=broker_id, settings=settings, config=config.throttle, clock=clock
        )
        self.fetchers: Final = ReplicaFetchers(
            broker_id=broker_id,
            secret=config.incarnation_secret,
            partitions=self.partitions,
            peer=ports.peers,
            clock=clock,
            config=config.replica_fetch,
            throttle=self.throttles.follower,
        )
        self.health: Final = LogDirectoryHealth(config.log_directory, replicas=self.failures, fetching=self.fetchers)
        self.applier: Final = MetadataApplier(partitions=self.partitions, broker_id=broker_id, settings=settings)
        self.repairs: Final = ReplicaRepairs(
            broker_id=broker_id,
            partitions=self.partitions,
            failures=self.failures,
            opener=self.applier,
            fetchers=self.fetchers,
            keeper=self.keeper,
            peer=ports.peers,
            controller=controller,
            clock=clock,
        )
        self.periodic_work: Final = PeriodicWork(
            self.partitions,
            clock=clock,
            config=config.periodic_work,
            disk=ports.syncing_disk,
            on_short_of_space=partial(self.health.set_stalled, StallCause.FULL),
        )

    def _partition_table(self, config: BrokerConfig, ports: BrokerPorts, leaders: ImageLeaders) -> PartitionTable:
        return PartitionTable(
            self.log_directory,
            broker_id=config.broker_id,
            disk=ports.disk,
            syncing_disk=ports.syncing_disk,
            clock=ports.clock,
            is_flushed=config.is_flushed,
            leaders=leaders,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            failures=self.failures,
        )

    def _pause(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.fetchers.pause(topic_partition, state)

    def _resign(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.partitions.resign(topic_partition, state)
        self.fetchers.left(topic_partition, state)

    def _resume(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.fetchers.resume(topic_partition, state)

    def load(self, image: ClusterImage) -> None:
        """Begin to fetch, to watch followers and to report failures. The partitions have their roles by now."""
        self.throttles.load(image)
        self.fetchers.load(image)
        self.keeper.load(image)
        self.failures.start()
        self.repairs.start()

    @property
    def listeners(self) -> tuple[OnImage, ...]:
        """Receivers of changes of the metadata, in this order, after the applier."""
        hosts = (self.throttles, self.fetchers, self.keeper, self.failures, self.repairs)
        return tuple(host.on_image for host in hosts)

    def remove_gone(self, image: ClusterImage, removed: Container[TopicId]) -> None:
        """Remove the replicas that were moved away or deleted while this node was down: the caller passes the first
        image that has caught up.

        `removed`: the topics whose deletion is proven.
        """
        remove_gone_replicas(self.partitions, image, self.applier, self._broker_id, removed)

    def forget_vanished(self) -> None:
        """Treat replicas that are missing on the disk as empty from now on. The caller has reported all lost replicas
        before."""
        for topic_partition in self.partitions.offline.take_vanished():
            self.failures.recovered(topic_partition)
