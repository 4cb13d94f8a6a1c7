"""The outcome of changes of the access control lists, and its records (pure). Codes and texts are Kafka's."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.acls import ACLS, RemoveAccessControlEntryRecord, acl_record
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.model.acls.bindings import MOST_ACLS, AclBinding, AclFilter, PatternType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.model.machines import Decision

RandomId = Callable[[int], bytes]

MOST_WALKS: Final = 100
"""The most filters of a request for which all rules are looked at: 100 filters take 2 s for 20,000 rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAcls(ControllerCommand):
    """Add rules; each succeeds or fails by itself. A rule that exists is no error."""

    rules: tuple[AclBinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclsCreated(ControllerResponse):
    """For each rule of the command, in order, None or the reason why the rule was not added."""

    errors: tuple[KafkaError | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAcls(ControllerCommand):
    """Remove the rules that match any of the filters."""

    filters: tuple[AclFilter, ...]


class AclDeletion(NamedTuple):
    """The outcome of one filter: the removed rules, or the error."""

    removed: tuple[AclBinding, ...] = ()
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclsDeleted(ControllerResponse):
    """An outcome for each filter, in order. A rule that two filters match is in both outcomes."""

    outcomes: tuple[AclDeletion, ...]


class AclChanges:
    """The decisions on CreateAcls and DeleteAcls."""

    def __init__(self, image: ClusterImage, random_bytes: RandomId) -> None:
        self._rules = ACLS.of(image)
        self._random_bytes = random_bytes

    def creating(self, command: CreateAcls) -> Steps[Decision[MetadataRecord, AclsCreated]]:
        """A record for each valid rule that does not exist yet, in steps."""
        known = set(self._rules.values())
        records: list[MetadataRecord] = []
        errors: list[KafkaError | None] = []
        for number, rule in enumerate(command.rules, 1):
            if not number % SLICE:
                yield
            try:
                rule.check()
                if rule not in known:
                    if len(known) >= MOST_ACLS:
                        raise KafkaError(
                            ErrorCode.POLICY_VIOLATION, f"a cluster has {MOST_ACLS} ACLs at most; remove others first"
                        )
                    known.add(rule)
                    records.append(acl_record(self._new_id(), rule))
                errors.append(None)
            except KafkaError as refusal:
                errors.append(refusal.without_frames())
        return Decision(records=tuple(records), response=AclsCreated(errors=tuple(errors)))

    def _new_id(self) -> bytes:
        while (acl_id := self._random_bytes(16)) == ZERO_TOPIC_ID or acl_id in self._rules:
            pass
        return acl_id

    def deleting(self, command: DeleteAcls) -> Steps[Decision[MetadataRecord, AclsDeleted]]:
        """A record for each rule that a filter matches, in steps."""
        removed: dict[bytes, None] = {}
        outcomes: list[AclDeletion] = []
        by_name: dict[str, list[tuple[bytes, AclBinding]]] = {}
        for acl_id, rule in self._rules.items():
            by_name.setdefault(rule.resource_name, []).append((acl_id, rule))
        walks_left, places_left = MOST_WALKS, MOST_ACLS
        for wanted in command.filters:
            try:
                wanted.check()
                candidates: Iterable[tuple[bytes, AclBinding]] = self._rules.items()
                if wanted.resource_name is not None and wanted.pattern_type != PatternType.MATCH:
                    candidates = by_name.get(wanted.resource_name, ())
                else:
                    walks_left -= 1
                    if walks_left < 0:
                        raise _too_much(f"{MOST_WALKS} filters without the name of a resource")
                found: list[tuple[bytes, AclBinding]] = []
                for number, (acl_id, rule) in enumerate(candidates, 1):
                    if not number % SLICE:
                        yield
                    if wanted.matches(rule):
                        found.append((acl_id, rule))
                places_left -= len(found)
                if places_left < 0:
                    raise _too_much(f"{MOST_ACLS} rules in all answers")
            except KafkaError as refusal:
                outcomes.append(AclDeletion(error=refusal.without_frames()))
            else:
                removed.update((acl_id, None) for acl_id, _ in found)
                outcomes.append(AclDeletion(removed=tuple(rule for _, rule in found)))
        records = tuple(RemoveAccessControlEntryRecord(id=acl_id) for acl_id in removed)
        return Decision(records=records, response=AclsDeleted(outcomes=tuple(outcomes)))


def _too_much(limit: str) -> KafkaError:
    return KafkaError(ErrorCode.POLICY_VIOLATION, f"a request has at most {limit}; send several requests")


def matching(image: ClusterImage, wanted: AclFilter) -> Iterator[AclBinding]:
    """The rules of an image that match a filter. Raises KafkaError INVALID_REQUEST for an unknown number in the
    filter."""
    wanted.check()
    return (rule for rule in ACLS.of(image).values() if wanted.matches(rule))
