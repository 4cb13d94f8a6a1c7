"""A broker of a simulated cluster: the product's partitions, handlers and hosts on a disk that loses whatever a disk
may lose.

Its ports are the `server.ports`; requests and answers go through Kafka's bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from simulation.harness.disks import RoundDisk
from simulation.harness.network import Network
from simulation.harness.node import SimulatedNode
from simulation.harness.world import Action, World
from simulation.quorum.node import CLUSTER_ID
from simulation.replicas.metadata import SESSION_MS, ReplicaMetadata
from simulation.replicas.requests import LISTENER, OneRequest, ask
from tailrace.coordinators.config import GroupConfig, TransactionConfig
from tailrace.fetch_session.session_cache import DEFAULT_SLOTS
from tailrace.metadata.broker_commands import BrokerHeartbeat, BrokerRegistered, RegisterBroker, claimed_epoch
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, Endpoint, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import id_of_secret
from tailrace.model.topic_config import TopicConfig
from tailrace.node.flush_thread import HangWatch
from tailrace.node.settings.config import SettingInForce
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.replica_selector import RackAwareReplicaSelector
from tailrace.replication.throttle import ThrottleConfig
from tailrace.server.admin.config_entries import BrokerSetting, ConfigSource
from tailrace.server.assembly.broker import Broker
from tailrace.server.assembly.config import BrokerConfig, BrokerPorts
from tailrace.server.assembly.replicas import LocalReplicas
from tailrace.server.fetch.budget import DEFAULT_FETCH_MAX_BYTES
from tailrace.server.fetch.key_reads import KeyRangeConfig
from tailrace.server.partitions.log_directory_health import StallCause
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.quorum.controller import OnImage
from tailrace.server.replicas.failures import ReplicaFailures
from tailrace.server.replicas.fetchers import ReplicaFetchers
from tailrace.server.replicas.in_sync_keeper import InSyncKeeper
from tailrace.server.replicas.repairs import ReplicaRepairs
from tailrace.testing.disk import SimulatedDisk

DATA: Final = "/data/logs"
HEARTBEAT_MS: Final = 500
STALL_MS: Final = 500
"""log.dir.stall.timeout.ms; it is longer if the disk is so slow that a round may take as long without hanging."""


def rack_of(node_id: int) -> str:
    """The rack of a broker: every broker has a rack of its own."""
    return f"rack-{node_id}"


class ReplicaSettings:
    """The settings of a broker: the settings of topics are given, the other settings have their defaults."""

    def __init__(self, node_id: int, topic_defaults: TopicConfig) -> None:
        self.node_id = node_id
        self.topic_defaults = topic_defaults

    def entry(self, name: str) -> BrokerSetting:
        setting = BROKER_SETTINGS[name]
        return SettingInForce(setting=setting, layers=((ConfigSource.DEFAULT_CONFIG, setting.default),))

    def entries(self) -> Any:
        return iter(tuple[BrokerSetting, ...]())

    def with_dynamic(self, *, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> "ReplicaSettings":
        return self


class ReplicaNode(SimulatedNode):
    """A broker."""

    def __init__(
        self,
        world: World,
        network: Network,
        metadata: ReplicaMetadata,
        *,
        node_id: int,
        defaults: TopicConfig,
        longest_disk_ms: int,
        lag_ms: int,
        session_slots: int = DEFAULT_SLOTS,
        is_flushed: bool = True,
        lying_sync: bool = False,
        find: Callable[[int], "ReplicaNode"],
        on_command: Callable[["ReplicaNode", Any], None],
        on_fetched: Callable[["ReplicaNode", FetchResponse], None],
    ) -> None:
        """`on_command` receives each command that the node is about to send to the controller, `on_fetched` each answer
        to a follower in the step in which it leaves: the power may go before the step ends.
        """
        super().__init__(world, network)
        self._node_id = BrokerId(node_id)
        self.files = self._new_disk(DATA, lying_sync=lying_sync)
        self.applied = 1
        """The number of metadata changes that the node has applied; received changes outlive a crash."""
        self.image = EMPTY_IMAGE
        self.broker_epoch = -1
        self._directory_id = node_id.to_bytes(16, "big")
        self.broker: Broker
        self.replicas: LocalReplicas
        self.table: PartitionTable
        self.fetchers: ReplicaFetchers
        self.keeper: InSyncKeeper
        self.failures: ReplicaFailures
        self.disk: RoundDisk
        self.repairs: ReplicaRepairs
        self.is_serving = False
        self._has_roles = False
        self.forgets: Callable[[SimulatedDisk], None] | None = None
        """The function that changes the node's disk before the next start."""
        self._metadata = metadata
        self._defaults = defaults
        self._longest_disk_ms = longest_disk_ms
        self._lag_ms = lag_ms
        self._session_slots = session_slots
        self._is_flushed = is_flushed
        self._find = find
        self._on_command = on_command
        self._on_fetched = on_fetched
        self.steps = 0
        """A number that changes with each step of the node, and with its starts and crashes."""
        self.heard_ms: dict[int, int] = {}
        """The time of the last fetch of each other broker, in this life."""
        self._starts = count(1)
        self._applied_offset = 0
        metadata.subscribe(self)

    @property
    def node_id(self) -> BrokerId:
        return self._node_id

    # Life and death

    def _prepare(self) -> None:
        if self.forgets is not None:
            forgets, self.forgets = self.forgets, None
            forgets(self.files)
        self.heard_ms = {}
        self.is_serving = self._has_roles = False

    def _start(self) -> None:
        clock, life = self.clock, self.life
        self._secret = (self.node_id * 1000 + next(self._starts)).to_bytes(16, "big")
        disk = self.disk = RoundDisk(self._world, self.do, life, key=self.node_id, longest_ms=self._longest_disk_ms)
        self.broker = Broker(
            self._config(),
            ports=BrokerPorts(
                clock=clock,
                files=self.files,
                disk=disk,
                syncing_disk=disk,
                peers=self,
                random_bytes=self._random_bytes,
                replica_selector=RackAwareReplicaSelector(),
            ),
            settings=ReplicaSettings(self.node_id, self._defaults),
            metadata=self,
            controller=self,
            admin={},
            on_broken_invariant=_raise_broken_invariant,
        )
        replicas = self.replicas = self.broker.replicas
        self.table, self.fetchers, self.keeper = replicas.partitions, replicas.fetchers, replicas.keeper
        self.failures, self.repairs, self.health = replicas.failures, replicas.repairs, replicas.health
        self.broker.open()
        on_hang = partial(self.health.set_stalled, StallCause.HUNG)
        stall_ms = max(STALL_MS, 3 * self._longest_disk_ms)  # a round is begun, synced and finished
        HangWatch((disk,), clock=clock, timeout_ms=stall_ms, on_change=on_hang).start()
        self._metadata.pump(self)
        # As the product, which has caught up with the metadata by then. Under flushed durability the node has kept
        # everything.
        before = self._metadata.image.brokers.get(self.node_id)
        self._claim = claimed_epoch(before, directory_id=self._directory_id, keeps_all=self._is_flushed)
        self._register()

    def _config(self) -> BrokerConfig:
        return BrokerConfig(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_secret=self._secret,
            log_directory=DATA,
            shown_log_directory=DATA,
            is_flushed=self._is_flushed,
            replica_lag_time_max_ms=self._lag_ms,
            fetch_max_bytes=DEFAULT_FETCH_MAX_BYTES,
            key_ranges=KeyRangeConfig(),
            fetch_session_slots=self._session_slots,
            auto_create_topics=False,
            verifies_transactions=True,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            registration_timeout_ms=60_000,
            throttle=ThrottleConfig(),
            replica_fetch=ReplicaFetchConfig(
                replica_fetch_max_bytes=600,
                replica_fetch_wait_max_ms=200,
                replica_fetch_backoff_ms=400,
                replica_socket_timeout_ms=300,
            ),
            groups=GroupConfig(),
            transactions=TransactionConfig(),
            # No reserve: a full disk is noticed by what cannot be appended.
            periodic_work=PeriodicWorkConfig(log_dir_reserve_bytes=0),
        )

    def _register(self) -> None:
        command = RegisterBroker(
            broker_id=self.node_id,
            incarnation_id=id_of_secret(self._secret),
            endpoints=(Endpoint(listener_name=LISTENER, host=f"broker-{self.node_id}", port=9092),),
            rack=rack_of(self.node_id),
            log_directories=(self._directory_id,),
            previous_broker_epoch=self._claim,
        )
        self.submit(command, self._registered)

    def _registered(self, answer: Any) -> None:
        if not isinstance(answer, BrokerRegistered):
            self.clock.call_at(self.clock.monotonic_ms() + 200, self._register)
            return
        self.broker_epoch = answer.broker_epoch
        if self._has_roles:
            return
        self._has_roles = True
        self.replicas.applier.load(self.image)
        self._load()
        self.failures.when_reported(self._serve)
        self._beat()

    def _load(self) -> None:
        self.replicas.load(self.image)

    def _serve(self) -> None:
        self.replicas.forget_vanished()
        self.keeper.start()
        self.is_serving = True

    def _beat(self) -> None:
        beat = BrokerHeartbeat(
            broker_id=self.node_id,
            broker_epoch=self.broker_epoch,
            metadata_offset=self._applied_offset - 1,
            wants_fence=not self.is_serving,
        )
        self.submit(beat, self._beaten)
        self.replicas.periodic_work.reserve.check()
        self.table.checkpoints.write_recovery_points()
        self.table.checkpoints.write_high_watermarks()
        self.table.checkpoints.write_log_starts()
        self.clock.call_at(self.clock.monotonic_ms() + HEARTBEAT_MS, self._beat)

    def _beaten(self, answer: Any) -> None:
        if isinstance(answer, KafkaError) and answer.code is ErrorCode.STALE_BROKER_EPOCH:
            # A request of an earlier life has come late, and has registered that.
            self._world.sometimes["registered again"] += 1
            self._register()

    def crash(self) -> None:
        self.steps += 1
        self.is_serving = False
        super().crash()

    def _turn(self, action: Action) -> None:
        self.steps += 1
        action()
        self.table.write_staged()

    # The metadata

    def apply(self, image: ClusterImage, delta: ImageDelta, end_offset: int) -> None:
        """Apply a change of the metadata that has come."""
        self.do(lambda: self._apply(image, delta, end_offset))

    def _apply(self, image: ClusterImage, delta: ImageDelta, end_offset: int) -> None:
        self.image, self._applied_offset = image, end_offset
        if self._has_roles:
            # Not each for itself, as in the product: a breach of a law must get out of here.
            for listener in (self.replicas.applier.on_image, *self._listeners):
                listener(image, delta)

    @property
    def _listeners(self) -> tuple[OnImage, ...]:
        return self.replicas.listeners

    @property
    def applied_end_offset(self) -> int:
        """The offset up to which the node has applied the metadata."""
        return self._applied_offset

    def _random_bytes(self, size: int) -> bytes:
        return b"".join(self._world.between(0, 255, "id", self.node_id).to_bytes(1, "big") for _ in range(size))

    @property
    def leader_id(self) -> BrokerId:
        return BrokerId(0)

    def submit(self, command: Any, on_done: Callable[[Any], None]) -> None:
        """Do the work of `server.ports.Controller.submit`. As in the product, this node's commands get its secret."""
        if hasattr(command, "secret"):
            command = replace(command, secret=self._secret)
        self._on_command(self, command)
        self._metadata.ask(self, command, lambda answer: self.do(lambda: on_done(answer)))

    # Requests

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Do the work of `server.ports.Peer.send`: the request and its answer go as Kafka's bytes; the answer may be
        None."""
        version = self._world.between(max(oldest_version, 17), 18, "version", self.node_id)
        reply, target = self._once(on_reply, timeout_ms or 1_000), self._find(node_id)

        def leaves(response: Any) -> None:
            if isinstance(response, FetchResponse):
                self._on_fetched(target, response)

        ask(self._world, self._network, self.node_id, target, request, version, reply, on_leave=leaves)

    def _once(self, on_reply: Callable[[Any], None], timeout_ms: int) -> Callable[[Any], None]:
        life, is_told = self.life, False

        def reply(response: Any) -> None:
            nonlocal is_told
            if life is self.life and not is_told:
                is_told = True
                self.do(lambda: on_reply(response))

        self._world.after(timeout_ms, lambda: reply(None), life)
        return reply

    def serve(self, frame: bytes, connection: OneRequest) -> None:
        """Carry out one request, if this node accepts connections."""
        if not self.is_serving:
            connection.close("starting")
            return
        self.do(lambda: self.broker.dispatcher.on_frame(connection, 0, memoryview(bytearray(frame))))

    def describe(self) -> str:
        """A line for a failure's message."""
        if not self.is_up:
            return f"{self.node_id}: down"
        logs = ", ".join(
            f"{partition.topic_partition} {'leads' if partition.is_leader else 'follows'} {partition.leader_epoch}"
            f" {partition.log.log_start_offset}..{partition.high_watermark}..{partition.log.flushed_offset}"
            f"..{partition.log.log_end_offset}"
            for partition in self.table
        )
        return f"{self.node_id}: {'serves' if self.is_serving else 'starts'}, {logs}"


def _raise_broken_invariant(broken: BaseException) -> None:
    raise broken
