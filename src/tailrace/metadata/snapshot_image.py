"""Conversion of an image to the records of a snapshot and back, in slices that leave time for other work; the
difference of two images; the number of records of a snapshot that are out of date.

writer.append(islice(values, 500))      as often as there are values
loader.load(batch)                      for each batch of the snapshot
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, TypeVar

from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import (
    EMPTY_IMAGE,
    ChangedPartition,
    ClusterImage,
    ImageDelta,
    RecordKey,
    TopicImage,
)
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, encode_record
from tailrace.metadata.replay import Replay
from tailrace.metadata.stored_partitions import RecordReader
from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import TopicPartition
from tailrace.model.steps import result_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records


def snapshot_values(image: ClusterImage) -> Iterator[bytes]:
    """The values of the records that state this image, as an iterator: an image never changes, so pauses do no harm."""
    return map(encode_record, records_of(image))


_RECORDS_PER_STEP: Final = 1_000
K = TypeVar("K")


class SnapshotLoader:
    """Makes the image that a snapshot states. Used once."""

    def __init__(self) -> None:
        self._replay = Replay(EMPTY_IMAGE)
        self._reader = RecordReader()
        self.records_count = 0

    def load(self, batches: Buffer) -> None:
        """Take the records of these whole batches; control batches do not change the image.

        Raises CorruptRecords, and KafkaError(UNSUPPORTED_VERSION) for records of a newer release.
        """
        result_of(self.steps(batches))

    def steps(self, batches: Buffer) -> Steps[None]:
        """`load`, in steps of a few milliseconds: Kafka writes batches of up to 8 MiB."""
        for position, header in iter_batches(batches):
            if header.is_control:
                continue
            for index, record in enumerate(read_records(batches, position), 1):
                if record.value is None:
                    raise CorruptRecords(f"record {record.offset} of a snapshot has no value")
                self._replay.apply(self._reader.read(record.value))
                self.records_count += 1
                if index % _RECORDS_PER_STEP == 0:
                    yield

    def image(self) -> ClusterImage:
        """The image, after the last record."""
        return self._replay.image()


def records_of(image: ClusterImage) -> Iterator[MetadataRecord]:
    """The records, as an iterator: the writer may pause anywhere, since an image never changes.

    Kafka's own order: features, brokers, controllers, topics with their partitions, settings, producer ids. No
    partition changes are derived from these records: each record states a value in full.
    """
    return chain.from_iterable(kind.write(image) for kind in KINDS.written() if kind.write is not None)


def difference(before: ClusterImage, after: ClusterImage) -> ImageDelta:
    """The delta from one image to the other, for components that act on changes."""
    return result_of(difference_steps(before, after))


def difference_steps(before: ClusterImage, after: ClusterImage) -> Steps[ImageDelta]:
    """`difference`, in steps of about a millisecond."""
    created = tuple(_only_in(after, before))
    yield
    deleted = tuple(_only_in(before, after))
    changed: list[ChangedPartition] = []
    remaining = _compared(before, after)
    while part := tuple(islice(remaining, SLICE)):
        yield
        changed += (partition for partition in part if partition is not None)
    return ImageDelta(
        created_topics=created,
        deleted_topics=deleted,
        changed_partitions=tuple(changed),
        changed_configs=_differing(before.configs, after.configs),
        changed_brokers=_differing(before.brokers, after.brokers),
        changed_tables=_differing(before.tables, after.tables),
    )


def _differing(before: Mapping[K, object], after: Mapping[K, object]) -> tuple[K, ...]:
    """The keys whose values differ, in order."""
    keys: list[Any] = [key for key in {*before, *after} if before.get(key) != after.get(key)]
    return tuple(sorted(keys))


def _only_in(image: ClusterImage, other: ClusterImage) -> Iterator[TopicImage]:
    return (topic for topic in image.topics.values() if topic.topic_id not in other.topic_names)


def _compared(before: ClusterImage, after: ClusterImage) -> Iterator[ChangedPartition | None]:
    """For each partition that both images have: the new state if the states differ, else None."""
    for topic in after.topics.values():
        name = before.topic_names.get(topic.topic_id)
        if name is None:
            continue
        known = before.topics[name].partitions
        for number, state in topic.partitions.items():
            is_same = known.get(number) == state
            yield None if is_same else ChangedPartition(TopicPartition(topic.name, number), state)


class ChangedRecords:
    """Counts the records of the latest snapshot that are out of date: they decide when the next snapshot is due
    (KIP-630, "When to Snapshot").

    A record of the log adds records to the snapshot that would be written next, modifies some or deletes some.
    `records.key_of` names a record of a snapshot, so that it can be found again in the next snapshot. The counted
    records are:

    - records of the latest snapshot that have another value now, or are gone. A record whose old value has come back
      equals the record in the snapshot, and does not count.
    - records that were added since the snapshot and then modified or deleted, whatever their value is now: "If a
      snapshot record was added and then modify or deleted then it counts against the ratio." Records that were only
      added do not count.
    """

    def __init__(self, image: ClusterImage, *, snapshot_records: int | None) -> None:
        """`image` is the state in the snapshot. `snapshot_records` is the number of its records; None while the
        snapshot is being written."""
        self._image = image
        self.snapshot_records = snapshot_records
        self._keys: set[RecordKey] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Count the changes of this delta, which have led to this image.

        When as many records have changed as the snapshot has, further changes would not change the decision, and are
        not stored.
        """
        if self.snapshot_records is None or len(self._keys) < self.snapshot_records:
            self._keys |= delta.superseded
        self._keys -= {key for key in delta.stated if self._is_as_in_snapshot(image, key)}

    def _is_as_in_snapshot(self, image: ClusterImage, key: RecordKey) -> bool:
        value = KINDS.by_number[key[0]].value
        if value is None:
            return False
        stated = value(self._image, key)
        return stated is not None and value(image, key) == stated
