"""The administrator's client without asyncio; `client.blocking` has it beside the others."""

from collections.abc import Iterable, Mapping, Sequence

from tailrace.client.admin import admin as _admin
from tailrace.client.admin.admin import ClusterDescription, ConfigEntry, NewTopic
from tailrace.client.admin.brokers import BrokerListing
from tailrace.client.admin.cluster_changes import MorePartitions
from tailrace.client.admin.features import FeatureDescription, UpgradeType
from tailrace.client.admin.group_health import PartitionHealth
from tailrace.client.admin.group_queries import GroupDescription, GroupListing
from tailrace.client.admin.log_dirs import LogDirectorySize, ReplicaLog
from tailrace.client.admin.quorum import QuorumDescription, QuorumEndpoint
from tailrace.client.admin.replicas import PartitionReassignment
from tailrace.client.admin.transactions import TransactionDescription, TransactionListing
from tailrace.client.cluster_view import TopicInfo
from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.loop_thread import Facade, loop_thread
from tailrace.client.offsets import OffsetAt
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from tailrace.protocol.messages.groups import GroupDetails


class Admin(Facade[_admin.AsyncAdmin]):
    """See `tailrace.client.admin.admin.AsyncAdmin`."""

    def __init__(
        self, bootstrap_servers: str, *, client_id: str = "tailrace-admin", bootstrap_timeout_ms: int = 10_000
    ) -> None:
        super().__init__(
            lambda: _admin.AsyncAdmin(bootstrap_servers, client_id=client_id, bootstrap_timeout_ms=bootstrap_timeout_ms)
        )

    def create_topics(
        self,
        topics: Iterable[NewTopic] | Mapping[str, int],
        *,
        timeout_ms: int = 30_000,
        validate_only: bool = False,
    ) -> None:
        """Create them all and wait until they can be used; short: `{name: partitions}`."""
        client = self._client.get()
        loop_thread().call(client.create_topics(topics, timeout_ms=timeout_ms, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Delete them all."""
        loop_thread().call(self._client.get().delete_topics(names, timeout_ms=timeout_ms))

    def create_partitions(
        self, topics: Mapping[str, int | MorePartitions], *, timeout_ms: int = 30_000, validate_only: bool = False
    ) -> None:
        """Give each of these topics so many partitions, all told, and wait until the new ones can be used."""
        client = self._client.get()
        loop_thread().call(client.create_partitions(topics, timeout_ms=timeout_ms, validate_only=validate_only))

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, int]:
        """Give up the records below these offsets, -1 for all of them; where each log starts then."""
        return loop_thread().call(self._client.get().delete_records(offsets, timeout_ms=timeout_ms))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics, by name."""
        return loop_thread().call(self._client.get().list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | None = None, *, include_internal: bool = False) -> list[TopicInfo]:
        """The topics of these names in their order, or all by name."""
        return loop_thread().call(self._client.get().describe_topics(names, include_internal=include_internal))

    def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAt]:
        """-1 latest, -2 earliest, -3 largest timestamp, else the first record at or after a time in ms."""
        client = self._client.get()
        return loop_thread().call(client.list_offsets(specs, isolation_level=isolation_level, timeout_ms=timeout_ms))

    def describe_cluster(self) -> ClusterDescription:
        """The brokers and the controller."""
        return loop_thread().call(self._client.get().describe_cluster())

    def describe_configs(self, resource_type: int, name: str) -> list[ConfigEntry]:
        """The settings of a topic (type 2) or a broker (type 4)."""
        return loop_thread().call(self._client.get().describe_configs(resource_type, name))

    def alter_configs(
        self, resource_type: int, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic (type 2) or a broker (type 4); None: back to the default. All of them or none."""
        client = self._client.get()
        loop_thread().call(client.alter_configs(resource_type, name, changes, validate_only=validate_only))

    def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> dict[BrokerId, list[LogDirectorySize]]:
        """The log directories of these brokers, or of all, with the size of every partition."""
        return loop_thread().call(self._client.get().describe_log_dirs(brokers))

    def describe_replica_logs(
        self, partitions: Mapping[BrokerId, Sequence[TopicPartition]]
    ) -> dict[BrokerId, Mapping[TopicPartition, ReplicaLog] | KafkaError]:
        """The good ends of the logs of these partitions on each of these brokers, or the error of a broker."""
        return loop_thread().call(self._client.get().describe_replica_logs(partitions))

    def describe_topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The settings of each of these topics."""
        return loop_thread().call(self._client.get().describe_topic_configs(names))

    def list_brokers(self) -> list[BrokerListing]:
        """All registered brokers, by id, those that are fenced too."""
        return loop_thread().call(self._client.get().list_brokers())

    def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that will not come back."""
        loop_thread().call(self._client.get().unregister_broker(broker_id))

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """The transactional ids that pass every filter, by name; empty and -1 let all pass."""
        client = self._client.get()
        return loop_thread().call(
            client.list_transactions(states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms)
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id."""
        return loop_thread().call(self._client.get().describe_transaction(transactional_id))

    def abort_transaction(self, topic_partition: TopicPartition, start_offset: int) -> None:
        """End the transaction that began at this offset of the partition and hangs."""
        loop_thread().call(self._client.get().abort_transaction(topic_partition, start_offset))

    def describe_quorum(self) -> QuorumDescription:
        """The replicas of the cluster's metadata log, and their progress."""
        return loop_thread().call(self._client.get().describe_quorum())

    def add_voter(self, voter_id: int, directory_id: bytes, endpoints: Sequence[QuorumEndpoint]) -> None:
        """Have a controller vote that follows the quorum already."""
        loop_thread().call(self._client.get().add_voter(voter_id, directory_id, endpoints))

    def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Have a controller vote no more."""
        loop_thread().call(self._client.get().remove_voter(voter_id, directory_id))

    def describe_features(self) -> FeatureDescription:
        """The levels of features that a node supports, and those that the cluster has."""
        return loop_thread().call(self._client.get().describe_features())

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> None:
        """Give features these levels, all or none; 0 removes one."""
        client = self._client.get()
        loop_thread().call(
            client.update_features(
                levels, upgrade_type=upgrade_type, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def elect_leaders(
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
        client = self._client.get()
        return loop_thread().call(
            client.elect_leaders(
                partitions, election_type=election_type, desired_leaders=desired_leaders, timeout_ms=timeout_ms
            )
        )

    def alter_partition_reassignments(
        self,
        replicas_of: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allows_replication_factor_change: bool = True,
        timeout_ms: int = 30_000,
    ) -> None:
        """Begin to move partitions to these replicas, the preferred leader first; None takes back a move."""
        client = self._client.get()
        loop_thread().call(
            client.alter_partition_reassignments(
                replicas_of,
                allows_replication_factor_change=allows_replication_factor_change,
                timeout_ms=timeout_ms,
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that go on, of these partitions or of all."""
        return loop_thread().call(self._client.get().list_partition_reassignments(partitions, timeout_ms=timeout_ms))

    def list_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        return loop_thread().call(self._client.get().list_groups())

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The groups with their members and assignments."""
        return loop_thread().call(self._client.get().describe_groups(groups))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members."""
        loop_thread().call(self._client.get().delete_groups(groups))

    def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, of these partitions or of all."""
        return loop_thread().call(self._client.get().group_offsets(group, partitions))

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the offsets of a group without members, from outside."""
        loop_thread().call(self._client.get().commit_offsets(group, offsets, timeout_ms=timeout_ms))

    def partition_health(
        self, committed: Mapping[TopicPartition, int | None], details: GroupDetails | None, *, timeout_ms: int
    ) -> dict[TopicPartition, PartitionHealth]:
        """The health of a group with these committed offsets in these partitions, all of which exist."""
        return loop_thread().call(self._client.get().partition_health(committed, details, timeout_ms=timeout_ms))

    def group_lag(self, group: str) -> dict[TopicPartition, tuple[OffsetAndMetadata, int]]:
        """Committed offset and end of the log, per partition with a committed offset."""
        return loop_thread().call(self._client.get().group_lag(group))
