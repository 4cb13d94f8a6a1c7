"""The errors that a transactional producer gets: some pass, some cost the transaction, some end the producer."""

import pytest

from tailrace.client.errors import AbortableTransactionError, FatalTransactionError, ProducerFenced
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
from unit.client.transactions.producer_scenes import BILLS, MEMBER, Play, begun, committed, identities, in_a_block


@pytest.mark.parametrize("version", [1, 2])
async def test_the_commit_of_a_transaction_waits_for_its_records_and_refuses_when_a_record_failed(
    play: Play, version: int
) -> None:
    async with play(version=version) as (nodes, producer):
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
    assert [request.committed for request in nodes.requests(EndTxnRequest)] == [False, True]
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0)]
    named = [(each.producer_id, each.producer_epoch) for each in nodes.requests(InitProducerIdRequest)]
    assert named == ([(-1, -1), (PRODUCER_ID, 0)] if version == 1 else [(-1, -1)])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [E.UNKNOWN_PRODUCER_ID, E.INVALID_PRODUCER_EPOCH, E.OUT_OF_ORDER_SEQUENCE_NUMBER])
async def test_a_transaction_takes_no_identity_but_the_coordinators(play: Play, version: int, code: E) -> None:
    """An idempotent producer goes on under an epoch of its own choice here."""
    async with play(version=version) as (nodes, producer):
        nodes.refuse(ProduceRequest, code)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            with pytest.raises(AbortableTransactionError) as refused:
                await producer.commit_transaction()
            assert refused.value.code is code
            await producer.abort_transaction()
        await committed(producer)
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS])
async def test_a_transactional_producer_reports_no_error_that_passes(play: Play, version: int, code: E) -> None:
    kinds = (
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
    )

    async with play(version=version) as (nodes, producer):
        for kind in kinds:
            nodes.refuse(kind, code, E.NETWORK_EXCEPTION, code)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            await producer.send("bills", b"1", partition=0)
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()
        assert producer.transaction_phase is TransactionPhase.READY
    for kind in kinds if version == 1 else (InitProducerIdRequest, TxnOffsetCommitRequest, EndTxnRequest):
        assert len(nodes.requests(kind)) >= 4, kind
    assert nodes.lookups > 3, "a lost connection may be a coordinator that has moved"


@pytest.mark.parametrize("version", [1, 2])
async def test_a_fenced_producer_gets_an_error_with_its_transactional_id(play: Play, version: int) -> None:
    async with play(version=version) as (nodes, producer):
        nodes.refuse(EndTxnRequest, E.PRODUCER_FENCED)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                with pytest.raises(ProducerFenced, match=r"another producer with transactional\.id 't'"):
                    await call()
            with pytest.raises(ProducerFenced):
                await producer.send("orders", b"2", partition=0)
    assert len(nodes.requests(EndTxnRequest)) == 1


@pytest.mark.parametrize(
    "code", [E.INVALID_PRODUCER_EPOCH, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE]
)
async def test_a_partition_that_the_transaction_coordinator_refuses_fails_its_records_and_ends_the_producer(
    play: Play, code: E
) -> None:
    async with play(version=1) as (nodes, producer):
        nodes.refuse(AddPartitionsToTxnRequest, code)
        async with begun(producer):
            lost = await producer.send("orders", b"1", partition=0)
            with pytest.raises(FatalTransactionError):
                await producer.commit_transaction()
            assert lost.exception() is not None
    assert nodes.requests(EndTxnRequest) == []


async def test_a_partition_that_the_transaction_coordinator_refuses_costs_the_transaction_alone(play: Play) -> None:
    async with play(version=1) as (nodes, producer):
        nodes.refuse(AddPartitionsToTxnRequest, E.TOPIC_AUTHORIZATION_FAILED)
        await producer.init_transactions()
        with pytest.raises(AbortableTransactionError) as refused:
            await in_a_block(producer, "bills", "orders")
        assert refused.value.code is E.TOPIC_AUTHORIZATION_FAILED, "and not that others were not attempted"
        await in_a_block(producer, "orders")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID])
async def test_a_consumer_that_has_left_its_group_costs_the_transaction_alone(
    play: Play, version: int, code: E
) -> None:
    async with play(version=version) as (nodes, producer):
        nodes.refuse(TxnOffsetCommitRequest, code)
        async with begun(producer):
            with pytest.raises(AbortableTransactionError) as refused:
                await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            assert refused.value.code is code
            await producer.abort_transaction()
        async with begun(producer):
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()
    assert [each.committed for each in nodes.requests(EndTxnRequest)] == [False, True]


async def test_another_cluster_at_the_address_ends_the_transactional_producer(play: Play) -> None:
    async with play() as (nodes, producer), begun(producer):
        await (await producer.send("orders", b"1", partition=0))
        nodes.view.cluster_id = "another"
        lost = await producer.send("orders", b"2", partition=0)
        with pytest.raises(FatalTransactionError, match="another cluster"):
            await producer.commit_transaction()
        assert lost.exception() is not None
    assert len(nodes.batches) == 1


async def test_a_transaction_coordinator_that_gives_no_next_epoch_ends_the_producer(play: Play) -> None:
    async with play(version=0, newest={InitProducerIdRequest: 2}) as (nodes, producer):
        nodes.refuse(ProduceRequest, E.INVALID_RECORD)
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            with pytest.raises(FatalTransactionError, match="Kafka before 2.5"):
                await producer.abort_transaction()
