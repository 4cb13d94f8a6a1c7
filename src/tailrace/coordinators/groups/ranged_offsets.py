"""Offsets with committed ranges, as values of `__consumer_offsets` (KIP-X, individual commits).

A value keeps its ranges as bytes. A commit, or a request for committed ranges, decodes the ranges of its offset. The
decoded form of the last values is kept, so that the next commit of a group finds the decoded form of its last commit.
"""

import logging
from collections import OrderedDict
from typing import Final

from tailrace.coordinators.groups.commands import OffsetToCommit
from tailrace.coordinators.groups.range_commits import (
    RangedProgress,
    RangeLimits,
    commit_offset,
    commit_ranges,
    cut,
    reset_offset,
    within,
)
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.coordinators.groups.stored_ranges import decode_ranges, encode_ranges
from tailrace.model.committed_progress import CommittedProgress
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.key_ranges import WHOLE, KeyRange
from tailrace.protocol.schema import replace

_logger = logging.getLogger("tailrace.server")

MOST_KEPT_RECTANGLES: Final = 100_000
"""The most rectangles of decoded progress that a node keeps: about 25 MB."""
MOST_STORED_BYTES: Final = 60_000
"""The most bytes of the ranges of one offset: a broker that does not know ranges keeps up to 64 KiB."""


class RangedOffsets:
    """The values with ranges of all coordinators of a node: read, and made by commits."""

    def __init__(self, *, max_rectangles: int) -> None:
        """`max_rectangles` is offsets.max.ranges.per.partition."""
        self.max_rectangles: Final = max_rectangles
        self._kept: OrderedDict[tuple[int, bytes], CommittedProgress] = OrderedDict()
        self._kept_rectangles = 0
        self.cut_partitions = 0
        """The number of drops of ranges because the log of their partition ended before the ranges."""

    def progress(self, value: OffsetCommitValue, hashes: KeyRange = WHOLE) -> RangedProgress:
        """The progress of this value, in a partition whose records have these hashes. A value with
        unreadable ranges counts as a value without ranges, in another state epoch: readers get the records of these
        ranges again."""
        found = self._progress(value)
        return found if hashes == WHOLE else found._replace(committed=found.committed.of_hashes(hashes))

    def _progress(self, value: OffsetCommitValue) -> RangedProgress:
        if not value.ranges:
            return RangedProgress(CommittedProgress(value.offset), value.state_epoch)
        key = (value.offset, value.ranges)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return RangedProgress(found, value.state_epoch)
        try:
            decoded = decode_ranges(value.offset, value.ranges)
        except MalformedMessage as fault:
            _logger.error("event=committed-ranges-unreadable offset=%d fault=%s", value.offset, fault.detail)
            return RangedProgress(CommittedProgress(value.offset), value.state_epoch + 1)
        self._keep(key, decoded)
        return RangedProgress(decoded, value.state_epoch)

    def _keep(self, key: tuple[int, bytes], progress: CommittedProgress) -> None:
        if key in self._kept:
            self._kept.move_to_end(key)
            return
        self._kept[key] = progress
        self._kept_rectangles += progress.rectangle_count
        while self._kept_rectangles > MOST_KEPT_RECTANGLES:
            self._kept_rectangles -= self._kept.popitem(last=False)[1].rectangle_count

    # Commits

    def with_ranges(
        self, before: OffsetCommitValue | None, plain: OffsetCommitValue, commit: OffsetToCommit
    ) -> OffsetCommitValue:
        """The value after a commit of ranges. A commit without ranges means that the log was truncated at the offset.

        `plain` is the value with the offset of the commit alone. Raises the errors of `range_commits.commit_ranges` and
        `cut`.
        """
        ranges, first_offset = commit.ranges, max(0, commit.offset)
        assert ranges is not None, "a plain commit has no ranges"
        known = None if before is None else self._known(before, first_offset, commit.hashes)
        if ranges.rectangles:
            limits = RangeLimits(self.max_rectangles, ranges.end_offset, commit.hashes)
            after = commit_ranges(
                known, ranges.rectangles, state_epoch=ranges.state_epoch, stable_offset=commit.offset, limits=limits
            )
        else:
            after = cut(known, first_offset, state_epoch=ranges.state_epoch)
        return self._value(plain, after, before)

    def within(self, before: OffsetCommitValue, end_offset: int) -> OffsetCommitValue | None:
        """The value without the ranges behind the end of the partition, None if there are no such ranges."""
        known = self.progress(before)
        after = within(known, end_offset)
        if after is None:
            return None
        self.cut_partitions += 1
        _logger.warning("event=committed-ranges-dropped end=%d was=%d", end_offset, known.committed.end_offset)
        return replace(before, ranges=encode_ranges(after.committed), state_epoch=after.state_epoch)

    def with_offset(
        self, before: OffsetCommitValue, plain: OffsetCommitValue, hashes: KeyRange, *, is_member: bool
    ) -> OffsetCommitValue:
        """The value `before`, which has ranges, after a plain commit of a member or of a client outside the group."""
        change = commit_offset if is_member else reset_offset
        return self._value(plain, change(self._known(before, 0, hashes), plain.offset), before)

    def _known(self, value: OffsetCommitValue, first_offset: int, hashes: KeyRange) -> RangedProgress:
        """The progress of this value; a value with "no offset" (-1) begins with the given offset."""
        if value.offset >= 0:
            return self.progress(value, hashes)
        return RangedProgress(CommittedProgress(first_offset, hashes=hashes), value.state_epoch)

    def _value(
        self, plain: OffsetCommitValue, after: RangedProgress, before: OffsetCommitValue | None
    ) -> OffsetCommitValue:
        """The value with this progress; `plain` has the offset that the client has named."""
        encoded = encode_ranges(after.committed)
        if len(encoded) > MOST_STORED_BYTES and (before is None or len(encoded) > len(before.ranges)):
            raise KafkaError(
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
                f"{after.committed.rectangle_count} committed ranges take {len(encoded)} bytes; "
                f"{MOST_STORED_BYTES} at most",
            )
        stable_offset, leader_epoch = after.committed.stable_offset, plain.leader_epoch
        if stable_offset != plain.offset:  # the client's epoch belongs to the record before `plain.offset`
            is_as_before = before is not None and before.offset == stable_offset
            leader_epoch = before.leader_epoch if before is not None and is_as_before else -1
        if encoded:
            self._keep((stable_offset, encoded), after.committed)
        elif plain.expire_timestamp >= 0:
            # The version with an expiry time has no tagged fields; clients that ask for an expiry time know no ranges.
            return replace(plain, offset=stable_offset, leader_epoch=leader_epoch)
        return replace(
            plain,
            offset=stable_offset,
            leader_epoch=leader_epoch,
            expire_timestamp=-1,
            ranges=encoded,
            state_epoch=after.state_epoch,
        )
