"""Batches of a partition: their sequence numbers, and the outcome of each answer."""

from concurrent.futures import Future
from typing import Any

import pytest

from tailrace.client.transactions.producer_transaction import Identity
from tailrace.client.writing.outgoing import OutgoingBatch
from tailrace.client.writing.partition_queue import MAX_IN_FLIGHT, BatchOutcome, PartitionQueue
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import crc_is_valid, read_header
from tailrace.protocol.records.record import BatchBuilder

PARTITION = TopicPartition("orders", 0)
IDENTITY = Identity(7, 0)
LOST = ErrorCode.NETWORK_EXCEPTION
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Queue:
    """A queue with batches of one record each, and the outcomes of sent batches."""

    def __init__(self, batches: int, *, identity: Identity | None = IDENTITY) -> None:
        self.queue = PartitionQueue(PARTITION)
        self.identity = identity
        self.outcomes: list[tuple[int, BatchOutcome]] = []
        for number in range(batches):
            self.add(number)

    def add(self, number: int, *, deadline_ms: int = 1_000) -> None:
        builder = BatchBuilder()
        builder.append(1_000, None, b"%d" % number)
        batch = OutgoingBatch(PARTITION, builder, number, 0, deadline_ms)
        batch.count = 1
        batch.completions.append(Future())
        batch.timestamps.append(1_000)
        self.queue.waiting.append(batch)

    def take(self, count: int = 1) -> list[OutgoingBatch]:
        taken = []
        for _ in range(count):
            assert self.queue.can_send(100, 0), [batch.number for batch in self.queue.in_flight]
            taken.append(self.queue.take(self.identity))
        return taken

    def answer(self, batch: OutgoingBatch, code: ErrorCode) -> BatchOutcome:
        verdict = self.queue.verdict(batch, code)
        self.outcomes += [(each.number, verdict) for each in self.queue.settle(batch, verdict, not_before_ms=0)]
        return verdict

    def begun(self, *, in_flight: int) -> list[OutgoingBatch]:
        """Batches in flight, after a first batch that is written, so that the broker knows the producer."""
        (first,) = self.take()
        self.answer(first, ErrorCode.NONE)
        self.outcomes.clear()
        return self.take(in_flight)


def test_sequence_numbers_follow_on_from_batch_to_batch() -> None:
    queue = Queue(4)
    assert [read_header(batch.payload).base_sequence for batch in queue.begun(in_flight=3)] == [1, 2, 3]


def test_sequence_numbers_wrap_to_zero() -> None:
    queue = Queue(3)
    queue.begun(in_flight=0)
    queue.queue.next_sequence = 0x7FFFFFFF
    assert [batch.base_sequence for batch in queue.take(2)] == [0x7FFFFFFF, 0]


def test_the_first_batch_is_alone_on_its_way_until_the_broker_knows_the_producer() -> None:
    queue = Queue(3)
    (first,) = queue.take()
    assert not queue.queue.can_send(100, 0)
    queue.answer(first, ErrorCode.NONE)
    queue.take(2)


def test_at_most_five_batches_are_in_flight() -> None:
    queue = Queue(MAX_IN_FLIGHT + 2)
    queue.begun(in_flight=MAX_IN_FLIGHT)
    assert not queue.queue.can_send(100, 0)


def test_a_retry_keeps_its_numbers_and_goes_alone_before_all_others() -> None:
    queue = Queue(5)
    first, second = queue.begun(in_flight=2)
    queue.queue.settle(first, BatchOutcome.RETRY, not_before_ms=150)
    assert not queue.queue.can_send(200, 0), "the second is still in flight"
    queue.queue.settle(second, BatchOutcome.RETRY, not_before_ms=150)
    assert not queue.queue.can_send(149, 0)
    assert queue.queue.can_send(150, 0)
    again = queue.queue.take(IDENTITY)
    assert (again, again.base_sequence) == (first, 1)
    assert not queue.queue.can_send(200, 0), "a retry is alone on its way"
    queue.queue.settle(again, BatchOutcome.DONE, not_before_ms=0)
    assert queue.queue.take(IDENTITY) is second


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, BatchOutcome.DONE),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, BatchOutcome.DONE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, BatchOutcome.RETRY),
        (ErrorCode.REQUEST_TIMED_OUT, BatchOutcome.RETRY),
        (ErrorCode.UNKNOWN_PRODUCER_ID, BatchOutcome.RENEW),
        (ErrorCode.INVALID_PRODUCER_EPOCH, BatchOutcome.RENEW),
        (ErrorCode.MESSAGE_TOO_LARGE, BatchOutcome.FAIL),
        (OUT_OF_ORDER, BatchOutcome.FAIL),
    ],
)
def test_the_outcome_of_each_error_for_the_first_batch_in_flight(code: ErrorCode, verdict: BatchOutcome) -> None:
    queue = Queue(1)
    assert queue.answer(queue.take()[0], code) is verdict


def test_a_batch_behind_one_that_failed_is_out_of_order_only_for_now() -> None:
    queue = Queue(3)
    first, second = queue.begun(in_flight=2)
    queue.answer(first, LOST)
    assert queue.answer(second, OUT_OF_ORDER) is BatchOutcome.BEHIND


def test_records_lost_by_the_broker_fail_although_later_batches_wait() -> None:
    """The first batch would be out of order for ever: to repeat it would only hold back the other batches."""
    queue = Queue(3)
    first, second = queue.begun(in_flight=2)
    assert queue.answer(second, OUT_OF_ORDER) is BatchOutcome.BEHIND
    assert queue.answer(first, OUT_OF_ORDER) is BatchOutcome.FAIL


def test_after_a_batch_given_up_the_partition_starts_again_at_zero_in_the_next_epoch() -> None:
    queue = Queue(4)
    first, second = queue.begun(in_flight=2)
    queue.answer(first, ErrorCode.MESSAGE_TOO_LARGE)
    assert not queue.queue.can_send(200, 0), "the numbers change only when nothing is on its way"
    queue.answer(second, OUT_OF_ORDER)
    (again,) = queue.take()
    header = read_header(again.payload)
    assert again is second
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 0)
    assert crc_is_valid(again.payload, 0, header)
    queue.answer(again, ErrorCode.NONE)
    assert queue.take()[0].base_sequence == 1


def test_an_id_the_broker_refuses_is_replaced_and_the_batch_is_sent_under_the_new_one() -> None:
    queue = Queue(1)
    (batch,) = queue.take()
    queue.answer(batch, ErrorCode.UNKNOWN_PRODUCER_ID)
    again = queue.queue.take(Identity(8, 0))
    assert (again.identity, again.base_sequence) == (Identity(8, 0), 0)


def test_batches_unknown_to_a_restarted_broker_are_written_if_the_next_one_is() -> None:
    """A restarted broker knows only each producer's last batch: a repetition of an earlier one looks like a gap."""
    queue = Queue(5)
    sent = queue.begun(in_flight=4)
    for batch in sent:
        queue.answer(batch, LOST)
    assert [queue.answer(queue.take()[0], OUT_OF_ORDER) for _ in range(3)] == [BatchOutcome.DOUBT] * 3
    assert queue.outcomes == []
    assert queue.answer(queue.take()[0], ErrorCode.NONE) is BatchOutcome.DONE
    assert queue.outcomes == [(number, BatchOutcome.DONE) for number in (1, 2, 3, 4)]
    assert queue.queue.is_empty


def test_a_producers_batch_is_written_if_a_later_batch_is() -> None:
    queue = Queue(3)
    first, second = queue.begun(in_flight=2)
    queue.answer(second, ErrorCode.NONE)
    queue.answer(first, LOST)
    assert queue.answer(queue.take()[0], OUT_OF_ORDER) is BatchOutcome.DONE


def test_batches_in_doubt_are_given_up_if_no_later_one_was_written() -> None:
    queue = Queue(4)
    for batch in queue.begun(in_flight=3):
        queue.answer(batch, LOST)
    for _ in range(2):
        queue.answer(queue.take()[0], OUT_OF_ORDER)
    assert queue.answer(queue.take()[0], OUT_OF_ORDER) is BatchOutcome.GIVE_UP
    assert queue.outcomes == [(number, BatchOutcome.GIVE_UP) for number in (1, 2, 3)]


def test_a_batch_in_doubt_is_never_sent_under_other_numbers() -> None:
    """The first batch expires, perhaps written: the second may be written too, and a retry would write it twice."""
    queue = Queue(1)
    queue.add(1, deadline_ms=500)
    queue.add(2, deadline_ms=2_000)
    queue.add(3, deadline_ms=2_000)
    first, second = queue.begun(in_flight=2)
    queue.answer(first, LOST)
    queue.answer(second, LOST)
    assert [batch.number for batch in queue.queue.expire(500)] == [1, 2]
    (third,) = queue.take()
    assert (third.number, third.identity, third.base_sequence) == (3, Identity(7, 1), 0)


def test_later_batches_in_doubt_fail_with_an_expired_one() -> None:
    queue = Queue(1)
    queue.add(1, deadline_ms=500)
    queue.add(2, deadline_ms=2_000)
    queue.add(3, deadline_ms=2_000)
    first, second, third = queue.begun(in_flight=3)
    queue.answer(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    queue.queue.expire(500)
    assert queue.answer(second, LOST) is BatchOutcome.GIVE_UP
    assert queue.answer(third, OUT_OF_ORDER) is BatchOutcome.BEHIND, "the third batch is not written"


def test_another_cluster_gets_every_batch_under_a_new_producer_id() -> None:
    queue = Queue(3)
    first, second = queue.begun(in_flight=2)
    queue.answer(first, LOST)
    queue.queue.restart()
    queue.answer(second, LOST)
    queue.identity = Identity(9, 0)
    again = queue.take()[0]
    assert (again, again.identity, again.base_sequence) == (first, Identity(9, 0), 0)
    queue.answer(again, ErrorCode.NONE)
    assert queue.take()[0].base_sequence == 1


def test_without_idempotence_a_retry_keeps_the_order_and_nothing_is_numbered() -> None:
    queue = Queue(3, identity=None)
    first, second = queue.begun(in_flight=2)
    queue.answer(first, LOST)
    assert queue.answer(second, ErrorCode.NONE) is BatchOutcome.DONE
    again = queue.take()[0]
    assert (again, again.base_sequence) == (first, -1)
    assert queue.queue.expire(5_000) == []
    assert queue.answer(again, OUT_OF_ORDER) is BatchOutcome.FAIL


def test_the_halves_of_a_batch_that_is_too_large_take_its_place_and_its_numbers() -> None:
    queue = Queue(2)
    (_,) = queue.begun(in_flight=1)
    builder = BatchBuilder()
    for number in range(3):
        builder.append(1_000 + number, None, b"%d" % number)
    large = OutgoingBatch(PARTITION, builder, 100, 0, 1_000)
    large.count, large.cost, large.timestamps = 3, 100, [1_000, 1_001, 1_002]
    completions: list[Future[Any]] = [Future(), Future(), Future()]
    large.completions = [*completions]
    queue.queue.waiting.append(large)
    queue.add(200)
    _, behind = queue.take(2)
    assert queue.queue.can_split(large)
    queue.queue.split(large)
    assert queue.answer(behind, OUT_OF_ORDER) is BatchOutcome.BEHIND
    assert not queue.queue.can_send(100, 0), "one before it is still on its way"
    queue.answer(queue.queue.in_flight[0], ErrorCode.NONE)
    sent = []
    while queue.queue.can_send(100, 0):
        (batch,) = queue.take()
        sent.append((read_header(batch.payload).base_sequence, batch.count, batch.cost))
        assert crc_is_valid(batch.payload, 0, read_header(batch.payload))
        assert large.is_complete == (batch is behind)
        batch.succeed(10, -1)
        queue.answer(batch, ErrorCode.NONE)
    assert sent == [(2, 1, 33), (3, 2, 67), (5, 1, 0)]
    assert large.is_complete
    assert [completion.result().timestamp for completion in completions] == [1_000, 1_001, 1_002]


def test_a_batch_in_doubt_is_not_split() -> None:
    queue = Queue(1)
    (batch,) = queue.take()
    assert not queue.queue.can_split(batch), "it is one record"
    batch.completions *= 2
    assert queue.queue.can_split(batch)
    queue.answer(batch, LOST)
    (again,) = queue.take()
    assert not queue.queue.can_split(again)
