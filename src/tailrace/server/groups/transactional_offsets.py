"""TxnOffsetCommit (28): a group's offsets, committed when a producer's transaction commits (KIP-98, KIP-447).

Before the first offset of a transaction, the transaction coordinator verifies that the transaction is open and includes
the group's partition (KIP-890). With v5 the coordinator adds the partition; before v5 the producer has added it
(AddOffsetsToTxn). By version: v2 leader epochs; v3 the consumer's identity; v4 error 120.

An offset that a transaction has set is pending: OffsetFetch shows the offset when the transaction has committed. Until
then a request that requires stable offsets gets error 88.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tailrace.coordinators.groups.commands import CommitOffsets
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tailrace.replication.verification import UNVERIFIED, Verification
from tailrace.server.context import RequestContext
from tailrace.server.coordination.coordinator_log import InTransaction
from tailrace.server.groups.host import GroupCoordinatorHost, GroupCoordinatorService
from tailrace.server.groups.requested_offsets import RequestedOffsets
from tailrace.server.produce.transactional_appends import TransactionVerifier, VerificationRequest
from tailrace.server.slices import Stepwise, mapped_in

_FIRST_WITH_LOADING = 2
_FIRST_WITH_ABORTABLE = 4
_FIRST_THAT_ADDS = 5

_OF_THE_TRANSACTION: Mapping[ErrorCode, ErrorCode] = {
    # With a code of the transaction coordinator, clients would look for another coordinator of the group. With this
    # code, and with CONCURRENT_TRANSACTIONS, clients of every version repeat the request here.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""The code for the producer, for each code of the transaction coordinator."""


class _FirstBatch(NamedTuple):
    """The header fields of the batch in which the offsets will be written."""

    producer_id: int
    producer_epoch: int
    base_sequence: int = 0


class TxnOffsetCommitHandler:
    """Answers when the pending offsets are committed to the log."""

    def __init__(
        self,
        *,
        coordinators: GroupCoordinatorService,
        verifier: TransactionVerifier,
        is_verified: bool,
    ) -> None:
        """`is_verified` is transaction.partition.verification.enable."""
        self._coordinators = coordinators
        self._verifier = verifier
        self._is_verified = is_verified

    def handle(self, request: TxnOffsetCommitRequest, context: RequestContext) -> Stepwise[None]:
        host = self._coordinators.host_of(request.group_id, check_limit=True)
        commit = _TransactionalCommit(request, context, host, self._coordinators)
        yield from commit.look_up()
        host.check_active()  # checking the topics may have taken several turns
        commit.carry_out(self._verifier, self._is_verified)


class _TransactionalCommit:
    """A request from its arrival to its answer."""

    def __init__(
        self,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        host: GroupCoordinatorHost,
        coordinators: GroupCoordinatorService,
    ) -> None:
        self._request = request
        self._context = context
        self._host = host
        self._coordinators = coordinators
        self._requested = RequestedOffsets()

    def look_up(self) -> Stepwise[None]:
        """Check the requested offsets against the topics of the present image."""
        self._requested = RequestedOffsets()
        image, views = self._coordinators.image, self._coordinators.views
        yield from self._requested.add(
            ((views.topic(image, topic.name), topic.partitions) for topic in self._request.topics),
            code_if_absent=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )

    def carry_out(self, verifier: TransactionVerifier, is_verified: bool) -> None:
        request, partition = self._request, self._host.partition
        adds = self._context.api_version >= _FIRST_THAT_ADDS
        if not self._requested.offsets:
            self._answer(ErrorCode.NONE)
        elif request.producer_id < 0:
            # Otherwise the batch of the offsets would be outside of any transaction, and no marker would end the batch.
            self._answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif request.producer_epoch < 0:
            self._answer(ErrorCode.INVALID_PRODUCER_EPOCH)
        elif partition.log.producers.is_in_transaction(request.producer_id, request.producer_epoch):
            self._commit(None)
        elif not is_verified and not adds:
            self._commit(UNVERIFIED)
        else:
            batch = _FirstBatch(request.producer_id, request.producer_epoch)
            verification = partition.staging.verifications.begin(batch, adds_partition=adds)
            verification.wait(partial(self._verified, verification))
            if not verification.is_sent:
                verification.is_sent = True
                here = partition.topic_partition
                to_verify = VerificationRequest(
                    request.transactional_id, request.producer_id, request.producer_epoch, (here,), adds
                )
                verifier.verify(to_verify, partial(self._has_answer, verification, here))

    def _has_answer(
        self, verification: Verification, here: TopicPartition, codes: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        code = codes.get(here, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code is not ErrorCode.NONE and not code.retriable:
            self._host.partition.staging.verifications.end(self._request.producer_id)
        verification.answer(None if code is ErrorCode.NONE else KafkaError(_OF_THE_TRANSACTION.get(code, code)))

    def _verified(self, verification: Verification, error: KafkaError | None) -> None:
        if error is not None:
            self._refuse(error)
            return
        self._context.respond_in_steps(self._verified_and_looked_up(verification))

    def _verified_and_looked_up(self, verification: Verification) -> Stepwise[None]:
        yield from self.look_up()  # topics may have been deleted meanwhile
        self._commit(verification)

    def _commit(self, verification: Verification | None) -> None:
        request = self._request
        command = CommitOffsets(
            group_id=request.group_id,
            producer_id=request.producer_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            offsets=self._requested.offsets,
        )
        within = InTransaction(request.producer_id, request.producer_epoch, verification)
        self._host.submit(command, self._committed, within=within)

    def _committed(self, outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
        if isinstance(outcome, KafkaError):
            self._refuse(outcome)
        else:
            self._answer(outcome)

    def _refuse(self, error: KafkaError) -> None:
        version, code = self._context.api_version, error.code
        if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH):
            code = ErrorCode.ILLEGAL_GENERATION
        elif code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
            code = ErrorCode.INVALID_TXN_STATE
        elif code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _FIRST_WITH_LOADING:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._answer(code)

    def _answer(self, outcome: Sequence[ErrorCode] | ErrorCode) -> None:
        self._context.respond_in_steps(self._response(outcome))

    def _response(self, outcome: Sequence[ErrorCode] | ErrorCode) -> Stepwise[TxnOffsetCommitResponse]:
        topics = yield from mapped_in(
            zip(self._request.topics, self._requested.codes(outcome), strict=True),
            lambda pair: zip(pair[0].partitions, pair[1], strict=True),
            lambda _, each: TxnOffsetCommitResponsePartition(
                partition_index=each[0].partition_index, error_code=each[1]
            ),
            lambda pair, partitions: TxnOffsetCommitResponseTopic(name=pair[0].name, partitions=partitions),
        )
        return TxnOffsetCommitResponse(topics=topics)
