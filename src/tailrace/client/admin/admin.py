"""Administration of a cluster, of Tailrace or of Apache Kafka."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tailrace.client import offsets
from tailrace.client.admin import (
    brokers,
    cluster_changes,
    configs,
    features,
    group_health,
    group_queries,
    log_dirs,
    quorum,
    replicas,
    topic_changes,
    transactions,
)
from tailrace.client.admin.brokers import BrokerListing
from tailrace.client.admin.cluster_changes import MorePartitions
from tailrace.client.admin.configs import BROKER, CONFIG_SOURCES, DYNAMIC_TOPIC_CONFIG, TOPIC, ConfigEntry
from tailrace.client.admin.features import FeatureDescription, UpgradeType
from tailrace.client.admin.group_health import PartitionHealth
from tailrace.client.admin.group_queries import GroupDescription, GroupListing
from tailrace.client.admin.log_dirs import LogDirectorySize, ReplicaLog
from tailrace.client.admin.quorum import QuorumDescription, QuorumEndpoint
from tailrace.client.admin.replicas import PartitionReassignment
from tailrace.client.admin.topic_changes import NewTopic
from tailrace.client.admin.transactions import TransactionDescription, TransactionListing
from tailrace.client.cluster_view import BrokerAddress, TopicInfo
from tailrace.client.errors import check, several
from tailrace.client.group import committed_offsets
from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.offsets import OffsetAt
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from tailrace.protocol.messages.groups import GroupDetails
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

__all__ = (
    "BROKER",
    "CONFIG_SOURCES",
    "DYNAMIC_TOPIC_CONFIG",
    "TOPIC",
    "AsyncAdmin",
    "ClusterDescription",
    "ConfigEntry",
    "NewTopic",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The nodes that serve clients, and the one that takes changes."""

    cluster_id: str | None
    controller_id: BrokerId
    brokers: tuple[BrokerAddress, ...]


class AsyncAdmin:
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
        await topic_changes.create_topics(self._router, topics, timeout_ms=timeout_ms, validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Delete them all. Raises the first topic's KafkaError; the others are deleted nevertheless."""
        await topic_changes.delete_topics(self._router, several(names), timeout_ms=timeout_ms)

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
        wanted = None if names is None else several(names)
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
                    BrokerAddress(
                        node_id=BrokerId(broker.broker_id), host=broker.host, port=broker.port, rack=broker.rack
                    )
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
        return (await configs.describe_configs(self._router, resource_type, [name], node_id))[name]

    async def describe_topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The settings in force for each of these topics, with one question."""
        return await configs.describe_configs(self._router, TOPIC, several(names), None)

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

    async def describe_replica_logs(
        self, partitions: Mapping[BrokerId, Sequence[TopicPartition]]
    ) -> dict[BrokerId, Mapping[TopicPartition, ReplicaLog] | KafkaError]:
        """The good ends of the logs of these partitions on each of these brokers, or the error of a broker."""
        return await log_dirs.describe_replica_logs(self._router, partitions)

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
        """The replicas of the cluster's metadata log, and their progress."""
        return await quorum.describe_quorum(self._router)

    async def add_voter(self, voter_id: int, directory_id: bytes, endpoints: Sequence[QuorumEndpoint]) -> None:
        """Have a controller vote that follows the quorum already. Raises KafkaError."""
        await quorum.add_voter(self._router, voter_id, directory_id, endpoints)

    async def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Have a controller vote no more. Raises KafkaError."""
        await quorum.remove_voter(self._router, voter_id, directory_id)

    async def describe_features(self) -> FeatureDescription:
        """The levels of features that a node supports, and those that the cluster has."""
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
        desired_leaders: Mapping[TopicPartition, int] | None = None,
        timeout_ms: int = 30_000,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders; partition by partition None or why not. No partitions: all that need it.

        `desired_leaders`: an unclean election makes these replicas lead, and what they lack is given up.
        """
        return await replicas.elect_leaders(
            self._router, election_type, partitions, desired_leaders=desired_leaders or {}, timeout_ms=timeout_ms
        )

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
        return [await group_queries.describe_group(self._router, group) for group in several(groups)]

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises the first one's KafkaError."""
        for group in several(groups):
            await group_queries.delete_group(self._router, group)

    async def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, of these partitions or of all; a partition without one is left out."""
        return await committed_offsets.fetch_group_offsets(self._router, group, partitions)

    async def commit_offsets(
        self,
        group: str,
        committed: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the offsets of a group without members, from outside. Raises KafkaError, also for a group in use.

        `timeout_ms` bounds the whole call, also where a node does not answer.
        """
        offsets_of = {
            partition: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in committed.items()
        }
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await committed_offsets.commit_group_offsets(self._router, group, offsets_of, timeout_ms=timeout_ms)
        except TimeoutError:
            detail = f"the coordinator of group {group!r} did not take its offsets within {timeout_ms} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail) from None

    async def partition_health(
        self, committed: Mapping[TopicPartition, int | None], details: GroupDetails | None, *, timeout_ms: int
    ) -> dict[TopicPartition, PartitionHealth]:
        """The health of a group with these committed offsets in these partitions, all of which exist."""
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
