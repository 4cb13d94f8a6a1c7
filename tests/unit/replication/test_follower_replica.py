import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import seal, stamp
from tailrace.replication.follower_replica import MissingOffsets, replicated_batches
from testkit.nodes.data_path import batch_of


def sent(*batches: tuple[int, int, int]) -> bytearray:
    """Batches as a leader sends them: (base offset, records, leader epoch)."""
    made = bytearray()
    for base_offset, count, epoch in batches:
        batch = bytearray(batch_of(*(b"value" for _ in range(count))))
        stamp(batch, 0, base_offset, epoch)
        made += batch
    return made


def taken(
    records: bytes | bytearray,
    *,
    end: int = 10,
    latest: int = 3,
    leader: int = 5,
    gaps: bool = False,
    empty: bool = False,
) -> list[int]:
    found = replicated_batches(
        records, end_offset=end, latest_epoch=latest, leader_epoch=leader, may_have_gaps=gaps, is_empty=empty
    )
    assert all(bytes(batch.buffer) in bytes(records) for batch in found), "bytes are written as they are"
    return [batch.header.base_offset for batch in found]


def test_batches_that_continue_the_log_are_taken_as_they_are() -> None:
    assert taken(sent((10, 2, 3), (12, 1, 3), (13, 3, 5))) == [10, 12, 13]
    assert taken(b"") == []


def test_an_incomplete_batch_at_the_end_is_left_out() -> None:
    assert taken(sent((10, 2, 3), (12, 1, 3))[:-1]) == [10]


def test_batches_that_the_log_has_are_left_out() -> None:
    assert taken(sent((8, 2, 3), (10, 1, 3))) == [10]


@pytest.mark.parametrize(
    "records",
    [
        sent((11, 1, 3)),
        sent((9, 2, 3)),
        sent((10, 1, 3), (12, 1, 3)),
        sent((10, 1, 3), (10, 1, 3)),
        sent((10, 1, 2)),
        sent((10, 1, 6)),
        sent((10, 1, 4), (11, 1, 3)),
    ],
    ids=["a gap", "half known", "a gap later", "twice", "an epoch that was over", "an epoch to come", "an epoch falls"],
)
def test_a_batch_that_does_not_continue_the_log_is_refused(records: bytearray) -> None:
    with pytest.raises(CorruptRecords):
        taken(records)


def test_every_byte_below_the_checksum_counts() -> None:
    records = sent((10, 2, 3))
    for position in range(21, len(records)):
        damaged = bytearray(records)
        damaged[position] ^= 1
        with pytest.raises(CorruptRecords):
            taken(damaged)
    seal(records)
    assert taken(records) == [10]


def test_a_gap_is_told_from_damage_by_where_it_ends() -> None:
    with pytest.raises(MissingOffsets, match="offset 15, where 11") as gap:
        taken(sent((10, 1, 3), (15, 1, 3)))
    assert gap.value.base_offset == 15


def test_a_compacted_log_may_have_gaps() -> None:
    assert taken(sent((15, 1, 3), (20, 2, 5)), gaps=True) == [15, 20]
    with pytest.raises(CorruptRecords):
        taken(sent((15, 1, 3), (14, 1, 3)), gaps=True)


def test_an_empty_log_may_begin_within_a_batch() -> None:
    """DeleteRecords has moved the leader's log start there."""
    assert taken(sent((8, 1, 3), (9, 3, 3), (12, 1, 3)), empty=True) == [9, 12]
    assert taken(sent((10, 1, 3)), empty=True) == [10]
    with pytest.raises(CorruptRecords, match="offset 11, where 12"):
        taken(sent((9, 3, 3), (11, 2, 3)), empty=True)
