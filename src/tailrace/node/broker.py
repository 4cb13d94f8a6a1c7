"""The broker of one node: its partitions, groups, handlers and upkeep, from registration to the last answer.

Start: partitions are found on the disk; the broker registers; it carries out what the metadata says of it; the replicas
that have lost something leave; it is unfenced; only then are clients let in. Stop: the requests that were taken are
answered, within a time limit.
"""

import asyncio
import contextlib
import logging
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.transactions.config import TransactionConfig
from tailrace.metadata.broker_commands import RegisterBroker, claimed_epoch
from tailrace.metadata.image import ClusterImage, full_delta
from tailrace.metadata.image import Endpoint as BrokerEndpoint
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.net.connection import Address
from tailrace.net.listener import Listener
from tailrace.net.turns import Turns
from tailrace.node.clock import LoopClock
from tailrace.node.flush_thread import FlushThread, PageCache
from tailrace.node.handlers import Services, Waiting, build_handlers, finalized_features
from tailrace.node.hang_watch import HangWatch
from tailrace.node.metadata_followup import Duties
from tailrace.node.metadata_quorum import MetadataQuorum
from tailrace.node.metrics.broker_measurements import BrokerParts
from tailrace.node.peers import Peers
from tailrace.node.settings.cluster import say_what_is_overruled
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.endpoints import ListenerAddress
from tailrace.node.transactions import Transactions
from tailrace.replication.replica_fetch import ReplicaFetchConfig
from tailrace.server.admin.live_settings import LiveSettings
from tailrace.server.controller_link.broker_lifecycle import BrokerSession
from tailrace.server.controller_link.channel import ControllerChannel
from tailrace.server.controller_link.controller_requests import Errands
from tailrace.server.controller_link.envelopes import Envelopes
from tailrace.server.controller_link.forwarding import Forwarding
from tailrace.server.dispatch import Dispatcher, Handler
from tailrace.server.fetch.replica_fetches import ReplicaFetches
from tailrace.server.groups.service import GroupCoordinatorService
from tailrace.server.partitions.cleaner import CleanerConfig
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.log_directory_health import LogDirectoryHealth, StallCause
from tailrace.server.partitions.scrubber import ScrubberConfig
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.partitions.upkeep import LogUpkeep, UpkeepConfig
from tailrace.server.replicas.failures import ReplicaFailures
from tailrace.server.replicas.followers import FollowerHosts
from tailrace.server.replicas.in_sync_keeper import InSyncKeeper
from tailrace.server.replicas.metadata_applier import ImageLeaders, MetadataApplier
from tailrace.server.replicas.repairs import ReplicaRepairs
from tailrace.storage import OsFiles

_LATE_TRANSACTION_MS: Final = 300_000
"""How long the coordinator may take to end a transaction whose time is over, as in Kafka."""
_LAST_FLUSH_SECONDS: Final = 30.0
_LAST_ANSWERS_SECONDS: Final = 3.0
"""For answers that nothing on this node can hasten: of replicas that are behind, to clients that do not read."""
_HAND_OVER_MS: Final = 5_000
_NO_CONTROLLER_MS: Final = 2_500
"""The death of a controller is noticed and an election over by then, if there is a majority. Whether a leader is known
tells less: without a majority a controller goes back and forth between the last one and none."""
_LOOK_SECONDS: Final = 0.05

_logger = logging.getLogger("tailrace.node")


class Broker:
    """`start` once, then `stop` once."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        quorum: MetadataQuorum,
        files: OsFiles,
        directory: str,
        directory_id: bytes,
        clock: LoopClock,
        turns: Turns,
        admin: Mapping[int, Handler],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`admin`: handlers of what only the active controller can carry out, for when that is on this node."""
        self._config = config
        self._quorum = quorum
        self._files = files
        self._directory_id = directory_id
        self._clock = clock
        self._turns = turns
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._id = BrokerId(config.node_id)
        self._metadata = quorum.controller
        self._lifecycle: BrokerSession | None = None
        self.waiting = Waiting(clock)
        self.flush_thread = FlushThread(
            directory=directory,
            call_soon=self._loop.call_soon,
            post=lambda callback: self._loop.call_soon_threadsafe(turns.run, callback),
            on_failure=on_fatal,
        )
        self._reach_others()
        self._keep_partitions(directory)
        self._coordinate()
        self.dispatcher = self._build_dispatcher(admin)
        self._upkeep = LogUpkeep(
            self.partitions,
            clock=clock,
            config=_upkeep_config(config),
            disk=self.flush_thread,
            on_short_of_room=partial(self.health.set_stalled, StallCause.FULL),
        )

    def _reach_others(self) -> None:
        """The active controller, and the other brokers."""
        quorum, clock = self._quorum, self._clock
        self._errands = Errands(quorum=quorum.controller, peer=quorum, node_id=self._id, clock=clock)
        envelopes = Envelopes(secrets.token_bytes(16))
        self._controller = ControllerChannel(
            quorum=quorum.controller,
            errands=self._errands,
            envelopes=envelopes,
            cluster_id=quorum.cluster_id,
            node_id=self._id,
        )
        self._forwarding = Forwarding(errands=self._errands, envelopes=envelopes, node_id=self._id)
        self._peers = Peers(
            address_of=self._address_of,
            turns=self._turns,
            client_id=f"broker-{self._id}",
            timeout_ms=self._config.integer("replica.socket.timeout.ms"),
        )

    def _keep_partitions(self, directory: str) -> None:
        """The partitions of this broker, those that it follows, and who follows those that it leads."""
        config, clock = self._config, self._clock
        lag_ms, syncing = config.integer("replica.lag.time.max.ms"), self.flush_thread
        self.failures = ReplicaFailures(
            broker_id=self._id,
            controller=self._controller,
            clock=clock,
            on_leaving=self._pause,
            on_left=self._resign,
            on_staying=self._resume,
        )
        self._log_directory = LogDirectory(directory, files=self._files, is_durable=config.is_flushed)
        self.partitions = PartitionTable(
            self._log_directory,
            broker_id=self._id,
            disk=syncing if config.is_flushed else PageCache(call_soon=clock.call_soon, syncing=syncing),
            syncing_disk=syncing,
            clock=clock,
            is_flushed=config.is_flushed,
            leaders=ImageLeaders(self._metadata),
            replica_lag_time_max_ms=lag_ms,
            failures=self.failures,
        )
        self.keeper = InSyncKeeper(
            broker_id=self._id,
            partitions=self.partitions,
            controller=self._controller,
            clock=clock,
            replica_lag_time_max_ms=lag_ms,
        )
        self.followers = FollowerHosts(
            broker_id=self._id,
            partitions=self.partitions,
            peer=self._peers,
            clock=clock,
            config=_replica_fetch_config(config),
        )
        self.health = LogDirectoryHealth(directory, replicas=self.failures, fetching=self.followers)
        self._hang_watch = HangWatch(
            (syncing, self._quorum.flush_thread),
            clock=clock,
            timeout_ms=config.integer("log.dir.stall.timeout.ms"),
            on_change=partial(self.health.set_stalled, StallCause.HUNG),
        )

        self._applier = MetadataApplier(partitions=self.partitions, broker_id=self._id, settings=LiveSettings(config))
        self.repairs = ReplicaRepairs(
            broker_id=self._id,
            partitions=self.partitions,
            failures=self.failures,
            opener=self._applier,
            followers=self.followers,
            keeper=self.keeper,
            peer=self._peers,
            controller=self._controller,
            clock=clock,
        )

    def _pause(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.followers.pause(topic_partition, state)

    def _resign(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.partitions.resign(topic_partition, state)
        self.followers.left(topic_partition, state)

    def _resume(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self.followers.resume(topic_partition, state)

    def _coordinate(self) -> None:
        """Groups and transactions."""
        config, clock = self._config, self._clock
        self._group_config = GroupConfig.read(config.integer, config.text, settings_of=self._settings_of_group)
        self.coordinators = GroupCoordinatorService(
            broker_id=self._id,
            find_partition=self.partitions.find,
            config=self._group_config,
            new_member_id=lambda prefix: f"{prefix}-{uuid.uuid4()}",
            clock=clock,
        )
        self.transactions = Transactions(
            broker_id=self._id,
            image=lambda: self._metadata.image,
            controller=self._controller,
            partitions=self.partitions,
            groups=self.coordinators,
            config=TransactionConfig.read(config.integer),
            is_verified=config.flag("transaction.partition.verification.enable"),
            peer=self._peers,
            clock=clock,
        )

    def _settings_of_group(self, group_id: str) -> Mapping[str, str]:
        return self._metadata.image.group_overrides(group_id)

    def _build_dispatcher(self, admin: Mapping[int, Handler]) -> Dispatcher:
        services = Services(
            config=self._config,
            cluster_id=self._quorum.cluster_id,
            clock=self._clock,
            controller=self._controller,
            metadata=self._metadata,
            admin=self._forwarding.handlers(admin),
            replicas=ReplicaFetches(controller=self._controller, keeper=self.keeper),
            partitions=self.partitions,
            coordinators=self.coordinators,
            groups=self._group_config,
            transactions=self.transactions,
        )
        return Dispatcher(
            build_handlers(services, self.waiting),
            write_staged=self.partitions.write_staged,
            on_broken_invariant=self._on_fatal,
            finalized=partial(finalized_features, services),
        )

    @property
    def parts(self) -> BrokerParts:
        """What can be looked at."""
        return BrokerParts(
            broker_id=self._id,
            partitions=self.partitions,
            followers=self.followers,
            keeper=self.keeper,
            repairs=self.repairs,
            failures=self.failures,
            health=self.health,
            coordinators=self.coordinators,
            waiting=self.waiting,
            flush_thread=self.flush_thread,
            scrubber=self._upkeep.scrubber,
            late_transaction_ms=self._config.integer("transaction.max.timeout.ms") + _LATE_TRANSACTION_MS,
        )

    def _address_of(self, broker_id: int) -> Address | None:
        """Where another broker listens for this one."""
        broker = self._metadata.image.brokers.get(BrokerId(broker_id))
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    # Start

    async def start(self, advertised: Sequence[ListenerAddress]) -> None:
        """Return when clients may come: to these addresses. Raises KafkaError and OSError."""
        self.partitions.open()
        self._turns.on_turn_end = self.partitions.write_staged
        await self._quorum.caught_up()
        starting: asyncio.Future[int] = self._loop.create_future()
        lifecycle = self._lifecycle = BrokerSession(
            controller=self._controller,
            applied=self._metadata,
            clock=self._clock,
            registration=self._registration(advertised),
            heartbeat_interval_ms=self._config.integer("broker.heartbeat.interval.ms"),
            session_timeout_ms=self._config.integer("broker.session.timeout.ms"),
            registration_timeout_ms=self._config.integer("initial.broker.registration.timeout.ms"),
            on_fatal=lambda fault: self._on_fatal(fault) if starting.done() else starting.set_exception(fault),
        )
        registered: asyncio.Future[int] = self._loop.create_future()
        self._turns.run(lambda: lifecycle.start(registered.set_result))
        await asyncio.wait((registered, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
        await self._carry_out_metadata()

        def served() -> None:
            if not starting.done():
                starting.set_result(lifecycle.broker_epoch)

        def reported() -> None:
            for topic_partition in self.partitions.take_vanished():
                self.failures.recovered(topic_partition)  # from now on it is as empty as a new one, and no worse
            # A node that was killed between a decision and its execution makes up for it before it serves.
            self.partitions.when_made(lambda: lifecycle.serve(served))

        # Nothing elects this broker before it is unfenced: nor a replica of it, then, that has lost something.
        self._turns.run(lambda: self.failures.when_reported(reported))
        await starting
        say_what_is_overruled(self._config, self._metadata.image)
        self.keeper.start()
        self._upkeep.start()
        self._hang_watch.start()
        self._turns.on_turn_end = self.dispatcher.on_turn_end

    def _registration(self, advertised: Sequence[ListenerAddress]) -> RegisterBroker:
        before = self._metadata.image.brokers.get(self._id)
        # This broker still has everything that it had acknowledged before it stopped (KIP-966), but for the replicas
        # that turn out to have lost something: it says so of each when it has opened their logs.
        keeps_all = self._config.is_flushed or self._log_directory.was_clean
        return RegisterBroker(
            broker_id=self._id,
            incarnation_id=secrets.token_bytes(16),
            endpoints=tuple(
                BrokerEndpoint(listener_name=endpoint.name, host=endpoint.host, port=endpoint.port)
                for endpoint in advertised
            ),
            rack=self._config.rack,
            log_directories=(self._directory_id,),
            previous_broker_epoch=claimed_epoch(before, directory_id=self._directory_id, keeps_all=keeps_all),
        )

    async def _carry_out_metadata(self) -> None:
        """Become what the metadata says of this broker, and go on so."""
        coordinators = (self.coordinators.on_image, self.transactions.coordinators.on_image)

        def load(image: ClusterImage) -> None:
            self.followers.load(image)
            self.keeper.load(image)
            self.failures.start()
            self.repairs.start()
            for on_image in coordinators:
                on_image(image, full_delta(image))

        copies = (self.followers.on_image, self.keeper.on_image, self.failures.on_image, self.repairs.on_image)
        duties = Duties(self._metadata, applier=self._applier, turns=self._turns)
        await duties.begin(load, (*copies, *coordinators))
        self._metadata.answer_when(self.partitions.when_made)

    # Stop

    async def hand_over(self, *, is_needed: bool) -> None:
        """Have others lead what this broker leads, if there are others: clients hardly notice then.

        If it is not needed, since the whole cluster stops, this broker only stops being one.
        """
        lifecycle, alive = self._lifecycle, self._metadata.image.alive_brokers()
        assert lifecycle is not None, "the broker was started"
        self._upkeep.stop()
        self._hang_watch.stop()
        if not is_needed:
            _logger.info("event=nothing-handed-over broker=%d reason=the cluster stops", self._id)
        elif any(broker.broker_id != self._id for broker in alive):
            handed_over = asyncio.Event()
            self._turns.run(lambda: lifecycle.shut_down(handed_over.set, _HAND_OVER_MS))
            await self._handed_over(handed_over, lifecycle)
        self._turns.run(lifecycle.close)
        self._turns.run(self.keeper.stop)
        self._turns.run(self.failures.stop)
        self._turns.run(self.repairs.stop)

    async def _handed_over(self, done: asyncio.Event, lifecycle: BrokerSession) -> None:
        """Return when it is done, or when no controller has answered for a while: all nodes may be stopping."""
        while not done.is_set() and lifecycle.unheard_ms() < _NO_CONTROLLER_MS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _LOOK_SECONDS)

    async def answer_what_was_asked(self, listeners: Sequence[Listener]) -> None:
        """Let nobody wonder: what was taken is made durable and answered before the connections are closed.

        Long polls first, since later answers of their connections stand behind theirs; members of groups last, since
        their coordinators have commits to write until then.
        """
        for listener in listeners:
            listener.take_no_more()
        self._turns.run(self.waiting.polls.answer_all)
        await self.flush_thread.idle(_LAST_FLUSH_SECONDS)
        self._turns.run(self.transactions.coordinators.close)
        self._turns.run(self.coordinators.close)
        self._turns.run(self._errands.close)
        for listener in listeners:
            if not await listener.answered(_LAST_ANSWERS_SECONDS):
                _logger.warning("event=requests-left-unanswered listener=%s", listener.name)

    def abandon(self) -> None:
        """The start has failed, or was given up: let go of everything that outlives it."""
        if self._lifecycle is not None:
            self._lifecycle.close()
        self.failures.stop()
        self.repairs.stop()
        self._hang_watch.stop()
        self._peers.close()
        self.flush_thread.stop()

    async def stop(self) -> None:
        """Have everything on disk and close the logs. Nobody asks any more."""
        self._turns.run(self.followers.close)
        self._peers.close()
        await self.flush_thread.idle(_LAST_FLUSH_SECONDS)
        self.flush_thread.stop()
        self.partitions.close()


def _upkeep_config(config: NodeConfig) -> UpkeepConfig:
    return UpkeepConfig(
        log_retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        replica_high_watermark_checkpoint_interval_ms=config.integer("replica.high.watermark.checkpoint.interval.ms"),
        log_flush_offset_checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        log_flush_start_offset_checkpoint_interval_ms=config.integer("log.flush.start.offset.checkpoint.interval.ms"),
        log_flush_scheduler_interval_ms=config.integer("log.flush.scheduler.interval.ms"),
        log_dir_reserve_bytes=config.integer("log.dir.reserve.bytes"),
        cleaner=CleanerConfig(
            log_cleaner_enable=config.flag("log.cleaner.enable"),
            log_cleaner_backoff_ms=config.integer("log.cleaner.backoff.ms"),
            log_cleaner_dedupe_buffer_size=config.integer("log.cleaner.dedupe.buffer.size"),
            log_cleaner_io_max_bytes_per_second=config.real("log.cleaner.io.max.bytes.per.second"),
        ),
        scrubber=ScrubberConfig(
            log_scrub_enable=config.flag("log.scrub.enable"),
            log_scrub_interval_ms=config.integer("log.scrub.interval.ms"),
            log_scrub_io_max_bytes_per_second=config.real("log.scrub.io.max.bytes.per.second"),
        ),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        producer_id_expiration_check_interval_ms=config.integer("producer.id.expiration.check.interval.ms"),
    )


def _replica_fetch_config(config: NodeConfig) -> ReplicaFetchConfig:
    return ReplicaFetchConfig(
        replica_fetch_max_bytes=config.integer("replica.fetch.max.bytes"),
        replica_fetch_response_max_bytes=config.integer("replica.fetch.response.max.bytes"),
        replica_fetch_wait_max_ms=config.integer("replica.fetch.wait.max.ms"),
        replica_fetch_min_bytes=config.integer("replica.fetch.min.bytes"),
        replica_fetch_backoff_ms=config.integer("replica.fetch.backoff.ms"),
        replica_socket_timeout_ms=config.integer("replica.socket.timeout.ms"),
    )
