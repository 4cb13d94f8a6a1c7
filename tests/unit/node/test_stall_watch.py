"""Turns that took too long are counted, and named in the log at a limited rate, without what they worked on."""

from functools import partial

import pytest

from tailrace.node.stall_watch import StallWatch


def test_stalls_are_counted_all_and_logged_a_few(caplog: pytest.LogCaptureFixture) -> None:
    stalls = StallWatch(monotonic_ms=lambda: 0)
    work = partial(print, "what a client sent")
    for _ in range(50):
        stalls.note(work, 0.06)
    stalls.note(test_stalls_are_counted_all_and_logged_a_few, 0.2)  # type: ignore[arg-type]
    assert stalls.count == 51
    assert stalls.seconds == pytest.approx(3.2)
    assert stalls.longest_seconds == 0.2
    assert [record.getMessage() for record in caplog.records if record.name.startswith("tailrace")] == [
        "event=event-loop-stall milliseconds=60 work=builtins.print"
    ] * 5
