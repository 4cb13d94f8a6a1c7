"""The aborted transactions of a segment: its bytes, look-ups, and the file through the life of a log."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, iter_batches, read_header, seal
from tailrace.protocol.records.control import ControlType
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage import AbortedTxn, AppendBatch, Log, ReadLimits
from tailrace.storage.compaction.batch_filter import TransactionEnds
from tailrace.storage.segment_files.transaction_index import ENTRY_SIZE, TransactionIndex, aborted_transactions
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch, stored_marker
from testkit.records.compaction import compact

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=400, retention_ms=-1, file_delete_delay_ms=0)
FIRST_FILE = f"{DIRECTORY}/00000000000000000000.txnindex"


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


def test_the_bytes_are_kafkas() -> None:
    """version int16, producer id, first offset, last offset and last stable offset int64, big-endian."""
    assert index_of(A).to_bytes().hex() == "0000" + "0000000000000007" + "00" * 8 + "0000000000000004" + "0" * 15 + "2"
    assert list(aborted_transactions(index_of(A, B).to_bytes())) == [A, B]


def test_a_look_up_ends_where_later_transactions_cannot_concern_it() -> None:
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
def test_a_look_up_finds_the_same_as_a_full_scan(lengths: list[int], offset: int, size: int) -> None:
    markers = list(range(1, 1 + len(lengths)))
    entries = [
        AbortedTxn(at, max(marker - length, 0), marker, 0)  # as if a transaction were open from the start
        for at, (marker, length) in enumerate(zip(markers, lengths, strict=True))
    ]
    index = index_of(*entries)
    wanted = [each for each in entries if each.last_offset >= offset and each.first_offset < offset + size]
    assert index.collect(offset, end_offset=offset + size) == (wanted, False)


def test_a_truncated_index_ends_before_the_offset() -> None:
    index = index_of(A, B, C)
    index.truncate(6)
    assert list(index) == [A, B]
    index.truncate(5)
    assert list(index) == [A]
    assert index.collect(0, end_offset=9) == ([A], False)


def test_a_marker_that_is_known_is_not_entered_twice() -> None:
    assert list(index_of(A, B, B, A)) == [A, B]


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
def test_bytes_that_cannot_be_an_index_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecords):
        TransactionIndex.from_bytes(data, base_offset=0)


def test_a_marker_of_another_segment_is_refused() -> None:
    with pytest.raises(CorruptRecords):
        TransactionIndex.from_bytes(index_of(A).to_bytes(), base_offset=5)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(seed=3)
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return disk


def opened(disk: SimulatedDisk, config: TopicConfig = CONFIG, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=0, recovery_point=recovery_point, clean=clean)


def data(offset: int, producer_id: int = 7, *, sequence: int = 0, value_bytes: int = 20) -> AppendBatch:
    return stored_batch(
        offset, producer_id=producer_id, base_sequence=sequence, is_transactional=True, value_bytes=value_bytes
    )


def abort(offset: int, producer_id: int = 7) -> AppendBatch:
    return stored_marker(offset, producer_id=producer_id, is_commit=False)


def test_the_file_is_written_when_the_segment_is_rolled_and_when_the_log_is_closed(disk: SimulatedDisk) -> None:
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


def test_a_log_without_aborted_transactions_has_no_such_file(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), stored_marker(1, producer_id=7, is_commit=True), data(2, sequence=1, value_bytes=300)])
    log.close()
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".txnindex")]


def test_the_file_goes_with_its_segment(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1, value_bytes=300), abort(3)])
    log.flush()
    log.advance_log_start(2)
    log.retention.apply(0, 3)
    assert disk.exists(FIRST_FILE + ".deleted")
    log.retention.apply(1, 3)
    assert not disk.exists(FIRST_FILE + ".deleted")
    assert log.aborted_transactions(2, 4) == [AbortedTxn(7, 2, 3, 4)]


def test_a_marker_in_a_later_segment_is_found(disk: SimulatedDisk) -> None:
    log = opened(disk)
    log.append([data(0)])
    log.append([stored_batch(1, value_bytes=300)])
    log.append([stored_batch(2, value_bytes=300), abort(3)])
    assert log.segment_count > 2
    assert log.aborted_transactions(0, 1) == [AbortedTxn(7, 0, 3, 4)]


@pytest.mark.parametrize("damage", [b"", b"x" * 7, b"\x00" * ENTRY_SIZE])
def test_a_damaged_file_is_made_anew(disk: SimulatedDisk, damage: bytes) -> None:
    """An index that is empty or gone says that nothing was aborted: it is durable before anything relies on it."""
    log = opened(disk)
    log.append([data(0), abort(1), data(2, sequence=1, value_bytes=300)])
    log.close()
    disk.open(FIRST_FILE, create=True).writev([damage])
    log = opened(disk, recovery_point=3, clean=True)
    assert log.aborted_transactions(0, 3) == ([AbortedTxn(7, 0, 1, 2)] if damage else [])
    log.close()


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


def test_an_index_file_of_a_roll_without_a_flush_is_not_trusted(disk: SimulatedDisk) -> None:
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


@pytest.mark.parametrize("good_reads", range(4))
def test_a_damaged_file_that_cannot_be_rebuilt_does_not_pass_for_a_rebuilt_one(
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


def test_an_append_that_meets_damage_of_the_logs_own_files_is_refused_for_the_disk(disk: SimulatedDisk) -> None:
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


COMPACTED = replace(CONFIG, cleanup_policy=("compact",), delete_retention_ms=1000)


def compacted(disk: SimulatedDisk, *batches: AppendBatch, now_ms: int = FIRST_TIMESTAMP_MS) -> Log:
    log = opened(disk, COMPACTED)
    for batch in batches:
        log.append([batch])
    log.append([stored_batch(log.log_end_offset, value_bytes=380)])
    log.flush()
    assert compact(log, now_ms, end_offset=log.log_end_offset) is not None
    return log


def test_a_compacted_log_names_the_aborted_transactions_that_have_batches_left(disk: SimulatedDisk) -> None:
    """The last batch of a producer stays, emptied; and the marker, or it would end the producer's next transaction."""
    log = compacted(disk, data(0), stored_batch(1), abort(2))
    assert log.aborted_transactions(0, 3) == [AbortedTxn(7, 0, 2, 3)]
    log.close()
    log = opened(disk, COMPACTED, recovery_point=log.log_end_offset, clean=True)
    assert log.aborted_transactions(0, 3) == [AbortedTxn(7, 0, 2, 3)]


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_transaction_of_more_keys_than_the_memory_holds_is_compacted_in_several_passes(
    disk: SimulatedDisk, is_commit: bool
) -> None:
    """The end of a transaction is known before its first key: no key waits in memory for it."""
    log = opened(disk, COMPACTED)
    for key in range(40):
        log.append([keyed(log.log_end_offset, b"%d" % key, in_transaction=False)])
    for key in range(40):
        log.append([keyed(log.log_end_offset, b"%d" % key, in_transaction=True)])
    marker = stored_marker(log.log_end_offset, producer_id=7, is_commit=is_commit)
    log.append([marker, stored_batch(marker.header.end_offset, value_bytes=380)])
    log.flush()
    ends = []
    for _ in range(40):
        compaction = compact(log, FIRST_TIMESTAMP_MS, end_offset=log.log_end_offset, memory_bytes=2000)
        if compaction is None:
            break
        ends.append(compaction.end_offset)
    assert sum(40 < end < marker.header.base_offset for end in ends) >= (2 if is_commit else 0)
    assert ends == sorted(set(ends))
    assert log.compactions.first_dirty_offset > marker.header.base_offset
    assert records_below(log, marker.header.base_offset) == list(range(40, 80) if is_commit else range(40))


def test_the_ends_of_transactions_are_read_once_for_all_passes(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a pass would read on to the end of the dirty part, however few keys it has room for."""
    log = opened(disk, COMPACTED)
    for number in range(40):
        log.append([keyed(log.log_end_offset, b"%d" % number, in_transaction=True)])
        log.append([stored_marker(log.log_end_offset, producer_id=7, is_commit=number % 2 == 0)])
    log.append([stored_batch(80, value_bytes=380)])
    log.flush()
    learned: list[int] = []
    add = TransactionEnds.add

    def note(ends: TransactionEnds, header: BatchHeader, marker: ControlType | None) -> None:
        learned.append(header.base_offset)
        add(ends, header, marker)

    monkeypatch.setattr(TransactionEnds, "add", note)
    passes = 0
    while compact(log, FIRST_TIMESTAMP_MS, end_offset=log.log_end_offset, memory_bytes=500) is not None:
        passes += 1
    assert passes > 3
    assert learned == list(range(log.compactions.first_dirty_offset))


@pytest.mark.parametrize("seed", range(40))
def test_committed_readers_see_the_last_record_of_each_key_after_any_number_of_passes(
    disk: SimulatedDisk, seed: int
) -> None:
    """Passes that the memory ends, transactions that the plan cuts in two, and a log that is cut in between."""
    random = Random(seed)
    log = opened(disk, COMPACTED)
    written: dict[int, tuple[int, bytes]] = {}
    """By offset: producer (-1: no transaction) and key."""
    ends: list[tuple[int, int, bool]] = []
    begun: dict[int, int] = {}
    sequences = dict.fromkeys((-1, 7, 8, 9), 0)
    for _ in range(6):
        for _ in range(random.randrange(5, 40)):
            offset, producer_id = log.log_end_offset, random.choice((-1, 7, 8, 9))
            if producer_id in begun and random.random() < 0.4:
                is_commit = random.random() < 0.5
                log.append([stored_marker(offset, producer_id=producer_id, is_commit=is_commit)])
                ends.append((producer_id, begun.pop(producer_id), is_commit))
                for at in [at for at in range(ends[-1][1], offset) if written.get(at, (-1,))[0] == producer_id]:
                    written[at] = (-1, written[at][1])
                    if not is_commit:
                        del written[at]
                continue
            key = b"%d" % random.randrange(60)
            log.append([keyed(offset, key, producer_id=producer_id, sequence=sequences[producer_id])])
            sequences[producer_id] += 1
            written[offset] = (producer_id, key)
            if producer_id >= 0:
                begun.setdefault(producer_id, offset)
        log.flush()
        for _ in range(random.randrange(6)):
            compact(log, FIRST_TIMESTAMP_MS, end_offset=log.log_end_offset, memory_bytes=random.choice((500, 2000)))
        if random.random() < 0.2:
            log.compactions.abort()
    for producer_id in sorted(begun):
        log.append([stored_marker(log.log_end_offset, producer_id=producer_id, is_commit=True)])
    log.append([stored_batch(log.log_end_offset, value_bytes=380)])
    log.flush()
    while compact(log, FIRST_TIMESTAMP_MS, end_offset=log.log_end_offset, memory_bytes=2000) is not None:
        pass
    end_offset = log.compactions.first_dirty_offset
    last = {key: offset for offset, (_, key) in sorted(written.items()) if offset < end_offset}
    assert committed(log, end_offset) == sorted(last.values())


def committed(log: Log, end_offset: int) -> list[int]:
    """The offsets of the records that a reader of committed data gets."""
    aborted = log.aborted_transactions(0, end_offset)
    found: list[int] = []
    for content in batches_below(log, end_offset):
        header = read_header(content)
        is_hidden = any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset < each.last_offset
            for each in aborted
        )
        if not header.is_control and not is_hidden:
            found += [record.offset for record in read_records(content)]
    return found


def records_below(log: Log, end_offset: int) -> list[int]:
    """The offsets of the records that are left, markers not counted."""
    return [record.offset for content in batches_below(log, end_offset) for record in read_records(content)]


def batches_below(log: Log, end_offset: int) -> Iterator[bytes]:
    """Yields the batches that are left."""
    offset = 0
    while (result := log.read(ReadLimits(offset, 1), end_offset)).size_bytes:
        content = b"".join(result.records)
        yield from (content[at : at + header.size_bytes] for at, header in iter_batches(content))
        offset = result.next_offset


def keyed(
    offset: int, key: bytes, *, in_transaction: bool = True, producer_id: int = 7, sequence: int | None = None
) -> AppendBatch:
    in_transaction = in_transaction and producer_id >= 0
    buffer = build_batch(
        [Record(0, FIRST_TIMESTAMP_MS, key, b"v")],
        base_offset=offset,
        leader_epoch=0,
        producer_id=producer_id if in_transaction else -1,
        producer_epoch=0 if in_transaction else -1,
        base_sequence=(offset if sequence is None else sequence) if in_transaction else -1,
        is_transactional=in_transaction,
    )
    return AppendBatch(bytes(buffer), read_header(buffer))


def test_a_log_cut_into_a_gap_keeps_the_aborted_transactions_of_the_segment_before_it(disk: SimulatedDisk) -> None:
    log = compacted(disk, data(0), abort(1), stored_batch(2), stored_batch(3), stored_batch(4))
    assert log.read(ReadLimits(2, 1000)).first_offset > 2, "there is a gap now"
    log.truncate_to(3)
    log.close()
    log = opened(disk, COMPACTED, recovery_point=0, clean=True)
    assert log.aborted_transactions(0, 2) == [AbortedTxn(7, 0, 1, 2)]


def test_a_compacted_log_forgets_an_aborted_transaction_before_its_marker_goes(disk: SimulatedDisk) -> None:
    """Otherwise a reader would wait for the marker, and leave out the producer's next transaction meanwhile."""
    now_ms = FIRST_TIMESTAMP_MS
    commit = stored_marker(4, producer_id=7, is_commit=True)
    log = compacted(disk, data(0), abort(1), stored_batch(2), data(3, sequence=1), commit, now_ms=now_ms)
    for round_ in range(3):
        assert 1 in offsets_of(log), f"the marker is there in round {round_}"
        assert len(log.aborted_transactions(0, 4)) == (1 if round_ == 0 else 0)
        now_ms += 600
        compact_again(log, now_ms)
    assert 1 not in offsets_of(log)
    assert log.aborted_transactions(0, 4) == []


def compact_again(log: Log, now_ms: int) -> None:
    log.append([stored_batch(log.log_end_offset, value_bytes=380)])
    log.flush()
    assert compact(log, now_ms, end_offset=log.log_end_offset) is not None


def offsets_of(log: Log) -> list[int]:
    """The base offsets of all batches."""
    found, offset = [], log.log_start_offset
    while (result := log.read(ReadLimits(offset, 1))).size_bytes:
        found.append(result.first_offset)
        offset = result.next_offset
    return found


def test_an_aborted_batch_that_compaction_cannot_read_stays_hidden(disk: SimulatedDisk) -> None:
    """The batch was sent before the topic was compacted; only its checksum is right."""
    unreadable = bytearray(data(0).buffer)
    unreadable[61:] = b"\xff" * (len(unreadable) - 61)
    seal(unreadable)
    log = compacted(disk, AppendBatch(bytes(unreadable), data(0).header), abort(1), data(2, sequence=1), abort(3))
    compact_again(log, FIRST_TIMESTAMP_MS + 5000)
    compact_again(log, FIRST_TIMESTAMP_MS + 9000)
    assert offsets_of(log)[:2] == [0, 1]
    assert log.aborted_transactions(0, 2)[0] == AbortedTxn(7, 0, 1, 2)
