"""Several callbacks: each is called, whatever becomes of the others."""

import pytest

from tailrace.server.callbacks import call_each, call_safely


def test_each_is_called_and_the_first_fault_raised_when_all_have_been() -> None:
    quotients: list[int] = []
    with pytest.raises(ZeroDivisionError):
        call_each(lambda by: quotients.append(12 // by), (1, 0, 2))
    assert quotients == [12, 6]


def test_faults_behind_the_first_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="first"):
        call_each(fail, ("first", "second"))
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["second"]
    assert "event=callback-failed" in caplog.text


def test_a_broken_invariant_ends_it_at_once() -> None:
    checked: list[int] = []

    def check(number: int) -> None:
        assert number
        checked.append(number)

    with pytest.raises(AssertionError):
        call_each(check, (1, 0, 2))
    assert checked == [1]
    with pytest.raises(AssertionError):
        call_safely("check-failed", check, 0)


def test_a_safe_call_logs_its_fault(caplog: pytest.LogCaptureFixture) -> None:
    quotients: list[int] = []

    def divide(by: int) -> None:
        quotients.append(12 // by)

    call_safely("division-failed", divide, 0)
    call_safely("division-failed", divide, by=2)
    assert quotients == [6]
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("event=division-failed callback=<function ")
