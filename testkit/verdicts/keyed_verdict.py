"""The verdict on a run of keyed consumers under faults (KIP-X): deliveries and acknowledged commits, by their times.

1. Nothing that an acknowledged commit covers comes again.
2. Nothing is skipped: each acknowledged record is delivered.
3. The first deliveries of a key's records are in their order.
4. In the end the group's offset is the end of each partition.
5. Nothing that is not done is covered: when an acknowledged commit was sent, the handlers of all records in it had
   ended with Done, perhaps in another process.

Times are of one clock for all processes: a delivery has the time at which its handler began, an acknowledgement the
time at which its consumer had the answer. So a delivery that is later than an acknowledgement was also later at the
broker. A handler notes its end before its consumer learns of the end, and a commit is made before it is sent: so a
commit cannot cover a record whose handler has ended after the sending. If ends were compared with the time of the
answer, a record would pass whose handler ends while the consumer waits for the answer.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.model.committed_progress import Rectangle
from tailrace.model.key_ranges import hash_of
from tailrace.model.partitions import TopicPartition

AGAIN: Final = "comes again"
SKIPPED: Final = "is skipped"
DISORDER: Final = "is out of order"
LAG: Final = "is not done"
EARLY: Final = "is covered before it is done"


class Delivery(NamedTuple):
    """The begin of a handler's work on a record."""

    at_ns: int
    partition: TopicPartition
    offset: int
    key: bytes | None


class Completion(NamedTuple):
    """The end of a handler's work on a record, which is done."""

    at_ns: int
    partition: TopicPartition
    offset: int


class Acknowledgement(NamedTuple):
    """The coordinator's acknowledgement of these rectangles of a partition."""

    at_ns: int
    sent_ns: int
    partition: TopicPartition
    rectangles: Sequence[Rectangle]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedEvidence:
    """The evidence that a run has gathered."""

    produced: Mapping[TopicPartition, Mapping[int, bytes | None]]
    """The keys of acknowledged records, by offset."""
    deliveries: Sequence[Delivery]
    completions: Sequence[Completion]
    acknowledged: Sequence[Acknowledgement]
    stable_offsets: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    """The ends of the logs after the run."""


def broken_promises(evidence: KeyedEvidence) -> list[str]:
    """The faults, with their kinds."""
    return [
        *_repeated(evidence),
        *_skipped(evidence),
        *_disordered(evidence),
        *_undone(evidence),
        *_early(evidence),
    ]


def _repeated(evidence: KeyedEvidence) -> Iterator[str]:
    covered = answers_by_record(evidence)
    for delivery in evidence.deliveries:
        at_ns = covered.get((delivery.partition, delivery.offset))
        if at_ns is not None and delivery.at_ns > at_ns:
            late_ms = (delivery.at_ns - at_ns) / 1e6
            yield f"{AGAIN}: {delivery.partition} {delivery.offset}, {late_ms:.1f} ms after its acknowledgement"


def _early(evidence: KeyedEvidence) -> Iterator[str]:
    done: dict[tuple[TopicPartition, int], int] = {}
    for done_ns, partition, offset in evidence.completions:
        done[partition, offset] = min(done_ns, done.get((partition, offset), done_ns))
    for place, sent_ns in _covered_at(evidence, _request_of).items():
        end_ns = done.get(place)
        if end_ns is None or end_ns > sent_ns:
            late = "it never is" if end_ns is None else f"it is {(end_ns - sent_ns) / 1e6:.1f} ms after the commit"
            yield f"{EARLY}: {place[0]} {place[1]}, {late}"


def answers_by_record(evidence: KeyedEvidence) -> Mapping[tuple[TopicPartition, int], int]:
    """The time of the first answer to a commit that covers a delivered record, by partition and offset."""
    return _covered_at(evidence, _answer_of)


def _answer_of(acknowledgement: Acknowledgement) -> int:
    return acknowledgement.at_ns


def _request_of(acknowledgement: Acknowledgement) -> int:
    return acknowledgement.sent_ns


def _covered_at(
    evidence: KeyedEvidence, time_of: Callable[[Acknowledgement], int]
) -> dict[tuple[TopicPartition, int], int]:
    """The time of the first acknowledged commit that covers a record that was delivered."""
    left: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for _, partition, offset, key in sorted(
        evidence.deliveries, key=lambda delivery: (delivery.partition, delivery.offset)
    ):
        left[partition][offset] = hash_of(key, offset)
    covered: dict[tuple[TopicPartition, int], int] = {}
    for acknowledgement in sorted(evidence.acknowledged, key=time_of):
        partition, rectangles = acknowledgement.partition, acknowledgement.rectangles
        by_hash = sorted(rectangles, key=lambda rectangle: (rectangle.first_hash, rectangle.first_offset))
        starts = [rectangle.first_hash for rectangle in by_hash]
        last = max(rectangle.last_offset for rectangle in rectangles)
        of_partition = left[partition]
        found = []
        for offset, key_hash in of_partition.items():
            if offset > last:
                break
            if _is_in(by_hash, starts, offset, key_hash):
                found.append(offset)
        for offset in found:
            covered[partition, offset] = time_of(acknowledgement)
            del of_partition[offset]
    return covered


def _is_in(by_hash: Sequence[Rectangle], starts: Sequence[int], offset: int, key_hash: int) -> bool:
    """Whether a rectangle has the record. Most often it is the last rectangle that begins at the record's hash or
    below, or the first rectangle."""
    for place in range(bisect_right(starts, key_hash) - 1, -1, -1):
        rectangle = by_hash[place]
        if rectangle.first_offset <= offset <= rectangle.last_offset and key_hash <= rectangle.last_hash:
            return True
    return False


def _skipped(evidence: KeyedEvidence) -> Iterator[str]:
    delivered = {(delivery.partition, delivery.offset) for delivery in evidence.deliveries}
    for partition, keys in evidence.produced.items():
        for offset in keys:
            if (partition, offset) not in delivered:
                yield f"{SKIPPED}: {partition} {offset}"


def _disordered(evidence: KeyedEvidence) -> Iterator[str]:
    seen: set[tuple[TopicPartition, int]] = set()
    latest: dict[tuple[TopicPartition, bytes], int] = {}
    for _, partition, offset, key in sorted(evidence.deliveries, key=lambda delivery: delivery.at_ns):
        if key is None or (partition, offset) in seen:
            continue
        seen.add((partition, offset))
        before = latest.get((partition, key), -1)
        if offset < before:
            yield f"{DISORDER}: {partition} {offset} of {key!r} after {before}"
        latest[partition, key] = max(before, offset)


def _undone(evidence: KeyedEvidence) -> Iterator[str]:
    for partition, end in evidence.ends.items():
        stable_offset = evidence.stable_offsets.get(partition)
        if stable_offset != end:
            yield f"{LAG}: {partition} at {stable_offset}, its end is {end}"
