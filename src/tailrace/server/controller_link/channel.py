"""The cluster's metadata as seen by this node's broker, wherever the active controller is: a `Controller`.

Commands go to this node's controller while that controller is active, else to the leader's node as Kafka's requests. A
command that ends with REQUEST_TIMED_OUT may still take effect. A command that takes effect late or twice does no harm:

- RegisterBroker, RegisterController: the incarnation id names the process, and the same process gets the same answer.
- BrokerHeartbeat: fenced by the broker epoch; a heartbeat states the present condition.
- AlterPartition: fenced by the broker, leader and partition epochs. If a change took effect and its answer was lost,
  the repeated change gets INVALID_UPDATE_VERSION, and the leader learns the new state from the image. The same holds
  for a replica that leaves. Another copy of a refused change may take effect later: the leader allows for that copy
  (`replication.leadership`, rule 4).
- AllocateProducerIds: fenced by the broker epoch; a block whose answer was lost is not used.
- UnfenceBroker: sent as a heartbeat that states that the broker has applied its own registration.
- CreateTopics: in an envelope that an active controller opens once; a later controller that opens the envelope finds
  that the topics exist.

Requests of administrators are forwarded unchanged (`server.controller_link.forwarding`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    BrokerRegistered,
    CarriedOut,
    RegisterBroker,
    RegisterController,
    UnfenceBroker,
)
from tailrace.metadata.commands import (
    AlterPartition,
    ControllerCommand,
    ControllerResponse,
    CreateTopics,
)
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.controller_link import controller_wire as wire
from tailrace.server.controller_link import replicas_wire
from tailrace.server.controller_link.controller_requests import (
    APPLIED_MEANWHILE,
    ControllerRequests,
    OnOutcome,
    Outcome,
)
from tailrace.server.controller_link.controller_wire import CREATE_TOPICS_VERSION, create_topics_request, topics_created
from tailrace.server.controller_link.envelopes import SENDER, Client, Envelopes, Sealed
from tailrace.server.controller_link.forwarding import Forwarding
from tailrace.server.ports import Clock, Controller, Peer
from tailrace.server.quorum.controller import QuorumController


class ControllerLink:
    """The path of one node to the active controller, for the node's own requests and for requests of its clients.

    The node is a broker, or a controller that registers itself.
    """

    def __init__(
        self,
        metadata: QuorumController,
        *,
        node_id: int,
        cluster_id: str,
        sender_id: bytes,
        secret: bytes,
        peer: Peer,
        clock: Clock,
    ) -> None:
        """`metadata`: this node's replica. `peer` reaches the controllers by their ids. `sender_id`: 16 random bytes,
        new at each start, which no record has. `secret`: the secret of the incarnation, for the node's own commands."""
        envelopes = Envelopes(sender_id)
        self.requests: Final = ControllerRequests(quorum=metadata, peer=peer, node_id=node_id, clock=clock)
        self.channel: Final = ControllerChannel(
            quorum=metadata,
            requests=self.requests,
            envelopes=envelopes,
            cluster_id=cluster_id,
            node_id=BrokerId(node_id),
            secret=secret,
        )
        self.forwarding: Final = Forwarding(requests=self.requests, envelopes=envelopes, node_id=node_id)

    def close(self) -> None:
        """End all requests that wait for the active controller."""
        self.requests.close()


REQUEST_TIMEOUT_MS: Final = 30_000
HEARTBEAT_TIMEOUT_MS: Final = 2_500
"""The time limit of a heartbeat. Later heartbeats are sent meanwhile, and may reach another controller. At the end of
this time the connection is closed, which shortens the session."""
_WITH_EPOCHS: Final = 3
"""The first version of BrokerRegistration (62) with the previous epoch, and of AlterPartition (56) with the epochs of
the replicas."""

OnDone = Callable[[ControllerResponse | KafkaError], None]
Answer = ControllerResponse | KafkaError


class _Kind(NamedTuple):
    """The messages of one kind of command."""

    request: Callable[[Any, str], Any]
    """Makes the message from the command and the cluster's id."""
    answer: Callable[[Any, Any, ClusterImage], Answer]
    """Makes the answer to a command from the command, the response, and the image at that time."""
    end_offset: Callable[[Any], int] = lambda _: 0
    """The end offset that this node must have applied before the answer is delivered."""
    oldest_version: int = 0
    timeout_ms: int = REQUEST_TIMEOUT_MS


def _unfencing_request(command: UnfenceBroker, _: str) -> Any:
    return wire.heartbeat_request(
        BrokerHeartbeat(
            broker_id=command.broker_id,
            broker_epoch=command.broker_epoch,
            metadata_offset=command.broker_epoch,
            secret=command.secret,
        )
    )


def _unfenced(command: UnfenceBroker, response: Any, _: ClusterImage) -> Answer:
    return wire.refusal(response.error_code, "the heartbeat") or BrokerRegistered(broker_epoch=command.broker_epoch)


_KINDS: Final[dict[type[Any], _Kind]] = {
    RegisterBroker: _Kind(
        wire.registration_request,
        lambda _, response, __: wire.registered(response),
        # The broker epoch is the offset of the registration.
        end_offset=lambda response: response.broker_epoch + 1,
        oldest_version=_WITH_EPOCHS,
    ),
    BrokerHeartbeat: _Kind(
        lambda command, _: wire.heartbeat_request(command),
        lambda _, response, __: wire.standing(response),
        timeout_ms=HEARTBEAT_TIMEOUT_MS,
    ),
    UnfenceBroker: _Kind(_unfencing_request, _unfenced),
    RegisterController: _Kind(
        lambda command, _: wire.controller_registration_request(command),
        lambda _, response, __: (
            wire.refusal(response.error_code, "the registration", message=response.error_message) or CarriedOut()
        ),
    ),
    AllocateProducerIds: _Kind(
        lambda command, _: wire.producer_ids_request(command),
        lambda _, response, __: wire.producer_id_block(response),
    ),
    AlterPartition: _Kind(
        lambda command, _: replicas_wire.alter_partition_request(command),
        replicas_wire.partitions_altered,
        end_offset=lambda response: response.metadata_end_offset,
        oldest_version=_WITH_EPOCHS,
    ),
}


class _CommandRequest:
    """A command under way that has a message of its own."""

    is_question = False

    def __init__(self, channel: "ControllerChannel", command: ControllerCommand, kind: _Kind, on_done: OnDone) -> None:
        self.oldest_version = kind.oldest_version
        self._channel = channel
        self._command = command
        self._kind = kind
        self._on_done = on_done

    def carry_out_here(self, on_outcome: OnOutcome) -> None:
        self._channel.submit_here(self._command, self._on_done, on_outcome)

    def message(self, leader_epoch: int) -> Any:
        return self._kind.request(self._command, self._channel.cluster_id)

    def outcome(self, answer: Any) -> Outcome | None:
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            return None

        def deliver() -> None:
            self._on_done(self._kind.answer(self._command, answer, self._channel.image))

        return Outcome(max(0, self._kind.end_offset(answer)), deliver)

    def fail(self, error: KafkaError) -> None:
        self._on_done(error)


class _TopicsRequest:
    """The creation of topics that this node needs, under way in an envelope."""

    oldest_version = 0
    is_question = False

    def __init__(self, channel: "ControllerChannel", command: CreateTopics, sealed: Sealed, on_done: OnDone) -> None:
        self._channel = channel
        self._command = command
        self._sealed = sealed
        self._on_done = on_done

    def carry_out_here(self, on_outcome: OnOutcome) -> None:
        self._channel.submit_here(self._command, self._on_done, on_outcome, end_offset=APPLIED_MEANWHILE)

    def message(self, leader_epoch: int) -> Any:
        return self._sealed.envelope(leader_epoch)

    def outcome(self, answer: Any) -> Outcome | None:
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            return None
        result: Answer
        try:
            result = topics_created(self._command, self._sealed.answer(answer))
        except KafkaError as fault:
            result = fault
        return Outcome(max(0, answer.metadata_end_offset), lambda: self._on_done(result))

    def fail(self, error: KafkaError) -> None:
        self._on_done(error)


class ControllerChannel:
    """A `server.ports.Controller` on every node of a cluster."""

    def __init__(
        self,
        *,
        quorum: Controller,
        requests: ControllerRequests,
        envelopes: Envelopes,
        cluster_id: str,
        node_id: BrokerId,
        secret: bytes,
    ) -> None:
        """`quorum`: this node's `QuorumController`. `secret` proves that this process has sent a command."""
        self.cluster_id = cluster_id
        self._quorum = quorum
        self._requests = requests
        self._envelopes = envelopes
        self._node_id = node_id
        self._secret = secret

    @property
    def image(self) -> ClusterImage:
        """The committed image, as far as applied on this node."""
        return self._quorum.image

    @property
    def leader_id(self) -> BrokerId:
        """The active controller that this node knows; -1 if it knows no active controller."""
        return self._quorum.leader_id

    def submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        """Submit the command to the active controller. `on_done` is called once: with the answer when this node has
        acted on the records behind the answer, or with REQUEST_TIMED_OUT after `REQUEST_TIMEOUT_MS`. The call may come
        before `submit` returns.

        A command of an administrator is decided by the controller on this node, or refused with NOT_CONTROLLER.
        """
        if isinstance(command, CreateTopics):
            request = _TopicsRequest(self, command, self._sealed(command), on_done)
            self._requests.run(request, REQUEST_TIMEOUT_MS)
            return
        kind = _KINDS.get(type(command))
        if kind is None:
            self._quorum.submit(command, on_done)
            return
        own: Any = command
        own = replace(own, secret=self._secret)
        self._requests.run(_CommandRequest(self, own, kind, on_done), kind.timeout_ms)

    def submit_here(
        self, command: ControllerCommand, on_done: OnDone, on_outcome: OnOutcome, *, end_offset: int = 0
    ) -> None:
        """Pass the command to the controller on this node. The listeners of its image get the change before the
        outcome; `end_offset` decides whether the outcome also waits for their work."""

        def done(answer: Answer) -> None:
            if isinstance(answer, KafkaError) and answer.code is ErrorCode.NOT_CONTROLLER:
                on_outcome(None)
            else:
                on_outcome(Outcome(end_offset, lambda: on_done(answer)))

        self._quorum.submit(command, done)

    def _sealed(self, command: CreateTopics) -> Sealed:
        client = Client(f"broker-{self._node_id}", 0, SENDER)
        return self._envelopes.seal(create_topics_request(command), CREATE_TOPICS_VERSION, client)
