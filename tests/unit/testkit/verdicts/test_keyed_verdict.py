"""The verdict on keyed consumers: a record is done before a commit that covers the record is sent."""

from dataclasses import replace

import pytest

from tailrace.model.committed_progress import Rectangle
from tailrace.model.key_ranges import hash_of
from tailrace.model.partitions import TopicPartition
from testkit.verdicts.keyed_verdict import (
    AGAIN,
    EARLY,
    Acknowledgement,
    Completion,
    Delivery,
    KeyedEvidence,
    broken_promises,
)
from testkit.verdicts.planted_keyed import KEYED_PLANTS

NAME = TopicPartition("orders", 0)
HASH = hash_of(b"b", 1)
GOOD = KeyedEvidence(
    produced={NAME: {0: b"a", 1: b"b"}},
    deliveries=[Delivery(10, NAME, 0, b"a"), Delivery(11, NAME, 1, b"b")],
    completions=[Completion(20, NAME, 0), Completion(40, NAME, 1)],
    acknowledged=[
        Acknowledgement(35, 30, NAME, [Rectangle(0, 0)]),
        Acknowledgement(55, 50, NAME, [Rectangle(0, 0), Rectangle(1, 1, HASH, HASH)]),
    ],
    stable_offsets={NAME: 2},
    ends={NAME: 2},
)


def kinds(evidence: KeyedEvidence) -> list[str]:
    return [fault.partition(":")[0] for fault in broken_promises(evidence)]


def test_records_that_are_done_before_their_commits_are_sent_are_as_they_should_be() -> None:
    assert kinds(GOOD) == []


@pytest.mark.parametrize("end_ns", [51, 55, 60, None], ids=["sent", "answered", "later", "never"])
def test_a_commit_that_covers_what_is_not_done_is_found(end_ns: int | None) -> None:
    ends = [] if end_ns is None else [Completion(end_ns, NAME, 1)]
    assert kinds(replace(GOOD, completions=[*GOOD.completions[:1], *ends])) == [EARLY]


def test_the_first_end_of_a_record_counts() -> None:
    again = [Completion(45, NAME, 0), *GOOD.completions]
    assert kinds(replace(GOOD, completions=again)) == []


def test_a_record_that_comes_after_its_acknowledgement_is_found() -> None:
    late = [*GOOD.deliveries, Delivery(56, NAME, 1, b"b")]
    assert kinds(replace(GOOD, deliveries=late)) == [AGAIN]


A_LOST_ANSWER = replace(
    GOOD,
    produced={NAME: {0: b"a", 1: b"b", 2: b"b"}},
    deliveries=[*GOOD.deliveries, Delivery(12, NAME, 2, b"b")],
    completions=[*GOOD.completions, Completion(45, NAME, 2)],
    acknowledged=[Acknowledgement(55, 50, NAME, [Rectangle(1, 2)])],
    stable_offsets={NAME: 3},
    ends={NAME: 3},
)
"""The worker that committed record 0 was killed before the worker noted the answer."""


@pytest.mark.parametrize("kind", KEYED_PLANTS)
def test_each_planted_anomaly_is_named_though_the_answer_for_the_first_record_is_lost(kind: str) -> None:
    assert kinds(A_LOST_ANSWER) == []
    assert kind in kinds(KEYED_PLANTS[kind](A_LOST_ANSWER))
