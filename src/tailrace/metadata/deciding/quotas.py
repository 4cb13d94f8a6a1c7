"""Changes of quotas of clients, and their records (KIP-546, pure). Codes and texts are those of Kafka's controllers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.quotas import QUOTAS, QuotaKey, quota_record
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.security.quotas import (
    LONGEST_NAME,
    MOST_QUOTAS,
    EntityFilter,
    EntityParts,
    check_entity,
    check_value,
    describe,
)


class QuotaAlteration(NamedTuple):
    """The changes of an entity's quotas: keys with the new value; None removes the quota."""

    entity: EntityParts
    changes: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQuotas(ControllerCommand):
    """Change quotas; each entity succeeds or fails by itself, and may be named once."""

    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False
    """Whether to answer as if the quotas were changed, and to change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasAltered(ControllerResponse):
    """For each entity in the command None, or the reason why its quotas were not changed."""

    outcomes: Mapping[EntityParts, KafkaError | None]


class QuotaChanges:
    """The decision on AlterQuotas."""

    def __init__(self, image: ClusterImage) -> None:
        self._stored = QUOTAS.of(image)

    def deciding(self, command: AlterQuotas) -> Steps[Decision[MetadataRecord, QuotasAltered]]:
        """A record for each quota that changes, in steps."""
        outcomes: dict[EntityParts, KafkaError | None] = {}
        changed: dict[QuotaKey, float | None] = {}
        self._count = len(self._stored)
        done = 0
        for entity, changes in command.alterations:
            done += 1 + len(changes)
            if done >= SLICE:
                done = 0
                yield
            try:
                if entity in outcomes:
                    shown = describe(entity)[:LONGEST_NAME]
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {shown}")
                changed.update(self._changed(entity, changes))
                outcomes[entity] = None
            except KafkaError as refusal:
                outcomes[entity] = refusal.without_frames()
        records: tuple[MetadataRecord, ...] = ()
        if not command.validate_only:
            records = tuple(quota_record(*quota, value) for quota, value in changed.items())
        return Decision(records=records, response=QuotasAltered(outcomes=outcomes))

    def _changed(
        self, entity: EntityParts, changes: tuple[tuple[str, float | None], ...]
    ) -> dict[QuotaKey, float | None]:
        """The quotas of the entity that get another value. Raises KafkaError; then none of them changes."""
        wanted = dict(changes)
        if len(wanted) < len(changes):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {describe(entity)[:LONGEST_NAME]}")
        check_entity(entity)
        changed: dict[QuotaKey, float | None] = {}
        more = 0
        for key, value in wanted.items():
            before = self._stored.get((entity, key))
            if value is not None:
                check_value(entity, key, value)
            if value != before:
                changed[entity, key] = value
                more += (before is None) - (value is None)
        if more > 0 and self._count + more > MOST_QUOTAS:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"a cluster has at most {MOST_QUOTAS} quotas")
        self._count += more
        return changed


def matching(image: ClusterImage, wanted: EntityFilter) -> Iterator[tuple[QuotaKey, float]]:
    """The quotas of the entities that match a filter, with their entities and keys."""
    return (quota for quota in QUOTAS.of(image).items() if wanted.matches(quota[0][0]))
