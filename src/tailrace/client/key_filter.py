"""The filter of a reader of key ranges whose broker knows none (KIP-X): the same records, at the cost of all."""

from collections.abc import Sequence

from tailrace.model.key_ranges import KeyRange
from tailrace.protocol.records.batch import HEADER_SIZE, iter_batches
from tailrace.protocol.records.compression import decompress
from tailrace.protocol.records.kernels import split_by_key
from tailrace.protocol.schema import Buffer


def of_key_ranges(batches: Buffer, ranges: Sequence[KeyRange]) -> Buffer:
    """The records of these key hashes in whole batches. Raises CorruptRecords."""
    view = memoryview(batches)
    chunk: list[tuple[Buffer, Buffer | None]] = []
    for position, header in iter_batches(view):
        stored = view[position : position + header.size_bytes]
        plain = decompress(header.codec, stored[HEADER_SIZE:]) if header.codec and not header.is_control else None
        chunk.append((stored, plain))
    return split_by_key(chunk, [ranges]).parts[0]
