"""The form of the audit log, and its check.

A line is a JSON object with its number and the SHA-256 of the line before. The chain goes on from file to file; a file
has the number of its first line in its name. `audit.head` has the number and the hash of the last line that is on the
disk: without the head, lines could be cut off at the end. The hashes have no key. Any writer of the directory can
write another chain; a copy of the head elsewhere shows that.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

GENESIS: Final = "0" * 64
"""The hash before the first line."""
HEAD: Final = "audit.head"
LONGEST_LINE: Final = 64 << 10
"""The most bytes of a line; the lines of a node are shorter."""
REMOVED: Final = "files-removed"
"""The event of a line that tells of files that the node has removed, as the limit of the disk demands."""

_PREFIX: Final = "audit-"
_SUFFIX: Final = ".jsonl"


class Link(NamedTuple):
    """A place in the chain: behind a line."""

    number: int = 0
    """The number of the line; the first line has 1."""
    hash: str = GENESIS


def encode_line(behind: Link, fields: Mapping[str, Any]) -> bytes:
    """The next line, with its line feed."""
    line = {"n": behind.number + 1, "prev": behind.hash, **fields}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def link_of(number: int, line: bytes) -> Link:
    """The place behind a line."""
    return Link(number, sha256(line.rstrip(b"\n")).hexdigest())


def file_name(first: int) -> str:
    """The name of the file whose first line has this number."""
    return f"{_PREFIX}{first:020d}{_SUFFIX}"


def audit_files(directory: Path) -> list[Path]:
    """The files of the log, the oldest first. Raises OSError."""
    return sorted(directory.glob(f"{_PREFIX}{'[0-9]' * 20}{_SUFFIX}"))


def first_of(path: Path) -> int:
    """The number of the first line of a file, by its name."""
    return int(path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))


def encode_head(link: Link) -> bytes:
    """The content of `audit.head`."""
    return json.dumps({"n": link.number, "hash": link.hash}).encode() + b"\n"


def read_head(directory: Path) -> Link | None:
    """The head; None if there is no head that can be read. Raises OSError for a head that the reader may not read."""
    try:
        content = json.loads((directory / HEAD).read_bytes())
        return Link(int(content["n"]), str(content["hash"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@dataclass(slots=True)
class ChainVerdict:
    """The outcome of a check."""

    first: int = 0
    """The number of the first line; 0: there is no line."""
    last: Link = field(default_factory=Link)
    fault: str | None = None
    """The first fault; None: the lines are as the node wrote them, unless the whole chain was written anew."""
    unfinished_bytes: int = 0
    """Bytes behind the last whole line: of a line that a node is writing, or has not finished."""


def verify(path: Path) -> ChainVerdict:
    """Check a directory of an audit log. Raises OSError."""
    verdict = ChainVerdict()
    try:
        _verify(path, verdict)
    except _BrokenChain as broken:
        verdict.fault = str(broken)
    return verdict


class _BrokenChain(Exception):
    """The first fault."""


def _verify(directory: Path, verdict: ChainVerdict) -> None:
    head = read_head(directory)  # first: a node may be writing
    claims: dict[int, str] = {}
    before: Link | None = None
    at_head: Link | None = None
    for path in audit_files(directory):
        for place, line in _lines(path, verdict):
            number, previous = _parsed(place, line, claims)
            if not verdict.first:
                verdict.first, before = number, Link(number - 1, previous)
            _check_link(place, number, previous, verdict.last if verdict.last.number else None)
            verdict.last = link_of(number, line)
            if head is not None and number == head.number:
                at_head = verdict.last
    if before is not None and before.number and claims.get(before.number) != before.hash:
        raise _BrokenChain(f"lines 1 to {before.number} are missing: no later line tells that the node removed them")
    if before is not None and not before.number and before.hash != GENESIS:
        raise _BrokenChain("line 1 does not begin a chain: a line before it is missing, or line 1 was changed")
    if head is None:
        raise _BrokenChain(f"{HEAD} cannot be read: lines may be cut off behind line {verdict.last.number}")
    if head.number > verdict.last.number:
        raise _BrokenChain(f"lines {verdict.last.number + 1} to {head.number} are missing: the tail was cut off")
    if head.number and at_head is not None and at_head != head:
        raise _BrokenChain(f"line {head.number} was changed: {HEAD} has another hash")


def _lines(path: Path, verdict: ChainVerdict) -> Iterator[tuple[str, bytes]]:
    """The whole lines of a file, with their places."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            place = f"{path.name}:{number}"
            if len(line) > LONGEST_LINE:
                raise _BrokenChain(f"{place}: a line of more than {LONGEST_LINE} bytes")
            if verdict.unfinished_bytes:
                raise _BrokenChain(f"{place}: the file before ends in the middle of a line")
            if not line.endswith(b"\n"):
                verdict.unfinished_bytes = len(line)
                return
            yield place, line


def _parsed(place: str, line: bytes, claims: dict[int, str]) -> tuple[int, str]:
    """The number of the line, and the hash of the line before. `claims` gets the removals of files that the line tells
    of: the hash of the last removed line by its number."""
    try:
        content = json.loads(line)
        number, previous = content["n"], content["prev"]
        if content.get("event") == REMOVED:
            claims[content["through"]] = content["hash"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _BrokenChain(f"{place}: no line of an audit log") from None
    if type(number) is not int or number < 1 or type(previous) is not str:
        raise _BrokenChain(f"{place}: no line of an audit log")
    return number, previous


def _check_link(place: str, number: int, previous: str, last: Link | None) -> None:
    if last is None:
        return
    if number > last.number + 1:
        raise _BrokenChain(f"{place}: lines {last.number + 1} to {number - 1} before it are missing, or their file")
    if number <= last.number:
        raise _BrokenChain(f"{place}: line {number} comes behind line {last.number}")
    if previous != last.hash:
        raise _BrokenChain(f"line {last.number} was changed, or {place}, line {number}, was: its hash is another hash")
