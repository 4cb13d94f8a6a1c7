"""Measurements of one replica of the metadata log (KIP-595, KIP-630 "Metrics")."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.metadata.image import ClusterImage
from tailrace.raft.rpc import SnapshotId
from tailrace.server.quorum.host import QuorumHost

_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


class Latencies:
    """Durations of an operation: a histogram, since the start of the process."""

    bounds_ms: Sequence[int] = _BOUNDS_MS

    def __init__(self) -> None:
        self.sum_ms = 0
        self._counts = [0] * (len(_BOUNDS_MS) + 1)

    def add(self, milliseconds: int) -> None:
        """Add one duration."""
        self.sum_ms += milliseconds
        self._counts[bisect_left(_BOUNDS_MS, milliseconds)] += 1

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of durations per bound of `bounds_ms`, each count is of durations above the bound before; the last
        count is of durations above the last bound."""
        return tuple(self._counts)

    @property
    def count(self) -> int:
        """The number of operations."""
        return sum(self._counts)


class SnapshotMeasures:
    """The state machine's work with snapshots."""

    def __init__(self) -> None:
        self.generated = Latencies()
        """The times from the decision to write a snapshot to the rename of its file."""
        self.loaded = Latencies()
        """The times from the first byte of a snapshot until the image is visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumMeasure:
    """The present state of a replica."""

    state: str
    """The role: `leader`, `follower`, `candidate` ...; a replica without a vote that follows is an `observer`."""
    leader_id: int
    epoch: int
    voted_id: int
    voters: int
    high_watermark: int
    """The high watermark; -1 if not known."""
    log_start_offset: int
    log_end_offset: int
    log_end_epoch: int
    applied_end_offset: int
    metadata_version: int
    """The finalized metadata.version; -1 while the log states no level."""
    snapshot_end_offset: int
    """The end of the newest snapshot; 0 without a snapshot."""
    snapshot_size_bytes: int
    has_failed: bool
    """Whether the replica has given up its log: see `QuorumHost.failure`."""
    generated: Latencies
    loaded: Latencies

    @property
    def snapshot_lag(self) -> int:
        """Offsets between the newest snapshot and the high watermark."""
        return max(self.high_watermark - self.snapshot_end_offset, 0)


def measure_of(
    host: QuorumHost, measures: SnapshotMeasures, *, image: ClusterImage, applied: SnapshotId
) -> QuorumMeasure:
    """The measurements of this host's replica, with the state of its state machine."""
    node, log = host.node, host.log
    newest = log.snapshots[-1] if log.snapshots else None
    voted = node.quorum_state.voted
    role = type(node.role).__name__.lower()
    is_voter = any(key == node.key for key in node.voters.keys)
    return QuorumMeasure(
        state="observer" if role == "follower" and not is_voter else role,
        leader_id=node.leader_id,
        epoch=node.epoch,
        voted_id=-1 if voted is None else voted.id,
        voters=len(node.voters.keys),
        high_watermark=-1 if node.high_watermark is None else node.high_watermark,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.end_offset,
        log_end_epoch=log.last_epoch,
        applied_end_offset=applied.end_offset,
        metadata_version=image.metadata_version or -1,
        snapshot_end_offset=0 if newest is None else newest.id.end_offset,
        snapshot_size_bytes=0 if newest is None else newest.size_bytes,
        has_failed=host.failure is not None,
        generated=measures.generated,
        loaded=measures.loaded,
    )
