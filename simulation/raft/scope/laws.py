"""The laws of a small quorum: of the state of all nodes, and of what has happened, whatever the order was."""

from collections.abc import Sequence
from typing import NamedTuple

from simulation.raft.log import EpochRecord
from tailrace.raft.effects import Voters
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.voters import VoterSet


class View(NamedTuple):
    """The state of one node that the laws look at."""

    is_leader: bool
    epoch: int
    high_watermark: int
    start: int
    entries: tuple[EpochRecord, ...]
    on_disk: tuple[int, tuple[EpochRecord, ...]]
    snapshots: tuple[tuple[SnapshotId, VoterSet | None], ...]
    """By ascending id, with the voters that they state."""
    voters: VoterSet


class PastEvents(NamedTuple):
    """Past events, which must stay true."""

    leaders: tuple[tuple[int, int], ...] = ()
    """(epoch, node id)"""
    committed: tuple[EpochRecord, ...] = ()
    ends: tuple[tuple[int, int], ...] = ()
    """(epoch, end offset): the end of the records that the leader of the epoch has committed, if no earlier leader had
    committed so much."""

    def end_before(self, epoch: int) -> int:
        """The high watermark of earlier epochs: a leader of this epoch must have everything below."""
        return max((end for earlier, end in self.ends if earlier < epoch), default=0)

    def voters_below(self, end_offset: int) -> VoterSet | None:
        """The last set of voters in the committed records below this offset."""
        stated = [entry.value.voters for entry in self.committed[:end_offset] if isinstance(entry.value, Voters)]
        return stated[-1] if stated else None


def learn(known: PastEvents, views: Sequence[View], index: int, before: View | None, led_to: int) -> PastEvents:
    """The past events after one node has changed. Raises AssertionError if that breaks a law.

    `before`: the node before the change, if it did not crash; `led_to`: the high watermark of the node as a leader,
    even if it does not lead any more.
    """
    view = views[index]
    if before is not None:
        assert view.high_watermark >= before.high_watermark, "monotonic high watermark"
    leaders = dict(known.leaders)
    if view.is_leader:  # before the logs: two leaders of an epoch write different ones
        assert leaders.get(view.epoch, index + 1) == index + 1, f"one leader per epoch: {view.epoch}"
    _check_logs(views, index)
    if view.is_leader and view.epoch not in leaders:
        _check_completeness(known, view)
        known = known._replace(leaders=tuple(sorted((*known.leaders, (view.epoch, index + 1)))))
    if led_to > len(known.committed):
        known = _commit(known, views, view)
    own = _between(view.start, view.entries, view.start, view.high_watermark)
    assert view.high_watermark <= len(known.committed), "only a leader commits"
    expected = known.committed[view.start : view.high_watermark]
    assert own == expected[: len(own)], "committed is never lost or changed"
    _check_snapshots(known, view)
    _check_voters(view)
    return known


def _between(start: int, entries: tuple[EpochRecord, ...], first: int, end: int) -> tuple[EpochRecord, ...]:
    return entries[max(first - start, 0) : max(end - start, 0)]


def _check_logs(views: Sequence[View], index: int) -> None:
    view = views[index]
    for other in views:
        start = max(view.start, other.start)
        mine, theirs = view.entries[start - view.start :], other.entries[start - other.start :]
        same = [record.epoch == another.epoch for record, another in zip(mine, theirs, strict=False)]
        if True in same:
            length = len(same) - same[::-1].index(True)
            assert mine[:length] == theirs[:length], f"log matching: {mine} and {theirs}"


def _check_completeness(known: PastEvents, view: View) -> None:
    """Check that a leader has all committed records of earlier epochs, also a leader whose epoch began long ago. A
    leader that is elected late need not know of later epochs."""
    end = known.end_before(view.epoch)
    own = _between(view.start, view.entries, view.start, end)
    assert view.start + len(view.entries) >= end, "leader completeness"
    assert own == known.committed[view.start : end], "leader completeness"


def _commit(known: PastEvents, views: Sequence[View], view: View) -> PastEvents:
    end = view.high_watermark
    added = _between(view.start, view.entries, len(known.committed), end)
    assert added[-1].epoch == view.epoch, "commit by own epoch"
    voting = [views[key.id - 1] for key in view.voters.keys]
    durable = sum(voter.on_disk[0] >= end or _between(*voter.on_disk, end - 1, end) == added[-1:] for voter in voting)
    assert durable >= len(voting) // 2 + 1, "committed is on a majority's disks"
    ends = tuple(sorted({**dict(known.ends), view.epoch: end}.items()))
    known = known._replace(committed=known.committed + added, ends=ends)
    for other in views:
        if other.is_leader and other.epoch > view.epoch:
            _check_completeness(known, other)
    return known


def _check_snapshots(known: PastEvents, view: View) -> None:
    if not view.snapshots:
        assert view.start == 0, "a log that starts late has a snapshot"
        return
    assert view.start <= view.snapshots[0][0].end_offset, "log start never above the oldest snapshot"
    for snapshot_id, voters in view.snapshots:
        assert snapshot_id.end_offset <= len(known.committed), "snapshots of committed records only"
        last = known.committed[snapshot_id.end_offset - 1]
        assert snapshot_id.epoch == last.epoch, "a snapshot's epoch is its last record's"
        assert voters == known.voters_below(snapshot_id.end_offset), "a snapshot states the voters of its records"


def _check_voters(view: View) -> None:
    stated = [entry.value.voters for entry in view.entries if isinstance(entry.value, Voters)]
    if view.snapshots and not stated:
        stated = [voters for _, voters in view.snapshots[-1:] if voters is not None]
    if stated:
        assert view.voters == stated[-1], "the voters are those of the log"
