"""The ports of the machine: a view of its log, and its settings. The host implements the view.

The machine only reads through `LogView`, and asks for changes by effects (`effects.py`). The host carries out the
effects that change the log, in order, before the next event, so that the view is always up to date.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.voters import ReplicaKey

Jitter = Callable[[], float]
"""Returns a new random number from 0 up to, but without, 1 at each call: the machine's only source of chance."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A whole, validated snapshot on this node."""

    id: SnapshotId
    size_bytes: int
    last_contained_ms: int
    """The time of the last record in the snapshot, from its header, by the clock of `RaftNode.step`."""


class LogView(Protocol):
    """The log of a partition, and its snapshots.

    An empty log starts and ends at the end offset of its newest snapshot, or at 0. If the newest snapshot was newer
    than the end of the log when the node started, the host has already replaced the log by this snapshot (KIP-630,
    "Validation of Snapshot and Log").
    """

    @property
    def log_start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; for an empty log, the epoch of the snapshot at its start, or 0."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> LogEnd | None:
        """The largest epoch up to `epoch` that has records in the log, and the end of these records; None if there is
        no such epoch.

        Records below the log start are ignored.
        """
        ...

    @property
    def snapshots(self) -> Sequence[SnapshotFile]:
        """Whole snapshots by ascending id, without parts that are still being fetched."""
        ...


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The promises of this node, which must survive a crash (Kafka's `quorum-state` file)."""

    epoch: int = 0
    leader_id: int = -1
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Times in ms, sizes in bytes."""

    election_timeout_ms: int = 500
    """`controller.quorum.election.timeout.ms`: an election lasts once to twice this time."""
    fetch_timeout_ms: int = 1000
    """`controller.quorum.fetch.timeout.ms`: a voter asks for an election when the leader has not answered for this
    time, give or take 20 %. A leader that has no contact with a majority for one and a half times this time resigns."""
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    damaged_backoff_ms: int = 250
    """The pause after fetched bytes that turned out to be damaged; well below the fetch timeout."""
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 << 20
    """`controller.quorum.fetch.max.bytes` (KIP-1219): the bytes that a replica asks a leader for at a time, and the
    most that a leader answers. The link must carry so many bytes within the fetch timeout, or the follower never makes
    progress."""
    snapshot_max_bytes: int = 1 << 20
    """The same limit for FetchSnapshot: `controller.quorum.fetch.snapshot.max.bytes` and
    `replica.fetch.response.max.bytes`, whichever of the two is less."""
    live_replica_ms: int = 300_000
    """The log start waits for a replica that has fetched within this time."""
    start_offset_lag_ms: int = 7 * 24 * 3600 * 1000
    """`metadata.start.offset.lag.time.max.ms`: the longest wait of the log start for a replica."""
    served_snapshot_ms: int = 60_000
    """A snapshot that a replica has asked for within this time is not deleted."""
    cleanup_interval_ms: int = 1000
    """The pause between two checks of log start and snapshots; a change causes further checks."""
    caught_up_ms: int = 3_600_000
    """A replica that has reached the leader's end offset within this time may become a voter."""
