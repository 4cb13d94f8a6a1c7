"""Batches written byte by byte, which no builder makes: their lengths, counts, times or offsets contradict each other.

The checksum of every such batch is right: the fault is the sender's, not damage on the way.
"""

from collections.abc import Sequence
from typing import Any

import zstandard

from tailrace.protocol.primitives import Buffer, varint
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, MAGIC, BatchHeader, seal
from tailrace.protocol.records.compression import Codec, compress, decompress_in_steps


def raw_bytes(content: bytes | None, length: int | None = None) -> bytes:
    """Nullable bytes as part of a record; `length` is the stated length, by default the length of the content."""
    stated = length if length is not None else -1 if content is None else len(content)
    return varint(stated) + (content or b"")


def raw_record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    *,
    key: bytes = raw_bytes(b"k"),
    value: bytes = raw_bytes(b"v"),
    headers: bytes = varint(0),
    attributes: int = 0,
    length: int | None = None,
) -> bytes:
    """A record. Key, value and headers (their number first) are given as the bytes of the wire."""
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta) + key + value + headers
    return varint(len(body) if length is None else length) + body


def raw_batch(
    records: Sequence[bytes] | bytes,
    *,
    count: int | None = None,
    codec: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    stored: bytes | None = None,
    **fields: Any,
) -> bytes:
    """A batch of these records; `stored` replaces the compressed records. `fields` are fields of the header."""
    section = records if isinstance(records, bytes) else b"".join(records)
    if stored is None:
        stored = bytes(compress(codec, section)) if codec else section
    if count is None:
        count = 1 if isinstance(records, bytes) else len(records)
    known = {
        "base_offset": 0,
        "batch_length": HEADER_SIZE - LENGTH_OFFSET + len(stored),
        "partition_leader_epoch": -1,
        "magic": MAGIC,
        "crc": 0,
        "attributes": codec,
        "last_offset_delta": count - 1,
        "base_timestamp": base_timestamp,
        "max_timestamp": max_timestamp,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "records_count": count,
    }
    batch = bytearray(BatchHeader(**{**known, **fields}).to_bytes())
    batch += stored
    seal(batch)
    return bytes(batch)


def zstd_stream(data: bytes, *, level: int = 3, flush_every: int = 0, **parameters: int) -> bytes:
    """The data in the form of zstd-jni, as Java's producer sends it: without the size in advance."""
    chosen = zstandard.ZstdCompressionParameters.from_level(level, **parameters)
    stream = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
    step = flush_every or max(len(data), 1)
    blocks = []
    for start in range(0, len(data), step):
        blocks.append(stream.compress(data[start : start + step]))
        if flush_every:
            blocks.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    return b"".join(blocks) + stream.flush()


def unfolded_in_steps(codec: Codec, data: bytes, *, max_bytes: int, step_bytes: int) -> Buffer:
    """The data, unfolded step by step."""
    steps = decompress_in_steps(codec, data, max_bytes=max_bytes, step_bytes=step_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bytes(end.value)
