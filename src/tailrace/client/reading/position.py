"""A consumer's fetch position in one partition, and whether the leader's log still has the records before. Pure.

    UNDECIDED --start_at--> FETCHING --new leader epoch--> AWAITING_VALIDATION --validated--> FETCHING
                            FETCHING --out of range--> AWAITING_VALIDATION or AWAITING_RESET --start_at--> FETCHING

1. A position keeps the leader epoch of the last record before it (KIP-320). Under a new leader epoch of the metadata it
   is compared with the leader's log (OffsetForLeaderEpoch) before the next fetch: the log of that epoch must reach up
   to the position. A position without an epoch, such as a position that the user has sought, cannot be compared.
2. If the log ends before the position, the records in between are lost: the log was truncated in an unclean election.
   With a reset policy, earliest or latest, reading goes on where the logs diverge, as KIP-320 says: "to reset the
   offset as precisely as possible". Without a reset policy the truncation is an error of each poll until the user
   seeks.
3. OFFSET_OUT_OF_RANGE of a follower is not final (KIP-392), see `refused`.
"""

from enum import Enum, auto
from typing import NamedTuple

UNKNOWN_EPOCH = -1


class PositionState(Enum):
    """The next step for a position."""

    UNDECIDED = auto()
    """Neither a committed offset nor the reset policy has decided the position."""
    FETCHING = auto()
    AWAITING_VALIDATION = auto()
    """The position must be compared with the leader's log."""
    AWAITING_RESET = auto()
    """The log does not have the offset: the reset policy decides."""


class Recourse(Enum):
    """The consequence of OFFSET_OUT_OF_RANGE."""

    RESET = auto()
    RESET_AT_REPLICA = auto()
    """Reset; earliest is the log start of the replica that has refused the offset."""
    VALIDATE = auto()
    ASK_LEADER = auto()
    """The follower gave no bounds: fetch the same offset from the leader."""


class Truncation(NamedTuple):
    """The loss of records before a position: the leader's log diverges from the records that were read."""

    offset: int
    """The position."""
    epoch: int
    """The leader epoch of the last record before the position."""
    diverging_offset: int | None
    """The first offset at which the logs differ; None if the leader does not know the epoch."""

    def __str__(self) -> str:
        where = "" if self.diverging_offset is None else f" from {self.diverging_offset} on"
        fate = f"was truncated after it was read (epoch {self.epoch}): records{where} are lost"
        return fate if self.diverging_offset is None else f"{fate}; goes on at {self.diverging_offset}"


class FetchPosition:
    """The offset of the next fetch."""

    __slots__ = (
        "_is_refused_by_leader",
        "_valid_under",
        "is_displaced",
        "offset",
        "offset_epoch",
        "state",
        "truncation",
    )

    def __init__(self) -> None:
        self.state = PositionState.UNDECIDED
        self.offset = 0
        self.offset_epoch = UNKNOWN_EPOCH
        """The leader epoch of the last record before the offset; -1: unknown."""
        self.truncation: Truncation | None = None
        """The truncation that is the reason for a reset, if any."""
        self.is_displaced = False
        """Whether reading began anew at this offset because the log did not have the last offset: by the reset policy,
        or after a truncation."""
        self._valid_under = UNKNOWN_EPOCH
        """The leader epoch of the metadata under which the position is known to be valid; -1: none."""
        self._is_refused_by_leader = False

    @property
    def is_undecided(self) -> bool:
        """Whether a committed offset or the reset policy has to decide the position."""
        return self.state in (PositionState.UNDECIDED, PositionState.AWAITING_RESET)

    def start_at(self, offset: int, epoch: int = UNKNOWN_EPOCH, *, valid_under: int = UNKNOWN_EPOCH) -> None:
        """Fetch from here. `valid_under`: the leader of this epoch has just named the offset itself."""
        self.is_displaced = self.state is PositionState.AWAITING_RESET
        self.state = PositionState.FETCHING
        self.offset, self.offset_epoch = offset, epoch
        self.truncation = None
        self._valid_under = valid_under
        self._is_refused_by_leader = False

    def advance(self, offset: int, epoch: int) -> None:
        """Move to this offset, since the records before it were fetched; the last of them has this leader epoch."""
        self.offset = offset
        if epoch >= 0:
            self.offset_epoch = epoch

    def check_leader(self, leader_epoch: int) -> bool:
        """Whether a fetch may go out under this leader epoch (-1: the server has none). If not, the position awaits
        validation."""
        if self.state is PositionState.FETCHING and leader_epoch >= 0 and leader_epoch != self._valid_under:
            if self.offset_epoch >= 0:
                self.state = PositionState.AWAITING_VALIDATION
            else:
                self._valid_under = leader_epoch
        return self.state is PositionState.FETCHING

    def is_valid_under(self, leader_epoch: int) -> bool:
        """Whether a fetch under this leader epoch may have begun here, with no comparison or note before."""
        return self.state is PositionState.FETCHING and leader_epoch in (UNKNOWN_EPOCH, self._valid_under)

    def refused(self, log_start_offset: int, *, by_leader: bool) -> Recourse:
        """Take the answer OFFSET_OUT_OF_RANGE, with the log start of the replica that has answered; -1 without a log
        start.

        A follower may lag behind, so its refusal of an offset above its log counts only when the leader confirms it. An
        offset below the follower's log start goes by the reset policy, and the leader is not asked (KIP-392). Apache
        Kafka's followers give no log start: as in Java's client, the leader has the last word then.
        """
        if log_start_offset < 0 and not by_leader:
            return Recourse.ASK_LEADER
        is_too_small = self.offset < log_start_offset
        if is_too_small or self.offset_epoch < 0:
            self.state = PositionState.AWAITING_RESET
            return Recourse.RESET_AT_REPLICA if is_too_small and not by_leader else Recourse.RESET
        self.state = PositionState.AWAITING_VALIDATION
        self._is_refused_by_leader = by_leader
        return Recourse.VALIDATE

    def validated(self, epoch: int, end_offset: int, *, leader_epoch: int, resets: bool) -> Truncation | None:
        """Take the leader's answer: the largest epoch up to the position's own, and the end of that epoch; -1 without
        such an epoch.

        `leader_epoch` was in the request; `resets`: there is a reset policy. Returns the truncation that
        the answer shows.
        """
        assert self.state is PositionState.AWAITING_VALIDATION, "an answer belongs to a request"
        is_known = epoch >= 0 and end_offset >= 0
        if is_known and end_offset >= self.offset:
            self._stand(leader_epoch)
            return None
        truncation = Truncation(self.offset, self.offset_epoch, end_offset if is_known else None)
        if resets and is_known:
            self.start_at(end_offset, epoch, valid_under=leader_epoch)
            self.is_displaced = True
        else:
            self.state = PositionState.AWAITING_RESET
            self.truncation = truncation
        return truncation

    def doubt(self) -> None:
        """Compare the position, if possible, before the next fetch: a fault elsewhere shows that the log may have
        changed."""
        if self.state is PositionState.FETCHING and self.offset_epoch >= 0:
            self.state = PositionState.AWAITING_VALIDATION

    def skip_validation(self, leader_epoch: int) -> None:
        """Go on without a comparison, since the leader is too old for it."""
        self._stand(leader_epoch)

    def _stand(self, leader_epoch: int) -> None:
        """Note that no record before the position is lost. If the leader has refused the position nevertheless, records
        were deleted."""
        self._valid_under = leader_epoch
        self.state = PositionState.AWAITING_RESET if self._is_refused_by_leader else PositionState.FETCHING
        self._is_refused_by_leader = False
