"""The split of batches by key: each record reaches each reader that wants it, once, as it was; both kernels agree."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import HASH_SPACE, KeyRange, contains, hash_of, joined, slot_of
from tailrace.protocol.records import _kernels_twin as twin
from tailrace.protocol.records.batch import HEADER_SIZE, check_crc, iter_batches, read_header
from tailrace.protocol.records.compression import decompress
from tailrace.protocol.records.record import Record, build_batch, read_records

compiled: Any = pytest.importorskip(
    "tailrace.protocol.records._kernels", reason="the compiled kernels are not built: setup.py build_ext"
)

KEYS = st.none() | st.binary(max_size=2) | st.binary(min_size=60, max_size=200)
HEADERS = st.lists(st.tuples(st.text("ab", max_size=2), st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
EDGES = st.integers(0, HASH_SPACE - 1) | st.integers(0, 255).map(lambda slot: slot << 24)


@st.composite
def ranges(draw: st.DrawFn) -> list[KeyRange]:
    """Up to 16 ranges."""
    edges = sorted(draw(st.lists(EDGES, max_size=32, unique=True)))
    return list(joined(map(KeyRange, edges[::2], edges[1::2])))


READERS = st.lists(ranges(), min_size=1, max_size=5)
Batch = tuple[bytes, bytes | None]
"""A stored batch, and its records if it is compressed."""


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    bodies = draw(st.lists(st.tuples(st.integers(0, 2**45), KEYS, KEYS, HEADERS), min_size=1, max_size=8))
    codec = draw(st.sampled_from([0, 0, 1, 2, 3, 4]))
    is_control = draw(st.integers(0, 9)) == 0
    plain = build_batch(
        [Record(0, *body) for body in bodies],
        base_offset=draw(st.integers(0, 200)),
        producer_id=draw(st.sampled_from([-1, 7])),
        is_transactional=draw(st.booleans()),
        is_control=is_control,
        log_append_time=draw(st.none() | st.integers(0, 2**45)),
        codec=0 if is_control else codec,
    )
    stored = bytes(plain)
    if is_control or not codec:
        return stored, None
    return stored, bytes(decompress(codec, stored[HEADER_SIZE:]))


@st.composite
def damaged(draw: st.DrawFn) -> Batch:
    stored, plain = draw(batches())
    data = bytearray(stored if plain is None else plain)
    for _ in range(draw(st.integers(1, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    data = data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 30]))]
    return (bytes(data), None) if plain is None else (stored, bytes(data))


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except (CorruptRecords, ValueError) as error:
        return type(error), str(error)


@given(st.lists(batches() | damaged(), max_size=4), READERS)
def test_both_kernels_split_alike(chunk: list[Batch], readers: list[list[KeyRange]]) -> None:
    expected = outcome(lambda: twin.split_by_key(chunk, readers))
    assert outcome(lambda: compiled.split_by_key(chunk, readers)) == expected


def in_steps(split: Any, step: int) -> object:
    while not split.step(step):
        pass
    return split.result()


@given(batches() | damaged(), READERS, st.integers(1, 5))
def test_a_batch_is_split_alike_in_steps(batch: Batch, readers: list[list[KeyRange]], step: int) -> None:
    expected = outcome(lambda: compiled.split_by_key([batch], readers))
    assert outcome(lambda: in_steps(compiled.SteppedSplit(*batch, readers), step)) == expected
    assert outcome(lambda: in_steps(twin.SteppedSplit(*batch, readers), step)) == expected


def records_of(part: bytes) -> list[tuple[bool, Record]]:
    """The records of a part, and whether each is a control record."""
    found = []
    for position, header in iter_batches(part):
        check_crc(part, position, header)
        assert header.records_count, "no batch of zero records"
        found += [(header.is_control, record) for record in read_records(part[position : position + header.size_bytes])]
    return found


@given(st.lists(batches(), max_size=4), READERS)
def test_each_reader_gets_its_records_once_and_as_they_were(chunk: list[Batch], readers: list[list[KeyRange]]) -> None:
    split = compiled.split_by_key(chunk, readers)
    everything = [record for stored, _ in chunk for record in records_of(stored)]
    for wanted, part in zip(readers, split.parts, strict=True):
        expected = [
            (is_control, record)
            for is_control, record in everything
            if is_control or contains(wanted, hash_of(record.key, record.offset))
        ]
        assert records_of(bytes(part)) == expected
    last: dict[int, int] = {}
    for number, (stored, _) in enumerate(chunk):
        header = read_header(stored, 0)
        slots = {slot for slot in range(256) if split.slot_maps[32 * number + slot // 8] >> slot % 8 & 1}
        if header.is_control:
            assert slots == set(range(256))
            last = dict.fromkeys(slots, header.last_offset)
        else:
            hashes = [(slot_of(hash_of(record.key, record.offset)), record.offset) for _, record in records_of(stored)]
            assert slots == {slot for slot, _ in hashes}
            last |= dict(hashes)
    assert split.last_offsets == [last.get(slot, -1) for slot in range(256)]


def test_each_of_many_keys_reaches_one_of_sixteen_readers() -> None:
    size, readers = 10_000, [[KeyRange(number << 28, (number + 1 << 28) - 1)] for number in range(16)]
    seen = bytearray(examples(100_000))
    for base in range(0, len(seen), size):
        records = [Record(offset, 0, b"%d" % offset, None, ()) for offset in range(base, base + size)]
        stored = bytes(build_batch(records, base_offset=base))
        for number, part in enumerate(compiled.split_by_key([(stored, None)], readers).parts):
            offsets = []
            for record in read_records(bytes(part)):
                assert record.key == b"%d" % record.offset
                assert hash_of(record.key, record.offset) >> 28 == number
                offsets.append(record.offset)
                seen[record.offset] += 1
            assert offsets == sorted(offsets)
    assert seen == b"\1" * len(seen)


@given(batches(), READERS)
def test_a_header_keeps_all_that_it_says_of_the_whole_batch(batch: Batch, readers: list[list[KeyRange]]) -> None:
    stored, _ = batch
    before = read_header(stored, 0)
    for part in compiled.split_by_key([batch], readers).parts:
        if not part:
            continue
        after = read_header(part, 0)
        is_whole = after.records_count == before.records_count
        if is_whole:
            assert bytes(part) == stored
        assert (after.base_offset, after.last_offset_delta, after.partition_leader_epoch) == (
            before.base_offset,
            before.last_offset_delta,
            before.partition_leader_epoch,
        )
        assert (after.base_timestamp, after.max_timestamp) == (before.base_timestamp, before.max_timestamp)
        assert (after.producer_id, after.producer_epoch, after.base_sequence) == (
            before.producer_id,
            before.producer_epoch,
            before.base_sequence,
        )
        assert after.attributes == (before.attributes if is_whole else before.attributes & ~7)
