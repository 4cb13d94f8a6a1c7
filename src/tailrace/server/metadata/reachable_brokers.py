"""The brokers that a client can reach through its listener, and the answers that name them."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from tailrace.metadata.image import ClusterImage, Endpoint
from tailrace.model.ids import BrokerId
from tailrace.server.ports import Controller

NodeEndpoint = TypeVar("NodeEndpoint")


def reachable_brokers(image: ClusterImage, listener_name: str) -> dict[BrokerId, Endpoint]:
    """The brokers that serve, by id, and where each listens under this listener's name.

    One that is about to stop serves until it is fenced: it leads until others do.
    """
    return {
        broker_id: endpoint
        for broker_id, broker in sorted(image.brokers.items())
        if not broker.fenced and (endpoint := broker.endpoint(listener_name)) is not None
    }


def broker_for_administration(image: ClusterImage, own_id: BrokerId, listener_name: str) -> BrokerId:
    """The controller for clients: the node that gets the requests of administrators. Every broker passes these
    on, so it is this one, which clients can reach: it stays when the active controller goes, which need not be a
    broker at all. (Kafka names any broker.)"""
    reachable = reachable_brokers(image, listener_name)
    return own_id if own_id in reachable or not reachable else next(iter(reachable))


class LeaderEndpoints:
    """The addresses of the leaders that refusals name: the client need not ask for metadata first (KIP-951)."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def of(
        self, leaders: Iterable[int], listener_name: str, endpoint: Callable[..., NodeEndpoint]
    ) -> tuple[NodeEndpoint, ...]:
        """An `endpoint` for each of these brokers, once. None for one that is not reachable through this listener."""
        brokers = self._controller.image.brokers
        reachable = reachable_brokers(self._controller.image, listener_name)
        return tuple(
            endpoint(
                node_id=leader,
                host=reachable[BrokerId(leader)].host,
                port=reachable[BrokerId(leader)].port,
                rack=brokers[BrokerId(leader)].rack,
            )
            for leader in dict.fromkeys(leaders)
            if leader in reachable
        )
