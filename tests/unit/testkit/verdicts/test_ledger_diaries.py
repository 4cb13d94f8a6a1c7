"""The diaries of the ledger's programs: outcomes of transactions, and since when an error's cause may have been."""

from typing import Any

from testkit.verdicts.client_errors import HANGS
from testkit.verdicts.ledger import ABORTED, COMMITTED, UNKNOWN, Attempt
from testkit.verdicts.ledger_diaries import DiaryReader


def read(*lines: dict[str, Any]) -> DiaryReader:
    reader = DiaryReader("a", 2)
    for line in lines:
        reader.take(line)
    return reader


def began(number: int, at_ns: int) -> dict[str, Any]:
    return {"op": "began", "at": at_ns, "name": f"a-2-{number}", "number": number, "kind": "transfer"}


def commits(number: int, at_ns: int) -> dict[str, Any]:
    return {"op": "commits", "at": at_ns, "name": f"a-2-{number}"}


def ended(number: int, at_ns: int, outcome: str) -> dict[str, Any]:
    return {"op": "ended", "at": at_ns, "name": f"a-2-{number}", "outcome": outcome}


def error(at_ns: int, *, is_fatal: bool = False) -> dict[str, Any]:
    return {"op": "error", "at": at_ns, "fatal": is_fatal, "why": "late"}


def test_a_transaction_without_an_end_is_of_unknown_outcome() -> None:
    reader = read(
        began(1, 10), commits(1, 15), ended(1, 18, COMMITTED), began(2, 20), ended(2, 25, ABORTED), began(3, 30)
    )
    assert list(reader.attempts()) == [
        Attempt("a-2-1", "a", 2, 1, 10, 15, COMMITTED),
        Attempt("a-2-2", "a", 2, 2, 20, None, ABORTED),
        Attempt("a-2-3", "a", 2, 3, 30, None, UNKNOWN),
    ]


def test_an_error_has_the_begin_of_its_transaction_or_life() -> None:
    reader = read({"op": "alive", "at": 5}, error(7), began(1, 10), ended(1, 12, COMMITTED), began(2, 20), error(22))
    assert [(error.began_ns, error.at_ns) for error in reader.errors] == [(5, 7), (20, 22)]


def test_an_error_behind_a_failed_transaction_has_the_begin_of_that() -> None:
    failed = (began(1, 10), error(12), ended(1, 13, ABORTED))
    reader = read(*failed, began(2, 20), error(22, is_fatal=True))
    assert [error.began_ns for error in reader.errors] == [10, 10]
    reader = read(*failed, began(2, 20), ended(2, 25, COMMITTED), began(3, 30), error(32))
    assert [error.began_ns for error in reader.errors] == [10, 30]


def test_the_end_of_a_process_is_an_error_unless_it_has_noted_one() -> None:
    silent = read({"op": "alive", "at": 5}, began(1, 10))
    silent.end(40, HANGS)
    assert [(error.is_fatal, error.at_ns, error.reason) for error in silent.errors] == [(True, 40, HANGS)]
    open_ = read(began(1, 10), error(12, is_fatal=True))
    open_.end(13, "it has printed this")
    assert [error.reason for error in open_.errors] == ["late"]
