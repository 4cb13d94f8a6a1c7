"""The verdict on streams that read, and copy, the committed records of a topic while brokers fail."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class StreamEvidence:
    """The records of a topic that a read_committed consumer sees in the end, and the outputs of the streams."""

    acknowledged: frozenset[bytes]
    """The values of transactions whose commit was answered."""
    aborted: frozenset[bytes]
    committed: Mapping[int, Sequence[bytes]]
    """The committed values by partition, in the order of the log."""
    rows: Mapping[int, Sequence[tuple[int, bytes]]]
    """Offset and value of each row of the stream, by partition, in the order of the stream."""
    copies: Sequence[bytes]


def broken_promises(evidence: StreamEvidence) -> list[str]:
    """The promises that are broken, a promise per line, with its kind before the colon."""
    return list(_broken(evidence))


def _broken(evidence: StreamEvidence) -> Iterator[str]:
    committed = Counter(value for values in evidence.committed.values() for value in values)
    if not evidence.acknowledged:
        yield "nothing: no commit was answered"
    if lost := evidence.acknowledged - committed.keys():
        yield f"lost: {sorted(lost)[:5]}"
    if dirty := evidence.aborted & committed.keys():
        yield f"aborted: {sorted(dirty)[:5]} can be read"
    if twice := [value for value, count in committed.items() if count > 1]:
        yield f"written twice: {sorted(twice)[:5]}"
    for partition, values in evidence.committed.items():
        rows = evidence.rows.get(partition, ())
        if not all(row[0] < other[0] for row, other in pairwise(rows)):
            yield f"order of rows: partition {partition}"
        if [value for _, value in rows] != list(values):
            yield f"rows: partition {partition} has {len(rows)} for {len(values)} records, or others"
    copies = Counter(evidence.copies)
    if missing := committed - copies:
        yield f"copies missing: {missing.total()}, such as {sorted(missing)[:5]}"
    if repeated := copies - committed:
        yield f"copies repeated: {repeated.total()}, such as {sorted(repeated)[:5]}"
