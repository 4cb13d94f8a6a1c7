"""Raft with snapshots (KIP-595, KIP-630, KIP-853, KIP-996), pure. `RaftNode` is the machine.

`RaftNode` knows no Kafka message and no disk. A host passes `events` to the machine, carries out its `effects`, and
shows the log to the machine through `ports.LogView`; an adapter maps `rpc` to Kafka's messages.
"""

from tailrace.raft.node import RaftNode
from tailrace.raft.ports import LogView, QuorumState, RaftConfig, SnapshotFile
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VotersAt, VoterSet

__all__ = [
    "LogEnd",
    "LogView",
    "QuorumState",
    "RaftConfig",
    "RaftNode",
    "ReplicaKey",
    "SnapshotFile",
    "SnapshotId",
    "Voter",
    "VoterListener",
    "VoterSet",
    "VotersAt",
]
