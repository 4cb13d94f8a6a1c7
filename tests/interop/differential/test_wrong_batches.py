"""Batches with wrong fields, produced to Apache Kafka and to a node: the same codes, or a listed reason.

The batches that the node takes are read by Java, by librdkafka, by our consumer and as the columns of Spark's tasks.

SEED=7 WRONG_BATCHES=5000 pytest tests/interop/differential/test_wrong_batches.py     draws other pairs of faults
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import pytest

from interop.differential.apache import ApacheKafka
from interop.differential.catalogue.preparation import LIMIT_MS
from interop.differential.catalogue.records.wrong_batches import WrongBatch, pairs_of_faults, single_faults
from interop.differential.catalogue.whole import SETTINGS
from interop.differential.comparison import Finding
from interop.differential.differences import unlisted
from interop.differential.listed_wrong_batches import WRONG_BATCHES, WRONG_BATCHES_OF_TOPICS
from interop.differential.peer import CLOSED, Peer
from interop.kafka_tools import absent, run
from interop.librdkafka import librdkafka
from tailrace.client.blocking import Admin, Consumer, NewTopic, RangedFetch
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.records.compression import Codec
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEED = int(os.environ.get("SEED", "1"))
PAIRS = int(os.environ.get("WRONG_BATCHES", "500"))
TOPIC = "wrong-batches"
BEHIND = "bytes-behind"
"""The topic of batches with bytes behind the last lz4 frame or xerial block: librdkafka reads no such batch."""
TOPICS: Mapping[str, Mapping[str, str]] = {
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "bounded-time": {"message.timestamp.after.max.ms": "3600000"},
    "compacted": {"cleanup.policy": "compact"},
    "always-gzip": {"compression.type": "gzip"},
    "never-compressed": {"compression.type": "uncompressed"},
}
"""Topics whose settings make a leader treat a batch in another way; each gets every single fault."""
_VERSION = 9
_TAKEN = "NONE (0)"
_SECONDS = 60.0
_SHOWN = 4000
_COLUMNS = ("offset", "key", "value")


class ProducedTwice(NamedTuple):
    """The batches, and the codes of both nodes."""

    cluster: Cluster
    codes: list[tuple[WrongBatch, str, str]]

    @property
    def findings(self) -> list[Finding]:
        """The batches that got different codes, but for pairs that each node refuses like either of the two.

        Of two faults the nodes need not name the same fault.
        """
        alone = {(batch.codec, batch.faults): codes for batch, *codes in self.codes if len(batch.faults) == 1}
        found: list[Finding] = []
        for batch, *codes in self.codes:
            parts = [alone[batch.codec, (fault,)] for fault in batch.faults]
            is_explained = len(parts) > 1 and all(
                code in _codes_of_pair([part[node] for part in parts]) for node, code in enumerate(codes)
            )
            if codes[0] != codes[1] and not is_explained:
                found.append(Finding(batch.name, "Produce", _VERSION, "error_code", *codes))
        return found


def _codes_of_pair(alone: list[str]) -> set[str]:
    """The codes that a batch with two faults may get at a node where each fault alone gets these codes."""
    return {code for code in alone if code != _TAKEN} or {_TAKEN}


class BothNodes(NamedTuple):
    """A node of each kind, and a connection to each node."""

    cluster: Cluster
    addresses: tuple[str, str]
    peers: tuple[Peer, Peer]

    def create(self, topic: str, settings: Mapping[str, str]) -> None:
        for address in self.addresses:
            with Admin(address) as admin:
                admin.create_topics([NewTopic(name=topic, partitions=1, replication_factor=1, configs=settings)])

    def produce(self, batches: Iterable[WrongBatch], topic: str = "") -> ProducedTwice:
        """Send all to both; to the two topics without settings if none is named."""
        here, there = self.peers
        return ProducedTwice(
            self.cluster,
            [
                (
                    batch,
                    _produced(here, batch, topic or _topic_of(batch)),
                    _produced(there, batch, topic or _topic_of(batch)),
                )
                for batch in batches
            ],
        )


@pytest.fixture(scope="module")
def both() -> Iterator[BothNodes]:
    if why := absent():
        pytest.skip(why)
    with ApacheKafka(SETTINGS) as theirs, Cluster(config=SETTINGS) as ours:
        addresses = (ours.address(), theirs.address)
        peers = (Peer("here", addresses[:1]), Peer("Kafka", addresses[1:]))
        try:
            yield BothNodes(ours, addresses, peers)
        finally:
            for peer in peers:
                peer.close()


@pytest.fixture(scope="module")
def sent(both: BothNodes) -> ProducedTwice:
    for topic in (TOPIC, BEHIND):
        both.create(topic, {})
    return both.produce(chain(single_faults(), pairs_of_faults(SEED, PAIRS)))


def _topic_of(batch: WrongBatch) -> str:
    has_rest = any(fault.startswith("bytes behind the data=") for fault in batch.faults)
    return BEHIND if has_rest and batch.codec in (Codec.SNAPPY, Codec.LZ4) else TOPIC


def _produced(peer: Peer, batch: WrongBatch, topic: str) -> str:
    """The code that the node answers, once it leads the partition."""
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch.data),))
    request = ProduceRequest(acks=-1, timeout_ms=LIMIT_MS, topic_data=(data,))
    deadline = time.monotonic() + _SECONDS
    while True:
        answer = peer.ask("main", _VERSION, lambda _: request, expect_answer=True)
        if answer == CLOSED:
            return CLOSED
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            return f"{code.name} ({code.value})"
        assert time.monotonic() < deadline, f"{peer.name} does not lead {data.name}"


def test_wrong_batches_get_kafkas_codes(sent: ProducedTwice) -> None:
    assert len(sent.codes) > 400 + PAIRS
    found = unlisted(sent.findings, WRONG_BATCHES)
    assert not found, f"SEED={SEED}: {len(found)} unlisted differences:\n" + "\n".join(map(str, found[:_SHOWN]))


def test_every_listed_difference_of_wrong_batches_occurs(sent: ProducedTwice) -> None:
    always = [each for each in WRONG_BATCHES if not each.steps[0].startswith("seeded")]
    unseen = [(each.why, missing) for each in always if (missing := each.unseen(sent.findings))]
    assert not unseen, "\n".join(f"{why!r}: never seen: {', '.join(parts)}" for why, parts in unseen)


@pytest.mark.parametrize("topic", TOPICS)
def test_wrong_batches_get_kafkas_codes_in_topics_of_other_settings(both: BothNodes, topic: str) -> None:
    both.create(topic, TOPICS[topic])
    sent = both.produce(single_faults(), topic)
    assert len(sent.codes) > 400
    others = [replace(each, step=f"{topic}: {each.step}") for each in unlisted(sent.findings, WRONG_BATCHES)]
    found = unlisted(others, WRONG_BATCHES_OF_TOPICS)
    assert not found, f"{len(found)} unlisted differences:\n" + "\n".join(map(str, found[:_SHOWN]))


@pytest.mark.parametrize("topic", [TOPIC, BEHIND])
def test_the_batches_that_are_taken_are_read_by_all(sent: ProducedTwice, topic: str) -> None:
    servers, partition = sent.cluster.bootstrap_servers, TopicPartition(topic, 0)
    with Admin(servers) as admin:
        end = admin.list_offsets({partition: -1})[partition].offset
    taken = sum(ours == _TAKEN and _topic_of(batch) == topic for batch, ours, _ in sent.codes)
    assert 0 < taken < end
    with RangedFetch(servers) as fetch:
        columns = [
            (batch["offset"], batch["key"], batch["value"])
            for batch in fetch.arrow(partition, 0, end, columns=_COLUMNS)
        ]
    rows = [row for offset, key, value in columns for row in zip(*map(_listed, (offset, key, value)), strict=True)]
    assert [row[0] for row in rows] == list(range(end))
    read: list[tuple[int, bytes | None, bytes | None]] = []
    with Consumer(servers) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + _SECONDS
        while len(read) < end and time.monotonic() < deadline:
            read += [(record.offset, record.key, record.value) for record in consumer.poll(0.5)]
    assert read == rows
    if topic != BEHIND:
        messages = librdkafka().Reader().read(servers, topic, end)
        assert [(message.key, message.value) for message in messages] == [row[1:] for row in rows]
    where = ("--bootstrap-server", servers, "--topic", topic, "--partition", "0", "--offset", "earliest")
    printed = run("kafka-console-consumer", *where, "--max-messages", str(end))
    assert printed.out.splitlines() == [(row[2] or b"null").decode() for row in rows]


def _listed(column: object) -> list[object]:
    return column.to_pylist()  # type: ignore[attr-defined, no-any-return]
