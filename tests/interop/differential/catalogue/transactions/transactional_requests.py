"""Requests of transactional producers, built from the identities that a node has given to them."""

from collections.abc import Callable
from typing import Any

from interop.differential.script import Answers, Build
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tailrace.protocol.schema import replace

_NOT_YET = (14, 15, 16)
_CONCURRENT = 51
_NOT_ENOUGH_REPLICAS = 19


def is_found(answer: Any) -> bool:
    """There is a coordinator that has loaded its partition."""
    found = getattr(answer, "coordinators", ()) or (answer,)
    return all(each.error_code not in _NOT_YET for each in found)


def is_complete(answer: Any) -> bool:
    """The decision of before is carried out: markers come after the answer."""
    return answer.error_code not in (*_NOT_YET, _CONCURRENT)


def is_added(answer: Any) -> bool:
    """As `is_complete`, for AddPartitionsToTxn of a producer."""
    codes = {
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    return _CONCURRENT not in codes


def is_coordinated(answer: Any) -> bool:
    """A group's coordinator has answered, and has reached the transaction's coordinator."""
    busy = (*_NOT_YET, _CONCURRENT)
    return all(partition.error_code not in busy for topic in answer.topics for partition in topic.partitions)


def is_written(answer: Any) -> bool:
    """The leader of a batch has reached the coordinator of its transaction, whose last end is complete.

    For older producers a leader that has not reached the coordinator answers with another code, 19.
    """
    codes = {partition.error_code for topic in answer.responses for partition in topic.partition_responses}
    return codes.isdisjoint((_NOT_ENOUGH_REPLICAS, _CONCURRENT))


Identity = Callable[[Answers], tuple[int, int]]


def of(step: str, *, more: int = 0, epoch: int = 0) -> Identity:
    """The result of this step, with a producer id or an epoch that is higher by so much."""

    def identity(answers: Answers) -> tuple[int, int]:
        return answers[step].producer_id + more, answers[step].producer_epoch + epoch

    return identity


def adds(who: Identity, topic: str, *partitions: int, name: str = "tx") -> Build:
    """AddPartitionsToTxn; as a broker sends it, also to the transaction of an unknown id."""

    def build(answers: Answers) -> AddPartitionsToTxnRequest:
        producer_id, producer_epoch = who(answers)
        topics = (AddPartitionsToTxnTopic(name=topic, partitions=partitions),)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer_id, producer_epoch=producer_epoch, topics=topics
        )
        return AddPartitionsToTxnRequest(
            transactions=(transaction, replace(transaction, transactional_id="other")),
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=topics,
        )

    return build


def adds_offsets(who: Identity, group: str, *, name: str = "tx") -> Build:
    """AddOffsetsToTxn."""

    def build(answers: Answers) -> AddOffsetsToTxnRequest:
        producer_id, producer_epoch = who(answers)
        return AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group
        )

    return build


def ends(who: Identity, *, is_commit: bool, name: str = "tx") -> Build:
    """EndTxn."""

    def build(answers: Answers) -> EndTxnRequest:
        producer_id, producer_epoch = who(answers)
        return EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=producer_epoch, committed=is_commit
        )

    return build


def commits(
    who: Identity,
    offset: int,
    *,
    topic: str,
    group: str = "tx-group",
    member: tuple[str, int] = ("", -1),
    name: str = "tx",
) -> Build:
    """TxnOffsetCommit of partition 0."""

    def build(answers: Answers) -> TxnOffsetCommitRequest:
        producer_id, producer_epoch = who(answers)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="note"
        )
        return TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            member_id=member[0],
            generation_id=member[1],
            topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
        )

    return build


def initializes(who: Identity, *, name: str = "tx") -> Build:
    """InitProducerId of a producer that names its identity (KIP-360)."""

    def build(answers: Answers) -> InitProducerIdRequest:
        producer_id, producer_epoch = who(answers)
        return InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    return build
