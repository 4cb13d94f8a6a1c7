"""The records that were polled for an iteration, which returns them singly."""

from collections import deque
from collections.abc import Container, Iterable
from typing import Generic, NamedTuple

from tailrace.client.group.topic_views import slot_of
from tailrace.client.hints.record_hints import hinted_record
from tailrace.client.serialization import K, V
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Header, Record


@hinted_record
class ConsumerRecord(NamedTuple, Generic[K, V]):
    """A record and where it stood. Timestamp in ms since 1970. Key and value are bytes, or what the consumer's
    deserializers have made of the bytes."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: tuple[Header, ...]


def of_topic(record: ConsumerRecord) -> ConsumerRecord:
    """The record of a view under the name of its topic, and the number of the topic's own partition."""
    slot = slot_of(TopicPartition(record.topic, record.partition))
    return record if slot is None else record._replace(topic=slot.topic, partition=slot.partition)


class RecordsAhead:
    """Records in order. An iteration on another thread may take records at any time: so records are taken singly."""

    def __init__(self) -> None:
        self._records: deque[ConsumerRecord] = deque()

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Add records behind the records ahead."""
        self._records.extend(records)

    def add_first(self, record: ConsumerRecord) -> None:
        """Add a record in front of the records ahead."""
        self._records.appendleft(record)

    def pop(self) -> ConsumerRecord | None:
        """Take the next record; None if there is no record."""
        try:
            return self._records.popleft()
        except IndexError:
            return None

    def remove(self, partitions: Container[TopicPartition] | None = None) -> dict[TopicPartition, list[Record]]:
        """Remove and return the records of these partitions; of all partitions by default."""
        kept: list[ConsumerRecord] = []
        removed: dict[TopicPartition, list[Record]] = {}
        for _ in range(len(self._records)):
            if (record := self.pop()) is None:
                break
            name = TopicPartition(record.topic, record.partition)
            if partitions is None or name in partitions:
                removed.setdefault(name, []).append(Record(*record[2:]))
            else:
                kept.append(record)
        self._records.extend(kept)
        return removed

    def next_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return {
            TopicPartition(record.topic, record.partition): record.offset for record in reversed(tuple(self._records))
        }
