"""A node of a simulated quorum that is a broker too: its channel to the active controller, its life, its clients.

What the node asks of others, and what clients ask of it, goes through Kafka's bytes and the product's dispatchers.
There are no partitions here: a broker leads what the metadata says that it leads.
"""

from collections.abc import Callable
from typing import Any, Final

from simulation.quorum_node import CLUSTER_ID, QuorumNode
from tailrace.metadata.broker_commands import RegisterBroker
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.registry import APIS, api_of
from tailrace.server.admin.brokers import UnregisterBrokerHandler
from tailrace.server.admin.config_changes import AlterConfigsHandler
from tailrace.server.admin.live_settings import LiveSettings
from tailrace.server.admin.topics import CreateTopicsHandler, DeleteTopicsHandler
from tailrace.server.controller_link.broker_lifecycle import BrokerSession
from tailrace.server.controller_link.channel import ControllerChannel
from tailrace.server.controller_link.controller_peers import (
    AllocateProducerIdsHandler,
    AlterPartitionHandler,
    AssignReplicasToDirsHandler,
    BrokerHeartbeatHandler,
    BrokerRegistrationHandler,
    ControllerRegistrationHandler,
)
from tailrace.server.controller_link.controller_requests import Errands
from tailrace.server.controller_link.envelope_handler import EnvelopeHandler
from tailrace.server.controller_link.envelopes import Envelopes
from tailrace.server.controller_link.forwarding import Forwarding
from tailrace.server.dispatch import Dispatcher, Handler
from testkit.ports import RecordingConnection

HEARTBEAT_MS: Final = 500
SESSION_MS: Final = 2_500
_RAFT: Final = frozenset((1, 52, 53, 54, 59))
_PATIENCE_MS: Final = 2_000

OnReply = Callable[[Any], None]


class BrokerNode(QuorumNode):
    """A voter or observer with a broker beside it. `fatal` is why the broker gave up, if it has."""

    starts = 0
    fatal: KafkaError | None = None
    channel: ControllerChannel
    errands: Errands
    forwarding: Forwarding
    lifecycle: BrokerSession

    def _start(self) -> None:
        super()._start()
        self.starts += 1
        self.fatal = None
        incarnation_id = self.key.id.to_bytes(8, "big") + self.starts.to_bytes(8, "big")
        self.errands = Errands(quorum=self.controller, peer=self, node_id=self.key.id, clock=self.clock)
        envelopes = Envelopes(incarnation_id)
        self.channel = ControllerChannel(
            quorum=self.controller,
            errands=self.errands,
            envelopes=envelopes,
            cluster_id=CLUSTER_ID,
            node_id=BrokerId(self.key.id),
        )
        self.forwarding = Forwarding(errands=self.errands, envelopes=envelopes, node_id=self.key.id)
        administration = self._administration()
        self._of_clients = _dispatcher(self.forwarding.handlers(administration))
        self._of_nodes = _dispatcher(self._asked_by_nodes(administration))
        self._connections: dict[int, RecordingConnection] = {}
        self.lifecycle = BrokerSession(
            controller=self.channel,
            applied=self.controller,
            clock=self.clock,
            registration=RegisterBroker(
                broker_id=BrokerId(self.key.id),
                incarnation_id=incarnation_id,
                endpoints=(Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9000 + self.key.id),),
                log_directories=(self.key.directory_id,),
            ),
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            registration_timeout_ms=60_000,
            on_fatal=self._give_up,
        )
        self.lifecycle.start(lambda _: self.lifecycle.serve(lambda: None))

    def _give_up(self, error: KafkaError) -> None:
        self.fatal = error

    def _administration(self) -> dict[int, Handler]:
        controller = self.controller
        altering = AlterConfigsHandler(controller=controller)
        return {
            19: CreateTopicsHandler(controller=controller, settings=LiveSettings(NodeConfig())),
            20: DeleteTopicsHandler(controller=controller),
            33: altering,
            44: altering,
            64: UnregisterBrokerHandler(controller=controller),
        }

    def _asked_by_nodes(self, administration: dict[int, Handler]) -> dict[int, Handler]:
        controller = self.controller
        return {
            56: AlterPartitionHandler(controller=controller),
            58: EnvelopeHandler(quorum=controller, handlers=administration, on_broken_invariant=_raise),
            62: BrokerRegistrationHandler(controller=controller, cluster_id=CLUSTER_ID),
            63: BrokerHeartbeatHandler(controller=controller),
            67: AllocateProducerIdsHandler(controller=controller),
            70: ControllerRegistrationHandler(controller=controller),
            73: AssignReplicasToDirsHandler(controller=controller),
        }

    # Clients

    def ask(self, request: Any, version: int, on_answer: OnReply) -> RecordingConnection:
        """Let a client ask, through a connection of its own. `on_answer` is called with the response, once or never."""
        return self._ask(self._of_clients, request, version, on_answer)

    # server.ports.Peer

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: OnReply,
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """As `QuorumNode`; and who does not answer in time has not answered, as with real peers."""
        if api_of(type(request)).key in _RAFT:
            super().send(node_id, request, on_reply, oldest_version=oldest_version)
            return
        is_over = False

        def reply(message: Any) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                timer.cancel()
                on_reply(message)

        patience_ms = _PATIENCE_MS if timeout_ms is None else timeout_ms
        timer = self.clock.call_at(self.clock.monotonic_ms() + patience_ms, lambda: reply(None))
        super().send(node_id, request, reply, oldest_version=oldest_version)

    def answer(self, request: Any, version: int, source: int, reply: OnReply) -> None:
        """What the controllers' listener does."""
        if api_of(type(request)).key in _RAFT:
            super().answer(request, version, source, reply)
            return

        def answered(response: Any) -> None:
            self._network.send(self.key.id, source, lambda: reply(response))

        self.ask_controller(request, version, answered)

    def ask_controller(self, request: Any, version: int, on_answer: OnReply) -> RecordingConnection:
        """Ask through the controllers' listener. `on_answer` is called with the response, once or never."""
        return self._ask(self._of_nodes, request, version, on_answer)

    def _ask(self, dispatcher: Dispatcher, request: Any, version: int, on_answer: OnReply) -> RecordingConnection:
        response = api_of(type(request)).response
        connection = _Answered(lambda data: on_answer(decode_response(response, version, data)[1]))
        frame = b"".join(encode_request(request, version, 7, "somebody"))
        self.do(lambda: dispatcher.on_frame(connection, connection.next_slot(), memoryview(frame)))
        return connection


class _Answered(RecordingConnection):
    """A connection for one request."""

    def __init__(self, on_answer: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_answer = on_answer

    def answer(self, slot: int, chunks: Any) -> None:
        super().answer(slot, chunks)
        data = self.answers.get(slot)
        if data is not None:
            self._on_answer(data)


def _dispatcher(handlers: dict[int, Handler]) -> Dispatcher:
    assert handlers.keys() <= APIS.keys()
    return Dispatcher(handlers, write_staged=lambda: None, on_broken_invariant=_raise)


def _raise(broken: BaseException) -> None:
    raise broken
