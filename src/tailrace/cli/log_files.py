"""What the files beside a log hold, in the words of Kafka's own dump: indexes, producer snapshots, leader epochs.

All are read as they stand; a file that ends inside an entry is said to.
"""

import struct
from collections.abc import Iterator

from crc32c import crc32c

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


def dump_offset_index(data: bytes, base_offset: int) -> Iterator[str]:
    """The entries of an .index file. Zeros after the last entry are space a running broker has reserved."""
    for number, (relative, position) in enumerate(_entries(_OFFSET_ENTRY, data)):
        if number and not relative:
            return
        yield f"offset: {base_offset + relative} position: {position}"


def dump_time_index(data: bytes, base_offset: int) -> Iterator[str]:
    """The entries of a .timeindex file."""
    for number, (timestamp, relative) in enumerate(_entries(_TIME_ENTRY, data)):
        if number and not timestamp:
            return
        yield f"timestamp: {timestamp} offset: {base_offset + relative}"


def dump_transaction_index(data: bytes) -> Iterator[str]:
    """The aborted transactions of a .txnindex file."""
    for version, producer_id, first, last, stable in _entries(_TRANSACTION_ENTRY, data):
        yield (
            f"version: {version} producerId: {producer_id} firstOffset: {first} "
            f"lastOffset: {last} lastStableOffset: {stable}"
        )


def dump_snapshot(data: bytes) -> Iterator[str]:
    """The producers of a .snapshot file, after whether its checksum is right."""
    if len(data) < _SNAPSHOT_HEAD.size:
        yield f"the file has {len(data)} bytes, its head takes {_SNAPSHOT_HEAD.size}"
        return
    version, stated, count = _SNAPSHOT_HEAD.unpack_from(data)
    is_valid = crc32c(memoryview(data)[6:]) == stated
    yield f"version: {version} crc: {stated} isvalid: {str(is_valid).lower()} producers: {count}"
    for entry in _entries(_SNAPSHOT_ENTRY, data[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction = entry
        first_sequence = (last_sequence - delta) & 0x7FFFFFFF if last_sequence >= 0 else -1
        first = f"OptionalLong[{transaction}]" if transaction >= 0 else "None"
        yield (
            f"producerId: {producer_id} producerEpoch: {epoch} coordinatorEpoch: {coordinator_epoch} "
            f"currentTxnFirstOffset: {first} lastTimestamp: {timestamp} firstSequence: {first_sequence} "
            f"lastSequence: {last_sequence} lastOffset: {last_offset} offsetDelta: {delta} timestamp: {timestamp}"
        )


def dump_epochs(data: bytes) -> Iterator[str]:
    """The lines of leader-epoch-checkpoint: version, count, then an epoch and its first offset on each."""
    lines = data.decode(errors="replace").split("\n")
    for line in lines[2:]:
        words = line.split()
        if len(words) == 2:
            yield f"leaderEpoch: {words[0]} startOffset: {words[1]}"


def _entries(form: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    whole = len(data) - len(data) % form.size
    yield from form.iter_unpack(data[:whole])
