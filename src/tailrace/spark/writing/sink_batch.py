"""The identity of a batch that a query writes, and of an attempt to write a part of it.

Spark makes a new writer object for each batch of a stream, and another writer object in another process to commit the
batch. So the identity of a batch travels with its tasks alone: their local properties name the query, the batch and the
run. A run's name ends with the driver's mark, by which the process that aborts a batch finds its transactions without a
task.
"""

import os
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol
from uuid import uuid4

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import SinkMember, find_member
from tailrace.spark.writing.sink_options import SinkTransactions

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"

BATCH_WRITE = "a batch write"
"""The origin of a batch write, which has no progress. A stream cannot take a batch write's sink, or vice versa."""


class TaskIdentity(Protocol):
    """The part of Spark's TaskContext that tells one attempt from another."""

    def getLocalProperty(self, key: str) -> str | None:  # Spark's names
        """A property of the job."""
        ...

    def partitionId(self) -> int:
        """The task's number in its stage."""
        ...

    def taskAttemptId(self) -> int:
        """A number that no other attempt of the application has."""
        ...


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch of one run of a query, or the rows of one batch write."""

    sink: str
    run: str
    batch: int
    query: str | None = None
    """The id of the streaming query: another checkpoint, also a new checkpoint in the same place, has another id."""
    query_batch: int | None = None
    """The batch of the query whose `foreachBatch` makes this batch write."""

    def origin(self, checkpoint: str | None) -> str:
        """The place where the progress of the writer is kept."""
        if self.query is None:
            return BATCH_WRITE
        if self.query_batch is not None:
            return f"query {self.query} in its batch {self.query_batch}"
        return f"query {self.query}" if checkpoint is None else f"query {self.query} with checkpoint {checkpoint}"

    def member(self, task: TaskIdentity) -> SinkMember:
        """The name of this attempt of a task."""
        return SinkMember(self.sink, self.run, self.batch, task.partitionId(), task.taskAttemptId())

    def has(self, transactional_id: str) -> bool:
        """Whether this is the id of an attempt to write a part of the batch."""
        member = find_member(transactional_id)
        return member is not None and (member.sink, member.run, member.batch) == (self.sink, self.run, self.batch)


def drivers_mark(options: object) -> str | None:
    """A text that this driver's processes have in common for one set of options, and no other driver's.

    Spark gives the directories of its driver, whose names are new for every driver, to the Python processes that plan,
    commit and abort a write. None in any other process.
    """
    directories = os.environ.get("SPARK_LOCAL_DIRS")
    if not directories:
        return None
    return blake2b(f"{directories} {options!r}".encode(), digest_size=8).hexdigest()


def streamed(task: TaskIdentity, transactions: SinkTransactions, mark: str | None = None) -> SinkBatch:
    """The batch that a task of a stream writes, for a driver with this mark.

    Raises KafkaError INVALID_REQUEST (42) outside of a stream.
    """
    query, batch, run = map(task.getLocalProperty, (_QUERY, _BATCH, _RUN))
    if query is None or batch is None or run is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a task without the properties {_QUERY}, {_BATCH} and {_RUN} is no task of a streaming query",
        )
    return SinkBatch(transactions.sink_id or query, run if mark is None else f"{run}.{mark}", int(batch), query)


def marked(transactional_id: str, batch: int, mark: str) -> SinkBatch | None:
    """The batch with this number that the transactional id is a member of, if the driver's mark is in its run."""
    member = find_member(transactional_id)
    if member is None or member.batch != batch or not member.run.endswith(f".{mark}"):
        return None
    return SinkBatch(member.sink, member.run, member.batch)


def written_at_once(transactions: SinkTransactions) -> SinkBatch:
    """The only batch of a batch write. With a sink id of the user the batch is written once."""
    run = uuid4().hex
    return SinkBatch(transactions.sink_id or f"write-{run}", run, 1)


def of_each_batch(written: SinkBatch, task: TaskIdentity) -> SinkBatch:
    """The batch of a batch write, as its task sees the batch: a write of `foreachBatch` belongs to a query's batch.

    So a sink id that stays the same is refused in the query's next batch, even if that batch has the same rows.
    """
    query, batch = map(task.getLocalProperty, (_QUERY, _BATCH))
    return written if query is None or batch is None else replace(written, query=query, query_batch=int(batch))


def given_up(batch: SinkBatch) -> tuple[SinkBatch, SinkBatch]:
    """Empty batches whose commits, one after the other, keep all attempts of a batch from writing any more.

    Both empty batches have the number before `batch`: the first commit makes the batch's run known, the second commit
    is of a later run. The sink may still get its batch from another write, or another run of the query. Not for batch
    0.
    """
    number = batch.batch - 1
    return SinkBatch(batch.sink, batch.run, number), SinkBatch(batch.sink, uuid4().hex, number)
