"""Processes of Spark's, when it has closed their sockets: the process of a stream's reader, the daemon's processes."""

import sys
import traceback
from contextlib import suppress
from types import TracebackType

import pytest

from tailrace.spark.reading.stream_reader import say_nothing_of_a_closed_socket
from tailrace.spark.worker import end_quietly_without_socket, unless_socket_is_closed

Shown = list[BaseException]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The exceptions of which the process shows a traceback at its end."""
    shown: Shown = []

    def hook(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
        shown.append(fault)

    monkeypatch.setattr(sys, "excepthook", hook)
    return shown


def _end(ended_by: BaseException | None, then: BaseException) -> None:
    """The runner ends by the first exception, calls `stop` of the reader, and cannot report to the socket."""
    with suppress(BaseException):
        try:
            if ended_by is not None:
                raise ended_by
        finally:
            say_nothing_of_a_closed_socket()
    sys.excepthook(type(then), then, None)


@pytest.mark.parametrize("ended_by", [EOFError(), BrokenPipeError(), ConnectionResetError()])
def test_a_runner_whose_socket_spark_has_closed_shows_no_traceback(shown: Shown, ended_by: BaseException) -> None:
    _end(ended_by, BrokenPipeError())
    assert shown == []


def test_another_fault_of_such_a_runner_is_shown(shown: Shown) -> None:
    fault = ValueError("a defect")
    _end(EOFError(), fault)
    assert shown == [fault]


@pytest.mark.parametrize("ended_by", [None, ValueError("a defect"), KeyboardInterrupt()])
def test_a_runner_that_ends_otherwise_shows_all(shown: Shown, ended_by: BaseException | None) -> None:
    fault = BrokenPipeError()
    _end(ended_by, fault)
    assert shown == [fault]


@pytest.mark.parametrize(
    ("fault", "shown"),
    [(BrokenPipeError(), 0), (ConnectionResetError(), 0), (ValueError("a defect"), 1), (OSError(), 1)],
)
def test_a_process_of_the_daemon_whose_socket_spark_has_closed_shows_no_traceback(fault: Exception, shown: int) -> None:
    printed: list[dict[str, object]] = []

    def print_exc(**options: object) -> None:
        printed.append(options)

    try:
        raise fault
    except type(fault):
        unless_socket_is_closed(print_exc)(limit=3)
    assert printed == [{"limit": 3}] * shown


def test_the_tracebacks_of_any_other_process_are_left_alone() -> None:
    before = traceback.print_exc
    end_quietly_without_socket()
    assert traceback.print_exc is before
