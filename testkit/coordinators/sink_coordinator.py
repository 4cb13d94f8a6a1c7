"""The machine of transactional ids and sinks, with every decision committed at once, for tests of sinks."""

from collections.abc import Iterable
from typing import Final

import pytest

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AddPartitions,
    Command,
    CommitSink,
    CompleteTransaction,
    EndTransaction,
    InitializeProducer,
    ProducerIdentity,
    SinkCommitted,
    SinkMemberIdentity,
)
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import CoordinatorRecord
from tailrace.coordinators.transactions.sink import Sink
from tailrace.coordinators.transactions.transaction import TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import RowsDigest, SinkMember

NOW: Final = 1_000_000
ORDERS = frozenset((TopicPartition("orders", 0),))
DECIDED, REPEATED = SinkCommitted(is_repetition=False), SinkCommitted(is_repetition=True)


class SinkCoordinator:
    """The machine, with every decision committed at once unless the decision is held."""

    def __init__(self, **config: int) -> None:
        self.machine = TransactionCoordinator(config=TransactionConfig(**config))
        self._producer_ids = iter(range(100, 1_000_000))
        self.now_ms = NOW

    def decide(self, command: Command) -> object:
        decision = self.machine.decide(command, self.now_ms)
        self.machine.stage(decision.records)
        self.machine.commit(decision.records)
        return decision.response

    def refusal(self, command: Command) -> KafkaError:
        with pytest.raises(KafkaError) as refused:
            self.machine.decide(command, self.now_ms)
        return refused.value

    def code(self, command: Command) -> ErrorCode:
        return self.refusal(command).code

    def initialize(self, member: SinkMember, *, producer_id: int | None = None) -> SinkMemberIdentity:
        fresh = next(self._producer_ids) if producer_id is None else producer_id
        identity = self.decide(initialization(member, fresh))
        assert isinstance(identity, ProducerIdentity)
        return SinkMemberIdentity(
            transactional_id=member.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    def begin(self, member: SinkMember) -> SinkMemberIdentity:
        identity = self.initialize(member)
        self.decide(addition(identity))
        return identity

    def state(self, member: SinkMember) -> TransactionState | None:
        known = self.machine.transactions.get(member.transactional_id)
        return None if known is None else known.state

    def complete(self, *members: SinkMember) -> None:
        for member in members:
            self.decide(CompleteTransaction(transactional_id=member.transactional_id))

    @property
    def sink(self) -> Sink | None:
        return self.machine.sinks.known.get("s")


def of(run: str, batch: int, task: int = 0, attempt: int = 0) -> SinkMember:
    """A member of the sink `s`."""
    return SinkMember("s", run, batch, task, attempt)


def initialization(member: SinkMember, fresh: int = 99) -> InitializeProducer:
    """The command InitProducerId for a member, with a fresh producer id."""
    return InitializeProducer(
        transactional_id=member.transactional_id, timeout_ms=60_000, fresh_producer_id=fresh, fresh_producer_epoch=0
    )


def addition(identity: SinkMemberIdentity) -> AddPartitions:
    """The command that begins the transaction of a member."""
    return AddPartitions(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        partitions=ORDERS,
        client_version=2,
    )


def commit(
    run: str,
    batch: int,
    *members: SinkMemberIdentity,
    origin: str | None = None,
    takes_over: bool = False,
    rows: RowsDigest | None = None,
) -> CommitSink:
    """The command CommitSink for the sink `s`."""
    return CommitSink(
        sink_id="s", run=run, batch=batch, origin=origin, takes_over=takes_over, members=members, rows=rows
    )


def keys(records: Iterable[CoordinatorRecord]) -> list[str]:
    """The keys of records, in order."""
    return [record.transactional_id for record in records]


def after(
    batch: int,
    run: str = "r1",
    *,
    origin: str | None = None,
    past_runs: tuple[str, ...] = (),
    rows: RowsDigest | None = None,
) -> SinkCoordinator:
    """A coordinator whose sink has committed this batch from this run, and earlier batches from other runs."""
    coordinator = SinkCoordinator()
    for past in past_runs:
        coordinator.decide(commit(past, 0, origin=origin))
    coordinator.decide(commit(run, batch, origin=origin, rows=rows))
    return coordinator


def ending(member: SinkMemberIdentity, *, is_commit: bool, version: int = 2) -> EndTransaction:
    """The command EndTxn for a member."""
    return EndTransaction(
        transactional_id=member.transactional_id,
        producer_id=member.producer_id,
        producer_epoch=member.producer_epoch,
        is_commit=is_commit,
        client_version=version,
    )


def unknown_member(run: str, batch: int) -> SinkMemberIdentity:
    """A member that was never initialized."""
    return SinkMemberIdentity(transactional_id=of(run, batch).transactional_id, producer_id=1, producer_epoch=0)
