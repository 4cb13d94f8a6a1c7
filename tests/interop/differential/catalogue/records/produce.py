"""Produce: checks of a batch, sequence numbers and epochs, acks, and refused producers."""

from collections.abc import Callable
from struct import pack_into

from interop.differential.catalogue.preparation import LIMIT_MS, NOW_MS, batch, created, ends, produce, records
from interop.differential.script import Answers, Build, Script, ask, every_version, key_versions
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.transactions import InitProducerIdRequest
from tailrace.protocol.primitives import varint
from tailrace.protocol.records.batch import seal
from tailrace.protocol.records.record import Record, build_batch
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

TOPIC = "produce"
_VERSIONS = (3, 7, 8, 12, 13)
_BEFORE_IDS = (3, 7, 8, 12)
_HOUR_MS = 3_600_000


def produces() -> Script:
    yield from created(TOPIC, 2)
    yield from created("compacted", 1, {"cleanup.policy": "compact"})
    yield from created("small-messages", 1, {"max.message.bytes": "300"})
    yield from created("append-time", 1, {"message.timestamp.type": "LogAppendTime"})
    bounds = {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"}
    yield from created("recent", 1, bounds)
    yield from _accepted()
    yield from _malformed()
    yield from created("disputed")
    yield from _disputed()
    yield from _topics_rules()
    yield from _acks()
    yield from _sequences()
    yield from _identities()


def _accepted() -> Script:
    yield from ask("a batch", produce(TOPIC, batch(3)), *every_version(ProduceRequest))
    for codec in range(5):
        versions = _VERSIONS if codec != 4 else (7, 13)
        yield from ask(f"a batch in codec {codec}", produce(TOPIC, batch(2, codec=codec)), *versions)
    yield from ask("zstd below version 7", produce(TOPIC, batch(2, codec=4)), 3, 5, 6)
    yield from ask("offsets after the batches", ends(TOPIC, (0, 1)))


def patched(change: Callable[[bytearray], None], *, count: int = 3, sealed: bool = True, codec: int = 0) -> bytes:
    """A batch with other bytes in it, and a right checksum unless the checksum is to be wrong."""
    data = build_batch(records(count), codec=codec)
    change(data)
    if sealed:
        seal(data)
    return bytes(data)


def _at(position: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda data: pack_into(form, data, position, value)


def _malformed() -> Script:
    whole = batch(3)
    # Null instead of records is left out: Apache Kafka never answers it, and no test can wait for that.
    bad: dict[str, bytes] = {
        "empty records": b"",
        "half a header": whole[:30],
        "half a batch": whole[:-5],
        "two batches": whole + whole,
        "a wrong checksum": patched(_at(17, ">I", 1), sealed=False),
        "a damaged value": patched(_at(70, ">B", 255), sealed=False),
        "magic 0": patched(_at(16, ">b", 0)),
        "magic 1": patched(_at(16, ">b", 1)),
        "magic 3": patched(_at(16, ">b", 3)),
        "magic -1": patched(_at(16, ">b", -1)),
        "a base offset": patched(_at(0, ">q", 5)),
        "a leader epoch": patched(_at(12, ">i", 7)),
        "too few records counted": patched(_at(57, ">i", 2)),
        "too many records counted": patched(_at(57, ">i", 4)),
        "no record counted": patched(_at(57, ">i", 0)),
        "records counted below 0": patched(_at(57, ">i", -1)),
        "a last offset too small": patched(_at(23, ">i", 1)),
        "a last offset too large": patched(_at(23, ">i", 7)),
        "a last offset below 0": patched(_at(23, ">i", -1)),
        "a codec that is none": patched(_at(21, ">h", 5)),
        "codec 7": patched(_at(21, ">h", 7)),
        "a control batch": patched(_at(21, ">h", 0x20)),
        "a transactional batch without a producer": patched(_at(21, ">h", 0x10)),
        "a transaction that the request does not name": batch(
            1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
        ),
        "a largest timestamp too small": patched(_at(35, ">q", 5)),
        "a largest timestamp below 0": patched(_at(35, ">q", -1)),
        "a largest timestamp too large": patched(_at(35, ">q", 2**62)),
        "a first timestamp of another batch": patched(_at(27, ">q", 5)),
        "a null header key": raw_batch([raw_record(headers=varint(1) + raw_bytes(None) + raw_bytes(b"x"))]),
        "headers counted below 0": raw_batch([raw_record(headers=varint(-1))]),
        "more headers counted than there are": raw_batch([raw_record(headers=varint(2))]),
        "a key longer than its record": raw_batch([raw_record(key=raw_bytes(b"k", 100))]),
        "a record longer than its batch": raw_batch([raw_record(length=90)]),
        "a record shorter than its content": raw_batch([raw_record(length=7)]),
        "bytes behind the last record": raw_batch(raw_record() + b"junk"),
        "fewer records than counted": raw_batch(raw_record(value=raw_bytes(b"v" * 30)), count=2),
        "fewer records than counted, in gzip": raw_batch(raw_record(), count=2, codec=1),
        "bytes behind the last record, in gzip": raw_batch(raw_record() + b"junk", codec=1),
        "a batch of length 0": patched(_at(8, ">i", 0), sealed=False),
        "a batch of length -1": patched(_at(8, ">i", -1), sealed=False),
        "a producer without a sequence": batch(1, producer_id=5, producer_epoch=0, base_sequence=-1),
        "a sequence without a producer": batch(1, base_sequence=5),
    }
    for what, data in bad.items():
        yield from ask(f"a batch with {what}", produce(TOPIC, data), *_VERSIONS)
    yield from ask("offsets after what is malformed", ends(TOPIC, (0, 1)))


def _disputed() -> Script:
    """Batches that only one node takes go to a topic of their own, so that other offsets stay comparable."""
    whole = batch(3)
    bad = {
        "bytes after the batch": whole + b"more",
        "gzip that is not": patched(_at(21, ">h", 1)),
        "an attribute that is none": patched(_at(21, ">h", 0x80)),
        "the delete horizon": patched(_at(21, ">h", 0x40)),
        "log append time claimed": patched(_at(21, ">h", 0x08)),
        "log append time claimed in gzip": patched(_at(21, ">h", 0x09), codec=1),
        "a producer without an epoch": batch(1, producer_id=5, producer_epoch=-1, base_sequence=0),
    }
    for what, data in bad.items():
        yield from ask(f"a batch with {what}", produce("disputed", data), *_VERSIONS)


def _topics_rules() -> Script:
    without_key = bytes(build_batch(records(2, key=None)))
    mixed = bytes(build_batch([*records(1), *records(1, key=None), *records(1)]))
    yield from ask("a null key, compacted", produce("compacted", without_key), *_VERSIONS)
    yield from ask("one null key of three, compacted", produce("compacted", mixed), *_VERSIONS)
    yield from ask(
        "null keys in gzip, compacted",
        produce("compacted", bytes(build_batch(records(2, key=None), codec=1))),
        3,
        8,
        13,
    )
    yield from ask("keys, compacted", produce("compacted", batch(2)), *_VERSIONS)
    yield from ask("an empty key, compacted", produce("compacted", bytes(build_batch(records(1, key=b"")))), 3, 13)
    for size in (150, 220, 230, 232, 240, 1_000):
        data = bytes(build_batch(records(1, bytes_each=size)))
        yield from ask(f"a batch of {len(data)} bytes, 300 allowed", produce("small-messages", data), 3, 8, 13)
    yield from ask("a batch of 2 MB", produce(TOPIC, bytes(build_batch(records(2, bytes_each=1_000_000)))), 3, 8, 13)
    yield from ask("a batch, append time", produce("append-time", batch(2)), *_VERSIONS)
    yield from ask("a batch in gzip, append time", produce("append-time", batch(2, codec=1)), 3, 13)
    yield from ask("old timestamps", produce("recent", batch(2)), *_VERSIONS)
    future = bytes(build_batch(records(2, first_ms=NOW_MS * 2)))
    yield from ask("future timestamps", produce("recent", future), *_VERSIONS)
    yield from ask(
        "future timestamps, no bounds",
        produce(TOPIC, bytes(build_batch(records(1, first_ms=NOW_MS + 2 * _HOUR_MS)))),
        3,
        13,
    )
    yield from ask("far future timestamps, default bounds", produce(TOPIC, future), 3, 8, 13)
    untimed = bytes(build_batch([Record(0, -1, b"k", b"v")]))
    yield from ask("no timestamp", produce(TOPIC, untimed), 3, 13)
    yield from ask("no timestamp, bounds", produce("recent", untimed), 3, 8, 13)
    for topic in ("compacted", "small-messages", "append-time", "recent"):
        yield from ask(f"offsets of {topic}", ends(topic, (0,)))


def _acks() -> Script:
    for acks in (1, -1):
        yield from ask(f"acks {acks}", produce(TOPIC, batch(), acks=acks), *_VERSIONS)
    for acks in (2, -2, 100):
        yield from ask(f"acks {acks}", produce(TOPIC, batch(), acks=acks), *_VERSIONS)
    yield from ask("acks 2, an unknown partition", produce(TOPIC, batch(), acks=2, partition=9), *_VERSIONS)
    yield from ask("acks 2, an unknown topic", produce("nowhere", batch(), acks=2), *_VERSIONS)
    yield from ask("acks 2, the group offsets", produce("__consumer_offsets", batch(), acks=2), *_BEFORE_IDS)
    yield from ask("acks 0", produce(TOPIC, batch(), acks=0), 3, 12, expect_answer=False, connection="acks 0")
    yield from ask("offsets after acks 0", ends(TOPIC, (0,)), connection="acks 0")
    versions = key_versions(ProduceRequest)
    yield from ask("an unknown partition", produce(TOPIC, batch(), partition=9), *versions)
    yield from ask("partition -1", produce(TOPIC, batch(), partition=-1), *versions)
    yield from ask("an unknown topic", produce("nowhere", batch()), *versions)
    yield from ask("a topic with an invalid name", produce("no/such", batch()), *_BEFORE_IDS)
    yield from ask("an empty topic name", produce("", batch()), *_BEFORE_IDS)
    yield from ask("the group offsets", produce("__consumer_offsets", batch()), *_BEFORE_IDS)
    yield from ask("nothing at all", ProduceRequest(acks=-1, timeout_ms=LIMIT_MS, topic_data=()), *versions)
    yield from ask("a batch with a transactional id", produce(TOPIC, batch(), transactional_id="tx"), 3, 12)
    yield from ask("two partitions, one unknown", _two_partitions, *versions)
    yield from ask("a wrong time limit", ProduceRequest(acks=-1, timeout_ms=-1, topic_data=()), 3, 13)


def _two_partitions(answers: Answers) -> ProduceRequest:
    data = tuple(PartitionProduceData(index=index, records=batch()) for index in (0, 8))
    topic = TopicProduceData(name=TOPIC, topic_id=answers.topic_ids[TOPIC], partition_data=data)
    return ProduceRequest(acks=-1, timeout_ms=LIMIT_MS, topic_data=(topic,))


def sequenced(sequence: int, *, epoch: int = 0, count: int = 2, producer: str = "producer") -> Build:
    """A batch of the producer that this step has brought."""

    def build(answers: Answers) -> ProduceRequest:
        producer_id = answers[producer].producer_id
        data = batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        request: ProduceRequest = produce(TOPIC, data, partition=1)(answers)
        return request

    return build


def _sequences() -> Script:
    for version in (9, 13):
        who = f"producer of version {version}"
        wanted = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        yield from ask(who, wanted, until=lambda answer: answer.error_code == 0)
        steps = (
            *(("the first sequence", 0, 0), ("the second", 2, 0), ("a duplicate", 2, 0), ("an older duplicate", 0, 0)),
            *(("a gap", 9, 0), ("an overlap", 3, 0), ("the third", 4, 0), ("a newer epoch that starts late", 5, 1)),
            *(("a newer epoch", 0, 1), ("the epoch before", 6, 0), ("the newer epoch goes on", 2, 1)),
            *(("an epoch far ahead", 0, 30_000), ("the newest duplicate", 0, 30_000)),
        )
        for what, sequence, epoch in steps:
            yield from ask(what, sequenced(sequence, epoch=epoch, producer=who), version)
        for at in range(2, 16, 2):
            yield from ask(f"sequence {at}", sequenced(at, epoch=30_000, producer=who), version)
        yield from ask("a duplicate too old to be remembered", sequenced(2, epoch=30_000, producer=who), version)
        yield from ask("half of a duplicate", sequenced(14, epoch=30_000, count=1, producer=who), version)
    strangers = {"a stranger starts at 0": 0, "a stranger goes on": 1}
    for what, sequence in strangers.items():
        data = batch(1, producer_id=777_000 + sequence, producer_epoch=3, base_sequence=sequence * 5)
        yield from ask(what, produce(TOPIC, data, partition=1), 9, 13)
    largest = batch(2, producer_id=900_000, producer_epoch=0, base_sequence=2**31 - 2)
    yield from ask("the largest sequence", produce(TOPIC, largest, partition=1), 9)
    yield from ask(
        "sequence 0 after the largest",
        produce(TOPIC, batch(1, producer_id=900_000, producer_epoch=0, base_sequence=0), partition=1),
        9,
    )


def _identities() -> Script:
    def asked(name: str | None, timeout: int, producer_id: int = -1, epoch: int = -1) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout, producer_id=producer_id, producer_epoch=epoch
        )

    yield from ask("an id", asked(None, 60_000), *every_version(InitProducerIdRequest))
    yield from ask("an id without a time limit", asked(None, 0), 0, 5)
    yield from ask("an id with a negative time limit", asked(None, -1), 0, 5)
    yield from ask("an id for a producer with one", asked(None, 60_000, 5, 1), 3, 5)
    yield from ask("an id for an epoch without an id", asked(None, 60_000, -1, 1), 3, 5)
    yield from ask("an id without its epoch", asked(None, 60_000, 5, -1), 3, 5)
    yield from ask("an id for an empty transactional id", asked("", 60_000), 0, 3, 5)
