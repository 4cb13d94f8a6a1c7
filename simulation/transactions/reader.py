"""Readers of committed data: they leave out aborted records, as a consumer with isolation.level=read_committed does."""

from typing import Any, Final

from simulation.harness.breach import Breach
from simulation.transactions.brokers import TransactionBrokers
from simulation.transactions.script import LeaderRequest, Pause, Script, insist
from tailrace.client.reading.fetching import visible_batches
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records

READ_COMMITTED: Final = 1
_WAIT_MS: Final = 300
_VERSION: Final = 17

Values = list[tuple[int, bytes]]
"""Values of records, with their offsets."""


def values_of(response: FetchResponse, offset: int) -> tuple[Values, int]:
    """The values that a reader at this offset sees, and the offset at which it goes on."""
    data = response.responses[0].partitions[0]
    if data.error_code or not data.records:
        return [], offset
    seen = visible_batches(data.records, offset, data.aborted_transactions or ())
    values = [
        (record.offset, record.value)
        for stretch in seen.stretches
        for position, _ in iter_batches(stretch)
        for record in read_records(stretch, position)
        if record.offset >= offset and record.value is not None
    ]
    return values, seen.next_offset


def fetch(cluster: TransactionBrokers, name: TopicPartition, offset: int) -> Script[tuple[Values, int]]:
    """Fetch until the leader answers without an error; returns the values, and the offset at which the reader goes
    on."""
    topic = cluster.metadata.image.topics[name.topic]
    partition = FetchPartition(partition=name.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=READ_COMMITTED,
        topics=(FetchTopic(topic_id=topic.topic_id, partitions=(partition,)),),
    )

    def leaves(response: FetchResponse) -> None:
        if response.responses:
            values, _ = values_of(response, offset)
            if values:
                cluster.laws.records_leave(name, values)

    code, response = yield from insist(LeaderRequest(name, request, _VERSION, on_leave=leaves), _code)
    if code is not ErrorCode.NONE:
        raise Breach("readers miss nothing", f"{name} at {offset}: {code.name}")
    return values_of(response, offset)


def _code(response: Any) -> int:
    return int(response.error_code or response.responses[0].partitions[0].error_code)


class CommittedReader:
    """Reads one partition from its start on, until it is stopped."""

    def __init__(self, cluster: TransactionBrokers, name: TopicPartition) -> None:
        self._cluster = cluster
        self.name = name
        self.offset = 0
        self.values: Values = []

    def run(self) -> Script[None]:
        """The script."""
        while True:
            values, self.offset = yield from fetch(self._cluster, self.name, self.offset)
            self.values += values
            yield Pause(self._cluster.world.between(10, 150, "reader", self.name))

    def check(self) -> None:
        """Check that the reader has everything that is committed, in the order of the log. Raises Breach."""
        expected = sorted(self._cluster.laws.visible.get(self.name, ()))
        if self.values != expected:
            differences = [pair for pair in zip(self.values, expected, strict=False) if pair[0] != pair[1]]
            raise Breach(
                "readers miss nothing",
                f"{self.name}: {len(self.values)} values read of {len(expected)}, first difference {differences[:1]}",
            )
