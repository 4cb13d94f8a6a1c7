"""One node: builds every part, starts them in order, stops them in the reverse order.

Start: the data directory is locked and its identity read; the metadata log is replayed; the broker registers and opens
its partitions; it is unfenced; only then are connections accepted. Stop: no more requests are taken; those that were
taken are flushed and answered, within a time limit; then connections are closed, then logs, and last the clean stop is
written down.
"""

import asyncio
import logging
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.metadata.broker_commands import (
    NO_BROKER_EPOCH,
    BrokerRegistered,
    RegisterBroker,
    UnfenceBroker,
)
from tailrace.metadata.commands import (
    ControllerCommand,
)
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.image import Endpoint as BrokerEndpoint
from tailrace.metadata.partition_commands import AlterPartition, InSyncChange, InSyncReplica
from tailrace.metadata.topic_creation import TopicRules
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, BrokerId
from tailrace.net.buffers import BufferPool
from tailrace.net.inbound import InboundConnection
from tailrace.net.listener import Listener, arrivals_within
from tailrace.net.turns import Turns
from tailrace.node.clock import LoopClock
from tailrace.node.config import Endpoint, NodeConfig, is_loopback_host, is_wildcard_host
from tailrace.node.data_directory import DirectoryLock, claim_identity
from tailrace.node.descriptors import (
    CarefulController,
    DescriptorPlan,
    count_open_descriptors,
    descriptor_limit,
    plan_descriptors,
)
from tailrace.node.flush_thread import FlushThread, PageCache
from tailrace.node.handlers import Services, Waiting, build_handlers, finalized_features
from tailrace.node.measurements import NodeParts
from tailrace.node.monitoring import Monitoring
from tailrace.node.settings import BROKER_SETTINGS
from tailrace.node.stall_watch import StallWatch
from tailrace.server.data.cleaner import CleanerConfig
from tailrace.server.data.log_directory import LogDirectory
from tailrace.server.data.partitions import PartitionTable
from tailrace.server.data.upkeep import Upkeep, UpkeepConfig
from tailrace.server.dispatch import Dispatcher
from tailrace.server.hosts.controller import ControllerHost
from tailrace.server.hosts.coordinator import GroupCoordinators
from tailrace.server.hosts.metadata_applier import ImageLeaders, MetadataApplier
from tailrace.server.hosts.metadata_directory import MetadataDirectory
from tailrace.server.live_settings import LiveSettings
from tailrace.storage import OsFiles

_logger = logging.getLogger("tailrace.node")

_LAST_FLUSH_SECONDS = 30.0
_LAST_ANSWERS_SECONDS = 3.0
"""For answers that nothing on this node can hasten: of replicas that are behind, to clients that do not read."""

OnFatal = Callable[[BaseException], None]


class Node:
    """A broker and controller in this process. `start` once, then `stop` once; both on one running event loop.

    `on_fatal` is told of a broken invariant or a disk that failed: nothing this node says is right any more.
    """

    def __init__(self, config: NodeConfig, *, on_fatal: OnFatal, descriptors: DescriptorPlan | None = None) -> None:
        """`descriptors`: what this process may open; as the system's limit allows, if nothing is said."""
        if descriptors is None:
            descriptors = plan_descriptors(descriptor_limit(), max_connections=config.integer("max.connections"))
        self._config = config
        self._on_fatal = on_fatal
        self._descriptors = descriptors
        self._files = OsFiles(max_open_files=descriptors.files)
        self._directory = str(config.data_directory)
        self._broker_id = BrokerId(config.node_id)
        self._listeners: list[Listener] = []
        self._monitoring: Monitoring | None = None
        self.metrics_address: tuple[str, int] | None = None
        """Where /metrics is, if it was asked for."""

    async def start(self) -> None:
        """Serve requests from when this returns. Raises KafkaError or OSError; nothing is left behind then."""
        self._loop = asyncio.get_running_loop()
        self._lock = DirectoryLock(self._config.data_directory)
        try:
            await self._start_locked()
        except BaseException:
            for listener in self._listeners:
                await listener.stop()
            self._lock.release()
            raise

    @property
    def advertised(self) -> tuple[Endpoint, ...]:
        """Where clients find this node, one address per listener, with the ports that were really taken."""
        told = {endpoint.name: endpoint for endpoint in self._config.advertised_listeners}
        return tuple(
            _advertised(told[listener.name], port)
            if listener.name in told
            else Endpoint(name=listener.name, host=_host_for_clients(host), port=port)
            for listener, (host, port) in ((listener, listener.addresses[0]) for listener in self._listeners)
        )

    async def _start_locked(self) -> None:
        config, files, directory = self._config, self._files, self._directory
        self._identity = claim_identity(files, directory, node_id=config.node_id)
        self._stalls = StallWatch(monotonic_ms=lambda: round(self._loop.time() * 1000))
        self._turns = Turns(
            call_soon=self._loop.call_soon, on_broken_invariant=self._on_fatal, on_stall=self._stalls.note
        )
        self._clock = LoopClock(self._loop, self._turns)
        self._bind()
        self._flush_thread = FlushThread(
            directory=directory,
            call_soon=self._loop.call_soon,
            post=lambda callback: self._loop.call_soon_threadsafe(self._turns.run, callback),
            on_failure=self._on_fatal,
        )
        try:
            await self._start_services()
        except BaseException:
            self._flush_thread.stop()
            raise

    def _bind(self) -> None:
        """Take the ports first: what clients are told depends on them. Nobody can connect before they are started."""
        self._receive_buffers = BufferPool(limit_bytes=self._config.integer("queued.max.request.bytes"))
        limits = replace(self._config.listener_limits, max_connections=self._descriptors.connections)
        arrivals = arrivals_within(limits)
        for endpoint in self._config.listeners:
            listener = Listener(
                name=endpoint.name,
                turns=self._turns,
                on_frame=_refuse,
                pool=self._receive_buffers,
                limits=limits,
                arrivals=arrivals,
            )
            listener.bind(_hosts_to_bind(endpoint.host), endpoint.port)
            self._listeners.append(listener)

    async def _start_services(self) -> None:
        config, clock = self._config, self._clock
        self._start_controller_parts()
        directory = LogDirectory(self._directory, files=self._files, is_durable=config.is_flushed)
        self._partitions = PartitionTable(
            directory,
            broker_id=self._broker_id,
            disk=self._flush_thread
            if config.is_flushed
            else PageCache(call_soon=clock.call_soon, syncing=self._flush_thread),
            syncing_disk=self._flush_thread,
            clock=clock,
            is_flushed=config.is_flushed,
            leaders=ImageLeaders(self._controller),
        )
        self._partitions.open()
        self._turns.on_turn_end = self._partitions.write_staged
        await self._controller_ready()
        registration = await self._register(keeps_all=config.is_flushed or directory.was_clean)
        self._applier = MetadataApplier(
            partitions=self._partitions, broker_id=self._broker_id, settings=LiveSettings(config)
        )
        self._applier.load(self._controller.image)
        await self._partitions_made()
        group_config = GroupConfig.read(config.integer)
        self._coordinators = GroupCoordinators(
            broker_id=self._broker_id,
            find_partition=self._partitions.find,
            config=group_config,
            new_member_id=lambda prefix: f"{prefix}-{uuid.uuid4()}",
            clock=clock,
        )
        self._controller.on_image(self._applier.on_image)
        self._controller.on_image(self._coordinators.on_image)
        self._controller.answer_when(self._partitions.when_made)
        services = Services(
            config=config,
            cluster_id=self._identity.cluster_id,
            clock=clock,
            controller=CarefulController(
                self._controller,
                limit=self._descriptors.limit,
                reclaimable=lambda: self._files.open_files,
                count_open=count_open_descriptors,
            ),
            metadata_log=self._controller,
            directory_id=self._identity.directory_id or ZERO_TOPIC_ID,
            partitions=self._partitions,
            coordinators=self._coordinators,
            groups=group_config,
        )
        self._waiting = Waiting(clock)
        self._dispatcher = Dispatcher(
            build_handlers(services, self._waiting),
            write_staged=self._partitions.write_staged,
            on_broken_invariant=self._on_fatal,
            finalized=partial(finalized_features, services),
        )
        await self._ask_controller(UnfenceBroker(broker_id=self._broker_id, broker_epoch=registration.broker_epoch))
        await self._say_what_has_recovered(registration.broker_epoch)
        await self._start_monitoring()
        self._upkeep = Upkeep(self._partitions, clock=clock, config=_upkeep_config(config))
        self._upkeep.start()
        self._turns.on_turn_end = self._dispatcher.on_turn_end
        for listener in self._listeners:
            listener.on_frame = self._dispatcher.on_frame
            await listener.start()

    async def _start_monitoring(self) -> None:
        endpoint = self._config.metrics_listener
        if endpoint is None:
            return
        parts = NodeParts(
            broker_id=self._broker_id,
            dispatcher=self._dispatcher,
            listeners=tuple(self._listeners),
            receive_buffers=self._receive_buffers,
            partitions=self._partitions,
            controller=self._controller,
            coordinators=self._coordinators,
            waiting=self._waiting,
            flush_thread=self._flush_thread,
            stalls=self._stalls,
            files=self._files,
        )
        self._monitoring = Monitoring(parts, max_partitions=self._config.integer("metrics.max.partitions"))
        self.metrics_address = await self._monitoring.start(endpoint)
        _logger.info("event=metrics-served address=%s:%d", *self.metrics_address)

    def _start_controller_parts(self) -> None:
        config = self._config
        metadata_directory = MetadataDirectory(self._directory, files=self._files)
        rules = TopicRules(
            num_partitions=config.integer("num.partitions"),
            replication_factor=config.integer("default.replication.factor"),
            config=config.topic_defaults,
            max_partitions_per_topic=config.integer("max.partitions.per.topic"),
            max_partitions_per_broker=config.integer("max.partitions.per.node"),
        )
        self._controller = ControllerHost(
            ControllerMachine(random_bytes=secrets.token_bytes, topic_rules=rules, broker_settings=BROKER_SETTINGS),
            log=metadata_directory.open_log(now_ms=self._clock.now_ms()),
            disk=self._flush_thread,
            clock=self._clock,
            node_id=self._broker_id,
            directory=metadata_directory,
        )

    async def _controller_ready(self) -> None:
        ready = self._loop.create_future()
        self._controller.start(lambda: ready.set_result(None))
        await ready

    async def _partitions_made(self) -> None:
        """A node that was killed between a decision and its execution makes up for it before it serves."""
        made = self._loop.create_future()
        self._turns.run(lambda: self._partitions.when_made(lambda: made.set_result(None)))
        await made

    async def _register(self, *, keeps_all: bool) -> BrokerRegistered:
        """`keeps_all`: this broker still has everything that it had acknowledged before it stopped (KIP-966)."""
        before = self._controller.image.brokers.get(self._broker_id)
        answer = await self._ask_controller(
            RegisterBroker(
                broker_id=self._broker_id,
                incarnation_id=secrets.token_bytes(16),
                endpoints=tuple(
                    BrokerEndpoint(listener_name=endpoint.name, host=endpoint.host, port=endpoint.port)
                    for endpoint in self.advertised
                ),
                rack=self._config.rack,
                log_directories=(self._identity.directory_id,) if self._identity.directory_id is not None else (),
                previous_broker_epoch=before.broker_epoch if before is not None and keeps_all else NO_BROKER_EPOCH,
            )
        )
        assert isinstance(answer, BrokerRegistered)
        return answer

    async def _say_what_has_recovered(self, broker_epoch: int) -> None:
        """End the recovery of what this broker leads without being known to be complete: its logs are open by now."""
        changes = tuple(
            InSyncChange(
                topic_id=topic_id,
                partition=number,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                in_sync_replicas=(InSyncReplica(broker_id=self._broker_id, broker_epoch=broker_epoch),),
            )
            for topic_id, number, state in self._controller.image.partitions()
            if state.is_recovering and state.leader == self._broker_id
        )
        if changes:
            await self._ask_controller(
                AlterPartition(broker_id=self._broker_id, broker_epoch=broker_epoch, changes=changes)
            )

    async def _ask_controller(self, command: ControllerCommand) -> object:
        """The controller's answer. Raises KafkaError if it refuses."""
        answered: asyncio.Future[object] = self._loop.create_future()
        self._turns.run(lambda: self._controller.submit(command, answered.set_result))
        answer = await answered
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    async def stop(self) -> None:
        """Stop cleanly: everything that was acknowledged, and all that was written, is on disk when this returns."""
        for listener in self._listeners:
            listener.stop_accepting()
        if self._monitoring is not None:
            await self._monitoring.stop()
        self._upkeep.stop()
        await self._answer_what_was_asked()
        for listener in self._listeners:
            await listener.stop()
        await self._last_flush()
        self._flush_thread.stop()
        self._partitions.close()
        self._controller.close()
        self._lock.release()
        _logger.info("event=node-stopped node=%d", self._broker_id)

    async def _answer_what_was_asked(self) -> None:
        """Let nobody wonder: what was taken is made durable and answered before the connections are closed.

        Long polls first, since later answers of their connections stand behind theirs; members of groups last, since
        their coordinators have commits to write until then.
        """
        for listener in self._listeners:
            listener.take_no_more()
        self._turns.run(self._waiting.polls.answer_all)
        await self._last_flush()
        self._turns.run(self._coordinators.close)
        for listener in self._listeners:
            if not await listener.answered(_LAST_ANSWERS_SECONDS):
                _logger.warning("event=requests-left-unanswered listener=%s", listener.name)

    async def _last_flush(self) -> None:
        idle = self._loop.create_future()
        self._flush_thread.when_idle(lambda: idle.set_result(None))
        try:
            await asyncio.wait_for(idle, _LAST_FLUSH_SECONDS)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self._directory} could not be flushed within {_LAST_FLUSH_SECONDS:.0f} s; stopped without it",
            ) from None


def _refuse(connection: InboundConnection, slot: int, frame: memoryview) -> None:
    raise AssertionError("a connection was accepted before the node was ready")


def _hosts_to_bind(host: str) -> list[str]:
    """A loopback address means both loopbacks, a wildcard both wildcards: clients try either."""
    if host in ("localhost", "127.0.0.1"):
        return ["127.0.0.1", "::1"]
    if host == "::1":
        return ["::1", "127.0.0.1"]
    if is_wildcard_host(host):
        return ["0.0.0.0", "::"]
    return [host]


def _advertised(told: Endpoint, port: int) -> Endpoint:
    """The address that clients are told. Port 0, which nobody can connect to, stands for the port that was taken."""
    return replace(told, port=told.port or port)


def _host_for_clients(bound: str) -> str:
    return "127.0.0.1" if is_loopback_host(bound) and bound != "::1" else bound


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
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        producer_id_expiration_check_interval_ms=config.integer("producer.id.expiration.check.interval.ms"),
    )
