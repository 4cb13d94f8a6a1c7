"""The metadata quorum: its voters and observers, their progress, and changes of voters; see `client.admin`."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumReplica,
    RaftVoterListener,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)

_METADATA_TOPIC = "__cluster_metadata"
_WANTED = DescribedQuorumTopic(topic_name=_METADATA_TOPIC, partitions=(DescribedQuorumPartition(partition_index=0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplicaState:
    """A voter or an observer, as the leader sees it. Times in ms since 1970, -1 where they are not known."""

    replica_id: BrokerId
    directory_id: bytes
    """16 bytes; all 0 where the cluster does not say."""
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumEndpoint:
    """An address at which a voter listens."""

    listener_name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The quorum, as its leader sees it."""

    leader_id: BrokerId
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplicaState, ...]
    observers: tuple[QuorumReplicaState, ...]
    endpoints: dict[BrokerId, tuple[QuorumEndpoint, ...]]
    """Of the voters; empty where the cluster does not say."""

    def lag(self, replica: QuorumReplicaState) -> int | None:
        """The number of records the replica is behind the leader's end; None if it is not known."""
        leader = next((each for each in self.voters if each.replica_id == self.leader_id), None)
        if leader is None or leader.log_end_offset < 0 or replica.log_end_offset < 0:
            return None
        return leader.log_end_offset - replica.log_end_offset


async def describe_quorum(router: Router) -> QuorumDescription:
    """The quorum of the metadata log."""

    async def attempt() -> QuorumDescription:
        return await ask_for_quorum(await router.any_connection(), timeout_ms=router.request_timeout_ms)

    return await router.retry(attempt)


async def ask_for_quorum(connection: Connection, *, timeout_ms: int) -> QuorumDescription:
    """The quorum as this broker knows it now. Raises KafkaError, also while there is no leader."""
    request = DescribeQuorumRequest(topics=(_WANTED,))
    response = await connection.ask(request, DescribeQuorumResponse, timeout_ms=timeout_ms)
    check(response.error_code, response.error_message or "the quorum cannot be described")
    partition = next((each for topic in response.topics for each in topic.partitions), None)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the cluster says nothing of {_METADATA_TOPIC}")
    check(partition.error_code, partition.error_message or "the quorum cannot be described")
    return _description(partition, response)


def _description(partition: QuorumPartition, response: DescribeQuorumResponse) -> QuorumDescription:
    return QuorumDescription(
        leader_id=BrokerId(partition.leader_id),
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        voters=tuple(map(_replica, partition.current_voters)),
        observers=tuple(map(_replica, partition.observers)),
        endpoints={
            BrokerId(node.node_id): tuple(
                QuorumEndpoint(listener_name=each.name, host=each.host, port=each.port) for each in node.listeners
            )
            for node in response.nodes
        },
    )


def _replica(replica: QuorumReplica) -> QuorumReplicaState:
    return QuorumReplicaState(
        replica_id=BrokerId(replica.replica_id),
        directory_id=replica.replica_directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_timestamp,
        last_caught_up_timestamp=replica.last_caught_up_timestamp,
    )


async def add_voter(router: Router, voter_id: int, directory_id: bytes, endpoints: Sequence[QuorumEndpoint]) -> None:
    """Have a controller vote that follows the quorum already (KIP-853). Returns when the change is committed.

    Raises KafkaError: DUPLICATE_VOTER for an id that votes; REQUEST_TIMED_OUT for one that has not caught up.
    """
    listeners = tuple(RaftVoterListener(name=each.listener_name, host=each.host, port=each.port) for each in endpoints)

    async def attempt() -> None:
        connection = await router.any_connection()
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=router.request_timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=listeners,
        )
        response = await connection.ask(request, AddRaftVoterResponse, timeout_ms=router.request_timeout_ms)
        check(response.error_code, response.error_message or f"controller {voter_id} cannot be added")

    # A change that was not committed in time may still be: the caller looks before asking again.
    await router.retry(attempt, final=(ErrorCode.REQUEST_TIMED_OUT,))


async def remove_voter(router: Router, voter_id: int, directory_id: bytes) -> None:
    """Have a controller vote no more. Returns when the change is committed. Raises KafkaError, as VOTER_NOT_FOUND."""

    async def attempt() -> None:
        connection = await router.any_connection()
        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=voter_id, voter_directory_id=directory_id)
        response = await connection.ask(request, RemoveRaftVoterResponse, timeout_ms=router.request_timeout_ms)
        check(response.error_code, response.error_message or f"controller {voter_id} cannot be removed")

    await router.retry(attempt, final=(ErrorCode.REQUEST_TIMED_OUT,))
