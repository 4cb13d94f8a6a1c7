"""DescribeCluster (60): v1 asks for brokers or controllers (KIP-919), v2 may include fenced brokers (KIP-1073)."""

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.metadata.metadata import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from tailrace.server.metadata.reachable_brokers import broker_for_administration
from tailrace.server.ports import Controller
from tailrace.server.quorum.host import QuorumHost

_BROKERS = 1
_CONTROLLERS = 2


class DescribeClusterHandler:
    """The brokers with their addresses on the listener that was asked."""

    def __init__(self, *, controller: Controller, broker_id: BrokerId, cluster_id: str) -> None:
        """`broker_id`: this broker."""
        self._controller = controller
        self._broker_id = broker_id
        self._cluster_id = cluster_id

    def handle(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        _check_endpoint_type(request.endpoint_type)
        listener_name = context.connection.listener_name
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
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )


class DescribeControllersHandler:
    """The controllers with their addresses, on a listener of theirs (KIP-919)."""

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
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )


def _check_endpoint_type(endpoint_type: int) -> None:
    if endpoint_type == _BROKERS:
        return
    if endpoint_type == _CONTROLLERS:
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a listener for clients, not of the controllers")
    raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"endpoints of type {endpoint_type} do not exist")
