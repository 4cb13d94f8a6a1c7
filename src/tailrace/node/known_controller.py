"""A controller's own registration, with a way of its own to the active controller: it need not be a broker."""

import secrets
from collections.abc import Callable, Sequence

from tailrace.metadata.broker_commands import RegisterController
from tailrace.metadata.image import Endpoint as ImageEndpoint
from tailrace.model.ids import BrokerId
from tailrace.raft.voters import VoterListener
from tailrace.server.controller_link.controller_registration import ControllerRegistration
from tailrace.server.controller_link.link import ControllerLink
from tailrace.server.ports import Clock, Peer
from tailrace.server.quorum.controller import QuorumController


class KnownController:
    """`start` once, then `close` once, both in a turn."""

    def __init__(
        self,
        metadata: QuorumController,
        *,
        node_id: int,
        endpoints: Sequence[VoterListener],
        cluster_id: str,
        peer: Peer,
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        incarnation_id = secrets.token_bytes(16)
        self._link = ControllerLink(
            metadata, node_id=node_id, cluster_id=cluster_id, sender_id=incarnation_id, peer=peer, clock=clock
        )
        self._registration = ControllerRegistration(
            metadata=metadata,
            controller=self._link.channel,
            clock=clock,
            registration=RegisterController(
                controller_id=BrokerId(node_id),
                incarnation_id=incarnation_id,
                endpoints=tuple(
                    ImageEndpoint(listener_name=one.name, host=one.host, port=one.port) for one in endpoints
                ),
            ),
            on_fatal=on_fatal,
        )

    def start(self) -> None:
        """Register now, and whenever it is needed."""
        self._registration.start()

    def close(self) -> None:
        """Register no more."""
        self._registration.close()
        self._link.close()
