"""One node's way to the active controller: for what the node itself asks for, and for requests of its clients."""

from typing import Final

from tailrace.model.ids import BrokerId
from tailrace.server.controller_link.channel import ControllerChannel
from tailrace.server.controller_link.controller_requests import Errands
from tailrace.server.controller_link.envelopes import Envelopes
from tailrace.server.controller_link.forwarding import Forwarding
from tailrace.server.ports import Clock, Peer
from tailrace.server.quorum.controller import QuorumController


class ControllerLink:
    """Of a broker, or of a controller that registers itself."""

    def __init__(
        self,
        metadata: QuorumController,
        *,
        node_id: int,
        cluster_id: str,
        sender_id: bytes,
        peer: Peer,
        clock: Clock,
    ) -> None:
        """`metadata` is this node's replica of it; `peer` knows the controllers by their ids. `sender_id`: 16 bytes,
        of each start others."""
        envelopes = Envelopes(sender_id)
        self.errands: Final = Errands(quorum=metadata, peer=peer, node_id=node_id, clock=clock)
        self.channel: Final = ControllerChannel(
            quorum=metadata,
            errands=self.errands,
            envelopes=envelopes,
            cluster_id=cluster_id,
            node_id=BrokerId(node_id),
        )
        self.forwarding: Final = Forwarding(errands=self.errands, envelopes=envelopes, node_id=node_id)

    def close(self) -> None:
        """Answer what waits for the active controller: it is not asked any more."""
        self.errands.close()
