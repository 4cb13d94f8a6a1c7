"""Requests of transactional producers. Last in the script: there is another internal topic then."""

from interop.differential.catalogue.transactions.transactional_requests import (
    Identity,
    adds,
    adds_offsets,
    commits,
    ends,
    initializes,
    is_added,
    is_complete,
    is_coordinated,
    is_found,
    of,
)
from interop.differential.script import Script, ask, every_version
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
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TOPIC = "in-transactions"


def everything() -> Script:
    """A request for all topics at once: both nodes have the same topics."""
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


def _beginning() -> Script:
    topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1, assignments=(), configs=())
    yield from ask("a topic for transactions", CreateTopicsRequest(topics=(topic,), timeout_ms=30_000))
    asked = FindCoordinatorRequest(key="tx", key_type=1, coordinator_keys=("tx",))
    yield from ask("a transaction's coordinator", asked, 1, 3, 4, 6, until=is_found)
    for timeout_ms in (60_000, 0, -1, 2**31 - 1):
        wanted = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=timeout_ms)
        name = f"an id for a transaction of {timeout_ms} ms"
        yield from ask(name, wanted, *every_version(InitProducerIdRequest), until=is_found)


def _begin(step: str) -> Script:
    """The next instance of the producer; what was open is aborted."""
    wanted = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    yield from ask(step, wanted, 5, until=is_complete)


def _adding() -> Script:
    yield from _begin("adding")
    me = of("adding")
    versions = every_version(AddPartitionsToTxnRequest)
    yield from ask("a partition is added for another producer", adds(of("adding", more=7), TOPIC, 0), *versions)
    for epoch in (-1, 1):
        yield from ask(
            f"a partition is added {epoch} epochs away", adds(of("adding", epoch=epoch), TOPIC, 0), *versions
        )
    yield from ask("a partition is added to nothing", adds(me, TOPIC, 0, name="unknown"), *versions)
    yield from ask("a partition is added without a name", adds(me, TOPIC, 0, name=""), *versions)
    yield from ask("a partition that does not exist is added", adds(me, TOPIC, 0, 9), *versions)
    yield from ask("an internal partition is added", adds(me, "__consumer_offsets", 0), 0, 3)
    yield from ask("a partition is added", adds(me, TOPIC, 0), *versions)
    yield from ask("no partition is added", adds(me, TOPIC), 0, 3)


def _ending() -> Script:
    for is_commit in (True, False):
        verb = "commit" if is_commit else "abort"
        step = f"to {verb}"
        yield from _begin(step)
        me, old = of(step), (0, 1, 2, 4)
        for what in (True, False):
            also = "commit" if what else "abort"
            yield from ask(f"nothing is there to {verb} and {also}", ends(me, is_commit=what), *old)
        yield from ask(f"a partition to {verb}", adds(me, TOPIC, 0), 3)
        yield from ask(f"a {verb} of another producer", ends(of(step, more=7), is_commit=is_commit), *old)
        for epoch in (-1, 1):
            yield from ask(f"a {verb} {epoch} epochs away", ends(of(step, epoch=epoch), is_commit=is_commit), *old)
        yield from ask(f"a {verb} of nothing", ends(me, is_commit=is_commit, name="unknown"), *old)
        yield from ask(f"a {verb} without a name", ends(me, is_commit=is_commit, name=""), *old)
        yield from ask(f"a {verb}", ends(me, is_commit=is_commit), 4)
        yield from ask(f"a {verb} again", ends(me, is_commit=is_commit), *old, until=is_complete)
        yield from ask(f"the reverse of a {verb}", ends(me, is_commit=not is_commit), *old)
        yield from ask(f"a partition after a {verb}", adds(me, TOPIC, 1), 3)
        yield from ask(f"a second {verb}", ends(me, is_commit=is_commit), 1)


def _offsets() -> Script:
    yield from _begin("offsets")
    me = of("offsets")
    versions = every_version(TxnOffsetCommitRequest)
    asked = FindCoordinatorRequest(key="tx-group", key_type=0, coordinator_keys=("tx-group",))
    yield from ask("the coordinator of offsets in a transaction", asked, 4, until=is_found)

    yield from ask(
        "offsets before their partition is added", commits(me, 1, topic=TOPIC), 0, 3, 4, until=is_coordinated
    )
    yield from ask(
        "the offsets' partition is added", adds_offsets(me, "tx-group"), *every_version(AddOffsetsToTxnRequest)
    )
    yield from ask("offsets of a transaction", commits(me, 3, topic=TOPIC), *versions)
    yield from ask("offsets of an older producer", commits(of("offsets", epoch=-1), 4, topic=TOPIC), *versions)
    yield from ask("offsets of an unknown topic in a transaction", commits(me, 3, topic="unknown"), *versions)
    yield from ask("offsets of an unknown generation", commits(me, 3, topic=TOPIC, member=("nobody", 3)), 3, 4, 5)
    yield from ask("offsets of an empty group", commits(me, 3, topic=TOPIC, group=""), *versions)
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
            yield from ask("a commit of offsets", ends(me, is_commit=True), 4)
            yield from ask("a commit of offsets again", ends(me, is_commit=True), 4, until=is_complete)


def _ending_with_epochs() -> Script:
    """KIP-890: EndTxn v5."""
    yield from _begin("epochs")
    me = of("epochs")
    yield from ask("nothing to commit with KIP-890", ends(me, is_commit=True), 5)
    yield from ask("nothing to abort with KIP-890", ends(me, is_commit=False), 5)
    yield from ask("nothing to abort with KIP-890, again", ends(me, is_commit=False), 5, until=is_complete)
    yield from ask("not a commit with KIP-890", ends(me, is_commit=True), 5)
    following = of("nothing to abort with KIP-890")
    yield from ask("a partition to commit with KIP-890", adds(following, TOPIC, 0), 3)
    yield from ask("a commit with KIP-890", ends(following, is_commit=True), 5)
    yield from ask("a commit with KIP-890, again", ends(following, is_commit=True), 5, until=is_complete)
    yield from ask("the reverse of a commit with KIP-890", ends(following, is_commit=False), 5)
    yield from ask("a commit with KIP-890 by a late producer", ends(me, is_commit=True), 5)
    last = of("a commit with KIP-890")
    yield from ask("nothing to commit after a commit with KIP-890", ends(last, is_commit=True), 5)
    yield from ask("an older EndTxn after one of KIP-890", ends(last, is_commit=True), 4)
    yield from _behind_an_end(last)


def _behind_an_end(who: Identity) -> Script:
    """A request that comes while markers are being written is carried out when the markers are there (KAFKA-18464)."""
    yield from ask("a partition in front of an end", adds(who, TOPIC, 0), 3)
    yield from ask("a commit in front of an abort", ends(who, is_commit=True), 5)
    following = of("a commit in front of an abort")
    yield from ask("an abort right behind a commit", ends(following, is_commit=False), 5, until=is_complete)
    following = of("an abort right behind a commit")
    yield from ask("a partition right behind an abort", adds(following, TOPIC, 0), 3, until=is_added)
    yield from ask("an older commit right behind it", ends(following, is_commit=True), 4)
    yield from ask("a partition right behind an older commit", adds(following, TOPIC, 1), 3, until=is_added)
    yield from ask("an older abort right behind it", ends(following, is_commit=False), 4)


def _going_on() -> Script:
    """KIP-360: a producer that names what it has."""
    yield from _begin("going on")

    me = of("going on")
    yield from ask("a producer goes on", initializes(me), 3)
    yield from ask("a producer goes on that has not heard", initializes(me), 3, 4, 5)
    yield from ask("a producer goes on that was fenced", initializes(of("going on", epoch=-1)), 3, 4, 5)
    yield from ask("a producer goes on from the future", initializes(of("going on", epoch=7)), 3, 4, 5)
    yield from ask("another producer goes on", initializes(of("going on", more=7)), 3, 4, 5)


def _queries() -> Script:
    yield from _begin("described")
    yield from ask("a partition to describe", adds(of("described"), TOPIC, 0, 1), 3)
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
