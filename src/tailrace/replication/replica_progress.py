"""The progress of one follower, as its leader knows from fetches. Pure; times are monotonic ms.

A follower's fetch offset is its end offset: every record below is in its log, and under flushed durability on its disk.
A follower was *caught up* at a time if its log has every record that the leader had at that time. While records keep
coming, no fetch offset is at the very end of the leader's log. So a fetch whose offset is at least the log end at the
time of the previous fetch shows that the follower was caught up at the previous fetch. In a session a follower was
caught up at the session's last fetch if there was no change of the partition then.
"""

from typing import Final, NamedTuple

NEVER: Final = -(1 << 62)
"""A time before all other times."""
UNKNOWN: Final = -1


class FollowerFetch(NamedTuple):
    """The facts about a follower in one of its fetches."""

    end_offset: int
    """The follower's fetch offset."""
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    """The epoch of the registration in which the follower fetches (KIP-903); -1 if the fetch does not state an
    epoch."""
    may_join: bool = True
    """Whether the follower is alive, and fetches in its current registration: only then may the follower be in sync."""
    high_watermark: int = UNKNOWN
    """The follower's own high watermark; -1 if the fetch does not state it (before Fetch v18)."""


class SessionVisits:
    """The fetches of one follower's session (KIP-227), as a clock that all partitions without changes in the session
    share.

    An incremental fetch does not name a partition whose records the follower has completely: so each fetch confirms
    that the follower still has all records of the unnamed partitions. The broker's end of the session keeps a
    `SessionVisits`, and does the following for each fetch that it accepts:

    1. If `holds_for` is false for the follower's registration in this node's image, the session gets new visits, and
       every partition of the session is read. The old visits get no further fetch, so that no fetch counts that is from
       another registration than the recorded fetches (KIP-903).
    2. Partitions that the fetch names, or that may have changed, get `InSyncReplicas.take_fetch`; partitions that
       cannot be read, or leave the session, get `InSyncReplicas.end_rest`.
    3. Then comes `fetched`: O(1), however many partitions rest.
    4. Partitions that have no change after that get `InSyncReplicas.rest`; a partition for which `rest` returns false
       may have changed.

    `Change.IN_SYNC` counts as a change of a partition: an excluded replica rests no more, and joins only by a recorded
    fetch. After the end of a session there is nothing to do: its visits get no further fetch.
    """

    __slots__ = ("_broker_epoch", "_may_join", "fetched_ms")

    def __init__(self, *, broker_epoch: int, may_join: bool) -> None:
        """`broker_epoch` and `may_join` are as in the `FollowerFetch` of each partition."""
        self._broker_epoch = broker_epoch
        self._may_join = may_join
        self.fetched_ms = NEVER
        """The time of the last fetch."""

    def holds_for(self, *, broker_epoch: int, may_join: bool) -> bool:
        """Whether a fetch in this registration may acknowledge records of the partitions that rest in the session."""
        return broker_epoch == self._broker_epoch and may_join == self._may_join

    def fetched(self, now_ms: int) -> None:
        """Record a fetch of the session: for partitions that rest, the follower had every record when the fetch
        came."""
        self.fetched_ms = now_ms

    def may_vouch_for(self, progress: "ReplicaProgress") -> bool:
        """Whether the fetches of this session are from the registration of the replica's last recorded fetch."""
        is_late = UNKNOWN < self._broker_epoch < progress.broker_epoch
        return self._may_join == progress.may_join and not is_late


class ReplicaProgress:
    """The progress of one follower.

    The follower *rests* while its session vouches that the follower has everything: from `rest` to the next recorded
    fetch, `end_rest` or `exclude`.
    """

    __slots__ = (
        "_caught_up_ms",
        "_deleted_keys",
        "_fetched_ms",
        "_has_asked",
        "_leader_end_offset",
        "_visits",
        "broker_epoch",
        "end_offset",
        "known_high_watermark",
        "log_start_offset",
        "may_join",
        "sent_high_watermark",
    )

    def __init__(self, *, caught_up_ms: int = NEVER) -> None:
        """`caught_up_ms` is now for the in-sync replicas of a new leader, so that these replicas have time to fetch."""
        self.end_offset = UNKNOWN
        """The end of the follower's log, exclusive; -1 until the follower has fetched."""
        self.log_start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.may_join = False
        self._caught_up_ms = caught_up_ms
        self._fetched_ms = NEVER
        self._has_asked = False
        self._leader_end_offset = UNKNOWN
        """The end of the leader's log at the last fetch."""
        self.sent_high_watermark = UNKNOWN
        """The high watermark in the last answer outside of a session to a follower whose fetches state no high
        watermark. The follower's next fetch acknowledges this high watermark."""
        self.known_high_watermark = UNKNOWN
        """The newest high watermark of the leader that the follower is known to have: stated by a fetch, or
        acknowledged after an answer. -1 if not known, also after each start of the follower."""
        self._visits: SessionVisits | None = None
        """The visits of the session in which the replica rests."""
        self._deleted_keys: tuple[int, tuple[int, int]] | None = None
        """The version of the last sent note of deleted keys, and the place (fetch offset, log start) of the answered
        fetch."""

    @property
    def acknowledged_high_watermark(self) -> int:
        """A lower bound of the follower's own high watermark: consumers of the follower can read up to this offset. -1
        if not known."""
        return min(self.known_high_watermark, self.end_offset)

    @property
    def caught_up_ms(self) -> int:
        """The last time at which the follower was caught up."""
        visits = self._visits
        return self._caught_up_ms if visits is None else max(self._caught_up_ms, visits.fetched_ms)

    @property
    def fetched_ms(self) -> int:
        """The time of the follower's last fetch: the last recorded fetch, or the last fetch of the session in which the
        follower rests."""
        visits = self._visits
        return self._fetched_ms if visits is None else max(self._fetched_ms, visits.fetched_ms)

    def is_stale(self, fetch: FollowerFetch) -> bool:
        """Whether this fetch was made in an earlier registration than the latest known registration."""
        return UNKNOWN < fetch.broker_epoch < self.broker_epoch

    def record(self, fetch: FollowerFetch, *, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch, which is not stale."""
        assert not self.is_stale(fetch), f"{fetch} after one of broker epoch {self.broker_epoch}"
        self._end_rest()
        if fetch.end_offset >= leader_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif fetch.end_offset >= self._leader_end_offset:
            self._caught_up_ms = max(self._caught_up_ms, self._fetched_ms)
        self._leader_end_offset = leader_end_offset
        self._fetched_ms = now_ms
        self._has_asked = True
        end_offset, self.end_offset = self.end_offset, fetch.end_offset
        self.log_start_offset = fetch.log_start_offset
        if fetch.broker_epoch > self.broker_epoch:
            self.sent_high_watermark = self.known_high_watermark = UNKNOWN
            self._deleted_keys = None  # its disk may be another one
        if fetch.end_offset < end_offset:  # its log was cut
            self.known_high_watermark = min(self.known_high_watermark, fetch.end_offset)
        stated = self.sent_high_watermark if fetch.high_watermark == UNKNOWN else fetch.high_watermark
        self.known_high_watermark = max(self.known_high_watermark, stated)
        self.broker_epoch = max(self.broker_epoch, fetch.broker_epoch)
        self.may_join = fetch.may_join

    def wants_deleted_keys(self, version: int, place: tuple[int, int]) -> bool:
        """Whether an answer to the follower is to have the note of deleted keys, which has this version.

        `place` is the follower's log end and log start in its fetch. A fetch from another place than before shows that
        the follower has got the answer; an answer at the same place may have been lost, and has the note again.
        """
        if self._deleted_keys is not None and self._deleted_keys[0] == version and self._deleted_keys[1] != place:
            return False
        self._deleted_keys = version, place
        return True

    def rest(self, visits: SessionVisits, *, leader_end_offset: int) -> bool:
        """Count the fetches of this session from now on, though they do not name the partition.

        Returns whether the fetches count. They do not if the replica does not have every record, was excluded since its
        last recorded fetch, or has fetched in a later registration.
        """
        if self.end_offset != leader_end_offset or not visits.may_vouch_for(self):
            return False
        self._visits = visits
        return True

    def end_rest(self, visits: SessionVisits) -> None:
        """Stop counting the fetches of this session, if the replica rests in the session."""
        if self._visits is visits:
            self._end_rest()

    def _end_rest(self) -> None:
        if self._visits is not None:
            self._caught_up_ms, self._fetched_ms = self.caught_up_ms, self.fetched_ms
            self._visits = None

    def exclude(self) -> None:
        """Exclude a replica that is fenced or out of sync: only a later recorded fetch shows that the replica has
        caught up."""
        self._end_rest()
        self.may_join = False
        self._caught_up_ms = NEVER
        self._has_asked = False

    def is_caught_up(self, *, leader_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        """Whether the follower has every record, or had every record at most `lag_ms` ago (replica.lag.time.max.ms)."""
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_ms

    def may_be_wanted(self, *, now_ms: int, lag_ms: int) -> bool:
        """Whether the follower may join at this look: it has fetched since the last look, or was caught up, at most
        `lag_ms` ago.

        A fetch since the last look takes the place of the time of catching up.
        """
        return now_ms - (self.fetched_ms if self._has_asked else self.caught_up_ms) <= lag_ms

    def looked_at(self) -> None:
        """End a look at the in-sync replicas: `may_be_wanted` ignores earlier fetches from now on."""
        self._has_asked = False
