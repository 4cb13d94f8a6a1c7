"""Anomalies that are planted into the evidence of keyed consumers without a fault: the verdict must name the kind of
each anomaly.

Each planter takes evidence and returns a changed copy. The evidence has an acknowledged commit that covers an
acknowledged record, and a key with two records. A record may lack the acknowledgement of its commit: the worker that
sent the commit was killed before the worker noted the answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tailrace.model.partitions import TopicPartition
from testkit.verdicts.keyed_verdict import (
    AGAIN,
    DISORDER,
    EARLY,
    LAG,
    SKIPPED,
    Completion,
    Delivery,
    KeyedEvidence,
    answers_by_record,
)

PlantKeyed = Callable[[KeyedEvidence], KeyedEvidence]


def _deliveries(evidence: KeyedEvidence) -> list[Delivery]:
    return sorted(evidence.deliveries, key=lambda delivery: delivery.at_ns)


def _covered(evidence: KeyedEvidence) -> Delivery:
    """The first delivery of an acknowledged record that an acknowledged commit covers."""
    answers = answers_by_record(evidence)
    for delivery in _deliveries(evidence):
        partition, offset = delivery.partition, delivery.offset
        if offset in evidence.produced.get(partition, ()) and (partition, offset) in answers:
            return delivery
    raise AssertionError("no acknowledged commit covers an acknowledged record")


def _end_ns(evidence: KeyedEvidence) -> int:
    return max(acknowledged.at_ns for acknowledged in evidence.acknowledged)


def _end_late(evidence: KeyedEvidence) -> KeyedEvidence:
    """Let the handler of a record end after the commit that covers the record."""
    chosen = _covered(evidence)
    others = [
        completion
        for completion in evidence.completions
        if (completion.partition, completion.offset) != (chosen.partition, chosen.offset)
    ]
    late = Completion(_end_ns(evidence), chosen.partition, chosen.offset)
    return replace(evidence, completions=[*others, late])


def _deliver_again(evidence: KeyedEvidence) -> KeyedEvidence:
    again = _covered(evidence)._replace(at_ns=_end_ns(evidence) + 1)
    return replace(evidence, deliveries=[*evidence.deliveries, again])


def _skip(evidence: KeyedEvidence) -> KeyedEvidence:
    skipped = _covered(evidence)
    kept = [
        delivery
        for delivery in evidence.deliveries
        if (delivery.partition, delivery.offset) != (skipped.partition, skipped.offset)
    ]
    return replace(evidence, deliveries=kept)


def _pair(evidence: KeyedEvidence) -> tuple[Delivery, Delivery]:
    """The first deliveries of two records of a key, in the order of the records."""
    first: dict[tuple[TopicPartition, bytes], Delivery] = {}
    for delivery in _deliveries(evidence):
        if delivery.key is not None:
            earlier = first.setdefault((delivery.partition, delivery.key), delivery)
            if earlier.offset < delivery.offset:
                return earlier, delivery
    raise AssertionError("no key has two records")


def _swap(evidence: KeyedEvidence) -> KeyedEvidence:
    earlier, later = _pair(evidence)
    moved = {earlier.offset, later.offset}
    kept = [
        delivery
        for delivery in evidence.deliveries
        if delivery.partition != earlier.partition or delivery.offset not in moved
    ]
    swapped = [earlier._replace(at_ns=later.at_ns), later._replace(at_ns=earlier.at_ns)]
    return replace(evidence, deliveries=[*kept, *swapped])


def _leave_the_last_record(evidence: KeyedEvidence) -> KeyedEvidence:
    partition, end = next(iter(evidence.ends.items()))
    return replace(evidence, stable_offsets={**evidence.stable_offsets, partition: end - 1})


KEYED_PLANTS: Final[Mapping[str, PlantKeyed]] = {
    EARLY: _end_late,
    AGAIN: _deliver_again,
    SKIPPED: _skip,
    DISORDER: _swap,
    LAG: _leave_the_last_record,
}
"""The planter of each broken promise."""
