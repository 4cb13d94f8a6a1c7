"""Finds the first position of a consumer in each new partition: the committed offset, or by auto.offset.reset."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from tailrace.client.errors import LogTruncation
from tailrace.client.group.committed_offsets import OffsetAndMetadata, fetch_group_offsets
from tailrace.client.offsets import EARLIEST, LATEST, OffsetAt, request_log_starts, request_offsets
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.read_notices import Jump, ReadNotices
from tailrace.client.reading.searches.retried_search import RetriedSearch
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


class StartSearch:
    """The search for undecided positions. At most one runs at a time."""

    def __init__(
        self,
        router: Router,
        fetcher: Fetcher,
        *,
        group: str | None,
        reset: int | None,
        isolation_level: int,
        notices: ReadNotices,
        is_bounded: bool = False,
    ) -> None:
        """`is_bounded`: whether reading has an end, so that a begin at the end reads nothing."""
        self._router = router
        self._fetcher = fetcher
        self._assigned = fetcher.assigned
        self._group = group
        self._reset = reset
        self._tells_skipped = group is not None or is_bounded
        self._isolation_level = isolation_level
        self._notices = notices
        self._search = RetriedSearch(router, on_end=fetcher.wake, gets_better=_gets_better)

    @property
    def trouble(self) -> KafkaError | None:
        """The fault of the last search during retries."""
        return self._search.trouble

    @property
    def is_under_way(self) -> bool:
        """Whether a search runs: it may have found the positions, and not yet what they skip."""
        return self._search.is_under_way

    def advance(self) -> None:
        """Start a search for undecided positions, unless a search is under way.

        Raises KafkaError for a fault of the last search that a retry does not cure.
        """
        undecided = self._assigned.undecided()
        fault = self._search.take_fault()
        if not undecided:
            self._search.trouble = None
            return
        if fault is not None:
            raise fault
        self._search.start_if_due(partial(self._decide, undecided))

    def cancel(self) -> None:
        """Cancel the search: other partitions are assigned now."""
        self._search.cancel()

    def next_due_ms(self, deadline_ms: int) -> int:
        """The time of the next search, at most the deadline."""
        return self._search.next_due_ms(deadline_ms) if self._assigned.undecided() else deadline_ms

    async def _decide(self, undecided: Mapping[TopicPartition, bool]) -> None:
        """Search once. Found offsets are used at once, even if other partitions fail."""
        fresh = [partition for partition, was_out_of_range in undecided.items() if not was_out_of_range]
        committed: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self._group is not None and fresh:
            committed = await fetch_group_offsets(self._router, self._group, fresh, require_stable=True, timeout_ms=0)
            for partition, offset in committed.items():
                self._assigned.start_at(partition, offset.offset, offset.leader_epoch)
        rest = [partition for partition in undecided if partition not in committed]
        if not rest:
            return
        if self._reset is None:
            truncation = self._assigned.truncation(rest[0])
            if truncation is not None:
                raise LogTruncation(rest[0], **truncation._asdict())
            position = self._assigned.position(rest[0])
            lost = "no offset to start from" if position is None else f"offset {position} is out of range"
            detail = f"{rest[0]}: {lost}, and auto.offset.reset is none"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        if committed:
            self._fetcher.wake()
        new: dict[TopicPartition, int] = {}
        jumps: dict[TopicPartition, Jump] = {}

        def start(found: Mapping[TopicPartition, OffsetAt]) -> None:
            for partition, listed in found.items():
                lost = self._assigned.position(partition)
                offset, epoch = listed.offset, listed.leader_epoch
                if not self._assigned.start_at(partition, offset, epoch, valid_under=listed.current_epoch):
                    continue
                if lost is None:
                    new[partition] = listed.offset
                else:
                    jumps[partition] = Jump(lost, listed.offset)
            self._fetcher.wake()

        try:
            if self._reset == EARLIEST:
                await self._start_at_replicas(rest, start)
            rest = [partition for partition in rest if partition not in new and partition not in jumps]
            specs = dict.fromkeys(rest, self._reset)
            faults = await request_offsets(self._router, specs, start, isolation_level=self._isolation_level)
            await self._add_bounds(jumps)
        finally:
            # Reading goes on at these offsets, also when this search is cancelled.
            self._notices.report_jumps(jumps, self._router.now_ms())
        if self._tells_skipped and self._reset == LATEST:
            await self._report_skipped(new, has_offsets=bool(committed))
        if faults:
            raise min(faults.values(), key=_gets_better)

    async def _start_at_replicas(
        self, partitions: Iterable[TopicPartition], start: Callable[[Mapping[TopicPartition, OffsetAt]], None]
    ) -> None:
        """Start at the log starts of the followers that have refused the positions as too small (KIP-392).

        The leader's log start may be below a follower's, and the follower would refuse the consumer again. For a
        follower that does not answer, the leader's log start counts.
        """
        by_replica: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            replica = self._assigned.reset_replica(partition)
            if replica is not None:
                by_replica[replica].append(partition)
        for replica, refused in by_replica.items():
            found = await request_log_starts(self._router, replica, refused)
            for partition in refused:
                if partition not in found:
                    self._fetcher.reset_at_leader(partition)
            start(found)

    async def _add_bounds(self, jumps: dict[TopicPartition, Jump]) -> None:
        """Request the other end of each log, for the notice. Without an answer the notice has less detail."""
        if not jumps:
            return
        is_at_end = self._reset == LATEST

        def add(found: Mapping[TopicPartition, OffsetAt]) -> None:
            for partition, other in found.items():
                jump = jumps[partition]
                ends = (other.offset, jump.start) if is_at_end else (jump.start, other.offset)
                jumps[partition] = Jump(jump.offset, jump.start, *ends)

        specs = dict.fromkeys(jumps, EARLIEST if is_at_end else LATEST)
        with suppress(KafkaError):
            await request_offsets(self._router, specs, add, isolation_level=self._isolation_level)

    async def _report_skipped(self, starts: Mapping[TopicPartition, int], *, has_offsets: bool) -> None:
        """Log how many records are skipped by a begin at the end."""
        unreported = self._notices.unreported(starts)
        if not unreported:
            return
        firsts: dict[TopicPartition, OffsetAt] = {}
        await request_offsets(
            self._router, dict.fromkeys(unreported, EARLIEST), firsts.update, isolation_level=self._isolation_level
        )
        skipped = {partition: max(0, starts[partition] - first.offset) for partition, first in firsts.items()}
        self._notices.report_skipped(skipped, has_offsets=has_offsets)


def _gets_better(fault: KafkaError) -> bool:
    return fault.code.retriable and fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
