"""The slots of batches: by both kernels alike, and all of them for a batch that cannot be looked at."""

from typing import Any

import pytest

from tailrace.model.key_ranges import SLOTS, KeyRange, hash_of, slot_of
from tailrace.protocol.records import _kernels_twin as twin
from tailrace.protocol.records import kernels
from tailrace.protocol.records.batch import HEADER_SIZE, read_header, seal
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch
from tailrace.storage.keys import batch_slots
from tailrace.storage.keys.batch_slots import ALL_SLOTS, BatchGroup, BatchSlots, last_match
from testkit.records.batches import stored_marker

KEYS = (b"a", None, b"", b"b", b"a")
EVERY = KeyRange(0, 2**32 - 1)


@pytest.fixture(params=["the kernel", "the twin"], autouse=True)
def _splits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        batch_slots, "split_by_key", kernels.split_by_key if request.param == "the kernel" else twin.split_by_key
    )


def batch(offset: int, *keys: bytes | None, codec: int = 0) -> AppendBatch:
    built = bytes(build_batch([Record(0, 1, key, b"v") for key in keys], base_offset=offset, codec=codec))
    return AppendBatch(built, read_header(built))


def changed(stored: AppendBatch, at: int, value: int, *, seals: bool) -> AppendBatch:
    data = bytearray(stored.buffer)
    data[at] = value
    if seals:
        seal(data)
    return AppendBatch(bytes(data), read_header(data))


def unreadable(offset: int) -> dict[str, AppendBatch]:
    """Batches of five offsets from this one on that cannot be looked at."""
    good = batch(offset, *KEYS)
    packed = batch(offset, *KEYS, codec=Codec.ZSTD)
    return {
        "a wrong checksum": changed(good, len(good.buffer) - 1, 7, seals=False),
        "another count": changed(good, HEADER_SIZE - 1, 4, seals=True),
        "a record that is too long": changed(good, HEADER_SIZE, 0x7E, seals=True),
        "an unknown codec": changed(good, 22, 5, seals=True),
        "no zstd": changed(packed, HEADER_SIZE, 0, seals=True),
    }


def slots_of(*batches: AppendBatch) -> BatchSlots:
    group = BatchGroup()
    for stored in batches:
        group.add(stored.buffer, stored.header)
    assert len(group) == len(batches)
    return group.slots()


def expected(offset: int, keys: tuple[bytes | None, ...]) -> dict[int, int]:
    """The last offset of each slot."""
    return {slot_of(hash_of(key, offset + at)): offset + at for at, key in enumerate(keys)}


def slots_in(found: BatchSlots, number: int) -> set[int]:
    bits = int.from_bytes(found.slot_maps[32 * number : 32 * number + 32], "little")
    return {slot for slot in range(SLOTS) if bits >> slot & 1}


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_has_the_slots_of_its_keys(codec: Codec) -> None:
    found = slots_of(batch(5, *KEYS, codec=codec), batch(10, b"c", codec=codec))
    assert (slots_in(found, 0), slots_in(found, 1)) == ({*expected(5, KEYS)}, {*expected(10, (b"c",))})
    last = expected(5, KEYS) | expected(10, (b"c",))
    assert list(found.last_offsets) == [last.get(slot, -1) for slot in range(SLOTS)]
    assert found.last_header == bytes(batch(10, b"c", codec=codec).buffer[:HEADER_SIZE])


def test_a_marker_has_all_slots() -> None:
    found = slots_of(batch(5, *KEYS), stored_marker(10, producer_id=1, is_commit=True))
    assert bytes(found.slot_maps[32:]) == ALL_SLOTS
    assert set(found.last_offsets) == {10}


@pytest.mark.parametrize("why", unreadable(0))
def test_a_batch_that_cannot_be_looked_at_has_all_slots_and_the_others_have_their_own(why: str) -> None:
    found = slots_of(batch(5, *KEYS), unreadable(10)[why], batch(15, b"c"))
    assert slots_in(found, 0) == {*expected(5, KEYS)}
    assert bytes(found.slot_maps[32:64]) == ALL_SLOTS
    assert slots_in(found, 2) == {*expected(15, (b"c",))}
    last = expected(15, (b"c",))
    assert list(found.last_offsets) == [last.get(slot, 14) for slot in range(SLOTS)]
    bad = unreadable(10)[why]
    assert last_match(bad.buffer, bad.header, KeyRange(7, 7), 99) == 14
    assert last_match(bad.buffer, bad.header, KeyRange(7, 7), 13) == 12
    assert last_match(bad.buffer, bad.header, KeyRange(7, 7), 10) == -1


@pytest.mark.parametrize("limits", [(1 << 20, 4), (80, 1_000)])
def test_a_batch_that_is_too_large_has_all_slots(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", batch_slots.BatchLimits(*limits))
    for codec in (Codec.NONE, Codec.ZSTD):
        found = slots_of(batch(5, *KEYS, codec=codec), batch(10, b"c", codec=codec))
        assert bytes(found.slot_maps[:32]) == ALL_SLOTS
        assert slots_in(found, 1) == {*expected(10, (b"c",))}


def test_an_emptied_batch_has_no_slot() -> None:
    for codec in (Codec.NONE, Codec.ZSTD):
        emptied = bytearray(batch(5, *KEYS, codec=codec).buffer[:HEADER_SIZE])
        emptied[11], emptied[60] = HEADER_SIZE - 12, 0
        seal(emptied)
        found = slots_of(AppendBatch(bytes(emptied), read_header(emptied)))
        assert (slots_in(found, 0), set(found.last_offsets)) == (set(), {-1})


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_last_match_is_that_of_the_hashes_below_the_offset(codec: Codec) -> None:
    stored = batch(100, *KEYS, codec=codec)
    hashes = [hash_of(key, 100 + at) for at, key in enumerate(KEYS)]
    ranges = [*(KeyRange(at, at) for at in hashes), KeyRange(hashes[0] + 1, hashes[0] + 2), EVERY]
    for wanted in ranges:
        for end in range(100, 110):
            best = max(
                (at for at in range(100, 105) if at < end and wanted.first <= hashes[at - 100] <= wanted.last),
                default=-1,
            )
            assert last_match(stored.buffer, stored.header, wanted, end) == best
    marker: Any = stored_marker(10, producer_id=1, is_commit=True)
    assert last_match(marker.buffer, marker.header, KeyRange(7, 7), 11) == 10
    assert last_match(marker.buffer, marker.header, KeyRange(7, 7), 10) == -1


def test_a_group_is_full_by_plain_bytes_or_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "GROUP_BYTES", 2_000)
    monkeypatch.setattr(batch_slots, "GROUP_BATCHES", 3)
    for codec, most in ((Codec.NONE, 1), (Codec.ZSTD, 1)):
        built = bytes(build_batch([Record(0, 1, b"a", bytes(3_000))], codec=codec))
        group = BatchGroup()
        group.add(built, read_header(built))
        assert group.is_full, (codec, most)
    group = BatchGroup()
    for offset in range(3):
        assert not group.is_full
        stored = batch(offset, b"a")
        group.add(stored.buffer, stored.header)
    assert group.is_full
