"""The digest of written rows: equal rows have equal digests, whatever their order and their tasks.

The hash of a row covers what the query sets: topic, column `partition`, key, value and headers. The hash does not cover
what the sink chooses: the partition of a row without a key, and timestamps.
"""

from functools import cache

import numpy as np
import pyarrow as pa

from tailrace.client.arrow import HEADERS_TYPE, Hashes, content_hashes
from tailrace.model.sinks import RowsDigest

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def digest_rows(batch: pa.RecordBatch, topic: str | None) -> RowsDigest:
    """The digest of the rows; `topic` is the option that overrides the column."""
    count = batch.num_rows
    rows = np.full(count, _STEP, np.uint64)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    _join(rows, _hash_of_text(topic) if topic is not None else content_hashes(columns["topic"]))
    _join(rows, _partition_hashes(columns.get("partition")))
    for name in ("key", "value"):
        column = columns.get(name)
        _join(rows, np.uint64(0) if column is None else content_hashes(column))
    _join(rows, _header_hashes(columns.get("headers")))
    total = int(rows.sum(dtype=np.uint64))
    return RowsDigest(count, total - 2**64 if total >= 2**63 else total)


def _join(rows: Hashes, part: Hashes | np.uint64) -> None:
    """Mix a part of each row into the row's hash: the finalizer of SplitMix64."""
    rows ^= part
    rows += _STEP
    rows ^= rows >> np.uint64(30)
    rows *= _FIRST
    rows ^= rows >> np.uint64(27)
    rows *= _SECOND
    rows ^= rows >> np.uint64(31)


@cache
def _hash_of_text(text: str) -> np.uint64:
    return np.uint64(content_hashes(pa.array([text], pa.string()))[0])


def _partition_hashes(column: pa.Array | None) -> Hashes | np.uint64:
    """The number of a partition plus 1; 0 for a row whose partition the sink chooses."""
    if column is None or column.null_count == len(column):
        return np.uint64(0)
    numbers = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    hashes: Hashes = (numbers + 1).astype(np.uint64)
    return hashes


def _header_hashes(column: pa.Array | None) -> Hashes | np.uint64:
    """The hash of the headers of each row, in their order; 0 for null and for empty headers, which are written
    alike."""
    if column is None or column.null_count == len(column):
        return np.uint64(0)
    lists = column if column.type == HEADERS_TYPE else column.cast(HEADERS_TYPE)
    starts = lists.offsets.to_numpy().astype(np.int64)
    first, last = int(starts[0]), int(starts[-1])
    starts -= first
    # flatten() and not field(): the key of an entry that is null as a whole is null too.
    keys, values = lists.values.slice(first, last - first).flatten()
    entries = np.full(last - first, _STEP, np.uint64)
    _join(entries, content_hashes(keys))
    _join(entries, content_hashes(values))
    sizes = np.diff(starts)
    places = np.arange(len(entries), dtype=np.int64) - np.repeat(starts[:-1], sizes)
    _join(entries, places.astype(np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)])
    hashes: Hashes = sums[starts[1:]] - sums[starts[:-1]]
    if lists.null_count:
        hashes[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes
