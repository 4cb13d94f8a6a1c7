"""CommitSink (10001), DescribeSinks (10002), RenewSinkRun (10003): see decisions 0063 and 0083.

CommitSink is answered when the batch is decided and all its members have their markers. DescribeSinks answers from the
committed records with the sinks that this broker coordinates, in pages of MAX_SINKS sinks.
"""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import Final

from tailrace.coordinators.transactions.commands import CommitSink, Response, SinkCommitted, SinkMemberIdentity
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.sink import NO_BATCH
from tailrace.coordinators.transactions.transaction import TransactionState
from tailrace.metadata.image import ClusterImage
from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import RowsDigest, check_run, check_sink, sink_key
from tailrace.protocol.messages.sinks import (
    CommitSinkRequest,
    CommitSinkResponse,
    DescribedSink,
    DescribeSinksRequest,
    DescribeSinksResponse,
    RenewSinkRunRequest,
    RenewSinkRunResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.transactions.host import TransactionCoordinatorService
from tailrace.server.transactions.sink_memory import SinkRun

MAX_SINKS: Final = 1_000


def check_sinks_are_known(image: ClusterImage) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION (35) while a broker of the cluster does not know sinks."""
    if not image.knows_sinks:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"broker {image.broker_without_sinks} does not know sinks: run this release there, or unregister it",
        )


class CommitSinkHandler:
    """Commits batches."""

    def __init__(self, *, coordinators: TransactionCoordinatorService, image: Callable[[], ClusterImage]) -> None:
        """`image` returns the present image."""
        self._coordinators = coordinators
        self._image = image

    def handle(self, request: CommitSinkRequest, context: RequestContext) -> None:
        check_sinks_are_known(self._image())
        check_sink(request.sink_id)
        host = self._coordinators.host_of(sink_key(request.sink_id), check_limit=True)
        command = CommitSink(
            sink_id=request.sink_id,
            run=request.run,
            batch=request.batch,
            origin=request.origin,
            takes_over=request.takes_over,
            members=tuple(
                SinkMemberIdentity(
                    transactional_id=member.transactional_id,
                    producer_id=member.producer_id,
                    producer_epoch=member.producer_epoch,
                )
                for member in request.members
            ),
            rows=None
            if request.rows is None
            else RowsDigest(request.rows.row_count, request.rows.digest, request.rows.scheme),
        )

        def answer(outcome: Response | KafkaError) -> None:
            last_batch = host.machine.sinks.last_batch(request.sink_id)
            if isinstance(outcome, KafkaError):
                context.respond(
                    CommitSinkResponse(error_code=outcome.code, error_message=outcome.detail, last_batch=last_batch)
                )
                return
            assert isinstance(outcome, SinkCommitted)
            context.respond(CommitSinkResponse(is_repetition=outcome.is_repetition, last_batch=last_batch))

        host.commit_sink(command, answer, timeout_ms=request.timeout_ms)


class RenewSinkRunHandler:
    """Takes signs of life of runs."""

    def __init__(self, *, coordinators: TransactionCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: RenewSinkRunRequest, context: RequestContext) -> RenewSinkRunResponse:
        check_sink(request.sink_id)
        check_run(request.run)
        if request.lease_ms <= 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a lease of {request.lease_ms} ms is none")
        host = self._coordinators.host_of(sink_key(request.sink_id))
        host.renew_run(SinkRun(request.sink_id, request.run), request.lease_ms)
        return RenewSinkRunResponse(last_batch=host.machine.sinks.last_batch(request.sink_id))


class DescribeSinksHandler:
    """Describes the sinks of all coordinators here that the client may describe."""

    def __init__(self, *, coordinators: TransactionCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: DescribeSinksRequest, context: RequestContext) -> DescribeSinksResponse:
        def may_describe(sink_id: str) -> bool:
            resource = SecuredResource(SecuredType.TRANSACTIONAL_ID, sink_id)
            return context.authorize(Operation.DESCRIBE, resource)

        wanted = None if request.sink_ids is None else frozenset(request.sink_ids)
        machines = [host.machine for host in self._coordinators.active_hosts()]
        found = (
            (sink_id, machine)
            for machine in machines
            for sink_id in _sink_ids(machine)
            if sink_id >= request.first_sink_id and (wanted is None or sink_id in wanted) and may_describe(sink_id)
        )
        page = nsmallest(MAX_SINKS + 1, found, key=lambda each: each[0])
        next_sink_id = page.pop()[0] if len(page) > MAX_SINKS else ""
        return DescribeSinksResponse(
            sinks=tuple(_described(sink_id, machine) for sink_id, machine in page), next_sink_id=next_sink_id
        )


def _sink_ids(machine: TransactionCoordinator) -> Iterator[str]:
    """The sinks with a decision, and the sinks that have only members."""
    yield from machine.sinks.known
    yield from (sink_id for sink_id in machine.sinks.members.sinks if sink_id not in machine.sinks.known)


def _described(sink_id: str, machine: TransactionCoordinator) -> DescribedSink:
    sink = machine.sinks.known.get(sink_id)
    states = [machine.transactions[name].state for name in machine.sinks.members.of(sink_id)]
    return DescribedSink(
        sink_id=sink_id,
        run="" if sink is None else sink.run,
        last_batch=NO_BATCH if sink is None else sink.last_batch,
        origin=None if sink is None else sink.origin,
        updated_at_ms=-1 if sink is None else sink.updated_at_ms,
        past_runs=0 if sink is None else len(sink.past_runs),
        open_members=states.count(TransactionState.ONGOING),
        ending_members=sum(state.is_prepared for state in states),
    )
