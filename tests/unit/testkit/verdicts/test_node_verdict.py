"""The judge is judged: each history here has one fault, which must be named, and a whole history has no fault."""

from collections.abc import Mapping
from typing import Any

import pytest

from testkit.verdicts.node_verdict import AtTheEnd, node_faults
from testkit.verdicts.replica_history import ReplicaHistory

T = {"topic": "t", "partition": 0}
C = {"topic": "c", "partition": 0}


def key_of(value: str) -> str:
    return str(int(value.partition(":")[2]) % 20)


def read(offset: int, value: str, *, topic: str = "t", key: str | None = None) -> dict[str, Any]:
    return polled("checker", [offset], value, topic=topic, keys=[key])


def polled(reader: str, offsets: list[int], *values: str, topic: str = "t", **keys: Any) -> dict[str, Any]:
    here = {"reader": reader, "topic": topic, "partition": 0, "at_s": 0.0}
    return {"op": "polled", "offsets": offsets, "values": list(values), **here, **keys}


WHOLE: list[dict[str, Any]] = [
    *({"op": "acked", "producer": "i0", "records": [(n, n)], **T} for n in range(4)),
    {"op": "unknown", "producer": "p0", "number": 0},
    {"op": "sent", "producer": "i0", "count": 4},
    {"op": "sent", "producer": "p0", "count": 1},
    *({"op": "acked", "producer": "c0", "records": [(n, n)], **C} for n in range(21)),
    {"op": "sent", "producer": "c0", "count": 21},
    {"op": "assigned", "reader": "checker", "offset": 0, "at_s": 0.0, **T},
    {"op": "assigned", "reader": "checker", "offset": 0, "at_s": 0.0, **C},
    *(read(n, f"i0:{n}") for n in range(4)),
    *(read(n, f"c0:{n}", topic="c", key=str(n % 20)) for n in range(1, 21)),
    {"op": "assigned", "reader": "m0", "offset": None, "at_s": 0.0, **T},
    polled("m0", [0, 1], "i0:0", "i0:1"),
    {"op": "committed", "reader": "m0", "offset": 2, "asked_s": 0.0, "at_s": 0.0, **T},
    polled("m0", [2], "i0:2"),
    {"op": "commit-unknown", "reader": "m0", "offset": 3, "asked_s": 0.0, **T},
    {"op": "assigned", "reader": "m1", "offset": None, "at_s": 1.0, **T},
    {**polled("m1", [2, 3], "i0:2", "i0:3"), "at_s": 1.0},
    {"op": "create", "topic": "a", "count": 2},
    {"op": "enlarge", "topic": "a", "count": 4},
    {"op": "create", "topic": "b", "count": 2},
    {"op": "delete", "topic": "b"},
    {"op": "create", "topic": "d", "count": 2},
    {"op": "delete-unknown", "topic": "d"},
    {"op": "create-unknown", "topic": "e", "count": 2},
    {"op": "set", "value": 7},
    {"op": "set-unknown", "value": 8},
]
END = AtTheEnd(topics={"a": 4}, committed={0: 3}, setting=8)


def judge(events: list[dict[str, Any]], end: AtTheEnd = END) -> list[str]:
    history = ReplicaHistory()
    history.add(events)
    return node_faults(history, end, checker="checker", compacted="c", careful="ico", key_of=key_of)


def without(**facts: object) -> list[dict[str, Any]]:
    """The whole history without the events that have these facts."""
    kept = [event for event in WHOLE if not is_like(event, facts)]
    assert len(kept) < len(WHOLE), "there is such an event"
    return kept


def changed(facts: Mapping[str, object], **changes: object) -> list[dict[str, Any]]:
    """The whole history with other facts in the events that have these facts."""
    assert any(is_like(event, facts) for event in WHOLE), "there is such an event"
    return [{**event, **changes} if is_like(event, facts) else event for event in WHOLE]


def is_like(event: Mapping[str, object], facts: Mapping[str, object]) -> bool:
    return all(event.get(name) == value for name, value in facts.items())


def test_a_history_without_a_fault_is_passed() -> None:
    assert judge(WHOLE) == []


def test_a_write_with_an_unknown_outcome_may_have_happened() -> None:
    assert judge([*WHOLE, read(4, "p0:0")]) == []
    assert judge(WHOLE, AtTheEnd(topics={"a": 4, "d": 2, "e": 2}, committed={0: 2}, setting=7)) == []


def test_a_partition_without_an_acknowledged_commit_needs_no_offset_at_the_end() -> None:
    """The members of the partition may have read it all the same: the node dies between their answer and their
    commit."""
    events = without(op="committed")
    for there in ({}, {0: 2}, {0: 3}):
        assert judge(events, AtTheEnd(topics={"a": 4}, committed=there, setting=8)) == []
    (fault,) = judge(events, AtTheEnd(topics={"a": 4}, committed={0: 4}, setting=8))
    assert fault == "group: None was committed for 0, 4 is there", "nor has any member asked for it"
    (fault,) = judge(WHOLE, AtTheEnd(topics={"a": 4}, committed={0: 3, 1: 1}, setting=8))
    assert fault == "group: None was committed for 1, 1 is there"


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("lost", without(values=["i0:2"], reader="checker")),
        ("lost", without(op="polled", reader="checker", topic="t")),
        ("moved", changed({"op": "acked", "records": [(1, 1)], "topic": "t"}, records=[(1, 9)])),
        ("lost", changed({"op": "acked", "records": [(1, 1)], "topic": "t"}, partition=1)),
        ("duplicated", [*WHOLE, read(4, "i0:1")]),
        ("duplicated", [*WHOLE, read(21, "i0:1", topic="c", key="1")]),
        ("went back", [*without(values=["i0:0"], reader="checker"), read(0, "i0:0")]),
        ("reordered", [*without(values=["i0:0"], reader="checker"), read(9, "i0:0")]),
        ("invented", [*WHOLE, read(4, "i0:4")]),
        ("invented", [*WHOLE, read(4, "x:0")]),
        ("given up", [*WHOLE, {"op": "unknown", "producer": "i0", "number": 3}]),
        ("given up", changed({"op": "sent", "producer": "i0"}, count=5)),
        ("given up", without(op="acked", records=[(3, 3)], topic="t")),
        ("lost", without(values=["c0:20"])),
        ("lost", without(values=["c0:7"])),
        ("lost", changed({"values": ["c0:7"]}, keys=["8"])),
        ("skipped", changed({"op": "polled", "reader": "m1"}, offsets=[4], values=["i0:4"])),
        ("uncommitted shown", changed({"op": "polled", "reader": "m1"}, offsets=[4], values=["i0:4"])),
        ("went back", changed({"op": "polled", "reader": "m1"}, offsets=[1], values=["i0:1"])),
        ("skipped", changed({"offsets": [0, 1]}, offsets=[0, 2], values=["i0:0", "i0:2"])),
        ("uncommitted shown", changed({"op": "polled", "reader": "m1"}, offsets=[2], values=["i0:3"])),
        ("went back", changed({"op": "committed"}, offset=4)),
        ("group", changed({"op": "committed"}, offset=4)),
    ],
)
def test_a_fault_is_named(kind: str, events: list[dict[str, Any]]) -> None:
    assert any(fault.startswith(kind) for fault in judge(events))


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("group", AtTheEnd(topics={"a": 4}, committed={0: 1}, setting=8)),
        ("group", AtTheEnd(topics={"a": 4}, committed={}, setting=8)),
        ("group", AtTheEnd(topics={"a": 4}, committed={0: 4}, setting=8)),
        ("admin", AtTheEnd(topics={}, committed={0: 3}, setting=8)),
        ("admin", AtTheEnd(topics={"a": 2}, committed={0: 3}, setting=8)),
        ("admin", AtTheEnd(topics={"a": 4, "b": 2}, committed={0: 3}, setting=8)),
        ("admin", AtTheEnd(topics={"a": 4}, committed={0: 3}, setting=6)),
    ],
)
def test_a_fault_at_the_end_is_named(kind: str, end: AtTheEnd) -> None:
    (fault,) = judge(WHOLE, end)
    assert fault.startswith(kind)
