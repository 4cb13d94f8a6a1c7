"""What an administrator asks of a cluster, of Tailrace or of Apache Kafka."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tailrace.client import (
    brokers,
    cluster_changes,
    features,
    group_health,
    group_offsets,
    group_queries,
    log_dirs,
    offsets,
    quorum,
    replicas,
    transactions,
)
from tailrace.client.answers import check
from tailrace.client.brokers import BrokerListing
from tailrace.client.cluster_changes import MorePartitions
from tailrace.client.cluster_view import Broker, TopicInfo
from tailrace.client.features import FeatureDescription, UpgradeType
from tailrace.client.group_health import PartitionHealth
from tailrace.client.group_offsets import OffsetAndMetadata
from tailrace.client.group_queries import GroupDescription, GroupListing
from tailrace.client.log_dirs import LogDirectorySize
from tailrace.client.offsets import OffsetAt
from tailrace.client.quorum import QuorumDescription, QuorumEndpoint
from tailrace.client.replicas import ElectionType, PartitionReassignment
from tailrace.client.router import Router
from tailrace.client.transactions import TransactionDescription, TransactionListing
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tailrace.protocol.messages.group_details import GroupDetails
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

TOPIC = 2
BROKER = 4
"""Resource types of DescribeConfigs."""

CONFIG_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}
DYNAMIC_TOPIC_CONFIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1: the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] | None = None
    assignments: Mapping[int, Sequence[int]] | None = None
    """Partition -> replicas, in place of the two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting in force."""

    name: str
    value: str | None
    """None where it is hidden or has no value."""
    source: int
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source == 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The nodes that serve clients, and the one that takes changes."""

    cluster_id: str | None
    controller_id: BrokerId
    brokers: tuple[Broker, ...]


class Admin:
    """An administrator's client. All calls retry what Kafka calls retriable, for default_api_timeout_ms at most."""

    def __init__(
        self, bootstrap_servers: str, *, client_id: str = "tailrace-admin", bootstrap_timeout_ms: int = 10_000
    ) -> None:
        self._router = Router(bootstrap_servers, client_id=client_id, bootstrap_timeout_ms=bootstrap_timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._router.close()

    # topics

    async def create_topics(
        self,
        topics: Iterable[NewTopic] | Mapping[str, int],
        *,
        timeout_ms: int = 30_000,
        validate_only: bool = False,
    ) -> None:
        """Create them all and wait until they can be used; short: `{name: partitions}`.

        Raises the first topic's KafkaError; the others are created nevertheless.
        """
        if isinstance(topics, Mapping):
            topics = [NewTopic(name=name, partitions=count) for name, count in topics.items()]
        wanted = tuple(_creatable(topic) for topic in topics)
        request = CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms, validate_only=validate_only)
        done: set[str] = set()

        async def attempt() -> None:
            connection = await self._router.controller_connection()
            response = await connection.ask(request, CreateTopicsResponse, timeout_ms=timeout_ms + 5_000)
            for result in response.topics:
                if result.error_code == ErrorCode.NOT_CONTROLLER:
                    await self._router.refresh(())
                if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and result.name in done:
                    continue  # an earlier attempt made it
                check(result.error_code, result.error_message or f"topic {result.name!r}")
                done.add(result.name)

        await self._router.retry(attempt)
        if not validate_only:
            await self._wait_until_described([topic.name for topic in wanted])

    async def _wait_until_described(self, names: Iterable[str]) -> None:
        """A created topic reaches every broker a moment later; callers expect to use it at once."""
        for name in names:
            self._router.view.mark_stale(name)
            await self._router.topic(name, allow_auto_create=False, wait_for_unknown=True)

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Delete them all. Raises the first topic's KafkaError; the others are deleted nevertheless."""
        wanted = tuple(names)

        async def attempt() -> None:
            connection = await self._router.controller_connection()
            if connection.version_of(DeleteTopicsRequest) >= 6:
                states = tuple(DeleteTopicState(name=name) for name in wanted)
                request = DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
            else:
                request = DeleteTopicsRequest(topic_names=wanted, timeout_ms=timeout_ms)
            response = await connection.ask(request, DeleteTopicsResponse, timeout_ms=timeout_ms + 5_000)
            for result in response.responses:
                if result.error_code == ErrorCode.NOT_CONTROLLER:
                    await self._router.refresh(())
                check(result.error_code, result.error_message or f"topic {result.name!r} does not exist")

        await self._router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
        for name in wanted:
            self._router.view.forget(name)

    async def create_partitions(
        self,
        topics: Mapping[str, int | MorePartitions],
        *,
        timeout_ms: int = 30_000,
        validate_only: bool = False,
    ) -> None:
        """Give each of these topics so many partitions, all told, and wait until the new ones can be used.

        Raises the first topic's KafkaError; the others get theirs nevertheless.
        """
        wanted = {
            name: MorePartitions(total=total) if isinstance(total, int) else total for name, total in topics.items()
        }
        await cluster_changes.create_partitions(
            self._router, wanted, timeout_ms=timeout_ms, validate_only=validate_only
        )

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, int]:
        """Give up the records below these offsets, -1 for all of them; where each log starts then."""
        return await cluster_changes.delete_records(self._router, offsets, timeout_ms=timeout_ms)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics, by name."""
        return await self.describe_topics(include_internal=include_internal)

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, include_internal: bool = False
    ) -> list[TopicInfo]:
        """The topics of these names in their order, or all of them by name.

        Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) for a name that does not exist.
        """
        wanted = None if names is None else list(names)
        await self._router.retry(lambda: self._router.refresh(wanted, forget_others=wanted is None))
        if wanted is not None:
            return [self._router.view.topic(name) for name in wanted]
        return [topic for topic in self._router.view.topics if include_internal or not topic.is_internal]

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAt]:
        """See `offsets.list_offsets`: -1 latest, -2 earliest, -3 largest timestamp, else a time in ms."""
        return await offsets.list_offsets(self._router, specs, isolation_level=isolation_level, timeout_ms=timeout_ms)

    # cluster and settings

    async def describe_cluster(self) -> ClusterDescription:
        async def attempt() -> ClusterDescription:
            connection = await self._router.any_connection()
            if not connection.offers(DescribeClusterRequest):
                await self._router.refresh(())
                return self._cluster_from_view()
            request = DescribeClusterRequest(include_cluster_authorized_operations=False)
            response = await connection.ask(
                request, DescribeClusterResponse, timeout_ms=self._router.request_timeout_ms
            )
            check(response.error_code, response.error_message or "the cluster cannot be described")
            return ClusterDescription(
                cluster_id=response.cluster_id,
                controller_id=BrokerId(response.controller_id),
                brokers=tuple(
                    Broker(node_id=BrokerId(broker.broker_id), host=broker.host, port=broker.port, rack=broker.rack)
                    for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
                ),
            )

        return await self._router.retry(attempt)

    def _cluster_from_view(self) -> ClusterDescription:
        view = self._router.view
        brokers = tuple(view.brokers[node_id] for node_id in sorted(view.brokers))
        return ClusterDescription(cluster_id=view.cluster_id, controller_id=view.controller_id, brokers=brokers)

    async def describe_configs(self, resource_type: int, name: str) -> list[ConfigEntry]:
        """The settings in force for a topic (type 2, by name) or a broker (type 4, by its id; no name: of all)."""
        node_id = int(name) if resource_type == BROKER and name else None
        return (await self._describe_configs(resource_type, [name], node_id))[name]

    async def describe_topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The settings in force for each of these topics, with one question."""
        return await self._describe_configs(TOPIC, list(names), None)

    async def _describe_configs(
        self, resource_type: int, names: Sequence[str], node_id: int | None
    ) -> dict[str, list[ConfigEntry]]:
        resources = tuple(
            DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
            for name in names
        )

        async def attempt() -> dict[str, list[ConfigEntry]]:
            if node_id is None:
                connection = await self._router.any_connection()
            else:
                connection = await self._router.node_connection(node_id)
            response = await connection.ask(
                DescribeConfigsRequest(resources=resources),
                DescribeConfigsResponse,
                timeout_ms=self._router.request_timeout_ms,
            )
            for result in response.results:
                detail = f"the settings of {result.resource_name!r} cannot be described"
                check(result.error_code, result.error_message or detail)
            return {result.resource_name: _by_name(result.configs) for result in response.results}

        return await self._router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))

    async def alter_configs(
        self, resource_type: int, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic (type 2) or a broker (type 4; no name: of all brokers); None: back to the default.

        All of them or none. Raises KafkaError(UNSUPPORTED_VERSION) for Kafka before 2.3.
        """
        await cluster_changes.alter_configs(self._router, resource_type, name, changes, validate_only=validate_only)

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> dict[BrokerId, list[LogDirectorySize]]:
        """The log directories of these brokers, or of all, with the size of every partition."""
        return await log_dirs.describe_log_dirs(self._router, brokers)

    async def list_brokers(self) -> list[BrokerListing]:
        """All registered brokers, by id, those that are fenced too."""
        return await brokers.list_brokers(self._router)

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that will not come back. Raises KafkaError, also for one that runs."""
        await brokers.unregister_broker(self._router, broker_id)

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """The transactional ids that pass every filter, by name; empty and -1 let all pass."""
        return await transactions.list_transactions(
            self._router, states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms
        )

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id. Raises KafkaError TRANSACTIONAL_ID_NOT_FOUND (105)."""
        return await transactions.describe_transaction(self._router, transactional_id)

    async def abort_transaction(self, topic_partition: TopicPartition, start_offset: int) -> None:
        """End the transaction that began at this offset of the partition and hangs: no coordinator knows of it.

        Raises KafkaError INVALID_TXN_STATE (48) if none is open that began there.
        """
        await transactions.abort_transaction(self._router, topic_partition, start_offset)

    async def describe_quorum(self) -> QuorumDescription:
        """Who keeps the cluster's metadata log, and how far each is."""
        return await quorum.describe_quorum(self._router)

    async def add_voter(self, voter_id: int, directory_id: bytes, endpoints: Sequence[QuorumEndpoint]) -> None:
        """Have a controller vote that follows the quorum already. Raises KafkaError."""
        await quorum.add_voter(self._router, voter_id, directory_id, endpoints)

    async def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Have a controller vote no more. Raises KafkaError."""
        await quorum.remove_voter(self._router, voter_id, directory_id)

    async def describe_features(self) -> FeatureDescription:
        """Which levels of features a node supports, and which the cluster has agreed on."""
        return await features.describe_features(self._router)

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> None:
        """Give features these levels, all or none; 0 removes one."""
        await features.update_features(
            self._router, levels, upgrade_type=upgrade_type, validate_only=validate_only, timeout_ms=timeout_ms
        )

    # replicas

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        election_type: ElectionType = ElectionType.PREFERRED,
        timeout_ms: int = 30_000,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders; partition by partition None or why not. No partitions: all that need it."""
        return await replicas.elect_leaders(self._router, election_type, partitions, timeout_ms=timeout_ms)

    async def alter_partition_reassignments(
        self,
        replicas_of: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allows_replication_factor_change: bool = True,
        timeout_ms: int = 30_000,
    ) -> None:
        """Begin to move partitions to these replicas, the preferred leader first; None takes back a move.

        Raises the first partition's KafkaError; the others move nevertheless.
        """
        await replicas.alter_partition_reassignments(
            self._router,
            replicas_of,
            allows_replication_factor_change=allows_replication_factor_change,
            timeout_ms=timeout_ms,
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that go on, of these partitions or of all."""
        return await replicas.list_partition_reassignments(self._router, partitions, timeout_ms=timeout_ms)

    # groups

    async def list_groups(self) -> list[GroupListing]:
        """All groups of all brokers, by name."""
        return await group_queries.list_groups(self._router)

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The groups with their members and assignments."""
        return [await group_queries.describe_group(self._router, group) for group in groups]

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises the first one's KafkaError."""
        for group in groups:
            await group_queries.delete_group(self._router, group)

    async def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, of these partitions or of all; a partition without one is left out."""
        return await group_offsets.fetch_group_offsets(self._router, group, partitions)

    async def commit_offsets(self, group: str, committed: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Set the offsets of a group without members, from outside. Raises KafkaError, also for a group in use."""
        offsets_of = {
            partition: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in committed.items()
        }
        await group_offsets.commit_group_offsets(self._router, group, offsets_of)

    async def partition_health(
        self, committed: Mapping[TopicPartition, int | None], details: GroupDetails | None, *, timeout_ms: int
    ) -> dict[TopicPartition, PartitionHealth]:
        """How a group with these committed offsets gets on in these partitions, all of which exist."""
        return await group_health.partition_health(self._router, committed, details, timeout_ms=timeout_ms)

    async def group_lag(self, group: str) -> dict[TopicPartition, tuple[OffsetAndMetadata, int]]:
        """For each partition with a committed offset: that offset, and the end of the log for readers."""
        committed = await self.group_offsets(group)
        if not committed:
            return {}
        known = {topic.name: len(topic.partitions) for topic in await self.describe_topics(include_internal=True)}
        alive = [partition for partition in committed if partition.partition < known.get(partition.topic, 0)]
        ends = await self.list_offsets(dict.fromkeys(alive, offsets.LATEST)) if alive else {}
        return {partition: (committed[partition], ends[partition].offset) for partition in sorted(ends)}


def _creatable(topic: NewTopic) -> CreatableTopic:
    if topic.partitions == 0 or topic.partitions < -1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r}: a topic has at least one partition")
    assigned = topic.assignments or {}
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(nodes))
            for index, nodes in sorted(assigned.items())
        ),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in (topic.configs or {}).items()),
    )


def _by_name(entries: Iterable[DescribeConfigsResourceResult]) -> list[ConfigEntry]:
    return sorted(map(_config_entry, entries), key=lambda entry: entry.name)


def _config_entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=entry.config_source,
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
    )
