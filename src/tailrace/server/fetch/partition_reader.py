"""The reading of one partition of a fetch: its answer, and the facts by which a fetch waits or ends its wait."""

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
from tailrace.protocol.schema import positional
from tailrace.replication.outcomes import READ_COMMITTED, NotLeader
from tailrace.replication.partition import Partition
from tailrace.server.fetch.budget import FetchBudget
from tailrace.server.fetch.key_reads import KeyRangeRead, ScanBudget, checked_ranges
from tailrace.server.fetch.params import FetchParams, WantedPartition
from tailrace.server.fetch.replica_choice import NO_OTHER
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
_vouched_data: Final[Callable[..., PartitionData]] = positional(PartitionData, *_READ, "checked_from")
"""The same, with records for a follower."""


class FetchedPartition:
    """The answer of one partition, and what it means for the fetch. Plain slots, since one is made for each."""

    __slots__ = ("available_bytes", "data", "has_all", "has_scanned", "is_urgent", "size_bytes")

    def __init__(
        self,
        data: PartitionData,
        is_urgent: bool,
        size_bytes: int = 0,
        available_bytes: int = 0,
        *,
        has_all: bool = False,
        has_scanned: bool = False,
    ) -> None:
        self.data: Final = data
        self.is_urgent: Final = is_urgent
        """Whether the fetch must not wait: there is an error, a divergence, or a better replica for the consumer. If
        not, the partition was read."""
        self.size_bytes: Final = size_bytes
        """The bytes of its records."""
        self.available_bytes: Final = available_bytes
        """The readable bytes within the limits. Bytes beyond the limits end no wait: they will not fit later either."""
        self.has_all: Final = has_all
        """Of a view partition: whether the reader has all there is, although its offset does not say so."""
        self.has_scanned: Final = has_scanned
        """Of a view partition: whether it has had a part of the scan of this fetch."""


class PartitionReader:
    """Reads partitions for one request, one at a time. It keeps nothing of them."""

    __slots__ = ("_isolation", "_key_ranges", "_params", "_reader", "_scan")

    def __init__(self, params: FetchParams) -> None:
        self._params = params
        self._reader = params.reader
        self._isolation = params.isolation
        self._key_ranges = params.request.key_ranges
        """Those of partitions that have none of their own."""
        self._scan: ScanBudget | None = None

    def read(
        self,
        partition: Partition,
        wanted: WantedPartition,
        budget: FetchBudget,
        view: KeyRange | None = None,
        *,
        is_last: bool,
    ) -> FetchedPartition:
        """Read within the budget, which is spent; an error is an answer too.

        `view`: the key range of a view partition, which `wanted` is then. `is_last`: the answer is sent now, if need be
        with OFFSET_NOT_AVAILABLE (78).
        """
        reader, isolation, offset = self._reader, self._isolation, wanted.fetch_offset
        try:
            is_led = partition.leads_in(wanted.current_leader_epoch)
            if reader.must_check or not is_led:
                reader.check(partition, wanted)
            if is_led:
                # Only the leader knows where a log diverges, and whether another replica can serve the offset.
                if wanted.last_fetched_epoch >= 0 and (diverging := _divergence(partition, wanted)) is not None:
                    return FetchedPartition(diverging, is_urgent=True)
                choice = reader.choice
                if choice is not None and (preferred := choice.preferred(partition, offset)) != NO_OTHER:
                    return FetchedPartition(self._redirection(partition, wanted, preferred), is_urgent=True)
            limit_bytes = budget.limit_for(wanted.partition_max_bytes)
            limits = ReadLimits(offset, limit_bytes, isolation, wanted.current_leader_epoch, budget.min_one_message)
            key_ranges = wanted.key_ranges or self._key_ranges
            if view is not None:
                if key_ranges:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "key ranges of a view, whose partitions are key ranges")
                return self._read_view(partition, wanted, budget, limits, view, is_last=is_last)
            if key_ranges and self._serves_ranges(partition, offset):
                of_ranges = self._read_ranges(partition, wanted, budget, limits, key_ranges)
                if of_ranges is not None:
                    return of_ranges
            got = reader.read(partition, wanted, limits)
            if is_last and offset > got.high_watermark and not reader.is_replica:
                _refuse(partition.unavailable(offset), self._params.version)
        except KafkaError as error:
            return self.refuse(wanted, error, partition)
        size_bytes = got.size_bytes
        if size_bytes:
            budget.spend(size_bytes)
        elif not got.reaches_end:
            budget.leave_out(limit_bytes)
        vouched = (partition.log.checked_from,) if reader.is_replica and size_bytes else ()
        data = (_vouched_data if vouched else _read_data)(
            wanted.partition,
            got.high_watermark,
            got.last_stable_offset,
            got.log_start_offset,
            _aborted(got.aborted) if isolation == READ_COMMITTED else None,
            got.records,
            *vouched,
        )
        return FetchedPartition(
            data,
            False,
            size_bytes,
            size_bytes if got.reaches_end else max(size_bytes, limit_bytes),
        )

    @property
    def has_key_ranges(self) -> bool:
        """Whether a partition was read for key ranges."""
        return self._scan is not None

    def _read_view(
        self,
        partition: Partition,
        wanted: WantedPartition,
        budget: FetchBudget,
        limits: ReadLimits,
        view: KeyRange,
        *,
        is_last: bool,
    ) -> FetchedPartition:
        """The records of a view partition (decision 0057). While its end is not known, the fetch waits."""
        params, offset = self._params, limits.offset
        if not (params.key_reads.is_enabled and partition.config.key_sharing_enable):
            raise params.no_view()
        if self._scan is None:
            self._scan = params.key_reads.new_scan()
        got = params.views.reads.read(
            partition, view, limits, lambda part: self._reader.read(partition, wanted, part), self._scan
        )
        if is_last and offset > partition.high_watermark:
            _refuse(partition.unavailable(offset), params.version)
        if got is None and is_last:
            _refuse(_end_is_unknown(partition), params.version)
        size_bytes = 0 if got is None else len(got.batches)
        if size_bytes:
            budget.spend(size_bytes)
        elif got is not None and not got.reaches_end:
            budget.leave_out(limits.max_bytes)
        aborted: Sequence[AbortedTxn] = ()
        if got is not None and size_bytes and self._isolation == READ_COMMITTED:
            aborted = partition.log.aborted_transactions(offset, got.scanned_to)
        data = _read_data(
            wanted.partition,
            _UNKNOWN if got is None else got.high_watermark,
            _UNKNOWN if got is None else got.last_stable_offset,
            partition.log.log_start_offset,
            _aborted(aborted) if self._isolation == READ_COMMITTED else None,
            b"" if got is None else got.batches,
        )
        reaches_end = got is None or got.reaches_end
        available_bytes = size_bytes if reaches_end else max(size_bytes, limits.max_bytes)
        has_all = got is not None and reaches_end and offset <= partition.high_watermark
        has_scanned = got is not None and got.has_scanned
        return FetchedPartition(data, False, size_bytes, available_bytes, has_all=has_all, has_scanned=has_scanned)

    def _serves_ranges(self, partition: Partition, offset: int) -> bool:
        """Whether a read at this offset is one of key ranges. At others nothing is read, or there is an error."""
        return (
            self._params.key_reads.is_enabled
            and partition.config.key_sharing_enable
            and partition.log.log_start_offset <= offset <= partition.high_watermark
        )

    def _read_ranges(
        self,
        partition: Partition,
        wanted: WantedPartition,
        budget: FetchBudget,
        limits: ReadLimits,
        key_ranges: Sequence[WireKeyRange],
    ) -> FetchedPartition | None:
        """The records of these key ranges alone (KIP-X); None if the first batch cannot be split.

        Raises KafkaError INVALID_REQUEST (42) for bad ranges.
        """
        if self._scan is None:
            self._scan = self._params.key_reads.new_scan()
        got: KeyRangeRead | None = KeyRangeRead((), limits.offset, None, limits.offset)
        if not self._scan.is_over:
            got = self._params.key_reads.read(
                partition,
                checked_ranges(key_ranges, self._params.request.hash_scheme),
                limits,
                lambda part: self._reader.read(partition, wanted, part),
                self._scan,
            )
        if got is None:
            return None
        batches = got.batches
        size_bytes = len(batches)
        if size_bytes:
            budget.spend(size_bytes)
        elif not got.reaches_end:
            budget.leave_out(limits.max_bytes)
        is_committed = self._isolation == READ_COMMITTED
        aborted: Sequence[AbortedTxn] = ()
        if is_committed and size_bytes:
            aborted = partition.log.aborted_transactions(limits.offset, got.scanned_to)
        data = PartitionData(
            partition_index=wanted.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=_aborted(aborted) if is_committed else None,
            records=batches,
            applied_key_ranges=tuple(key_ranges),
            scanned_to=got.scanned_to,
        )
        return FetchedPartition(
            data, False, size_bytes, size_bytes if got.reaches_end else max(size_bytes, limits.max_bytes)
        )

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

    def refuse(
        self, wanted: WantedPartition, error: KafkaError, partition: Partition | None = None
    ) -> FetchedPartition:
        """The result of a partition that cannot be read; `partition` if it exists here."""
        return FetchedPartition(_error_data(wanted.partition, error, partition, self._params.version), is_urgent=True)


def _refuse(error: KafkaError, version: int) -> None:
    """Raise the error of an offset above the high watermark. An old client retries after an empty answer (KIP-207)."""
    if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE or version >= FIRST_WITH_OFFSET_NOT_AVAILABLE:
        raise error


def _end_is_unknown(partition: Partition) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE, f"the keys of {partition.topic_partition} are being looked at; ask again"
    )


def _divergence(partition: Partition, wanted: WantedPartition) -> PartitionData | None:
    """The answer with the point where the reader's log diverges from this one; None if it does not (KIP-595)."""
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
    """The answer of a partition that cannot be read. OFFSET_OUT_OF_RANGE comes with the range (KIP-392)."""
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
