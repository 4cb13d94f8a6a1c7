"""Batches that unfold to more than a turn should take are unfolded a step a turn, in the order of their connection."""

import os
import zlib
from collections import deque
from collections.abc import Callable

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, seal
from tailrace.protocol.records.compression import Codec
from tailrace.replication.admission import INLINE_BYTES, LargeBatch
from tailrace.replication.partition import Partition
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of, verified_by
from testkit.nodes.ports import RecordingConnection, ScriptedVerifier
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record
from unit.server.produce.produce_requests import codes_of, request_of, to_topic, transactional_batch

CODECS = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
Later = deque[Callable[[], None]]


@pytest.fixture
def node() -> DataPath:
    return DataPath("/logs", files=SimulatedDisk())


@pytest.fixture
def partitions(node: DataPath) -> list[Partition]:
    return [node.create(partition=number) for number in range(3)]


@pytest.fixture
def later(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> Later:
    """The calls that the handler has put off to a later turn."""
    monkeypatch.setattr(node.clock, "call_soon", (calls := Later()).append)
    return calls


def large_batch(node: DataPath, codec: Codec, mib: int = 8) -> bytes:
    return batch_of(*[bytes(1 << 20)] * mib, codec=codec, now=node.clock.now_ms)


def produce(node: DataPath, *batches: bytes, acks: int = -1, connection: RecordingConnection | None = None) -> Exchange:
    return node.send(request_of(to_topic("orders", *enumerate(batches)), acks=acks), 9, connection=connection)


def turns(node: DataPath, later: Later) -> int:
    """Let the turns that were put off come; returns their number."""
    count = 0
    while later:
        assert node.connection.is_suspended
        count += a_turn(node, later)
    assert not node.connection.is_suspended
    return count


def a_turn(node: DataPath, later: Later) -> int:
    later.popleft()()
    node.end_turn()
    return 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_batch_is_unfolded_a_step_a_turn(
    node: DataPath, partitions: list[Partition], later: Later, codec: Codec
) -> None:
    exchange = produce(node, large_batch(node, codec))
    assert not exchange.is_answered
    assert turns(node, later) >= 8
    assert exchange.produced.error_code == 0
    assert node.values("orders") == [bytes(1 << 20)] * 8


def test_a_batch_that_is_not_large_takes_no_turn_of_its_own(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    small = batch_of(os.urandom(1_000), *[bytes(1 << 20)] * ((INLINE_BYTES >> 20) - 1), codec=Codec.GZIP)
    assert produce(node, small).produced.error_code == 0
    assert not later


def test_large_and_small_batches_of_a_request_are_answered_together(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    small = batch_of(b"a", now=node.clock.now_ms)
    exchange = produce(node, large_batch(node, Codec.LZ4), small, large_batch(node, Codec.ZSTD))
    node.end_turn()
    assert node.values("orders", partition=1) == [b"a"], "a small batch waits for no large one"
    assert not exchange.is_answered
    turns(node, later)
    assert codes_of(exchange) == [0, 0, 0]
    assert len(node.values("orders", partition=2)) == 8


@pytest.mark.parametrize("acks", [1, -1])
def test_a_large_batch_of_no_records_is_refused_early(
    node: DataPath, partitions: list[Partition], later: Later, acks: int
) -> None:
    """Zeros for 64 MiB: the first bytes are no records, and only the first bytes are unfolded."""
    batch = bytearray(large_batch(node, Codec.GZIP))[:HEADER_SIZE]
    packer = zlib.compressobj(wbits=31)
    batch += packer.compress(b"\x7f" * (64 << 20)) + packer.flush()
    batch[8:LENGTH_OFFSET] = (len(batch) - LENGTH_OFFSET).to_bytes(4, "big")
    seal(batch)
    exchange = produce(node, bytes(batch), acks=acks)
    assert not later
    assert exchange.produced.error_code == ErrorCode.INVALID_RECORD
    assert node.values("orders") == []


def test_a_fault_behind_the_first_records_of_a_large_batch_is_refused(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    batch = bytearray(large_batch(node, Codec.GZIP))[:HEADER_SIZE]
    plain = large_batch(node, Codec.NONE)[HEADER_SIZE:]
    packer = zlib.compressobj(wbits=31)
    batch += packer.compress(plain[:-1] + b"\x08") + packer.flush()  # the last record has four headers, and ends
    batch[8:LENGTH_OFFSET] = (len(batch) - LENGTH_OFFSET).to_bytes(4, "big")
    seal(batch)
    exchange = produce(node, bytes(batch))
    turns(node, later)
    assert exchange.produced.error_code == ErrorCode.INVALID_RECORD
    assert node.values("orders") == []


def test_large_batches_of_several_requests_are_unfolded_one_after_the_other(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    exchanges = [produce(node, large_batch(node, Codec.ZSTD)) for _ in range(3)]
    assert len(later) == 1, "the next batch begins when the first is done"
    turns(node, later)
    assert [exchange.produced.base_offset for exchange in exchanges] == [0, 8, 16]


def test_a_leader_that_steps_down_meanwhile_takes_no_batch(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    exchange = produce(node, large_batch(node, Codec.LZ4))
    partitions[0].step_down()
    turns(node, later)
    assert exchange.produced.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_topic_with_another_codec_takes_a_large_batch(node: DataPath, later: Later) -> None:
    node.create(config=TopicConfig(compression_type="zstd"))
    exchange = produce(node, large_batch(node, Codec.LZ4))
    turns(node, later)
    assert exchange.produced.error_code == 0
    assert node.values("orders") == [bytes(1 << 20)] * 8


def test_connections_take_turns_with_their_large_batches(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    batch = large_batch(node, Codec.ZSTD)
    other = RecordingConnection()
    greedy = [produce(node, batch, connection=other) for _ in range(3)]
    modest = produce(node, batch)
    while later:
        a_turn(node, later)
    assert [exchange.produced.base_offset for exchange in greedy] == [0, 16, 24]
    assert modest.produced.base_offset == 8
    assert not other.is_suspended


def test_the_large_batches_of_a_client_that_has_gone_are_dropped(
    node: DataPath, partitions: list[Partition], later: Later
) -> None:
    gone = RecordingConnection()
    for _ in range(3):
        produce(node, large_batch(node, Codec.GZIP, 64), connection=gone)
    exchange = produce(node, large_batch(node, Codec.ZSTD))
    gone.hang_up()
    assert sum(a_turn(node, later) for _ in iter(lambda: bool(later), False)) < 20
    assert exchange.produced.base_offset == 0
    assert len(node.values("orders")) == 8


@pytest.mark.parametrize("hangs_up", [False, True], ids=["stays", "hangs up"])
def test_batches_of_a_transaction_that_were_held_together_stay_in_order(hangs_up: bool) -> None:
    """The connection is free while the coordinator is asked, so that small batches come behind a large batch."""
    coordinator = ScriptedVerifier(is_slow=True)
    node = DataPath("/logs", files=SimulatedDisk(), own_handlers=verified_by(coordinator))
    log = node.create().log
    large, small, sequence = [bytes(1 << 20)] * 6, [b"a"], 0
    exchanges, ends = [], []
    for values in (large, small, large, small, small):
        batch = transactional_batch(sequence, *values, codec=Codec.ZSTD, now=node.clock.now_ms)
        request = request_of(to_topic("orders", (0, batch)), timeout_ms=60_000, transactional_id="pay")
        ends.append(sequence)
        exchanges.append(node.send(request, 11))
        sequence += len(values)
    assert not node.connection.is_suspended
    coordinator.answer()
    assert node.connection.is_suspended
    if hangs_up:
        node.connection.hang_up()
    node.end_turn()
    assert not node.connection.is_suspended
    if hangs_up:
        assert log.log_end_offset == 0, "none is written without the first"
    else:
        assert [(exchange.produced.error_code, exchange.produced.base_offset) for exchange in exchanges] == [
            (0, end) for end in ends
        ]


def test_a_fault_of_a_codec_holds_up_no_other_batch(
    node: DataPath, partitions: list[Partition], later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def steps(_: LargeBatch) -> None:
            raise MemoryError

        broken.setattr(LargeBatch, "steps", steps)
        failed = produce(node, large_batch(node, Codec.GZIP))
        turns(node, later)
    assert failed.produced.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    exchange = produce(node, large_batch(node, Codec.ZSTD))
    turns(node, later)
    assert exchange.produced.error_code == 0


@pytest.mark.parametrize("codec", [*CODECS, Codec.SNAPPY])
@pytest.mark.parametrize("topic_codec", ["producer", "zstd", "lz4", "gzip", "snappy", "uncompressed"])
def test_a_large_batch_is_compressed_anew_a_step_a_turn(
    node: DataPath, later: Later, monkeypatch: pytest.MonkeyPatch, codec: Codec, topic_codec: str
) -> None:
    """The batch's offsets are not 0 to n - 1, or the topic has another codec."""
    node.create(config=TopicConfig(compression_type=topic_codec, max_message_bytes=64 << 20))
    monkeypatch.setattr("tailrace.replication.admission.compress", None)
    records = [raw_record(3, 0, value=raw_bytes(bytes(1 << 20))) for _ in range(8)]
    now_ms = node.clock.now_ms()
    batch = raw_batch(records, codec=codec, base_timestamp=now_ms, max_timestamp=now_ms)
    exchange = produce(node, bytes(batch))
    must_be_folded = topic_codec != "uncompressed"
    assert turns(node, later) >= 8 + 7 * must_be_folded
    assert exchange.produced.error_code == 0
    assert node.values("orders") == [bytes(1 << 20)] * 8


def test_a_large_batch_without_a_codec_is_compressed_a_step_a_turn(
    node: DataPath, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create(config=TopicConfig(compression_type="gzip", max_message_bytes=64 << 20))
    monkeypatch.setattr("tailrace.replication.admission.compress", None)
    exchange = produce(node, large_batch(node, Codec.NONE))
    assert turns(node, later) >= 8
    assert node.values("orders") == [bytes(1 << 20)] * 8
    assert exchange.produced.error_code == 0
