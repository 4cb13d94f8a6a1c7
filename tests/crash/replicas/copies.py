"""The logs of replicas, read from the files of nodes that do not run."""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import BatchHeader, check_crc, iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.storage import OsFiles
from tailrace.storage.checkpoints import LOG_STARTS, read_offsets
from testkit.verdicts.replica_history import FinalLog, Place, ReplicaLog, StoredBatch

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0
TextOf = Callable[[bytes | None], str]
"""The text of a value, as histories have it."""


def start_offset_of(data: Path, place: Place) -> int:
    """The log start of a replica: from the checkpoint, or its first segment."""
    segments = sorted((data / directory_of(place)).glob("[0-9]*.log"))
    first = int(segments[0].stem) if segments else 0
    return max(first, read_offsets(OsFiles(), str(data), LOG_STARTS).get(TopicPartition(*place), 0))


def directory_of(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def stored_batches(data: Path, place: Place) -> Iterator[tuple[bytes, BatchHeader]]:
    """The batches of a replica with their headers, in order. Raises CorruptRecords if a batch is damaged."""
    for path in sorted((data / directory_of(place)).glob("[0-9]*.log")):
        content = path.read_bytes()
        end = 0
        for position, header in iter_batches(memoryview(content)):
            end = position + header.size_bytes
            check_crc(content, position, header)
            yield content[position:end], header
        assert end == len(content), f"{path} has {len(content) - end} bytes behind its last batch"


def replica_log(data: Path, place: Place, *, is_compacted: bool, text_of: TextOf) -> ReplicaLog:
    """Reads a replica's log. Raises CorruptRecords if a batch is damaged."""
    batches: list[StoredBatch] = []
    last_values: dict[str, tuple[int, str]] = {}
    for content, header in stored_batches(data, place):
        batches.append(StoredBatch(header.base_offset, header.last_offset, blake2b(content, digest_size=16).digest()))
        if is_compacted and not header.is_control:
            for record in read_records(content):
                last_values[(record.key or b"").decode()] = record.offset, text_of(record.value)
    return ReplicaLog(start_offset_of(data, place), batches, last_values)


def final_log(data: Path, place: Place, high_watermark: int, *, text_of: TextOf) -> FinalLog:
    """The log of a partition as one replica has it, up to the high watermark."""
    start_offset = start_offset_of(data, place)
    values: dict[int, str] = {}
    keys: dict[int, str] = {}
    aborted: set[int] = set()
    open_offsets: dict[int, list[int]] = defaultdict(list)
    for content, header in stored_batches(data, place):
        records = read_records(content)
        if header.is_control:
            _, kind = _CONTROL_KEY.unpack_from(records[0].key or b"")
            ended = open_offsets.pop(header.producer_id, [])
            aborted.update(ended if kind == _ABORT else ())
            continue
        for record in records:
            if not start_offset <= record.offset < high_watermark:
                continue
            values[record.offset] = text_of(record.value)
            if record.key is not None:
                keys[record.offset] = record.key.decode()
            if header.is_transactional:
                open_offsets[header.producer_id].append(record.offset)
    assert not any(open_offsets.values()), f"{directory_of(place)} has open transactions: {dict(open_offsets)}"
    return FinalLog(start_offset, high_watermark, values, keys, frozenset(aborted))
