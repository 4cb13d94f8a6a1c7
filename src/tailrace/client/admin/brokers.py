"""The brokers of a cluster, those that are fenced too; see `AsyncAdmin`."""

from dataclasses import dataclass

from tailrace.client.admin.quorum import ask_for_quorum
from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tailrace.protocol.messages.quorum import DescribeQuorumRequest
from tailrace.protocol.messages.registrations import UnregisterBrokerRequest, UnregisterBrokerResponse

_FIRST_WITH_FENCED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerListing:
    """A broker that the cluster knows."""

    node_id: BrokerId
    host: str
    port: int
    rack: str | None
    is_controller: bool
    """It leads the quorum of the metadata; where a cluster does not tell of that, it takes administrators' requests."""
    is_fenced: bool | None
    """It is registered, and neither leads nor is shown to clients. None where the cluster does not say."""


async def list_brokers(router: Router) -> list[BrokerListing]:
    """All registered brokers, by id; those that are fenced only where the cluster tells of them (KIP-1073)."""

    async def attempt() -> list[BrokerListing]:
        connection = await router.any_connection()
        if not connection.offers(DescribeClusterRequest):
            return await _from_view(router)
        knows_fenced = connection.offers(DescribeClusterRequest, _FIRST_WITH_FENCED)
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=knows_fenced
        )
        response = await connection.ask(request, DescribeClusterResponse, timeout_ms=router.request_timeout_ms)
        check(response.error_code, response.error_message or "the cluster cannot be described")
        controller_id = await _active_controller(connection, response, timeout_ms=router.request_timeout_ms)
        return [
            BrokerListing(
                node_id=BrokerId(broker.broker_id),
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_controller=broker.broker_id == controller_id,
                is_fenced=broker.is_fenced if knows_fenced else None,
            )
            for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
        ]

    return await router.retry(attempt)


async def _active_controller(connection: Connection, response: DescribeClusterResponse, *, timeout_ms: int) -> int:
    """Brokers name one that passes administrators' requests on, be it the active controller or not."""
    if not connection.offers(DescribeQuorumRequest):
        return response.controller_id
    try:
        return (await ask_for_quorum(connection, timeout_ms=timeout_ms)).leader_id
    except KafkaError:
        return response.controller_id


async def _from_view(router: Router) -> list[BrokerListing]:
    await router.refresh(())
    view = router.view
    return [
        BrokerListing(
            node_id=node_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            is_controller=node_id == view.controller_id,
            is_fenced=None,
        )
        for node_id, broker in sorted(view.brokers.items())
    ]


async def unregister_broker(router: Router, broker_id: int) -> None:
    """Forget a broker that will not come back. Raises KafkaError, also for one that runs."""

    async def attempt() -> None:
        connection = await router.any_connection()
        request = UnregisterBrokerRequest(broker_id=broker_id)
        response = await connection.ask(request, UnregisterBrokerResponse, timeout_ms=router.request_timeout_ms)
        check(response.error_code, response.error_message or f"broker {broker_id} cannot be unregistered")

    await router.retry(attempt)
