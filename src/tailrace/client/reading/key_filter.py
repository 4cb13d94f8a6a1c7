"""The filter for key ranges where the broker does not know key ranges (KIP-X): the reader gets every record and keeps
the wanted records."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import KeyRange
from tailrace.protocol.records.batch import HEADER_SIZE, iter_batches
from tailrace.protocol.records.compression import decompress
from tailrace.protocol.records.corrupt_batch import CorruptBatch, corrupt_batch, stored_end
from tailrace.protocol.records.kernels import split_by_key
from tailrace.protocol.schema import Buffer


class FilteredBatches(NamedTuple):
    """The records of the wanted keys, and the batches whose keys cannot be read."""

    buffers: list[Buffer]
    corrupt: list[CorruptBatch]


def of_key_ranges(batches: Buffer, ranges: Sequence[KeyRange]) -> Buffer:
    """The records of these key hashes in whole batches. Raises CorruptRecords."""
    view = memoryview(batches)
    chunk: list[tuple[Buffer, Buffer | None]] = []
    for position, header in iter_batches(view):
        stored = view[position : position + header.size_bytes]
        plain = decompress(header.codec, stored[HEADER_SIZE:]) if header.codec and not header.is_control else None
        chunk.append((stored, plain))
    return split_by_key(chunk, [ranges]).parts[0]


def filtered(buffers: Iterable[Buffer], ranges: Sequence[KeyRange]) -> FilteredBatches:
    """The records of these key hashes. In a buffer with an undecodable batch, each batch is filtered alone."""
    parts: list[Buffer] = []
    corrupt: list[CorruptBatch] = []
    for buffer in buffers:
        try:
            parts.append(of_key_ranges(buffer, ranges))
        except CorruptRecords:
            view, position = memoryview(buffer), 0
            while (end := stored_end(view, position)) is not None:
                try:
                    parts.append(of_key_ranges(view[position:end], ranges))
                except CorruptRecords as fault:
                    corrupt.append(corrupt_batch(view, position, end, fault))
                position = end
    return FilteredBatches([part for part in parts if len(part)], corrupt)
