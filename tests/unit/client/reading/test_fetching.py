"""The bytes of a fetch that a reader may see."""

import pytest

from tailrace.client.reading.fetching import visible_batches
from tailrace.protocol.messages.fetch import AbortedTransaction
from tailrace.protocol.records.batch import HEADER_SIZE, seal
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.schema import Buffer


def _batch(base_offset: int, *values: bytes, producer_id: int = -1, is_control: bool = False) -> bytearray:
    records = [Record(0, 1, b"\0\0\0\0" if is_control else None, value) for value in values]
    return build_batch(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 and not is_control else -1,
        is_transactional=producer_id >= 0,
        is_control=is_control,
    )


def _values(stretches: list[Buffer]) -> list[bytes | None]:
    from tailrace.protocol.records.batch import iter_batches

    return [r.value for part in stretches for at, _ in iter_batches(part) for r in read_records(part, at)]


def test_ordinary_batches_are_one_stretch_and_are_not_copied() -> None:
    data = bytes(_batch(5, b"a", b"b") + _batch(7, b"c"))
    stretches, next_offset, *_ = visible_batches(data, 6, ())
    assert len(stretches) == 1
    assert isinstance(stretches[0], memoryview)
    assert stretches[0].obj is data
    assert (_values(stretches), next_offset) == ([b"a", b"b", b"c"], 8)


@pytest.mark.parametrize("missing", [1, 30, 60])
def test_an_incomplete_batch_at_the_end_is_left_for_the_next_fetch(missing: int) -> None:
    data = bytes(_batch(0, b"a") + _batch(1, b"b"))[:-missing]
    stretches, next_offset, *_ = visible_batches(data, 0, ())
    assert (_values(stretches), next_offset) == ([b"a"], 1)


def test_control_batches_are_passed_over_but_move_the_position() -> None:
    data = bytes(_batch(0, b"a") + _batch(1, b"", producer_id=9, is_control=True))
    stretches, next_offset, *_ = visible_batches(data, 0, ())
    assert (_values(stretches), next_offset) == ([b"a"], 2)


def test_an_aborted_transaction_is_hidden_up_to_its_marker_and_no_further() -> None:
    data = bytes(
        _batch(0, b"committed", producer_id=8)
        + _batch(1, b"aborted", producer_id=9)
        + _batch(2, b"other", producer_id=8)
        + _batch(3, b"", producer_id=9, is_control=True)
        + _batch(4, b"next transaction", producer_id=9)
    )
    aborted = (AbortedTransaction(producer_id=9, first_offset=1),)
    stretches, next_offset, *_ = visible_batches(data, 0, aborted)
    assert (_values(stretches), next_offset) == ([b"committed", b"other", b"next transaction"], 5)


def test_a_marker_that_compaction_has_emptied_ends_no_transaction() -> None:
    """A cleaner keeps a producer's last batch without its record, as the place of its last sequence number."""
    emptied = _batch(1, b"", producer_id=9, is_control=True)[:HEADER_SIZE]
    emptied[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    emptied[HEADER_SIZE - 4 :] = bytes(4)
    seal(emptied)
    data = bytes(_batch(0, b"aborted", producer_id=9) + emptied + _batch(2, b"other"))
    stretches, next_offset, *_ = visible_batches(data, 0, (AbortedTransaction(producer_id=9, first_offset=0),))
    assert (_values(stretches), next_offset) == ([b"other"], 3)


def test_a_gap_is_stepped_over() -> None:
    stretches, next_offset, *_ = visible_batches(bytes(_batch(100, b"late")), 5, ())
    assert (_values(stretches), next_offset) == ([b"late"], 101)
