"""A partition that a broker fetches from its leader: its state, its position, and the leader's refusals.

Pure; times are monotonic ms.
"""

from enum import Enum, auto
from typing import Final

from tailrace.model.errors import ErrorCode
from tailrace.replication.fetcher_events import PartitionKey, Position, Wanted

REFUSED_AFTER_MS: Final = 10_000
"""The time after which a partition is reported, if its leader has refused it with the same error all the time.
Elections and restarts are over by then."""
REPORTED_EVERY_MS: Final = 60_000


class LeaderRefusal:
    """The refusals of a partition by its leader, all with the same error."""

    __slots__ = ("_reported_ms", "_since_ms", "error")

    def __init__(self, error: ErrorCode, now_ms: int) -> None:
        self.error = error
        self._since_ms = now_ms
        self._reported_ms: int | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the refusals have lasted so long that they were reported."""
        return self._reported_ms is not None

    def report(self, now_ms: int) -> int | None:
        """The time for which the refusals have lasted, if a report is due now; else None."""
        for_ms, reported_ms = now_ms - self._since_ms, self._reported_ms
        if for_ms < REFUSED_AFTER_MS or (reported_ms is not None and now_ms - reported_ms < REPORTED_EVERY_MS):
            return None
        self._reported_ms = now_ms
        return for_ms


class FollowState(Enum):
    READY = auto()
    STORING = auto()
    CUTTING = auto()
    PAUSED = auto()
    BROKEN = auto()


class FollowedPartition:
    """A partition that is fetched from its leader, as `replica_fetcher` knows the partition."""

    __slots__ = (
        "cannot_be_stored",
        "failures",
        "leader_epoch",
        "leader_high_watermark",
        "leader_log_start",
        "position",
        "refusal",
        "state",
    )

    def __init__(self, leader_epoch: int, position: Position) -> None:
        self.leader_epoch = leader_epoch
        self.position = position
        self.state = FollowState.READY
        self.failures = 0
        """The number of failures in a row."""
        self.refusal: LeaderRefusal | None = None
        self.leader_high_watermark = self.leader_log_start = -1
        """The leader's offsets in the last answer; -1 before the first answer."""
        self.cannot_be_stored = False
        """Whether the batches of the last answer were not taken over: they were damaged, or the disk had no space."""

    @property
    def is_in_sync(self) -> bool:
        """Whether the replica has every record that its leader had committed at the last answer; true before the first
        answer (decision 0051)."""
        return self.leader_high_watermark <= self.position.end_offset

    def wanted(self, key: PartitionKey) -> Wanted:
        return Wanted(key, self.leader_epoch, self.position)
