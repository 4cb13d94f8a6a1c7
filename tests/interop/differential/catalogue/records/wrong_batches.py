"""Produced batches with wrong fields, one and two at a time, in every codec: the checksum alone is right.

Each field of the header, of a record and of the compressed bytes has values that are wrong in ways of their own: below
its range, beyond it, or in contradiction to other fields. A batch has three records, so that the record in the
middle has neighbours.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from interop.differential.catalogue.preparation import NOW_MS
from tailrace.protocol.primitives import varint
from tailrace.protocol.records.batch import seal
from tailrace.protocol.records.compression import Codec, compress
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

_COUNT = 3
_LAST_INT32, _LAST_INT64 = 2**31 - 1, 2**63 - 1
_DAY_MS = 86_400_000

FIELDS: Mapping[str, Sequence[Any]] = {
    # the header
    "base_offset": (1, 7, -1, 2**62),
    "partition_leader_epoch": (0, 7, -2, _LAST_INT32),
    "batch length": (-1, 1, -12, 1_000),
    "magic": (0, 1, 3, -1),
    "checksum": ("wrong",),
    "attribute": (0x08, 0x10, 0x20, 0x40, 0x80, 0x4000),
    "last_offset_delta": (0, 1, 3, -1, _LAST_INT32),
    "base_timestamp": (-1, 0, NOW_MS + _DAY_MS, -_LAST_INT64 - 1, _LAST_INT64),
    "max_timestamp": (-1, 0, NOW_MS - _DAY_MS, NOW_MS + _DAY_MS, -_LAST_INT64 - 1, _LAST_INT64),
    "producer_id": (70_000, -2, _LAST_INT64),
    "producer_epoch": (0, -2, 32_767),
    "base_sequence": (0, 5, -2, _LAST_INT32),
    "records_count": (0, 1, 2, 4, -1, _LAST_INT32),
    "codec": (5, 6, 7, "another"),
    # the record in the middle
    "record length": (0, 5, 100, -1, _LAST_INT32),
    "record attributes": (1, 255),
    "timestamp delta": (-5, 2**40, -_LAST_INT64 - 1, _LAST_INT64),
    "offset delta": (0, 2, 5, -1, _LAST_INT32),
    "key length": (-2, 3, 100, _LAST_INT32),
    "value length": (-2, 3, 100, _LAST_INT32),
    "header count": (0, 2, -1, _LAST_INT32),
    "header key length": (-1, -2, 3, 50),
    "header value length": (-2, 0, 50),
    # all records, and what the codec makes of them
    "bytes behind the records": (b"\0", b"junk"),
    "bytes missing of the records": (1, 9),
    "bytes behind the data": (b"\0", b"junk", bytes(8)),
    "bytes missing of the data": (1, 9),
    "changed byte of the data": (0, 5, 12),
}
"""Wrong values, by field."""
_OF_CODECS = frozenset(("bytes behind the data", "bytes missing of the data", "changed byte of the data"))
"""Without a codec these faults are faults of the records."""


class WrongBatch(NamedTuple):
    """A batch that is to be produced."""

    name: str
    faults: tuple[str, ...]
    codec: Codec
    data: bytes


def single_faults() -> Iterator[WrongBatch]:
    """Every wrong value of every field alone, in every codec."""
    for codec, (field, values) in product(Codec, FIELDS.items()):
        if codec or field not in _OF_CODECS:
            yield from (_wrong(codec, {field: value}) for value in values)


def pairs_of_faults(seed: int, count: int) -> Iterator[WrongBatch]:
    """So many batches with wrong values of two fields, in codecs, all drawn by the seed."""
    draw = random.Random(seed)
    for _ in range(count):
        codec = draw.choice(tuple(Codec))
        fields = draw.sample([field for field in FIELDS if codec or field not in _OF_CODECS], 2)
        yield _wrong(codec, {field: draw.choice(FIELDS[field]) for field in fields})


def _wrong(codec: Codec, faults: Mapping[str, Any]) -> WrongBatch:
    said = tuple(f"{field}={_shown(value)};" for field, value in faults.items())
    lot = "seeded: " if len(said) > 1 else ""
    return WrongBatch(f"{lot}{' '.join(said)} in {codec.name.lower()}", said, codec, _batch(codec, dict(faults)))


def _shown(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _batch(codec: Codec, faults: dict[str, Any]) -> bytes:
    section = b"".join((_record(0), _record(1, faults), _record(2)))
    section = section[: len(section) - faults.pop("bytes missing of the records", 0)]
    section += faults.pop("bytes behind the records", b"")
    stored = bytearray(compress(codec, section))
    stored = stored[: len(stored) - faults.pop("bytes missing of the data", 0)]
    stored += faults.pop("bytes behind the data", b"")
    if "changed byte of the data" in faults:
        stored[faults.pop("changed byte of the data")] ^= 0x55
    named = faults.pop("codec", codec)
    attributes = (int(codec) + 1) % 5 if named == "another" else named
    length_off, magic = faults.pop("batch length", 0), faults.pop("magic", 2)
    is_damaged = faults.pop("checksum", None) is not None
    header = {"base_timestamp": NOW_MS, "max_timestamp": NOW_MS + _COUNT - 1, "last_offset_delta": _COUNT - 1}
    header |= {"attributes": attributes | faults.pop("attribute", 0), **faults}
    batch = bytearray(raw_batch(b"", count=_COUNT, stored=bytes(stored), **header))
    batch[16] = magic & 0xFF
    seal(batch)
    if is_damaged:
        batch[17] ^= 0xFF
    batch[8:12] = (int.from_bytes(batch[8:12], "big") + length_off).to_bytes(4, "big", signed=True)
    return bytes(batch)


def _record(number: int, faults: dict[str, Any] | None = None) -> bytes:
    """A record; its own faults are taken from `faults`."""
    wrong = {} if faults is None else faults
    name, content = b"name", b"content"
    headers = varint(wrong.pop("header count", 1))
    headers += raw_bytes(name, wrong.pop("header key length", None))
    headers += raw_bytes(content, wrong.pop("header value length", None))
    return raw_record(
        wrong.pop("offset delta", number),
        wrong.pop("timestamp delta", number),
        key=raw_bytes(b"key of %d" % number, wrong.pop("key length", None)),
        value=raw_bytes(b"value of record %d" % number, wrong.pop("value length", None)),
        headers=headers,
        attributes=wrong.pop("record attributes", 0),
        length=wrong.pop("record length", None),
    )
