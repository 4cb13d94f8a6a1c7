"""The verdict on a replicated cluster: each planted anomaly is named, and a history without anomalies is passed."""

from collections.abc import Mapping
from typing import Any

import pytest

from testkit.verdicts.planted_anomalies import PLANTS
from testkit.verdicts.replica_history import FinalLog, Place, ReplicaHistory, ReplicaLog, StoredBatch
from testkit.verdicts.replica_verdict import KINDS, Evidence, broken_promises

PLAIN: Place = ("plain", 0)
COMPACTED: Place = ("compacted", 0)
TRANSACTIONAL: Place = ("transactional", 0)
NODES = (1, 2, 3)
GROUP = {"member-1": "group", "member-2": "group"}

PLAIN_LOG = FinalLog(
    start_offset=0,
    high_watermark=8,
    values={offset: f"{'ab'[offset % 2]}:{offset // 2}" for offset in range(8)},
)
COMPACTED_LOG = FinalLog(
    start_offset=0,
    high_watermark=6,
    values={3: "c:3", 4: "c:4", 5: "c:5"},
    keys={3: "0", 4: "1", 5: "2"},
)
"""c:0 to c:2 have been replaced."""
TRANSACTIONAL_LOG = FinalLog(
    start_offset=0,
    high_watermark=9,
    values={0: "t:0", 1: "t:1", 3: "t:2", 4: "t:3", 6: "t:4", 7: "t:5"},
    aborted=frozenset((3, 4)),
)
"""At 2, 5 and 8 are the markers."""


def polled(reader: str, place: Place, offsets: list[int], values: list[str], at_s: float) -> dict[str, Any]:
    here = {"reader": reader, "topic": place[0], "partition": place[1]}
    return {"op": "polled", "offsets": offsets, "values": values, "at_s": at_s, **here}


def visible(log: FinalLog, first: int, end: int) -> tuple[list[int], list[str]]:
    offsets = [offset for offset in sorted(log.values) if first <= offset < end and offset not in log.aborted]
    return offsets, [log.values[offset] for offset in offsets]


def acked(producer: str, place: Place, records: list[tuple[int, int]]) -> dict[str, Any]:
    return {"op": "acked", "producer": producer, "topic": place[0], "partition": place[1], "records": records}


def transaction(first: int, outcome: str, at_s: float) -> list[dict[str, Any]]:
    commits = outcome != "aborted"
    return [
        {"op": "begun", "producer": "t", "first": first, "count": 2},
        {"op": "ending", "producer": "t", "first": first, "commits": commits, "at_s": at_s},
        {"op": "ended", "producer": "t", "first": first, "outcome": outcome},
    ]


WRITES: list[dict[str, Any]] = [
    {"op": "sent", "producer": "a", "count": 4},
    {"op": "sent", "producer": "b", "count": 4},
    {"op": "sent", "producer": "c", "count": 6},
    {"op": "sent", "producer": "t", "count": 8},
    acked("a", PLAIN, [(number, 2 * number) for number in range(4)]),
    acked("b", PLAIN, [(number, 2 * number + 1) for number in range(3)]),
    acked("b", PLAIN, [(3, -1)]),
    acked("c", COMPACTED, [(number, number) for number in range(6)]),
    *transaction(0, "committed", 1.0),
    *transaction(2, "aborted", 2.0),
    *transaction(4, "unknown", 3.0),
    *transaction(6, "unknown", 4.0),
]


def reading_alone(reader: str) -> list[dict[str, Any]]:
    return [
        *(
            {"op": "assigned", "reader": reader, "topic": topic, "partition": 0, "offset": 0, "at_s": 0.0}
            for topic, _ in (PLAIN, COMPACTED, TRANSACTIONAL)
        ),
        polled(reader, PLAIN, *visible(PLAIN_LOG, 0, 4), 5.0),
        polled(reader, COMPACTED, [0, 1, 2, 4], ["c:0", "c:1", "c:2", "c:4"], 5.0),
        polled(reader, TRANSACTIONAL, *visible(TRANSACTIONAL_LOG, 0, 9), 5.0),
        polled(reader, PLAIN, *visible(PLAIN_LOG, 4, 8), 6.0),
        polled(reader, COMPACTED, [5], ["c:5"], 6.0),
    ]


WITHOUT_SKIP = [
    event if event["op"] != "polled" or event["offsets"] != [0, 1, 2, 4] else {**event, **changed}
    for event in reading_alone("alone")
    for changed in [{"offsets": [0, 1, 2, 3, 4], "values": ["c:0", "c:1", "c:2", "c:3", "c:4"]}]
]


def member(reader: str, first: int, end: int, at_s: float, *, is_committed: bool) -> list[dict[str, Any]]:
    here = {"reader": reader, "topic": "plain", "partition": 0}
    commit = {"op": "committed" if is_committed else "commit-unknown", "offset": end, "asked_s": at_s + 2, **here}
    return [
        {"op": "assigned", "offset": None, "at_s": at_s, **here},
        polled(reader, PLAIN, *visible(PLAIN_LOG, first, end), at_s + 1),
        {**commit, "at_s": at_s + 3} if is_committed else commit,
    ]


def replicas_of(log: FinalLog, keys: Mapping[int, str] = {}) -> dict[int, ReplicaLog]:
    batches = [StoredBatch(offset, offset, bytes([offset])) for offset in range(log.high_watermark)]
    last_values = {key: (offset, log.values[offset]) for offset, key in keys.items()}
    return {
        node: ReplicaLog(
            start_offset=0, batches=batches[1:] if node == 1 and keys else batches, last_values=last_values
        )
        for node in NODES
    }


def evidence(events: list[dict[str, Any]] | None = None) -> Evidence:
    history = ReplicaHistory()
    history.add(WRITES)
    if events is None:
        events = [
            *WITHOUT_SKIP,
            *member("member-1", 0, 4, 10.0, is_committed=True),
            *member("member-2", 4, 7, 20.0, is_committed=False),
            *member("member-1", 4, 8, 30.0, is_committed=True),
        ]
    history.add(events)
    return Evidence(
        history=history,
        logs={PLAIN: PLAIN_LOG, COMPACTED: COMPACTED_LOG, TRANSACTIONAL: TRANSACTIONAL_LOG},
        replicas={
            PLAIN: replicas_of(PLAIN_LOG),
            COMPACTED: replicas_of(COMPACTED_LOG, COMPACTED_LOG.keys),
            TRANSACTIONAL: replicas_of(TRANSACTIONAL_LOG),
        },
        compacted=frozenset({"compacted"}),
        transactional=frozenset({"transactional"}),
        groups=GROUP,
        key_of=lambda value: str(int(value.partition(":")[2]) % 3),
    )


def kinds(faults: list[str]) -> set[str]:
    return {fault.partition(":")[0] for fault in faults}


def test_a_history_without_an_anomaly_is_passed() -> None:
    assert broken_promises(evidence()) == []


@pytest.mark.parametrize("anomaly", PLANTS)
def test_a_planted_anomaly_is_named(anomaly: str) -> None:
    kind, plant = PLANTS[anomaly]
    assert kind in kinds(broken_promises(plant(evidence())))


@pytest.mark.parametrize("anomaly", PLANTS)
def test_a_planted_anomaly_is_named_though_the_outcome_of_an_abort_is_unknown(anomaly: str) -> None:
    kind, plant = PLANTS[anomaly]
    unknown = evidence()
    unknown.history.outcomes["t", 2] = "unknown"
    assert broken_promises(unknown) == []
    assert kind in kinds(broken_promises(plant(unknown)))


def test_every_kind_has_a_planted_anomaly() -> None:
    assert {kind for kind, _ in PLANTS.values()} == set(KINDS)


def test_a_gap_where_records_were_replaced_is_no_skip_and_one_before_a_kept_record_is() -> None:
    reads = [event for event in reading_alone("alone") if event["topic"] == "compacted"]
    faults = broken_promises(evidence([*reads, *WITHOUT_SKIP[1:3]]))
    assert [fault for fault in faults if fault.startswith("skipped")] == [
        "skipped: alone of compacted-0: 1 x from 2 to 4"
    ]
    first = reads[1]
    kept = {**first, "offsets": [3, 4], "values": ["c:3", "c:4"]}
    assert "skipped" not in kinds(broken_promises(evidence([reads[0], kept, *reads[2:]])))


def test_a_member_may_read_again_after_a_commit_of_unknown_outcome() -> None:
    events = [
        *WITHOUT_SKIP,
        *member("member-1", 0, 4, 10.0, is_committed=True),
        *member("member-2", 4, 6, 20.0, is_committed=False),
        *member("member-1", 6, 8, 30.0, is_committed=True),
    ]
    assert broken_promises(evidence(events)) == []


def test_a_member_may_begin_where_compaction_has_removed_all_records_since() -> None:
    here = {"reader": "member-1", "topic": "compacted", "partition": 0}
    events = [
        *WITHOUT_SKIP,
        *member("member-1", 0, 8, 10.0, is_committed=True),
        {"op": "assigned", "offset": None, "at_s": 0.0, **here},
        polled("member-1", COMPACTED, [0, 1, 2], ["c:0", "c:1", "c:2"], 1.0),
        polled("member-1", COMPACTED, [3, 4, 5], ["c:3", "c:4", "c:5"], 2.0),
    ]
    assert broken_promises(evidence(events)) == []


def test_a_member_that_begins_behind_every_commit_has_skipped_records() -> None:
    events = [
        *WITHOUT_SKIP,
        *member("member-1", 0, 4, 10.0, is_committed=True),
        *member("member-2", 6, 8, 20.0, is_committed=True),
    ]
    assert kinds(broken_promises(evidence(events))) == {"skipped"}


def test_batches_outside_of_both_logs_are_not_compared() -> None:
    whole = evidence()
    common = whole.replicas[PLAIN][1].batches[4:]
    shorter = ReplicaLog(start_offset=3, batches=[StoredBatch(2, 3, b"\x03other"), *common])
    longer = ReplicaLog(start_offset=4, batches=[*common, StoredBatch(8, 9, b"above")])
    replicas = {**whole.replicas, PLAIN: {1: shorter, 2: longer}}
    assert broken_promises(Evidence(**{**vars_of(whole), "replicas": replicas})) == []


def vars_of(whole: Evidence) -> dict[str, Any]:
    names = ("history", "logs", "replicas", "compacted", "transactional", "groups", "key_of")
    return {name: getattr(whole, name) for name in names}
