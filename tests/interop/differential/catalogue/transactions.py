"""Requests of transactional producers. Last in the script: there is another internal topic then."""

from collections.abc import Callable
from typing import Any

from interop.differential.script import Answers, Script, ask, every_version
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from tailrace.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tailrace.protocol.schema import replace

TOPIC = "in-transactions"
_NOT_YET = (14, 15, 16)
_CONCURRENT = 51


def everything() -> Script:
    """All topics at once: both nodes have the same."""
    yield from ask("all topics", MetadataRequest(topics=None), *range(1, 14))
    yield from ask("all topics", MetadataRequest(topics=()), 0)
    yield from ask("all partitions", DescribeTopicPartitionsRequest(topics=()))


def transactions() -> Script:
    """The identity that a producer gets, and its uses, in every state of its transaction."""
    yield from _beginning()
    yield from _adding()
    yield from _ending()
    yield from _offsets()
    yield from _ending_with_epochs()
    yield from _going_on()
    yield from _queries()
    yield from _markers()


def _is_found(answer: Any) -> bool:
    found = getattr(answer, "coordinators", ()) or (answer,)
    return all(each.error_code not in _NOT_YET for each in found)


def _is_complete(answer: Any) -> bool:
    """The decision of before is carried out: markers come after the answer."""
    return answer.error_code not in (*_NOT_YET, _CONCURRENT)


def _is_added(answer: Any) -> bool:
    codes = {
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    return _CONCURRENT not in codes


def _is_coordinated(answer: Any) -> bool:
    return all(partition.error_code not in _NOT_YET for topic in answer.topics for partition in topic.partitions)


def _beginning() -> Script:
    topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1, assignments=(), configs=())
    yield from ask("a topic for transactions", CreateTopicsRequest(topics=(topic,), timeout_ms=30_000))
    asked = FindCoordinatorRequest(key="tx", key_type=1, coordinator_keys=("tx",))
    yield from ask("a transaction's coordinator", asked, 1, 3, 4, 6, until=_is_found)
    for timeout_ms in (60_000, 0, -1, 2**31 - 1):
        wanted = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=timeout_ms)
        name = f"an id for a transaction of {timeout_ms} ms"
        yield from ask(name, wanted, *every_version(InitProducerIdRequest), until=_is_found)


def _begin(step: str) -> Script:
    """The next instance of the producer; what was open is aborted."""
    wanted = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    yield from ask(step, wanted, 5, until=_is_complete)


Identity = Callable[[Answers], tuple[int, int]]


def _of(step: str, *, more: int = 0, epoch: int = 0) -> Identity:
    """The result of this step, with a producer id or an epoch that is higher by so much."""

    def identity(answers: Answers) -> tuple[int, int]:
        return answers[step].producer_id + more, answers[step].producer_epoch + epoch

    return identity


def _adds(who: Identity, topic: str, *partitions: int, name: str = "tx") -> Callable[[Answers], Any]:
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


def _adding() -> Script:
    yield from _begin("adding")
    me = _of("adding")
    versions = every_version(AddPartitionsToTxnRequest)
    yield from ask("a partition is added for another producer", _adds(_of("adding", more=7), TOPIC, 0), *versions)
    for epoch in (-1, 1):
        yield from ask(
            f"a partition is added {epoch} epochs away", _adds(_of("adding", epoch=epoch), TOPIC, 0), *versions
        )
    yield from ask("a partition is added to nothing", _adds(me, TOPIC, 0, name="unknown"), *versions)
    yield from ask("a partition is added without a name", _adds(me, TOPIC, 0, name=""), *versions)
    yield from ask("a partition that does not exist is added", _adds(me, TOPIC, 0, 9), *versions)
    yield from ask("an internal partition is added", _adds(me, "__consumer_offsets", 0), 0, 3)
    yield from ask("a partition is added", _adds(me, TOPIC, 0), *versions)
    yield from ask("no partition is added", _adds(me, TOPIC), 0, 3)


def _ends(who: Identity, *, is_commit: bool, name: str = "tx") -> Callable[[Answers], Any]:
    def build(answers: Answers) -> EndTxnRequest:
        producer_id, producer_epoch = who(answers)
        return EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=producer_epoch, committed=is_commit
        )

    return build


def _ending() -> Script:
    for is_commit in (True, False):
        verb = "commit" if is_commit else "abort"
        step = f"to {verb}"
        yield from _begin(step)
        me, old = _of(step), (0, 1, 2, 4)
        for what in (True, False):
            also = "commit" if what else "abort"
            yield from ask(f"nothing is there to {verb} and {also}", _ends(me, is_commit=what), *old)
        yield from ask(f"a partition to {verb}", _adds(me, TOPIC, 0), 3)
        yield from ask(f"a {verb} of another producer", _ends(_of(step, more=7), is_commit=is_commit), *old)
        for epoch in (-1, 1):
            yield from ask(f"a {verb} {epoch} epochs away", _ends(_of(step, epoch=epoch), is_commit=is_commit), *old)
        yield from ask(f"a {verb} of nothing", _ends(me, is_commit=is_commit, name="unknown"), *old)
        yield from ask(f"a {verb} without a name", _ends(me, is_commit=is_commit, name=""), *old)
        yield from ask(f"a {verb}", _ends(me, is_commit=is_commit), 4)
        yield from ask(f"a {verb} again", _ends(me, is_commit=is_commit), *old, until=_is_complete)
        yield from ask(f"the reverse of a {verb}", _ends(me, is_commit=not is_commit), *old)
        yield from ask(f"a partition after a {verb}", _adds(me, TOPIC, 1), 3)
        yield from ask(f"a second {verb}", _ends(me, is_commit=is_commit), 1)


def _commits(
    who: Identity, offset: int, *, group: str = "tx-group", topic: str = TOPIC, member: tuple[str, int] = ("", -1)
) -> Callable[[Answers], Any]:
    def build(answers: Answers) -> TxnOffsetCommitRequest:
        producer_id, producer_epoch = who(answers)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="note"
        )
        return TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            member_id=member[0],
            generation_id=member[1],
            topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
        )

    return build


def _offsets() -> Script:
    yield from _begin("offsets")
    me = _of("offsets")
    versions = every_version(TxnOffsetCommitRequest)
    asked = FindCoordinatorRequest(key="tx-group", key_type=0, coordinator_keys=("tx-group",))
    yield from ask("the coordinator of offsets in a transaction", asked, 4, until=_is_found)

    def adds(answers: Answers) -> AddOffsetsToTxnRequest:
        producer_id, producer_epoch = me(answers)
        return AddOffsetsToTxnRequest(
            transactional_id="tx", producer_id=producer_id, producer_epoch=producer_epoch, group_id="tx-group"
        )

    yield from ask("offsets before their partition is added", _commits(me, 1), 0, 3, 4, until=_is_coordinated)
    yield from ask("the offsets' partition is added", adds, *every_version(AddOffsetsToTxnRequest))
    yield from ask("offsets of a transaction", _commits(me, 3), *versions)
    yield from ask("offsets of an older producer", _commits(_of("offsets", epoch=-1), 4), *versions)
    yield from ask("offsets of an unknown topic in a transaction", _commits(me, 3, topic="unknown"), *versions)
    yield from ask("offsets of an unknown generation", _commits(me, 3, member=("nobody", 3)), 3, 4, 5)
    yield from ask("offsets of an empty group", _commits(me, 3, group=""), *versions)
    topics = (OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0, 1)),)
    for step in ("open", "committed"):
        for is_stable in (False, True):
            found = OffsetFetchRequest(
                group_id="tx-group",
                topics=(OffsetFetchRequestTopic(name=TOPIC, partition_indexes=(0, 1)),),
                groups=(OffsetFetchRequestGroup(group_id="tx-group", topics=topics),),
                require_stable=is_stable,
            )
            yield from ask(f"offsets that are {step}, stable {is_stable}", found, 7, 8, 9)
        if step == "open":
            yield from ask("a commit of offsets", _ends(me, is_commit=True), 4)
            yield from ask("a commit of offsets again", _ends(me, is_commit=True), 4, until=_is_complete)


def _ending_with_epochs() -> Script:
    """KIP-890: EndTxn v5."""
    yield from _begin("epochs")
    me = _of("epochs")
    yield from ask("nothing to commit with KIP-890", _ends(me, is_commit=True), 5)
    yield from ask("nothing to abort with KIP-890", _ends(me, is_commit=False), 5)
    yield from ask("nothing to abort with KIP-890, again", _ends(me, is_commit=False), 5, until=_is_complete)
    yield from ask("not a commit with KIP-890", _ends(me, is_commit=True), 5)
    following = _of("nothing to abort with KIP-890")
    yield from ask("a partition to commit with KIP-890", _adds(following, TOPIC, 0), 3)
    yield from ask("a commit with KIP-890", _ends(following, is_commit=True), 5)
    yield from ask("a commit with KIP-890, again", _ends(following, is_commit=True), 5, until=_is_complete)
    yield from ask("the reverse of a commit with KIP-890", _ends(following, is_commit=False), 5)
    yield from ask("a commit with KIP-890 by a late producer", _ends(me, is_commit=True), 5)
    last = _of("a commit with KIP-890")
    yield from ask("nothing to commit after a commit with KIP-890", _ends(last, is_commit=True), 5)
    yield from ask("an older EndTxn after one of KIP-890", _ends(last, is_commit=True), 4)
    yield from _behind_an_end(last)


def _behind_an_end(who: Identity) -> Script:
    """A request that comes while markers are being written is carried out when they are (KAFKA-18464)."""
    yield from ask("a partition in front of an end", _adds(who, TOPIC, 0), 3)
    yield from ask("a commit in front of an abort", _ends(who, is_commit=True), 5)
    following = _of("a commit in front of an abort")
    yield from ask("an abort right behind a commit", _ends(following, is_commit=False), 5, until=_is_complete)
    following = _of("an abort right behind a commit")
    yield from ask("a partition right behind an abort", _adds(following, TOPIC, 0), 3, until=_is_added)
    yield from ask("an older commit right behind it", _ends(following, is_commit=True), 4)
    yield from ask("a partition right behind an older commit", _adds(following, TOPIC, 1), 3, until=_is_added)
    yield from ask("an older abort right behind it", _ends(following, is_commit=False), 4)


def _going_on() -> Script:
    """KIP-360: a producer that names what it has."""
    yield from _begin("going on")

    def names(who: Identity) -> Callable[[Answers], Any]:
        def build(answers: Answers) -> InitProducerIdRequest:
            producer_id, producer_epoch = who(answers)
            return InitProducerIdRequest(
                transactional_id="tx",
                transaction_timeout_ms=60_000,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )

        return build

    me = _of("going on")
    yield from ask("a producer goes on", names(me), 3)
    yield from ask("a producer goes on that has not heard", names(me), 3, 4, 5)
    yield from ask("a producer goes on that was fenced", names(_of("going on", epoch=-1)), 3, 4, 5)
    yield from ask("a producer goes on from the future", names(_of("going on", epoch=7)), 3, 4, 5)
    yield from ask("another producer goes on", names(_of("going on", more=7)), 3, 4, 5)


def _queries() -> Script:
    yield from _begin("described")
    yield from ask("a partition to describe", _adds(_of("described"), TOPIC, 0, 1), 3)
    described = DescribeTransactionsRequest(transactional_ids=("tx", "unknown", "", "tx"))
    yield from ask("transactions are described", described)
    for states in ((), ("Ongoing",), ("Empty", "Nonsense"), ("ongoing",)):
        listed = ListTransactionsRequest(state_filters=states)
        yield from ask(f"transactions in states {','.join(states)}", listed, *every_version(ListTransactionsRequest))
    long = ListTransactionsRequest(duration_filter=3_600_000)
    yield from ask("transactions of an hour", long, 1, 2)
    yield from ask("transactions of an unused producer id", ListTransactionsRequest(producer_id_filters=(2**40,)), 0)
    yield from ask("transactions by a pattern", ListTransactionsRequest(transactional_id_pattern="t.*"), 2)
    yield from ask("transactions by no pattern", ListTransactionsRequest(transactional_id_pattern="t["), 2)


def _markers() -> Script:
    """Markers of coordinators to the leaders of partitions, and of administrators for hanging transactions."""

    def marker(
        producer_epoch: int, coordinator_epoch: int, *partitions: int, topic: str = TOPIC, producer_id: int = 555_000
    ) -> WritableTxnMarker:
        return WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=partitions),),
            coordinator_epoch=coordinator_epoch,
        )

    steps = {
        "no marker": (),
        "a marker of a stranger": (marker(3, 5, 0, 1),),
        "a marker again": (marker(3, 5, 0),),
        "a marker of an older coordinator": (marker(3, 4, 0),),
        "a marker of an older epoch": (marker(2, 5, 0),),
        "a marker of a newer epoch": (marker(4, 6, 0),),
        "a marker for a partition that does not exist": (marker(4, 6, 9),),
        "a marker for a topic that does not exist": (marker(4, 6, 0, topic="unknown"),),
        "two markers": (marker(4, 6, 0), marker(5, 6, 1, producer_id=555_001)),
    }
    for step, markers in steps.items():
        yield from ask(step, WriteTxnMarkersRequest(markers=markers), 1)
