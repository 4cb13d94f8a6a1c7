"""The progress of a group in one partition, committed record by record (KIP-X, individual commits). Pure.

In a group that splits a partition by key, the offsets of the readers are interleaved: intervals of offsets would need
an entry for each run of one reader's records. So the progress is a set of rectangles, of offsets by key hashes: "all
records with an offset in [a, b) and a hash in [p, q) are done". An interval of offsets is a rectangle with all hashes.
A reader in order needs one rectangle, and offsets without a record that is ever delivered are covered like other
offsets.

1. The stable offset is the offset below which everything is committed: the offset that Kafka calls committed.
2. The frontier of a hash is its first offset that is not committed. The stable offset is the lowest frontier.
3. Commits unite. Their order, repetition and division change nothing.
4. The state has one form: hashes are cut at all edges of rectangles, the runs of each strip are as long as can be, and
   neighbouring strips with equal runs are merged.
5. A partition of a view has the hashes of its slot alone: rules 1 and 2 are about these hashes, no strip has others.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tailrace.model.key_ranges import HASH_SPACE, WHOLE, KeyRange

MAX_RANGES_PER_COMMIT: Final = 1_024
"""The most ranges in a commit of one partition."""
_FEW: Final = 24
_FEW_STRIPS: Final = 256
"""The most rectangles, and the most strips that they touch together, for an addition rectangle by rectangle, which
reads only these strips."""
_UNBOUNDED: Final = 1 << 62


class Rectangle(NamedTuple):
    """Offsets and hashes of which all records are done. Inclusive at all ends, as on the wire."""

    first_offset: int
    last_offset: int
    first_hash: int = 0
    last_hash: int = HASH_SPACE - 1


class Run(NamedTuple):
    """The offsets from `start` up to, not including, `end`."""

    start: int
    end: int


class Strip(NamedTuple):
    """The hashes from `start` up to, not including, `end`, and their committed runs of offsets."""

    start: int
    end: int
    runs: tuple[Run, ...]
    """The runs in order; no two runs touch."""


class TooManyRectangles(Exception):
    """The progress would have far more rectangles than allowed, or would take as much work."""


class CommittedProgress:
    """Everything that is committed. Never changes: a commit returns a new object."""

    __slots__ = ("hashes", "rectangle_count", "stable_offset", "strips")

    def __init__(self, stable_offset: int, strips: tuple[Strip, ...] = (), hashes: KeyRange = WHOLE) -> None:
        """`strips` are in order, have runs, and are in the form of rule 4; no run begins below the stable offset.
        `hashes` are the hashes that the records of the partition may have.
        """
        self.hashes: Final = hashes
        self.stable_offset: Final = stable_offset
        self.strips: Final = strips
        self.rectangle_count: Final = sum(len(strip.runs) for strip in strips)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommittedProgress) and (self.stable_offset, self.strips, self.hashes) == (
            other.stable_offset,
            other.strips,
            other.hashes,
        )

    def __hash__(self) -> int:
        return hash((self.stable_offset, self.strips))

    def __repr__(self) -> str:
        return f"CommittedProgress({self.stable_offset}, {self.strips})"

    # Questions

    def rectangles(self) -> Iterator[Rectangle]:
        """The rectangles beyond the stable offset, by hash and then by offset."""
        for start, end, runs in self.strips:
            for run in runs:
                yield Rectangle(run.start, run.end - 1, start, end - 1)

    def is_committed(self, offset: int, key_hash: int) -> bool:
        """Whether the record with this offset and hash is done."""
        if offset < self.stable_offset:
            return True
        return any(start <= offset < end for start, end in self._runs_at(key_hash))

    def frontier(self, key_hash: int) -> int:
        """The first offset of this hash that is not committed."""
        return _frontier(self.stable_offset, self._runs_at(key_hash))

    def lowest_frontier(self, ranges: Iterable[KeyRange]) -> int:
        """The first offset that is not committed for any of these hashes: a reader of these hashes starts there.

        The stable offset if there are no ranges.
        """
        lowest = [
            _frontier(self.stable_offset, runs)
            for first, last in ranges
            for _, _, runs in _between(self.strips, first, last + 1)
        ]
        return min(lowest, default=self.stable_offset)

    def gaps(self) -> Iterator[KeyRange]:
        """The hashes that hold the stable offset back: for these hashes the stable offset is not committed."""
        reached = self.hashes.first
        for start, end, runs in self.strips:
            if runs[0].start <= self.stable_offset:
                if reached < start:
                    yield KeyRange(reached, start - 1)
                reached = end
        if reached <= self.hashes.last:
            yield KeyRange(reached, self.hashes.last)

    @property
    def ahead(self) -> int:
        """The approximate number of done records beyond the stable offset: offsets, weighted by the share of all hashes
        that are done."""
        area = sum((end - start) * sum(run.end - run.start for run in runs) for start, end, runs in self.strips)
        return -(-area // HASH_SPACE)

    @property
    def end_offset(self) -> int:
        """The offset behind the last offset with a committed record."""
        return max((strip.runs[-1].end for strip in self.strips), default=self.stable_offset)

    def _runs_at(self, key_hash: int) -> tuple[Run, ...]:
        place = bisect_right(self.strips, key_hash, key=_start_of) - 1
        if place < 0 or key_hash >= self.strips[place].end:
            return ()
        return self.strips[place].runs

    # Changes

    def with_committed(self, rectangles: Iterable[Rectangle], *, most: int | None = None) -> "CommittedProgress":
        """The progress with these rectangles too (rule 3).

        Raises TooManyRectangles when the work goes beyond `most` runs of strips: a rectangle of many hashes adds a run
        to each of its strips.
        """
        wanted = [
            Strip(first_hash, last_hash + 1, (Run(max(first_offset, self.stable_offset), last_offset + 1),))
            for first_offset, last_offset, first_hash, last_hash in rectangles
            if last_offset >= self.stable_offset
        ]
        if not wanted:
            return self
        strips = self.strips
        if len(wanted) <= _FEW and sum(_touched(strips, start, end) for start, end, _ in wanted) <= _FEW_STRIPS:
            for start, end, (run,) in wanted:
                strips = _with_run(strips, start, end, run)
        else:
            limit = _UNBOUNDED if most is None else most
            strips = _united(strips, _strips_of(wanted, limit), limit)
        return _with_lowest_frontier(self.stable_offset, strips, self.hashes)

    def with_stable_offset(self, offset: int) -> "CommittedProgress":
        """The progress with everything below this offset too: a plain commit, forward, by a reader of the whole
        partition."""
        if offset <= self.stable_offset:
            return self
        return self.with_committed([Rectangle(self.stable_offset, offset - 1, *self.hashes)])

    def cut_at(self, end_offset: int) -> "CommittedProgress":
        """The progress below this offset, which is not below the stable offset."""
        strips = [
            Strip(start, end, tuple(Run(run.start, min(run.end, end_offset)) for run in runs if run.start < end_offset))
            for start, end, runs in self.strips
        ]
        return CommittedProgress(self.stable_offset, _fused(strip for strip in strips if strip.runs), self.hashes)

    def of_hashes(self, hashes: KeyRange) -> "CommittedProgress":
        """The same progress in a partition whose records have these hashes alone."""
        return self if hashes == self.hashes else CommittedProgress(self.stable_offset, self.strips, hashes)


def _start_of(strip: Strip) -> int:
    return strip.start


def _frontier(stable_offset: int, runs: tuple[Run, ...]) -> int:
    return runs[0].end if runs and runs[0].start <= stable_offset else stable_offset


def _between(strips: tuple[Strip, ...], start: int, end: int) -> Iterator[Strip]:
    """The hashes from `start` to `end`, cut into strips; hashes without runs are included."""
    place = max(0, bisect_right(strips, start, key=_start_of) - 1)
    while start < end:
        if place < len(strips) and strips[place].end <= start:
            place += 1
            continue
        if place == len(strips) or strips[place].start >= end:
            yield Strip(start, end, ())
            return
        strip = strips[place]
        if start < strip.start:
            yield Strip(start, strip.start, ())
            start = strip.start
        yield Strip(start, min(end, strip.end), strip.runs)
        start = min(end, strip.end)


def _with_run(strips: tuple[Strip, ...], start: int, end: int, run: Run) -> tuple[Strip, ...]:
    """The strips with this run added to all hashes from `start` to `end`. Only the strips of these hashes are read."""
    first = bisect_left(strips, start, key=_start_of)
    if first and strips[first - 1].end >= start:
        first -= 1  # the strip before holds the first hashes, or may merge with the first strip
    behind = bisect_right(strips, end, key=_start_of)
    touched = strips[first:behind]
    changed: list[Strip] = []
    if touched and touched[0].start < start:
        changed.append(Strip(touched[0].start, min(start, touched[0].end), touched[0].runs))
    changed += (Strip(strip.start, strip.end, _with(strip.runs, run)) for strip in _between(touched, start, end))
    if touched and touched[-1].end > end:
        changed.append(Strip(max(end, touched[-1].start), touched[-1].end, touched[-1].runs))
    return (*strips[:first], *_fused(changed), *strips[behind:])


def _touched(strips: tuple[Strip, ...], start: int, end: int) -> int:
    """The number of strips that the hashes from `start` to `end` touch, or nearly so."""
    return bisect_right(strips, end, key=_start_of) - bisect_left(strips, start, key=_start_of)


def _strips_of(wanted: list[Strip], most: int) -> list[Strip]:
    """The strips of rectangles, given as strips of a single run, which may share hashes, and overlap."""
    begun = sorted(wanted, reverse=True)
    edges = sorted({edge for strip in wanted for edge in (strip.start, strip.end)})
    active: list[Strip] = []
    strips: list[Strip] = []
    work = 0
    for start, end in pairwise(edges):
        active = [strip for strip in active if strip.end > start]
        while begun and begun[-1].start == start:
            active.append(begun.pop())
        work += len(active)
        if work > most:
            raise TooManyRectangles(work)
        if active:
            strips.append(Strip(start, end, _merged(sorted(strip.runs[0] for strip in active))))
    return strips


def _united(strips: tuple[Strip, ...], added: list[Strip], most: int) -> tuple[Strip, ...]:
    """The runs of both, hash by hash, in one pass; both are in order, and no two strips of a list share a hash."""
    united: list[Strip] = []
    rest = iter(strips)
    strip = next(rest, None)
    work = 0
    for first, end, runs in added:
        while strip is not None and strip.end <= first:
            united.append(strip)
            strip = next(rest, None)
        if strip is not None and strip.start < first:
            united.append(Strip(strip.start, first, strip.runs))
            strip = Strip(first, strip.end, strip.runs)
        reached = first
        while reached < end:
            if strip is None or strip.start >= end:
                united.append(Strip(reached, end, runs))
                break
            if reached < strip.start:
                united.append(Strip(reached, strip.start, runs))
            reached = min(end, strip.end)
            united.append(Strip(strip.start, reached, _merged(sorted((*strip.runs, *runs)))))
            work += len(strip.runs) + len(runs)
            if work > most:
                raise TooManyRectangles(work)
            strip = next(rest, None) if reached == strip.end else Strip(reached, strip.end, strip.runs)
    if strip is not None:
        united.append(strip)
    united += rest
    return _fused(united)


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs in the order of their starts, with touching runs merged."""
    merged: list[Run] = []
    for run in runs:
        if merged and run.start <= merged[-1].end:
            if run.end > merged[-1].end:
                merged[-1] = Run(merged[-1].start, run.end)
        else:
            merged.append(run)
    return tuple(merged)


def _with(runs: tuple[Run, ...], run: Run) -> tuple[Run, ...]:
    """The runs with `run`, merged with every run that it meets."""
    start, end = run
    before = [earlier for earlier in runs if earlier.end < start]
    met = runs[len(before) :]
    behind = tuple(later for later in met if later.start > end)
    met = met[: len(met) - len(behind)]
    if met:
        start, end = min(start, met[0].start), max(end, met[-1].end)
    return (*before, Run(start, end), *behind)


def _fused(strips: Iterable[Strip]) -> tuple[Strip, ...]:
    """Strips with neighbours of equal runs merged."""
    fused: list[Strip] = []
    for strip in strips:
        last = fused[-1] if fused else None
        if last is not None and last.end == strip.start and last.runs == strip.runs:
            fused[-1] = Strip(last.start, strip.end, strip.runs)
        else:
            fused.append(strip)
    return tuple(fused)


def _with_lowest_frontier(stable_offset: int, strips: tuple[Strip, ...], hashes: KeyRange) -> CommittedProgress:
    """The progress with the stable offset at the lowest frontier, and no run below (rule 2)."""
    if _has_gap(strips, hashes):
        return CommittedProgress(stable_offset, strips, hashes)
    lowest = min(_frontier(stable_offset, strip.runs) for strip in strips)
    if lowest == stable_offset:
        return CommittedProgress(stable_offset, strips, hashes)
    left = []
    for start, end, runs in strips:
        kept = tuple(Run(max(run.start, lowest), run.end) for run in runs if run.end > lowest)
        if kept:
            left.append(Strip(start, end, kept))
    return CommittedProgress(lowest, _fused(left), hashes)


def _has_gap(strips: tuple[Strip, ...], hashes: KeyRange) -> bool:
    """Whether there are hashes of the partition without runs."""
    reached = hashes.first
    for start, end, _ in strips:
        if start != reached:
            return True
        reached = end
    return reached <= hashes.last
