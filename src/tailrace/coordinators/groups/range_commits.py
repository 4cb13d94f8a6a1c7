"""The rules by which commits of one partition change a group's progress in it (KIP-X, individual commits). Pure.

A range commit names records that are done; they are united with the records done before (`model.committed_progress`). A
plain commit is Kafka's commit of one offset. Each change that can lower a frontier raises the state epoch, and range
commits in another epoch are refused: after a rewind, a late range commit would make readers skip records that are to be
done again.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final, NamedTuple

from tailrace.model.committed_progress import MAX_RANGES_PER_COMMIT, CommittedProgress, Rectangle, TooManyRectangles
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import HASH_SPACE, WHOLE, KeyRange

_WORK: Final = 4
"""A commit is refused if its union would pass through more than this many times the allowed number of runs."""
NO_STATE_EPOCH: Final = -1
"""The state epoch of a reader that has seen no progress. The epoch counts as 0: the commit is accepted if the offset
was never reset."""


class RangedProgress(NamedTuple):
    """A group's progress in one partition."""

    committed: CommittedProgress
    state_epoch: int = 0


class BehindTheEnd(KafkaError):
    """INVALID_REQUEST (42): a commit names offsets that the leader of the partition does not have."""

    def __init__(self, offset: int, end_offset: int) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, f"offset {offset} is behind the end of the partition, {end_offset}")


class RangeLimits(NamedTuple):
    """The limits of one partition's progress; the end of the partition, and its hashes."""

    rectangles: int
    """offsets.max.ranges.per.partition."""
    end_offset: int
    """The offset that the leader is known to have reached; offsets of ranges are below."""
    hashes: KeyRange = WHOLE
    """The hashes that the records of the partition may have."""


def check_ranges(ranges: Sequence[Rectangle]) -> None:
    """Raises KafkaError(INVALID_REQUEST) unless a commit of one partition may have these ranges.

    There must not be too many ranges. A range must not be inverted, must lie within the possible offsets and hashes,
    and must not overlap another range.
    """
    if len(ranges) > MAX_RANGES_PER_COMMIT:
        raise _invalid(f"{len(ranges)} ranges in a commit of one partition; {MAX_RANGES_PER_COMMIT} at most")
    for rectangle in ranges:
        if not 0 <= rectangle.first_offset <= rectangle.last_offset < 2**63 - 1:
            raise _invalid(f"{rectangle.first_offset}-{rectangle.last_offset} is no range of offsets")
        if not 0 <= rectangle.first_hash <= rectangle.last_hash < HASH_SPACE:
            raise _invalid(f"{rectangle.first_hash}-{rectangle.last_hash} is no range of key hashes")
    overlap = _overlap(ranges)
    if overlap is not None:
        raise _invalid(f"the ranges {tuple(overlap[0])} and {tuple(overlap[1])} overlap")


def _overlap(ranges: Iterable[Rectangle]) -> tuple[Rectangle, Rectangle] | None:
    """Two ranges that overlap. The ranges are visited in order of the first hash. Each range is compared with its
    neighbours by offset among the ranges that are still open."""
    is_open: list[tuple[int, Rectangle]] = []
    ends: list[tuple[int, int]] = []
    for rectangle in sorted(ranges, key=attrgetter("first_hash")):
        while ends and ends[0][0] < rectangle.first_hash:
            _, first_offset = heappop(ends)
            del is_open[bisect_left(is_open, (first_offset,))]
        place = bisect_left(is_open, (rectangle.first_offset,))
        for _, other in is_open[max(0, place - 1) : place + 1]:
            if other.first_offset <= rectangle.last_offset and rectangle.first_offset <= other.last_offset:
                return other, rectangle
        is_open.insert(place, (rectangle.first_offset, rectangle))
        heappush(ends, (rectangle.last_hash, rectangle.first_offset))
    return None


def within_hashes(ranges: Sequence[Rectangle], hashes: KeyRange) -> tuple[Rectangle, ...]:
    """The ranges without the hashes that no record of the partition has: a range says nothing of such hashes.

    So the range of the whole hash space, which is the default, is the whole of any partition. Raises KafkaError
    INVALID_REQUEST (42) if nothing is left of ranges: the commit is about another partition.
    """
    if hashes == WHOLE or not ranges:
        return tuple(ranges)
    first, last = hashes
    found = tuple(
        rectangle._replace(first_hash=max(first, rectangle.first_hash), last_hash=min(last, rectangle.last_hash))
        for rectangle in ranges
        if rectangle.first_hash <= last and first <= rectangle.last_hash
    )
    if not found:
        raise _invalid(f"no range has a hash of the partition, {hashes}")
    return found


def commit_ranges(
    progress: RangedProgress | None,
    ranges: Iterable[Rectangle],
    *,
    state_epoch: int,
    stable_offset: int,
    limits: RangeLimits,
) -> RangedProgress:
    """The progress after a commit of these ranges. A commit is accepted as a whole, or refused.

    `stable_offset` is the stable offset that the reader knows, or -1: the progress of a group without progress begins
    there. Raises KafkaError: FENCED_STATE_EPOCH (124), BehindTheEnd (42), and OFFSET_METADATA_TOO_LARGE (12) for more
    rectangles than the limit.
    """
    none_yet = RangedProgress(CommittedProgress(max(0, stable_offset), hashes=limits.hashes))
    before = _in_epoch(progress, state_epoch) or none_yet
    taken = list(ranges)
    for rectangle in taken:
        if rectangle.last_offset >= limits.end_offset:
            raise BehindTheEnd(rectangle.last_offset, limits.end_offset)
    most = max(limits.rectangles, before.committed.rectangle_count)
    try:
        after = before.committed.with_committed(taken, most=_WORK * (most + MAX_RANGES_PER_COMMIT))
    except TooManyRectangles:
        raise _full(limits, before.committed) from None
    if after.rectangle_count > most:
        raise _full(limits, before.committed)
    return before._replace(committed=after)


def _full(limits: RangeLimits, committed: CommittedProgress) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        f"more than {limits.rectangles} committed ranges. {oldest_gap(committed)}",
    )


def oldest_gap(committed: CommittedProgress) -> str:
    """The offset and hashes that hold the stable offset back, in words."""
    return f"The oldest gap is at offset {committed.stable_offset}, key hashes {next(committed.gaps())}"


def commit_offset(progress: RangedProgress | None, offset: int) -> RangedProgress:
    """The plain commit of a member that has the whole partition. A commit forward keeps the ranges beyond its offset; a
    commit backward is a rewind, and drops all ranges beyond."""
    if progress is None or offset >= progress.committed.stable_offset:
        before = progress or RangedProgress(CommittedProgress(offset))
        return before._replace(committed=before.committed.with_stable_offset(offset))
    return RangedProgress(CommittedProgress(offset), progress.state_epoch + 1)


def reset_offset(progress: RangedProgress | None, offset: int) -> RangedProgress:
    """The plain commit of a group without members, by which tools reset an offset: all ranges beyond the offset are
    dropped."""
    if progress is None:
        return RangedProgress(CommittedProgress(offset))
    committed = progress.committed
    lowers = offset < committed.stable_offset or bool(committed.strips)
    return RangedProgress(CommittedProgress(offset), progress.state_epoch + lowers)


def cut(progress: RangedProgress | None, offset: int, *, state_epoch: int) -> RangedProgress:
    """The progress after the log was truncated at this offset: other records follow from there on, and are not done
    (KIP-320). Below the offset the progress stays. Raises KafkaError FENCED_STATE_EPOCH (124)."""
    before = _in_epoch(progress, state_epoch)
    if before is None:
        return RangedProgress(CommittedProgress(offset))
    committed = before.committed
    after = CommittedProgress(offset) if offset <= committed.stable_offset else committed.cut_at(offset)
    return RangedProgress(after, before.state_epoch + 1)


def within(progress: RangedProgress, end_offset: int) -> RangedProgress | None:
    """The progress without ranges behind the end of the partition: the log was cut, and other records will come there.
    None if no range is behind the end. The stable offset stays, as any committed offset does in Kafka."""
    committed = progress.committed
    if not committed.strips or committed.end_offset <= end_offset:
        return None
    is_all_behind = end_offset <= committed.stable_offset
    after = CommittedProgress(committed.stable_offset) if is_all_behind else committed.cut_at(end_offset)
    return RangedProgress(after, progress.state_epoch + 1)


def _in_epoch(progress: RangedProgress | None, state_epoch: int) -> RangedProgress | None:
    """The progress, if it is still in the state epoch that a reader knows. Raises FENCED_STATE_EPOCH (124)."""
    if progress is None and state_epoch != NO_STATE_EPOCH:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, f"the offset that had state epoch {state_epoch} was deleted")
    if progress is not None and max(0, state_epoch) != progress.state_epoch:
        raise KafkaError(
            ErrorCode.FENCED_STATE_EPOCH,
            f"the reader knows state epoch {max(0, state_epoch)}; the offset was reset, and has {progress.state_epoch}",
        )
    return progress


def _invalid(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, fault)
