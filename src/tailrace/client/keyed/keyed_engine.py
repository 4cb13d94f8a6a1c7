"""The engine of a keyed consumer: it reads, commits, and holds the membership, on the clients' background loop.

Handlers run elsewhere: a handler that blocks its event loop keeps no heartbeat and no commit from its time.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from tailrace.client.group.topic_views import Slot, slot_of
from tailrace.client.keyed.done_offsets import ProgressCommit
from tailrace.client.keyed.handler import Handler, cancelled
from tailrace.client.keyed.handler_work import HandlerWork
from tailrace.client.keyed.keyed_metrics import KeyedMetrics
from tailrace.client.keyed.keyed_partition import KeyedPartition
from tailrace.client.keyed.keyed_run import KeyedRun
from tailrace.client.keyed.outcomes import KeyedRecord, make_keyed_record
from tailrace.client.keyed.progress_store import OUT_OF_GROUP, RETRY_S, ProgressStore, WrittenProgress, answer_of
from tailrace.client.loop_thread import loop_thread
from tailrace.client.offsets import request_end
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.client.reading.consumer_reader import ConsumerReader
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record

_POLL_MS: Final = 500
_CANCEL_MS: Final = 1_000
"""The time of cancelled handlers to end before their partitions get other owners."""

_LAST_TRIES: Final = 3
"""The further tries of a last commit that the server has no room for; each try has half as many holes as the try
before."""

_log = logging.getLogger(__name__)


def _whole(name: TopicPartition) -> Slot | None:
    """No slot: the members of the group own whole partitions."""
    return None


class KeyedEngine:
    """The engine of one consumer. `start`, `stop`, `trouble` and `metrics` are for any thread, all else is for the
    background loop."""

    def __init__(self, settings: KeyedConsumerSettings) -> None:
        self._settings = settings
        self._group = settings.group or ""
        self._reader = ConsumerReader(
            settings, on_revoke=self._on_revoke, on_left=self._close_partitions, apart=self._apart
        )
        self._store = ProgressStore(self._reader, self._reader.progress)
        self._work = HandlerWork(settings, on_outcomes=self._on_outcomes, on_end=self._on_handler_end)
        self._slot_of = slot_of if settings.shares_by_key else _whole
        self._poll_records = settings.max_poll_records
        self._grace_ms = settings.grace_ms
        self._partitions: dict[TopicPartition, KeyedPartition] = {}
        self._paused: dict[TopicPartition, KeyedPartition] = {}
        self._openings: dict[asyncio.Task[None], KeyedPartition] = {}
        """Requests for the progress of partitions, or for the note of a cut in the progress."""
        self._storing = asyncio.Lock()
        self._commit_due = asyncio.Event()
        self._finished = asyncio.Event()
        """Set when a handler has finished, or an opening."""
        self._run: KeyedRun | None = None
        self.is_stopped = False
        """Whether the run ends, or is to end."""
        self._ending = asyncio.Event()
        self._closed = asyncio.Event()
        self._fault: BaseException | None = None

    # the run

    def start(
        self, handler: Handler, concurrency: int, handler_loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> KeyedRun:
        """Begin to work on records, `concurrency` at a time. `handler_loop`: the loop of coroutine handlers.

        Raises KafkaError for a bad concurrency, and for a second run.
        """
        if concurrency < 1:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"concurrency {concurrency}; at least 1")
        if self._run is not None or self._closed.is_set():
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a keyed consumer runs once: make another one")
        self._run = run = KeyedRun()
        most = self._work.begin(handler, concurrency, handler_loop)
        if self.is_stopped:
            self._work.queue.stop()
        self._poll_records = min(self._poll_records, max(most // 2, 1))
        loop_thread().loop.call_soon_threadsafe(run.start, self._run_to_end())
        return run

    def stop(self) -> None:
        """End the run: the handler gets no more records. Takes no lock, for signal handlers."""
        self.is_stopped = True
        self._work.queue.stop()
        if self._run is not None:
            loop_thread().loop.call_soon_threadsafe(self._ending.set)

    async def close(self) -> None:
        """Stop, and return when the run has ended. May be called again."""
        self.stop()
        if self._run is None:
            self._closed.set()
            await self._reader.close()
        await self._closed.wait()

    def _fail(self, fault: BaseException) -> None:
        """End the run with this fault."""
        self._fault = self._fault or fault
        self.stop()

    def _on_handler_end(self, fault: BaseException) -> None:
        """A handler ends the program, or its loop is closed. From any thread."""
        self._work.queue.stop()
        loop_thread().loop.call_soon_threadsafe(self._fail, fault)

    async def _run_to_end(self) -> BaseException | None:
        """Work until the end. Returns the exception that ends the run: raised on the loop, SystemExit would end the
        loop, which all clients of the process use."""
        if self.is_stopped:
            self._ending.set()
        tasks = [self._begin_task(work) for work in (self._read(), self._commit_regularly(), self._work.watch())]
        try:
            await self._ending.wait()
        finally:
            self.stop()
            await self._finish(tasks)
        return self._fault

    async def _finish(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Leave the group: partitions without running handlers at once, others when their handlers have finished, with
        a commit. An interruption ends the handlers."""
        create_task = asyncio.get_running_loop().create_task
        leaving: asyncio.Task[None] | None = None
        try:
            await cancelled(tasks)
            leaving = create_task(self._reader.close())
            await asyncio.shield(leaving)
        finally:
            self._grace_ms = 0
            self._finished.set()
            end = create_task(self._work.end())
            try:
                await (self._reader.close() if leaving is None else leaving)
            finally:
                await end
                self._closed.set()

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
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
            self._receive(await self._reader.take(self._now_ms() + _POLL_MS, self._poll_records))

    def _receive(self, taken: Iterable[tuple[TopicPartition, Record]]) -> None:
        """Take records that were read just now: since then nothing has changed the positions."""
        by_name: dict[TopicPartition, list[KeyedRecord]] = defaultdict(list)
        epoch = self._reader.identity.generation_id
        for name, records in groupby(taken, itemgetter(0)):
            topic, partition, number = (self._slot_of(name)) or (*name, None)
            place, rest = (topic, partition), (None, 1, number, epoch)
            by_name[name] += [make_keyed_record(place + record + rest) for _, record in records]
        for name in self._reader.names:
            position = self._reader.assigned.position(name)
            if position is not None:
                self._receive_of(name, by_name.get(name, []), position)

    def _receive_of(self, name: TopicPartition, records: list[KeyedRecord], position: int) -> None:
        partition = self._partitions.get(name)
        if partition is None:
            start = records[0].offset if records else position
            consumed = self._reader.assigned.get(name)
            is_displaced = consumed is not None and consumed.position.is_displaced
            partition = KeyedPartition(name, start, self._settings.max_collected_ranges, is_displaced=is_displaced)
            self._partitions[name] = partition
            self._begin_opening(partition, self._open(partition))
        if partition.is_leaving or partition.is_cut:
            return
        self._note_done(partition)
        cut = partition.cut_in(records, position)
        if cut is not None:
            self._cut(partition, cut)
            return
        self._put_in_hand(partition, partition.read(records, position))
        if partition.is_commit_due:
            self._commit_due.set()

    def _begin_opening(self, partition: KeyedPartition, work: Coroutine[Any, Any, None]) -> None:
        opening = self._begin_task(work)
        self._openings[opening] = partition
        opening.add_done_callback(self._on_opened)

    def _on_opened(self, opening: "asyncio.Task[None]") -> None:
        del self._openings[opening]
        self._finished.set()

    async def _open(self, partition: KeyedPartition) -> None:
        """Read the progress of the group in a partition; then the records of the partition go to the handler."""
        name = partition.name
        committed = await answer_of(name, self._storing, lambda: self._store.read(name))
        cut: int | None = None
        if committed is not None and partition.start < committed.end_offset:
            # The log is shorter than the group has read, or a commit came late: the end of the log tells which.
            end = await answer_of(name, self._storing, lambda: request_end(self._reader.router, name))
            is_behind = partition.start < committed.stable_offset
            if is_behind and (partition.is_displaced or end < committed.stable_offset):
                cut = partition.start
            elif end < committed.end_offset:
                cut = end  # the member that found the cut was killed before the coordinator had answered
        if self._partitions.get(name) is not partition or partition.is_leaving:
            return
        if partition.is_rewound(committed):
            self._start_over(name)
        elif cut is not None:
            self._cut(partition, cut)
        else:
            self._work.queue.open(name)
            self._put_in_hand(partition, partition.open(committed))

    # logs that were cut

    def _cut(self, partition: KeyedPartition, offset: int) -> None:
        """Start over after the log was cut at this offset. Undone records come again, and committed progress beyond the
        cut does not count."""
        name = partition.name
        _log.warning("group %r: the log of %s was cut at %d; reading starts over", self._group, name, offset)
        self._close_partition(name)
        self._partitions[name] = partition
        partition.is_cut = True
        self._begin_opening(partition, self._take_note(partition, offset))
        self._pause_or_resume(partition)

    async def _take_note(self, partition: KeyedPartition, cut: int) -> None:
        name = partition.name
        if not partition.has_progress:  # the partition may have progress now, to which the cut refers
            await answer_of(name, self._storing, lambda: self._store.read(name))
        await answer_of(name, self._storing, lambda: self._store.cut(name, cut, not_done=partition.not_done))
        if self._partitions.get(name) is partition and not partition.is_leaving:
            self._start_over(name)

    def _start_over(self, name: TopicPartition) -> None:
        self._close_partition(name)
        self._reader.start_over(name)

    def _put_in_hand(self, partition: KeyedPartition, records: Sequence[KeyedRecord]) -> None:
        if records:
            self._work.queue.add(partition.name, records)
        self._pause_or_resume(partition)

    def _pause_or_resume(self, partition: KeyedPartition) -> None:
        name = partition.name
        must_wait = partition.waits or not partition.has_room or self._work.queue.is_full(name)
        if must_wait and name not in self._paused:
            self._paused[name] = partition
            self._reader.set_paused((name,), True)
        elif not must_wait and self._paused.pop(name, None) is not None:
            self._resume(name)

    def _resume(self, name: TopicPartition) -> None:
        if name in self._reader.assigned.by_name:  # the partition may have left meanwhile
            self._reader.set_paused((name,), False)

    # partitions that leave

    def _apart(self, leaving: frozenset[TopicPartition]) -> list[frozenset[TopicPartition]]:
        """Partitions without a running handler leave together, any other partition leaves when its handlers finish."""
        self._begin_leaving(leaving)
        busy = [name for name in leaving if not self._work.queue.is_idle((name,))]
        idle = leaving.difference(busy)
        return [*((idle,) if idle else ()), *(frozenset((name,)) for name in busy)]

    def _begin_leaving(self, leaving: frozenset[TopicPartition]) -> list[KeyedPartition]:
        """Begin no more records of these partitions."""
        partitions = [partition for name, partition in self._partitions.items() if name in leaving]
        for partition in partitions:
            partition.is_leaving = True
            self._work.queue.drop_waiting(partition.name)
        return partitions

    async def _on_revoke(self, leaving: frozenset[TopicPartition]) -> None:
        """Give these partitions up: drop waiting records, let running handlers finish for a while, and commit."""
        partitions = self._begin_leaving(leaving)
        await cancelled(opening for opening in self._openings_of(partitions) if not self._openings[opening].is_cut)
        began_ms = self._now_ms()
        if not await self._finished_by(partitions, lambda: began_ms + self._grace_ms):
            late = sum(work.name in leaving for work in self._work.queue.works)
            _log.warning("group %r: %d records leave that the handler has not finished in time", self._group, late)
            self._work.cancel(leaving)
            cancelled_ms = self._now_ms()
            await self._finished_by(partitions, lambda: cancelled_ms + _CANCEL_MS)
        await cancelled(self._openings_of(partitions))
        await self._commit_last(partitions)

    async def _finished_by(self, partitions: Sequence[KeyedPartition], deadline_ms: Callable[[], int]) -> bool:
        """Wait for the handlers and the openings of these partitions; returns whether all have ended by the deadline,
        which may move."""
        names = [partition.name for partition in partitions]
        while not self._work.queue.is_idle(names) or self._openings_of(partitions):
            left_ms = deadline_ms() - self._now_ms()
            if left_ms <= 0:
                return False
            self._finished.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._finished.wait()
        return True

    def _openings_of(self, partitions: Sequence[KeyedPartition]) -> "list[asyncio.Task[None]]":
        """The requests that run for these partitions."""
        return [opening for opening, opened in self._openings.items() if opened in partitions]

    def _close_partitions(self, left: frozenset[TopicPartition]) -> None:
        for name in left:
            self._close_partition(name)

    def _close_partition(self, name: TopicPartition) -> None:
        """Drop the records of the partition: another member may read them already. Calls of the handler are cancelled
        if they can be."""
        partition = self._partitions.pop(name, None)
        if partition is not None:
            self._note_done(partition)
        self._work.close(name)
        if self._paused.pop(name, None) is not None:
            self._resume(name)
        for opening, opened in self._openings.items():
            if opened is partition:
                opening.cancel()

    def _note_done(self, partition: KeyedPartition) -> None:
        """Take over the records that workers have done since the last call."""
        offsets = self._work.queue.take_done(partition.name)
        if offsets:
            assert partition.done is not None, "its records were in hand"
            partition.done.done(*offsets)

    def _on_outcomes(self) -> None:
        self._finished.set()
        self._resume_where_room()

    def _resume_where_room(self) -> None:
        for partition in list(self._paused.values()):
            self._pause_or_resume(partition)

    # progress

    async def _commit_regularly(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.auto_commit_interval_ms / 1000):
                    await self._commit_due.wait()
            except TimeoutError:
                pass
            self._commit_due.clear()
            if await self._commit() is not ErrorCode.NONE:
                await asyncio.sleep(RETRY_S)

    async def _commit_last(self, leaving: Sequence[KeyedPartition]) -> None:
        """Commit exactly the done records, before these partitions leave. Partitions that stay are committed too."""

        def commit_of(partition: KeyedPartition) -> ProgressCommit | None:
            return partition.last_commit() if partition in leaving else partition.commit()

        for _ in range(1 + _LAST_TRIES):  # each with fewer rectangles than the try before
            await self._commit(commit_of)
            if not any(partition.is_refused for partition in leaving):
                return

    async def _commit(
        self, commit_of: Callable[[KeyedPartition], ProgressCommit | None] = KeyedPartition.commit
    ) -> ErrorCode:
        """Commit what is done; returns the code of a fault, after which a second try may help. The commit includes
        offsets that have not moved, so that these offsets do not expire.

        A fault that no retry cures ends the run.
        """
        async with self._storing:
            notes = self._work.notes(self._reader.identity.member_id)
            for name, partition in self._partitions.items():
                self._note_done(partition)
                partition.note = notes.get(name, "")
            made = {name: (partition, commit_of(partition)) for name, partition in self._partitions.items()}
            commits = {name: commit for name, (_, commit) in made.items() if commit is not None}
            if not commits:
                return ErrorCode.NONE
            try:
                written = await self._store.write(commits)
            except KafkaError as fault:
                _log.debug("commit of group %r: %s", self._group, fault.detail)
                if not fault.code.retriable and fault.code not in OUT_OF_GROUP:
                    self._fail(fault)
                return fault.code
            for name, commit in commits.items():
                partition = made[name][0]
                if self._partitions.get(name) is partition and not partition.is_cut:
                    self._take_result(partition, commit, written)
        self._resume_where_room()
        return ErrorCode.NONE

    def _take_result(self, partition: KeyedPartition, commit: ProgressCommit, written: WrittenProgress) -> None:
        name = partition.name
        if name in written.was_reset:
            _log.warning("group %r: the offset of %s was reset, or its log cut; reading starts over", self._group, name)
            self._start_over(name)
        elif name in written.full:
            partition.refused()
        elif name in written.invalid:
            self._reader.doubt(name)  # the comparison finds a cut, and the records are dropped
        else:
            partition.committed(commit, written.uses.get(name))

    # state

    def _now_ms(self) -> int:
        return self._reader.router.now_ms()

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps the consumer from reading, while the fault is retried; None without a fault."""
        return self._reader.trouble

    def metrics(self) -> KeyedMetrics:
        """Numbers about the consumer now."""
        return self._work.queue.metrics(
            corrupt_batches=self._reader.assigned.corrupt.batches,
            ranges={
                name: partition.use for name, partition in list(self._partitions.items()) if partition.use is not None
            },
        )
