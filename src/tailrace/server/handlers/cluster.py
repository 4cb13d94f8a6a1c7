"""DescribeCluster (60): v1 asks for brokers or controllers (KIP-919), v2 may include fenced brokers (KIP-1073)."""

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.handlers.metadata import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from tailrace.server.ports import Controller

_BROKERS = 1
_CONTROLLERS = 2


class DescribeClusterHandler:
    """The brokers with their addresses on the listener that was asked."""

    def __init__(self, *, controller: Controller, cluster_id: str) -> None:
        self._controller = controller
        self._cluster_id = cluster_id

    def handle(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        _check_endpoint_type(request.endpoint_type)
        listener_name = context.connection.listener_name
        brokers = self._controller.image.brokers
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._cluster_id,
            controller_id=self._controller.leader_id,
            brokers=tuple(
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for _, broker in sorted(brokers.items())
                if (endpoint := broker.endpoint(listener_name)) is not None
                and (request.include_fenced_brokers or not broker.fenced)
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
