"""The records on their way to the caller of a consumer: polled ahead, made of bytes, returned, passed. No IO.

1. An iteration polls ahead: records that are not returned yet are outside every commit, and can be put back.
2. A record is returned under its topic's name, also when a view of the topic was read, with its key and value made by
   the deserializers. A record that a deserializer refuses is not returned, and is the next record still.
3. Returned records count as processed when the caller passes them (see `unpassed_records`).
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Generic, cast

from tailrace.client.errors import RecordDeserializationError
from tailrace.client.reading.records_ahead import ConsumerRecord, RecordsAhead, of_topic
from tailrace.client.reading.unpassed_records import UnpassedRecords
from tailrace.client.serialization import K, V, deserialized
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record


class ReturnedRecords(Generic[K, V]):
    """The records of a consumer, behind its reader. `next` may be called from any thread, the rest on the loop."""

    def __init__(
        self,
        put_back: Callable[[TopicPartition, list[Record]], None],
        *,
        key_deserializer: Callable[[bytes], K] | None,
        value_deserializer: Callable[[bytes], V] | None,
        reads_views: bool,
    ) -> None:
        """`put_back` gives records back to the reader, in front of its records. `reads_views`: the records have the
        names of views of topics."""
        self._put_back = put_back
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._deserializes = key_deserializer is not None or value_deserializer is not None
        self._reads_views = reads_views
        self._ahead = RecordsAhead()
        self._unpassed = UnpassedRecords()

    def __bool__(self) -> bool:
        """Whether records are polled ahead."""
        return bool(self._ahead)

    # what the caller gets

    def receive(self, records: list[ConsumerRecord]) -> list[ConsumerRecord[K, V]]:
        """The records of a poll as the caller gets them.

        In front of a record that cannot be deserialized the list ends, and the rest is put back. Raises
        RecordDeserializationError if that record is the first.
        """
        if not self._reads_views and not self._deserializes:
            self._unpassed.receive(records)
            return cast("list[ConsumerRecord[K, V]]", records)
        made: list[ConsumerRecord[K, V]] = []
        try:
            made.extend(self._made(record) for record in records)
        except RecordDeserializationError:
            self._ahead.add(records[len(made) :])
            self.put_ahead_back()
            if not made:
                raise
        self._unpassed.receive(records[: len(made)])
        return made

    def receive_ahead(self, records: Iterable[ConsumerRecord]) -> None:
        """Keep the records of a poll for an iteration."""
        self._ahead.add(records)

    def next(self) -> ConsumerRecord[K, V] | None:
        """The next record of an iteration, which counts as returned now; None without a record ahead. From any thread.

        Raises RecordDeserializationError, again at each call, until the consumer seeks behind the record.
        """
        record = self._ahead.pop()
        if record is None:
            self._unpassed.receive_next(None)
            return None
        try:
            made = self._made(record)
        except RecordDeserializationError:
            self._ahead.add_first(record)
            self._unpassed.receive_next(None)
            raise
        self._unpassed.receive_next(record)
        return made

    def _made(self, record: ConsumerRecord) -> ConsumerRecord[K, V]:
        shown: ConsumerRecord[Any, Any] = of_topic(record) if self._reads_views else record
        if not self._deserializes:
            return shown
        field = "key"
        try:
            key = deserialized(record.key, self._key_deserializer)
            field = "value"
            return shown._replace(key=key, value=deserialized(record.value, self._value_deserializer))
        except Exception as cause:
            name = TopicPartition(record.topic, record.partition)
            raise RecordDeserializationError(
                name, record.offset, field, key=record.key, value=record.value, cause=cause
            ) from cause

    # what the caller has passed

    def pass_all(self) -> None:
        """Note that the caller has passed all records, since it requests more records."""
        self._unpassed.pass_all()

    def withhold(self) -> None:
        """Note that the caller has failed: from now on `end_of` leaves out the records that are not passed."""
        self._unpassed.withhold()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that the caller has committed these offsets."""
        self._unpassed.commit(offsets)

    def end_of(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets up to which the records may be committed, by partition."""
        return self._unpassed.end_of(positions)

    # partitions

    def next_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the first record ahead, by partition."""
        return self._ahead.next_offsets()

    def put_ahead_back(self, partitions: Container[TopicPartition] | None = None) -> None:
        """Give the records ahead back to the reader: of these partitions, by default of all partitions."""
        for name, records in self._ahead.remove(partitions).items():
            self._put_back(name, records)

    def drop_ahead(self, partitions: Container[TopicPartition]) -> None:
        """Drop the records ahead of these partitions, which are read from another place on."""
        self._ahead.remove(partitions)

    def forget(self, partitions: Container[TopicPartition]) -> None:
        """Forget the records of these partitions, which have left."""
        self._ahead.remove(partitions)
        self._unpassed.forget(partitions)
