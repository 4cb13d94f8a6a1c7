"""Sinks, described (decision 0063)."""

from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.names import Names, several
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.sinks import DescribedSink, DescribeSinksRequest, DescribeSinksResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDescription:
    """A sink."""

    sink_id: str
    coordinator_id: BrokerId
    run: str | None
    """The current run; None if no batch is committed yet."""
    last_batch: int | None
    origin: str | None
    """The place where its writer keeps its progress, if the writer has named a place."""
    updated_at_ms: int | None
    """ms since 1970 of the last commit."""
    past_runs: int
    """The runs that are refused because later runs have followed."""
    open_members: int
    """The attempts of tasks with an open transaction."""
    ending_members: int
    """The attempts whose end is decided, and whose markers are being written."""


async def describe_sinks(router: Router, sink_ids: Names | None = None) -> list[SinkDescription]:
    """Sinks by id: the named sinks, or every sink. A sink that is not there is left out.

    Raises KafkaError UNSUPPORTED_VERSION (35) if a broker has no sinks.
    """
    wanted = None if sink_ids is None else several(sink_ids)

    async def attempt() -> list[SinkDescription]:
        await router.refresh(())
        found: list[SinkDescription] = []
        for node_id in router.view.brokers:
            connection = await router.node_connection(node_id)
            if not connection.offers(DescribeSinksRequest):
                detail = f"broker {node_id} has no sinks: it is no Tailrace, or an older one"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
            found += await _all_pages(connection, node_id, wanted, router.request_timeout_ms)
        return sorted(found, key=lambda each: each.sink_id)

    return await router.retry(attempt)


async def _all_pages(
    connection: Connection, node_id: BrokerId, wanted: tuple[str, ...] | None, timeout_ms: int
) -> list[SinkDescription]:
    found: list[SinkDescription] = []
    first = ""
    while True:
        request = DescribeSinksRequest(sink_ids=wanted, first_sink_id=first)
        response = await connection.ask(request, DescribeSinksResponse, timeout_ms=timeout_ms)
        check(response.error_code, response.error_message or f"the sinks of broker {node_id} cannot be described")
        found += [_description(each, node_id) for each in response.sinks]
        if response.next_sink_id <= first:  # empty after the last page; no other page may begin where this one did
            return found
        first = response.next_sink_id


def _description(described: DescribedSink, node_id: BrokerId) -> SinkDescription:
    is_committed = described.last_batch >= 0
    return SinkDescription(
        sink_id=described.sink_id,
        coordinator_id=node_id,
        run=described.run if is_committed else None,
        last_batch=described.last_batch if is_committed else None,
        origin=described.origin,
        updated_at_ms=described.updated_at_ms if is_committed else None,
        past_runs=described.past_runs,
        open_members=described.open_members,
        ending_members=described.ending_members,
    )
