"""Batches of a sink, whole and once (decision 0063): tasks write members, their driver commits the batch.

A task calls `initialize_sink_member`, `write_sink_records` as often as it needs, and sends the `WrittenMember` to its
driver. The driver calls `commit_sink` with the members that count, from any process. It may repeat the call, and so may
its successor: a batch that was committed stays as it is. `abort_sink_member` ends the transaction of a task that failed
sooner than its timeout does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.client.errors import check, code_of
from tailrace.client.partition_names import Pair, partition_named
from tailrace.client.router import GRACE_MS, TRANSACTION_COORDINATOR, Router
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import SINKS_FEATURE, RowsDigest, SinkMember, check_sink, sink_key
from tailrace.net.connection import Connection
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tailrace.protocol.messages.sinks import (
    CommitSinkRequest,
    CommitSinkResponse,
    MemberToCommit,
    RenewSinkRunRequest,
    RenewSinkRunResponse,
    RowsOfBatch,
)
from tailrace.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch

_ADDS_PARTITIONS = 12
"""The version of Produce whose leader adds the partition to the transaction (KIP-890); the last with topic names."""
_LAST_BEFORE_EPOCHS = 4
"""The newest EndTxn here: a member has one transaction, and needs no next epoch."""
_FIRST_WITH_FEATURES = 3
_ENDED = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)


class WrittenMember(NamedTuple):
    """An attempt of a task, with the facts that its driver needs to commit or abort the attempt."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class CommittedBatch(NamedTuple):
    """A batch that is committed; readers of committed data see every record."""

    last_batch: int
    """The last batch of the sink."""
    is_repetition: bool
    """Whether the batch was committed before: then the members named now are aborted, except members of the first
    commit."""


class SinkRefusal(KafkaError):
    """A batch that was not committed. `last_batch` is the sink's last committed batch; -1 if unknown."""

    def __init__(self, code: ErrorCode, detail: str, last_batch: int) -> None:
        super().__init__(code, detail)
        self.last_batch = last_batch


async def check_sinks_are_supported(router: Router) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION (35) if the cluster does not take batches of sinks."""

    async def attempt() -> None:
        connection = await router.any_connection()
        request = ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__)
        is_known = connection.version_of(ApiVersionsRequest) >= _FIRST_WITH_FEATURES
        if is_known:
            answer = await router.ask(connection, request, ApiVersionsResponse, max_version=_FIRST_WITH_FEATURES)
            is_known = any(feature.name == SINKS_FEATURE for feature in answer.supported_features)
        if not is_known:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.address} has no feature {SINKS_FEATURE}: it, or another broker of its cluster, is no "
                "Tailrace or an older one",
            )

    await router.retry(attempt)


async def initialize_sink_member(
    router: Router, member: SinkMember, *, transaction_timeout_ms: int, timeout_ms: int | None = None
) -> WrittenMember:
    """Begin an attempt. It is aborted if its batch is not committed `transaction_timeout_ms` after its first record.

    Raises KafkaError DUPLICATE_SEQUENCE_NUMBER (46) if the batch is committed already, so that there is nothing to
    write; OUT_OF_ORDER_SEQUENCE_NUMBER (45) if a new run has begun before the sink's last batch; PRODUCER_FENCED (90)
    if another run has followed.
    """
    name = member.transactional_id
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=transaction_timeout_ms)

    async def ask(connection: Connection) -> WrittenMember:
        response = await router.ask(connection, request, InitProducerIdResponse)
        check(response.error_code, f"{name!r} cannot begin: {_why(response.error_code, member)}")
        return WrittenMember(name, response.producer_id, response.producer_epoch)

    return await router.ask_coordinator(name, ask, key_type=TRANSACTION_COORDINATOR, timeout_ms=timeout_ms)


def _why(code: int, member: SinkMember) -> str:
    match code:
        case ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return f"batch {member.batch} of sink {member.sink!r} is committed already"
        case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return (
                f"sink {member.sink!r} has taken later batches than {member.batch}; use the checkpoint that it was "
                "written with, or another sink id"
            )
        case ErrorCode.PRODUCER_FENCED:
            return f"another run of the writer of sink {member.sink!r} has followed {member.run!r}"
        case ErrorCode.UNSUPPORTED_VERSION:
            return "a broker of the cluster does not know sinks"
        case _:
            return "the coordinator refuses it"


async def write_sink_records(
    router: Router,
    member: WrittenMember,
    partition: Pair,
    records: Sequence[Record],
    *,
    base_sequence: int,
    codec: Codec = Codec.NONE,
    timeout_ms: int | None = None,
) -> int:
    """Write one batch in the member's transaction; returns its base offset.

    The records of an attempt in a partition are numbered from 0 on: `base_sequence` is the number of the first record.
    A batch that was written before is found again, so the call may be repeated. Raises KafkaError PRODUCER_FENCED (90)
    or INVALID_PRODUCER_ID_MAPPING (49) if the batch of the member is committed, or its transaction was aborted.
    """
    batch = build_batch(
        records,
        codec=codec,
        producer_id=member.producer_id,
        producer_epoch=member.producer_epoch,
        base_sequence=base_sequence,
        is_transactional=True,
    )
    name = partition_named(partition)
    data = PartitionProduceData(index=name.partition, records=batch)
    request = ProduceRequest(
        transactional_id=member.transactional_id,
        acks=-1,
        timeout_ms=router.request_timeout_ms,
        topic_data=(TopicProduceData(name=name.topic, partition_data=(data,)),),
    )

    async def attempt() -> int:
        await router.ensure_fresh((name.topic,))
        connection = await router.leader_connection(name)
        response = await connection.ask(
            request,
            ProduceResponse,
            timeout_ms=router.request_timeout_ms + GRACE_MS,
            max_version=_ADDS_PARTITIONS,
        )
        (answered,) = response.responses[0].partition_responses
        if answered.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            router.view.mark_stale(name.topic)
        check(answered.error_code, answered.error_message or f"{name} did not take a batch of {member}")
        return int(answered.base_offset)

    return await router.retry(attempt, timeout_ms=timeout_ms)


async def abort_sink_member(router: Router, member: WrittenMember, *, timeout_ms: int | None = None) -> None:
    """Abort the transaction of an attempt. Does nothing to an ended transaction."""
    request = EndTxnRequest(
        transactional_id=member.transactional_id,
        producer_id=member.producer_id,
        producer_epoch=member.producer_epoch,
        committed=False,
    )

    async def ask(connection: Connection) -> None:
        response = await router.ask(connection, request, EndTxnResponse, max_version=_LAST_BEFORE_EPOCHS)
        if response.error_code not in _ENDED:
            check(response.error_code, f"{member.transactional_id!r} cannot be aborted")

    name = member.transactional_id
    await router.ask_coordinator(name, ask, key_type=TRANSACTION_COORDINATOR, timeout_ms=timeout_ms)


async def renew_sink_run(router: Router, sink: str, *, run: str, lease_ms: int, timeout_ms: int | None = None) -> int:
    """A sign of life of a run that has open members; returns the sink's last batch, -1 without any.

    Without another sign for `lease_ms`, and half a minute more, the cluster aborts the members of the run. A run that
    has never given a sign has the timeouts of its members alone.

    Raises KafkaError PRODUCER_FENCED (90) if another run has followed; UNSUPPORTED_VERSION (35) if the coordinator
    takes no signs.
    """
    request = RenewSinkRunRequest(sink_id=sink, run=run, lease_ms=lease_ms)

    async def ask(connection: Connection) -> int:
        if not connection.offers(RenewSinkRunRequest):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{connection.address} takes no signs of life of runs")
        response = await router.ask(connection, request, RenewSinkRunResponse)
        check(response.error_code, response.error_message or f"run {run!r} of sink {sink!r} is not renewed")
        return int(response.last_batch)

    return await router.ask_coordinator(sink_key(sink), ask, key_type=TRANSACTION_COORDINATOR, timeout_ms=timeout_ms)


async def commit_sink(
    router: Router,
    sink: str,
    *,
    run: str,
    batch: int,
    members: Sequence[WrittenMember],
    origin: str | None = None,
    takes_over: bool = False,
    rows: RowsDigest | None = None,
    timeout_ms: int | None = None,
) -> CommittedBatch:
    """Commit the batch: these members, and nothing else that was written for the batch.

    Returns when every member is committed in its partitions. Other members of the batch are aborted; these aborts may
    end later, and until then readers of committed data do not get past the first record of such a member.

    `origin` says where the writer keeps its progress, such as its checkpoint and the id of its query; an origin that
    differs from the sink's is refused unless it `takes_over`. `rows` is kept with the batch: a repetition of the batch
    with other rows is refused, OUT_OF_ORDER_SEQUENCE_NUMBER (45). With None, or in a cluster of an older release, rows
    are not compared.

    Raises SinkRefusal with a code of `CommitSink`
    (docs/decisions/0063-a-batch-of-a-sink-is-one-decision.md); with a retriable code the batch may be committed or not,
    and the call has to be repeated.
    """
    check_sink(sink)
    request = CommitSinkRequest(
        sink_id=sink,
        run=run,
        batch=batch,
        origin=origin,
        takes_over=takes_over,
        timeout_ms=router.request_timeout_ms,
        members=tuple(map(_to_commit, members)),
        rows=None if rows is None else RowsOfBatch(**rows._asdict()),
    )

    async def ask(connection: Connection) -> CommittedBatch:
        if not connection.offers(CommitSinkRequest):
            detail = f"{connection.address} commits no batches of sinks: it is no Tailrace, or an older one"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
        response = await connection.ask(request, CommitSinkResponse, timeout_ms=router.request_timeout_ms + GRACE_MS)
        if response.error_code:
            detail = response.error_message or f"batch {batch} of sink {sink!r} is not committed"
            raise SinkRefusal(code_of(response.error_code), detail, response.last_batch)
        return CommittedBatch(response.last_batch, response.is_repetition)

    return await router.ask_coordinator(sink_key(sink), ask, key_type=TRANSACTION_COORDINATOR, timeout_ms=timeout_ms)


def _to_commit(member: WrittenMember) -> MemberToCommit:
    return MemberToCommit(
        transactional_id=member.transactional_id,
        producer_id=member.producer_id,
        producer_epoch=member.producer_epoch,
    )
