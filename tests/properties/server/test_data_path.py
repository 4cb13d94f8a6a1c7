"""Laws of the data path, over anything that producers, readers and the disk may do."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailrace.protocol.records.batch import iter_batches
from tailrace.server.fetch.budget import FetchBudget
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of, records_of
from testkit.nodes.ports import DeferredDisk, RecordingConnection

LIMITS = st.integers(min_value=-10, max_value=3000)


def whole_batches(sizes: list[int], limit: int, *, min_one_message: bool) -> int:
    """The bytes a partition with these batches gives, as `Partition.read` promises."""
    given_bytes = 0
    for number, size_bytes in enumerate(sizes):
        if given_bytes + size_bytes > limit and not (number == 0 and min_one_message):
            break
        given_bytes += size_bytes
    return given_bytes


@given(
    partitions=st.lists(st.tuples(st.lists(st.integers(61, 1000), max_size=5), LIMITS), max_size=8),
    request_max_bytes=LIMITS,
    fetch_max_bytes=st.integers(0, 3000),
)
def test_an_answer_exceeds_its_limits_only_by_one_first_batch(
    partitions: list[tuple[list[int], int]], request_max_bytes: int, fetch_max_bytes: int
) -> None:
    budget = FetchBudget(min(request_max_bytes, fetch_max_bytes))
    given_bytes = []
    for sizes, limit in partitions:
        size_bytes = whole_batches(sizes, budget.limit_for(limit), min_one_message=budget.min_one_message)
        if sizes and not size_bytes:
            budget.leave_out(budget.limit_for(limit))
        budget.spend(size_bytes)
        given_bytes.append(size_bytes)
    whole_limit = max(0, min(request_max_bytes, fetch_max_bytes))
    filled = [number for number, size_bytes in enumerate(given_bytes) if size_bytes]
    for number in filled:
        sizes, limit = partitions[number]
        is_first_batch_only = number == filled[0] and given_bytes[number] == sizes[0]
        assert given_bytes[number] <= min(limit, whole_limit) or is_first_batch_only
    assert sum(given_bytes) <= whole_limit or (
        len(filled) == 1 and given_bytes[filled[0]] == partitions[filled[0]][0][0]
    )
    assert filled or not any(sizes for sizes, _ in partitions), "a fetch gets records if there are any"


class DataPathMachine(RuleBasedStateMachine):
    """Producers with every kind of acks, readers that wait, flushes whenever: only durable records are acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = DeferredDisk()
        self.node = DataPath("/logs", files=SimulatedDisk(), disk=self.disk)
        self.partition = self.node.create()
        self.count = 0
        self.flushed_end = 0
        self.waiting: list[tuple[Exchange, int]] = []
        self.polls: list[tuple[Exchange, int]] = []
        self.high_watermark = 0

    @rule(acks=st.sampled_from((-1, 0, 1)), count=st.integers(1, 4), same_turn=st.booleans())
    def produce(self, acks: int, count: int, same_turn: bool) -> None:
        values = [str(self.count + number).encode() for number in range(count)]
        self.count += count
        records = batch_of(*values, now=self.node.clock.now_ms)
        exchange = self.node.produce("orders", records=records, acks=acks, same_turn=same_turn)
        if acks == -1:
            self.waiting.append((exchange, self.count))

    @rule(share=st.floats(0, 1), version=st.sampled_from((10, 12, 17)), max_bytes=st.integers(0, 500))
    def fetch(self, share: float, version: int, max_bytes: int) -> None:
        offset = int(share * self.partition.log.log_end_offset)
        exchange = self.node.fetch(
            "orders",
            offset,
            version=version,
            max_bytes=max_bytes,
            max_wait_ms=100,
            connection=RecordingConnection(),
        )
        self.polls.append((exchange, offset))

    @rule()
    def flush(self) -> None:
        self.flushed_end = self.partition.log.log_end_offset
        self.disk.run()
        self.node.end_turn()

    @rule(milliseconds=st.integers(0, 150))
    def wait(self, milliseconds: int) -> None:
        self.node.clock.advance(milliseconds)

    @rule()
    def end_turn(self) -> None:
        self.node.end_turn()

    @invariant()
    def the_high_watermark_never_falls_and_never_passes_what_is_flushed(self) -> None:
        assert self.high_watermark <= self.partition.high_watermark <= self.partition.log.flushed_offset
        self.high_watermark = self.partition.high_watermark

    @invariant()
    def acks_all_is_answered_exactly_when_it_is_flushed(self) -> None:
        for exchange, end_offset in self.waiting:
            assert exchange.is_answered == (end_offset <= self.flushed_end)
        self.waiting = [(exchange, end) for exchange, end in self.waiting if not exchange.is_answered]

    @invariant()
    def nothing_at_or_above_the_high_watermark_is_read(self) -> None:
        for exchange, offset in self.polls:
            if not exchange.is_answered:
                assert offset >= self.partition.high_watermark, "there is something to read without an answer"
                continue
            answer = exchange.fetched
            batches = [header for _, header in iter_batches(answer.records or b"")]
            for record in records_of(answer.records):
                assert record.offset < answer.high_watermark <= self.partition.high_watermark
                assert record.value == str(record.offset).encode()
            if batches:
                assert batches[0].base_offset <= offset < batches[0].end_offset
        self.polls = [poll for poll in self.polls if not poll[0].is_answered]


TestDataPath = DataPathMachine.TestCase
