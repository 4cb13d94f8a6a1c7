"""Readers of a view, each in its own way and with any limits: each gets its records once, and ends at the end of it."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.records.record import Record
from testkit.nodes.view_readers import ViewNode, ViewReader, batches_of, offsets_of

FAN_OUT = 4
VIEW = f"orders.shared-{FAN_OUT}"
KEYS = st.none() | st.binary(max_size=2)
VALUE = b"v" * 300
"""Few records are as much as one fetch may scan."""
WRITE = st.tuples(st.just("write"), st.lists(KEYS, min_size=1, max_size=6), st.sampled_from([0, 1, 3, 4]))
MARK = st.tuples(st.just("mark"), st.lists(KEYS, min_size=1, max_size=3), st.booleans())
READ = st.tuples(st.just("read"), st.integers(0, FAN_OUT - 1), st.sampled_from([1, 150, 1 << 20]))
FORGET = st.tuples(st.just("forget"), st.none(), st.none())
ACTS = st.lists(WRITE | WRITE | MARK | READ | READ | FORGET, max_size=40)


class StoppingReader(ViewReader):
    """A reader that goes on behind its last record, as a program that has committed it does."""

    def take(self, data: Any) -> None:
        before = self.position
        super().take(data)
        ends = [header.end_offset if header.is_control else records[-1].offset + 1 for header, records in taken(data)]
        self.position = max([before, *ends])


def taken(data: Any) -> Iterator[tuple[Any, list[Record]]]:
    return iter(batches_of(data))


class WrittenLog:
    """A topic of one partition, and what was written to it."""

    def __init__(self, settings: dict[str, str], chunk_bytes: int) -> None:
        self.node = ViewNode(settings=settings)
        self.node.broker.readable_views.key_reads.__dict__["chunk_bytes"] = chunk_bytes
        self.offsets: list[list[int]] = [[] for _ in range(FAN_OUT)]
        self.end = self.transactions = 0

    def write(self, keys: list[bytes | None], codec: int) -> None:
        self.node.write(*keys, codec=codec, value=VALUE)
        self._count(keys)

    def mark(self, keys: list[bytes | None], commits: bool) -> None:
        self.transactions += 1
        producer = {"producer_id": self.transactions, "producer_epoch": 0, "base_sequence": 0}
        self.node.write(*keys, is_transactional=True, transactional_id="t", **producer)
        self.node.end_transaction("orders", producer_id=self.transactions, is_commit=commits)
        self._count(keys)
        self.end += 1

    def forget(self) -> None:
        """Have the broker forget where readers may go on."""
        self.node.broker.readable_views.reads.scanned._stretches.clear()

    def _count(self, keys: list[bytes | None]) -> None:
        for number in range(FAN_OUT):
            self.offsets[number] += offsets_of(keys, number, FAN_OUT, first=self.end)
        self.end += len(keys)


@given(
    ACTS,
    st.sampled_from([ViewReader, StoppingReader]),
    st.sampled_from([1, 1 << 20]),
    st.sampled_from(["0", "1000", "1048576"]),
)
def test_each_reader_gets_its_records_once_and_ends_at_the_end(
    acts: list[tuple[str, Any, Any]], kind: type[ViewReader], chunk_bytes: int, hashing: str
) -> None:
    log = WrittenLog({"key.range.fetch.max.scan.bytes": "1024", "max.bytes.key.range.hashing": hashing}, chunk_bytes)
    readers = [kind(log.node, VIEW, number) for number in range(FAN_OUT)]
    for act, first, other in acts:
        if act == "write":
            log.write(first, other)
        elif act == "mark":
            log.mark(first, other)
        elif act == "read":
            readers[first].fetch(max_bytes=other)
        else:
            log.forget()
    for number, reader in enumerate(readers):
        end = log.node.end(VIEW, number)
        reader.read_on(until=end, most=100)
        assert reader.position == end
        assert reader.offsets == log.offsets[number]
        assert not reader.fetch().records, "it has all"
        log.forget()
        assert not reader.fetch().records, "it has all, also for a broker that remembers nothing of it"
