"""Stretches without records that readers of views are led over."""

import pytest

from tailrace.server.fetch import view_reads
from tailrace.server.fetch.view_reads import MOST_STRETCHES, ScannedOffsets


def test_a_stretch_is_remembered_by_its_start() -> None:
    scanned = ScannedOffsets()
    scanned.keep("a", 10, 50)
    assert scanned.after("a", 10) == 50
    assert [scanned.after("a", 11), scanned.after("b", 10)] == [11, 10]


def test_a_stretch_only_grows() -> None:
    scanned = ScannedOffsets()
    scanned.keep("a", 10, 50)
    scanned.keep("a", 10, 20)
    scanned.keep("a", 7, 7)
    assert [scanned.after("a", 10), scanned.after("a", 7)] == [50, 7]
    assert len(scanned) == 1


def test_the_stretch_that_was_used_least_recently_is_forgotten() -> None:
    scanned = ScannedOffsets()
    for start in range(MOST_STRETCHES):
        scanned.keep("a", start, 100)
    scanned.after("a", 0)
    scanned.keep("a", 50, 100)
    assert [scanned.after("a", start) for start in (0, 1, 2, 50)] == [100, 1, 100, 100]


def test_the_view_partition_that_was_used_least_recently_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_reads, "MOST_VIEW_PARTITIONS", 2)
    scanned = ScannedOffsets()
    for where in ("a", "b"):
        scanned.keep(where, 0, 9)
    scanned.after("a", 0)
    scanned.keep("c", 0, 9)
    assert [scanned.after(where, 0) for where in ("a", "b", "c")] == [9, 0, 9]
    assert len(scanned) == 2
