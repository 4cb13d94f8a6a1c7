"""Reads partition records, the most frequent records of snapshots and logs, without an object for each record.

The result equals that of `decode_record`, a few times as fast. The record of a new partition is read into a state at
once, if it has the ordinary form: lists of fewer than 127 elements, no tagged fields. From the record of a change only
the fields of the partition are decoded; equal fields are decoded only once. Equal lists become one object: a cluster
has far fewer different lists than partitions.
"""

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, cast

from tailrace.metadata.records.kinds import KINDS, MetadataRecord, decode_record
from tailrace.metadata.records.topics import PartitionChangeRecord, PartitionRecord, created_partition
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState

_FRAME: Final = KINDS.by_class[PartitionRecord].frame
_CHANGE_FRAME: Final = KINDS.by_class[PartitionChangeRecord].frame
_HEAD: Final = Struct(">i16s")
_EPOCHS: Final = Struct(">iii")
_LISTS_AT: Final = len(_FRAME) + _HEAD.size
_UUID_BYTES: Final = 16
_LONG: Final = 0x80
"""A length of this value or more takes more than one byte."""
_MOST_REMEMBERED: Final = 50_000
_MOST_FORMS: Final = 1_000

_BrokerIds = tuple[BrokerId, ...]


class StoredPartition(NamedTuple):
    """A new partition, as its record says."""

    number: int
    state: PartitionState


class StoredChange(NamedTuple):
    """A change of a partition, as its record says."""

    topic_id: TopicId
    number: int
    change: PartitionChangeRecord
    """The changed fields. The partition that this record names may be another partition, with the same change."""


StoredRecord = MetadataRecord | StoredPartition | StoredChange


class _Lists(NamedTuple):
    replicas: _BrokerIds
    in_sync: _BrokerIds
    removing: _BrokerIds
    adding: _BrokerIds


class RecordReader:
    """Reads the values of records, one after the other. The reader keeps a cache: each snapshot or log is read with a
    reader of its own."""

    def __init__(self) -> None:
        self._forms: dict[int, Struct] = {}
        """For each size of a record, the form of the last record of this size: where its lists begin and end."""
        self._lists: dict[bytes, _Lists] = {}
        self._directories: dict[bytes, tuple[bytes, ...]] = {}
        self._changes: dict[bytes, PartitionChangeRecord] = {}

    def read(self, value: bytes) -> StoredRecord:
        """The record. Raises the errors of `decode_record`."""
        if value[:3] == _CHANGE_FRAME and len(value) >= _LISTS_AT:
            return self._change(value)
        if value[:3] == _FRAME:
            found = self._as_before(value) or self._ordinary(value)
            if found is not None:
                return found
        record = decode_record(value)
        if isinstance(record, PartitionRecord):
            return StoredPartition(record.partition_id, created_partition(TopicId(record.topic_id), record))
        return record

    def _change(self, value: bytes) -> StoredChange:
        lists = value[_LISTS_AT:]
        change = self._changes.get(lists)
        if change is None:
            change = cast("PartitionChangeRecord", decode_record(value))
            if len(self._changes) < _MOST_REMEMBERED:
                self._changes[lists] = change
        number, topic_id = _HEAD.unpack_from(value, len(_CHANGE_FRAME))
        return StoredChange(topic_id, number, change)

    def _as_before(self, value: bytes) -> StoredPartition | None:
        """Read the record in the form of the last record of this size. None unless both groups of lists are known: a
        list states its own length, so a record with known lists in these places cannot have another form."""
        form = self._forms.get(len(value))
        if form is None:
            return None
        number, topic_id, lists, leader, leader_epoch, partition_epoch, directories = form.unpack(value)
        known = self._lists.get(lists)
        known_directories = self._directories.get(directories)
        if known is None or known_directories is None:
            return None
        replicas, in_sync, removing, adding = known
        return StoredPartition(
            number,
            PartitionState(
                topic_id=topic_id,
                replicas=replicas,
                in_sync_replicas=in_sync,
                leader=leader,
                leader_epoch=leader_epoch,
                partition_epoch=partition_epoch,
                adding_replicas=adding,
                removing_replicas=removing,
                directories=known_directories,
            ),
        )

    def _ordinary(self, value: bytes) -> StoredPartition | None:
        """Read a record of the ordinary form. None if the record has another form, or is not a record."""
        size = len(value)
        position = _LISTS_AT
        for _ in _Lists._fields:
            if position >= size or not 0 < value[position] < _LONG:
                return None
            position += 4 * value[position] - 3
        directories_at = position + _EPOCHS.size
        if directories_at >= size or not 0 < value[directories_at] < _LONG:
            return None
        end = directories_at + 1 + _UUID_BYTES * (value[directories_at] - 1)
        if size != end + 1 or value[end] != 0:
            return None
        number, topic_id = _HEAD.unpack_from(value, len(_FRAME))
        leader, leader_epoch, partition_epoch = _EPOCHS.unpack_from(value, position)
        replicas, in_sync, removing, adding = self._lists_of(value[_LISTS_AT:position])
        if size in self._forms or len(self._forms) < _MOST_FORMS:
            self._forms[size] = _form(position - _LISTS_AT, size - directories_at)
        return StoredPartition(
            number,
            PartitionState(
                topic_id=TopicId(topic_id),
                replicas=replicas,
                in_sync_replicas=in_sync,
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(leader_epoch),
                partition_epoch=partition_epoch,
                adding_replicas=adding,
                removing_replicas=removing,
                directories=self._directories_of(value[directories_at:]),
            ),
        )

    def _lists_of(self, stored: bytes) -> _Lists:
        found = self._lists.get(stored)
        if found is None:
            lists = []
            position = 0
            for _ in _Lists._fields:
                count = stored[position] - 1
                lists.append(cast("_BrokerIds", Struct(f">{count}i").unpack_from(stored, position + 1)))
                position += 1 + 4 * count
            if lists[1] == lists[0]:
                lists[1] = lists[0]
            found = _Lists(*lists)
            if len(self._lists) < _MOST_REMEMBERED:
                self._lists[stored] = found
        return found

    def _directories_of(self, stored: bytes) -> tuple[bytes, ...]:
        """`stored` begins with the number of directories, and ends with the number of tagged fields, 0."""
        found = self._directories.get(stored)
        if found is None:
            found = tuple(stored[at : at + _UUID_BYTES] for at in range(1, len(stored) - 1, _UUID_BYTES))
            if len(self._directories) < _MOST_REMEMBERED:
                self._directories[stored] = found
        return found


@lru_cache(maxsize=256)
def _form(lists: int, directories: int) -> Struct:
    return Struct(f">{len(_FRAME)}xi16s{lists}siii{directories}s")
