"""Transactions in a compacted log: the aborted transactions that it names, and the records of committed readers."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from tailrace.protocol.records.batch import BatchHeader, iter_batches, read_header, seal
from tailrace.protocol.records.control import ControlType
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage import AbortedTxn, AppendBatch, Log, ReadLimits
from tailrace.storage.compaction.batch_filter import TransactionEnds
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch, stored_marker
from testkit.records.compaction import compact
from unit.storage.aborted_logs import CONFIG, abort, data, offsets_of, opened

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


@pytest.mark.parametrize("is_commit", [False, True])
def test_compaction_of_a_transaction_of_more_keys_than_the_memory_holds_takes_several_passes(
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


def test_compaction_reads_the_ends_of_transactions_once_for_all_passes(
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
def test_committed_readers_see_the_last_record_of_each_key_after_any_number_of_passes_of_compaction(
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


def compact_again(log: Log, now_ms: int) -> None:
    log.append([stored_batch(log.log_end_offset, value_bytes=380)])
    log.flush()
    assert compact(log, now_ms, end_offset=log.log_end_offset) is not None


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
