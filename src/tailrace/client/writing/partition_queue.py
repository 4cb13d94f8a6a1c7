"""The outgoing batches of one partition, from the first record to the last answer. Pure.

A batch is open (accepts records) -> waiting -> in flight -> done, or back to retrying and in flight again. These
invariants make an idempotent producer write each record once and in order (KIP-98):

1. A batch gets its sequence numbers before its first attempt, and keeps them in every retry.
2. While a batch is retrying, no other batch is sent before it, and it is sent alone.
3. A failed batch leaves a gap in the numbers. So no batch is sent until all batches in flight are answered, and the
   queue starts again at number 0 under the next epoch.
4. The first batch under an epoch is sent alone: a broker accepts any number from an unknown producer, and if the
   second batch reached the broker first, the first batch could not be written any more.
5. A batch that may have been written never gets other numbers, which could write it twice. If a gap forbids the old
   numbers, the batch fails.
6. A restarted broker remembers the last batch only, and refuses earlier batches as out of order when they are sent
   again. These batches are in doubt until the next batch is answered: numbers have no gaps, so if the next batch is
   written, the earlier ones are written too.
"""

from collections import deque
from enum import Enum, auto

from tailrace.client.transactions.producer_transaction import Identity
from tailrace.client.writing.outgoing import OutgoingBatch
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition

MAX_IN_FLIGHT = 5
"""Batches of one partition. A broker remembers this many, and recognises repetitions of them (KIP-98)."""

_MAX_EPOCH = 0x7FFF


class BatchOutcome(Enum):
    """The consequence of an answer for a batch."""

    DONE = auto()
    RETRY = auto()
    """Unknown whether written: send it again under the same sequence numbers."""
    BEHIND = auto()
    """The batch is not written, because an earlier batch was not written: send the batch again after the earlier
    batch."""
    DOUBT = auto()
    """Written if the next batch is: wait for the answer to the next batch."""
    RENEW = auto()
    """Retry under another producer id: the broker has refused this id, and has not written the batch."""
    FAIL = auto()
    """The batch is not written."""
    GIVE_UP = auto()
    """Unknown for ever whether the batch was written."""


class PartitionQueue:
    """The batches and sequence numbers of a partition."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.open: OutgoingBatch | None = None
        self.waiting: deque[OutgoingBatch] = deque()
        self.retrying: list[OutgoingBatch] = []
        self.in_flight: list[OutgoingBatch] = []
        self.doubtful: list[OutgoingBatch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.must_renew = False
        self.not_before_ms = 0
        """The earliest time of the next attempt, after a failed attempt."""
        self.most_in_flight = 1
        """The limit of batches in flight now: one until a batch of the epoch is written (invariant 4)."""
        self.may_grow = True
        """Whether a waiting batch may grow beyond batch.size; False after the broker has refused a batch as too
        large."""
        self._last_written = -1
        """The number of the last batch written under this epoch, -1 for none."""
        self._has_lost_track = False
        """Whether a failed batch may have been written: then the answers do not tell which of the later batches in
        doubt are written."""

    @property
    def is_empty(self) -> bool:
        return not (self.open or self.waiting or self.retrying or self.in_flight or self.doubtful)

    def can_send(self, now_ms: int, linger_ms: int) -> bool:
        """Whether `take` would give a batch now."""
        if now_ms < self.not_before_ms:
            return False
        if self.retrying or self.must_renew:
            return not self.in_flight and bool(self.retrying or self._has_ready(now_ms, linger_ms))
        return len(self.in_flight) < self.most_in_flight and self._has_ready(now_ms, linger_ms)

    def _has_ready(self, now_ms: int, linger_ms: int) -> bool:
        return bool(self.waiting) or (self.open is not None and now_ms - self.open.created_at_ms >= linger_ms)

    def take(self, identity: Identity | None) -> OutgoingBatch:
        """The next batch to send, now in flight. `identity` is the producer's, None without idempotence."""
        if self.must_renew:
            self._renew()
        if self.retrying:
            batch = self.retrying.pop(0)
        else:
            if not self.waiting:
                self.seal_open()
            batch = self.waiting.popleft()
        batch.close()
        if identity is not None and batch.identity is None:
            if self.identity is None:
                self.identity, self.next_sequence = identity, 0
            batch.number_records(self.identity, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.count) & 0x7FFFFFFF
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def _renew(self) -> None:
        """Start again at sequence number 0 under the next epoch, or under another id if this id is refused."""
        assert not self.in_flight, "sequence numbers change only while no batch is in flight"
        self.must_renew = self._has_lost_track = False
        self.next_sequence = 0
        self.most_in_flight = 1
        self._last_written = -1
        if self.identity is not None:
            epoch = self.identity.producer_epoch
            self.identity = Identity(self.identity.producer_id, epoch + 1) if epoch < _MAX_EPOCH else None
        for batch in self.retrying:
            batch.identity = None
            batch.may_be_written = False

    def seal_open(self) -> None:
        """Add no more records to the open batch."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def restart(self) -> None:
        """Begin again under another producer id: the cluster is another cluster, which has no batch of this queue."""
        if self.identity is not None:
            self.identity = None
            self.must_renew = True
            self.retrying = sorted([*self.doubtful, *self.retrying], key=lambda each: each.number)
            self.doubtful.clear()

    # answers

    def verdict(self, batch: OutgoingBatch, code: ErrorCode) -> BatchOutcome:
        """The consequence of this answer for a batch in flight (KIP-98, KIP-360)."""
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return BatchOutcome.DONE
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.identity is not None:
            return self._out_of_order(batch)
        if code in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
            return BatchOutcome.RENEW if batch.identity is not None and not self.doubtful else BatchOutcome.FAIL
        if not code.retriable:
            return BatchOutcome.FAIL
        return BatchOutcome.GIVE_UP if self._has_lost_track else BatchOutcome.RETRY

    def _out_of_order(self, batch: OutgoingBatch) -> BatchOutcome:
        if batch.number < self._last_written:
            return BatchOutcome.DONE
        is_first = all(batch.number <= other.number for other in (*self.in_flight, *self.retrying))
        if self.must_renew or not is_first:
            return BatchOutcome.GIVE_UP if self._has_lost_track and batch.is_in_doubt else BatchOutcome.BEHIND
        if not batch.is_in_doubt:
            return BatchOutcome.FAIL  # the broker has lost records that it had acknowledged: report it
        return BatchOutcome.DOUBT if self.retrying else BatchOutcome.GIVE_UP

    def settle(self, batch: OutgoingBatch, verdict: BatchOutcome, *, not_before_ms: int) -> list[OutgoingBatch]:
        """Apply the verdict to a batch in flight. Returns the batches that are complete now, all with this verdict."""
        self.in_flight.remove(batch)
        match verdict:
            case BatchOutcome.DONE:
                self.most_in_flight = MAX_IN_FLIGHT
                self._last_written = max(self._last_written, batch.number)
                completed = [*self.doubtful, batch]
                self.doubtful.clear()
                return completed
            case BatchOutcome.FAIL if not self.doubtful:
                self._leave_gap(batch)
                return [batch]
            case BatchOutcome.FAIL | BatchOutcome.GIVE_UP:
                return self._give_up([batch])
            case BatchOutcome.DOUBT:
                self.doubtful.append(batch)
                return []
        self._try_again(batch, verdict, not_before_ms)
        return []

    def can_split(self, batch: OutgoingBatch) -> bool:
        """Whether a batch that is too large for the broker can be split.

        A batch of one record and a prebuilt batch cannot, and a batch in doubt keeps its numbers (invariant 5).
        """
        return len(batch.completions) > 1 and not batch.may_be_written and not self.doubtful

    def split(self, batch: OutgoingBatch) -> None:
        """Send the halves of a batch in flight that the broker refused as too large."""
        self.in_flight.remove(batch)
        batch.split()
        self.may_grow = False
        self.retrying = sorted([*self.retrying, *batch.halves], key=lambda each: each.number)

    def _try_again(self, batch: OutgoingBatch, verdict: BatchOutcome, not_before_ms: int) -> None:
        self.not_before_ms = not_before_ms
        self.retrying.append(batch)
        self.retrying.sort(key=lambda each: each.number)
        if verdict is BatchOutcome.RETRY:
            batch.may_be_written = True
        elif verdict is BatchOutcome.RENEW and self.identity is not None and batch.identity == self.identity:
            self.identity = None
            self.must_renew = True

    def _leave_gap(self, batch: OutgoingBatch) -> None:
        if batch.identity is not None and batch.identity == self.identity:
            self.must_renew = True

    def _give_up(self, batches: list[OutgoingBatch]) -> list[OutgoingBatch]:
        """Fail these batches and, if they have sequence numbers, all batches in doubt too (invariant 5)."""
        for batch in batches:
            self._leave_gap(batch)
        if not self.must_renew:
            return batches
        self._has_lost_track = True
        completed = [*batches, *(each for each in (*self.doubtful, *self.retrying) if each.is_in_doubt)]
        self.doubtful.clear()
        self.retrying = [batch for batch in self.retrying if not batch.is_in_doubt]
        return sorted(completed, key=lambda each: each.number)

    # time

    def expire(self, now_ms: int) -> list[OutgoingBatch]:
        """Remove and return the batches past delivery.timeout.ms that are not in flight."""
        late = [batch for batch in (*self.doubtful, *self.retrying) if batch.deadline_ms <= now_ms]
        if late:
            self.doubtful = [batch for batch in self.doubtful if batch not in late]
            self.retrying = [batch for batch in self.retrying if batch not in late]
            late = self._give_up(late)
        while self.waiting and self.waiting[0].deadline_ms <= now_ms:
            late.append(self.waiting.popleft())
        if self.open is not None and self.open.deadline_ms <= now_ms:
            late.append(self.open)
            self.open = None
        return late

    def next_deadline_ms(self, now_ms: int, linger_ms: int) -> int | None:
        """The next time after now at which a batch may be due. A batch that is due already waits for an answer."""
        times = [self.not_before_ms]
        times += [batch.deadline_ms for batch in (*self.doubtful[:1], *self.retrying[:1])]
        if self.waiting:
            times.append(self.waiting[0].deadline_ms)
        if self.open is not None:
            times += (self.open.created_at_ms + linger_ms, self.open.deadline_ms)
        return min((time for time in times if time > now_ms), default=None)
