"""The brokers that a client can reach through its listener, and DescribeCluster (60), which lists brokers.

DescribeCluster: v1 asks for brokers or controllers (KIP-919), v2 may include fenced brokers (KIP-1073).
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from tailrace.metadata.image import ClusterImage, Endpoint
from tailrace.model.access import CLUSTER, Operation
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.quorum.host import QuorumHost

NOT_ASKED: Final = -(2**31)
NodeEndpoint = TypeVar("NodeEndpoint")


def operations_on_cluster(context: RequestContext, *, is_asked: bool) -> int:
    """The operations of the client on the cluster for an answer, as bits (KIP-430): NOT_ASKED if the client has not
    asked, and none for a client that may not describe the cluster."""
    if not is_asked:
        return NOT_ASKED
    return context.operations_on(CLUSTER) if context.authorize(Operation.DESCRIBE, CLUSTER) else 0


def reachable_brokers(image: ClusterImage, listener_name: str) -> dict[BrokerId, Endpoint]:
    """The brokers that are not fenced, by id, with their addresses under this listener's name.

    A broker in controlled shutdown is included: it leads its partitions until other brokers lead them.
    """
    return {
        broker_id: endpoint
        for broker_id, endpoint in registered_brokers(image, listener_name).items()
        if not image.brokers[broker_id].fenced
    }


def registered_brokers(image: ClusterImage, listener_name: str) -> dict[BrokerId, Endpoint]:
    """Brokers by id, with the address at which each listens under this listener's name."""
    return {
        broker_id: endpoint
        for broker_id, broker in sorted(image.brokers.items())
        if (endpoint := broker.endpoint(listener_name)) is not None
    }


def broker_for_administration(image: ClusterImage, own_id: BrokerId, listener_name: str) -> BrokerId:
    """The broker that clients see as the controller, and to which clients send the requests of administrators.

    Every broker forwards these requests, so the answer names this broker: clients can reach this broker, even after
    another controller becomes active. The active controller need not be a broker. (Kafka names a random broker.)
    """
    reachable = reachable_brokers(image, listener_name)
    return own_id if own_id in reachable or not reachable else next(iter(reachable))


class LeaderEndpoints:
    """The addresses of the leaders that refusals name, so that the client need not ask for metadata first (KIP-951)."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def of(
        self, leaders: Iterable[int], listener_name: str, endpoint: Callable[..., NodeEndpoint]
    ) -> tuple[NodeEndpoint, ...]:
        """An `endpoint` for each of these brokers, without repetitions and without brokers that this listener does not
        reach."""
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


_BROKERS = 1
_CONTROLLERS = 2


class DescribeClusterHandler:
    """Lists the brokers with their addresses on the listener of the request."""

    def __init__(self, *, controller: Controller, broker_id: BrokerId, cluster_id: str) -> None:
        """`broker_id`: this broker."""
        self._controller = controller
        self._broker_id = broker_id
        self._cluster_id = cluster_id

    def handle(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        _check_endpoint_type(request.endpoint_type)
        listener_name = context.identity.listener_name
        image = self._controller.image
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._cluster_id,
            controller_id=broker_for_administration(image, self._broker_id, listener_name),
            brokers=tuple(
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for _, broker in sorted(image.brokers.items())
                if (endpoint := broker.endpoint(listener_name)) is not None
                and (request.include_fenced_brokers or not broker.fenced)
            ),
            cluster_authorized_operations=operations_on_cluster(
                context, is_asked=request.include_cluster_authorized_operations
            ),
        )


class DescribeControllersHandler:
    """Lists the controllers with their addresses, on a listener of controllers (KIP-919)."""

    def __init__(self, host: QuorumHost, *, cluster_id: str) -> None:
        self._host = host
        self._cluster_id = cluster_id

    def handle(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type == _BROKERS:
            raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a listener of the controllers")
        if request.endpoint_type != _CONTROLLERS:
            raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there are no endpoints {request.endpoint_type}")
        node = self._host.node
        return DescribeClusterResponse(
            endpoint_type=_CONTROLLERS,
            cluster_id=self._cluster_id,
            controller_id=node.leader_id,
            brokers=tuple(
                DescribeClusterBroker(broker_id=voter.key.id, host=endpoint.host, port=endpoint.port)
                for voter in node.voters
                for endpoint in voter.endpoints[:1]
            ),
            cluster_authorized_operations=operations_on_cluster(
                context, is_asked=request.include_cluster_authorized_operations
            ),
        )


def _check_endpoint_type(endpoint_type: int) -> None:
    if endpoint_type == _BROKERS:
        return
    if endpoint_type == _CONTROLLERS:
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a listener for clients, not of the controllers")
    raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"endpoints of type {endpoint_type} do not exist")
