"""The cluster: its brokers, fenced brokers too, and the levels of its features."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tailrace.client.admin.quorum import request_quorum
from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import check
from tailrace.client.router import GRACE_MS, Router
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tailrace.protocol.messages.quorum import DescribeQuorumRequest
from tailrace.protocol.messages.registrations import (
    FeatureUpdateKey,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FIRST_WITH_FENCED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The nodes that serve clients."""

    cluster_id: str | None
    controller_id: BrokerId
    """The node that takes administrators' requests."""
    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerListing:
    """A registered broker."""

    node_id: BrokerId
    host: str
    port: int
    rack: str | None
    is_controller: bool
    """Whether the broker leads the metadata quorum; of a cluster without DescribeQuorum, whether the broker takes
    administrators' requests."""
    is_fenced: bool | None
    """Whether the broker leads no partition and is not in clients' metadata. None if the cluster does not report
    fencing."""


class UpgradeType(IntEnum):
    """The permitted direction of a change of level (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """A downgrade that is made only if it loses no metadata."""
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """The levels that one node supports, and the levels of the cluster."""

    supported: Mapping[str, tuple[int, int]]
    """The lowest and the highest level of each feature."""
    finalized: Mapping[str, int]
    epoch: int
    """The epoch of the features, which rises with the cluster's metadata; -1 if the broker states no epoch."""


async def describe_cluster(router: Router) -> ClusterDescription:
    """The nodes that serve clients, and the node that takes changes."""

    async def attempt() -> ClusterDescription:
        connection = await router.any_connection()
        if not connection.offers(DescribeClusterRequest):
            await router.refresh(())
            return _cluster_from_view(router)
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        response = await router.ask(connection, request, DescribeClusterResponse)
        check(response.error_code, response.error_message or "the cluster cannot be described")
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=BrokerId(response.controller_id),
            brokers=tuple(
                BrokerAddress(node_id=BrokerId(broker.broker_id), host=broker.host, port=broker.port, rack=broker.rack)
                for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
            ),
        )

    return await router.retry(attempt)


def _cluster_from_view(router: Router) -> ClusterDescription:
    view = router.view
    brokers = tuple(view.brokers[node_id] for node_id in sorted(view.brokers))
    return ClusterDescription(cluster_id=view.cluster_id, controller_id=view.controller_id, brokers=brokers)


async def list_brokers(router: Router) -> list[BrokerListing]:
    """Registered brokers, by id; fenced brokers only if the cluster reports them (KIP-1073)."""

    async def attempt() -> list[BrokerListing]:
        connection = await router.any_connection()
        if not connection.offers(DescribeClusterRequest):
            return await _from_view(router)
        knows_fenced = connection.offers(DescribeClusterRequest, _FIRST_WITH_FENCED)
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=knows_fenced
        )
        response = await router.ask(connection, request, DescribeClusterResponse)
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
    """The leader of the quorum; DescribeCluster names any broker that forwards administrators' requests."""
    if not connection.offers(DescribeQuorumRequest):
        return response.controller_id
    try:
        return (await request_quorum(connection, timeout_ms=timeout_ms)).leader_id
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
    """Remove the registration of a broker that will not come back. Raises KafkaError, also for a running broker."""

    async def attempt() -> None:
        connection = await router.any_connection()
        request = UnregisterBrokerRequest(broker_id=broker_id)
        response = await router.ask(connection, request, UnregisterBrokerResponse)
        check(response.error_code, response.error_message or f"broker {broker_id} cannot be unregistered")

    await router.retry(attempt)


async def describe_features(router: Router) -> FeatureDescription:
    """The levels of features that a node supports, and the levels that the cluster has."""
    request = ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__)

    async def attempt() -> FeatureDescription:
        connection = await router.any_connection()
        response = await router.ask(connection, request, ApiVersionsResponse)
        check(response.error_code, "the features cannot be described")
        return FeatureDescription(
            supported={each.name: (each.min_version, each.max_version) for each in response.supported_features},
            finalized={each.name: each.max_version_level for each in response.finalized_features},
            epoch=response.finalized_features_epoch,
        )

    return await router.retry(attempt)


async def update_features(
    router: Router,
    levels: Mapping[str, int],
    *,
    upgrade_type: UpgradeType = UpgradeType.UPGRADE,
    validate_only: bool = False,
    timeout_ms: int = 30_000,
) -> None:
    """Give features these levels, all or none; 0 removes a feature. Raises KafkaError."""
    updates = tuple(
        FeatureUpdateKey(
            feature=name,
            max_version_level=level,
            allow_downgrade=upgrade_type is not UpgradeType.UPGRADE,
            upgrade_type=upgrade_type,
        )
        for name, level in levels.items()
    )
    request = UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=updates, validate_only=validate_only)

    async def attempt() -> None:
        connection = await router.controller_connection()
        response = await connection.ask(request, UpdateFeaturesResponse, timeout_ms=timeout_ms + GRACE_MS)
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            await router.refresh(())
        check(response.error_code, response.error_message or "the levels cannot be changed")
        for result in response.results:
            check(result.error_code, result.error_message or f"the level of {result.feature} cannot be changed")

    await router.retry(attempt)
