"""Records of access control lists, and their rows in the table of record kinds (KIP-801)."""

from collections.abc import Iterator
from typing import Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageDraft, ImageTable
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.model.acls.bindings import AclBinding
from tailrace.protocol.schema import Int8, Uuid, message

_ADDED = 18
_REMOVED = 19

ACLS: Final[ImageTable[bytes, AclBinding]] = ImageTable("acls")
"""The rules of the cluster, by the id of their record. The table of the next image is the same object if no rule was
added or removed."""


@message(name="AccessControlEntryRecord", versions="0", flexible="0+")
class AccessControlEntryRecord(MetadataRecord):
    """A rule of this id is added."""

    id: Uuid
    resource_type: Int8
    resource_name: str
    pattern_type: Int8
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


def _add(draft: ImageDraft, record: AccessControlEntryRecord) -> None:
    rules = ACLS.draft(draft)
    assert record.id not in rules, "a rule is added under the id of another rule"
    rules[record.id] = AclBinding(
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission=record.permission_type,
    )


def acl_record(acl_id: bytes, rule: AclBinding) -> AccessControlEntryRecord:
    """The record that adds this rule."""
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _write(image: ClusterImage) -> Iterator[AccessControlEntryRecord]:
    return (acl_record(acl_id, rule) for acl_id, rule in ACLS.of(image).items())


@message(name="RemoveAccessControlEntryRecord", versions="0", flexible="0+")
class RemoveAccessControlEntryRecord(MetadataRecord):
    """The rule of this id is removed."""

    id: Uuid


def _remove(draft: ImageDraft, record: RemoveAccessControlEntryRecord) -> None:
    rules = ACLS.draft(draft)
    assert record.id in rules, "a rule is removed that does not exist"
    del rules[record.id]


KINDS.add(
    RecordKind(
        number=_ADDED,
        record=AccessControlEntryRecord,
        apply=_add,
        key=lambda record: (_ADDED, record.id),
        value=lambda state, key: ACLS.get(state, key[1]),
        write=_write,
        place=6,
    ),
    RecordKind(
        number=_REMOVED,
        record=RemoveAccessControlEntryRecord,
        apply=_remove,
        key=lambda record: (_ADDED, record.id),
    ),
)
