"""A transactional producer against a node that answers by script: requests, errors, and calls that are cut short."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tailrace.client import producer as producer_module
from tailrace.client.errors import AbortableTransactionError, FatalTransactionError, ProducerFenced
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.producer import AsyncProducer
from tailrace.client.transactions.producer_transaction import Identity, TransactionPhase
from tailrace.model.errors import ErrorCode as E
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from testkit.clients.scripted_transactions import PRODUCER_ID, ScriptedTransactions

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)
MEMBER = ConsumerGroupMetadata("g", 3, "member-1", "instance-1")

Scene = Callable[[ScriptedTransactions, AsyncProducer], Awaitable[None]]
Play = Callable[..., ScriptedTransactions]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a scene with a producer of `transactional_id` "t" and its node."""

    def play(scene: Scene, *, version: int = 2, newest: dict[type[Any], int] | None = None, **settings: Any) -> Any:
        async def run() -> ScriptedTransactions:
            nodes = ScriptedTransactions(ORDERS, BILLS, version=version, newest=newest)
            monkeypatch.setattr(producer_module, "Router", lambda *_, **__: nodes)
            nodes.describe()
            wanted = {"transactional_id": "t", "linger_ms": 0, **settings}
            async with asyncio.timeout(50), AsyncProducer("127.0.0.1:1", **wanted) as producer:
                await scene(nodes, producer)
            return nodes

        return asyncio.run(run())

    return play


@asynccontextmanager
async def begun(producer: AsyncProducer) -> AsyncIterator[None]:
    if producer.transaction_phase is TransactionPhase.UNINITIALIZED:
        await producer.init_transactions()
    await producer.begin_transaction()
    yield


async def until_asked(nodes: ScriptedTransactions, kind: type[Any], call: Awaitable[None]) -> "asyncio.Task[None]":
    """The call as a task, whose request of this type has come and gets no answer."""
    nodes.hold(kind)
    task = asyncio.ensure_future(call)
    await nodes.arrival(kind)
    assert not task.done()
    return task


async def in_a_block(producer: AsyncProducer, *topics: str, fault: BaseException | None = None) -> None:
    """A transaction with a record for each of the topics; the block raises the fault when they are written."""
    async with producer.transaction():
        for topic in topics:
            await producer.send(topic, b"v", partition=0)
        if fault is not None:
            await producer.settle()
            raise fault


def identities(nodes: ScriptedTransactions) -> list[tuple[int, int, int]]:
    return [(each.producer_id, each.producer_epoch, each.base_sequence) for each in nodes.batches]


def test_the_requests_of_a_producer_before_version_2(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await (await producer.send("orders", b"1", partition=0))
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()
        async with begun(producer):
            await producer.send("orders", b"2", partition=0)
            await producer.commit_transaction()

    nodes = play(scene, version=1)
    first = ["InitProducerId v5", "AddPartitionsToTxn v3", "Produce v11"]
    offsets = ["AddOffsetsToTxn v4", "TxnOffsetCommit v4", "EndTxn v4"]
    assert nodes.names == [*first, *offsets, "AddPartitionsToTxn v3", "Produce v11", "EndTxn v4"]
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 0, 1)], "one epoch, and the numbers go on"
    assert all(batch.is_transactional for batch in nodes.batches)
    assert [request.transactional_id for request in nodes.requests(ProduceRequest)] == ["t", "t"]


def test_the_requests_of_a_producer_of_version_2(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()
        async with begun(producer):
            await producer.send("orders", b"2", partition=0)
            await producer.abort_transaction()
        async with begun(producer):
            await (await producer.send("orders", b"3", partition=0))
            await producer.commit_transaction()

    nodes = play(scene)
    assert nodes.names[0] == "InitProducerId v5"
    assert set(nodes.names[1:3]) == {"Produce v12", "TxnOffsetCommit v5"}
    assert nodes.names[3] == "EndTxn v5"
    assert nodes.names[-2:] == ["Produce v12", "EndTxn v5"]
    assert [request.committed for request in nodes.requests(EndTxnRequest)][-1]
    (kept,) = nodes.requests(TxnOffsetCommitRequest)
    assert (kept.generation_id, kept.member_id, kept.group_instance_id) == (3, "member-1", "instance-1")
    epochs = [epoch for _, epoch, _ in identities(nodes)]
    assert epochs == sorted(set(epochs)), "an epoch for each transaction"
    assert {sequence for _, _, sequence in identities(nodes)} == {0}


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_waits_for_its_records_and_refuses_when_one_failed(play: Play, version: int) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(ProduceRequest, E.INVALID_RECORD)
        async with begun(producer):
            lost = await producer.send("orders", b"1", partition=0)
            with pytest.raises(AbortableTransactionError, match="can only be aborted") as refused:
                await producer.commit_transaction()
            assert refused.value.code is E.INVALID_RECORD
            with pytest.raises(AbortableTransactionError):
                await producer.send("orders", b"2", partition=0)
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            with pytest.raises(KafkaError, match="INVALID_RECORD"):
                await lost
            await producer.abort_transaction()
        async with begun(producer):
            assert (await (await producer.send("orders", b"3", partition=0))).offset == 0
            await producer.commit_transaction()

    nodes = play(scene, version=version)
    assert [request.committed for request in nodes.requests(EndTxnRequest)] == [False, True]
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0)]
    named = [(each.producer_id, each.producer_epoch) for each in nodes.requests(InitProducerIdRequest)]
    assert named == ([(-1, -1), (PRODUCER_ID, 0)] if version == 1 else [(-1, -1)])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [E.UNKNOWN_PRODUCER_ID, E.INVALID_PRODUCER_EPOCH, E.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_a_transaction_takes_no_identity_but_the_coordinators(play: Play, version: int, code: E) -> None:
    """An idempotent producer goes on under an epoch of its own choice here."""

    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(ProduceRequest, code)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            with pytest.raises(AbortableTransactionError) as refused:
                await producer.commit_transaction()
            assert refused.value.code is code
            await producer.abort_transaction()
        async with begun(producer):
            await producer.send("orders", b"2", partition=0)
            await producer.commit_transaction()

    assert identities(play(scene, version=version)) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS])
def test_an_error_that_passes_is_no_error(play: Play, version: int, code: E) -> None:
    kinds = (
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
    )

    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        for kind in kinds:
            nodes.refuse(kind, code, E.NETWORK_EXCEPTION, code)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            await producer.send("bills", b"1", partition=0)
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()
        assert producer.transaction_phase is TransactionPhase.READY

    nodes = play(scene, version=version)
    for kind in kinds if version == 1 else (InitProducerIdRequest, TxnOffsetCommitRequest, EndTxnRequest):
        assert len(nodes.requests(kind)) >= 4, kind
    assert nodes.lookups > 3, "a lost connection may be a coordinator that has moved"


@pytest.mark.parametrize("version", [1, 2])
def test_a_fenced_producer_gets_an_error_with_the_name(play: Play, version: int) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(EndTxnRequest, E.PRODUCER_FENCED)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                with pytest.raises(ProducerFenced, match=r"another producer with transactional\.id 't'"):
                    await call()
            with pytest.raises(ProducerFenced):
                await producer.send("orders", b"2", partition=0)

    assert len(play(scene, version=version).requests(EndTxnRequest)) == 1


@pytest.mark.parametrize(
    "code", [E.INVALID_PRODUCER_EPOCH, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE]
)
def test_a_refused_partition_fails_its_records_and_ends_the_producer(play: Play, code: E) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(AddPartitionsToTxnRequest, code)
        async with begun(producer):
            lost = await producer.send("orders", b"1", partition=0)
            with pytest.raises(FatalTransactionError):
                await producer.commit_transaction()
            assert lost.exception() is not None

    assert play(scene, version=1).requests(EndTxnRequest) == []


def test_a_refused_partition_that_an_abort_cures(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(AddPartitionsToTxnRequest, E.TOPIC_AUTHORIZATION_FAILED)
        await producer.init_transactions()
        with pytest.raises(AbortableTransactionError) as refused:
            await in_a_block(producer, "bills", "orders")
        assert refused.value.code is E.TOPIC_AUTHORIZATION_FAILED, "and not that others were not attempted"
        await in_a_block(producer, "orders")

    play(scene, version=1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID])
def test_a_consumer_that_has_left_its_group_costs_the_transaction_alone(play: Play, version: int, code: E) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(TxnOffsetCommitRequest, code)
        async with begun(producer):
            with pytest.raises(AbortableTransactionError) as refused:
                await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            assert refused.value.code is code
            await producer.abort_transaction()
        async with begun(producer):
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()

    assert [each.committed for each in play(scene, version=version).requests(EndTxnRequest)] == [False, True]


@pytest.mark.parametrize("version", [1, 2])
def test_a_cancelled_commit_is_called_again(play: Play, version: int) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            committing = await until_asked(nodes, EndTxnRequest, producer.commit_transaction())
            committing.cancel()
            await asyncio.wait((committing,))
            assert producer.transaction_phase is TransactionPhase.COMMITTING
            for call in (producer.begin_transaction, producer.abort_transaction):
                with pytest.raises(
                    KafkaError, match=r"commit_transaction\(\) did not finish: call it again"
                ) as refused:
                    await call()
                assert refused.value.code is E.INVALID_TXN_STATE
            nodes.release(EndTxnRequest)
            await producer.commit_transaction()
        assert producer.transaction_phase is TransactionPhase.READY

    first, second = play(scene, version=version).requests(EndTxnRequest)
    assert first == second, "the same end of the same transaction"


def test_a_commit_that_runs_out_of_time_is_called_again(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            nodes.hold(EndTxnRequest)
            with pytest.raises(KafkaError, match=r"longer than max\.block\.ms 50: call it again") as late:
                await producer.commit_transaction()
            assert late.value.code is E.REQUEST_TIMED_OUT
            nodes.release(EndTxnRequest)
            producer._transactional()._max_block_ms = 20_000
            await producer.commit_transaction()

    play(scene, max_block_ms=50)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_cancelled_offsets_leave_nothing_but_the_abort(play: Play, version: int, kind: type[Any]) -> None:
    if version == 2 and kind is AddOffsetsToTxnRequest:
        return  # it does not exist there

    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            sending = await until_asked(nodes, kind, producer.send_offsets_to_transaction({BILLS: 5}, MEMBER))
            sending.cancel()
            await asyncio.wait((sending,))
            nodes.release(kind)
            with pytest.raises(AbortableTransactionError, match="send_offsets_to_transaction"):
                await producer.commit_transaction()
            await producer.abort_transaction()
        assert producer.transaction_phase is TransactionPhase.READY

    nodes = play(scene, version=version)
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [False]
    if kind is AddOffsetsToTxnRequest:
        assert len(nodes.requests(kind)) == 2, "asked again before the abort: the coordinator may not know of it"


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_drops_what_is_unsent_and_waits_for_what_is_under_way(play: Play, version: int) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            nodes.hold(ProduceRequest)
            sent = await producer.send("orders", b"1", partition=0)
            await nodes.arrival(ProduceRequest)
            unsent = await producer.send("orders", b"2", partition=0)
            unsent_too = await producer.send("nowhere", b"3", partition=0)
            aborting = asyncio.ensure_future(producer.abort_transaction())
            await asyncio.wait((unsent, unsent_too))
            assert not aborting.done()
            assert nodes.requests(EndTxnRequest) == []
            nodes.release(ProduceRequest)
            await aborting
            assert (await sent).offset == 0
            for dropped in (unsent, unsent_too):
                with pytest.raises(KafkaError, match="their transaction was aborted") as fault:
                    await dropped
                assert fault.value.code is E.OPERATION_NOT_ATTEMPTED
        async with begun(producer):
            await producer.send("orders", b"4", partition=0)
            await producer.commit_transaction()

    nodes = play(scene, version=version)
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [False, True]
    assert len(nodes.requests(InitProducerIdRequest)) == 1, "there is no gap"
    assert identities(nodes)[-1] == ((PRODUCER_ID, 0, 1) if version == 1 else (PRODUCER_ID, 1, 0))


@pytest.mark.parametrize("version", [1, 2])
def test_a_record_that_waits_for_space_is_refused_once_its_transaction_ends(play: Play, version: int) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            nodes.hold(ProduceRequest)
            first = await producer.send("orders", b"x" * 100, partition=0)
            waiting = asyncio.ensure_future(producer.send("orders", b"y" * 100, partition=0))
            await nodes.arrival(ProduceRequest)
            committing = asyncio.ensure_future(producer.commit_transaction())
            await asyncio.sleep(0)
            assert producer.transaction_phase is TransactionPhase.COMMITTING
            nodes.release(ProduceRequest)
            await committing
            assert (await first).offset == 0
            with pytest.raises(KafkaError) as refused:
                await (await waiting)
            assert refused.value.code is E.INVALID_TXN_STATE

    assert len(play(scene, version=version, buffer_memory=150).batches) == 1


def test_an_abort_comes_after_the_answer_about_partitions(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            nodes.hold(AddPartitionsToTxnRequest)
            await producer.send("orders", b"1", partition=0)
            await nodes.arrival(AddPartitionsToTxnRequest)
            aborting = asyncio.ensure_future(producer.abort_transaction())
            for _ in range(50):
                await asyncio.sleep(0)
            assert nodes.requests(EndTxnRequest) == []
            nodes.release(AddPartitionsToTxnRequest)
            await aborting

    nodes = play(scene, version=1)
    assert nodes.names == ["InitProducerId v5", "AddPartitionsToTxn v3", "EndTxn v4"]


def test_partitions_that_may_have_been_added_are_asked_for_again_before_the_abort(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            nodes.hold(AddPartitionsToTxnRequest)
            await producer.send("orders", b"1", partition=0)
            await nodes.arrival(AddPartitionsToTxnRequest)
            nodes.refuse(AddPartitionsToTxnRequest, E.NETWORK_EXCEPTION)
            aborting = asyncio.ensure_future(producer.abort_transaction())
            for _ in range(50):
                await asyncio.sleep(0)
            nodes.release(AddPartitionsToTxnRequest)
            await aborting

    nodes = play(scene, version=1)
    assert nodes.names == ["InitProducerId v5", "AddPartitionsToTxn v3", "AddPartitionsToTxn v3", "EndTxn v4"]


def test_a_topic_that_is_deleted_before_its_partition_was_added_does_not_hold_the_abort_back(play: Play) -> None:
    """Before version 2: the coordinator will never add the partition. The next epoch ends whatever is open."""

    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(AddPartitionsToTxnRequest, *[E.UNKNOWN_TOPIC_OR_PARTITION] * 100_000)
        async with begun(producer):
            lost = await producer.send("orders", b"1", partition=0)
            with pytest.raises(KafkaError):
                await lost
            await producer.abort_transaction()
        assert producer.transaction_phase is TransactionPhase.READY

    nodes = play(scene, version=1, max_block_ms=1_500, delivery_timeout_ms=500, request_timeout_ms=200)
    assert not nodes.requests(EndTxnRequest)
    named = [(each.producer_id, each.producer_epoch) for each in nodes.requests(InitProducerIdRequest)]
    assert named == [(-1, -1), (PRODUCER_ID, 0)]


def test_a_close_aborts_what_is_open_and_reports_none_of_its_records(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            nodes.refuse(ProduceRequest, E.INVALID_RECORD)
            await producer.send("orders", b"1", partition=0)
            await producer.settle()
            assert producer.transaction_phase is TransactionPhase.ABORTABLE_ERROR

    assert [each.committed for each in play(scene).requests(EndTxnRequest)] == [False]


def test_a_close_carries_on_with_a_commit_that_was_cut_short(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            committing = await until_asked(nodes, EndTxnRequest, producer.commit_transaction())
            committing.cancel()
            nodes.release(EndTxnRequest)

    assert [each.committed for each in play(scene).requests(EndTxnRequest)] == [True, True]


def test_a_close_that_cannot_abort_says_so(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await (await producer.send("orders", b"1", partition=0))
            await producer.send("orders", b"2", partition=0)
            nodes.hold(EndTxnRequest)

    play(scene, max_block_ms=50)
    assert "transactional.id 't' is closed with an open transaction" in caplog.text
    assert "not written" not in caplog.text, "records that an abort drops are no news"


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_is_handed_over_is_left_open(play: Play, version: int) -> None:
    """The transaction's records are written, and neither this call nor the close ends the transaction."""

    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            written = await producer.send("orders", b"1", partition=0)
            assert await producer.hand_over_transaction() == Identity(PRODUCER_ID, 0, True)
            assert written.done()
            with pytest.raises(KafkaError, match="make another producer"):
                await producer.send("orders", b"2", partition=0)

    nodes = play(scene, version=version)
    assert not nodes.requests(EndTxnRequest)


def test_a_hand_over_that_is_cut_short_is_called_again_or_aborted_by_the_close(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            nodes.hold(ProduceRequest)
            with pytest.raises(KafkaError, match=r"longer than max\.block\.ms 50: call it again"):
                await producer.hand_over_transaction()
            nodes.release(ProduceRequest)
            producer._transactional()._max_block_ms = 20_000

    assert [request.committed for request in play(scene, max_block_ms=50).requests(EndTxnRequest)] == [False]


def test_a_block_commits_or_aborts(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        await producer.init_transactions()
        await in_a_block(producer, "orders")
        with pytest.raises(ZeroDivisionError):
            await in_a_block(producer, "orders", fault=ZeroDivisionError())
        nodes.refuse(ProduceRequest, E.INVALID_RECORD)
        with pytest.raises(AbortableTransactionError):
            await in_a_block(producer, "orders")
        assert producer.transaction_phase is TransactionPhase.READY
        with pytest.raises(asyncio.CancelledError):
            await in_a_block(producer, "orders", fault=asyncio.CancelledError())
        await in_a_block(producer)

    ends = [each.committed for each in play(scene).requests(EndTxnRequest)]
    assert (ends[0], set(ends[1:])) == (True, {False})


def test_an_exception_of_the_block_is_raised_though_the_abort_fails(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        await producer.init_transactions()
        nodes.refuse(EndTxnRequest, E.PRODUCER_FENCED)
        with pytest.raises(ZeroDivisionError) as raised:
            await in_a_block(producer, "orders", fault=ZeroDivisionError())
        (note,) = raised.value.__notes__
        assert "PRODUCER_FENCED" in note

    play(scene)


def test_calls_out_of_order_name_the_way_out(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        with pytest.raises(KafkaError, match=r"call init_transactions\(\) first"):
            await producer.send("orders", b"1", partition=0)
        with pytest.raises(KafkaError, match=r"call init_transactions\(\) first"):
            await producer.begin_transaction()
        await producer.init_transactions()
        with pytest.raises(KafkaError, match=r"send\(\) .* no transaction is open: call begin_transaction\(\) first"):
            await producer.send("orders", b"1", partition=0)
        with pytest.raises(KafkaError, match="it is called once"):
            await producer.init_transactions()

    assert play(scene).names == ["InitProducerId v5"]


def test_a_producer_without_transactions_says_how_to_have_them(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        assert producer.transaction_phase is None
        with pytest.raises(KafkaError, match="give it a transactional_id"):
            await producer.init_transactions()

    play(scene, transactional_id=None)


@pytest.mark.parametrize(
    "settings", [{"acks": 1, "idempotent": False}, {"idempotent": False}, {"transactional_id": ""}]
)
def test_settings_that_do_not_go_together(settings: dict[str, Any]) -> None:
    with pytest.raises(KafkaError, match="transactional_id needs") as refused:
        AsyncProducer("127.0.0.1:1", **{"transactional_id": "t", **settings})
    assert refused.value.code is E.INVALID_CONFIG


def test_another_cluster_at_the_address_ends_the_producer(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await (await producer.send("orders", b"1", partition=0))
            nodes.view.cluster_id = "another"
            lost = await producer.send("orders", b"2", partition=0)
            with pytest.raises(FatalTransactionError, match="another cluster"):
                await producer.commit_transaction()
            assert lost.exception() is not None

    assert len(play(scene).batches) == 1


def test_a_coordinator_that_gives_no_next_epoch_ends_the_producer(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        nodes.refuse(ProduceRequest, E.INVALID_RECORD)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            with pytest.raises(FatalTransactionError, match="Kafka before 2.5"):
                await producer.abort_transaction()

    play(scene, version=0, newest={InitProducerIdRequest: 2})


def test_a_coordinator_that_does_not_compare_members_gets_no_offsets_of_one(play: Play) -> None:
    """The coordinator would take offsets of a member that has left its group."""

    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            with pytest.raises(FatalTransactionError, match="does not compare members"):
                await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)

    assert play(scene, version=0, newest={TxnOffsetCommitRequest: 2}).requests(TxnOffsetCommitRequest) == []


def test_a_cluster_that_raises_its_transaction_version(play: Play) -> None:
    async def scene(nodes: ScriptedTransactions, producer: AsyncProducer) -> None:
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            nodes.version = 2
            await producer.commit_transaction()
        async with begun(producer):
            await producer.send("orders", b"2", partition=0)
            await producer.commit_transaction()

    nodes = play(scene, version=1)
    assert nodes.names[-4:] == ["EndTxn v4", "InitProducerId v5", "Produce v12", "EndTxn v5"]
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0)]
