"""The proofs of replicas of the metadata log: a request in the name of a voter has the secret of its directory.

The id of a voter's directory is in the metadata log and in each answer to DescribeQuorum. It is the hash of a secret
in `meta.properties` beside the log, unless an earlier release or Apache Kafka has made the directory (`model.proofs`).

- A candidate, and a replica that fetches, name their directory: it has to be theirs.
- BeginQuorumEpoch and EndQuorumEpoch name a leader by its id alone: it has to be the voter of this id, or the candidate
  that this replica has voted for.
- A candidate or leader that this replica does not know as a voter may be one: the change of the voters may not have
  come here yet, and the vote of this replica may be the one that is missing. It is heard when this replica has lost
  its leader; while there is one, any client could end its epoch that way (Ongaro's dissertation, 4.2.3).
"""

from typing import assert_never

from tailrace.metadata.senders import check_secret
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.proofs import needs_secret
from tailrace.raft.node import RaftNode
from tailrace.raft.roles import Follower, Leader
from tailrace.raft.rpc import BeginEpoch, EndEpoch, FetchRecords, FetchSnapshot, Request, Vote
from tailrace.raft.voters import ReplicaKey


def check_sender(node: RaftNode, request: Request, secret: bytes) -> None:
    """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED if the sender has not proved that it is the replica it names."""
    match request:
        case FetchRecords() | FetchSnapshot():
            check_key(request.replica, secret)
        case Vote():
            check_key(request.candidate, secret)
            if not node.voters.has(request.candidate):
                _check_stranger(node, f"candidate {request.candidate}")
        case BeginEpoch() | EndEpoch():
            known = _leader_key(node, request.leader_id)
            if known is None:
                _check_stranger(node, f"leader {request.leader_id}")
            else:
                check_key(known, secret)
        case _:
            assert_never(request)


def check_key(key: ReplicaKey, secret: bytes) -> None:
    """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED if this is not the secret of the replica's directory."""
    check_secret(f"replica {key.id}", key.directory_id, secret)


def _leader_key(node: RaftNode, leader_id: int) -> ReplicaKey | None:
    voter, voted = node.voters.find(leader_id), node.quorum_state.voted
    if voter is not None:
        return voter.key
    return voted if voted is not None and voted.id == leader_id else None


def _check_stranger(node: RaftNode, sender: str) -> None:
    has_secrets = any(needs_secret(key.directory_id) for key in node.voters.keys)
    role = node.role
    if has_secrets and (isinstance(role, Leader) or (isinstance(role, Follower) and role.has_fetched)):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{sender} is no voter here, and replica {node.leader_id} leads in epoch {node.epoch}",
        )
