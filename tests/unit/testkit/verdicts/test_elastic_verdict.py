"""The verdict on elastic groups: each planted anomaly is named, and repeats have causes."""

from dataclasses import replace
from typing import Any

import pytest

from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    ConsumerValue,
    CurrentMemberAssignmentValue,
    StoredTopicPartitions,
)
from tailrace.coordinators.groups.records import OffsetCommitValue, OffsetRecord
from tailrace.coordinators.groups.stored_ranges import encode_ranges
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.key_ranges import hash_of
from tailrace.protocol.schema import ZERO_UUID
from testkit.verdicts.elastic_verdict import (
    AGAIN,
    KEYED,
    OVERLAP,
    REPEATED,
    RESTLESS,
    STRAY,
    CommitAttempt,
    ElasticEvidence,
    ElasticJudgement,
    Handling,
    NumberedRecord,
    ProcessLedger,
    SlotRecord,
)
from testkit.verdicts.planted_elastic import ELASTIC_PLANTS
from testkit.verdicts.slot_ownership import CoordinatorRecord

FAN_OUT = 2
MS = 10**6
KEYS = ("a", "b", "c", "d", "e", "f")
SLOT_OF = {key: hash_of(key.encode(), 0) * FAN_OUT >> 32 for key in KEYS}
KEY = next(key for key in KEYS if SLOT_OF[key] == 0)
OTHER = next(key for key in KEYS if SLOT_OF[key] == 0 and key != KEY)


def member(at_ms: int, name: str, kind: ConsumerRecordKind, value: ConsumerValue | None) -> CoordinatorRecord:
    return CoordinatorRecord(
        at_ms * MS, ConsumerGroupRecord(kind=kind, group_id="g", member_id=f"id-{name}", value=value)
    )


def joins(at_ms: int, name: str) -> CoordinatorRecord:
    value = ConsumerGroupMemberMetadataValue(client_id=name, client_host="h")
    return member(at_ms, name, ConsumerRecordKind.MEMBER, value)


def holds(at_ms: int, name: str, *slots: int) -> CoordinatorRecord:
    value = CurrentMemberAssignmentValue(
        member_epoch=1,
        previous_member_epoch=0,
        state=0,
        assigned_partitions=(StoredTopicPartitions(topic_id=ZERO_UUID, partitions=slots),) if slots else (),
        partitions_pending_revocation=(),
    )
    return member(at_ms, name, ConsumerRecordKind.CURRENT, value)


def removed(at_ms: int, name: str) -> CoordinatorRecord:
    return member(at_ms, name, ConsumerRecordKind.CURRENT, None)


def committed(at_ms: int, slot: int, progress: CommittedProgress) -> CoordinatorRecord:
    value = OffsetCommitValue(
        offset=progress.stable_offset, metadata="", commit_timestamp=0, ranges=encode_ranges(progress)
    )
    return CoordinatorRecord(at_ms * MS, OffsetRecord(group_id="g", topic="t", partition=slot, value=value))


def handling(process: str, at_ms: int, offset: int, key: str = KEY) -> Handling:
    return Handling(process, 0, offset, key, offset, at_ms * MS, (at_ms + 5) * MS)


def commit(at_ms: int, end_offset: int, *, is_acknowledged: bool = True) -> CommitAttempt:
    return CommitAttempt(at_ms * MS, (at_ms + 10) * MS, 0, (Rectangle(0, end_offset - 1),), is_acknowledged)


KILLED_MS, MOVED_MS = 200, 300
TWO_DONE = CommittedProgress(2)
GOOD = ElasticEvidence(
    fan_out=FAN_OUT,
    produced={SlotRecord(0, offset): NumberedRecord(KEY, offset) for offset in range(4)},
    ledgers={
        # The first owner has committed two records and is killed after a third record; the second owner repeats this.
        "first": ProcessLedger(KEYED, [handling("first", 100 + 20 * offset, offset) for offset in range(3)]),
        "second": ProcessLedger(
            "stock", [handling("second", 320, 2), handling("second", 340, 3)], [commit(400, 4)], None
        ),
    },
    coordinator=[
        joins(10, "first"),
        holds(10, "first", 0, 1),
        committed(150, 0, CommittedProgress(2)),
        joins(160, "second"),
        holds(160, "second"),
        removed(MOVED_MS, "first"),
        holds(MOVED_MS, "second", 0, 1),
        committed(405, 0, CommittedProgress(4)),
    ],
    killed={"first": KILLED_MS * MS},
    stopped={},
    quiet=(450 * MS, 900 * MS),
    most_in_hand=3,
)


def laws(evidence: ElasticEvidence) -> set[str]:
    return {fault.partition(":")[0] for fault in ElasticJudgement(evidence).faults}


def with_second(**changes: Any) -> ElasticEvidence:
    ledger = replace(GOOD.ledgers["second"], **changes)
    return replace(GOOD, ledgers={**GOOD.ledgers, "second": ledger})


def test_a_repeat_of_what_was_not_committed_at_a_kill_is_no_fault() -> None:
    judged = ElasticJudgement(GOOD)
    assert judged.faults == []
    assert judged.repeats == {"kill": 1}


@pytest.mark.parametrize("law", ELASTIC_PLANTS)
def test_each_planted_anomaly_is_named(law: str) -> None:
    assert law in laws(ELASTIC_PLANTS[law](GOOD))


def in_order(*attempts: CommitAttempt, progress: CommittedProgress = TWO_DONE) -> ElasticEvidence:
    """The evidence of a first owner that gives the slots up and stays in the group."""
    log = [
        *GOOD.coordinator[:2],
        committed(150, 0, progress),
        *GOOD.coordinator[3:5],
        holds(MOVED_MS, "first"),
        *GOOD.coordinator[6:],
    ]
    first = replace(GOOD.ledgers["first"], attempts=list(attempts))
    return replace(GOOD, coordinator=log, killed={}, ledgers={**GOOD.ledgers, "first": first})


def test_a_repeat_after_a_slot_was_given_up_in_order_is_found() -> None:
    assert laws(in_order()) == {REPEATED}


def test_a_commit_in_vain_explains_a_repeat() -> None:
    judged = ElasticJudgement(in_order(commit(200, 3, is_acknowledged=False)))
    assert (judged.faults, judged.repeats) == ([], {"failed commit": 1})


def fenced_by_its_epoch(kind: str, *attempts: CommitAttempt) -> ElasticEvidence:
    """The evidence of an owner that reads its slot a second time, in the time without faults."""
    read = [handling("second", 320, 2), handling("second", 340, 3), handling("second", 500, 3)]
    return with_second(kind=kind, handlings=read, attempts=[commit(600, 4), *attempts])


def test_an_owner_that_begins_anew_has_tried_to_commit_in_vain() -> None:
    log = [*GOOD.coordinator[:-1], committed(605, 0, CommittedProgress(4))]
    in_vain = commit(350, 4, is_acknowledged=False)
    for kind, attempts, broken in (
        ("stock", [], {REPEATED, RESTLESS}),
        ("stock", [in_vain], set()),
        (KEYED, [in_vain], {RESTLESS}),
    ):
        judged = ElasticJudgement(replace(fenced_by_its_epoch(kind, *attempts), coordinator=log))
        assert {fault.partition(":")[0] for fault in judged.faults} == broken
        assert judged.quiet_repeats.total() == 1


def test_a_client_without_ranges_repeats_what_is_committed_by_key() -> None:
    key_hash = hash_of(KEY.encode(), 2)
    progress = CommittedProgress(1).with_committed([Rectangle(2, 2, key_hash, key_hash)])
    log = in_order(progress=progress)
    assert log.slots.progress[0].at(200 * MS).is_committed(2, key_hash)
    judged = ElasticJudgement(log)
    assert judged.repeats == {"committed by key, to a client without ranges": 1}
    knows_ranges = replace(log.ledgers["second"], kind=KEYED)
    assert laws(replace(log, ledgers={**log.ledgers, "second": knows_ranges})) == {AGAIN}


def test_a_process_that_was_asked_to_leave_may_not_repeat() -> None:
    first = replace(GOOD.ledgers["first"], leaving_ns=210 * MS)
    evidence = replace(GOOD, killed={}, ledgers={**GOOD.ledgers, "first": first})
    assert laws(evidence) == {REPEATED}


def test_a_stop_and_silence_are_causes() -> None:
    assert ElasticJudgement(replace(GOOD, killed={})).repeats == {"silence": 1}
    stopped = replace(GOOD, killed={}, stopped={"first": [(200 * MS, 350 * MS)]})
    assert ElasticJudgement(stopped).repeats == {"stop": 1}


def zombie(*handlings: Handling) -> ElasticEvidence:
    first = replace(GOOD.ledgers["first"], handlings=[*GOOD.ledgers["first"].handlings, *handlings])
    stops = {"first": [(200 * MS, 330 * MS)]}
    return replace(GOOD, killed={}, stopped=stops, ledgers={**GOOD.ledgers, "first": first})


def test_a_zombie_may_handle_what_it_has_in_hand() -> None:
    judged = ElasticJudgement(zombie(handling("first", 330, 3)))
    assert judged.faults == []
    assert judged.zombies == {("first", MOVED_MS * MS): 1}
    assert judged.repeats == {"stop": 1, "after a zombie": 1}


def test_a_repeat_by_a_zombie_in_a_quiet_time_is_found() -> None:
    assert laws(zombie(handling("first", 500, 3))) == {RESTLESS}


def test_a_handling_that_goes_on_after_an_orderly_move_is_found() -> None:
    late = handling("first", 280, 1)._replace(end_ns=330 * MS)
    evidence = in_order(progress=CommittedProgress(3))
    first = replace(evidence.ledgers["first"], handlings=[handling("first", 100, 0), late])
    second = replace(evidence.ledgers["second"], handlings=[handling("second", 320, 3)])
    changed = replace(evidence, ledgers={"first": first, "second": second})
    assert OVERLAP in laws(changed)


def test_a_handling_before_the_assignment_is_found() -> None:
    early = with_second(handlings=[*GOOD.ledgers["second"].handlings, handling("second", 250, 9, OTHER)])
    assert laws(early) == {STRAY}
