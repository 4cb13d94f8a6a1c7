"""The identity of a batch that a query writes, and of an attempt to write a part of it.

Spark makes a new writer object for each batch of a stream, and another one in another process to commit it. So the
identity of a batch travels with its tasks alone: their local properties name the query, the batch and the run.
"""

from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import SinkMember, find_member
from tailrace.spark.sink_options import SinkTransactions

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"


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
    """The id of the streaming query: another checkpoint, also one made anew in the same place, has another one."""

    def origin(self, checkpoint: str | None) -> str | None:
        """The place where the progress of the writer is kept; None for a batch write."""
        if self.query is None:
            return None
        return f"query {self.query}" if checkpoint is None else f"query {self.query} with checkpoint {checkpoint}"

    def member(self, task: TaskIdentity) -> SinkMember:
        """The name of this attempt of a task."""
        return SinkMember(self.sink, self.run, self.batch, task.partitionId(), task.taskAttemptId())

    def has(self, transactional_id: str) -> bool:
        """Whether this is the id of an attempt to write a part of the batch."""
        member = find_member(transactional_id)
        return member is not None and (member.sink, member.run, member.batch) == (self.sink, self.run, self.batch)


def streamed(task: TaskIdentity, transactions: SinkTransactions) -> SinkBatch:
    """The batch that a task of a stream writes. Raises KafkaError INVALID_REQUEST (42) outside of a stream."""
    query, batch, run = map(task.getLocalProperty, (_QUERY, _BATCH, _RUN))
    if query is None or batch is None or run is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a task without the properties {_QUERY}, {_BATCH} and {_RUN} is no task of a streaming query",
        )
    return SinkBatch(transactions.sink_id or query, run, int(batch), query)


def written_at_once(transactions: SinkTransactions) -> SinkBatch:
    """The one batch of a batch write. With a sink id of the user it is written once for ever."""
    run = uuid4().hex
    return SinkBatch(transactions.sink_id or f"write-{run}", run, 1)


def given_up(batch: SinkBatch) -> tuple[SinkBatch, SinkBatch]:
    """Empty batches whose commits, one after the other, keep all attempts of a batch write from writing any more.

    They have the number before: the first one makes the write's run known, the second one is of a run that follows it.
    The sink may still get its batch from another write.
    """
    number = batch.batch - 1
    return SinkBatch(batch.sink, batch.run, number), SinkBatch(batch.sink, uuid4().hex, number)
