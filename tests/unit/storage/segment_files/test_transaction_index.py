"""The aborted transactions of a segment: its bytes, look-ups, and the file through the life of a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage import AbortedTxn
from tailrace.storage.segment_files.transaction_index import ENTRY_SIZE, TransactionIndex, aborted_transactions
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch, stored_marker
from unit.storage.aborted_logs import DIRECTORY, FIRST_FILE, abort, data, offsets_of, opened


def index_of(*aborted: AbortedTxn) -> TransactionIndex:
    index = TransactionIndex()
    for each in aborted:
        index.append(each)
    return index


A, B, C = (
    AbortedTxn(7, first_offset=0, last_offset=4, last_stable_offset=2),
    AbortedTxn(8, first_offset=2, last_offset=5, last_stable_offset=6),
    AbortedTxn(7, first_offset=6, last_offset=9, last_stable_offset=10),
)


def test_a_transaction_index_has_the_bytes_of_kafkas() -> None:
    """version int16, producer id, first offset, last offset and last stable offset int64, big-endian."""
    assert index_of(A).to_bytes().hex() == "0000" + "0000000000000007" + "00" * 8 + "0000000000000004" + "0" * 15 + "2"
    assert list(aborted_transactions(index_of(A, B).to_bytes())) == [A, B]


def test_a_look_up_in_a_transaction_index_ends_where_later_transactions_cannot_concern_it() -> None:
    index = index_of(A, B, C)
    assert index.collect(0, end_offset=2) == ([A], True)
    assert index.collect(0, end_offset=3) == ([A, B], True)
    assert index.collect(5, end_offset=6) == ([B], True)
    assert index.collect(6, end_offset=20) == ([C], False)
    assert index.collect(10, end_offset=20) == ([], False)


@given(
    lengths=st.lists(st.integers(1, 30), max_size=600),
    offset=st.integers(0, 700),
    size=st.integers(1, 300),
)
def test_a_look_up_in_a_transaction_index_finds_the_same_as_a_full_scan(
    lengths: list[int], offset: int, size: int
) -> None:
    markers = list(range(1, 1 + len(lengths)))
    entries = [
        AbortedTxn(at, max(marker - length, 0), marker, 0)  # as if a transaction were open from the start
        for at, (marker, length) in enumerate(zip(markers, lengths, strict=True))
    ]
    index = index_of(*entries)
    wanted = [each for each in entries if each.last_offset >= offset and each.first_offset < offset + size]
    assert index.collect(offset, end_offset=offset + size) == (wanted, False)


def test_a_truncated_transaction_index_ends_before_the_offset() -> None:
    index = index_of(A, B, C)
    index.truncate(6)
    assert list(index) == [A, B]
    index.truncate(5)
    assert list(index) == [A]
    assert index.collect(0, end_offset=9) == ([A], False)


def test_a_transaction_index_does_not_enter_a_marker_twice() -> None:
    assert list(index_of(A, B, B, A)) == [A, B]


def test_a_transaction_index_refuses_a_marker_of_another_segment() -> None:
    with pytest.raises(CorruptRecords):
        TransactionIndex.from_bytes(index_of(A).to_bytes(), base_offset=5)


def test_a_log_finds_the_abort_marker_of_a_transaction_in_a_later_segment(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0)])
    log.append([stored_batch(1, value_bytes=300)])
    log.append([stored_batch(2, value_bytes=300), abort(3)])
    assert log.segment_count > 2
    assert log.aborted_transactions(0, 1) == [AbortedTxn(7, 0, 3, 4)]


@pytest.mark.parametrize(
    "data",
    [
        index_of(A).to_bytes()[:-1],
        index_of(B).to_bytes() + index_of(A).to_bytes(),
        b"\x00\x01" + index_of(A).to_bytes()[2:],
        index_of(A._replace(first_offset=5)).to_bytes(),
        index_of(A, C._replace(last_stable_offset=1)).to_bytes(),
    ],
)
def test_bytes_that_cannot_be_a_transaction_index_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecords):
        TransactionIndex.from_bytes(data, base_offset=0)


def test_a_roll_and_a_close_of_the_log_write_the_transaction_index_file(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), abort(1)])
    assert not disk.exists(FIRST_FILE)
    log.append([data(2, sequence=1, value_bytes=300)])
    assert log.segment_count == 2
    assert list(aborted_transactions(disk.read_bytes(FIRST_FILE))) == [AbortedTxn(7, 0, 1, 2)]
    log.append([abort(3)])
    log.close()
    (last,) = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".txnindex") and name not in FIRST_FILE]
    assert list(aborted_transactions(disk.read_bytes(f"{DIRECTORY}/{last}"))) == [AbortedTxn(7, 2, 3, 4)]


def test_the_transaction_index_file_goes_with_its_segment(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1, value_bytes=300), abort(3)])
    log.flush()
    log.advance_log_start(2)
    log.retention.apply(0, 3)
    assert disk.exists(FIRST_FILE + ".deleted")
    log.retention.apply(1, 3)
    assert not disk.exists(FIRST_FILE + ".deleted")
    assert log.aborted_transactions(2, 4) == [AbortedTxn(7, 2, 3, 4)]


def test_a_log_without_aborted_transactions_has_no_transaction_index_file(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), stored_marker(1, producer_id=7, is_commit=True), data(2, sequence=1, value_bytes=300)])
    log.close()
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".txnindex")]


def test_a_log_that_is_cut_back_into_an_older_segment_keeps_its_aborted_transactions(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1)])
    log.append([stored_batch(3, value_bytes=300), abort(4)])
    log.close()
    log = opened(disk, recovery_point=5, clean=True)
    log.truncate_to(2)
    assert log.aborted_transactions(0, 2) == [AbortedTxn(7, 0, 1, 2)]
    log.close()
    assert opened(disk, recovery_point=2, clean=True).aborted_transactions(0, 2) == [AbortedTxn(7, 0, 1, 2)]


@pytest.mark.parametrize("damage", [b"", b"x" * 7, b"\x00" * ENTRY_SIZE])
def test_a_damaged_transaction_index_file_is_made_anew(disk: SimulatedDisk, damage: bytes) -> None:
    """An index that is empty or gone says that nothing was aborted: it is durable before anything relies on it."""
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1, value_bytes=300)])
    log.close()
    disk.open(FIRST_FILE, create=True).writev([damage])
    log = opened(disk, recovery_point=3, clean=True)
    assert log.aborted_transactions(0, 3) == ([AbortedTxn(7, 0, 1, 2)] if damage else [])
    log.close()


@pytest.mark.parametrize("good_reads", range(4))
def test_a_damaged_transaction_index_file_that_cannot_be_rebuilt_does_not_pass_for_a_rebuilt_file(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, good_reads: int
) -> None:
    """Otherwise readers of committed data would be given what an aborted transaction wrote."""
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1), abort(3), data(4, sequence=2, value_bytes=300)])
    log.close()
    disk.open(FIRST_FILE, create=True).writev([b"x" * 7])
    log = opened(disk, recovery_point=5, clean=True)
    left = good_reads
    begin_read = disk.begin_read

    def read_some(path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0 and path != FIRST_FILE:
            raise StorageError(f"cannot read {path}: Input/output error")
        begin_read(path)

    with monkeypatch.context() as unreadable:
        unreadable.setattr(disk, "begin_read", read_some)
        with pytest.raises(StorageError):
            log.aborted_transactions(0, 4)
    assert log.aborted_transactions(0, 4) == [AbortedTxn(7, 0, 1, 2), AbortedTxn(7, 2, 3, 4)]


def test_recovery_finds_the_aborted_transactions_of_every_segment_it_checks(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1, value_bytes=300), abort(3)])
    log.flush()
    disk.unlink(FIRST_FILE)
    log = opened(disk)
    wanted = [AbortedTxn(7, 0, 1, 2), AbortedTxn(7, 2, 3, 4)]
    assert log.aborted_transactions(0, 4) == wanted
    log.close()
    assert opened(disk, recovery_point=4, clean=True).aborted_transactions(0, 4) == wanted


def test_recovery_does_not_trust_the_transaction_index_file_of_a_roll_without_a_flush(disk: SimulatedDisk) -> None:
    """The recovery point is where the next segment begins: nothing of the one before is checked but this."""
    log = opened(disk)
    log.append([data(0), abort(1)])
    log.flush()
    recovery_point = log.flushed_offset
    log.append([data(2, sequence=1, value_bytes=300)])
    disk.open(FIRST_FILE, create=True).close()  # its name came through the power cut, its bytes did not
    log = opened(disk, recovery_point=recovery_point)
    assert log.aborted_transactions(0, 2) == [AbortedTxn(7, 0, 1, 2)]
    log.close()
    assert len(aborted_in(disk)) == 1


def aborted_in(disk: SimulatedDisk) -> list[AbortedTxn]:
    return list(aborted_transactions(disk.read_bytes(FIRST_FILE)))


def test_an_append_that_cannot_read_the_aborted_transactions_leaves_the_log_as_it_was(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(disk)
    log.append([data(0), abort(1)])
    log.close()
    log = opened(disk, recovery_point=2, clean=True)
    before = log.size_bytes, dict(log.producers.producers), log.epochs.entries

    read = disk.read_bytes

    def read_most(path: str) -> bytes:
        if path == FIRST_FILE:
            raise StorageError(f"cannot read {path}: Input/output error")
        return read(path)

    with monkeypatch.context() as unreadable:
        unreadable.setattr(disk, "read_bytes", read_most)
        with pytest.raises(StorageError):
            log.append([data(2, sequence=1), abort(3)])
    assert (log.size_bytes, log.producers.producers, log.epochs.entries) == before
    log.append([data(2, sequence=1), abort(3)])
    assert offsets_of(log) == [0, 1, 2, 3]
    log.flush()
    assert opened(disk).recovery.cut_reason == ""


def test_an_append_that_meets_a_damaged_transaction_index_file_is_refused_for_the_disk(disk: SimulatedDisk) -> None:
    """And not as if its producer had sent something that is damaged."""
    log = opened(disk)
    log.append([data(0), abort(1)])
    log.close()
    disk.open(FIRST_FILE, create=True).writev([b"x" * 7])
    log = opened(disk, recovery_point=2, clean=True)
    disk.flip_bit(FIRST_FILE.replace("txnindex", "log"), 8, 7)
    with pytest.raises(StorageError, match=r"00\.log at position 0"):
        log.append([data(2, sequence=1), abort(3)])
    assert not log.is_offline
