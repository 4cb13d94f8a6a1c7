"""Names of sink transactions: a sink takes batches of records, each whole and once, from tasks that may be tried again.

A *sink* takes numbered *batches* from a *run* of its writer (a new run after each restart). Each *task* of a batch
writes in a transaction of its own, and each *attempt* of a task in another. The coordinator of all these transactions
is the coordinator of the sink: its partition of `__transaction_state` is given by the part `__tailrace_sink/<sink>` of
their transactional ids, which is also the key of the sink's own record.
"""

import re
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError

SINKS_FEATURE: Final = "tailrace.sinks"
"""The feature, with level 1, of a broker's registration and of ApiVersions."""
_PREFIX: Final = "__tailrace_sink/"
LONGEST_SINK: Final = 200
"""Characters of a sink id."""
LONGEST_RUN: Final = 100
"""Characters of a run."""
LAST_BATCH: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_MEMBER: Final = re.compile(
    rf"{_PREFIX}([A-Za-z0-9._-]{{1,{LONGEST_SINK}}})/([A-Za-z0-9._-]{{1,{LONGEST_RUN}}})"
    r"/(0|[1-9][0-9]{0,18})/(0|[1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,9})"
)
LONGEST_MEMBER: Final = len(_PREFIX) + LONGEST_SINK + 1 + LONGEST_RUN + 1 + 19 + 1 + 10 + 1 + 10
"""Characters of the transactional id of a member, which are ASCII."""


class SinkMember(NamedTuple):
    """An attempt of a task to write its part of a batch."""

    sink: str
    run: str
    batch: int
    task: int
    attempt: int

    @property
    def transactional_id(self) -> str:
        """The id of its transaction. Raises KafkaError INVALID_REQUEST (42) for parts that an id cannot have."""
        text = f"{sink_key(self.sink)}/{self.run}/{self.batch}/{self.task}.{self.attempt}"
        parse_member(text)
        return text


class RowsDigest(NamedTuple):
    """The rows of a batch, to be compared with the rows of a batch that comes again: whatever their order and their
    tasks.

    Equal rows have equal digests. Other rows have an equal digest by a chance of 1 in 2^64.
    """

    row_count: int = 0
    digest: int = 0
    """The sum of the hashes of all rows, 64 bits, signed."""
    scheme: int = 1
    """The way in which rows are hashed: digests of two schemes tell nothing about each other."""

    def plus(self, other: "RowsDigest") -> "RowsDigest":
        """The digest of the rows of both, which have one scheme."""
        total = (self.digest + other.digest) % 2**64
        return RowsDigest(self.row_count + other.row_count, total - 2**64 if total >= 2**63 else total, self.scheme)

    def differs_from(self, other: "RowsDigest") -> bool:
        """Whether the rows are known to differ."""
        return self.row_count != other.row_count or (self.scheme == other.scheme and self.digest != other.digest)


def sink_key(sink: str) -> str:
    """The key of the sink's record, and the common part of its members' transactional ids."""
    return f"{_PREFIX}{sink}"


def is_reserved_for_sinks(transactional_id: str) -> bool:
    """Whether the id is reserved for sinks, well-formed or not."""
    return transactional_id.startswith(_PREFIX)


def sink_of_key(key: str) -> str | None:
    """The sink whose record has this key; None for any other transactional id."""
    if not key.startswith(_PREFIX):
        return None
    sink = key[len(_PREFIX) :]
    return sink if _is_name(sink, LONGEST_SINK) else None


def find_member(transactional_id: str) -> SinkMember | None:
    """The member with this transactional id; None for any other id."""
    found = _MEMBER.fullmatch(transactional_id) if transactional_id.startswith(_PREFIX) else None
    if found is None:
        return None
    member = SinkMember(found[1], found[2], int(found[3]), int(found[4]), int(found[5]))
    return member if member.batch <= LAST_BATCH else None


def parse_member(transactional_id: str) -> SinkMember:
    """The member of this id, like `find_member`. Raises KafkaError INVALID_REQUEST (42) if the id belongs to no
    member."""
    member = find_member(transactional_id)
    if member is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{transactional_id[:LONGEST_MEMBER]!r} is not {_PREFIX}<sink>/<run>/<batch>/<task>.<attempt>: sink and "
            f"run have letters, digits, '.', '_' and '-', at most {LONGEST_SINK} and {LONGEST_RUN}; the others are "
            "numbers",
        )
    return member


def coordinator_key(transactional_id: str) -> str:
    """The text whose hash gives the partition of `__transaction_state` of this id: the same text for a whole sink."""
    if not transactional_id.startswith(_PREFIX):
        return transactional_id
    end = transactional_id.find("/", len(_PREFIX))
    return transactional_id if end < 0 else transactional_id[:end]


def check_sink(sink: str) -> None:
    """Raises KafkaError INVALID_REQUEST (42) for a text that is no sink id."""
    _check_name("sink id", sink, LONGEST_SINK)


def check_run(run: str) -> None:
    """Raises KafkaError INVALID_REQUEST (42) for a text that is no run."""
    _check_name("run", run, LONGEST_RUN)


def _check_name(noun: str, text: str, longest: int) -> None:
    if not _is_name(text, longest):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a {noun} has 1 to {longest} letters, digits, '.', '_' and '-', not {text[: longest + 1]!r}",
        )


def _is_name(text: str, longest: int) -> bool:
    return len(text) <= longest and _NAME.fullmatch(text) is not None
