"""When a fetch is answered and with what, rule by rule, through the wire.

The rules are those of Kafka's own broker: what is read, how far each reader may read, which fetches wait, and what ends
the wait. Sizes of answers (KIP-74) are in test_kip_74.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.compression import Codec
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of, records_of
from testkit.nodes.ports import DeferredDisk

WAIT_MS = 500
UNCOMMITTED, COMMITTED = 0, 1


def new_node(**options: Any) -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk(), **options)
    node.create()
    return node


def fetch(node: DataPath, offset: int = 0, **options: Any) -> Exchange:
    """A fetch that would wait half a second."""
    return node.fetch("orders", offset, **{"max_wait_ms": WAIT_MS, **options})


def values(exchange: Exchange) -> list[bytes | None]:
    return [record.value for record in records_of(exchange.fetched.records)]


# Reads


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD], ids=lambda codec: codec.name)
def test_records_start_at_the_batch_that_contains_the_offset(codec: Codec) -> None:
    node = new_node()
    for number in range(3):
        batch = batch_of(*(b"%d" % (4 * number + at) for at in range(4)), now=node.clock.now_ms, codec=codec)
        node.produce("orders", records=batch)
    for offset in range(4, 8):
        assert values(fetch(node, offset)) == [b"%d" % number for number in range(4, 12)]


def test_a_fetch_returns_whole_batches_byte_for_byte() -> None:
    node = new_node()
    sent = [batch_of(b"v" * size, now=node.clock.now_ms) for size in (50, 100, 150)]
    for batch in sent:
        node.produce("orders", records=batch)
    given = bytes(fetch(node).fetched.records or b"")
    assert [header.size_bytes for _, header in iter_batches(given)] == [len(batch) for batch in sent]
    # All but base offset and leader epoch is the producer's.
    positions = [position for position, _ in iter_batches(given)]
    assert [given[at + 16 : at + len(batch)] for at, batch in zip(positions, sent, strict=True)] == [
        b[16:] for b in sent
    ]


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)])
def test_a_topic_of_compression_type_zstd_is_76_below_v10(version: int, code: ErrorCode) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(compression_type="zstd"))
    node.produce("orders", b"v")
    assert fetch(node, version=version).fetched.error_code == code


# How far each reader may read


def test_a_consumer_reads_up_to_the_high_watermark() -> None:
    disk = DeferredDisk()
    node = new_node(disk=disk)
    node.produce("orders", b"flushed", acks=1)
    disk.run()
    node.end_turn()
    node.produce("orders", b"written", acks=1)
    answer = fetch(node)
    assert values(answer) == [b"flushed"]
    assert answer.fetched.high_watermark == 1
    assert node.table.get("orders", 0).log.log_end_offset == 2


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
def test_without_transactions_the_last_stable_offset_is_the_high_watermark(isolation: int) -> None:
    node = new_node()
    node.produce("orders", b"a", b"b")
    answer = fetch(node, isolation=isolation)
    assert values(answer) == [b"a", b"b"]
    assert answer.fetched.last_stable_offset == answer.fetched.high_watermark == 2


@pytest.mark.parametrize(("isolation", "aborted"), [(UNCOMMITTED, None), (COMMITTED, ())])
def test_aborted_transactions_are_null_for_read_uncommitted_and_a_list_for_read_committed(
    isolation: int, aborted: tuple[()] | None
) -> None:
    node = new_node()
    node.produce("orders", b"a")
    assert fetch(node, isolation=isolation).fetched.aborted_transactions == aborted


@pytest.mark.parametrize("offset", [2, 6], ids=["below the log start", "above the log end"])
def test_an_offset_outside_the_log_is_1_with_the_logs_range(offset: int) -> None:
    node = new_node()
    node.produce("orders", *[b"v"] * 5)
    node.table.get("orders", 0).delete_records(3)
    answer = fetch(node, offset).fetched
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.log_start_offset, answer.high_watermark) == (3, 5)


# Answers at once


@dataclass(frozen=True, kw_only=True)
class AtOnce:
    name: str
    options: dict[str, Any]
    is_answered: bool


FETCHES = (
    AtOnce(name="max.wait 0", options={"offset": 1, "max_wait_ms": 0}, is_answered=True),
    AtOnce(name="max.wait below 0", options={"offset": 1, "max_wait_ms": -1}, is_answered=True),
    AtOnce(name="min.bytes are there", options={"min_bytes": 50}, is_answered=True),
    AtOnce(name="min.bytes are not there", options={"min_bytes": 5_000}, is_answered=False),
    AtOnce(name="nothing is there", options={"offset": 1}, is_answered=False),
    AtOnce(name="min.bytes 0", options={"offset": 1, "min_bytes": 0}, is_answered=True),
    AtOnce(
        name="min.bytes = min(min.bytes, max.bytes)", options={"min_bytes": 5_000, "max_bytes": 50}, is_answered=True
    ),
    AtOnce(name="an error", options={"offset": 9}, is_answered=True),
    AtOnce(name="a leader epoch that is over", options={"offset": 1, "leader_epoch": 2}, is_answered=True),
    AtOnce(name="a leader epoch that is not known yet", options={"offset": 1, "leader_epoch": 4}, is_answered=True),
    AtOnce(name="the leader epoch of now", options={"offset": 1, "leader_epoch": 3}, is_answered=False),
)


@pytest.mark.parametrize("scenario", FETCHES, ids=lambda scenario: scenario.name)
def test_at_once(scenario: AtOnce) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(leader_epoch=3)
    node.produce("orders", b"v")
    assert fetch(node, **scenario.options).is_answered is scenario.is_answered


def test_a_fetch_of_no_partition_is_answered_at_once() -> None:
    assert new_node().send(FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, topics=()), 12).is_answered


@pytest.mark.parametrize(
    ("number", "offset", "error", "ends_wait"),
    [(1, 7, ErrorCode.OFFSET_OUT_OF_RANGE, True), (9, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)],
    ids=["out of range", "a partition that does not exist"],
)
def test_one_partition_in_error_answers_for_all_if_it_exists(
    number: int, offset: int, error: ErrorCode, ends_wait: bool
) -> None:
    node = new_node()
    node.create(partition=1)
    wanted = tuple(
        FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=100)
        for index, at in ((0, 0), (number, offset))
    )
    request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, topics=(FetchTopic(topic="orders", partitions=wanted),))
    exchange = node.send(request, 12)
    assert exchange.is_answered is ends_wait
    node.clock.advance(WAIT_MS)
    (topic,) = exchange.response.responses
    assert [answer.error_code for answer in topic.partitions] == [ErrorCode.NONE, error]


def test_a_fetch_of_a_diverging_log_is_answered_at_once() -> None:
    """A diverging epoch, v12: the reader's last records are of an epoch that ended earlier here (KIP-595)."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(leader_epoch=1)
    node.produce("orders", b"a", b"b")
    node.create(leader_epoch=3)
    node.produce("orders", b"c")
    wanted = FetchPartition(partition=0, fetch_offset=3, last_fetched_epoch=1, partition_max_bytes=100)
    request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, topics=(FetchTopic(topic="orders", partitions=(wanted,)),))
    answer = node.send(request, 12).fetched
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (1, 2)


# Ends of the wait


def test_the_wait_ends_empty_and_without_an_error_after_max_wait() -> None:
    node = new_node()
    waiting = fetch(node)
    node.clock.advance(WAIT_MS - 1)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert (waiting.fetched.error_code, values(waiting)) == (ErrorCode.NONE, [])


def test_the_wait_ends_when_min_bytes_are_there_and_not_before() -> None:
    node = new_node()
    waiting = fetch(node, min_bytes=300)
    while not waiting.is_answered:
        node.produce("orders", b"v" * 40)
    assert 300 <= len(waiting.fetched.records or b"") < 300 + 120


def test_min_bytes_may_come_from_several_partitions() -> None:
    node = new_node()
    node.create(partition=1)
    wanted = tuple(FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1_000) for index in (0, 1))
    size = len(batch_of(b"v", now=node.clock.now_ms))
    request = FetchRequest(
        max_wait_ms=WAIT_MS, min_bytes=2 * size, topics=(FetchTopic(topic="orders", partitions=wanted),)
    )
    waiting = node.send(request, 12)
    node.produce("orders", b"v", partition=1)
    assert not waiting.is_answered
    node.produce("orders", b"v", partition=0)
    assert waiting.is_answered


def test_no_partition_counts_for_more_than_its_own_limit() -> None:
    """'sum min(what is there, partition max) >= minBytes'."""
    node = new_node()
    node.create(partition=1)
    wanted = tuple(FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=200) for index in (0, 1))
    request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=300, topics=(FetchTopic(topic="orders", partitions=wanted),))
    waiting = node.send(request, 12)
    for _ in range(5):
        node.produce("orders", b"v" * 100, partition=0)
    assert not waiting.is_answered
    node.produce("orders", b"v" * 100, partition=1)
    assert waiting.is_answered


def test_a_roll_does_not_end_the_wait() -> None:
    """'End offset equal but log rolled must not count as an older segment'."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(segment_ms=10_000))
    node.produce("orders", b"v")
    waiting = fetch(node, 1, max_wait_ms=60_000, min_bytes=1_000)
    node.clock.advance(20_000)
    node.produce("orders", b"w")
    assert node.table.get("orders", 0).log.segment_count == 2
    assert not waiting.is_answered
    node.clock.advance(40_000)
    assert values(waiting) == [b"w"]


def test_an_offset_in_an_older_segment_than_the_end_is_answered_at_once() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(segment_bytes=300))
    for _ in range(3):
        node.produce("orders", b"v" * 200)
    assert fetch(node, 0, min_bytes=100_000).is_answered
    assert not fetch(node, 2, min_bytes=100_000).is_answered


def lose_leadership(node: DataPath) -> None:
    node.create(leader=2, leader_epoch=1, replicas=(1, 2), in_sync=(1, 2))


def delete(node: DataPath) -> None:
    node.table.delete("orders", 0)


@dataclass(frozen=True, kw_only=True)
class EndOfWait:
    name: str
    event: Callable[[DataPath], None]
    code: ErrorCode


ENDS = (
    EndOfWait(name="not the leader any more", event=lose_leadership, code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
    EndOfWait(name="the partition is gone", event=delete, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
)


@pytest.mark.parametrize("scenario", ENDS, ids=lambda scenario: scenario.name)
def test_the_wait_ends_at_once(scenario: EndOfWait) -> None:
    node = new_node()
    waiting = fetch(node, version=10)  # a later version may go on reading from a follower
    assert not waiting.is_answered
    scenario.event(node)
    node.end_turn()
    assert waiting.is_answered
    assert ErrorCode(waiting.fetched.error_code) is scenario.code


def test_a_waiting_reader_whose_epoch_ends_is_fenced_when_its_wait_is_over() -> None:
    node = new_node()
    waiting = fetch(node, version=12, leader_epoch=0)
    node.create(leader_epoch=1)
    node.clock.advance(WAIT_MS)
    assert waiting.fetched.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_deletion_of_records_is_answered_when_the_readers_wait_is_over() -> None:
    node = new_node()
    node.produce("orders", b"a", b"b")
    behind, at_the_end = fetch(node, 0, min_bytes=5_000), fetch(node, 2)
    node.table.get("orders", 0).delete_records(2)
    node.end_turn()
    node.clock.advance(WAIT_MS)
    assert behind.fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (at_the_end.fetched.error_code, at_the_end.fetched.log_start_offset) == (ErrorCode.NONE, 2)
