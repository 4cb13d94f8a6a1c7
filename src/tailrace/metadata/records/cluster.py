"""Records of the cluster as a whole: features, producer ids, transactions of records; and their rows in the table of
record kinds."""

from collections.abc import Iterator

from tailrace.metadata.feature_levels import METADATA_VERSION_FEATURE, check_metadata_version
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageDraft
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.protocol.schema import Int8, Int16, Int32, Int64, field, message

_FEATURE = 12
_PRODUCER_IDS = 15


@message(name="FeatureLevelRecord", versions="0", flexible="0+")
class FeatureLevelRecord(MetadataRecord):
    """The finalized level of a feature; 0 removes the feature."""

    name: str
    feature_level: Int16


def _set_feature(draft: ImageDraft, record: FeatureLevelRecord) -> None:
    if record.name == METADATA_VERSION_FEATURE:
        check_metadata_version(record.feature_level)
    if record.feature_level != 0:
        draft.features[record.name] = record.feature_level
    elif record.name in draft.features:
        del draft.features[record.name]


def _write_features(image: ClusterImage) -> Iterator[FeatureLevelRecord]:
    return (FeatureLevelRecord(name=name, feature_level=level) for name, level in image.features.items())


KINDS.add(
    RecordKind(
        number=_FEATURE,
        record=FeatureLevelRecord,
        apply=_set_feature,
        key=lambda record: (_FEATURE, record.name),
        value=lambda state, key: state.features.get(key[1]),
        write=_write_features,
        place=0,
    )
)


@message(name="ProducerIdsRecord", versions="0", flexible="0+")
class ProducerIdsRecord(MetadataRecord):
    """A broker has taken a block of producer ids; the next block starts at `next_producer_id`."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


def _give_producer_ids(draft: ImageDraft, record: ProducerIdsRecord) -> None:
    assert record.next_producer_id > draft.next_producer_id, "a block of producer ids was given twice"
    draft.next_producer_id = record.next_producer_id


def _write_producer_ids(image: ClusterImage) -> Iterator[ProducerIdsRecord]:
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)


KINDS.add(
    RecordKind(
        number=_PRODUCER_IDS,
        record=ProducerIdsRecord,
        apply=_give_producer_ids,
        key=lambda _: (_PRODUCER_IDS,),
        value=lambda state, _: state.next_producer_id or None,
        write=_write_producer_ids,
        place=5,
    )
)


@message(name="NoOpRecord", versions="0", flexible="0+")
class NoOpRecord(MetadataRecord):
    """A record without effect, which keeps the high watermark moving in an idle cluster."""


@message(name="ZkMigrationStateRecord", versions="0", flexible="0+")
class ZkMigrationStateRecord(MetadataRecord):
    """The state of Kafka's migration from ZooKeeper to KRaft, which has no effect here.

    Kafka 3.4 to 3.9 write this record into each new log and into snapshots; Tailrace never writes it.
    """

    zk_migration_state: Int8


@message(name="BeginTransactionRecord", versions="0", flexible="0+")
class BeginTransactionRecord(MetadataRecord):
    """The begin of a transaction: the records up to its end, perhaps in several batches, take effect together or not at
    all (KIP-868).

    Kafka's controllers write this record; Tailrace never writes it.
    """

    name: str | None = field(versions="0+", nullable="0+", tag=0, default=None)


@message(name="EndTransactionRecord", versions="0", flexible="0+")
class EndTransactionRecord(MetadataRecord):
    """The records since the BeginTransactionRecord take effect here."""


@message(name="AbortTransactionRecord", versions="0", flexible="0+")
class AbortTransactionRecord(MetadataRecord):
    """The records since the BeginTransactionRecord never take effect."""

    reason: str | None = field(versions="0+", nullable="0+", tag=0, default=None)


KINDS.add(
    RecordKind(number=20, record=NoOpRecord, apply=lambda *_: None),
    RecordKind(number=21, record=ZkMigrationStateRecord, apply=lambda *_: None),
    RecordKind(number=23, record=BeginTransactionRecord, apply=None),
    RecordKind(number=24, record=EndTransactionRecord, apply=None),
    RecordKind(number=25, record=AbortTransactionRecord, apply=None),
)
