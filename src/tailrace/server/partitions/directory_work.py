"""Work on the directory of a node's logs while it serves: new logs, deleted logs, checkpoints.

This work waits for the disk, so the disk's thread does the work, in batches: one batch is under way at a time, and
later requests go into the next batch. The order within a batch:

1. New logs, which were made on the event loop a few milliseconds at a time, are synced with their names.
2. The directories of deleted logs are renamed, and their names synced.
3. Checkpoints are written, with the entries of deleted logs removed.

A damaged log takes two batches: its directory is renamed in the first batch. When the new name is durable, the second
batch removes the log's entries from the checkpoints. In the other order, a crash in between would let the rest of the
log pass for a short healthy log.

Callbacks run after the batch. So a name is free as soon as its deletion is reported, and the creation of a topic is
answered when its partitions are durable.

Flushes of logs wait for a batch. So batches are bounded, and renamed directories are removed a few at a time: flushes
run in between, however many partitions are deleted at once.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import call
from typing import Final, NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.replication.watchers import OffsetWaiters
from tailrace.server.callbacks import drain, run_in_slices, run_slice
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.offset_checkpoints import NO_WRITE, CheckpointWrite
from tailrace.server.ports import Clock, Disk

_logger = logging.getLogger("tailrace.server")

_MOST_PER_BATCH: Final = 1000
"""The most new logs, and the most deleted logs."""
_MOST_REMOVED: Final = 4
"""The most directories that one work of the disk removes: a directory may have hundreds of large segments, whose
removal takes the disk some time."""

OnDone = Callable[[], None]
OnGone = Callable[[str | None], None]
OnWritten = Callable[[KafkaError | None], None]


class _NewLog:
    """An empty log that is being made."""

    __slots__ = ("is_complete", "is_made", "is_wanted", "partition", "topic_id")

    def __init__(self, partition: TopicPartition, topic_id: TopicId) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.is_made = False
        """Whether the files of the log exist; they need not be durable yet."""
        self.is_wanted = True
        """Whether the log has not been deleted meanwhile."""
        self.is_complete = False
        """Whether the log is durable, or deleted, or could not be made: no callback waits for it any more."""


class _Deletion(NamedTuple):
    """A log whose directory has to be renamed."""

    partition: TopicPartition
    topic_id: TopicId
    on_gone: OnGone
    is_damaged: bool = False
    """Whether the log is damaged: then it is kept under a name that only an administrator removes."""


class _DirectoryBatch:
    """A batch of work on directories: made on the event loop, `run` on the disk's thread."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self.made: list[_NewLog] = []
        self.deletions: list[_Deletion] = []
        self.gone: list[tuple[_Deletion, str]] = []
        """Logs whose directories were renamed, with their present paths."""
        self.not_renamed: list[_Deletion] = []
        """Logs that could not be renamed."""
        self.writes: dict[str, CheckpointWrite] = {}
        self.on_written: list[tuple[str, OnWritten]] = []

    def __bool__(self) -> bool:
        return bool(self.made or self.deletions or self.writes)

    def run(self) -> None:
        """Run the batch. Raises StorageError if a sync fails."""
        directory = self._directory
        if self.made:
            directory.sync_made([new.partition for new in self.made])
        if self.deletions:
            for deletion in self.deletions:
                self._rename(deletion)
            directory.sync_names()
        for write in self.writes.values():
            write.run()

    def _rename(self, deletion: _Deletion) -> None:
        directory = self._directory
        renamed = directory.renamed
        rename = renamed.rename_damaged if deletion.is_damaged else renamed.rename_deleted
        try:
            path = rename(deletion.partition, deletion.topic_id)
        except KafkaError as fault:
            # The directory keeps its name. The next log with the deleted log's name tries the rename again when it is
            # opened.
            event = "partition-repair-failed" if deletion.is_damaged else "partition-delete-failed"
            _logger.error("event=%s partition=%s fault=%s", event, deletion.partition, fault)
            self.not_renamed.append(deletion)
        else:
            self.gone.append((deletion, path))


class DirectoryWork:
    """The work of one directory. Everything but a batch runs on the event loop."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        disk: Disk,
        clock: Clock,
        on_durable: Callable[[TopicPartition], None] = lambda _: None,
    ) -> None:
        """`disk` must sync, whatever log.durability is. `on_durable` is called for each new log that has become
        durable; the log may already be in use."""
        self._on_durable = on_durable
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._new: dict[TopicPartition, _NewLog] = {}
        self._to_make: deque[_NewLog] = deque()
        self._next = _DirectoryBatch(directory)
        self._is_busy = False
        self._is_making = False
        self._requested = 0
        """The number of new logs."""
        self._completed = 0
        """The number of new logs that are complete, counted in the order of their requests."""
        self._incomplete: deque[_NewLog] = deque()
        self._on_made = OffsetWaiters()
        self._due_callbacks: deque[OnDone] = deque()
        """Callbacks that are due now."""
        self._deletions: deque[_Deletion] = deque()
        self._to_remove: deque[str] = deque()
        self._is_removing = False

    def make(self, partition: TopicPartition, topic_id: TopicId) -> None:
        """Make an empty log, soon."""
        new = self._new[partition] = _NewLog(partition, topic_id)
        self._requested += 1
        self._incomplete.append(new)
        self._to_make.append(new)
        if not self._is_making:
            self._make_some()

    def ensure_made(self, partition: TopicPartition) -> bool:
        """Make the files of a log now, for the first use of the log; returns whether the files are durable already.

        Raises StorageError.
        """
        new = self._new.get(partition)
        if new is None:
            return True
        self._make_now(new)
        return False

    def is_made(self, partition: TopicPartition) -> bool:
        """Whether no new log of this partition has to become durable."""
        return partition not in self._new

    def when_made(self, callback: OnDone) -> None:
        """Call `callback` when all logs requested so far are durable or deleted, perhaps at once."""
        if self._completed == self._requested:
            callback()
        else:
            self._on_made.add(self._requested, lambda _: self._due_callbacks.append(callback))

    def delete(self, partition: TopicPartition, topic_id: TopicId, on_gone: OnGone) -> None:
        """Rename the directory of an unused log, and remove its entries from the checkpoints.

        `on_gone` gets the new path, None if the log had not been made or could not be renamed; the name is free from
        then on. If the old directory still has the name, the next log of that name is opened from its files: the
        opening tries the rename again, and raises StorageError if the rename fails.
        """
        new = self._new.pop(partition, None)
        if new is not None:
            new.is_wanted = False
            if not new.is_made:
                on_gone(None)
                return
        self._deletions.append(_Deletion(partition, topic_id, on_gone))
        for name in self._directory.forget(partition):
            self._note_write(name)
        self._go_on()

    def rename_damaged(self, partition: TopicPartition, topic_id: TopicId, on_gone: OnGone) -> None:
        """Rename the directory of a damaged, unused log, and then remove its entries from the checkpoints.

        `on_gone` gets the new path, or None if the directory could not be renamed. After a rename the name is free.
        """

        def renamed(path: str | None) -> None:
            if path is None:
                on_gone(None)
                return
            names = self._directory.forget(partition)
            for name in names:
                self._note_write(name)
            if not names:
                on_gone(path)
                return
            # If the last write fails, the log with an older checkpoint counts as damaged, which is safe.
            self._next.on_written.append((names[-1], lambda _: on_gone(path)))
            self._go_on()

        self._deletions.append(_Deletion(partition, topic_id, renamed, is_damaged=True))
        self._go_on()

    def cut_damaged(self, partition: TopicPartition, cut: DamageCut, on_gone: OnGone) -> None:
        """Copy and cut a damaged log that is out of use, and lower its checkpoints.

        `on_gone` gets the path of the copy, None if the log is unchanged: `cut.fault` has the reason.
        """

        def copied() -> None:
            if cut.fault is None and not cut.is_copied:
                self._disk.carry_out(cut.copy_some, copied)
                return
            if cut.fault is None:
                cut.cut()
            if cut.fault is not None:
                on_gone(None)
                return
            first, last = self._directory.finish_cut(partition, cut.end_offset)
            self._note_write(first)
            # If the writes fail, the log with older checkpoints counts as damaged, which is safe.
            self.write_checkpoint(last, lambda _: on_gone(cut.copy_path))

        self._disk.carry_out(cut.copy_some, copied)

    def write_checkpoint(self, name: str, on_written: OnWritten) -> None:
        """Write the present state of a checkpoint file. `on_written` gets the fault if the write has failed."""
        self._note_write(name)
        self._next.on_written.append((name, on_written))
        self._go_on()

    def remove(self, path: str) -> None:
        """Remove a renamed directory, later."""
        self._to_remove.append(path)
        if not self._is_removing:
            self._remove_some()

    def close(self) -> list[TopicPartition]:
        """Sync the new logs, when the disk has been stopped; returns the logs that have not been made.

        Raises StorageError.
        """
        made = [partition for partition, new in self._new.items() if new.is_made]
        if made:
            self._directory.sync_made(made)
        return [partition for partition, new in self._new.items() if not new.is_made]

    def _note_write(self, name: str) -> None:
        self._next.writes.setdefault(name, NO_WRITE)

    def _remove_some(self) -> None:
        """Remove a few directories, and the next few directories after other work of the disk."""
        paths = [self._to_remove.popleft() for _ in range(min(_MOST_REMOVED, len(self._to_remove)))]
        self._is_removing = bool(paths)
        if paths:
            self._disk.carry_out(lambda: self._remove(paths), self._remove_some)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self._directory.renamed.remove(path)

    def _go_on(self) -> None:
        """Begin a batch with everything that waits, unless a batch is under way."""
        if self._is_busy:
            return
        batch = self._next
        while self._deletions and len(batch.deletions) < _MOST_PER_BATCH:
            batch.deletions.append(self._deletions.popleft())
        if batch:
            self._is_busy = True
            self._next = _DirectoryBatch(self._directory)
            for name in batch.writes:
                batch.writes[name] = self._directory.checkpoint(name).begin_write()
            self._disk.carry_out(batch.run, lambda: self._finished(batch))

    def _make_some(self) -> None:
        """Make new logs for a few milliseconds, and more in later turns."""
        self._is_making = True
        self._clock.call_soon(self._make_more)  # set before the work, so that a failing step does not end it
        run_slice(self._making(), self._clock)
        self._go_on()

    def _making(self) -> Iterator[None]:
        made = self._next.made
        while self._to_make and len(made) < _MOST_PER_BATCH:
            new = self._to_make.popleft()
            try:
                if new.is_wanted:
                    self._make_now(new)
                    made.append(new)
                else:
                    self._complete(new)
            except KafkaError as fault:
                # The first use of the log tries again, and reports the fault.
                _logger.error("event=partition-failed partition=%s fault=%s", new.partition, fault)
                self._complete(new)
            except BaseException:
                self._complete(new)
                raise
            yield

    def _make_more(self) -> None:
        """Make more new logs, in a turn of its own, so that no callback runs inside other work."""
        if self._to_make and len(self._next.made) < _MOST_PER_BATCH:
            self._make_some()
        else:
            self._is_making = False
            self._go_on()
        self._call_due()

    def _make_now(self, new: _NewLog) -> None:
        if not new.is_made:
            self._directory.make(new.partition, new.topic_id)
            new.is_made = True

    def _complete(self, new: _NewLog) -> None:
        """Complete this log: the callbacks that wait for this log and for all earlier logs are due."""
        new.is_complete = True
        while self._incomplete and self._incomplete[0].is_complete:
            self._incomplete.popleft()
            self._completed += 1
        self._on_made.reached(self._completed)

    def _finished(self, batch: _DirectoryBatch) -> None:
        self._is_busy = False
        faults = {name: self._directory.checkpoint(name).finish_write(write) for name, write in batch.writes.items()}
        self._due_callbacks.extend(partial(deletion.on_gone, path) for deletion, path in batch.gone)
        for deletion in batch.not_renamed:
            if not deletion.is_damaged:
                self._directory.keep_deleted(deletion.partition)
            self._due_callbacks.append(partial(deletion.on_gone, None))
        self._due_callbacks.extend(partial(on_written, faults[name]) for name, on_written in batch.on_written)
        for new in batch.made:
            if self._new.get(new.partition) is new:
                del self._new[new.partition]
                self._on_durable(new.partition)
            self._complete(new)
        self._go_on()
        if self._to_make and not self._is_making:
            self._make_some()
        self._call_due()

    def _call_due(self) -> None:
        """Run the callbacks that are due; the event loop reports the fault of a callback, and the other callbacks still
        run."""
        run_in_slices(map(call, drain(self._due_callbacks)), self._clock)
