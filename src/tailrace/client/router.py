"""Finds the node for a request, and retries after errors of a moved leader, controller or coordinator."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tailrace.client.cluster_view import BrokerAddress, ClusterView, TopicInfo
from tailrace.client.errors import check
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import ANY_VERSION, Address, Connection, parse_addresses
from tailrace.net.pool import ConnectionPool
from tailrace.net.sasl import AuthenticationRefused
from tailrace.net.silence import GivenUp, NodeHangs
from tailrace.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
R = TypeVar("R")

GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1

PASSED_OVER_MS = 30_000
"""The time after a silence of a node in which requests go to other nodes first."""

GRACE_MS = 5_000
"""The margin of an answer beyond the time that the request gives to the server."""

_REASK_COORDINATOR = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)


class Router:
    """The way of a client to the cluster: a connection pool and a view of the cluster, kept fresh."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.bootstrap = parse_addresses(settings.servers)
        self.client_id = settings.client_id
        self.request_timeout_ms = settings.request_timeout_ms
        self.retry_backoff_ms = settings.retry_backoff_ms
        self.retry_backoff_max_ms = settings.retry_backoff_max_ms
        self._has_answered = False
        self.failed_attempt_ms: int | None = None
        """The begin of the last attempt to connect that no node answered."""
        self._refusal = ""
        """The reason of the last attempt that reached no node; empty after an attempt that reached a node."""
        self.view = ClusterView(max_age_ms=settings.metadata_max_age_ms)
        self._pool = ConnectionPool(
            client_id=settings.client_id,
            connect_timeout_ms=settings.socket_connection_setup_timeout_ms,
            tls=settings.tls_contexts(),
            sasl=settings.sasl(),
        )
        self._coordinators: dict[tuple[int, str], BrokerAddress] = {}
        self._silent_until_ms: dict[Address, int] = {}
        """The nodes that have just not answered: requests go to other nodes first."""

    @property
    def has_answered(self) -> bool:
        """Whether any node has ever been reached."""
        return self._has_answered

    def situation(self, trouble: KafkaError | None = None) -> str:
        """The addresses of the cluster and the reason of a wait, for a text about a time-out. `trouble`: the fault that
        the caller knows."""
        reason = (trouble.detail or trouble.code.name) if trouble is not None else self._refusal
        if not reason:
            reason = "no fault is known" if self._has_answered else "no broker has answered yet"
        return f"bootstrap.servers {self.settings.servers}: {reason}"

    def close(self) -> None:
        """Close all connections; pending requests fail."""
        self._pool.close()

    # connections

    async def any_connection(self) -> Connection:
        """A connection to the first node that answers. Raises KafkaError(NETWORK_EXCEPTION) with every node's fault if
        no node does."""
        addresses = [Address(broker.host, broker.port) for broker in self.view.brokers.values()]
        addresses += [address for address in self.bootstrap if address not in addresses]
        began_ms = self.now_ms()
        reasons: list[str] = []
        silent = [address for address in addresses if self._is_silent(address)]
        for rank in ([address for address in addresses if address not in silent], silent):
            for address in rank:
                ready = self._pool.open_connection(address)
                if ready is not None:
                    return ready
            for address in rank:
                try:
                    connection = await self._connect(address, has_others=len(addresses) > len(reasons) + 1)
                except AuthenticationRefused:
                    raise
                except KafkaError as fault:
                    reasons.append(fault.detail)
                else:
                    self._has_answered, self._refusal = True, ""
                    return connection
        self.failed_attempt_ms = began_ms
        detail = "; ".join(reasons)
        if not self._has_answered and not detail.endswith("?"):
            detail += f"; `tailrace serve` starts a node, `tailrace doctor connect {addresses[0]}` looks closer"
        self._refusal = detail
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, detail)

    async def _connect(self, address: Address, *, has_others: bool) -> Connection:
        """A connection to this node; a node that hangs is given up for another node, if any. Raises KafkaError."""
        if not has_others:
            return await self._pool.get(address)
        try:
            async with GivenUp(str(address)):
                return await self._pool.get(address)
        except NodeHangs:
            self._note_silence(address)
            raise

    def pass_over(self, node_id: int) -> None:
        """Prefer other nodes in `any_connection` for a while, since this node has not answered."""
        broker = self.view.brokers.get(BrokerId(node_id))
        if broker is not None:
            self._note_silence(Address(broker.host, broker.port))

    def _note_silence(self, address: Address) -> None:
        self._silent_until_ms[address] = self.now_ms() + PASSED_OVER_MS

    def _is_silent(self, address: Address) -> bool:
        return self._silent_until_ms.get(address, 0) > self.now_ms()

    async def _ask_any(self, request_for: Callable[[Connection], object], response_type: type[R]) -> R:
        """The answer of some node; of another node if the first hangs. Raises KafkaError."""
        while True:
            connection = await self.any_connection()
            request, timeout_ms = request_for(connection), self.request_timeout_ms
            if not self._has_alternative(connection.address):
                return await connection.ask(request, response_type, timeout_ms=timeout_ms)
            try:
                async with GivenUp(str(connection.address)) as watch:
                    watch.use(connection)
                    return await connection.ask(request, response_type, timeout_ms=timeout_ms)
            except NodeHangs:
                self._note_silence(connection.address)

    def _has_alternative(self, address: Address) -> bool:
        addresses = {Address(broker.host, broker.port) for broker in self.view.brokers.values()} or {*self.bootstrap}
        return any(each != address and not self._is_silent(each) for each in addresses)

    async def node_connection(self, node_id: int, use: str = "") -> Connection:
        """A connection to this node; refreshes the list of brokers if the node is unknown."""
        if node_id not in self.view.brokers:
            await self.refresh(())
        broker = self.view.brokers.get(BrokerId(node_id))
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node_id} is not in the cluster now")
        return await self.broker_connection(broker, use)

    async def broker_connection(self, broker: BrokerAddress, use: str = "") -> Connection:
        """A connection to this node. If the node cannot be reached, the topics that it leads are marked stale."""
        try:
            return await self._pool.get(Address(broker.host, broker.port), use)
        except KafkaError:
            self.view.mark_led_by(broker.node_id)
            raise

    def open_connection(self, broker: BrokerAddress, use: str) -> Connection | None:
        """The open connection to this node; None without a connection."""
        return self._pool.open_connection(Address(broker.host, broker.port), use)

    async def leader_connection(self, topic_partition: TopicPartition, use: str = "") -> Connection:
        """A connection to the leader, after a refresh if the topic is unknown or stale."""
        await self.ensure_fresh((topic_partition.topic,))
        return await self.broker_connection(self.view.leader(topic_partition), use)

    async def controller_connection(self) -> Connection:
        """A connection to the controller that metadata names, or else to any node, which forwards the request."""
        if self.view.controller_id not in self.view.brokers:
            await self.refresh(())
        if self.view.controller_id in self.view.brokers:
            try:
                return await self.node_connection(self.view.controller_id)
            except KafkaError:
                # The node may be gone for good, and metadata shows that later. Any other node forwards the request.
                self.view.controller_id = NO_LEADER
        return await self.any_connection()

    async def coordinator_connection(
        self, name: str, use: str = "", *, key_type: int = GROUP_COORDINATOR
    ) -> Connection:
        """A connection to the coordinator of this group, or transactional id."""
        broker = await self.coordinator(name, key_type=key_type)
        return await self.broker_connection(broker, use)

    async def coordinator(self, name: str, *, key_type: int = GROUP_COORDINATOR) -> BrokerAddress:
        """The coordinator of this group, or transactional id.

        Raises KafkaError(COORDINATOR_NOT_AVAILABLE) while there is none.
        """
        key = (key_type, name)
        if key not in self._coordinators:
            self._coordinators[key] = await self._find_coordinator(*key)
        return self._coordinators[key]

    def forget_coordinator(self, name: str, *, key_type: int = GROUP_COORDINATOR) -> None:
        """Look the coordinator up again at the next request: an answer has shown that the coordinator has moved."""
        self._coordinators.pop((key_type, name), None)

    async def _find_coordinator(self, key_type: int, key: str) -> BrokerAddress:
        def request_for(connection: Connection) -> FindCoordinatorRequest:
            if connection.version_of(FindCoordinatorRequest) >= 4:
                return FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
            return FindCoordinatorRequest(key=key, key_type=key_type)

        response = await self._ask_any(request_for, FindCoordinatorResponse)
        found = response.coordinators[0] if response.coordinators else response
        check(found.error_code, found.error_message or f"the coordinator of {key!r} is not to be had now")
        return BrokerAddress(node_id=BrokerId(found.node_id), host=found.host, port=found.port, rack=None)

    async def ask(
        self, connection: Connection, request: object, response_type: type[R], *, max_version: int = ANY_VERSION
    ) -> R:
        """The answer on this connection within request.timeout.ms. Raises KafkaError."""
        return await connection.ask(request, response_type, timeout_ms=self.request_timeout_ms, max_version=max_version)

    # metadata

    async def refresh(
        self,
        topics: Iterable[str] | None,
        *,
        topic_ids: Iterable[TopicId] = (),
        allow_auto_create: bool = False,
        forget_others: bool = False,
    ) -> None:
        """Request metadata of these topics: None for all topics, an empty list for the brokers only.

        `topic_ids` names more topics, for servers of Metadata 12 and newer. `forget_others` drops topics that are not
        in the answer.
        """
        wanted = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics)
        if wanted is not None:
            wanted += tuple(MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids)

        def request_for(connection: Connection) -> MetadataRequest:
            # Version 0 has no null: the empty list means all topics.
            named = () if wanted is None and connection.version_of(MetadataRequest) == 0 else wanted
            return MetadataRequest(topics=named, allow_auto_topic_creation=allow_auto_create)

        response = await self._ask_any(request_for, MetadataResponse)
        if forget_others:
            self.view.keep_only({topic.name for topic in response.topics})
        self.view.update(response, self.now_ms())

    async def ensure_fresh(self, topics: Iterable[str], *, allow_auto_create: bool = False) -> None:
        """Refresh the topics whose metadata is missing, stale or old."""
        old = self.view.needs_refresh(topics, self.now_ms())
        if old:
            await self.refresh(old, allow_auto_create=allow_auto_create)

    async def partition_count(self, topic: str, *, timeout_ms: int, unknown_timeout_ms: int) -> int:
        """The number of partitions of the topic now; while no node answers, the last known number.

        The request creates the topic if the cluster auto-creates topics. `unknown_timeout_ms` bounds the wait for a
        topic that does not exist, `timeout_ms` the wait for a first answer.
        """
        self.view.mark_stale(topic)

        async def attempt() -> int:
            try:
                await self.ensure_fresh((topic,), allow_auto_create=True)
            except KafkaError as fault:
                if not fault.code.retriable or self.view.find(topic) is None:
                    raise
            # A partition without a leader counts: its records wait for a leader.
            return len(self.view.topic(topic).partitions)

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            return await self.retry(attempt, timeout_ms=timeout_ms, final=(unknown,))
        except KafkaError as fault:
            if fault.code != unknown:
                raise
        return await self.retry(attempt, timeout_ms=unknown_timeout_ms)

    async def topic(
        self,
        name: str,
        *,
        allow_auto_create: bool = False,
        wait_for_unknown: bool = False,
        timeout_ms: int | None = None,
    ) -> TopicInfo:
        """The topic, once the topic exists and every partition has a leader.

        `wait_for_unknown`: wait also for a topic that does not exist.
        """

        async def attempt() -> TopicInfo:
            await self.ensure_fresh((name,), allow_auto_create=allow_auto_create)
            info = self.view.topic(name)
            if not info.has_every_leader:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} has partitions without a leader")
            return info

        final = () if wait_for_unknown else (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
        return await self.retry(attempt, timeout_ms=timeout_ms, final=final)

    # time and retries

    @staticmethod
    def now_ms() -> int:
        """Monotonic time of the event loop."""
        return int(asyncio.get_running_loop().time() * 1000)

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_ms: int | None = None,
        final: tuple[ErrorCode, ...] = (),
    ) -> T:
        """The result of `attempt`, repeated while it raises a retriable KafkaError that is not in `final`.

        Raises the last error when the next attempt would begin after `timeout_ms` (default_api_timeout_ms).
        """
        budget_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        if not self._has_answered:
            budget_ms = min(budget_ms, self.settings.bootstrap_timeout_ms)
        deadline_ms = self.now_ms() + budget_ms
        pause_ms = self.retry_backoff_ms
        while True:
            try:
                return await attempt()
            except KafkaError as fault:
                if not fault.code.retriable or fault.code in final or self.now_ms() + pause_ms > deadline_ms:
                    raise
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, self.retry_backoff_max_ms)

    async def ask_coordinator(
        self,
        name: str,
        ask: Callable[[Connection], Awaitable[T]],
        *,
        key_type: int = GROUP_COORDINATOR,
        use: str = "",
        timeout_ms: int | None = None,
    ) -> T:
        """The result of `ask` on a connection to the coordinator of this name, which is looked up again if it moves."""

        async def attempt() -> T:
            try:
                return await ask(await self.coordinator_connection(name, use, key_type=key_type))
            except KafkaError as fault:
                if fault.code in _REASK_COORDINATOR:
                    self.forget_coordinator(name, key_type=key_type)
                raise

        return await self.retry(attempt, timeout_ms=timeout_ms)
