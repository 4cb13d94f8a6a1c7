"""Storage of a partition on a disk, synchronous: log, segments, indexes, producers, epochs, recovery, retention.

`storage.files` alone touches the operating system; the formats on disk are Kafka's.
"""

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
