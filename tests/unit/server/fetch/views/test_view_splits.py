"""Batches that take more than a turn to split for the readers of a view."""

from collections.abc import Callable

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.kernels import SteppedSplit
from tailrace.server.fetch import key_reads, large_splits
from tailrace.storage.keys import batch_slots
from tailrace.storage.keys.batch_slots import BatchLimits
from testkit.nodes.clocks import BusyClock
from testkit.nodes.view_readers import ViewNode, ViewReader, offsets_of
from unit.server.fetch.views.view_keys import KEYS, VIEW, key_in


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


def too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", BatchLimits(1 << 20, 10))


def too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", BatchLimits(100, 1_000))


@pytest.mark.parametrize("limit", [too_many, too_large])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_that_takes_too_long_to_split_is_filtered(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch, limit: Callable[[pytest.MonkeyPatch], None], codec: Codec
) -> None:
    limit(monkeypatch)
    node.write(KEYS[0])
    node.write(*KEYS, codec=codec)
    node.write(KEYS[0])
    keys = [KEYS[0], *KEYS, KEYS[0]]
    for number in range(4):
        reader = ViewReader(node, VIEW, number)
        reader.read_on(until=node.end(VIEW, number))
        assert reader.offsets == offsets_of(keys, number, 4)


class SlowSplit(SteppedSplit):
    """Splits one record in a step, which takes 4 ms."""

    clock: BusyClock

    def step(self, max_records: int) -> bool:
        self.clock.spend(4)
        return bool(super().step(1))


@pytest.fixture
def slow_node(monkeypatch: pytest.MonkeyPatch) -> ViewNode:
    """A node on which each batch takes many turns."""
    too_many(monkeypatch)
    SlowSplit.clock = BusyClock()
    monkeypatch.setattr(large_splits, "SteppedSplit", SlowSplit)
    return ViewNode(clock=SlowSplit.clock)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_large_batch_is_split_in_steps_of_some_fetches(slow_node: ViewNode, codec: Codec) -> None:
    slow_node.write(*KEYS, codec=codec)
    readers = [ViewReader(slow_node, VIEW, number, max_wait_ms=500) for number in range(4)]
    ends = [slow_node.end(VIEW, number) for number in range(4)]
    while not all(reader.position for reader in readers):
        for reader in readers:
            before_ms = slow_node.clock.monotonic_ms()
            assert reader.position or reader.fetch().error_code == 0
            assert slow_node.clock.monotonic_ms() - before_ms <= key_reads.SCAN_MS + 4, "others have their turn"
    for number, reader in enumerate(readers):
        reader.read_on(until=ends[number])
        assert reader.offsets == offsets_of(KEYS, number, 4)
    assert sum(reader.fetches for reader in readers) < 60, "a fetch goes on where another fetch has ended"
    assert not len(slow_node.broker.readable_views.reads._key_reads.large)


def test_a_reader_that_comes_while_a_batch_is_split_has_it_split_again(slow_node: ViewNode) -> None:
    slow_node.write(*KEYS)
    first, second = ViewReader(slow_node, VIEW, 0), ViewReader(slow_node, "orders.shared-8", 1)
    first.fetch()
    while not (first.position and second.position):
        second.fetch()
        first.fetch()
    assert (first.offsets, second.offsets) == (offsets_of(KEYS, 0, 4), offsets_of(KEYS, 1, 8))


def test_a_large_batch_of_a_view_ends_with_its_last_record(slow_node: ViewNode) -> None:
    """A reader that has begun behind that record must not get the batch: it would get it again and again."""
    slow_node.write(*[key_in(0)] * 20, *[key_in(1)] * 20)
    reader = ViewReader(slow_node, VIEW, 0)
    while not reader.position:
        reader.fetch()
    assert reader.position == slow_node.end(VIEW, 0)
    slow_node.write(key_in(0))
    late = ViewReader(slow_node, VIEW, 0)
    late.position = 20
    while late.position == 20:
        late.fetch()
    assert late.offsets == [40]


@pytest.fixture
def many_large(slow_node: ViewNode) -> ViewNode:
    """A node on which as many splits as may be are on their way; there are more large batches."""
    for _ in range(2 * large_splits.MOST_RUNNING):
        slow_node.write(*KEYS)
    for number in range(large_splits.MOST_RUNNING):
        slow_node.fetch_views(VIEW, {0: number * len(KEYS)})
    return slow_node


def running(node: ViewNode) -> int:
    return len(node.broker.readable_views.reads._key_reads.large)


def test_a_large_batch_waits_until_others_are_split(many_large: ViewNode) -> None:
    """The batch's reader is not answered at once, to ask again and again, and nothing is read for it."""
    next_batch = large_splits.MOST_RUNNING * len(KEYS)
    before_ms = many_large.clock.monotonic_ms()
    waiting = many_large.fetch_views(VIEW, {0: next_batch}, max_wait_ms=100)
    assert not waiting.is_answered
    assert many_large.clock.monotonic_ms() - before_ms < 4, "no step was taken"
    many_large.clock.advance(101)
    assert waiting.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    first = ViewReader(many_large, VIEW, 0)
    while not first.position:
        first.fetch()
    reader = ViewReader(many_large, VIEW, 0)
    reader.position = next_batch
    while reader.position == next_batch:
        reader.fetch()
    assert reader.offsets == offsets_of(KEYS, 0, 4, first=next_batch)


def test_a_large_batch_that_waits_wakes_when_a_split_is_over(many_large: ViewNode) -> None:
    waiting = many_large.fetch_views(VIEW, {0: large_splits.MOST_RUNNING * len(KEYS)}, max_wait_ms=20_000)
    first = ViewReader(many_large, VIEW, 0)
    while not first.position:
        assert not waiting.is_answered
        first.fetch()
    assert running(many_large) == large_splits.MOST_RUNNING, "the split of the batch that waited has begun"
    assert waiting.fetched.error_code == ErrorCode.NONE


def test_splits_that_no_fetch_goes_on_with_are_given_up(many_large: ViewNode) -> None:
    assert running(many_large) == large_splits.MOST_RUNNING
    many_large.clock.advance(2 * large_splits.IDLE_MS + 100)
    assert not running(many_large)


def test_a_split_that_fetches_go_on_with_stays(many_large: ViewNode) -> None:
    many_large.clock.advance(large_splits.IDLE_MS)
    many_large.fetch_views(VIEW, {0: 0})
    many_large.clock.advance(large_splits.IDLE_MS)
    assert running(many_large) == 1


def test_a_batch_that_no_reader_would_unpack_is_corrupt(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    too_large(monkeypatch)
    monkeypatch.setattr(large_splits, "MAX_DECOMPRESSED", 1_000)
    node.write(*KEYS, codec=Codec.ZSTD)
    assert node.fetch_views(VIEW, {0: 0}).fetched.error_code == ErrorCode.CORRUPT_MESSAGE
    monkeypatch.undo()
    node.write(b"a")
    assert node.fetch_views(VIEW, {0: 0}).fetched.error_code == 0


def test_a_batch_of_a_view_that_is_too_large_for_an_answer_waits_for_its_turn(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many(monkeypatch)
    node.write(*KEYS)
    (topic,) = node.fetch_views(VIEW, {0: 0, 1: 0}, max_bytes=200).response.responses
    assert [bool(data.records) for data in topic.partitions] == [True, False]
