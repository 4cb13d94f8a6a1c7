"""Idempotent producers: what is appended, what is known already, what is refused (KIP-98)."""

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.records.batch import BatchHeader
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.storage import Duplicate, ProducerEntry, ProducerState
from tailrace.storage.producers import state as producer_state
from tailrace.storage.producers.entries import REMEMBERED_BATCHES, SequencedBatch
from tailrace.storage.producers.snapshot_format import encode_snapshot, parse_snapshot, snapshot_entries
from tailrace.storage.segment_files.transaction_index import CompletedTransaction
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

MAX_SEQUENCE = 2**31 - 1


def header(offset: int, sequence: int, *, count: int = 1, epoch: int = 0, **options: bool) -> BatchHeader:
    return stored_batch(
        offset,
        count,
        producer_id=5,
        producer_epoch=epoch,
        base_sequence=sequence,
        **options,  # type: ignore[arg-type]
    ).header


def state_of(*headers: BatchHeader) -> ProducerState:
    state = ProducerState()
    for each in headers:
        assert state.check(each) is None
        state.apply(each)
    return state


def refusal(state: ProducerState, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(batch)
    return caught.value.code


def test_sequences_go_on_and_a_gap_is_refused() -> None:
    state = state_of(header(0, 0, count=3), header(3, 3))
    assert state.check(header(4, 4)) is None
    assert refusal(state, header(4, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_log_remembers_so_many_producers_and_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that makes up producer ids must not fill the memory; known producers go on."""
    monkeypatch.setattr(producer_state, "MOST_PRODUCERS", 3)
    state = ProducerState()
    for producer_id in range(2):
        state.apply(stored_batch(producer_id, producer_id=producer_id).header)
    staged = stored_batch(2, producer_id=2).header
    assert state.check(staged) is None
    state.stage(staged)
    assert refusal(state, stored_batch(3, producer_id=3).header) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert state.check(stored_batch(3, producer_id=1, base_sequence=1).header) is None
    assert state.check(stored_batch(3).header) is None
    state.discard_staged()
    assert state.check(stored_batch(3, producer_id=3).header) is None


MINUTE_MS = 60_000


def crowded_state(monkeypatch: pytest.MonkeyPatch) -> ProducerState:
    """Four producers, where three are a crowd; the records are as old as an import of old data has them."""
    monkeypatch.setattr(producer_state, "CROWDED", 3)
    return state_of(*(stored_batch(number, producer_id=number).header for number in range(4)))


def test_a_crowded_log_forgets_producers_that_write_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own clock: the times of their records may be of any year."""
    state, now_ms = crowded_state(monkeypatch), FIRST_TIMESTAMP_MS
    for minutes in (0, 10):
        assert state.expire(now_ms + minutes * MINUTE_MS, expiration_ms=1_000 * MINUTE_MS) == 0
        state.apply(stored_batch(4 + minutes, producer_id=1, base_sequence=1 + minutes // 10).header)
    assert state.expire(now_ms + 20 * MINUTE_MS, expiration_ms=1_000 * MINUTE_MS) == 3
    assert list(state.producers) == [1], "one went on writing"


def test_a_crowded_log_forgets_no_producer_with_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    state = crowded_state(monkeypatch)
    state.apply(stored_batch(4, producer_id=9, is_transactional=True).header)
    state.stage(stored_batch(5, producer_id=2, base_sequence=1).header)
    state.expire(0, expiration_ms=10**15)
    assert state.expire(15 * MINUTE_MS, expiration_ms=10**15) == 3
    assert set(state.producers) == {2, 9}, "a staged batch is about to be written"


def test_a_log_that_is_not_crowded_forgets_no_producer_early(monkeypatch: pytest.MonkeyPatch) -> None:
    state = crowded_state(monkeypatch)
    state.expire(0, expiration_ms=10**15)
    monkeypatch.setattr(producer_state, "CROWDED", 5)
    assert state.expire(20 * MINUTE_MS, expiration_ms=10**15) == 0
    monkeypatch.setattr(producer_state, "CROWDED", 3)
    assert state.expire(25 * MINUTE_MS, expiration_ms=10**15) == 0, "silence counts from when it was crowded again"


def test_the_last_five_batches_are_known_and_an_older_one_is_out_of_order() -> None:
    state = state_of(*(header(10 * n, n) for n in range(7)))
    for n in range(2, 7):
        assert state.check(header(99, n)) == Duplicate(10 * n, 10 * n, FIRST_TIMESTAMP_MS + 10 * n)
    assert refusal(state, header(99, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeated_batch_of_another_size_is_no_duplicate() -> None:
    state = state_of(header(0, 0, count=3))
    assert refusal(state, header(3, 0, count=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_from_the_largest_to_zero() -> None:
    state = ProducerState()
    state.apply(header(0, MAX_SEQUENCE - 1, count=2))
    assert state.check(header(2, 0)) is None
    state.apply(header(2, 0))
    inside = state_of()
    inside.apply(header(0, MAX_SEQUENCE - 1, count=4))
    assert inside.check(header(4, 2)) is None
    assert inside.check(header(9, MAX_SEQUENCE - 1, count=4)) == Duplicate(0, 3, FIRST_TIMESTAMP_MS + 3)


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    state = state_of(header(0, 0, epoch=1))
    assert refusal(state, header(1, 1, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(1, 0, epoch=2)) is None
    state.apply(header(1, 0, epoch=2))
    assert refusal(state, header(2, 1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(header(2, 1, epoch=2)) is None


def test_an_unknown_producer_starts_anywhere_and_a_batch_without_producer_is_not_looked_at() -> None:
    state = ProducerState()
    assert state.check(header(0, 77)) is None
    plain = stored_batch(0).header
    assert state.check(plain) is None
    state.stage(plain)
    state.apply(plain)
    assert not state.has_staged
    assert len(state) == 0


def test_staged_batches_are_seen_and_count_only_when_they_are_applied() -> None:
    state = state_of(header(0, 0))
    state.stage(header(1, 1))
    assert state.check(header(9, 1)) == Duplicate(1, 1, FIRST_TIMESTAMP_MS + 1)
    assert state.check(header(2, 2)) is None
    state.discard_staged()
    assert state.check(header(1, 1)) is None
    state.stage(header(1, 1))
    state.apply_staged()
    assert state.check(header(2, 2)) is None
    assert not state.has_staged


MARKER = EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=3)


def is_repeated(
    state: ProducerState, header: BatchHeader, marker: EndTransactionMarker = MARKER, *, version: int = 0
) -> bool:
    return state.is_repeated(header, marker, transaction_version=version)


def marker_header(offset: int, *, epoch: int = 0) -> BatchHeader:
    return header(offset, 0, epoch=epoch, is_transactional=True, is_control=True)


def test_a_transaction_opens_with_its_first_batch_and_ends_with_its_marker() -> None:
    state = state_of(header(4, 0, is_transactional=True), header(5, 1, is_transactional=True))
    assert state.first_open_offset == 4
    assert state.is_in_transaction(5, 0)
    assert not state.is_in_transaction(5, 1)
    assert refusal(state, header(6, 2)) is ErrorCode.INVALID_TXN_STATE
    assert not is_repeated(state, marker_header(6))
    assert state.apply(marker_header(6), MARKER) == CompletedTransaction(5, 4, 6, False, 7)
    assert state.first_open_offset is None
    assert state.producers[5].coordinator_epoch == 3
    assert state.check(header(7, 2)) is None


def test_a_marker_of_an_older_producer_or_an_older_coordinator_is_refused() -> None:
    state = state_of(header(0, 0, epoch=3))
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        is_repeated(state, marker_header(1, epoch=2))
    state.apply(marker_header(1, epoch=3), MARKER)
    assert not is_repeated(state, marker_header(2, epoch=3)), "it has no number"
    with pytest.raises(KafkaError, match="TRANSACTION_COORDINATOR_FENCED"):
        is_repeated(state, marker_header(2, epoch=3), EndTransactionMarker(ControlType.ABORT, 2))
    state.check_offsets(header(2, 0, epoch=3, is_transactional=True))
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        state.check_offsets(header(2, 0, epoch=2, is_transactional=True))


def numbered(decision_offset: int, *, coordinator_epoch: int = 3) -> EndTransactionMarker:
    return EndTransactionMarker(ControlType.COMMIT, coordinator_epoch, decision_offset)


def test_a_marker_ends_the_transaction_that_it_was_written_for_and_no_other() -> None:
    """An older producer has one epoch for all its transactions; the numbers of their ends tell them apart."""
    state = state_of(header(0, 0, is_transactional=True))
    assert not is_repeated(state, marker_header(1), numbered(20))
    state.apply(marker_header(1), numbered(20))
    assert is_repeated(state, marker_header(2), numbered(20)), "nothing is open"
    assert is_repeated(state, marker_header(2), numbered(10))
    state.apply(header(2, 1, is_transactional=True))
    for old in (numbered(20), numbered(10)):
        with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
            is_repeated(state, marker_header(3), old)
    assert not is_repeated(state, marker_header(3), numbered(30))
    assert not is_repeated(state, marker_header(3), numbered(10, coordinator_epoch=4)), "of a later coordinator"
    assert not is_repeated(state, marker_header(3)), "Kafka and administrators give none"


def test_the_number_of_a_decision_does_not_fall_within_a_coordinator_epoch() -> None:
    state = state_of(header(0, 0, is_transactional=True))
    for marker, expected in ((numbered(20), 20), (MARKER, 20), (numbered(30), 30), (numbered(25), 30)):
        state.apply(marker_header(1), marker)
        assert state.producers[5].decision_offset == expected
    state.apply(header(2, 1, is_transactional=True))
    assert state.producers[5].decision_offset == 30
    state.apply(marker_header(3), numbered(7, coordinator_epoch=4))
    assert state.producers[5].decision_offset == 7


def test_a_marker_of_kip_890_is_above_the_epoch_of_its_transaction() -> None:
    """KIP-1228; the same epoch with nothing open is a repetition (KAFKA-19999)."""
    state = state_of(header(0, 0, is_transactional=True))
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        is_repeated(state, marker_header(1), version=2)
    assert not is_repeated(state, marker_header(1, epoch=1), version=2)
    state.apply(marker_header(1, epoch=1), MARKER)
    assert is_repeated(state, marker_header(2, epoch=1), version=2)
    state.apply(header(2, 0, epoch=1, is_transactional=True))
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        is_repeated(state, marker_header(3, epoch=1), version=2)


def test_a_snapshot_keeps_the_number_of_a_decision_where_kafka_does_not_look() -> None:
    state = state_of(header(0, 0, is_transactional=True), header(1, 1, is_transactional=True))
    state.apply(marker_header(2), numbered(20))
    data = encode_snapshot(state.producers)
    assert parse_snapshot(data)[5].decision_offset == 20
    *_, (producer_id, last) = snapshot_entries(data)
    assert (producer_id, last.producer_epoch, last.batches[0].last_offset) == (5, 0, 1), "Kafka takes the last one"


def test_a_marker_with_a_new_epoch_makes_the_producer_start_anew() -> None:
    """KIP-890: each transaction has an epoch of its own, so that nothing of the last one can arrive late."""
    state = state_of(header(0, 0, is_transactional=True))
    state.apply(marker_header(1, epoch=1), MARKER)
    assert refusal(state, header(2, 1, is_transactional=True)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(state, header(2, 1, epoch=1, is_transactional=True)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(2, 0, epoch=1, is_transactional=True)) is None


def test_a_marker_without_a_transaction_completes_nothing() -> None:
    state = state_of(header(0, 0))
    assert state.apply(marker_header(1), MARKER) is None
    assert not state.transactions


def test_a_transaction_is_late_when_its_producer_has_been_silent_for_too_long() -> None:
    """The coordinator should have ended the transaction: the oldest transaction holds readers back."""
    state = state_of(header(4, 0, is_transactional=True))
    state.apply(stored_batch(5, producer_id=6, is_transactional=True, first_timestamp=0).header)
    last_ms = FIRST_TIMESTAMP_MS + 4
    assert not state.has_late_transaction(last_ms + 100, late_ms=100)
    assert state.has_late_transaction(last_ms + 101, late_ms=100)
    state.apply(marker_header(6), MARKER)
    assert state.has_late_transaction(101, late_ms=100), "now the other transaction is the oldest"
    assert not ProducerState().has_late_transaction(last_ms, late_ms=0)


def test_silent_producers_are_forgotten_but_not_with_an_open_transaction() -> None:
    state = state_of(header(0, 0))
    state.apply(stored_batch(1, producer_id=6, is_transactional=True).header)
    later = FIRST_TIMESTAMP_MS + 1000
    assert state.expire(later, expiration_ms=1001) == 0
    assert state.expire(later, expiration_ms=999) == 1
    assert list(state.producers) == [6]


def test_a_snapshot_keeps_the_remembered_batches_of_each_producer() -> None:
    state = state_of(*(header(2 * number, 2 * number, count=2) for number in range(7)))
    again = ProducerState(parse_snapshot(encode_snapshot(state.producers)))
    assert again.producers == state.producers
    assert len(again.producers[5].batches) == REMEMBERED_BATCHES


def test_the_newest_entry_of_a_producer_stands_last_in_a_snapshot() -> None:
    """Kafka takes the last one of several and knows what it would have written itself."""
    state = state_of(header(0, 0), header(1, 1), header(2, 2))
    state.apply(stored_batch(3, producer_id=6, is_transactional=True).header)
    entries = list(snapshot_entries(encode_snapshot(state.producers)))
    assert [(producer_id, entry.batches[-1].last_offset) for producer_id, entry in entries] == [
        (5, 0),
        (5, 1),
        (5, 2),
        (6, 3),
    ]
    assert dict(entries)[5] == state.producers[5]._replace(batches=state.producers[5].batches[-1:])
    assert dict(entries)[6] == state.producers[6]


def test_a_snapshot_has_the_state_of_a_producer_beside_its_batches() -> None:
    state = state_of(header(0, 0, count=3), header(3, 3, count=2))
    state.apply(stored_batch(5, producer_id=6, base_sequence=MAX_SEQUENCE, count=2, is_transactional=True).header)
    state.apply(header(7, 0, epoch=4, is_control=True))
    again = ProducerState(parse_snapshot(encode_snapshot(state.producers)))
    timestamp = FIRST_TIMESTAMP_MS + 6
    assert again.producers[6] == ProducerEntry(
        0, (SequencedBatch(MAX_SEQUENCE, 0, 5, 6, timestamp),), timestamp, -1, current_txn_first_offset=5
    )
    assert again.producers[5] == ProducerEntry(4, (), FIRST_TIMESTAMP_MS + 7)
    assert encode_snapshot(again.producers) == encode_snapshot(state.producers)


def test_a_damaged_snapshot_is_refused_at_every_bit() -> None:
    data = encode_snapshot(state_of(header(0, 0)).producers)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(CorruptRecords):
            parse_snapshot(bytes(damaged))
    for cut in range(len(data)):
        with pytest.raises(CorruptRecords):
            parse_snapshot(data[:cut])


def test_markers_of_made_up_producers_are_not_remembered_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers are written all the same: a marker that is refused would keep its transaction open elsewhere."""
    monkeypatch.setattr(producer_state, "MOST_PRODUCERS", 3)
    state = ProducerState()
    markers = [stored_batch(n, producer_id=n, is_transactional=True, is_control=True).header for n in range(5)]
    for marker in markers:
        assert not is_repeated(state, marker)
        state.stage(marker, MARKER)
    assert [state.latest(n) is not None for n in range(5)] == [True, True, True, False, False]
    assert state.stages_transactions
    for marker in markers:
        assert state.apply(marker, MARKER) is None
    state.discard_staged()
    assert list(state.producers) == [0, 1, 2]


def test_the_marker_of_a_known_producer_ends_its_transaction_however_many_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "MOST_PRODUCERS", 1)
    state = state_of(header(0, 0, is_transactional=True))
    state.stage(marker_header(1), MARKER)
    assert not state.is_in_transaction(5, 0)
    assert state.apply(marker_header(1), MARKER) == CompletedTransaction(5, 0, 1, False, 2)
    assert state.first_open_offset is None
