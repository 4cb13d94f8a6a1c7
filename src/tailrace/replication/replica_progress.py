"""The progress of one follower, as its leader knows it from fetches. Pure; times are monotonic ms.

A follower's fetch offset is its end offset: all below it is in its log, and under flushed durability on its disk. It is
*caught up* as of a time when it had everything that the leader had at that time. While records keep coming it never
asks at the very end of the leader's log; so a fetch that reaches the log end of the fetch before it makes the
follower caught up as of that fetch.
"""

from typing import Final, NamedTuple

NEVER: Final = -(1 << 62)
"""Before all times."""
UNKNOWN: Final = -1


class FollowerFetch(NamedTuple):
    """The facts about a follower in one of its fetches."""

    end_offset: int
    """Its fetch offset."""
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    """Of the registration in which it asks (KIP-903); -1 if it does not say."""
    may_join: bool = True
    """Whether it is alive, and asks in its current registration: only then may it be in sync."""
    high_watermark: int = UNKNOWN
    """Its own high watermark; -1 if it does not say (before Fetch v18)."""


class ReplicaProgress:
    """The progress of one follower."""

    __slots__ = (
        "_has_asked",
        "_leader_end_offset",
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_ms",
        "known_high_watermark",
        "log_start_offset",
        "may_join",
        "sent_high_watermark",
    )

    def __init__(self, *, caught_up_ms: int = NEVER) -> None:
        """`caught_up_ms`: now, for in-sync replicas at the begin of a leader, so that they have time to fetch."""
        self.end_offset = UNKNOWN
        """Exclusive; -1 until it has asked."""
        self.log_start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.may_join = False
        self.caught_up_ms = caught_up_ms
        """The last time as of which it had everything."""
        self.fetched_ms = NEVER
        self._has_asked = False
        self._leader_end_offset = UNKNOWN
        """The end of the leader's log at the last fetch."""
        self.sent_high_watermark = UNKNOWN
        """The high watermark in the last answer to a fetch that does not state its own; the next acknowledges it."""
        self.known_high_watermark = UNKNOWN
        """The leader's high watermark as the follower has it: it has stated that, or acknowledged an answer.
        -1 until then, and after each start of the follower."""

    @property
    def acknowledged_high_watermark(self) -> int:
        """The follower's own high watermark, at least: consumers can read up to here from it. -1 if not known."""
        return min(self.known_high_watermark, self.end_offset)

    def is_stale(self, fetch: FollowerFetch) -> bool:
        """Whether this fetch was made in an earlier registration than the latest known one."""
        return UNKNOWN < fetch.broker_epoch < self.broker_epoch

    def record(self, fetch: FollowerFetch, *, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch, which is not stale."""
        assert not self.is_stale(fetch), f"{fetch} after one of broker epoch {self.broker_epoch}"
        if fetch.end_offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch.end_offset >= self._leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self._leader_end_offset = leader_end_offset
        self.fetched_ms = now_ms
        self._has_asked = True
        end_offset, self.end_offset = self.end_offset, fetch.end_offset
        self.log_start_offset = fetch.log_start_offset
        if fetch.broker_epoch > self.broker_epoch:
            self.sent_high_watermark = self.known_high_watermark = UNKNOWN
        if fetch.end_offset < end_offset:  # its log was cut
            self.known_high_watermark = min(self.known_high_watermark, fetch.end_offset)
        stated = self.sent_high_watermark if fetch.high_watermark == UNKNOWN else fetch.high_watermark
        self.known_high_watermark = max(self.known_high_watermark, stated)
        self.broker_epoch = max(self.broker_epoch, fetch.broker_epoch)
        self.may_join = fetch.may_join

    def is_caught_up(self, *, leader_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        """Whether it has everything, or had it as of at most `lag_ms` ago (replica.lag.time.max.ms)."""
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_ms

    def may_be_wanted(self, *, now_ms: int, lag_ms: int) -> bool:
        """Whether it may come in sync at this look: it has asked since the last one, or was caught up just now.

        Just now: at most `lag_ms` ago, for either.
        """
        return now_ms - (self.fetched_ms if self._has_asked else self.caught_up_ms) <= lag_ms

    def looked_at(self) -> None:
        """End a look at the in-sync replicas: `may_be_wanted` ignores earlier fetches from now on."""
        self._has_asked = False
