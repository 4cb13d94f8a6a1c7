"""The quotas of clients on one broker (KIP-13, KIP-55, KIP-124): which requests count, and for how much.

Bytes of Produce are those of the whole request, bytes of Fetch those of the records in the answer. The time of a
request is the time that this node has worked for the request; 100 % are a whole second of work in a second. Requests of
nodes do not count.

A broker without quotas has no meter in its dispatcher, and requests cost nothing more.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.quotas import QUOTAS
from tailrace.model.access import CLUSTER, Operation
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.security.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    EntityParts,
    QuotaRules,
)
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.registry import APIS, api_of
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.ports import Clock, ServerConnection
from tailrace.server.quotas.client_quota import ClientQuota
from tailrace.server.quotas.counts import ClientKey
from tailrace.server.quotas.metered_context import MeteredContext
from tailrace.server.quotas.rates import QuotaConfig

_PRODUCE: Final = api_of(ProduceRequest).key
_FETCH: Final = api_of(FetchRequest).key
_OF_NODES: Final = frozenset(
    key
    for key, api in APIS.items()
    if api.access and all(access.operation is Operation.CLUSTER_ACTION for access in api.access)
)
"""The APIs that only nodes may use."""
_NODE: Final = "broker-"
"""The begin of the client id of a broker's own requests; the id of the broker follows."""
_PERCENT_PER_NS: Final = 100 / 1_000_000_000


NewContext = Callable[[ServerConnection, int, int, int, int, str | None, RequestServices], RequestContext]


class QuotaMeter:
    """Counts requests, and finds throttle times. `take` gets each image."""

    def __init__(self, config: QuotaConfig, *, clock: Clock, process_ns: Callable[[], int] | None = None) -> None:
        """`process_ns` measures the time of requests; None: the clock measures."""
        samples, sample_ms = config.quota_window_num, config.quota_window_size_seconds * 1000
        self._clock = clock
        self._process_ns = process_ns or (lambda: clock.monotonic_ms() * 1_000_000)
        self._table: Mapping[Any, float] | None = None
        self._brokers: Mapping[BrokerId, object] = {}
        self.produce: Final = ClientQuota(samples=samples, sample_ms=sample_ms)
        self.fetch: Final = ClientQuota(samples=samples, sample_ms=sample_ms)
        self.request: Final = ClientQuota(samples=samples, sample_ms=sample_ms, longest_ms=sample_ms)
        self.is_needed = False
        """Whether a client has a quota."""

    def process_ns(self) -> int:
        return self._process_ns()

    def take(self, image: ClusterImage) -> None:
        """Take over the quotas of this image."""
        self._brokers = image.brokers
        table = QUOTAS.of(image)
        if table is self._table:
            return
        self._table = table
        for key, quota in (
            (PRODUCER_BYTE_RATE, self.produce),
            (CONSUMER_BYTE_RATE, self.fetch),
            (REQUEST_PERCENTAGE, self.request),
        ):
            quota.rules = rules_of(table, key)
        self.is_needed = any(quota.rules for quota in (self.produce, self.fetch, self.request))

    def contexts(self, request_bytes: int) -> NewContext:
        """Makes the context of a request whose frame has this size."""
        return partial(self._context, request_bytes)

    def _context(
        self,
        request_bytes: int,
        connection: ServerConnection,
        slot: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        services: RequestServices,
    ) -> RequestContext:
        """The context of a request: metered, unless the request is a node's."""
        if api_key in _OF_NODES or (client_id is not None and self._is_node(client_id, connection, services)):
            return RequestContext(connection, slot, api_key, api_version, correlation_id, client_id, services)
        return MeteredContext(
            connection,
            slot,
            api_key,
            api_version,
            correlation_id,
            client_id,
            services,
            meter=self,
            request_bytes=request_bytes,
        )

    def _is_node(self, client_id: str, connection: ServerConnection, services: RequestServices) -> bool:
        """Whether a broker of the cluster has sent the request. With an authorizer the principal must be a node's."""
        name = client_id.removeprefix(_NODE)
        if name == client_id or not (name.isascii() and name.isdecimal() and len(name) < 11):
            return False
        if BrokerId(int(name)) not in self._brokers:
            return False
        try:
            return services.authorizer.permits(connection.identity, Operation.CLUSTER_ACTION, CLUSTER)
        except KafkaError:  # the rules of access are not known yet
            return False

    def fetch_allowance(self, client: ClientKey) -> int | None:
        return self.fetch.allowance(client, self._clock.monotonic_ms())

    def charge(self, context: MeteredContext, response: Any) -> int:
        now_ms, client, throttle_ms = self._clock.monotonic_ms(), context.client, 0
        if context.api_key == _PRODUCE:
            throttle_ms = self.produce.charge(client, context.request_bytes, now_ms)
        elif context.api_key == _FETCH and isinstance(response, FetchResponse):
            throttle_ms = self.fetch.charge(client, _bytes_of(response), now_ms)
        if response is not None:  # Kafka does not count the time of Produce with acks=0
            throttle_ms = max(throttle_ms, self.request.charge(client, context.used_ns * _PERCENT_PER_NS, now_ms))
        return throttle_ms


def rules_of(table: Mapping[tuple[EntityParts, str], float], key: str) -> QuotaRules:
    """The limits of one key."""
    return QuotaRules((entity, value) for (entity, of_key), value in table.items() if of_key == key)


def _bytes_of(response: FetchResponse) -> int:
    return sum(_sizes(response))


def _sizes(response: FetchResponse) -> Iterable[int]:
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.records is not None:
                yield len(partition.records)
