"""The event loop of a node: turns that take too long."""

from functools import partial

import pytest

from tailrace.node.event_loop import StallWatch


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("tailrace")]


def test_stalls_are_all_counted_and_logged_once_a_minute_per_cause(caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    stalls = StallWatch(monotonic_ms=lambda: now[0])
    work = partial(print, "what a client sent")
    stalls.record(work, 0.06)
    stalls.record(len, 0.2)  # type: ignore[arg-type]  # another cause
    for _ in range(48):
        stalls.record(work, 0.06)
    stalls.record(work, 0.3)
    now[0] = 60_000
    stalls.record(work, 0.05)
    assert stalls.count == 52
    assert stalls.seconds == pytest.approx(3.49)
    assert stalls.longest_seconds == 0.3
    assert lines(caplog) == [
        "event=event-loop-stall milliseconds=60 work=builtins.print stalls=1 longest=60",
        "event=event-loop-stall milliseconds=200 work=builtins.len stalls=1 longest=200",
        "event=event-loop-stall milliseconds=50 work=builtins.print stalls=50 longest=300",
    ]
