"""The lines of members that share by key measure nothing if a key is out of order."""

import json
from pathlib import Path

import pytest

from benchmarks.loads.slot_member import Call, Ledger, SlotChange, Writer


def call(key: str, number: int, began: float, ended: float, member: str = "a") -> Call:
    return Call(member, key, number, 3, 0.0, began, ended)


def fault_of(*calls: Call) -> str | None:
    return Ledger(calls, (), ()).fault_of_order()


def test_calls_of_a_key_one_after_the_other_are_in_order() -> None:
    assert fault_of(call("x", 0, 1, 2), call("y", 0, 1, 9), call("x", 1, 2, 3, member="b")) is None


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (call("x", 2, 3, 4), "where 1 is due"),
        (call("x", 0, 3, 4), "where 1 is due"),
        (call("x", 1, 1.5, 4, member="b"), "before"),
    ],
    ids=["left out", "repeated", "at once"],
)
def test_a_call_out_of_the_order_of_its_key_is_a_fault(second: Call, words: str) -> None:
    fault = fault_of(call("x", 0, 1, 2), second)
    assert fault is not None
    assert words in fault


def test_a_call_after_a_cancelled_call_is_a_fault() -> None:
    assert fault_of(call("x", 0, 1, 0), call("x", 1, 3, 4)) is not None


def test_ledgers_of_members_are_read_together(tmp_path: Path) -> None:
    for name, slots in (("b", [7]), ("a", [1, 2])):
        writer = Writer(tmp_path / f"{name}.ledger")
        writer.write("call", "x", 0, 7, 0.5, 1.0 if name == "a" else 0.75, 2.0)
        writer.write("target", 4.0, [])
        writer.write("own", 3.0, slots)
    ledger = Ledger.read(tmp_path)
    assert [found.member for found in ledger.calls] == ["b", "a"]
    assert sorted(ledger.owned) == [
        SlotChange("a", 3.0, frozenset({1, 2})),
        SlotChange("b", 3.0, frozenset({7})),
    ]
    assert (ledger.slots_of("a"), ledger.slots_of("c")) == ({1, 2}, frozenset())
    assert json.loads((tmp_path / "a.ledger").read_text().splitlines()[1]) == ["target", 4.0, []]
