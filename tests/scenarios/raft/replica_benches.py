"""Replicas of the metadata quorum on a bench, for tests of snapshots."""

from typing import Any

from simulation.raft.bench import CLUSTER, RaftBench, error_of
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode
from tailrace.raft.rpc import BeginEpoch, SnapshotId


def leader_with(
    *, log: list[int], log_start: int = 0, snapshots: list[SnapshotId] | None = None, **more: Any
) -> RaftBench:
    """Node 1, just elected, its LeaderChange record at the end of this log."""
    bench = RaftBench(log=log, log_start=log_start, snapshots=snapshots or [], **more)
    bench.elect()
    bench.forget()
    return bench


def follower_with(**more: Any) -> RaftBench:
    """Node 1, following node 2 in epoch 5, its first fetch sent."""
    bench = RaftBench(**more)
    begin = BeginEpoch(cluster_id=CLUSTER, leader_id=2, leader_epoch=5, voter=key_of(1))
    assert error_of(bench.receive(begin)) is ErrorCode.NONE
    return bench
