"""The judge is judged: each history here has one fault, which must be named, and a whole history has no fault."""

from collections.abc import Mapping
from typing import Any

import pytest

from testkit.verdicts.verdict import AtTheEnd, History, broken_promises

WHOLE: list[dict[str, Any]] = [
    *({"op": "acked", "producer": "i0", "number": n, "topic": "t", "partition": 0, "offset": n} for n in range(4)),
    {"op": "unknown", "producer": "p0", "number": 0},
    {"op": "sent", "producer": "i0", "count": 4, "unsent": 0},
    {"op": "sent", "producer": "p0", "count": 1, "unsent": 0},
    *(
        {"op": "acked", "producer": "c0", "number": n, "topic": "c", "partition": 0, "offset": n, "key": str(n % 20)}
        for n in range(21)
    ),
    {"op": "sent", "producer": "c0", "count": 21, "unsent": 0},
    *({"op": "read", "topic": "t", "partition": 0, "offset": n, "key": None, "value": f"i0:{n}"} for n in range(4)),
    *(
        {"op": "read", "topic": "c", "partition": 0, "offset": n, "key": str(n % 20), "value": f"c0:{n}"}
        for n in range(1, 21)
    ),
    {"op": "assigned", "member": "m0", "partition": 0},
    {"op": "polled", "member": "m0", "partition": 0, "records": [[0, "i0:0"], [1, "i0:1"]]},
    {"op": "committed", "partition": 0, "offset": 2},
    {"op": "polled", "member": "m0", "partition": 0, "records": [[2, "i0:2"]]},
    {"op": "commit-unknown", "partition": 0, "offset": 3},
    {"op": "assigned", "member": "m1", "partition": 0},
    {"op": "polled", "member": "m1", "partition": 0, "records": [[2, "i0:2"], [3, "i0:3"]]},
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
    history = History()
    history.add(events)
    return broken_promises(history, end, compacted="c", careful="ico")


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


def read(offset: int, value: str, *, topic: str = "t", key: str | None = None) -> dict[str, Any]:
    return {"op": "read", "topic": topic, "partition": 0, "offset": offset, "key": key, "value": value}


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
        ("lost", without(op="read", value="i0:2")),
        ("lost", without(op="read", topic="t")),
        ("moved", changed({"op": "acked", "producer": "i0", "number": 1}, offset=9)),
        ("moved", changed({"op": "acked", "producer": "i0", "number": 1}, partition=1)),
        ("doubled", [*WHOLE, read(4, "i0:1")]),
        ("out of order", [*without(op="read", value="i0:0"), read(0, "i0:0")]),
        ("out of order", [*without(op="read", value="i0:0"), read(9, "i0:0")]),
        ("invented", [*WHOLE, read(4, "i0:4")]),
        ("invented", [*WHOLE, read(4, "x:0")]),
        ("given up", [*WHOLE, {"op": "unknown", "producer": "i0", "number": 3}]),
        ("given up", changed({"op": "sent", "producer": "i0"}, unsent=1)),
        ("given up", without(op="acked", producer="i0", number=3)),
        ("old value", without(op="read", value="c0:20")),
        ("old value", without(op="read", value="c0:7")),
        ("group", changed({"op": "polled", "member": "m1"}, records=[[4, "i0:4"]])),
        ("group", changed({"op": "polled", "member": "m1"}, records=[[1, "i0:1"]])),
        ("group", changed({"op": "polled", "member": "m0"}, records=[[0, "i0:0"], [2, "i0:2"]])),
        ("group", changed({"op": "polled", "member": "m1"}, records=[[2, "i0:3"]])),
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
