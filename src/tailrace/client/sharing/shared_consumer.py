"""A member of a group that has a handler work on the records: each key in order, many keys at a time."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from tailrace.client.errors import several
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.client.sharing.group_reader import GroupReader
from tailrace.client.sharing.handler import Handler, HandlerCalls
from tailrace.client.sharing.lanes import Lanes, LaneWork
from tailrace.client.sharing.outcomes import Outcome, Retry, Skip, outcome_of
from tailrace.client.sharing.progress_store import ProgressStore, RangeCommits
from tailrace.client.sharing.shared_partition import SharedPartition
from tailrace.client.sharing.shared_record import Decode
from tailrace.client.sharing.sharing_metrics import HeldKey, SharingMetrics
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

LANE_RECORDS: Final = 16
LEAST_RECORDS_IN_HAND: Final = 1_000
"""The most records in hand are so many for each lane, and so many at least."""
BYTES_IN_HAND: Final = 64 << 20
_SESSION_MS: Final = 45_000
_POLL_RECORDS: Final = 500
"""The defaults of the consumer."""
_POLL_S: Final = 0.5
_RETRY_S: Final = 0.1
"""The pause after a failed request to the coordinator."""

_OUT_OF_GROUP = frozenset(
    (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)
"""The partitions leave, or have left: the next owner repeats what is not committed."""

_log = logging.getLogger(__name__)


class AsyncSharedConsumer:
    """A member of a group that works on records key by key, with `run`. It runs once.

    Of each partition one record of a key is with the handler at a time, in the order of offsets; keys do not wait for
    each other, and records without a key for none. A group without committed offsets starts at the earliest record.
    Progress is committed every auto_commit_interval_ms and when partitions leave: what is done and no more, so that
    every record reaches the handler at least once.

    `decode` makes a handler's value of a record's; a record that does not decode has its bytes and the `fault`. At most
    `max_records_in_hand` records (16 for each lane, 1,000 at least) and `max_bytes_in_hand` are read and not done; the
    last poll may go beyond. At its end, and when partitions leave, handlers that run have `grace_ms` to finish.
    The other settings are those of `tailrace.aio.Consumer`, without enable_auto_commit.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str,
        topics: Iterable[str],
        decode: Decode | None = None,
        auto_commit_interval_ms: int = 5_000,
        max_collected_ranges: int = 256,
        max_records_in_hand: int | None = None,
        max_bytes_in_hand: int = BYTES_IN_HAND,
        grace_ms: int = 10_000,
        auto_offset_reset: str = "earliest",
        client_id: str = "tailrace-shared-consumer",
        **settings: Any,
    ) -> None:
        wanted = several(topics)
        if not group or not wanted:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a shared consumer has a group, and topics to share in it")
        for setting, value, least in (
            ("auto.commit.interval.ms", auto_commit_interval_ms, 1),
            ("max.collected.ranges", max_collected_ranges, 0),
            ("max_records_in_hand", max_records_in_hand, 1),
            ("max_bytes_in_hand", max_bytes_in_hand, 1),
            ("grace_ms", grace_ms, 0),
        ):
            if value is not None and value < least:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{setting} {value}; at least {least}")
        session_ms = settings.get("session_timeout_ms", _SESSION_MS)
        if grace_ms > session_ms // 2:
            detail = f"grace_ms {grace_ms}; at most half of session.timeout.ms, {session_ms}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
        self._group = group
        self._decode = decode
        self._commit_interval_ms = auto_commit_interval_ms
        self._most_holes = max_collected_ranges
        self._most_records = max_records_in_hand
        self._most_bytes = max_bytes_in_hand
        self._grace_ms = grace_ms
        self._reader = GroupReader(
            bootstrap_servers,
            group=group,
            topics=wanted,
            on_revoke=self._on_revoke,
            on_assigned=self._close_partitions,
            auto_offset_reset=auto_offset_reset,
            client_id=client_id,
            **settings,
        )
        reader: object = self._reader
        self._store = ProgressStore(self._reader, reader if isinstance(reader, RangeCommits) else None)
        self._lanes = Lanes(1, most_records=LEAST_RECORDS_IN_HAND, most_bytes=max_bytes_in_hand)
        self._poll_records: int = settings.get("max_poll_records", _POLL_RECORDS)
        self._calls: HandlerCalls | None = None
        self._partitions: dict[TopicPartition, SharedPartition] = {}
        self._paused: dict[TopicPartition, SharedPartition] = {}
        self._running: dict[asyncio.Task[None], LaneWork] = {}
        self._openings: dict[asyncio.Task[None], SharedPartition] = {}
        self._storing = asyncio.Lock()
        self._commit_due = asyncio.Event()
        self._finished = asyncio.Event()
        """Set when a handler has finished."""
        self._ending = asyncio.Event()
        self._closed = asyncio.Event()
        self._fault: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_pump_planned = False
        self._done_total = self._skipped_total = self._retried_total = self._failed_total = 0

    # the run

    async def run(self, handler: Handler, *, concurrency: int = 16) -> None:
        """Work on records until `stop`, with so many of them at a time; then finish, commit and leave the group.

        The handler gets a `SharedRecord` and returns None or Done, Retry or Skip. An exception is a Retry: its key
        waits, 1 s at first and then twice as long each time, up to a minute. A coroutine function runs on this loop,
        any other function in threads. A cancelled call finishes and commits too; cancelled again, it ends at once.
        Raises KafkaError for a fault that no retry cures.
        """
        if concurrency < 1:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"concurrency {concurrency}; at least 1")
        if self._calls is not None or self._closed.is_set():
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a shared consumer runs once: make another one")
        most = self._most_records or max(LANE_RECORDS * concurrency, LEAST_RECORDS_IN_HAND)
        self._lanes = Lanes(concurrency, most_records=most, most_bytes=self._most_bytes)
        self._poll_records = min(self._poll_records, max(most // 2, 1))
        self._calls = HandlerCalls(handler, self._decode, concurrency)
        tasks = [self._start(self._read()), self._start(self._commit_regularly())]
        try:
            await self._ending.wait()
        finally:
            self._ending.set()
            await self._finish(tasks)
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Have `run` end: it begins no more records. On the event loop."""
        self._ending.set()

    async def close(self) -> None:
        """Stop, and return when `run` has ended. May be called again."""
        self._ending.set()
        if self._calls is None:
            self._closed.set()
            await self._reader.close()
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _fail(self, fault: BaseException) -> None:
        """End the run with this."""
        self._fault = self._fault or fault
        self._ending.set()

    async def _finish(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Let what runs finish, commit it, and leave the group."""
        try:
            await _cancelled(tasks)
            if self._timer is not None:
                self._timer.cancel()
            await self._on_revoke()
        finally:
            try:
                await _cancelled(self._running)
                assert self._calls is not None, "it runs"
                self._calls.close()
            finally:
                await self._reader.close()
                self._closed.set()

    def _start(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """A task whose failure ends the run."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._fail(fault)

    # reading

    async def _read(self) -> None:
        while True:
            self._receive(await self._reader.poll(_POLL_S, max_records=self._poll_records))

    def _receive(self, records: Iterable[ConsumerRecord]) -> None:
        """These were polled just now: since then nothing has changed the positions."""
        by_name: dict[TopicPartition, list[ConsumerRecord]] = defaultdict(list)
        for record in records:
            by_name[TopicPartition(record.topic, record.partition)].append(record)
        for name in self._reader.assignment:
            position = self._reader.position(name)
            if position is not None:
                self._receive_of(name, by_name.get(name, []), position)
        self._pump()

    def _receive_of(self, name: TopicPartition, records: list[ConsumerRecord], position: int) -> None:
        partition = self._partitions.get(name)
        if partition is not None and partition.is_leaving:
            return
        if partition is None or partition.is_cut(records, position):
            is_cut = partition is not None
            self._close_partition(name)
            start = min([position, *(record.offset for record in records)])
            partition = self._partitions[name] = SharedPartition(name, start, self._most_holes)
            opening = self._start(self._open(partition, is_cut))
            self._openings[opening] = partition
            opening.add_done_callback(self._openings.pop)
        self._put_in_hand(partition, partition.read(records, position))
        if partition.is_commit_due:
            self._commit_due.set()

    async def _open(self, partition: SharedPartition, is_cut: bool) -> None:
        """Learn the progress of the group in a partition; then its records go to the handler."""
        while True:
            try:
                async with self._storing:
                    if is_cut:
                        await self._store.reset(partition.name, partition.start)
                    committed = await self._store.read(partition.name)
                break
            except KafkaError as fault:
                if fault.code in _OUT_OF_GROUP:
                    return
                if not fault.code.retriable:
                    raise
                _log.debug("progress of %s: %s", partition.name, fault.detail)
            await asyncio.sleep(_RETRY_S)
        if self._partitions.get(partition.name) is partition and not partition.is_leaving:
            self._lanes.open(partition.name)
            self._put_in_hand(partition, partition.open(committed))
            self._pump()

    def _put_in_hand(self, partition: SharedPartition, records: Sequence[ConsumerRecord]) -> None:
        if records:
            self._lanes.add(partition.name, records)
        self._pause_or_resume(partition)

    def _pause_or_resume(self, partition: SharedPartition) -> None:
        name = partition.name
        must_wait = partition.has_early or not partition.has_room or self._lanes.is_full(name)
        if must_wait and name not in self._paused:
            self._paused[name] = partition
            self._reader.set_paused(name, True)
        elif not must_wait and self._paused.pop(name, None) is not None:
            self._reader.set_paused(name, False)

    # partitions that leave

    async def _on_revoke(self) -> None:
        """The partitions leave: drop what waits, let what runs finish for a while, and commit."""
        for name, partition in self._partitions.items():
            partition.is_leaving = True
            self._lanes.drop_waiting(name)
        await _cancelled(self._openings)
        names = list(self._partitions)
        try:
            async with asyncio.timeout(self._grace_ms / 1000):
                while not self._lanes.is_idle(names):
                    self._finished.clear()
                    await self._finished.wait()
        except TimeoutError:
            late = len(self._running)
            _log.warning("group %r: %d records leave that the handler has not finished in time", self._group, late)
        await self._commit()

    def _close_partitions(self) -> None:
        for name in list(self._partitions):
            self._close_partition(name)

    def _close_partition(self, name: TopicPartition) -> None:
        """Its records are dropped: another member may have them already. Handlers that can be cancelled are."""
        partition = self._partitions.pop(name, None)
        self._lanes.close(name)
        if self._paused.pop(name, None) is not None:
            self._reader.set_paused(name, False)
        if self._calls is not None and self._calls.is_async:
            for task, work in self._running.items():
                if work.name == name:
                    task.cancel()
        for opening, opened in self._openings.items():
            if opened is partition:
                opening.cancel()

    # work

    def _plan_pump(self) -> None:
        if not self._is_pump_planned:
            self._is_pump_planned = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Begin what may run now, and read on where there is room again."""
        self._is_pump_planned = False
        if self._ending.is_set():
            return
        loop = asyncio.get_running_loop()
        now_ms = self._reader.now_ms()
        for work in self._lanes.take(now_ms):
            task = loop.create_task(self._handle(work))
            self._running[task] = work
            task.add_done_callback(self._running.pop)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._lanes.next_deadline_ms
        if deadline_ms is not None:
            self._timer = loop.call_later(max(deadline_ms - now_ms, 0) / 1000 + 0.001, self._pump)
        for partition in list(self._paused.values()):
            self._pause_or_resume(partition)

    async def _handle(self, work: LaneWork) -> None:
        outcome: Outcome | None = None
        fault: BaseException | None = None
        assert self._calls is not None, "it runs"
        try:
            outcome = outcome_of(await self._calls.call(work))
        except BaseException as raised:  # noqa: BLE001 - code of users: it holds its key
            fault = self._fault_of(raised)
        if fault is not None:
            outcome = Retry()
        if outcome is not None:
            self._count(work, outcome, fault)
        shown = None if fault is None else f"{type(fault).__name__}: {fault}"[:200]
        if self._lanes.finish(work, outcome or Retry(), self._reader.now_ms(), fault=shown):
            done = self._partitions[work.name].done
            assert done is not None, "the record was in hand"
            done.done(work.record.offset)
        self._finished.set()
        self._plan_pump()

    def _fault_of(self, raised: BaseException) -> BaseException | None:
        """The fault of the handler; None if it has none: its partition has left, or it ends the program."""
        if isinstance(raised, asyncio.CancelledError):
            task = asyncio.current_task()
            return None if task is None or task.cancelling() else raised
        if not isinstance(raised, Exception):
            self._fail(raised)
            return None
        return raised

    def _count(self, work: LaneWork, outcome: Outcome, fault: BaseException | None) -> None:
        if isinstance(outcome, Retry):
            self._retried_total += 1
        elif isinstance(outcome, Skip):
            self._skipped_total += 1
            _log.info("group %r skips offset %d of %s: %s", self._group, work.record.offset, work.name, outcome.reason)
        else:
            self._done_total += 1
        if fault is None:
            return
        self._failed_total += 1
        if work.attempt == 1:
            _log.warning(
                "group %r: the handler has failed at offset %d of %s; its key is held and tried again: %r",
                self._group,
                work.record.offset,
                work.name,
                fault,
                exc_info=fault,
            )

    # progress

    async def _commit_regularly(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._commit_interval_ms / 1000):
                    await self._commit_due.wait()
            except TimeoutError:
                pass
            self._commit_due.clear()
            if not await self._commit():
                await asyncio.sleep(_RETRY_S)

    async def _commit(self) -> bool:
        """Commit what is done; False if it may be tried again. Offsets that have not moved are among it: they expire.

        A fault that no retry cures ends the run.
        """
        async with self._storing:
            made = {name: (partition, partition.commit()) for name, partition in self._partitions.items()}
            commits = {name: commit for name, (_, commit) in made.items() if commit is not None}
            if not commits:
                return True
            try:
                written = await self._store.write(commits)
            except KafkaError as fault:
                _log.debug("commit of group %r: %s", self._group, fault.detail)
                if not fault.code.retriable and fault.code not in _OUT_OF_GROUP:
                    self._fail(fault)
                return False
            for name, commit in commits.items():
                partition = made[name][0]
                if self._partitions.get(name) is not partition:
                    continue
                if name in written.was_reset:
                    _log.warning("group %r: the offset of %s was reset; reading starts over", self._group, name)
                    self._close_partition(name)
                    self._reader.start_over(name)
                elif name in written.full:
                    partition.refused()
                else:
                    partition.committed(commit, written.uses.get(name))
        self._plan_pump()
        return True

    # state

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps it from reading, while it is retried; None without one."""
        return self._reader.trouble

    def metrics(self) -> SharingMetrics:
        """Numbers about this consumer now."""
        oldest = self._lanes.oldest_failure
        held = None
        if oldest is not None:
            held = HeldKey(
                oldest.name,
                oldest.record.offset,
                oldest.record.key,
                self._reader.now_ms() - oldest.since_ms,
                oldest.attempts,
                oldest.fault,
            )
        return SharingMetrics(
            in_hand=self._lanes.records,
            in_hand_bytes=self._lanes.bytes,
            running=self._lanes.running,
            held=self._lanes.held,
            oldest_held=held,
            done_total=self._done_total,
            skipped_total=self._skipped_total,
            retried_total=self._retried_total,
            failed_total=self._failed_total,
            ranges={name: one.use for name, one in self._partitions.items() if one.use is not None},
        )


async def _cancelled(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Cancel these, and return when they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
