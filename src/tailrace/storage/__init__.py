"""Storage of a partition on a disk, synchronous: log, segments, indexes, producers, epochs, recovery, retention.

`storage.files` alone touches the operating system; the formats on disk are Kafka's.

Each name is imported when it is first used: a program that writes the settings of nodes needs no log.
"""

from typing import TYPE_CHECKING, Final

from tailrace.model.late_names import late_names

if TYPE_CHECKING:
    from tailrace.storage.compaction.compaction import Compaction
    from tailrace.storage.epoch_cache import EpochCache, EpochEntry
    from tailrace.storage.file_system import Buffer, File, FileSystem
    from tailrace.storage.files import OsFiles
    from tailrace.storage.flush import FlushTicket, sync_together
    from tailrace.storage.log import Log
    from tailrace.storage.producers.entries import ProducerEntry
    from tailrace.storage.producers.state import Duplicate, ProducerState
    from tailrace.storage.readable_log import TimestampOffset
    from tailrace.storage.recovery.closed_logs import ClosedLog, ClosedLogs, ClosedTopic
    from tailrace.storage.recovery.report import Damage, DamagedLog, RecoveryReport
    from tailrace.storage.retention import RetiredSegment
    from tailrace.storage.scrub import Scrub, ScrubSlice
    from tailrace.storage.segment_files.batch_file import AppendBatch, ReadLimits, ReadResult
    from tailrace.storage.segment_files.transaction_index import AbortedTxn

__all__ = [
    "AbortedTxn",
    "AppendBatch",
    "Buffer",
    "ClosedLog",
    "ClosedLogs",
    "ClosedTopic",
    "Compaction",
    "Damage",
    "DamagedLog",
    "Duplicate",
    "EpochCache",
    "EpochEntry",
    "File",
    "FileSystem",
    "FlushTicket",
    "Log",
    "OsFiles",
    "ProducerEntry",
    "ProducerState",
    "ReadLimits",
    "ReadResult",
    "RecoveryReport",
    "RetiredSegment",
    "Scrub",
    "ScrubSlice",
    "TimestampOffset",
    "sync_together",
]

_MODULES: Final = {
    "storage.compaction.compaction": ("Compaction",),
    "storage.epoch_cache": (
        "EpochCache",
        "EpochEntry",
    ),
    "storage.file_system": (
        "Buffer",
        "File",
        "FileSystem",
    ),
    "storage.files": ("OsFiles",),
    "storage.flush": (
        "FlushTicket",
        "sync_together",
    ),
    "storage.log": ("Log",),
    "storage.producers.entries": ("ProducerEntry",),
    "storage.producers.state": (
        "Duplicate",
        "ProducerState",
    ),
    "storage.readable_log": ("TimestampOffset",),
    "storage.recovery.closed_logs": (
        "ClosedLog",
        "ClosedLogs",
        "ClosedTopic",
    ),
    "storage.recovery.report": (
        "Damage",
        "DamagedLog",
        "RecoveryReport",
    ),
    "storage.retention": ("RetiredSegment",),
    "storage.scrub": (
        "Scrub",
        "ScrubSlice",
    ),
    "storage.segment_files.batch_file": (
        "AppendBatch",
        "ReadLimits",
        "ReadResult",
    ),
    "storage.segment_files.transaction_index": ("AbortedTxn",),
}
"""The modules of the names."""

if not TYPE_CHECKING:
    __getattr__ = late_names(__name__, _MODULES)
