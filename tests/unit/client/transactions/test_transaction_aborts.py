"""Ends of a producer's transaction that are cut short, and the aborts and closes that follow."""

import asyncio
from typing import Any

import pytest

from tailrace.client.errors import AbortableTransactionError
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.model.errors import ErrorCode as E
from tailrace.model.errors import KafkaError
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from testkit.clients.scripted_transactions import PRODUCER_ID
from unit.client.transactions.producer_scenes import BILLS, MEMBER, Play, begun, committed, identities, until_asked


@pytest.mark.parametrize("version", [1, 2])
async def test_a_cancelled_commit_of_a_transaction_is_called_again(play: Play, version: int) -> None:
    async with play(version=version) as (nodes, producer):
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
    first, second = nodes.requests(EndTxnRequest)
    assert first == second, "the same end of the same transaction"


async def test_a_commit_of_a_transaction_that_runs_out_of_time_is_called_again(play: Play) -> None:
    async with play() as (nodes, producer), begun(producer):
        await producer.send("orders", b"1", partition=0)
        nodes.hold(EndTxnRequest)
        producer._transactional()._max_block_ms = 50  # from here on: a slow machine may take longer to begin
        with pytest.raises(KafkaError, match=r"longer than max\.block\.ms 50: call it again") as late:
            await producer.commit_transaction()
        assert late.value.code is E.REQUEST_TIMED_OUT
        nodes.release(EndTxnRequest)
        producer._transactional()._max_block_ms = 20_000
        await producer.commit_transaction()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
async def test_cancelled_offsets_of_a_transaction_leave_nothing_but_the_abort(
    play: Play, version: int, kind: type[Any]
) -> None:
    if version == 2 and kind is AddOffsetsToTxnRequest:
        return  # it does not exist there

    async with play(version=version) as (nodes, producer):
        async with begun(producer):
            sending = await until_asked(nodes, kind, producer.send_offsets_to_transaction({BILLS: 5}, MEMBER))
            sending.cancel()
            await asyncio.wait((sending,))
            nodes.release(kind)
            with pytest.raises(AbortableTransactionError, match="send_offsets_to_transaction"):
                await producer.commit_transaction()
            await producer.abort_transaction()
        assert producer.transaction_phase is TransactionPhase.READY
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [False]
    if kind is AddOffsetsToTxnRequest:
        assert len(nodes.requests(kind)) == 2, "asked again before the abort: the coordinator may not know of it"


@pytest.mark.parametrize("version", [1, 2])
async def test_the_abort_of_a_transaction_drops_unsent_records_and_waits_for_records_under_way(
    play: Play, version: int
) -> None:
    async with play(version=version) as (nodes, producer):
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
        await committed(producer)
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [False, True]
    assert len(nodes.requests(InitProducerIdRequest)) == 1, "there is no gap"
    assert identities(nodes)[-1] == ((PRODUCER_ID, 0, 1) if version == 1 else (PRODUCER_ID, 1, 0))


async def test_the_abort_of_a_transaction_comes_after_the_answer_about_partitions(play: Play) -> None:
    async with play(version=1) as (nodes, producer), begun(producer):
        nodes.hold(AddPartitionsToTxnRequest)
        await producer.send("orders", b"1", partition=0)
        await nodes.arrival(AddPartitionsToTxnRequest)
        aborting = asyncio.ensure_future(producer.abort_transaction())
        for _ in range(50):
            await asyncio.sleep(0)
        assert nodes.requests(EndTxnRequest) == []
        nodes.release(AddPartitionsToTxnRequest)
        await aborting
    assert nodes.names == ["InitProducerId v5", "AddPartitionsToTxn v3", "EndTxn v4"]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_record_that_waits_for_space_is_refused_once_its_transaction_ends(play: Play, version: int) -> None:
    async with play(version=version, buffer_memory=150) as (nodes, producer), begun(producer):
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
    assert len(nodes.batches) == 1


async def test_partitions_that_a_transaction_may_have_added_are_asked_for_again_before_the_abort(play: Play) -> None:
    async with play(version=1) as (nodes, producer), begun(producer):
        nodes.hold(AddPartitionsToTxnRequest)
        await producer.send("orders", b"1", partition=0)
        await nodes.arrival(AddPartitionsToTxnRequest)
        nodes.refuse(AddPartitionsToTxnRequest, E.NETWORK_EXCEPTION)
        aborting = asyncio.ensure_future(producer.abort_transaction())
        for _ in range(50):
            await asyncio.sleep(0)
        nodes.release(AddPartitionsToTxnRequest)
        await aborting
    assert nodes.names == ["InitProducerId v5", "AddPartitionsToTxn v3", "AddPartitionsToTxn v3", "EndTxn v4"]


async def test_a_topic_that_is_deleted_before_its_partition_was_added_does_not_hold_the_abort_of_the_transaction_back(
    play: Play,
) -> None:
    """Before version 2: the coordinator will never add the partition. The next epoch ends whatever is open."""
    async with play(version=1, max_block_ms=1_500, delivery_timeout_ms=500, request_timeout_ms=200) as (
        nodes,
        producer,
    ):
        nodes.refuse(AddPartitionsToTxnRequest, *[E.UNKNOWN_TOPIC_OR_PARTITION] * 100_000)
        async with begun(producer):
            lost = await producer.send("orders", b"1", partition=0)
            with pytest.raises(KafkaError):
                await lost
            await producer.abort_transaction()
        assert producer.transaction_phase is TransactionPhase.READY
    assert not nodes.requests(EndTxnRequest)
    named = [(each.producer_id, each.producer_epoch) for each in nodes.requests(InitProducerIdRequest)]
    assert named == [(-1, -1), (PRODUCER_ID, 0)]


async def test_a_close_of_the_producer_aborts_its_open_transaction_and_reports_none_of_its_records(play: Play) -> None:
    async with play() as (nodes, producer), begun(producer):
        nodes.refuse(ProduceRequest, E.INVALID_RECORD)
        await producer.send("orders", b"1", partition=0)
        await producer.settle()
        assert producer.transaction_phase is TransactionPhase.ABORTABLE_ERROR
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [False]


async def test_a_close_of_the_producer_carries_on_with_a_commit_that_was_cut_short(play: Play) -> None:
    async with play() as (nodes, producer), begun(producer):
        await producer.send("orders", b"1", partition=0)
        committing = await until_asked(nodes, EndTxnRequest, producer.commit_transaction())
        committing.cancel()
        nodes.release(EndTxnRequest)
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [True, True]


async def test_a_close_of_the_producer_that_cannot_abort_the_transaction_says_so(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async with play() as (nodes, producer), begun(producer):
        await (await producer.send("orders", b"1", partition=0))
        await producer.send("orders", b"2", partition=0)
        nodes.hold(EndTxnRequest)
        producer._transactional()._max_block_ms = 50
    assert "transactional.id 't' is closed with an open transaction" in caplog.text
    assert "not written" not in caplog.text, "records that an abort drops are no news"


async def test_a_hand_over_of_a_transaction_that_is_cut_short_is_called_again_or_aborted_by_the_close(
    play: Play,
) -> None:
    async with play() as (nodes, producer), begun(producer):
        await producer.send("orders", b"1", partition=0)
        nodes.hold(ProduceRequest)
        producer._transactional()._max_block_ms = 50
        with pytest.raises(KafkaError, match=r"longer than max\.block\.ms 50: call it again"):
            await producer.hand_over_transaction()
        nodes.release(ProduceRequest)
        producer._transactional()._max_block_ms = 20_000
    assert [request.committed for request in nodes.requests(EndTxnRequest)] == [False]
