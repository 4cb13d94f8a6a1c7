"""The read of one partition of a fetch: its answer, and the facts by which a fetch waits or ends its wait.

A plain read, a read of key ranges and a read of a view have the same kinds of outcomes (`replication.outcomes`), and
the same code makes their answers.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER
from tailrace.model.key_ranges import KeyRange
from tailrace.protocol.messages.fetch import (
    AbortedTransaction,
    DivergingEpoch,
    LeaderIdAndEpoch,
    PartitionData,
    WireKeyRange,
)
from tailrace.protocol.schema import Buffer, positional
from tailrace.replication.outcomes import READ_COMMITTED, NotLeader, PartitionRead, PendingRead
from tailrace.replication.partition import Partition
from tailrace.server.fetch.budget import FetchBudget
from tailrace.server.fetch.key_reads import ScanBudget, checked_ranges
from tailrace.server.fetch.params import FetchParams, WantedPartition
from tailrace.server.fetch.replica_choice import NO_OTHER
from tailrace.server.fetch.view_reads import pending, within_log
from tailrace.storage import AbortedTxn, ReadLimits

FIRST_WITH_STORAGE_ERROR: Final = 6
FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 11

_UNKNOWN: Final = -1

_READ: Final = (
    "partition_index",
    "high_watermark",
    "last_stable_offset",
    "log_start_offset",
    "aborted_transactions",
    "records",
)
_read_data: Final[Callable[..., PartitionData]] = positional(PartitionData, *_READ)
"""The answer of a partition that was read."""
_vouched_data: Final[Callable[..., PartitionData]] = positional(PartitionData, *_READ, "checked_from", "deleted_keys")
"""The answer with records for a follower."""
_ranges_data: Final[Callable[..., PartitionData]] = positional(
    PartitionData, *_READ, "applied_key_ranges", "scanned_to"
)
"""The answer of a read of key ranges."""


class FetchOutcome:
    """The outcome of a partition's read: its answer, and whether the fetch may wait."""

    __slots__ = ("available_bytes", "data", "is_urgent", "read")

    def __init__(self, data: PartitionData, read: PartitionRead | None = None, available_bytes: int = 0) -> None:
        self.data: Final = data
        self.read: Final = read
        """The result of the read. None: there is an error, a divergence, or a better replica for the consumer."""
        self.is_urgent: Final = read is None
        """Whether the fetch must not wait. False: the partition was read."""
        self.available_bytes: Final = available_bytes
        """The readable bytes that count towards min.bytes. Bytes beyond the limits are left out: a later answer could
        not have them either."""


class PartitionReader:
    """Reads partitions for a request, within the bytes of its answer. The reader keeps no state of the partitions."""

    __slots__ = ("_isolation", "_key_ranges", "_params", "_range_bytes", "_reader", "_scan", "_view_bytes", "budget")

    def __init__(self, params: FetchParams) -> None:
        self._params = params
        self._reader = params.reader
        self._isolation = params.isolation
        self._key_ranges = params.request.key_ranges
        """The key ranges for partitions without ranges of their own."""
        self._scan: ScanBudget | None = None
        self._range_bytes = self._view_bytes = 0
        """The bytes that were read for key ranges, and for views, and are not counted as sent."""
        self.budget: Final = FetchBudget(params.limits.max_bytes)

    def read(
        self, partition: Partition, wanted: WantedPartition, view: KeyRange | None = None, *, is_last: bool
    ) -> FetchOutcome:
        """Read a partition within the budget, and spend the budget. An error is an answer too.

        `view`: the key range, where `wanted` is a view partition. `is_last`: the answer is sent now, if need be with
        OFFSET_NOT_AVAILABLE (78).
        """
        reader, isolation, offset, budget = self._reader, self._isolation, wanted.fetch_offset, self.budget
        is_replica = reader.is_replica
        ranges: Sequence[WireKeyRange] = ()
        try:
            is_led = partition.leads_in(wanted.current_leader_epoch)
            if reader.must_check or not is_led:
                reader.check(partition, wanted)
            if is_led:
                # Only the leader knows where a log diverges, and whether another replica can serve the offset.
                if wanted.last_fetched_epoch >= 0 and (diverging := _divergence(partition, wanted)) is not None:
                    return FetchOutcome(diverging)
                choice = reader.choice
                if choice is not None and (preferred := choice.preferred(partition, offset)) != NO_OTHER:
                    return FetchOutcome(self._redirection(partition, wanted, preferred))
            limit_bytes = budget.limit_for(wanted.partition_max_bytes)
            limits = ReadLimits(offset, limit_bytes, isolation, wanted.current_leader_epoch, budget.min_one_message)
            key_ranges = wanted.key_ranges or self._key_ranges
            got: PartitionRead | None = None
            if view is not None:
                got = self._read_view(partition, wanted, limits, view, key_ranges)
            elif key_ranges and self._serves_ranges(partition, offset):
                limits, got = self._read_within_log(partition, wanted, limits, key_ranges)
                if got is not None and not got.is_pending:
                    ranges = key_ranges
            if got is None:
                got = reader.read(partition, wanted, limits) if is_replica else partition.read(limits)
            has_waited = is_last and not is_replica and (got.is_pending or offset > got.high_watermark)
            refusal = self._unavailable(partition, offset, got, view) if has_waited else None
            if refusal is not None:
                return self.refuse(wanted, refusal, partition)
        except KafkaError as error:
            return self.refuse(wanted, error, partition)
        size_bytes = got.size_bytes
        if size_bytes:
            budget.spend(size_bytes)
        elif not got.reaches_end:
            budget.leave_out(limit_bytes)
        answer = (
            wanted.partition,
            got.high_watermark,
            got.last_stable_offset,
            got.log_start_offset,
            _aborted(got.aborted) if isolation == READ_COMMITTED else None,
            got.records,
        )
        if ranges:
            data = _ranges_data(*answer, tuple(ranges), got.next_offset)
        elif is_replica and (size_bytes or wanted.log_start_offset < got.log_start_offset):
            checked_from = partition.log.times.checked_from if size_bytes else _UNKNOWN
            data = _vouched_data(*answer, checked_from, reader.deleted_keys(partition, wanted))
        else:
            data = _read_data(*answer)
        return FetchOutcome(data, got, size_bytes if got.reaches_end else max(size_bytes, limit_bytes))

    def _unavailable(
        self, partition: Partition, offset: int, got: PartitionRead, view: KeyRange | None
    ) -> KafkaError | None:
        """The error of a reader whose wait has ended without its record; None for an old client, which retries after an
        empty answer (KIP-207)."""
        error = partition.unavailable(offset) if offset > partition.high_watermark else None
        if error is None and isinstance(got, PendingRead):
            error = got.fault
        is_known = self._params.version >= FIRST_WITH_OFFSET_NOT_AVAILABLE
        if error is None or not (is_known or error.code is not ErrorCode.OFFSET_NOT_AVAILABLE):
            return None
        if got.is_pending:
            key_reads = self._params.key_reads
            (key_reads.of_ranges if view is None else key_reads.of_views).unavailable += 1
        return error

    def count_sent(self) -> None:
        """Count the bytes of key ranges and of views that were read: they leave in an answer."""
        if self._scan is not None:
            key_reads = self._params.key_reads
            key_reads.of_ranges.delivered_bytes += self._range_bytes
            key_reads.of_views.delivered_bytes += self._view_bytes
            self._range_bytes = self._view_bytes = 0

    @property
    def has_key_ranges(self) -> bool:
        """Whether a partition was read for key ranges."""
        return self._scan is not None

    def _read_view(
        self,
        partition: Partition,
        wanted: WantedPartition,
        limits: ReadLimits,
        view: KeyRange,
        key_ranges: Sequence[WireKeyRange],
    ) -> PartitionRead:
        """The records of a view partition (decision 0057)."""
        params = self._params
        if key_ranges:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "key ranges of a view, whose partitions are key ranges")
        if not (params.key_reads.is_enabled and partition.config.key_ranges_enable):
            raise params.no_view()
        scan = self._begin_scan()
        left_bytes = scan.left_bytes
        got = params.views.reads.read(
            partition, view, limits, lambda part: self._reader.read(partition, wanted, part), scan
        )
        params.key_reads.of_views.scanned_bytes += left_bytes - scan.left_bytes
        self._view_bytes += got.size_bytes
        self._add_aborted(partition, limits, got)
        return got

    def _serves_ranges(self, partition: Partition, offset: int) -> bool:
        """Whether key ranges are read at this offset. At any other offset no record is read, or there is an error."""
        return (
            self._params.key_reads.is_enabled
            and partition.config.key_ranges_enable
            and offset <= partition.high_watermark
        )

    def _read_within_log(
        self, partition: Partition, wanted: WantedPartition, limits: ReadLimits, key_ranges: Sequence[WireKeyRange]
    ) -> tuple[ReadLimits, PartitionRead | None]:
        """As `_read_ranges`, with the limits of the read: a reader below the log start that has lost no record of its
        ranges reads from the log start on, as in views."""
        if limits.offset < partition.log.log_start_offset:
            within = within_log(
                partition,
                checked_ranges(key_ranges, self._params.request.hash_scheme),
                limits,
                lambda part: self._reader.read(partition, wanted, part),
                self._params.views.reads.ends,
                self._begin_scan(),
            )
            if within is None:
                return limits, pending(partition, limits)
            limits = within
        return limits, self._read_ranges(partition, wanted, limits, key_ranges)

    def _read_ranges(
        self, partition: Partition, wanted: WantedPartition, limits: ReadLimits, key_ranges: Sequence[WireKeyRange]
    ) -> PartitionRead | None:
        """The records of these key ranges alone (KIP-X); None if the first batch cannot be split.

        Raises KafkaError INVALID_REQUEST (42) for bad ranges.
        """
        scan, scanned_to, reaches_end = self._begin_scan(), limits.offset, False
        batches: Buffer = b""
        left_bytes = scan.left_bytes
        partition.log.keys.note_reader()
        if not scan.is_over:
            found = self._params.key_reads.read(
                partition,
                checked_ranges(key_ranges, self._params.request.hash_scheme),
                limits,
                lambda part: self._reader.read(partition, wanted, part),
                scan,
            )
            self._params.key_reads.of_ranges.scanned_bytes += left_bytes - scan.left_bytes
            if found is None:
                return None
            batches, scanned_to, reaches_end = found.batches, found.scanned_to, found.reaches_end
        got = PartitionRead(
            batches,
            len(batches),
            scanned_to,
            reaches_end,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
        )
        self._range_bytes += got.size_bytes
        self._add_aborted(partition, limits, got)
        return got

    def _begin_scan(self) -> ScanBudget:
        """The scan budget of this fetch, which all its partitions share."""
        if self._scan is None:
            self._scan = self._params.key_reads.new_scan()
        return self._scan

    def _add_aborted(self, partition: Partition, limits: ReadLimits, got: PartitionRead) -> None:
        if got.size_bytes and self._isolation == READ_COMMITTED:
            got.aborted = partition.log.aborted_transactions(limits.offset, got.next_offset)

    def _redirection(self, partition: Partition, wanted: WantedPartition, preferred: int) -> PartitionData:
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=() if self._isolation == READ_COMMITTED else None,
            preferred_read_replica=preferred,
            records=b"",
        )

    def refuse(self, wanted: WantedPartition, error: KafkaError, partition: Partition | None = None) -> FetchOutcome:
        """The outcome of a partition that cannot be read; `partition` if it exists here."""
        return FetchOutcome(_error_data(wanted.partition, error, partition, self._params.version))


def _divergence(partition: Partition, wanted: WantedPartition) -> PartitionData | None:
    """The answer with the point where the reader's log diverges from the leader's; None if the log does not diverge
    (KIP-595)."""
    end = partition.end_offset_for_epoch(wanted.last_fetched_epoch)
    if end.epoch == _UNKNOWN:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known here of leader epoch {wanted.last_fetched_epoch}"
        )
    if end.epoch == wanted.last_fetched_epoch and end.offset >= wanted.fetch_offset:
        return None
    return PartitionData(
        partition_index=wanted.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        diverging_epoch=DivergingEpoch(epoch=end.epoch, end_offset=end.offset),
        aborted_transactions=None,
        records=b"",
    )


def _aborted(transactions: Sequence[AbortedTxn]) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in transactions
    )


def _error_data(index: int, error: KafkaError, partition: Partition | None, version: int) -> PartitionData:
    """The answer of a partition that cannot be read. An OFFSET_OUT_OF_RANGE answer has the range of offsets
    (KIP-392)."""
    code = error.code
    if code is ErrorCode.KAFKA_STORAGE_ERROR and version < FIRST_WITH_STORAGE_ERROR:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    high_watermark = log_start_offset = last_stable_offset = _UNKNOWN
    if partition is not None and error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE):
        high_watermark, log_start_offset = partition.high_watermark, partition.log.log_start_offset
        last_stable_offset = partition.last_stable_offset
    leader = LeaderIdAndEpoch()
    if isinstance(error, NotLeader) and error.leader != NO_LEADER:
        leader = LeaderIdAndEpoch(leader_id=error.leader, leader_epoch=error.leader_epoch)
    elif partition is not None and error.code is ErrorCode.FENCED_LEADER_EPOCH and partition.state is not None:
        leader = LeaderIdAndEpoch(leader_id=partition.state.leader, leader_epoch=partition.leader_epoch)
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        current_leader=leader,
        aborted_transactions=None,
        records=b"",
    )
