"""Requests about transactions to a coordinator behind a peer; for one on this node see test_service."""

from collections.abc import Mapping

from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC, PartitionState, TopicPartition
from tailrace.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tailrace.server.produce.transactional_appends import VerificationRequest
from tailrace.server.transactions.channel import TransactionChannel
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.ports import DeferredPeer

E = ErrorCode
HERE, THERE = BrokerId(1), BrokerId(2)
ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 1)


def image(leader: int) -> ClusterImage:
    state = PartitionState(
        topic_id=TopicId(b"i" * 16),
        replicas=(THERE,),
        in_sync_replicas=(THERE,),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
    )
    topic = TopicImage(name=TRANSACTION_STATE_TOPIC, topic_id=state.topic_id, partitions={0: state})
    return ClusterImage(topics={TRANSACTION_STATE_TOPIC: topic})


class TransactionChannelBench:
    """A channel to another broker, and the requests sent there."""

    def __init__(self, leader: int = THERE) -> None:
        self.clock = ManualClock()
        self.peer = DeferredPeer()
        self.answers: list[Mapping[TopicPartition, ErrorCode]] = []
        self.channel = TransactionChannel(
            broker_id=HERE,
            image=lambda: image(leader),
            coordinators=TransactionPath("/data", files=SimulatedDisk()).transactions,
            peer=self.peer,
            clock=self.clock,
        )

    def ask(self, *, adds: bool) -> None:
        request = VerificationRequest("pay", 7, 3, (ORDERS, BILLS), adds)
        self.channel.verify(request, self.answers.append)

    def answer(self, *codes: int) -> None:
        assert self.peer.oldest_version == 4
        assert self.peer.timeout_ms is not None
        _, request, on_reply = self.peer.waiting.pop(0)
        (transaction,) = request.transactions
        next_codes = iter(codes)
        topics = tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=next(next_codes))
                    for index in topic.partitions
                ),
            )
            for topic in transaction.topics
        )
        result = AddPartitionsToTxnResult(transactional_id="pay", topic_results=topics)
        on_reply(AddPartitionsToTxnResponse(results_by_transaction=(result,)))


def test_a_verifications_codes_are_given_by_partition() -> None:
    bench = TransactionChannelBench()
    bench.ask(adds=False)
    ((node_id, request, _),) = bench.peer.waiting
    (transaction,) = request.transactions
    assert (node_id, transaction.transactional_id, transaction.producer_id) == (THERE, "pay", 7)
    assert transaction.verify_only
    bench.answer(E.TRANSACTION_ABORTABLE, E.NONE)
    assert bench.answers == [{BILLS: E.TRANSACTION_ABORTABLE, ORDERS: E.NONE}]


def test_added_partitions_wait_for_the_end_of_the_last_transaction() -> None:
    bench = TransactionChannelBench()
    bench.ask(adds=True)
    for _ in range(3):
        bench.answer(E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS)
        assert not bench.answers
        bench.clock.advance(20)
    assert not bench.peer.waiting[0][1].transactions[0].verify_only
    bench.answer(E.NONE, E.NONE)
    assert bench.answers == [{BILLS: E.NONE, ORDERS: E.NONE}]


def test_and_not_for_ever() -> None:
    bench = TransactionChannelBench()
    bench.ask(adds=True)
    attempts = 0
    while not bench.answers:
        bench.answer(E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS)
        bench.clock.advance(20)
        attempts += 1
    assert attempts == 61
    assert set(bench.answers[0].values()) == {E.CONCURRENT_TRANSACTIONS}


def test_a_look_does_not_wait() -> None:
    bench = TransactionChannelBench()
    bench.ask(adds=False)
    bench.answer(E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS)
    assert set(bench.answers[0].values()) == {E.CONCURRENT_TRANSACTIONS}


def test_an_error_code_without_a_name_becomes_unknown_server_error() -> None:
    """Otherwise the producer would never get an answer."""
    bench = TransactionChannelBench()
    bench.ask(adds=False)
    bench.answer(32_000, E.NONE)
    bench.ask(adds=False)
    bench.peer.waiting.pop(0)[2](AddPartitionsToTxnResponse(error_code=32_000))
    assert bench.answers == [
        {BILLS: E.UNKNOWN_SERVER_ERROR, ORDERS: E.NONE},
        {BILLS: E.UNKNOWN_SERVER_ERROR, ORDERS: E.UNKNOWN_SERVER_ERROR},
    ]


def test_a_verification_without_an_answer_becomes_network_exception() -> None:
    bench = TransactionChannelBench()
    bench.ask(adds=True)
    bench.peer.waiting.pop(0)[2](None)
    assert bench.answers == [{ORDERS: E.NETWORK_EXCEPTION, BILLS: E.NETWORK_EXCEPTION}]


def test_without_a_coordinator_no_request_is_sent() -> None:
    bench = TransactionChannelBench(leader=-1)
    bench.ask(adds=True)
    assert bench.answers == [{ORDERS: E.COORDINATOR_NOT_AVAILABLE, BILLS: E.COORDINATOR_NOT_AVAILABLE}]


def test_a_coordinator_that_is_not_here_yet_is_refused() -> None:
    bench = TransactionChannelBench(leader=HERE)
    bench.ask(adds=True)
    assert set(bench.answers[0].values()) == {E.NOT_COORDINATOR}
