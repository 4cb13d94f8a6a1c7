"""The load of a coordinator: a read of the partition's checkpoint, if there is a checkpoint, and of the log behind the
checkpoint, in slices.

1. Committed records are applied, in order. The records of a checkpoint are applied only when the whole checkpoint was
   read: a damaged checkpoint is dropped without an effect, and the log is read from its start.
2. A slice takes a few milliseconds of a turn of the event loop.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tailrace.model.errors import KafkaError
from tailrace.protocol.records.control import EndTransactionMarker
from tailrace.protocol.records.record import Record
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import run_slice
from tailrace.server.coordination.log_batches import CommittedBatches, SavedRecords
from tailrace.server.ports import Clock

R = TypeVar("R")

Decode = Callable[[Record, int], R | None]
"""Makes the machine's record from a log record and the id of the producer in whose transaction it was written (-1: no
transaction). None: the log record is skipped."""
OnMarker = Callable[[int, EndTransactionMarker], None]
"""Called with a producer id and the end of a transaction of that producer."""

_SLICE_BYTES = 64 * 1024
"""The bytes of the log for each turn: some hundred records, a few milliseconds."""


class _Applying(Generic[R]):
    """Applies each record of the log at once."""

    def __init__(self, decode: Decode[R], apply: Callable[[R], object], on_marker: OnMarker) -> None:
        self._decode = decode
        self._apply = apply
        self.on_marker = on_marker

    def on_record(self, record: Record, producer_id: int, producer_epoch: int) -> None:
        decoded = self._decode(record, producer_id)
        if decoded is not None:
            self._apply(decoded)


class Load(Generic[R]):
    """A load, from `begin` to the call of `on_done` or `on_failed`, or to `close`."""

    def __init__(
        self,
        partition: Partition,
        *,
        clock: Clock,
        decode: Decode[R],
        apply: Callable[[R], object],
        on_marker: OnMarker,
        on_done: Callable[[], None],
        on_failed: Callable[[KafkaError], None],
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._decode = decode
        self._apply = apply
        self._on_done = on_done
        self._on_failed = on_failed
        self._log_records = _Applying(decode, apply, on_marker)
        self._end_offset = partition.log.log_end_offset
        self._saved = SavedRecords(partition)
        self._batches = CommittedBatches(partition, partition.log.log_start_offset)
        self._is_closed = False
        self.from_offset = self._batches.offset
        """The offset from which the log is read: behind a checkpoint, or the log start."""

    def begin(self) -> None:
        """Read the committed records of the present log; no callback is called before `begin` has returned."""
        steps = self._checkpoint_steps()

        def slice_() -> None:
            if self._is_closed:
                return
            is_over = run_slice(steps, self._clock)
            self._clock.call_soon(self._read_log if is_over else slice_)

        self._clock.call_soon(slice_ if self._saved.are_there else self._read_log)

    def _checkpoint_steps(self) -> Iterator[None]:
        decoded: list[R] = []
        is_whole = yield from self._saved.read(_Applying(self._decode, decoded.append, _no_marker))
        if not is_whole:
            return
        for record in decoded:
            self._apply(record)
            yield
        self._batches.offset = self.from_offset = self._saved.end_offset

    def _read_log(self) -> None:
        if self._is_closed:
            return
        batches = self._batches
        try:
            if batches.offset < self._end_offset:
                batches.read(_SLICE_BYTES, self._log_records)
        except KafkaError as fault:
            self.close()
            self._on_failed(fault)
            return
        if batches.offset >= self._end_offset:
            self.close()
            self._on_done()
        else:
            # The waiter is called at once if the next slice is committed already.
            self._partition.replica.when_high_watermark_reaches(batches.offset + 1, self._go_on)

    def _go_on(self, failure: KafkaError | None) -> None:
        if failure is None:
            self._clock.call_soon(self._read_log)

    def close(self) -> None:
        """End the load; no callback is called any more. A second call does nothing."""
        self._is_closed = True
        self._saved.close()


def _no_marker(producer_id: int, marker: EndTransactionMarker) -> None:
    raise AssertionError(f"a checkpoint has a marker of {producer_id}: {marker}")
