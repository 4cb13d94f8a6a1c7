"""Produce (0): appends batches to partitions, and answers by the acks of the request.

acks=0: no answer; on any error the connection is closed, the only sign that such a producer notices. acks=1: the answer
is sent when the batches are in the log, at the end of the turn; where no other replica is in sync, when the batches are
flushed and can be read. acks=-1: the answer is sent when the high watermark has passed, or after `timeout_ms` with
REQUEST_TIMED_OUT (7), or NOT_ENOUGH_REPLICAS_AFTER_APPEND (20) if too few replicas are in sync at that time. The
batches stay in the log, and a retry of an idempotent producer finds the batches. A batch whose transaction is not
verified by `timeout_ms` is not in the log yet, and gets REQUEST_TIMED_OUT.

Each partition succeeds or fails alone, and the answer keeps the order of the request. By version: v7 zstd; v8 error
message and the invalid records; v10 the new leader and its address (KIP-951); v12 adds the partitions to the producer's
transaction, in earlier versions the producer itself does that (KIP-890); v13 topic ids instead of names (KIP-516).
"""

from collections.abc import Iterator
from typing import Final

from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.protocol.messages.produce import (
    MAX_FORMS,
    PartitionProduceData,
    ProduceForms,
    ProduceRequest,
    TopicProduceData,
    form_of,
)
from tailrace.protocol.registry import api_of
from tailrace.protocol.schema import Buffer
from tailrace.replication.admission import LargeBatch, Unfolded
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNNAMED, Verification
from tailrace.server.authorizer import PERMIT_ALL
from tailrace.server.callbacks import SLICE_MS
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.metadata.cluster import LeaderEndpoints
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, ServerConnection
from tailrace.server.produce.answers import FIRST_WITH_TOPIC_IDS, PartitionAnswer, SeveralAnswers, SoleAnswer
from tailrace.server.produce.large_batches import LargeBatches
from tailrace.server.produce.transactional_appends import TransactionalAppends, TransactionVerifier
from tailrace.server.waiters import Deadlines

ADMIN_CLIENT: Final = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""

SLICE_BYTES: Final = 4 << 20
"""About the bytes of a request that are staged in one turn, up to the end of a batch: as many bytes as a turn of small
requests has."""
_SLICE_BATCHES: Final = 256
"""The most batches that are staged in one turn: even a small batch takes 10 to 20 us."""

_API_KEY: Final = api_of(ProduceRequest).key
_MOST_MISSES: Final = MAX_FORMS


class ProduceHandler:
    """Answers Produce."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        deadlines: Deadlines,
        clock: Clock,
        verifier: TransactionVerifier,
        is_verified: bool,
        endpoints: LeaderEndpoints,
    ) -> None:
        """`is_verified` is transaction.partition.verification.enable. `endpoints` has the addresses of new leaders."""
        self._verifier = verifier
        self._is_verified = is_verified
        self._partitions = partitions
        self._deadlines = deadlines
        self._clock = clock
        self._endpoints = endpoints
        self._lanes: dict[ServerConnection, _Lane] = {}
        self._large = LargeBatches(clock)

    def handle(self, request: ProduceRequest, context: RequestContext) -> None:
        topics = request.topic_data
        if len(topics) == 1 and len(topics[0].partition_data) == 1:
            (data,) = topics[0].partition_data
            self._handle_sole(request, topics[0], data.index, data.records, context)
            return
        answers = SeveralAnswers(context, request.acks, request.timeout_ms, self._deadlines, self._endpoints)
        transaction = self._transaction_of(request, context)
        batches = ((topic, data) for topic in topics for data in topic.partition_data)
        if not self._append_several(context, answers, batches, transaction):
            context.connection.suspend()
            self._clock.call_soon(lambda: self._append_rest(context, answers, batches, transaction))

    def _append_several(
        self,
        context: RequestContext,
        answers: SeveralAnswers,
        batches: Iterator[tuple[TopicProduceData, PartitionProduceData]],
        transaction: TransactionalAppends | None,
    ) -> bool:
        """Stage batches of about SLICE_BYTES, until SLICE_MS are over; returns whether these were the last batches."""
        clock = self._clock
        now_ms, bytes_left, batches_left = clock.now_ms(), SLICE_BYTES, _SLICE_BATCHES
        until_ms = clock.monotonic_ms() + SLICE_MS  # compressed batches are unfolded: 4 KiB may be 4 MiB
        for topic, data in batches:
            answer = answers.new_answer(topic, data.index)
            self._append(answer, topic, data.index, data.records, now_ms, transaction)
            bytes_left -= len(data.records or b"")
            batches_left -= 1
            if bytes_left <= 0 or not batches_left or clock.monotonic_ms() >= until_ms:
                return False
        answers.staged()
        if transaction is not None:
            transaction.ask()
        return True

    def _append_rest(
        self,
        context: RequestContext,
        answers: SeveralAnswers,
        batches: Iterator[tuple[TopicProduceData, PartitionProduceData]],
        transaction: TransactionalAppends | None,
    ) -> None:
        """Stage the next slice of the batches in a turn of its own."""
        try:
            if self._append_several(context, answers, batches, transaction):
                context.connection.go_on()
            else:
                self._clock.call_soon(lambda: self._append_rest(context, answers, batches, transaction))
        except AssertionError:
            raise
        except Exception:  # no dispatcher catches exceptions of this turn, and the client must not wait for ever
            context.connection.close("Produce failed")
            raise

    def _transaction_of(self, request: ProduceRequest, context: RequestContext) -> TransactionalAppends | None:
        if request.transactional_id is None:
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
        sole = SoleAnswer(context, request.acks, index, topic, request.timeout_ms, self._deadlines, self._endpoints)
        transaction = None if request.transactional_id is None else self._transaction_of(request, context)
        self._append(sole, topic, index, records, self._clock.now_ms(), transaction)
        if not sole.is_open:
            sole.finish()
        elif transaction is not None:
            transaction.ask()

    def take_frame(
        self, connection: ServerConnection, slot: int, frame: memoryview, version: int, correlation_id: int
    ) -> bool:
        """Carry out a request that equals an earlier one of its connection except for partition and records.

        Returns False for any other request: then the request is decoded, and passed to `learn`.
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
        lane.misses_left = _MOST_MISSES
        context = RequestContext(connection, slot, _API_KEY, version, correlation_id, form.client_id, lane.services)
        self._handle_sole(form.request, form.topic, sole[0], sole[1], context)
        return True

    def learn(self, frame: memoryview, request: ProduceRequest, context: RequestContext) -> None:
        """Keep the form of this request, for later requests of its connection."""
        connection = context.connection
        lane = self._lanes.get(connection)
        if lane is None:
            lane = self._lanes[connection] = _Lane(context.services)
            connection.on_close(lambda: self._forget(connection))
        if lane.misses_left > 0:
            lane.misses_left -= 1
            if not lane.misses_left:
                lane.forms = ProduceForms()
            elif (form := form_of(frame, context.api_version, context.client_id, request)) is not None:
                lane.forms.add(form)

    def _forget(self, connection: ServerConnection) -> None:
        self._lanes.pop(connection, None)

    def _append(
        self,
        answer: PartitionAnswer,
        topic: TopicProduceData,
        index: int,
        records: Buffer | None,
        now_ms: int,
        transaction: TransactionalAppends | None,
    ) -> None:
        """Stage one batch. Afterwards `answer` is open, or has the refusal of the batch."""
        context, acks = answer.context, answer.acks
        version = context.api_version
        try:
            if context.services.authorizer is not PERMIT_ALL:
                _check_access(context, topic, transaction)
            if version < FIRST_WITH_TOPIC_IDS:
                partition = self._partitions.get(topic.name, index)
            else:
                partition = self._partitions.get_by_id(topic.topic_id, index)
            if not -1 <= acks <= 1:  # the error of an unknown partition comes first, as in Kafka
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks}; there are -1, 0 and 1")
            if partition.is_internal and context.client_id != ADMIN_CLIENT:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic_partition.topic} is written by brokers only"
                )
            if transaction is None:
                self._append_batch(answer, partition, records, UNNAMED, now_ms)
            else:
                self._append_in_transaction(answer, partition, records, transaction)
        except KafkaError as refusal:
            answer.refuse(refusal)
        else:
            answer.partition = partition
            answer.is_open = True

    def _append_in_transaction(
        self, answer: PartitionAnswer, partition: Partition, records: Buffer | None, transaction: TransactionalAppends
    ) -> None:
        """Stage the batch, or hold it until the coordinator has confirmed the partition of the transaction."""

        def append(records: Buffer | None, verification: Verification | None) -> None:
            self._append_batch(answer, partition, records, verification, self._clock.now_ms())

        def append_held(records: Buffer | None, verification: Verification | None) -> None:
            """Append a held batch, behind an earlier batch of the connection that is still being unfolded."""

            def on_turn(dropped: KafkaError | None) -> None:
                try:
                    if dropped is not None:
                        raise dropped
                    append(records, verification)
                except KafkaError as refusal:
                    answer.complete(refusal)

            if not self._large.follow(answer.context.connection, on_turn):
                append(records, verification)

        if not transaction.hold(partition, records, append_held, refuse=answer.complete):
            append(records, transaction.default)

    def _append_batch(
        self,
        answer: PartitionAnswer,
        partition: Partition,
        records: Buffer | None,
        verification: Verification | None,
        now_ms: int,
        unfolded: Unfolded | None = None,
    ) -> None:
        """Stage the batch, a large batch in a later turn. Raises KafkaError for a batch that is refused at once."""
        try:
            partition.append_as_leader(
                records,
                acks=answer.acks,
                produce_version=answer.context.api_version,
                now_ms=now_ms,
                on_done=answer.written,
                verification=verification,
                unfolded=unfolded,
            )
        except LargeBatch as large:

            def append(unfolded: Unfolded | KafkaError) -> None:
                try:
                    if isinstance(unfolded, KafkaError):
                        raise unfolded
                    self._append_batch(answer, partition, records, verification, self._clock.now_ms(), unfolded)
                except KafkaError as refusal:
                    answer.complete(refusal)

            self._large.unfold(large, answer.context.connection, append)


def _check_access(context: RequestContext, topic: TopicProduceData, transaction: TransactionalAppends | None) -> None:
    """Raises KafkaError if the client may not write to the topic, or with the transactional id."""
    if transaction is not None:
        transactional_id = SecuredResource(SecuredType.TRANSACTIONAL_ID, transaction.transactional_id)
        context.check(Operation.WRITE, transactional_id)
    by_name = context.api_version < FIRST_WITH_TOPIC_IDS
    name, topic_id = (topic.name, ZERO_TOPIC_ID) if by_name else ("", topic.topic_id)
    context.check(Operation.WRITE, SecuredResource(SecuredType.TOPIC, name, topic_id))


class _Lane:
    """The known forms of the requests of one connection, and the number of further requests that may have an unknown
    form."""

    __slots__ = ("forms", "misses_left", "services")

    def __init__(self, services: RequestServices) -> None:
        self.services = services
        self.forms = ProduceForms()
        self.misses_left = _MOST_MISSES
        """The number of requests in a row that may differ from all forms; at 0 no more forms are kept."""
