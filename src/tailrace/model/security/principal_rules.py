"""The names of principals that certificates prove: the subject's whole name, or a part of it by rules (KIP-371).

`ssl.principal.mapping.rules` is a list of `RULE:pattern/replacement/[LU]` and `DEFAULT`. The first rule whose pattern
matches the whole distinguished name makes the principal; `DEFAULT` takes the whole name. RE2 matches in time linear in
the name. A name that no rule matches is refused.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError

Subject = Sequence[Sequence[tuple[str, str]]]
"""The subject of a certificate, as `ssl` gives it: relative names, the most significant first, of pairs of type and
value."""

LONGEST_NAME: Final = 4_096
"""The most characters of a distinguished name that may be a principal."""
_LONGEST_RULES: Final = 8_192
_RULE_MEMORY_BYTES: Final = 1 << 20

_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""The keywords of RFC 2253 for types of names; another type keeps the name that OpenSSL gives it."""

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\s*(?:,|$)", re.DOTALL)
_DEFAULT: Final = re.compile(r"DEFAULT\s*(?:,|$)")
_GROUP: Final = re.compile(r"\$([0-9])")


def distinguished_name(subject: Subject) -> str:
    """The subject in the form of RFC 2253, as Java writes it: the least significant name first, special characters
    escaped. Raises KafkaError SASL_AUTHENTICATION_FAILED for a name that is too long or has control characters."""
    names = ["+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in subject]
    name = ",".join(reversed(names))
    if not name.isprintable():
        raise _refused(f"a certificate's subject with control characters: {name[:200]!r}")
    if len(name) > LONGEST_NAME:
        raise _refused(f"a certificate's subject of {len(name)} characters; at most {LONGEST_NAME} are taken")
    return name


def _escaped(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    return escaped[:-1] + "\\ " if escaped.endswith(" ") and len(value) > 1 else escaped


def whole_name(subject: Subject) -> str:
    """The principal of a node without rules: `User:` with the whole name."""
    return f"User:{distinguished_name(subject)}"


class _Rule(NamedTuple):
    pattern: Any
    """The compiled expression; None: DEFAULT."""
    replacement: str
    case: str
    """`L` lower, `U` upper; empty: as it is."""

    def apply(self, name: str) -> str | None:
        """The principal's name; None: the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        made = _GROUP.sub(lambda group: found.group(int(group[1])) or "", self.replacement)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


class PrincipalRules:
    """The rules of one listener."""

    def __init__(self, text: str) -> None:
        """Raises KafkaError INVALID_CONFIG for a text that is no list of rules."""
        self._rules = _parsed(text.strip())

    def __call__(self, subject: Subject) -> str:
        """The principal. Raises KafkaError SASL_AUTHENTICATION_FAILED for a subject that no rule matches."""
        name = distinguished_name(subject)
        for rule in self._rules:
            principal = rule.apply(name)
            if principal is not None:
                if not principal or len(principal) > LONGEST_NAME:
                    break
                return f"User:{principal}"
        raise _refused(f"no rule of ssl.principal.mapping.rules makes a principal of the subject {name!r}")


@lru_cache(maxsize=16)
def _parsed(text: str) -> tuple[_Rule, ...]:
    rules: list[_Rule] = []
    position = 0
    if len(text) > _LONGEST_RULES:
        raise _wrong(f"{len(text)} characters; at most {_LONGEST_RULES} are taken")
    while position < len(text):
        if (found := _DEFAULT.match(text, position)) is not None:
            rules.append(_Rule(None, "", ""))
        elif (found := _RULE.match(text, position)) is not None:
            rules.append(_rule(*found.groups()))
        else:
            raise _wrong(
                f"{text[position:]!r} is no rule; say RULE:pattern/replacement/, with L or U behind, or DEFAULT"
            )
        position = found.end()
        while text[position : position + 1].isspace():
            position += 1
    return tuple(rules) or (_Rule(None, "", ""),)


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    import re2  # imported with the first rule, not at the start of every node

    options = re2.Options()
    options.max_mem = _RULE_MEMORY_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as fault:
        raise _wrong(f"{pattern!r}: {fault}") from None
    unknown = [number for number in _GROUP.findall(replacement) if int(number) > compiled.groups]
    if unknown:
        raise _wrong(f"{replacement!r}: the pattern {pattern!r} has no group {unknown[0]}")
    return _Rule(compiled, replacement, case)


def _wrong(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"ssl.principal.mapping.rules: {detail}")


def _refused(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, detail)
