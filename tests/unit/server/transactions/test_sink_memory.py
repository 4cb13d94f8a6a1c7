"""Leases of runs: a run lapses when it gives no sign for its time, and not because its coordinator slept."""

import pytest

from tailrace.server.transactions import sink_memory
from tailrace.server.transactions.sink_memory import LONGEST_LEASE_MS, LONGEST_STEP_MS, SinkLeases, SinkRun

RUN, OTHER = SinkRun("copy", "r1"), SinkRun("copy", "r2")
LOOK_MS = 10_000


def looks_until_lapsed(leases: SinkLeases, now_ms: int) -> int:
    began_ms = now_ms
    while not leases.lapsed(now_ms):
        now_ms += LOOK_MS
    return now_ms - began_ms


def test_a_run_lapses_some_time_behind_its_lease_and_once() -> None:
    leases = SinkLeases(0)
    leases.renewed(RUN, 60_000)
    assert 60_000 < looks_until_lapsed(leases, 0) <= 60_000 + LONGEST_STEP_MS + LOOK_MS
    assert len(leases) == 0


def test_a_sign_begins_the_time_anew() -> None:
    leases, now_ms = SinkLeases(0), 0
    leases.renewed(OTHER, 60_000)
    for _ in range(20):
        leases.renewed(RUN, 60_000)
        now_ms += LOOK_MS
        assert RUN not in leases.lapsed(now_ms)
    assert len(leases) == 1


def test_a_coordinator_that_slept_takes_no_silence_for_it() -> None:
    leases = SinkLeases(0)
    leases.renewed(RUN, 60_000)
    assert leases.lapsed(3_600_000) == []


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_memory, "MOST_RUNS", 1)
    leases = SinkLeases(0)
    leases.renewed(RUN, 2**31 - 1)
    leases.renewed(OTHER, 60_000)
    assert len(leases) == 1
    assert looks_until_lapsed(leases, 0) <= LONGEST_LEASE_MS + LONGEST_STEP_MS + LOOK_MS
