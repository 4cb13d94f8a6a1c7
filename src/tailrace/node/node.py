"""The node: builds every part, starts the parts in order, stops the parts in the reverse order.

Start: the data directory is locked and its identity read; ports are taken; the metadata quorum is found, and this
node's replica of the metadata log is started and answers other controllers; the broker registers, opens its partitions
and is unfenced; only then are clients admitted. Stop: `/healthz` fails; other brokers take over this broker's
partitions; no more requests are taken; the taken requests are flushed and answered, within a time limit; connections
are closed; another voter leads; then the logs are closed, and at last the mark of the clean stop is written.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace.model.ids import ZERO_TOPIC_ID, BrokerId
from tailrace.net.buffers import BufferPool
from tailrace.net.fair_turns import FairTurns
from tailrace.net.inbound import InboundConnection
from tailrace.net.listener import Listener, arrivals_within
from tailrace.net.tls import TlsContexts
from tailrace.net.turns import Turns
from tailrace.node.audit.node_audit import NodeAudit
from tailrace.node.authentication import NodeAuthentication
from tailrace.node.broker import RunningBroker
from tailrace.node.certificate_watch import LOOK_SECONDS, CertificateWatch
from tailrace.node.data_directory import DirectoryLock, claim_identity
from tailrace.node.descriptors import (
    CarefulController,
    count_open_descriptors,
    descriptor_limit,
    plan_node_descriptors,
)
from tailrace.node.event_loop import LoopClock, StallWatch
from tailrace.node.metadata_quorum import MetadataQuorum
from tailrace.node.metrics.measurements import NodeParts
from tailrace.node.metrics.monitoring import Monitoring
from tailrace.node.settings.broker_config import authorizer
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.listeners import ListenerAddress, is_wildcard_host
from tailrace.server.assembly.controller import ControllerApis
from tailrace.server.audit import DeniedAccesses
from tailrace.server.authentication.gate import Gate
from tailrace.server.dispatch import Dispatcher
from tailrace.server.replicas.removed_topics import RemovedTopics
from tailrace.storage import OsFiles

_logger = logging.getLogger("tailrace.node")

OnFatal = Callable[[BaseException], None]


class Node:
    """A broker, a controller or both in this process. `start` once, then `stop` once; both on one running event loop.

    `on_fatal` gets a broken invariant or the failure of the disk: after either, answers of this node may be wrong.
    """

    def __init__(self, config: NodeConfig, *, on_fatal: OnFatal) -> None:
        """Raises KafkaError(INVALID_CONFIG) if this process may open too few files and connections for a node."""
        self._config = config
        self._on_fatal = on_fatal
        self._descriptors = plan_node_descriptors(config, descriptor_limit())
        self._files = OsFiles(max_open_files=self._descriptors.files)
        self._directory = str(config.data_directory)
        self._listeners: list[Listener] = []
        self._dispatchers: list[Dispatcher] = []
        self._certificates: dict[str, TlsContexts] = {}
        self.quorum: MetadataQuorum | None = None
        """The metadata quorum on this node; None until the start has opened the metadata log."""
        self._broker: RunningBroker | None = None
        self._authentication: NodeAuthentication | None = None
        self._gates: dict[str, Gate] = {}
        self._audit: NodeAudit | None = None
        self._monitoring: Monitoring | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self.metrics_address: tuple[str, int] | None = None
        """The address of /metrics, if an address is configured."""

    async def start(self) -> None:
        """Start the node, which serves requests when `start` returns. If the start fails, KafkaError or OSError is
        raised, and everything is released."""
        self._loop = asyncio.get_running_loop()
        self._lock = DirectoryLock(self._config.data_directory)
        try:
            await self._start_locked()
        except BaseException:
            await self._give_up()
            raise

    def _look_at_certificates(self) -> None:
        self._certificate_watch.look()
        self._next_look = self._loop.call_later(LOOK_SECONDS, self._look_at_certificates)

    def _end_looks(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()

    async def _give_up(self) -> None:
        """Release everything after a start that has failed or was cancelled."""
        self._end_looks()
        if self._monitoring is not None:
            await self._monitoring.stop()
        for listener in self._listeners:
            await listener.stop()
        if self._authentication is not None:
            self._authentication.stop()
        if self._broker is not None:
            self._broker.abandon()
        if self.quorum is not None:
            self.quorum.close()
        if self._audit is not None:
            self._audit.stop()
        self._lock.release()

    @property
    def advertised(self) -> tuple[ListenerAddress, ...]:
        """The addresses of this node for clients, one per listener, with the ports that were taken (for port 0, the
        port that the system chose).

        For a node with only the controller role, the addresses for controllers and brokers.
        """
        listeners = self._client_listeners if self._config.quorum.is_broker else self._listeners
        addresses = self._config.addresses
        return tuple(addresses.address_of(taken.name, taken_port=taken.addresses[0][1]) for taken in listeners)

    @property
    def _client_listeners(self) -> Sequence[Listener]:
        names = self._config.quorum.listener_names
        return [listener for listener in self._listeners if listener.name not in names]

    @property
    def _controller_listeners(self) -> Sequence[Listener]:
        names = self._config.quorum.listener_names
        return [listener for listener in self._listeners if listener.name in names]

    async def _start_locked(self) -> None:
        config = self._config
        identity = claim_identity(self._files, self._directory, node_id=config.node_id)
        self._stalls = StallWatch(monotonic_ms=lambda: round(self._loop.time() * 1000))
        self._turns = Turns(
            call_soon=self._loop.call_soon, on_broken_invariant=self._on_fatal, on_stall=self._stalls.record
        )
        self._fair_turns = FairTurns(self._turns, call_soon=self._loop.call_soon)
        clock = LoopClock(self._loop, self._turns)
        self._audit = NodeAudit(config, clock=clock)
        self._audit.start()
        self._bind()
        self._certificate_watch = CertificateWatch(
            self._certificates, warning_days=config.integer("ssl.certificate.warning.days")
        )
        self._look_at_certificates()
        for listener in self._listeners:
            listener.on_handshake = self._audit.record_handshake
        self._authentication = NodeAuthentication(
            config.sasl,
            image=lambda: None if self.quorum is None else self.quorum.known_image,
            clock=clock,
            audit=self._audit.audit,
        )
        gates = self._gates = {
            listener.name: self._authentication.guard(listener)
            for listener in self._listeners
            if config.addresses.protocol_of(listener.name).has_sasl
        }
        await self._bind_monitoring()
        quorum = self.quorum = MetadataQuorum(
            config,
            files=self._files,
            directory=self._directory,
            identity=identity,
            clock=clock,
            turns=self._turns,
            on_fatal=self._on_fatal,
        )
        await quorum.find(self._controller_listeners)
        apis = self._controller_apis(quorum, clock, self._audit.denied)
        apis.sasl.gates = tuple(gates[taken.name] for taken in self._controller_listeners if taken.name in gates)
        self._serve_controllers(apis.dispatcher)
        removed_topics = RemovedTopics(BrokerId(config.node_id))
        if config.quorum.is_broker:
            quorum.controller.on_image(removed_topics.on_image)
        self._turns.run(quorum.start)
        if config.quorum.is_broker:
            self._broker = RunningBroker(
                config,
                quorum=quorum,
                files=self._files,
                directory=self._directory,
                directory_id=identity.directory_id or ZERO_TOPIC_ID,
                directory_secret=identity.directory_secret,
                clock=clock,
                turns=self._turns,
                admin=apis.admin,
                removed_topics=removed_topics,
                denied=self._audit.denied,
                on_fatal=self._on_fatal,
            )
            self._broker.broker.sasl.gates = tuple(
                gates[taken.name] for taken in self._client_listeners if taken.name in gates
            )
            self._dispatchers.append(self._broker.broker.dispatcher)
            await self._broker.start(self.advertised)
        quorum.forget_founding_users()
        await self._start_monitoring(quorum)
        for listener in self._client_listeners:
            assert self._broker is not None, "only a broker has listeners for clients"
            listener.on_frame = self._broker.broker.dispatcher.on_frame
            await listener.start()

    def _controller_apis(self, quorum: MetadataQuorum, clock: LoopClock, denied: DeniedAccesses) -> ControllerApis:
        return ControllerApis(
            cluster_id=quorum.cluster_id,
            deletion_enabled=self._config.flag("delete.topic.enable"),
            settings=self._config,
            clock=clock,
            host=quorum.host,
            controller=quorum.controller,
            creating=CarefulController(
                quorum.controller,
                limit=self._descriptors.limit,
                reclaimable=lambda: self._files.open_files,
                count_open=count_open_descriptors,
            ),
            on_broken_invariant=self._on_fatal,
            authorizer=authorizer(self._config, quorum.controller),
            denied=denied,
        )

    def _bind(self) -> None:
        """Take the ports of the listeners: the advertised addresses need the port numbers. No client can connect before
        the listeners start."""
        self._receive_buffers = BufferPool(limit_bytes=self._config.integer("queued.max.request.bytes"))
        limits = replace(self._config.listener_limits, max_connections=self._descriptors.connections)
        arrivals, of_controllers = arrivals_within(limits), self._config.quorum.listener_names
        for endpoint in self._config.addresses.listeners:
            tls = self._config.tls_contexts(endpoint.name, is_server=True)
            if tls is not None:
                self._certificates[endpoint.name] = tls
            listener = Listener(
                name=endpoint.name,
                turns=self._turns,
                fair_turns=self._fair_turns,
                on_frame=_refuse,
                pool=self._receive_buffers,
                limits=limits.of_controllers if endpoint.name in of_controllers else limits,
                arrivals=arrivals,
                tls=tls,
                principal_of=self._config.principal_of(endpoint.name),
            )
            listener.bind(_hosts_to_bind(endpoint.host), endpoint.port)
            self._listeners.append(listener)

    def _serve_controllers(self, dispatcher: Dispatcher) -> None:
        """Serve other controllers and brokers from now on, but no clients yet."""
        if not self._controller_listeners:
            return
        self._dispatchers.append(dispatcher)
        for listener in self._controller_listeners:
            listener.on_frame = dispatcher.on_frame

    async def _bind_monitoring(self) -> None:
        endpoint = self._config.addresses.metrics
        if endpoint is not None:
            most = self._config.integer("metrics.max.partitions")
            self._monitoring = Monitoring(host=endpoint.host, max_partitions=most)
            self.metrics_address = await self._monitoring.bind(endpoint.port)

    async def _start_monitoring(self, quorum: MetadataQuorum) -> None:
        broker = self._broker
        if self._monitoring is None or self.metrics_address is None or self._audit is None:
            return
        parts = NodeParts(
            node_id=self._config.node_id,
            dispatchers=tuple(self._dispatchers),
            listeners=tuple(self._listeners),
            receive_buffers=self._receive_buffers,
            controller=quorum.controller,
            metadata_flush_thread=quorum.flush_thread,
            stalls=self._stalls,
            certificates=self._certificate_watch,
            files=self._files,
            gates=self._gates,
            audit=self._audit,
            broker=None if broker is None else broker.parts,
        )
        await self._monitoring.start(parts)
        _logger.info("event=metrics-served address=%s:%d", *self.metrics_address)

    async def stop(self, *, with_cluster: bool = False) -> None:
        """Stop cleanly: everything that was acknowledged or written is on disk when this returns.

        `with_cluster`: all other nodes stop too, so no leadership is handed over.
        """
        assert self.quorum is not None, "the node was started"
        self._end_looks()
        if self._monitoring is not None:
            await self._monitoring.stop()  # load balancers must not send clients here any more
        if self._broker is not None:
            await self._broker.hand_over(is_needed=not with_cluster)
        for listener in self._client_listeners:
            listener.stop_accepting()
        if self._broker is not None:
            await self._broker.answer_open_requests(self._client_listeners)
        for listener in self._client_listeners:
            await listener.stop()
        if self._broker is not None:
            await self._broker.stop()
        await self.quorum.leave()
        for listener in self._controller_listeners:
            await listener.stop()
        if self._authentication is not None:
            self._authentication.stop()
        self.quorum.close()
        if self._audit is not None:
            self._audit.stop()
        self._lock.release()
        _logger.info("event=node-stopped node=%d", self._config.node_id)


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
