"""The records that the caller of a consumer has received, and has not passed yet. Pure.

A caller passes the records of a poll by the next poll, and a record of an iteration by asking for the next record: then
they count as processed. A block that ends by an exception has not processed the records between. From any thread.
"""

from collections.abc import Container, Iterable, Mapping

from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.partitions import TopicPartition


class UnpassedRecords:
    """The offset of the first record of each partition that is received and not passed."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._current: ConsumerRecord | None = None
        """The last record of an iteration."""
        self._are_withheld = False

    def pass_all(self) -> None:
        """Note that the caller has passed all records, since it requests more records."""
        self._offsets, self._current = {}, None

    def receive(self, records: Iterable[ConsumerRecord]) -> None:
        """Note that the caller gets these records, in order of offset per partition, in addition to its unpassed
        records."""
        offsets, topic, partition = self._offsets, "", -1
        for record in records:
            if record.partition != partition or record.topic != topic:  # most records follow one of their partition
                topic, partition = record.topic, record.partition
                offsets.setdefault(TopicPartition(topic, partition), record.offset)

    def receive_next(self, record: ConsumerRecord | None) -> None:
        """Note that the caller of an iteration gets this record, and so has passed every other record."""
        if self._offsets:
            self._offsets = {}
        self._current = record

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that the caller has committed these offsets: of the received records, exactly the records below these
        offsets are processed."""
        firsts = self._firsts()
        self._offsets = {name: offsets.get(name, first) for name, first in firsts.items()}
        self._current = None

    def forget(self, partitions: Container[TopicPartition]) -> None:
        """Forget the records of these partitions, which have left."""
        self._offsets = {name: first for name, first in self._offsets.items() if name not in partitions}
        current = self._current
        if current is not None and TopicPartition(current.topic, current.partition) in partitions:
            self._current = None

    def withhold(self) -> None:
        """Note that the caller has failed: from now on `end_of` leaves out the records that are not passed."""
        self._are_withheld = True

    def end_of(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets up to which the records may be committed, by partition."""
        ends = dict(positions)
        if self._are_withheld:
            for name, first in self._firsts().items():
                if name in ends:
                    ends[name] = min(ends[name], first)
        return ends

    def _firsts(self) -> dict[TopicPartition, int]:
        current = self._current
        if current is None:
            return self._offsets
        return {**self._offsets, TopicPartition(current.topic, current.partition): current.offset}
