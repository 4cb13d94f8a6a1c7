"""The choice of the replica from which a consumer reads (KIP-392). Pure.

The leader of a partition asks its broker's `ReplicaSelector` for each read of a consumer that understands the answer
(Fetch v11). The selector sees only the leader and the followers that can serve the read, so it cannot choose a replica
that would refuse the consumer. `replica.selector.class` names the class: either of the two classes here, or a user's
class.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition


class ClientMetadata(NamedTuple):
    """The facts about a consumer that its connection and its fetch state."""

    rack_id: str
    """client.rack; empty if the consumer has no rack."""
    client_id: str
    client_address: str
    """The IP address of the client."""
    principal: str
    """`User:ANONYMOUS` without authentication."""
    listener_name: str


class ReplicaNode(NamedTuple):
    """The broker of a replica, at its address for the consumer's listener."""

    id: BrokerId
    host: str
    port: int
    rack: str | None


class ReplicaView(NamedTuple):
    """A replica that can serve the consumer."""

    endpoint: ReplicaNode
    log_end_offset: int
    """The end of the replica's log, exclusive; for a follower, at its last fetch."""
    time_since_last_caught_up_ms: int
    """The time since the replica last had everything that the leader has; 0 for the leader."""


class PartitionView(NamedTuple):
    """The replicas to choose from: the leader, and the followers in sync that have the offset and know that it is
    committed."""

    replicas: frozenset[ReplicaView]
    leader: ReplicaView | None
    """None if the consumer's listener does not reach the leader."""


class ReplicaSelector(Protocol):
    """The interface of `replica.selector.class`. A class of users need not inherit from this class.

    `select` runs on the broker's event loop, and so waits for nothing.
    """

    def configure(self, configs: Mapping[str, object], /) -> None:
        """Called once, before all else, with the settings of the node by name. An exception stops the start."""
        return

    @abstractmethod
    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None:
        """The replica that the consumer should read from, one of `partition.replicas`; None: the leader.

        If `select` raises, or returns any other value, the consumer stays with the leader.
        """
        ...

    def close(self) -> None:
        """Called once, when the node stops."""
        return


class LeaderSelector(ReplicaSelector):
    """Every consumer reads from the leader: the default."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None:
        return partition.leader


class RackAwareReplicaSelector(ReplicaSelector):
    """A consumer reads from a replica in its own rack: from the leader if the leader is in the rack, else from the
    follower there that is most caught up (the highest log end; then the shortest time since it had every record; then
    the highest id)."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None:
        leader, rack_id = partition.leader, client.rack_id
        if not rack_id or (leader is not None and leader.endpoint.rack == rack_id):
            return leader
        return max(
            (replica for replica in partition.replicas if replica.endpoint.rack == rack_id),
            key=lambda replica: (replica.log_end_offset, -replica.time_since_last_caught_up_ms, replica.endpoint.id),
            default=leader,
        )
