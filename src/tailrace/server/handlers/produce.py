"""Produce (0): batches into partitions, and an answer when they are as safe as the producer asked for.

acks=0: no answer at all; on any error the connection is closed, which is all such a producer can notice.
acks=1: the answer leaves once the batches are in the log, at the end of the turn.
acks=-1: the answer leaves once the high watermark has passed them, or at `timeout_ms` with REQUEST_TIMED_OUT (7), or
    NOT_ENOUGH_REPLICAS_AFTER_APPEND (20) if too few replicas are in sync by then; the batches stay in the log, and a
    retry of an idempotent producer finds them.

Each partition succeeds or fails alone, and the answer has them in the order of the request. By version: v7 zstd; v8
error message and the records at fault; v10 who leads instead (KIP-951); v12 adds the partitions to the producer's
transaction, which earlier ones must have done (KIP-890); v13 topic ids instead of names (KIP-516).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.produce import (
    MAX_FORMS,
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceForms,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    encode_produced,
    form_of,
)
from tailrace.protocol.schema import Buffer
from tailrace.replication.admission import InvalidRecords
from tailrace.replication.outcomes import Appended, NotLeader
from tailrace.replication.partition import Partition
from tailrace.replication.verification import Verification
from tailrace.server.context import RequestContext
from tailrace.server.data.partitions import PartitionTable
from tailrace.server.data.transactional_appends import TransactionalAppends
from tailrace.server.ports import Clock, ServerConnection
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.transaction_verifier import TransactionVerifier
from tailrace.server.waiters import Deadlines

ADMIN_CLIENT: Final = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""
FIRST_WITH_TOPIC_IDS: Final = 13
MAX_TIMEOUT_MS: Final = 300_000
"""The longest a producer may wait for acks=-1: a limit of ours."""

_ALL: Final = -1
_PATIENCE: Final = MAX_FORMS
_NO_LEADER_HINT = LeaderIdAndEpoch()


class ProduceHandler:
    """Answers Produce."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        deadlines: Deadlines,
        clock: Clock,
        verifier: TransactionVerifier | None = None,
        is_verified: bool = True,
    ) -> None:
        """`verifier` asks about transactions; without one, none is open. `is_verified`: whether it is asked at all.

        That is transaction.partition.verification.enable.
        """
        self._verifier = verifier
        self._is_verified = is_verified
        self._partitions = partitions
        self._deadlines = deadlines
        self._clock = clock
        self._lanes: dict[ServerConnection, _Lane] = {}

    def handle(self, request: ProduceRequest, context: RequestContext) -> None:
        topics = request.topic_data
        if len(topics) == 1 and len(topics[0].partition_data) == 1:
            (data,) = topics[0].partition_data
            self._handle_sole(request, topics[0], data.index, data.records, context)
            return
        now_ms = self._clock.now_ms()
        produce = _Produce(context, request.acks, request.timeout_ms, self._deadlines)
        transaction = self._transaction_of(request, context)
        for topic in topics:
            for data in topic.partition_data:
                answer = produce.new_answer(topic, data.index)
                self._append(answer, topic, data.index, data.records, now_ms, transaction)
        produce.staged()
        if transaction is not None:
            transaction.ask()

    def _transaction_of(self, request: ProduceRequest, context: RequestContext) -> TransactionalAppends | None:
        if request.transactional_id is None or self._verifier is None:
            return None
        return TransactionalAppends(
            request.transactional_id,
            produce_version=context.api_version,
            verifier=self._verifier,
            is_verified=self._is_verified,
        )

    def _handle_sole(
        self,
        request: ProduceRequest,
        topic: TopicProduceData,
        index: int,
        records: Buffer | None,
        context: RequestContext,
    ) -> None:
        sole = _SoleAnswer(context, request.acks, index, topic, request.timeout_ms, self._deadlines)
        transaction = None if request.transactional_id is None else self._transaction_of(request, context)
        self._append(sole, topic, index, records, self._clock.now_ms(), transaction)
        if not sole.is_open:
            sole.finish()
        elif transaction is not None:
            transaction.ask()

    def take_frame(
        self, connection: ServerConnection, slot: int, frame: memoryview, version: int, correlation_id: int
    ) -> bool:
        """Carry out a request that is like one before it of its connection, but for partition and records.

        False: it is not, and has to be decoded; `learn` is told then what it was.
        """
        lane = self._lanes.get(connection)
        if lane is None:
            return False
        forms = lane.forms
        form = forms.last
        if form is None or form.version != version:
            return False
        sole = form.read(frame)
        if sole is None:
            form = forms.find(frame)
            if form is None or form.version != version or (sole := form.read(frame)) is None:
                return False
        lane.patience = _PATIENCE
        context = RequestContext(
            connection=connection,
            slot=slot,
            api_key=0,
            api_version=version,
            correlation_id=correlation_id,
            client_id=form.client_id,
            errors=lane.errors,
        )
        self._handle_sole(form.request, form.topic, sole[0], sole[1], context)
        return True

    def learn(self, frame: memoryview, request: ProduceRequest, context: RequestContext) -> None:
        """Remember what the requests of this connection are like, if some are alike."""
        connection = context.connection
        lane = self._lanes.get(connection)
        if lane is None:
            lane = self._lanes[connection] = _Lane(context.errors)
            connection.on_close(lambda: self._forget(connection))
        if lane.patience > 0:
            lane.patience -= 1
            if not lane.patience:
                lane.forms = ProduceForms()
            elif (form := form_of(frame, context.api_version, context.client_id, request)) is not None:
                lane.forms.add(form)

    def _forget(self, connection: ServerConnection) -> None:
        self._lanes.pop(connection, None)

    def _append(
        self,
        answer: "_Answer",
        topic: TopicProduceData,
        index: int,
        records: Buffer | None,
        now_ms: int,
        transaction: TransactionalAppends | None,
    ) -> None:
        """Stage one batch; `answer` is open then, or it knows why the batch was refused."""
        context, acks = answer.context, answer.acks
        version = context.api_version
        try:
            if not -1 <= acks <= 1:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks}; there are -1, 0 and 1")
            if version < FIRST_WITH_TOPIC_IDS:
                partition = self._partitions.get(topic.name, index)
            else:
                partition = self._partitions.get_by_id(topic.topic_id, index)
            if partition.is_internal and context.client_id != ADMIN_CLIENT:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic_partition.topic} is written by brokers only"
                )
            if transaction is None:
                partition.append_as_leader(
                    records, acks=acks, produce_version=version, now_ms=now_ms, on_done=answer.written
                )
            else:
                self._append_in_transaction(answer, partition, records, transaction)
        except KafkaError as refusal:
            answer.refuse(refusal)
        else:
            answer.partition = partition
            answer.is_open = True

    def _append_in_transaction(
        self, answer: "_Answer", partition: Partition, records: Buffer | None, transaction: TransactionalAppends
    ) -> None:
        """Stage the batch, or have it wait until its transaction is known to include the partition."""

        def append(records: Buffer | None, verification: Verification | None) -> None:
            partition.append_as_leader(
                records,
                acks=answer.acks,
                produce_version=answer.context.api_version,
                now_ms=self._clock.now_ms(),
                on_done=answer.written,
                verification=verification,
            )

        if not transaction.hold(partition, records, append, refuse=answer.passed):
            append(records, transaction.default)


class _Lane:
    """What is known of one connection: the forms of its requests, and whether it is worth looking at forms."""

    __slots__ = ("errors", "forms", "patience")

    def __init__(self, errors: ResponseErrors | None) -> None:
        self.errors = errors
        self.forms = ProduceForms()
        self.patience = _PATIENCE
        """So many requests in a row may differ from those before; then all are decoded, and none is looked at."""


class _Refusal(NamedTuple):
    """Code and words of an error. Not the error itself: its traceback would keep the request's bytes alive."""

    error_code: int
    error_message: str | None
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()
    leader: LeaderIdAndEpoch = _NO_LEADER_HINT


class _Answer(ABC):
    """What one partition answers, as far as it is known. Keeps none of the request's bytes: they are used again."""

    __slots__ = ("acks", "appended", "context", "index", "is_open", "partition", "refusal", "topic_id", "topic_name")

    def __init__(self, context: RequestContext, acks: int, index: int, topic: TopicProduceData) -> None:
        self.context = context
        self.acks = acks
        self.index = index
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.is_open = False
        self.partition: Partition | None = None
        self.appended: Appended | None = None
        self.refusal: _Refusal | None = None

    @abstractmethod
    def wait(self) -> None:
        """The partition waits for its high watermark: from now on there is a deadline."""

    @abstractmethod
    def closed(self) -> None:
        """The partition's answer is known."""

    def written(self, outcome: Appended | KafkaError) -> None:
        """The batch is in the log, or could not be written."""
        if isinstance(outcome, KafkaError):
            self.refuse(outcome)
        else:
            self.appended = outcome
            if self.acks == _ALL:
                partition, end_offset = self.partition, outcome.last_offset + 1
                assert partition is not None
                if partition.high_watermark < end_offset:
                    self.wait()
                    partition.when_high_watermark_reaches(end_offset, self.passed)
                    return
        self.is_open = False
        self.closed()

    def passed(self, failure: KafkaError | None) -> None:
        """The high watermark has passed the batch, or never will as far as this broker knows."""
        if not self.is_open:
            return  # timed out before
        if failure is not None:
            self.refuse(failure)
        self.is_open = False
        self.closed()

    def time_out(self, timeout_ms: int) -> None:
        """Not safe within the producer's timeout, if it is not safe yet."""
        if self.is_open:
            self.is_open = False
            partition = self.partition
            is_enough = partition is None or partition.has_enough_in_sync
            self.refusal = _Refusal(
                ErrorCode.REQUEST_TIMED_OUT if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"in the leader's log, but not on enough replicas after {timeout_ms} ms",
            )

    def refuse(self, error: KafkaError) -> None:
        """Answer with this error."""
        record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()
        leader = _NO_LEADER_HINT
        if isinstance(error, InvalidRecords):
            record_errors = tuple(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            )
        elif isinstance(error, NotLeader) and error.leader != NO_LEADER:
            leader = LeaderIdAndEpoch(leader_id=error.leader, leader_epoch=error.leader_epoch)
        self.refusal = _Refusal(error.code, error.detail or None, record_errors, leader)

    def response(self) -> PartitionProduceResponse:
        """The partition's part of the answer."""
        refusal, appended = self.refusal, self.appended
        if refusal is not None:
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


class _SoleAnswer(_Answer):
    """A request of one partition: most requests of most clients. It is its own deadline and its own end."""

    __slots__ = ("_deadlines", "_is_waiting", "_timeout_ms")

    def __init__(
        self,
        context: RequestContext,
        acks: int,
        index: int,
        topic: TopicProduceData,
        timeout_ms: int,
        deadlines: Deadlines,
    ) -> None:
        self.context = context
        self.acks = acks
        self.index = index
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.is_open = False
        self.appended = None
        self.refusal = None
        self._timeout_ms = timeout_ms
        self._deadlines = deadlines
        self._is_waiting = False

    def wait(self) -> None:
        self._timeout_ms = _bounded(self._timeout_ms)
        self._is_waiting = True
        self._deadlines.add(self, self._timeout_ms)

    def closed(self) -> None:
        if self._is_waiting:
            self._deadlines.remove(self, self._timeout_ms)
        self.finish()

    def expire(self) -> None:
        """The producer's timeout is over."""
        self.time_out(self._timeout_ms)
        self.finish()

    def finish(self) -> None:
        """Send the answer."""
        context, appended = self.context, self.appended
        if self.refusal is None and self.acks and appended is not None:
            version = context.api_version
            context.respond_encoded(
                encode_produced(
                    version,
                    context.correlation_id,
                    self.topic_name if version < FIRST_WITH_TOPIC_IDS else self.topic_id,
                    self.index,
                    appended.base_offset,
                    appended.log_append_time_ms,
                    appended.log_start_offset,
                )
            )
        else:
            _finish(context, self.acks, (self,))


class _Produce:
    """A request of several partitions, or of none, until it is answered."""

    __slots__ = ("_acks", "_answers", "_context", "_deadlines", "_is_waiting", "_open_answers", "_timeout_ms")

    def __init__(self, context: RequestContext, acks: int, timeout_ms: int, deadlines: Deadlines) -> None:
        self._context = context
        self._acks = acks
        self._timeout_ms = _bounded(timeout_ms)
        self._deadlines = deadlines
        self._is_waiting = False
        self._open_answers = 0
        self._answers: list[_PartOfAnswer] = []

    def new_answer(self, topic: TopicProduceData, index: int) -> "_PartOfAnswer":
        """The answer of the next partition, in the order of the request."""
        answer = _PartOfAnswer(self, self._context, self._acks, index, topic)
        self._answers.append(answer)
        return answer

    def staged(self) -> None:
        """Every partition is staged or refused."""
        self._open_answers = sum(answer.is_open for answer in self._answers)
        if self._open_answers == 0:
            self._finish()

    def wait(self) -> None:
        """At least one partition waits for its high watermark."""
        if not self._is_waiting:
            self._is_waiting = True
            self._deadlines.add(self, self._timeout_ms)

    def one_closed(self) -> None:
        """One more partition's answer is known."""
        self._open_answers -= 1
        if self._open_answers == 0:
            if self._is_waiting:
                self._deadlines.remove(self, self._timeout_ms)
            self._finish()

    def expire(self) -> None:
        """The producer's timeout is over."""
        for answer in self._answers:
            answer.time_out(self._timeout_ms)
        self._finish()

    def _finish(self) -> None:
        answers, self._answers = self._answers, []  # they know this object: no cycle is left for the collector
        _finish(self._context, self._acks, answers)


class _PartOfAnswer(_Answer):
    """One partition of several."""

    __slots__ = ("_produce",)

    def __init__(
        self, produce: _Produce, context: RequestContext, acks: int, index: int, topic: TopicProduceData
    ) -> None:
        super().__init__(context, acks, index, topic)
        self._produce = produce

    def wait(self) -> None:
        self._produce.wait()

    def closed(self) -> None:
        self._produce.one_closed()


def _bounded(timeout_ms: int) -> int:
    return min(max(0, timeout_ms), MAX_TIMEOUT_MS)


def _finish(context: RequestContext, acks: int, answers: Sequence[_Answer]) -> None:
    """Send the answer that the acks ask for."""
    if acks != 0:
        topics = (
            TopicProduceResponse(
                name=name, topic_id=topic_id, partition_responses=tuple(answer.response() for answer in of_topic)
            )
            for (name, topic_id), of_topic in groupby(answers, key=lambda answer: (answer.topic_name, answer.topic_id))
        )
        context.respond(ProduceResponse(responses=tuple(topics)))
        return
    for answer in answers:
        if answer.refusal is not None:
            where, code = f"{answer.topic_name}-{answer.index}", ErrorCode(answer.refusal.error_code).name
            context.connection.close(f"produce with acks=0 failed for {where}: {code}")
            return
    context.respond_nothing()
