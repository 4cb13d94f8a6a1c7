"""Listed differences, the comparison of findings with the list, and the list as a table of the documentation."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from interop.differential.comparison import ABSENT, PRESENT, Finding


class _Any:
    """Equal to every value: for offsets and the like, that depend on what happened before."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


ANY = _Any()
_BY_LOT = "seeded"
Values = tuple[object, object]
"""Here, and by Apache Kafka."""
MISSING: Values = (ABSENT, PRESENT)
ONLY_HERE: Values = (PRESENT, ABSENT)


class Difference(NamedTuple):
    """A reason why fields differ in the answers of an API, in the steps whose names match any of the patterns."""

    api: str
    steps: tuple[str, ...]
    fields: Mapping[str, Values]
    why: str
    beside_error: bool = False
    """Only where Apache Kafka's answer has an error beside the field."""

    def covers(self, finding: Finding) -> bool:
        if self.beside_error and finding.error in ("", "NONE (0)"):
            return False
        return self.api == finding.api and self._step(finding) is not None and self._has(finding)

    def _step(self, finding: Finding) -> str | None:
        return next((pattern for pattern in self.steps if fnmatchcase(finding.step, pattern)), None)

    def _has(self, finding: Finding) -> bool:
        values = self.fields.get(finding.field)
        return values is not None and bool(values[0] == finding.ours) and bool(values[1] == finding.theirs)

    def unseen(self, findings: Iterable[Finding]) -> list[str]:
        """The fields and steps of this entry that have not occurred. Drawn steps need not occur each time."""
        covered = [finding for finding in findings if self.covers(finding)]
        seen = {finding.field for finding in covered} | {self._step(finding) for finding in covered}
        return [part for part in (*self.fields, *self.steps) if part not in seen and not part.startswith(_BY_LOT)]


def never_seen(differences: Iterable[Difference], findings: Sequence[Finding]) -> list[str]:
    """The listed differences that have not occurred."""
    unseen = [(difference, missing) for difference in differences if (missing := difference.unseen(findings))]
    return [f"{entry.api}, {entry.why!r}: never seen: {', '.join(missing)}" for entry, missing in unseen]


def unlisted(findings: Iterable[Finding], differences: Sequence[Difference]) -> list[Finding]:
    """The differences that are not listed."""
    return [finding for finding in findings if not any(difference.covers(finding) for difference in differences)]


def table(differences: Sequence[Difference]) -> str:
    """A row per entry, in Markdown."""
    rows = [("API", "Asked for", "Differs: here, by Kafka", "Why"), ("---",) * 4, *map(_row, differences)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(difference: Difference) -> tuple[str, ...]:
    by_values: dict[tuple[str, str], list[str]] = {}
    for name, (ours, theirs) in difference.fields.items():
        by_values.setdefault((_shown(ours), _shown(theirs)), []).append(name)
    differs = "; ".join(f"{_named(names)}: {ours}, {theirs}" for (ours, theirs), names in by_values.items())
    asked = "; ".join(map(_asked, difference.steps)) + (", with an error" if difference.beside_error else "")
    return difference.api, asked, differs, difference.why


def _named(fields: Iterable[str]) -> str:
    """The fields, with fields of one array together: `api_keys[24, 25]`."""
    keys: dict[str, list[str]] = {}
    for name in fields:
        before, bracket, rest = name.partition("[")
        key, _, behind = rest.partition("]")
        keys.setdefault(f"{before}[{{}}]{behind}" if bracket else name, []).append(key)
    return ", ".join(f"`{form.format(', '.join(found))}`" for form, found in keys.items())


def _asked(pattern: str) -> str:
    return "anything" if pattern == "*" else pattern.replace("*", "…")


def _shown(value: object) -> str:
    if isinstance(value, _Any):
        return "any"
    if value is None:
        return "null"
    if value in ({}, ""):
        return "empty"
    return str(value) if isinstance(value, int) or value in (ABSENT, PRESENT) else f"`{value}`"
