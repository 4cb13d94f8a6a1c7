"""The note of the last deleted offset of each slot, as a value."""

import pytest

from tailrace.storage.keys.deleted_offsets import NONE_DELETED, STORED_BYTES, DeletedOffsets, from_file, to_file


def last(**slots: int) -> tuple[int, ...]:
    """The last offsets of some slots: s3=7 is offset 7 of slot 3."""
    return tuple(slots.get(f"s{slot}", -1) for slot in range(256))


NOTE = DeletedOffsets(5, 90, last(s0=10, s3=89, s255=40), unsplit=50, read_ms=1_234)


def test_the_stored_form_of_a_note_is_read_back() -> None:
    assert len(NOTE.to_bytes()) == STORED_BYTES
    assert DeletedOffsets.from_bytes(NOTE.to_bytes()) == NOTE
    assert DeletedOffsets.from_bytes(memoryview(DeletedOffsets(0, 0).to_bytes())) == DeletedOffsets(0, 0)


@pytest.mark.parametrize("position", [0, 4, 5, 8, 16, 40, STORED_BYTES - 1])
def test_a_note_with_a_wrong_byte_is_none(position: int) -> None:
    data = bytearray(NOTE.to_bytes())
    data[position] ^= 1
    assert DeletedOffsets.from_bytes(data) is None
    assert DeletedOffsets.from_bytes(NOTE.to_bytes()[:position]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        NOTE._replace(known_from=91),
        NOTE._replace(known_from=-1),
        NOTE._replace(unsplit=90),
        NOTE._replace(last_offsets=last(s7=90)),
        NOTE._replace(last_offsets=last(s7=-2)),
    ],
)
def test_a_note_that_contradicts_itself_is_none(wrong: DeletedOffsets) -> None:
    assert DeletedOffsets.from_bytes(wrong.to_bytes()) is None


def test_slots_start_behind_their_last_deleted_record() -> None:
    assert [NOTE.start_in(0, 0), NOTE.start_in(0, 3), NOTE.start_in(4, 255), NOTE.start_in(1, 2)] == [11, 90, 41, 5]
    assert [NOTE.last_in(0, 0), NOTE.last_in(1, 2)] == [10, -1]


def test_a_deletion_adds_to_a_note() -> None:
    more = NOTE.with_more(120, last(s0=99, s3=-1, s7=110), 49)
    assert more == NOTE._replace(known_to=120, last_offsets=last(s0=99, s3=89, s7=110, s255=40))
    assert NOTE.with_more(120, NONE_DELETED, 115).unsplit == 115


def test_notes_of_replicas_that_join_know_all_that_both_know() -> None:
    other = DeletedOffsets(90, 200, last(s0=150), unsplit=20, read_ms=99)
    together = DeletedOffsets(5, 200, last(s0=150, s3=89, s255=40), unsplit=50, read_ms=1_234)
    assert NOTE.merged(other) == other.merged(NOTE) == together


def test_between_notes_that_do_not_join_nothing_is_known() -> None:
    other = DeletedOffsets(91, 200, last(s0=150))
    assert NOTE.merged(other).known_from == other.merged(NOTE).known_from == 91
    assert NOTE.merged(other).last_in(3, 3) == 89, "that record is gone in any case"


def test_a_note_that_is_older_than_a_deletion_knows_nothing_of_the_deletion() -> None:
    assert NOTE.fitted(90, 95) == NOTE
    assert NOTE.fitted(60, 90) == NOTE
    older = NOTE.fitted(100, 130)
    assert older == NOTE._replace(known_from=100, known_to=100)
    assert [older.start_in(3, 3), older.last_in(3, 3)] == [100, 89]


def test_a_note_of_a_deletion_that_did_not_happen_is_taken_back() -> None:
    back = NOTE.fitted(20, 60)
    assert back == DeletedOffsets(60, 60, last(s0=10, s255=40), unsplit=50, read_ms=1_234)
    assert NOTE._replace(last_offsets=last(s0=10)).fitted(20, 60).known_from == 5, "nothing had to be taken back"
    assert NOTE.fitted(0, 0) == DeletedOffsets(0, 0, read_ms=1_234)


BEFORE = DeletedOffsets(5, 40, last(s0=10, s3=22), unsplit=30)
"""The note before the deletion after which `NOTE` holds."""


@pytest.mark.parametrize(
    ("first_offset", "log_start_offset", "expected"),
    [
        (90, 90, NOTE),
        (90, 95, NOTE),
        (40, 95, NOTE),  # the log start is above segments that are still there
        (40, 40, BEFORE),
        (40, 89, BEFORE),
        (60, 60, NOTE.fitted(60, 60)),
        (100, 130, NOTE.fitted(100, 130)),
        (20, 30, BEFORE.fitted(20, 30)),
    ],
)
def test_a_file_has_the_note_of_the_start_before_a_deletion_and_of_the_start_after_it(
    first_offset: int, log_start_offset: int, expected: DeletedOffsets
) -> None:
    content = to_file(NOTE, BEFORE)
    assert from_file(content, first_offset=first_offset, log_start_offset=log_start_offset) == expected


def test_a_file_without_a_deletion_has_one_note() -> None:
    content = to_file(NOTE, NOTE)
    assert content == NOTE.to_bytes()
    assert from_file(content, first_offset=90, log_start_offset=90) == NOTE


@pytest.mark.parametrize("length", [0, 1, STORED_BYTES - 1])
def test_a_file_without_a_note_says_nothing(length: int) -> None:
    assert from_file(NOTE.to_bytes()[:length], first_offset=7, log_start_offset=9) == DeletedOffsets(7, 7)
