"""A node of a simulated quorum that is a broker too: its channel to the active controller, its life, its clients.

Requests of the node to other nodes, and of clients to this node, go through Kafka's bytes and the product's
dispatchers. The broker acts on no metadata, so it keeps no partitions: it counts as the leader of the partitions that
it leads by the metadata.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simulation.harness.disks import SlowDisk
from simulation.quorum.node import CLUSTER_ID, DATA, QuorumNode
from tailrace.metadata.broker_commands import RegisterBroker
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import id_of_secret
from tailrace.node.settings.broker_config import broker_config
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
)
from tailrace.protocol.registry import api_of
from tailrace.server.assembly.broker import Broker
from tailrace.server.assembly.config import BrokerPorts
from tailrace.server.assembly.controller import ControllerApis
from tailrace.server.controller_link.broker_session import BrokerSession
from tailrace.server.controller_link.channel import ControllerLink
from tailrace.server.dispatch import Dispatcher
from testkit.nodes.ports import RecordingConnection

HEARTBEAT_MS: Final = 500
SESSION_MS: Final = 2_500
_SETTINGS: Final = NodeConfig(
    {"broker.heartbeat.interval.ms": str(HEARTBEAT_MS), "broker.session.timeout.ms": str(SESSION_MS)}
)
_RAFT: Final = (FetchRequest, FetchSnapshotRequest, VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest)
_PATIENCE_MS: Final = 2_000

OnReply = Callable[[Any], None]


class BrokerNode(QuorumNode):
    """A voter or observer with a broker beside it. `fatal` is the reason why the broker gave up."""

    starts = 0
    fatal: KafkaError | None = None
    link: ControllerLink
    session: BrokerSession
    secret: bytes
    """The secret of its incarnation."""

    def describe(self) -> str:
        return f"{super().describe()}, broker {self.session.state.name if self.is_up else 'down'}"

    def _start(self) -> None:
        super()._start()
        self.starts += 1
        self.fatal = None
        self.secret = secret = self.key.id.to_bytes(8, "big") + self.starts.to_bytes(8, "big")
        self.link = ControllerLink(
            self.controller,
            node_id=self.key.id,
            cluster_id=CLUSTER_ID,
            sender_id=secret,
            secret=secret,
            peer=self,
            clock=self.clock,
        )
        apis = ControllerApis(
            cluster_id=CLUSTER_ID,
            deletion_enabled=True,
            settings=_SETTINGS,
            clock=self.clock,
            host=self.host,
            controller=self.controller,
            creating=self.controller,
            on_broken_invariant=_raise,
        )
        disk = SlowDisk(self._world, self.do, self.life, key=self.key.id, longest_ms=self._longest_disk_ms)
        config = broker_config(_SETTINGS, cluster_id=CLUSTER_ID, log_directory=DATA)
        broker = Broker(
            replace(config, broker_id=BrokerId(self.key.id), incarnation_secret=secret),
            ports=BrokerPorts(
                clock=self.clock,
                files=self.files,
                disk=disk,
                syncing_disk=disk,
                peers=self,
                random_bytes=self._random_bytes,
            ),
            settings=_SETTINGS,
            metadata=self.controller,
            controller=self.link.channel,
            admin=self.link.forwarding.handlers(apis.admin),
            on_broken_invariant=_raise,
        )
        self._of_clients, self._of_nodes = broker.dispatcher, apis.dispatcher
        self._connections: dict[int, RecordingConnection] = {}
        self.session = broker.new_session(
            RegisterBroker(
                broker_id=BrokerId(self.key.id),
                incarnation_id=id_of_secret(secret),
                endpoints=(Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9000 + self.key.id),),
                log_directories=(self.key.directory_id,),
                directory_secret=self.directory_secret,
            ),
            applied=self.controller,
            on_fatal=self._give_up,
        )
        self.session.start(lambda _: self.session.serve(lambda: None))

    def _give_up(self, error: KafkaError) -> None:
        self.fatal = error

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
        """Send as `QuorumNode` does. A peer that does not answer in time has not answered, as with real peers."""
        if isinstance(request, _RAFT):
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
        """Serve a request as the controllers' listener does."""
        if isinstance(request, _RAFT):
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


def _raise(broken: BaseException) -> None:
    raise broken
