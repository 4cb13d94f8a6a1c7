"""A transactional producer against a node that answers by script: requests, blocks, calls and settings."""

import asyncio
from typing import Any

import pytest

from tailrace.client.errors import AbortableTransactionError, FatalTransactionError
from tailrace.client.producer import AsyncProducer
from tailrace.client.transactions.producer_transaction import Identity, TransactionPhase
from tailrace.model.errors import ErrorCode as E
from tailrace.model.errors import KafkaError
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.messages.transactions import EndTxnRequest, TxnOffsetCommitRequest
from testkit.clients.scripted_transactions import PRODUCER_ID
from unit.client.transactions.producer_scenes import BILLS, MEMBER, Play, begun, committed, identities, in_a_block


async def test_the_requests_of_a_transactional_producer_before_version_2(play: Play) -> None:
    async with play(version=1) as (nodes, producer):
        async with begun(producer):
            await (await producer.send("orders", b"1", partition=0))
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
            await producer.commit_transaction()
        await committed(producer)
    first = ["InitProducerId v5", "AddPartitionsToTxn v3", "Produce v11"]
    offsets = ["AddOffsetsToTxn v4", "TxnOffsetCommit v4", "EndTxn v4"]
    assert nodes.names == [*first, *offsets, "AddPartitionsToTxn v3", "Produce v11", "EndTxn v4"]
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 0, 1)], "one epoch, and the numbers go on"
    assert all(batch.is_transactional for batch in nodes.batches)
    assert [request.transactional_id for request in nodes.requests(ProduceRequest)] == ["t", "t"]


async def test_the_requests_of_a_transactional_producer_of_version_2(play: Play) -> None:
    async with play() as (nodes, producer):
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
async def test_a_transaction_that_is_handed_over_is_left_open(play: Play, version: int) -> None:
    """The transaction's records are written, and neither this call nor the close ends the transaction."""
    async with play(version=version) as (nodes, producer), begun(producer):
        written = await producer.send("orders", b"1", partition=0)
        assert await producer.hand_over_transaction() == Identity(PRODUCER_ID, 0, True)
        assert written.done()
        with pytest.raises(KafkaError, match="make another producer"):
            await producer.send("orders", b"2", partition=0)
    assert not nodes.requests(EndTxnRequest)


async def test_a_transaction_block_commits_or_aborts(play: Play) -> None:
    async with play() as (nodes, producer):
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
    ends = [each.committed for each in nodes.requests(EndTxnRequest)]
    assert (ends[0], set(ends[1:])) == (True, {False})


async def test_an_exception_of_the_transaction_block_is_raised_though_the_abort_fails(play: Play) -> None:
    async with play() as (nodes, producer):
        await producer.init_transactions()
        nodes.refuse(EndTxnRequest, E.PRODUCER_FENCED)
        with pytest.raises(ZeroDivisionError) as raised:
            await in_a_block(producer, "orders", fault=ZeroDivisionError())
        (note,) = raised.value.__notes__
        assert "PRODUCER_FENCED" in note


async def test_calls_of_a_transactional_producer_out_of_order_name_the_way_out(play: Play) -> None:
    async with play() as (nodes, producer):
        with pytest.raises(KafkaError, match=r"call init_transactions\(\) first"):
            await producer.send("orders", b"1", partition=0)
        with pytest.raises(KafkaError, match=r"call init_transactions\(\) first"):
            await producer.begin_transaction()
        await producer.init_transactions()
        with pytest.raises(KafkaError, match=r"send\(\) .* no transaction is open: call begin_transaction\(\) first"):
            await producer.send("orders", b"1", partition=0)
        with pytest.raises(KafkaError, match="it is called once"):
            await producer.init_transactions()
    assert nodes.names == ["InitProducerId v5"]


async def test_a_producer_without_transactions_says_how_to_have_them(play: Play) -> None:
    async with play(transactional_id=None) as (_, producer):
        assert producer.transaction_phase is None
        with pytest.raises(KafkaError, match="give it a transactional_id"):
            await producer.init_transactions()


@pytest.mark.parametrize(
    "settings", [{"acks": 1, "idempotent": False}, {"idempotent": False}, {"transactional_id": ""}]
)
def test_a_transactional_producer_refuses_settings_that_do_not_go_together(settings: dict[str, Any]) -> None:
    with pytest.raises(KafkaError, match="transactional_id needs") as refused:
        AsyncProducer("127.0.0.1:1", **{"transactional_id": "t", **settings})
    assert refused.value.code is E.INVALID_CONFIG


async def test_a_transactional_producer_goes_on_when_the_cluster_raises_its_transaction_version(play: Play) -> None:
    async with play(version=1) as (nodes, producer):
        async with begun(producer):
            await producer.send("orders", b"1", partition=0)
            nodes.version = 2
            await producer.commit_transaction()
        await committed(producer)
    assert nodes.names[-4:] == ["EndTxn v4", "InitProducerId v5", "Produce v12", "EndTxn v5"]
    assert identities(nodes) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0)]


async def test_a_transaction_coordinator_that_does_not_compare_members_gets_no_offsets_of_a_member(play: Play) -> None:
    """The coordinator would take offsets of a member that has left its group."""
    async with play(version=0, newest={TxnOffsetCommitRequest: 2}) as (nodes, producer), begun(producer):
        with pytest.raises(FatalTransactionError, match="does not compare members"):
            await producer.send_offsets_to_transaction({BILLS: 5}, MEMBER)
    assert nodes.requests(TxnOffsetCommitRequest) == []
