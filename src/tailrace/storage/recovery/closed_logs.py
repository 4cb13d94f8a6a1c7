"""Notes of logs that were closed cleanly: enough to use them again without looking at their files.

A file of ours beside Kafka's checkpoints, one line per log, so that a node with 100,000 logs is up before it has opened
the first log. The file is trusted only with the mark of the clean stop that the file was written for (the broker epoch
in both must agree), and each log only while its active segment has the size that is noted here. A missing, stale or
damaged note costs time and nothing else: the log is opened from its files (`loader`). `reload` reads no batch: it
compares the length of the active segment and the checksum of the producers' snapshot.

    0                              version
    -1 2 1b2c3d4e                  broker epoch, count of lines that follow, their CRC-32C
    orders 4kHBPZmQRSi8FkYsV8vWhw  a topic with its id; its logs follow
    3 0 17 0 -1 17 1 0:1312 0:0    a log: see ClosedLog
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import TopicId, format_topic_id, parse_topic_id
from tailrace.storage.checkpoints import replace_file
from tailrace.storage.epoch_cache import EpochCache, EpochEntry
from tailrace.storage.file_system import File, FileSystem, join
from tailrace.storage.producers.snapshot_format import parse_snapshot
from tailrace.storage.producers.snapshots import snapshot_path
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.recovery.report import LoadedLog, RecoveryReport
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits

CLOSED_LOGS: Final = "closed-logs-checkpoint"

_VERSION: Final = "0"
_NOTHING: Final = "-"


class ClosedSegment(NamedTuple):
    """A segment of a closed log."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLog:
    """The state of a log at its close."""

    log_start_offset: int = 0
    log_end_offset: int = 0
    first_dirty_offset: int = 0
    gap_bound: int = -1
    """Offsets below the bound may be missing: a compaction has removed records. -1: no bound is noted."""
    snapshot_offset: int = -1
    """The offset of the newest producer snapshot, -1 for none."""
    has_producers: bool = False
    """Whether that snapshot has producers. If so, the snapshot is at the log's end."""
    segments: tuple[ClosedSegment, ...] = (ClosedSegment(0, 0),)
    """Segments, oldest first; never empty."""
    epochs: tuple[EpochEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of all batches, indexes not counted."""
        return sum(segment.size_bytes for segment in self.segments)

    def to_line(self) -> str:
        """The fields in their order, then segments as `base:size` and epochs as `epoch:start`."""
        numbers = (
            self.log_start_offset,
            self.log_end_offset,
            self.first_dirty_offset,
            self.gap_bound,
            self.snapshot_offset,
            int(self.has_producers),
        )
        return " ".join((*map(str, numbers), _pairs(self.segments), _pairs(self.epochs)))

    @classmethod
    def from_line(cls, line: str) -> "ClosedLog":
        """The log that `to_line` has written. Raises ValueError for anything else."""
        *numbers, segments, epochs = line.split(" ")
        start, end, first_dirty, gap_bound, snapshot, has_producers = map(int, numbers)
        return cls(
            log_start_offset=start,
            log_end_offset=end,
            first_dirty_offset=first_dirty,
            gap_bound=gap_bound,
            snapshot_offset=snapshot,
            has_producers=bool(has_producers),
            segments=tuple(ClosedSegment(*pair) for pair in _read_pairs(segments)),
            epochs=tuple(EpochEntry(*pair) for pair in _read_pairs(epochs)),
        )


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{first}:{second}" for first, second in pairs) or _NOTHING


def _read_pairs(text: str) -> Iterator[tuple[int, int]]:
    if text != _NOTHING:
        for pair in text.split(","):
            first, second = pair.split(":")
            yield int(first), int(second)


class ClosedTopic(NamedTuple):
    """The closed logs of a topic. A log stays an unread line until its first use: few of many logs are used."""

    topic_id: TopicId
    lines: dict[int, str]
    """The lines by the number of the partition."""


ClosedLogs = dict[str, ClosedTopic]
"""The topics by name."""


def write_closed_logs(files: FileSystem, directory: str, logs: Mapping[str, ClosedTopic], *, broker_epoch: int) -> None:
    """Note the logs of this directory, durably. To be followed by the mark of the clean stop."""
    lines: list[str] = []
    for name, topic in logs.items():
        if topic.lines:
            lines.append(f"{name} {format_topic_id(topic.topic_id)}")
            lines += [f"{number} {line}" for number, line in topic.lines.items()]
    body = "".join(f"{line}\n" for line in lines).encode("ascii")
    head = f"{_VERSION}\n{broker_epoch} {len(lines)} {crc32c(body):08x}\n".encode("ascii")
    replace_file(files, join(directory, CLOSED_LOGS), head + body)


def read_closed_logs(files: FileSystem, directory: str, *, broker_epoch: int) -> ClosedLogs:
    """The logs that were noted for the clean stop of this epoch; empty if there is no such note. Raises
    CorruptRecords."""
    path = join(directory, CLOSED_LOGS)
    if not files.exists(path):
        return {}
    lines = files.read_bytes(path).split(b"\n", 2)
    try:
        version, head, body = lines
        noted_epoch, count, checksum = head.decode("ascii").split(" ")
        if version.decode("ascii") != _VERSION or crc32c(body) != int(checksum, 16):
            raise ValueError
        return _parse(body.decode("ascii").splitlines(), int(count)) if int(noted_epoch) == broker_epoch else {}
    except ValueError:
        raise CorruptRecords(f"{path} is damaged; the logs are opened from their files instead") from None


def _parse(lines: list[str], count: int) -> ClosedLogs:
    if len(lines) != count:
        raise ValueError
    logs: ClosedLogs = {}
    numbered: dict[int, str] = {}
    for line in lines:
        first, _, rest = line.partition(" ")
        if " " in rest:
            numbered[int(first)] = rest
        else:
            numbered = {}
            logs[first] = ClosedTopic(parse_topic_id(rest), numbered)
    return logs


_CLEAN: Final = RecoveryReport(clean=True)
"""The report of all logs whose batches were not read."""


def reload(
    directory: str,
    closed: ClosedLog,
    *,
    files: FileSystem,
    limits: SegmentLimits,
    is_new: bool = False,
    unsynced_files: tuple[File, ...] = (),
) -> LoadedLog:
    """The state of the log that was closed with this note. Raises CorruptRecords or StorageError if the files differ
    from the note."""
    segments = [
        Segment(directory, base_offset, files=files, limits=limits, size_bytes=size_bytes)
        for base_offset, size_bytes in closed.segments
    ]
    active = segments[-1]
    found_bytes = files.size_of(active.log_path)
    if found_bytes != active.size_bytes:
        raise CorruptRecords(f"{active.log_path} has {found_bytes} bytes; {active.size_bytes} were noted at its close")
    producers = ProducerState()
    if closed.has_producers:
        producers = ProducerState(parse_snapshot(files.read_bytes(snapshot_path(directory, closed.snapshot_offset))))
    # The file of leader epochs has these entries since the clean close, and the notes of later flushes vouch for the
    # file without reading it.
    epochs = EpochCache(closed.epochs)
    return LoadedLog(
        segments=segments,
        limits=limits,
        log_start_offset=closed.log_start_offset,
        log_end_offset=closed.log_end_offset,
        epochs=epochs,
        producers=producers,
        snapshot_offset=closed.snapshot_offset,
        gap_bound=closed.gap_bound,
        is_new=is_new,
        report=_CLEAN,
        unsynced_files=unsynced_files,
        epochs_crc=crc32c(epochs.to_bytes()) if closed.epochs else None,
    )
