"""The answer to a Produce request in the making: the answers of its partitions, and the time at which the answer is
sent.

The answer of a partition is known when its batch is refused or in the log; with acks=-1 when the high watermark has
passed the batch, or at the producer's deadline; with acks=1 and no other replica in sync when the leader has flushed
the batch, so that it can be read (decision 0078). No answer keeps bytes of the request, whose buffer is used again.

`timeout_ms` is the producer's time limit for replicas. The leader's own flush has another time limit, OWN_FLUSH_MS: so
a timeout of some milliseconds does not fail a batch that waits only for the leader's disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    NewerLeader,
    NewerLeaderEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    encode_produced,
)
from tailrace.replication.admission import InvalidRecords
from tailrace.replication.outcomes import Appended, NotLeader
from tailrace.replication.partition import Partition
from tailrace.server.context import RequestContext
from tailrace.server.metadata.cluster import LeaderEndpoints
from tailrace.server.slices import Stepwise, mapped_in
from tailrace.server.waiters import Deadlines

FIRST_WITH_ENDPOINTS: Final = 10
FIRST_WITH_TOPIC_IDS: Final = 13
MAX_TIMEOUT_MS: Final = 300_000
"""The longest wait of a producer for acks=-1: a limit of ours."""
OWN_FLUSH_MS: Final = 5_000
"""The time limit of the leader's own flush, which `timeout_ms` does not shorten. A disk that takes longer hangs:
then acks=-1 is refused, unless `timeout_ms` is longer, and acks=1 gets the answer that it gets with other replicas
in sync."""

MOST_NAMED_TOGETHER: Final = 1_000
"""The most faulty records that an answer names, for all its partitions together; later partitions get their errors
without the names of records."""

_ALL: Final = -1
_LEADER: Final = 1
_NO_LEADER_HINT = NewerLeader()


class _Refusal(NamedTuple):
    """Code and text of an error. The error itself is not kept, as its traceback would keep the request's bytes
    alive."""

    error_code: int
    error_message: str | None
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()
    leader: NewerLeader = _NO_LEADER_HINT


class PartitionAnswer(ABC):
    """The answer of a partition in the making.

    Each kind sets the attributes itself: a common constructor would cost each request a call.
    """

    __slots__ = ("acks", "appended", "context", "index", "is_open", "partition", "refusal", "topic_id", "topic_name")

    context: RequestContext
    acks: int
    index: int
    topic_name: str
    topic_id: bytes
    is_open: bool
    partition: Partition
    """Set before the answer is open."""
    appended: Appended | None
    refusal: _Refusal | None

    @abstractmethod
    def wait(self) -> None:
        """Called when the partition waits for its high watermark: a deadline begins."""

    @abstractmethod
    def closed(self) -> None:
        """Called when the partition's answer is known."""

    def records_named(self, count: int) -> int:
        """The number of faulty records that the answer names, out of `count`."""
        return count

    def written(self, outcome: Appended | KafkaError) -> None:
        """Take the place of the batch in the log, or the error of the write; then answer, or wait as the acks ask."""
        if not self.is_open:
            return  # the answer has timed out; a retry finds the batch in the log
        if isinstance(outcome, KafkaError):
            self.refuse(outcome)
        else:
            self.appended = outcome
            partition, replica, end_offset = self.partition, self.partition.replica, outcome.last_offset + 1
            if self.acks and replica.high_watermark.offset < end_offset:  # the batch cannot be read yet
                if self.acks == _ALL:
                    self.wait()
                    replica.when_high_watermark_reaches(end_offset, self.complete)
                    return
                if partition.in_sync.waits_for_own_flush(end_offset) and partition.in_sync.is_alone:
                    self.wait()
                    replica.when_flushed(end_offset, self.complete)
                    return
                partition.note_acknowledged(end_offset)
        self.is_open = False
        self.closed()

    def complete(self, failure: KafkaError | None) -> None:
        """Close the answer: the wait for the batch is over, or has failed."""
        if not self.is_open:
            return  # the answer has timed out before
        if failure is not None:
            self.refuse(failure)
        self.is_open = False
        self.closed()

    @property
    def waits_for_own_flush(self) -> bool:
        """Whether the batch waits only for the leader's own flush."""
        appended = self.appended
        if not self.is_open or appended is None:
            return False
        return self.acks == _LEADER or self.partition.in_sync.waits_for_own_flush(appended.last_offset + 1)

    def time_out(self, timeout_ms: int) -> None:
        """End the wait, unless the answer is known: the time is over. A written batch with acks=1 is answered without
        an error; any other batch is refused."""
        if self.is_open:
            own_flush = self.waits_for_own_flush
            self.is_open = False
            if self.appended is None:
                self.refusal = _Refusal(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"not in the log after {timeout_ms} ms (its transaction is not verified, or its records are not"
                    " checked yet); it may still be written later",
                )
                return
            end_offset = self.appended.last_offset + 1
            self.partition.replica.cancel_wait(end_offset, self.complete)  # the high watermark may take hours
            if self.acks == _LEADER:
                self.partition.note_acknowledged(end_offset)
                return
            is_enough = self.partition.in_sync.has_enough
            self.refusal = _Refusal(
                ErrorCode.REQUEST_TIMED_OUT if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"in the leader's log, but not {'on its disk' if own_flush else 'on enough replicas'} after"
                f" {timeout_ms} ms",
            )

    def refuse(self, error: KafkaError) -> None:
        """Answer with this error."""
        record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()
        leader = _NO_LEADER_HINT
        if isinstance(error, InvalidRecords):
            named = error.record_errors
            record_errors = tuple(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in named[: self.records_named(len(named))]
            )
        elif isinstance(error, NotLeader) and error.leader != NO_LEADER:
            leader = NewerLeader(leader_id=error.leader, leader_epoch=error.leader_epoch)
        self.refusal = _Refusal(error.code, error.detail or None, record_errors, leader)

    def response(self, leaders: list[int]) -> PartitionProduceResponse:
        """The partition's part of the response. If the part names a leader, the leader is added to `leaders`."""
        refusal, appended = self.refusal, self.appended
        if refusal is not None:
            if refusal.leader is not _NO_LEADER_HINT:
                leaders.append(refusal.leader.leader_id)
            return PartitionProduceResponse(
                index=self.index,
                error_code=refusal.error_code,
                base_offset=-1,
                record_errors=refusal.record_errors,
                error_message=refusal.error_message,
                current_leader=refusal.leader,
            )
        assert appended is not None
        return PartitionProduceResponse(
            index=self.index,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=appended.log_start_offset,
        )


class SoleAnswer(PartitionAnswer):
    """The answer to a request of one partition, as most requests are. The answer has its own deadline, and sends
    itself."""

    __slots__ = ("_deadlines", "_endpoints", "_is_waiting", "_timeout_ms", "_waited_ms")

    def __init__(
        self,
        context: RequestContext,
        acks: int,
        index: int,
        topic: TopicProduceData,
        timeout_ms: int,
        deadlines: Deadlines,
        endpoints: LeaderEndpoints,
    ) -> None:
        self.context = context
        self.acks = acks
        self.index = index
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.is_open = self._is_waiting = False
        self.appended = self.refusal = None
        self._timeout_ms = timeout_ms
        self._deadlines = deadlines
        self._endpoints = endpoints

    def wait(self) -> None:
        # acks=1 waits for no replica, so the producer's timeout does not count
        self._timeout_ms = OWN_FLUSH_MS if self.acks == _LEADER else min(max(0, self._timeout_ms), MAX_TIMEOUT_MS)
        self._waited_ms = 0
        self._is_waiting = True
        self._deadlines.add(self, self._timeout_ms)

    def closed(self) -> None:
        if self._is_waiting:
            self._deadlines.remove(self, self._timeout_ms)
        self.finish()

    def expire(self) -> None:
        """Answer, since the producer's timeout is over, or wait on for the leader's own flush."""
        self._waited_ms += self._timeout_ms
        if self._waited_ms < OWN_FLUSH_MS and self.waits_for_own_flush:
            self._timeout_ms = OWN_FLUSH_MS - self._waited_ms
            self._deadlines.add(self, self._timeout_ms)
            return
        self.time_out(self._waited_ms)
        self.finish()

    def finish(self) -> None:
        """Send the answer."""
        context, appended = self.context, self.appended
        if self.refusal is None and self.acks and appended is not None and not context.is_metered:
            version = context.api_version
            encoded = encode_produced(
                version,
                context.correlation_id,
                self.topic_name if version < FIRST_WITH_TOPIC_IDS else self.topic_id,
                self.index,
                appended.base_offset,
                appended.log_append_time_ms,
                appended.log_start_offset,
            )
            context.connection.answer(context.slot, (encoded,))
        else:
            _finish(context, self.acks, (self,), self._endpoints)


class SeveralAnswers:
    """The answer to a request of several partitions, or of no partition."""

    __slots__ = (
        "_acks",
        "_answers",
        "_context",
        "_deadlines",
        "_endpoints",
        "_is_staged",
        "_is_waiting",
        "_names_left",
        "_open_answers",
        "_timeout_ms",
        "_waited_ms",
    )

    def __init__(
        self,
        context: RequestContext,
        acks: int,
        timeout_ms: int,
        deadlines: Deadlines,
        endpoints: LeaderEndpoints,
    ) -> None:
        self._context = context
        self._acks = acks
        self._timeout_ms = OWN_FLUSH_MS if acks == _LEADER else min(max(0, timeout_ms), MAX_TIMEOUT_MS)
        self._waited_ms = 0
        self._deadlines = deadlines
        self._endpoints = endpoints
        self._is_staged = False
        self._is_waiting = False
        self._open_answers = 0
        self._names_left = MOST_NAMED_TOGETHER
        self._answers: list[_PartOfAnswer] = []

    def new_answer(self, topic: TopicProduceData, index: int) -> "_PartOfAnswer":
        """The answer of the next partition, in the order of the request."""
        answer = _PartOfAnswer(self, self._context, self._acks, index, topic)
        self._answers.append(answer)
        return answer

    def staged(self) -> None:
        """Count the open answers: every partition is staged or refused, and some may be written."""
        self._is_staged = True
        self._open_answers = sum(answer.is_open for answer in self._answers)
        if self._open_answers == 0:
            self._finish()
        elif self._is_waiting:
            self._deadlines.add(self, self._timeout_ms)

    def wait(self) -> None:
        """Begin the deadline when all partitions are staged: at least one partition waits for its high watermark."""
        if not self._is_waiting:
            self._is_waiting = True
            if self._is_staged:
                self._deadlines.add(self, self._timeout_ms)

    def part_closed(self) -> None:
        """Note that the answer of another partition is known."""
        if not self._is_staged:
            return  # `staged` counts this answer
        self._open_answers -= 1
        if self._open_answers == 0:
            if self._is_waiting:
                self._deadlines.remove(self, self._timeout_ms)
            self._finish()

    def records_named(self, count: int) -> int:
        """The number of faulty records that the next answer of a partition names, out of `count`."""
        count = min(count, self._names_left)
        self._names_left -= count
        return count

    def expire(self) -> None:
        """Answer, since the producer's timeout is over, or wait on for the leader's own flush."""
        self._waited_ms += self._timeout_ms
        if self._waited_ms < OWN_FLUSH_MS and any(answer.waits_for_own_flush for answer in self._answers):
            for answer in self._answers:
                if answer.is_open and not answer.waits_for_own_flush:
                    answer.time_out(self._waited_ms)
                    self._open_answers -= 1
            self._timeout_ms = OWN_FLUSH_MS - self._waited_ms
            self._deadlines.add(self, self._timeout_ms)
            return
        for answer in self._answers:
            answer.time_out(self._waited_ms)
        self._finish()

    def _finish(self) -> None:
        answers, self._answers = self._answers, []  # the answers refer to this object: leave no reference cycle
        _finish(self._context, self._acks, answers, self._endpoints)


class _PartOfAnswer(PartitionAnswer):
    """The answer of a partition among several."""

    __slots__ = ("_several",)

    def __init__(
        self, several: SeveralAnswers, context: RequestContext, acks: int, index: int, topic: TopicProduceData
    ) -> None:
        self.context, self.acks, self.index = context, acks, index
        self.topic_name, self.topic_id = topic.name, topic.topic_id
        self.is_open = False
        self.appended = self.refusal = None
        self._several = several

    def wait(self) -> None:
        self._several.wait()

    def closed(self) -> None:
        self._several.part_closed()

    def records_named(self, count: int) -> int:
        return self._several.records_named(count)


def _finish(context: RequestContext, acks: int, answers: Sequence[PartitionAnswer], endpoints: LeaderEndpoints) -> None:
    """Send the answer, by the acks of the request."""
    if acks != 0:
        context.respond_in_steps(_response(context, answers, endpoints))
        return
    for answer in answers:
        if answer.refusal is not None:
            where, code = f"{answer.topic_name}-{answer.index}", ErrorCode(answer.refusal.error_code).name
            context.connection.close(f"produce with acks=0 failed for {where}: {code}")
            return
    context.respond_nothing()


def _response(
    context: RequestContext, answers: Sequence[PartitionAnswer], endpoints: LeaderEndpoints
) -> Stepwise[ProduceResponse]:
    leaders: list[int] = []
    topics = yield from mapped_in(
        groupby(answers, key=lambda answer: (answer.topic_name, answer.topic_id)),
        lambda group: group[1],
        lambda _, answer: answer.response(leaders),
        lambda group, responses: TopicProduceResponse(
            name=group[0][0], topic_id=group[0][1], partition_responses=responses
        ),
    )
    node_endpoints: tuple[NewerLeaderEndpoint, ...] = ()
    if leaders and context.api_version >= FIRST_WITH_ENDPOINTS:
        node_endpoints = endpoints.of(leaders, context.identity.listener_name, NewerLeaderEndpoint)
    return ProduceResponse(responses=topics, node_endpoints=node_endpoints)
