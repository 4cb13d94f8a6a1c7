"""Storage of a partition on a disk, synchronous: log, segments, indexes, producers, epochs, recovery, retention.

`storage.files` alone touches the operating system; the formats on disk are Kafka's.

Each name is imported when it is first used: a program that writes the settings of nodes needs no log.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

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
    "compaction.compaction": ("Compaction",),
    "epoch_cache": (
        "EpochCache",
        "EpochEntry",
    ),
    "file_system": (
        "Buffer",
        "File",
        "FileSystem",
    ),
    "files": ("OsFiles",),
    "flush": (
        "FlushTicket",
        "sync_together",
    ),
    "log": ("Log",),
    "producers.entries": ("ProducerEntry",),
    "producers.state": (
        "Duplicate",
        "ProducerState",
    ),
    "readable_log": ("TimestampOffset",),
    "recovery.closed_logs": (
        "ClosedLog",
        "ClosedLogs",
        "ClosedTopic",
    ),
    "recovery.report": (
        "Damage",
        "DamagedLog",
        "RecoveryReport",
    ),
    "retention": ("RetiredSegment",),
    "scrub": (
        "Scrub",
        "ScrubSlice",
    ),
    "segment_files.batch_file": (
        "AppendBatch",
        "ReadLimits",
        "ReadResult",
    ),
    "segment_files.transaction_index": ("AbortedTxn",),
}
"""The modules of the names."""

_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found
