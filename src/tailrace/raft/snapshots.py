"""KIP-630's decisions, pure: when to snapshot, how far the log start may rise, which snapshots stay, the shares of an
answer, and the snapshot that a reader of the log needs instead of records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.raft.ports import LogView, SnapshotFile
from tailrace.raft.progress import Progress
from tailrace.raft.rpc import LogEnd, SnapshotId

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTrigger:
    """Decides when a state machine should write a snapshot (KIP-630, "When to Snapshot")."""

    min_changed_ratio: float = 0.5
    """`metadata.snapshot.min.changed_records.ratio`"""
    min_log_bytes: int = 20 * MIB
    """`metadata.log.max.record.bytes.between.snapshots`"""
    patience: int = 10
    """A bound of ours: when the log is larger than `patience` times the larger of snapshot and `min_log_bytes`, the
    ratio does not matter. Without this bound a state that only grows would get no further snapshot, and its log would
    grow for ever."""

    def is_due(
        self, *, changed_records: int, snapshot_records: int, snapshot_bytes: int, log_bytes: int, has_snapshot: bool
    ) -> bool:
        """Whether both conditions of KIP-630 hold, or the bound of `patience` is passed.

        `changed_records` counts records of the latest snapshot that were modified or deleted since, and records that
        were added since and then modified or deleted; new records do not count. `log_bytes` is the size of the records
        in the log from that snapshot to the high watermark.
        """
        if log_bytes < self.min_log_bytes:
            return False
        if not has_snapshot or log_bytes >= self.patience * max(snapshot_bytes, self.min_log_bytes):
            return True
        return changed_records >= self.min_changed_ratio * snapshot_records


def snapshot_fault(snapshot_id: SnapshotId, log: LogView, high_watermark: int | None) -> str | None:
    """The reason why a state machine may not write this snapshot, or None."""
    if high_watermark is None or snapshot_id.end_offset > high_watermark:
        return f"{snapshot_id.end_offset} is above the high watermark {high_watermark}: not committed"
    if snapshot_id.end_offset < log.log_start_offset:
        return f"{snapshot_id.end_offset} is below the log start {log.log_start_offset}: a newer one stands for it"
    if snapshot_id.end_offset == 0:
        return "a snapshot of nothing"
    if any(snapshot.id == snapshot_id for snapshot in log.snapshots):
        return "it exists"
    if any(snapshot.id.end_offset == snapshot_id.end_offset for snapshot in log.snapshots):
        return "there is a snapshot of another epoch at this offset"
    if snapshot_id.end_offset == log.log_start_offset or not reaches(log, snapshot_id):
        return f"the record before {snapshot_id.end_offset} is not of epoch {snapshot_id.epoch}"
    return None


def reaches(log: LogView, snapshot_id: SnapshotId) -> bool:
    """Whether the record before this end offset has this epoch. Only for end offsets above the log start."""
    end = log.end_offset_for_epoch(snapshot_id.epoch)
    if end is None or end.epoch != snapshot_id.epoch or end.offset < snapshot_id.end_offset:
        return False
    before = log.end_offset_for_epoch(snapshot_id.epoch - 1)
    return before is None or before.offset < snapshot_id.end_offset


@dataclass(frozen=True, slots=True)
class Valid:
    """The reader's log is a prefix of ours: the reader gets records."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The reader's log parts from ours at this end or before."""

    end: LogEnd


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The log starts above the end of the reader's log."""

    id: SnapshotId


def validate_position(log: LogView, offset: int, epoch: int) -> Valid | Diverging | NeedsSnapshot:
    """The leader's answer to a reader whose log ends at this offset with a record of this epoch.

    At the log start the record before is gone, so only the snapshot that ends exactly there can say which epoch that
    record had. A reader with another epoch, or any reader if there is no such snapshot, may have a stale tail that
    happens to end there: this reader gets the newest snapshot.
    """
    start = log.log_start_offset
    if offset == 0 and start == 0:
        return Valid()
    at_start = next((snapshot.id for snapshot in log.snapshots if snapshot.id.end_offset == start), None)
    if offset < start:
        return NeedsSnapshot(_latest(log))
    if offset == start and start > 0:
        return Valid() if at_start is not None and at_start.epoch == epoch else NeedsSnapshot(_latest(log))
    end = log.end_offset_for_epoch(epoch)
    if end is None:  # all records of this log are of later epochs
        if start == 0:
            return Diverging(LogEnd(0, 0))
        if at_start is None or at_start.epoch > epoch:
            return NeedsSnapshot(_latest(log))
        end = at_start.position
    if end.epoch != epoch or end.offset < offset:
        return Diverging(end)
    return Valid()


def _latest(log: LogView) -> SnapshotId:
    snapshots = log.snapshots
    assert snapshots, f"the log starts at {log.log_start_offset} and there is no snapshot"
    return snapshots[-1].id


def leader_log_start(
    snapshots: Sequence[SnapshotFile],
    log_start_offset: int,
    live: Iterable[Progress],
    served: Iterable[SnapshotId],
    now_ms: int,
    lag_ms: int,
) -> int:
    """The log start that a leader may have: the end of the newest snapshot that all live replicas have reached, or that
    is old.

    The end of a snapshot that is being fetched is a limit: the snapshot must stay, and no snapshot may end below the
    log start.
    """
    reached = min((progress.end_offset for progress in live), default=None)
    limit = min((snapshot_id.end_offset for snapshot_id in served), default=None)
    start = log_start_offset
    for snapshot in snapshots:
        end_offset = snapshot.id.end_offset
        is_reached = reached is None or end_offset <= reached
        is_old = snapshot.last_contained_ms + lag_ms <= now_ms
        if end_offset > start and (is_reached or is_old) and (limit is None or end_offset <= limit):
            start = end_offset
    return start


def follower_log_start(snapshots: Sequence[SnapshotFile], log_start_offset: int, leaders: int) -> int:
    """The log start that a follower may have: its leader's log start, but not above the end of the follower's own
    newest snapshot."""
    if not snapshots:
        return log_start_offset
    return max(log_start_offset, min(leaders, snapshots[-1].id.end_offset))


def superfluous_snapshots(
    snapshots: Sequence[SnapshotFile], log_start_offset: int, served: Iterable[SnapshotId] = ()
) -> tuple[SnapshotId, ...]:
    """The snapshots to delete. The snapshot at the log start, the next and the newest snapshot stay, and the snapshots
    that a replica is fetching.

    The next snapshot above the log start stays, although the newest snapshot would be enough: the next snapshot grows
    old, so that a live replica that never catches up holds the log start back only for the lag time.
    """
    kept = {*served, snapshots[-1].id} if snapshots else set()
    kept.update(snapshot.id for snapshot in snapshots if snapshot.id.end_offset == log_start_offset)
    kept.update([snapshot.id for snapshot in snapshots if snapshot.id.end_offset > log_start_offset][:1])
    return tuple(snapshot.id for snapshot in snapshots if snapshot.id not in kept)


def recently_served(served: Mapping[SnapshotId, int], now_ms: int, within_ms: int) -> dict[SnapshotId, int]:
    """The snapshots that were requested within this time."""
    return {snapshot_id: at_ms for snapshot_id, at_ms in served.items() if at_ms + within_ms > now_ms}


def fair_shares(remaining: Sequence[int], max_bytes: int) -> list[int]:
    """The share of `max_bytes` for each snapshot, by the bytes that the snapshot has left to send.

    A snapshot gets the average at most; the unused rest of a share goes to the other snapshots, evenly again (KIP-630).
    Bytes that cannot be divided go to some snapshots that want more.
    """
    shares = [0] * len(remaining)
    order = sorted(range(len(remaining)), key=lambda index: remaining[index])
    left = max(max_bytes, 0)
    for done, index in enumerate(order):
        shares[index] = min(remaining[index], left // (len(order) - done))
        left -= shares[index]
    for index, rest in enumerate(remaining):
        more = min(rest - shares[index], left)
        shares[index] += more
        left -= more
    return shares
