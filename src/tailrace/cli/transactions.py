"""`tailrace transactions`: list, describe, abort, sinks."""

import time
from collections.abc import Iterable
from typing import Annotated

import typer

from tailrace.cli.completion import Topic
from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show
from tailrace.client.admin.sinks import SinkDescription
from tailrace.client.admin.transactions import TransactionDescription, TransactionListing
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import find_member, sink_key

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_LISTED = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
_DESCRIBED = (
    *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs"),
    *("CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"),
)
"""The columns of `list` and `describe`, with the names of kafka-transactions."""
_SINKS = (
    *("Sink", "CoordinatorId", "LastBatch", "Run", "PastRuns", "UpdatedMs", "IdleMs", "OpenMembers"),
    *("EndingMembers", "Origin"),
)


@app.command("list")
def list_transactions(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only in this state, as Ongoing; repeatable.")
    ] = None,
    producer_ids: Annotated[
        list[int] | None, typer.Option("--producer-id", metavar="ID", help="Only of this producer; repeatable.")
    ] = None,
    running_longer_than_ms: Annotated[
        int, typer.Option(metavar="MS", help="Only transactions that have been open for longer.", show_default=False)
    ] = -1,
    sink_members: Annotated[
        bool, typer.Option("--sink-members", help="Each task that writes to a sink.", show_default=False)
    ] = False,
) -> None:
    """List transactional ids, each with the state of its last transaction.

    The tasks that write a batch of a sink are one row for each state, with an id that ends with `/*`: readers of
    committed data wait for them as for any other open transaction.
    """
    with admin_of(bootstrap_server) as admin:
        found = admin.list_transactions(
            states=states or (), producer_ids=producer_ids or (), longer_than_ms=running_longer_than_ms
        )
    single = [each for each in found if sink_members or find_member(each.transactional_id) is None]
    rows = [_listed(each.transactional_id, each.coordinator_id, each.producer_id, each.state) for each in single]
    rows += _batches_of_sinks(found if not sink_members else [])
    show(rows, _LISTED, output)
    if len(single) < len(found):
        say(f"summed up: {len(found) - len(single)} tasks that write to sinks (--sink-members shows each)")


def _listed(transactional_id: str, coordinator_id: int, producer_id: int | None, state: str) -> Row:
    return dict(zip(_LISTED, (transactional_id, coordinator_id, producer_id, state), strict=True))


def _batches_of_sinks(found: Iterable[TransactionListing]) -> list[Row]:
    """A row for each batch of a sink, and each state of its tasks."""
    batches = {
        (f"{sink_key(member.sink)}/{member.run}/{member.batch}/*", each.coordinator_id, each.state)
        for each in found
        if (member := find_member(each.transactional_id)) is not None
    }
    return [_listed(name, coordinator_id, None, state) for name, coordinator_id, state in sorted(batches)]


@app.command()
def describe(
    transactional_ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show transactional ids, and the partitions of open transactions."""
    with admin_of(bootstrap_server) as admin:
        described = [admin.describe_transaction(name) for name in dict.fromkeys(transactional_ids)]
    now_ms = int(time.time() * 1000)
    show([_row(each, now_ms) for each in described], _DESCRIBED, output)


def _row(described: TransactionDescription, now_ms: int) -> Row:
    started_at_ms = described.started_at_ms
    return {
        "CoordinatorId": described.coordinator_id,
        "TransactionalId": described.transactional_id,
        "ProducerId": described.producer_id,
        "ProducerEpoch": described.producer_epoch,
        "TransactionState": described.state,
        "TransactionTimeoutMs": described.timeout_ms,
        "CurrentTransactionStartTimeMs": started_at_ms,
        "TransactionDurationMs": None if started_at_ms is None else max(now_ms - started_at_ms, 0),
        "TopicPartitions": [str(partition) for partition in sorted(described.partitions)],
    }


@app.command()
def abort(
    topic: Topic,
    partition: Annotated[int, typer.Option(help="The partition in which it hangs.", show_default=False)],
    start_offset: Annotated[int, typer.Option(help="Its first offset in this partition.", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Abort a transaction that hangs in one partition.

    Readers of committed data wait for it, and no coordinator will end it. `kafka-transactions find-hanging` finds such
    transactions. Its records in other partitions are not changed.
    """
    with admin_of(bootstrap_server) as admin:
        admin.abort_transaction(TopicPartition(topic, partition), start_offset)
    say(f"aborted the transaction that began at offset {start_offset} of {topic}-{partition}")
    if output is Format.JSON:
        show([{"Topic": topic, "Partition": partition, "StartOffset": start_offset}], (), output)


@app.command()
def sinks(
    sink_ids: Annotated[list[str] | None, typer.Argument(metavar="[SINK...]", show_default=False)] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show sinks: the last batch that each has committed, and the run of its writer.

    Open members are the transactions of tasks that write the next batch: readers of committed data wait for them. Exit
    code 1 if a named sink is not there.
    """
    with admin_of(bootstrap_server) as admin:
        found = admin.describe_sinks(None if not sink_ids else dict.fromkeys(sink_ids))
    now_ms = int(time.time() * 1000)
    show([_sink_row(each, now_ms) for each in found], _SINKS, output)
    missing = [name for name in dict.fromkeys(sink_ids or ()) if name not in {each.sink_id for each in found}]
    for name in missing:
        say(f"there is no sink {name!r}: nothing was written to it, or not for transactional.id.expiration.ms")
    if missing:
        raise typer.Exit(1)


def _sink_row(described: SinkDescription, now_ms: int) -> Row:
    updated_at_ms = described.updated_at_ms
    return {
        "Sink": described.sink_id,
        "CoordinatorId": described.coordinator_id,
        "LastBatch": described.last_batch,
        "Run": described.run,
        "PastRuns": described.past_runs,
        "UpdatedMs": updated_at_ms,
        "IdleMs": None if updated_at_ms is None else max(now_ms - updated_at_ms, 0),
        "OpenMembers": described.open_members,
        "EndingMembers": described.ending_members,
        "Origin": described.origin,
    }
