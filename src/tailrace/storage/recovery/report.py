"""The input and the results of a recovery: acknowledged offsets, damage found, the report, the log as it was loaded."""

from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.file_system import File
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits


class Damage(NamedTuple):
    """Flushed bytes that differ from the bytes as written."""

    path: str
    position: int
    reason: str
    good_end_offset: int
    """The offset below which the log is good and can be read."""
    flushed_end_offset: int
    """The lowest end that the flushed part can have had."""

    def __str__(self) -> str:
        return f"{self.path} at position {self.position}: {self.reason}"


class DamagedLog(CorruptRecords):
    """A log that does not open: flushed records are lost or damaged."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(
            f"{damage}; this copy is good up to offset {damage.good_end_offset} and was flushed up to "
            f"{damage.flushed_end_offset}, so the rest is not cut off. Let another replica restore the partition, or "
            "restore the file"
        )
        self.damage = damage


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """The findings and repairs of opening a log."""

    clean: bool
    """Whether the log was closed cleanly, so that nothing had to be checked."""
    segments_checked: int = 0
    batches_checked: int = 0
    records_checked: int = 0
    bytes_cut: int = 0
    segments_removed: int = 0
    cut_reason: str = ""
    """File, position and fault of the cut; empty without a cut."""
    indexes_rebuilt: int = 0
    snapshots_discarded: int = 0
    ignored_log_start: int | None = None
    """The noted log start, if it is impossible and so ignored: the log begins with its first segment instead."""
    damage: Damage | None = None
    acknowledged_end_offset: int = 0
    """The highest offset known to have been flushed, or below the high watermark."""
    end_offset: int = 0
    """The end of the log that can be used; with damage, the end of its good part."""

    @property
    def damaged(self) -> bool:
        return self.damage is not None

    @property
    def lost_acknowledged(self) -> bool:
        """Whether acknowledged records are missing in this copy, which then must not be elected."""
        return self.damage is not None or self.end_offset < self.acknowledged_end_offset


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The state of a log as found in its files."""

    segments: list[Segment]
    limits: SegmentLimits
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    producers: ProducerState
    snapshot_offset: int
    """The offset of the newest producer snapshot, -1 for none."""
    gap_bound: int
    """Offsets below the bound may be missing: a compaction has removed records. UNKNOWN_GAPS: no bound is noted."""
    is_new: bool
    """Whether the first segment was just made, so that its name and the directory's are not durable yet."""
    report: RecoveryReport
    unsynced_files: tuple[File, ...] = ()
    """Files of the directory, beside the segments', that are not durable yet."""
    epochs_crc: int | None = None
    """The checksum of the file of leader epochs; None: not known."""
    noted_end_offset: int = 0
    """The flushed offset by the log's own note."""


class Acknowledged(NamedTuple):
    """Offsets and epoch of a log as stored outside the log. An unknown value excludes nothing."""

    recovery_point: int = 0
    """The flushed offset that was last made durable outside."""
    high_watermark: int = 0
    """The high watermark that was last made durable."""
    leader_epoch: int | None = None
    """The partition's leader epoch in the metadata: no batch has a later epoch."""
