"""Records in, image out: the only code that makes a new image.

If a record does not fit the image (a partition of an unknown topic, other derived changes than the record states), this
node and the leader disagree about the past. That is a broken invariant: AssertionError, and the process stops.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from tailrace.metadata import derive
from tailrace.metadata.derive import Derived, Steps
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.image_draft import ImageDraft
from tailrace.metadata.records.brokers import NOT_DERIVED, BrokerEvent
from tailrace.metadata.records.cluster import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.metadata.records.topics import changed_partition
from tailrace.metadata.stored_partitions import StoredChange, StoredPartition, StoredRecord
from tailrace.model.steps import result_of


def apply(image: ClusterImage, record: MetadataRecord) -> ClusterImage:
    """The image after one record."""
    return apply_all(image, (record,))[0]


def apply_all(image: ClusterImage, records: Iterable[MetadataRecord]) -> tuple[ClusterImage, ImageDelta]:
    """The image after these records, and their changes."""
    replay = Replay(image)
    for record in records:
        replay.apply(record)
    return replay.finish()


def derivation(image: ClusterImage, record: BrokerEvent) -> Steps[Derived]:
    """The partition changes that follow from this record, with their checksum, in steps. `image` is the image before
    the record."""
    return _derived(ImageDraft(image), record)


def _derived(draft: ImageDraft, record: MetadataRecord) -> Steps[Derived]:
    derived = KINDS.of(record).derived
    assert derived is not None, f"nothing is derived from {record}"
    return derived(draft, record)


class Foreseen(NamedTuple):
    """A record with the changes that the decision has already derived from it and from the image before the record."""

    record: MetadataRecord
    derived: Derived


class Replay:
    """The records of some batches, applied to an image: `apply_all` in as many steps as its caller likes."""

    def __init__(self, image: ClusterImage, foreseen: Foreseen | None = None) -> None:
        self._foreseen = foreseen
        self._draft = ImageDraft(image)

    def steps(self, records: Iterable[StoredRecord]) -> Steps[None]:
        """Take these records, in steps of a few milliseconds."""
        for index, record in enumerate(records, 1):
            event = self._taken(record)
            if event is not None:
                yield from event
            if index % derive.SLICE == 0:
                yield

    def apply(self, record: StoredRecord) -> None:
        """Take one record, in its own form or the form of `RecordReader`."""
        event = self._taken(record)
        if event is not None:
            result_of(event)

    def _taken(self, record: StoredRecord) -> Steps[None] | None:
        """Take one record; returns the steps that do it if partition changes follow from the record."""
        draft = self._draft
        if draft.open_transaction is not None and not isinstance(record, EndTransactionRecord | AbortTransactionRecord):
            assert not isinstance(record, BeginTransactionRecord), "a transaction within a transaction"
            draft.open_transaction.append(record)
        elif isinstance(record, StoredPartition):
            draft.topics.create_partition(*record)
        elif isinstance(record, StoredChange):
            draft.topics.change_partition(record.topic_id, record.number, changed_partition, record.change)
        else:
            kind = KINDS.by_class[type(record)]
            if kind.derived is not None:
                return self._event(kind, record)
            self._apply(kind, record)
        return None

    def _apply(self, kind: RecordKind[Any], record: MetadataRecord) -> None:
        if kind.apply is None:
            self._frame(record)
            return
        key = None if kind.key is None else kind.key(record)
        value = None if key is None else KINDS.by_number[key[0]].value
        if key is None or value is None:
            kind.apply(self._draft, record)
            return
        before = value(self._draft, key)
        kind.apply(self._draft, record)
        self._draft.stated.add(key)
        if before is not None and value(self._draft, key) != before:
            self._draft.superseded.add(key)

    def _frame(self, record: MetadataRecord) -> None:
        """Begin or end a transaction of records, which come into force with the end record, or never (KIP-868)."""
        if isinstance(record, BeginTransactionRecord):
            self._draft.open_transaction = []
            return
        held, self._draft.open_transaction = self._draft.open_transaction, None
        assert held is not None, "no transaction has begun"
        if isinstance(record, EndTransactionRecord):
            for stored in held:
                self.apply(cast("StoredRecord", stored))  # only a replay opens a transaction

    # Partition changes that follow from a record

    def _event(self, kind: RecordKind[Any], record: Any) -> Steps[None]:
        if record.derived_count != NOT_DERIVED:
            yield from self._apply_derived(record)
        self._apply(kind, record)

    def _apply_derived(self, record: Any) -> Steps[None]:
        if self._foreseen is not None and self._foreseen.record is record:
            derived = self._foreseen.derived
        else:
            derived = yield from _derived(self._draft, record)
        found = (len(derived.changes), derived.crc)
        assert found == (record.derived_count, record.derived_crc), (
            f"from {record!r} this node derives {found[0]} changes with checksum {found[1]}: it must not go on"
        )
        for index, change in enumerate(derived.changes, 1):
            self._draft.topics.set_partition(*change)
            if index % derive.SLICE == 0:
                yield

    # The end

    def finish(self) -> tuple[ClusterImage, ImageDelta]:
        """The image and its changes. Nothing can be applied any more."""
        return result_of(self.finishing())

    def finishing(self) -> Steps[tuple[ClusterImage, ImageDelta]]:
        """`finish` in steps."""
        return self._draft.finishing()

    def image(self) -> ClusterImage:
        """The image, without a list of changes. No more records can be applied."""
        return self._draft.finish()
