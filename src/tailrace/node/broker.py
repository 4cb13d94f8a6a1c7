"""The broker of one node on its event loop, from registration to the last answer.

Start: partitions are found on the disk; the broker registers; the broker carries out what the metadata says of this
broker; replicas that have lost records leave the in-sync replicas; the broker is unfenced; only then are clients
admitted. Stop: the requests that were taken are answered, within a time limit.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tailrace.metadata.broker_commands import RegisterBroker, claimed_epoch
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.image import Endpoint as BrokerEndpoint
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import SECRET_BYTES, id_of_secret
from tailrace.net.connection import Address
from tailrace.net.listener import Listener
from tailrace.net.turns import Turns
from tailrace.node.event_loop import LoopClock
from tailrace.node.flush_thread import FlushThread, HangWatch, PageCache
from tailrace.node.metadata_quorum import MetadataQuorum
from tailrace.node.metrics.measurements import BrokerParts
from tailrace.node.peers import Peers
from tailrace.node.selector_class import close_selector, load_selector
from tailrace.node.settings.broker_config import authorizer, broker_config, log_overruled_settings
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.listeners import ListenerAddress
from tailrace.server.assembly.broker import Broker
from tailrace.server.assembly.config import BrokerPorts
from tailrace.server.audit import DeniedAccesses
from tailrace.server.callbacks import run_slice
from tailrace.server.controller_link.broker_session import BrokerSession
from tailrace.server.controller_link.channel import ControllerLink
from tailrace.server.dispatch import HandlerTable
from tailrace.server.partitions.log_directory_health import StallCause
from tailrace.server.quorum.controller import OnImage, QuorumController, notify_each
from tailrace.server.replicas.metadata_applier import MetadataApplier
from tailrace.server.replicas.removed_topics import RemovedTopics
from tailrace.storage import OsFiles


class ImageFeed:
    """Passes the image to the replicas of this broker: at the start in slices, then change by change.

    A broker that was killed opens thousands of logs when it comes back. Meanwhile the node votes and sends heartbeats.
    A change of the metadata waits until the broker has carried out the state before the change.
    """

    def __init__(self, metadata: QuorumController, *, applier: MetadataApplier, turns: Turns) -> None:
        self._metadata = metadata
        self._applier = applier
        self._turns = turns
        self._others: Sequence[OnImage] = ()
        self._waiting: list[tuple[ClusterImage, ImageDelta]] | None = []

    async def begin(self, load: Callable[[ClusterImage], None], others: Sequence[OnImage]) -> None:
        """Carry out the present image and go on with its changes; return when nothing is left to be done.

        `load` is called when the partitions have their roles; `others` get changes after the partitions.
        """
        self._others = others
        clock = LoopClock(asyncio.get_running_loop(), self._turns)
        image = self._metadata.image
        self._metadata.on_image(self._on_image)
        steps = self._applier.steps(image)
        is_done = False

        def carry_out_slice() -> None:
            nonlocal is_done
            is_done = run_slice(steps, clock)

        while not is_done:
            self._turns.run(carry_out_slice)
            await asyncio.sleep(0)
        self._turns.run(lambda: self._catch_up(image, load))

    def _catch_up(self, image: ClusterImage, load: Callable[[ClusterImage], None]) -> None:
        load(image)
        waiting, self._waiting = self._waiting or [], None
        for change in waiting:
            self._act(*change)

    def _on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        if self._waiting is not None:
            self._waiting.append((image, delta))
        else:
            self._act(image, delta)

    def _act(self, image: ClusterImage, delta: ImageDelta) -> None:
        notify_each((self._applier.on_image, *self._others), image, delta)


_LATE_TRANSACTION_MS: Final = 300_000
"""The longest time until the coordinator ends a transaction that has timed out, as in Kafka."""
_LAST_FLUSH_SECONDS: Final = 30.0
_LAST_ANSWERS_SECONDS: Final = 3.0
"""The time limit for answers that this node cannot speed up: answers that wait for slow replicas, and answers to
clients that do not read."""
_HAND_OVER_MS: Final = 5_000
_NO_CONTROLLER_MS: Final = 2_500
"""By this time the death of a controller is noticed and an election is over, if there is a majority. The known leader
is no good sign: without a majority the known leader alternates between the last leader and no leader."""
_LOOK_SECONDS: Final = 0.05

_logger = logging.getLogger("tailrace.node")


class RunningBroker:
    """A `server` Broker with threads, peers and an event loop. `start` once, then `stop` once."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        quorum: MetadataQuorum,
        files: OsFiles,
        directory: str,
        directory_id: bytes,
        directory_secret: bytes,
        clock: LoopClock,
        turns: Turns,
        admin: HandlerTable,
        removed_topics: RemovedTopics,
        denied: DeniedAccesses,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`admin`: the handlers of requests to the active controller, used if the active controller is on this node.
        `removed_topics`: has listened to the metadata since before the first image.

        Raises KafkaError(INVALID_CONFIG) if the class of replica.selector.class cannot be used.
        """
        self._config = config
        self._quorum = quorum
        self._directory_id = directory_id
        self._directory_secret = directory_secret
        self._turns = turns
        self._removed_topics = removed_topics
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._id = BrokerId(config.node_id)
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._metadata = quorum.controller
        self._session: BrokerSession | None = None
        self._selector = load_selector(config)
        self.flush_thread = FlushThread(
            directory=directory, call_soon=self._loop.call_soon, post=clock.post, on_failure=on_fatal
        )
        self._peers = Peers(
            address_of=self._address_of,
            turns=turns,
            client_id=f"broker-{self._id}",
            timeout_ms=config.integer("replica.socket.timeout.ms"),
            tls=config.tls_contexts(config.inter_broker_listener, is_server=False),
            sasl=config.sasl.of_brokers,
        )
        self._link = ControllerLink(
            quorum.controller,
            node_id=self._id,
            cluster_id=quorum.cluster_id,
            sender_id=secrets.token_bytes(16),
            secret=self._secret,
            peer=quorum,
            clock=clock,
        )
        self.broker = Broker(
            broker_config(
                config, cluster_id=quorum.cluster_id, log_directory=directory, incarnation_secret=self._secret
            ),
            ports=self._ports(files, clock),
            settings=config,
            metadata=quorum.controller,
            controller=self._link.channel,
            admin=self._link.forwarding.handlers(admin),
            on_broken_invariant=on_fatal,
            authorizer=authorizer(config, quorum.controller),
            denied=denied,
        )
        self._hang_watch = HangWatch(
            (self.flush_thread, quorum.flush_thread),
            clock=clock,
            timeout_ms=config.integer("log.dir.stall.timeout.ms"),
            on_change=partial(self.broker.replicas.health.set_stalled, StallCause.HUNG),
        )

    def _ports(self, files: OsFiles, clock: LoopClock) -> BrokerPorts:
        syncing = self.flush_thread
        return BrokerPorts(
            clock=clock,
            files=files,
            disk=syncing if self._config.is_flushed else PageCache(call_soon=clock.call_soon, syncing=syncing),
            syncing_disk=syncing,
            peers=self._peers,
            random_bytes=secrets.token_bytes,
            process_ns=time.perf_counter_ns,
            replica_selector=self._selector,
        )

    @property
    def parts(self) -> BrokerParts:
        """The measured parts."""
        return BrokerParts(
            broker=self.broker,
            flush_thread=self.flush_thread,
            late_transaction_ms=self._config.integer("transaction.max.timeout.ms") + _LATE_TRANSACTION_MS,
        )

    def _address_of(self, broker_id: int) -> Address | None:
        """The address of another broker, for this broker."""
        broker = self._metadata.image.brokers.get(BrokerId(broker_id))
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    # Start

    async def start(self, advertised: Sequence[ListenerAddress]) -> None:
        """Start the broker; returns when clients may connect to these addresses. Raises KafkaError and OSError."""
        broker = self.broker
        broker.open()
        self._turns.on_turn_end = broker.partitions.write_staged
        await self._quorum.caught_up()
        starting: asyncio.Future[int] = self._loop.create_future()
        session = self._session = broker.new_session(
            self._registration(advertised),
            applied=self._metadata,
            on_fatal=lambda fault: self._on_fatal(fault) if starting.done() else starting.set_exception(fault),
        )
        registered: asyncio.Future[int] = self._loop.create_future()
        self._turns.run(lambda: session.start(registered.set_result))
        await asyncio.wait((registered, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
        await self._carry_out_metadata()

        def served() -> None:
            if not starting.done():
                starting.set_result(session.broker_epoch)

        def reported() -> None:
            broker.replicas.forget_vanished()
            broker.replicas.remove_gone(self._metadata.image, self._removed_topics)
            self._removed_topics.stop()
            # A node that was killed between a decision and its effects carries the effects out before it serves.
            broker.partitions.when_made(lambda: session.serve(served))

        # A fenced broker is never elected: the lost replicas are reported before the broker is unfenced.
        self._turns.run(lambda: broker.replicas.failures.when_reported(reported))
        await starting
        log_overruled_settings(self._config, self._metadata.image)
        broker.start()
        self._hang_watch.start()

    def _registration(self, advertised: Sequence[ListenerAddress]) -> RegisterBroker:
        before = self._metadata.image.brokers.get(self._id)
        # This broker still has every record that it had acknowledged before it stopped (KIP-966), except in lost
        # replicas, which it reports when their logs are open.
        keeps_all = self._config.is_flushed or self.broker.replicas.log_directory.was_clean
        return RegisterBroker(
            broker_id=self._id,
            incarnation_id=id_of_secret(self._secret),
            endpoints=tuple(
                BrokerEndpoint(
                    listener_name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=self._config.addresses.protocol_of(endpoint.name),
                )
                for endpoint in advertised
            ),
            rack=self._config.rack,
            log_directories=(self._directory_id,),
            directory_secret=self._directory_secret,
            previous_broker_epoch=claimed_epoch(before, directory_id=self._directory_id, keeps_all=keeps_all),
        )

    async def _carry_out_metadata(self) -> None:
        """Carry out this broker's part of the metadata, now and with each change."""
        broker = self.broker
        feed = ImageFeed(self._metadata, applier=broker.replicas.applier, turns=self._turns)
        await feed.begin(broker.load, broker.listeners)
        self._metadata.answer_when(broker.partitions.when_made)

    # Stop

    async def hand_over(self, *, is_needed: bool) -> None:
        """Move the leaderships of this broker to other brokers, if there are other brokers, so that clients hardly
        notice the stop.

        If the whole cluster stops (`is_needed` is False), this broker only stops its session.
        """
        session, alive = self._session, self._metadata.image.alive_brokers()
        assert session is not None, "the broker was started"
        self.broker.replicas.periodic_work.stop()
        self.broker.coordination.checkpoints.stop()
        self._hang_watch.stop()
        if not is_needed:
            _logger.info("event=nothing-handed-over broker=%d reason=the cluster stops", self._id)
        elif any(broker.broker_id != self._id for broker in alive):
            handed_over = asyncio.Event()
            self._turns.run(lambda: session.shut_down(handed_over.set, _HAND_OVER_MS))
            await self._handed_over(handed_over, session)
        self._turns.run(session.close)
        self._turns.run(self.broker.stop)

    async def _handed_over(self, done: asyncio.Event, session: BrokerSession) -> None:
        """Return when all leaderships have moved, or when no controller has answered for a while, perhaps since all
        nodes stop."""
        while not done.is_set() and session.unheard_ms() < _NO_CONTROLLER_MS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _LOOK_SECONDS)

    async def answer_open_requests(self, listeners: Sequence[Listener]) -> None:
        """Flush and answer the requests that were taken, before the connections are closed.

        Long polls come first, since later answers of a connection wait behind the answer to its long poll. Members of
        groups come last, since their coordinators still write commits.
        """
        for listener in listeners:
            listener.discard_input()
        self._turns.run(self.broker.polls.answer_all)
        await self.flush_thread.idle(_LAST_FLUSH_SECONDS)
        self._turns.run(self.broker.coordination.close)
        self._turns.run(self._link.close)
        for listener in listeners:
            if not await listener.wait_until_answered(_LAST_ANSWERS_SECONDS):
                _logger.warning("event=requests-left-unanswered listener=%s", listener.name)

    def abandon(self) -> None:
        """Release everything after a start that has failed or was cancelled."""
        if self._session is not None:
            self._session.close()
        self.broker.stop()
        self._hang_watch.stop()
        self._peers.close()
        self.flush_thread.stop()
        close_selector(self._selector)

    async def stop(self) -> None:
        """Flush and close the logs. No request may come any more."""
        self._turns.run(self.broker.replicas.fetchers.close)
        self._peers.close()
        await self.flush_thread.idle(_LAST_FLUSH_SECONDS)
        self.flush_thread.stop()
        self.broker.partitions.close()
        close_selector(self._selector)
