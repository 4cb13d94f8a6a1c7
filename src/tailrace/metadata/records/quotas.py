"""The record of quotas of clients, and its row in the table of record kinds (KIP-546)."""

from collections.abc import Iterator
from typing import Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageDraft, ImageTable
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.model.security.quotas import EntityParts, entity_of
from tailrace.protocol.schema import Float64, message, struct

QuotaKey = tuple[EntityParts, str]
QUOTAS: Final[ImageTable[QuotaKey, float]] = ImageTable("client-quotas")
"""The quotas, by entity and key. The table of the next image is the same object if no quota has changed."""

_QUOTA = 14


@struct
class RecordedEntity:
    """A type and a name; null is the default of the type."""

    entity_type: str
    entity_name: str | None


@message(name="ClientQuotaRecord", versions="0", flexible="0+")
class ClientQuotaRecord(MetadataRecord):
    """A quota of an entity is set to a value, or removed."""

    entity: tuple[RecordedEntity, ...]
    key: str
    value: Float64 = 0.0
    remove: bool = False


def quota_record(entity: EntityParts, key: str, value: float | None) -> ClientQuotaRecord:
    """The record that sets this quota; without a value, the record that removes the quota."""
    parts = tuple(RecordedEntity(entity_type=kind, entity_name=name) for kind, name in entity)
    return ClientQuotaRecord(entity=parts, key=key, value=value or 0.0, remove=value is None)


def _key_of(record: ClientQuotaRecord) -> QuotaKey:
    return entity_of({part.entity_type: part.entity_name for part in record.entity}), record.key


def _apply(draft: ImageDraft, record: ClientQuotaRecord) -> None:
    quotas, key = QUOTAS.draft(draft), _key_of(record)
    if not record.remove:
        quotas[key] = record.value
    elif key in quotas:
        del quotas[key]


def _write(image: ClusterImage) -> Iterator[ClientQuotaRecord]:
    return (quota_record(entity, key, value) for (entity, key), value in QUOTAS.of(image).items())


KINDS.add(
    RecordKind(
        number=_QUOTA,
        record=ClientQuotaRecord,
        apply=_apply,
        key=lambda record: (_QUOTA, *_key_of(record)),
        value=lambda state, key: QUOTAS.get(state, (key[1], key[2])),
        write=_write,
        place=5,
    )
)
