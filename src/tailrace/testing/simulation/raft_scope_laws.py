"""What must be true of every world of the exhaustive search, whichever way it came about."""

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.raft.rpc import SnapshotId
from tailrace.raft.voters import VoterSet
from tailrace.testing.simulation.raft_log import Entry


class View(NamedTuple):
    """What the laws look at, of one node."""

    is_leader: bool
    epoch: int
    high_watermark: int
    start: int
    entries: tuple[Entry, ...]
    on_disk: tuple[int, tuple[Entry, ...]]
    snapshots: tuple[SnapshotId, ...]
    voters: VoterSet


class Known(NamedTuple):
    """What has been seen to happen, which must stay true."""

    leaders: tuple[tuple[int, int], ...] = ()
    """(epoch, node id)"""
    committed: tuple[Entry, ...] = ()


def learn(known: Known, views: Sequence[View], index: int, before: View | None, led_to: int) -> Known:
    """What is known after one node has changed. Raises AssertionError if that breaks a law.

    `before`: that node before, if it has lived on; `led_to`: how far it has committed as a leader, which it may be no
    more.
    """
    view = views[index]
    _check_logs(views, index)
    if before is not None and before.epoch == view.epoch:
        assert view.high_watermark >= before.high_watermark, "monotonic high watermark"
    if view.is_leader:
        leaders = dict(known.leaders)
        assert leaders.get(view.epoch, index + 1) == index + 1, f"one leader per epoch: {view.epoch}"
        if view.epoch not in leaders:
            _check_completeness(known, view)
            known = known._replace(leaders=(*known.leaders, (view.epoch, index + 1)))
    if led_to > len(known.committed):
        known = _commit(known, views, view)
    own = _between(view.start, view.entries, view.start, view.high_watermark)
    assert view.high_watermark <= len(known.committed), "only a leader commits"
    expected = known.committed[view.start : view.high_watermark]
    assert own == expected[: len(own)], "committed is never lost or changed"
    if view.snapshots:
        assert view.start <= view.snapshots[0].end_offset, "log start never above the oldest snapshot"
    else:
        assert view.start == 0, "a log that starts late has a snapshot"
    return known


def _between(start: int, entries: tuple[Entry, ...], first: int, end: int) -> tuple[Entry, ...]:
    return entries[max(first - start, 0) : max(end - start, 0)]


def _check_logs(views: Sequence[View], index: int) -> None:
    view = views[index]
    for other in views:
        start = max(view.start, other.start)
        mine, theirs = view.entries[start - view.start :], other.entries[start - other.start :]
        same = [one.epoch == another.epoch for one, another in zip(mine, theirs, strict=False)]
        if True in same:
            length = len(same) - same[::-1].index(True)
            assert mine[:length] == theirs[:length], f"log matching: {mine} and {theirs}"


def _check_completeness(known: Known, view: View) -> None:
    end = len(known.committed)
    assert view.start <= end <= view.start + len(view.entries), "leader completeness"
    assert _between(view.start, view.entries, view.start, end) == known.committed[view.start :], "leader completeness"


def _commit(known: Known, views: Sequence[View], view: View) -> Known:
    end = view.high_watermark
    added = _between(view.start, view.entries, len(known.committed), end)
    assert added[-1].epoch == view.epoch, "commit by own epoch"
    voting = [views[key.id - 1] for key in view.voters.keys]
    durable = sum(one.on_disk[0] >= end or _between(*one.on_disk, end - 1, end) == added[-1:] for one in voting)
    assert durable >= view.voters.majority, "committed is on a majority's disks"
    known = known._replace(committed=known.committed + added)
    for other in views:
        if other.is_leader and other.epoch > view.epoch:
            _check_completeness(known, other)
    return known
