"""Only the first batch of a producer's transaction needs a verification by the coordinator (KIP-890)."""

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.batch import BatchHeader
from tailrace.replication import verification
from tailrace.replication.verification import UNVERIFIED, Verifications
from tailrace.storage import ProducerState
from testkit.records.batches import stored_batch


def first(sequence: int = 0, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return stored_batch(
        0, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    ).header


def refusal(verifications: Verifications, header: BatchHeader, by: verification.Verification | None) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        verifications.check(header, ProducerState(), by)
    return caught.value.code


def test_a_batch_without_a_verification_is_refused() -> None:
    verifications = Verifications()
    assert refusal(verifications, first(), None) is ErrorCode.INVALID_TXN_STATE
    verifications.check(first(), ProducerState(), UNVERIFIED)


def test_a_verification_is_good_until_it_ends() -> None:
    verifications = Verifications()
    granted = verifications.begin(first(), adds_partition=False)
    verifications.check(first(), ProducerState(), granted)
    verifications.end(7)
    assert refusal(verifications, first(), granted) is ErrorCode.INVALID_TXN_STATE
    again = verifications.begin(first(), adds_partition=False)
    assert again is not granted
    assert refusal(verifications, first(), granted) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("adds_partition", "marker_epoch", "is_good"),
    [(False, 1, False), (True, 1, True), (True, 0, True), (True, 2, False)],
    ids=["of the transaction that ends", "of the next one", "of a later one", "of one that is over"],
)
def test_a_marker_ends_the_verifications_before_it(adds_partition: bool, marker_epoch: int, is_good: bool) -> None:
    """With KIP-890 the marker has the epoch of the next transaction."""
    verifications = Verifications()
    granted = verifications.begin(first(epoch=1), adds_partition=adds_partition)
    verifications.end_by_marker(7, marker_epoch)
    if is_good:
        verifications.check(first(epoch=1), ProducerState(), granted)
    else:
        assert refusal(verifications, first(epoch=1), granted) is ErrorCode.INVALID_TXN_STATE
    verifications.end_by_marker(8, marker_epoch)


def test_waiting_batches_are_answered_in_order() -> None:
    begun = Verifications().begin(first(), adds_partition=False)
    outcomes: list[tuple[str, KafkaError | None]] = []
    begun.wait(lambda error: outcomes.append(("a", error)))
    begun.wait(lambda error: outcomes.append(("b", error)))
    begun.is_sent = True
    refused = KafkaError(ErrorCode.INVALID_TXN_STATE)
    begun.answer(refused)
    assert outcomes == [("a", refused), ("b", refused)]
    assert not begun.is_sent
    begun.answer(None)
    assert len(outcomes) == 2


def test_a_batch_that_cannot_be_the_first_is_refused() -> None:
    """The batch before it, which came earlier, was not written."""
    verifications = Verifications()
    granted = verifications.begin(first(5), adds_partition=False)
    verifications.begin(first(3), adds_partition=False)
    verifications.check(first(3), ProducerState(), granted)
    assert refusal(verifications, first(5), granted) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_whose_partitions_are_added_starts_at_0() -> None:
    verifications = Verifications()
    granted = verifications.begin(first(2), adds_partition=True)
    assert refusal(verifications, first(2), granted) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    known = ProducerState()
    known.apply(first())
    verifications.check(first(2), known, granted)


def test_a_newer_epoch_takes_the_place_of_an_older_one() -> None:
    verifications = Verifications()
    old = verifications.begin(first(epoch=1), adds_partition=False)
    new = verifications.begin(first(epoch=2), adds_partition=False)
    assert refusal(verifications, first(epoch=1), old) is ErrorCode.INVALID_TXN_STATE
    assert refusal(verifications, first(epoch=1), new) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        verifications.begin(first(epoch=1), adds_partition=False)


def test_so_many_producers_may_begin_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MOST_PRODUCERS", 2)
    verifications = Verifications()
    for producer_id in (1, 2, 2):
        verifications.begin(first(producer_id=producer_id), adds_partition=False)
    with pytest.raises(KafkaError, match="THROTTLING_QUOTA_EXCEEDED"):
        verifications.begin(first(producer_id=3), adds_partition=False)
    verifications.end(1)
    verifications.begin(first(producer_id=3), adds_partition=False)


def test_a_producer_that_began_and_then_was_silent_is_forgotten() -> None:
    verifications = Verifications()
    for producer_id in (1, 2, 3):
        verifications.begin(first(producer_id=producer_id), adds_partition=False)
    begun = verifications.begin(first(producer_id=3), adds_partition=False)
    begun.is_sent = True
    verifications.forget_idle()
    again = verifications.begin(first(producer_id=2), adds_partition=False)
    verifications.forget_idle()
    assert len(verifications) == 2
    assert verifications.begin(first(producer_id=2), adds_partition=False) is again
    assert verifications.begin(first(producer_id=3), adds_partition=False) is begun
