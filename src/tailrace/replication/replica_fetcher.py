"""The fetches of one broker from one leader, for all partitions that it follows there. Pure; times are monotonic ms.

    (none) --Follow--> ready --answer with records--> storing --Stored--> ready
                       ready --answer that diverges--> cutting --Stored--> ready
                       ready --error--> paused --its time is over--> ready
                       storing, cutting --StoreFailed--> paused, or broken until the next Follow
    any --Unfollow--> (none)

1. One fetch is in flight at a time. The next fetch leaves when all records of the last answer are stored: the fetch
   offset of a partition is the flushed end of its log, and only a fetch acknowledges records to the leader.
2. A partition with an error pauses by itself, with a growing backoff. Only a fetch without an answer delays every
   partition.
3. The answer for a partition is used only if the partition is still followed in the same leader epoch, and ready.
4. A log is cut at the offset where its leader epochs diverge from the leader's (KIP-101, KIP-279), never at the high
   watermark, which may be old. Below its own high watermark a log is cut only after an unclean election: `may_cut` in
   `replication.follower_replica`.
5. A partition whose answer had records moves to the end of the next fetch, so that full answers do not leave a
   partition out for ever.
6. A partition that the leader refuses for long, always for the same reason, is reported: its log may never get more
   records. If a Kafka leader refuses a partition as out of range, its answer has no log start: the follower then asks
   for the log start (ListOffsets).
7. A fetch is stated as its difference from the fetch before, as on the wire (KIP-227), so that the cost of a step grows
   with the changes, not with the number of followed partitions.
8. A fetch states a limited number of changes. The leader answers this fetch at once, and the next fetch states further
   changes.
9. A leader counts everything in an answer as sent. So a partition whose answer was not stored leaves the session and
   enters the session again, even when the partition is ready again before the next fetch.
10. A partition that becomes ready while the fetch in flight may wait at the leader ends that wait: otherwise the first
   record of a new topic would wait half a second for that fetch with acks=all.
11. A throttled replica out of sync pauses while the follower's rate is exceeded (KIP-73); a replica in sync never does.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch
from tailrace.model.machines import Tick
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.replication.fetcher_events import (
    Answered,
    AskLogStart,
    Cut,
    Effect,
    EndWait,
    Event,
    FetchAnswer,
    Follow,
    LogStartKnown,
    PartitionKey,
    ReportRefusal,
    Restart,
    SendFetch,
    Store,
    Stored,
    StoreFailed,
    Unfollow,
)
from tailrace.replication.followed_partition import FollowedPartition, FollowState, LeaderRefusal
from tailrace.replication.pauses import Pauses
from tailrace.replication.throttle import ReplicationThrottle, ThrottleConfig

FIRST_BACKOFF_MS: Final = 50
MAX_CHANGES: Final = 1_000
"""The most changes that a fetch states. A leader reads as many partitions in less than 10 ms."""
NO_EPOCH: Final = -1
AT_ONCE: Final = 0
"""A deadline in the past."""


class ReplicaFetcher:
    """The fetches from one leader, as a `model.machines.Machine`."""

    def __init__(
        self, *, backoff_ms: int, max_changes: int = MAX_CHANGES, throttle: ReplicationThrottle | None = None
    ) -> None:
        """`backoff_ms` is replica.fetch.backoff.ms: the longest pause after an error. `throttle` is shared by all
        fetches of this broker; None: no replica is ever throttled."""
        self._backoff_ms = backoff_ms
        self._throttle = throttle or ReplicationThrottle(ThrottleConfig())
        self._max_changes = max_changes
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        # The partitions in `_standing` and in `_changed` are ready.
        self._standing: set[PartitionKey] = set()  # ready without interruption since a fetch named them
        self._changed: dict[PartitionKey, None] = {}  # not yet fetched with these values
        self._moved: set[PartitionKey] = set()  # changed; an earlier fetch named it, its answer is stored
        self._gone: dict[PartitionKey, None] = {}  # named by a fetch, interrupted since, and not in `_moved`
        self._storing: set[PartitionKey] = set()
        self._pauses = Pauses[PartitionKey]()
        self._is_in_flight = False
        self._may_wait = False
        """Whether the fetch in flight may still wait at the leader."""
        self._silent_until_ms = 0
        self._silences = 0
        self.failed_answers = 0
        """The number of errors in answers, counted for each partition."""
        self.failed_fetches = 0
        """The number of fetches that got no answer."""

    # State

    @property
    def is_idle(self) -> bool:
        """Whether no partition is followed."""
        return not self._followed

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def broken(self) -> int:
        """The number of partitions that cannot be stored: for good, or after a failed try that will be repeated."""
        return sum(
            followed.state is FollowState.BROKEN or followed.cannot_be_stored for followed in self._followed.values()
        )

    @property
    def refused(self) -> int:
        """The number of partitions whose refusals have lasted so long that they were reported."""
        refusals = (followed.refusal for followed in self._followed.values())
        return sum(refusal is not None and refusal.is_reported for refusal in refusals)

    @property
    def max_lag(self) -> int:
        """The most records that a partition is behind its leader's high watermark."""
        lags = (followed.leader_high_watermark - followed.position.end_offset for followed in self._followed.values())
        return max(0, *lags) if self._followed else 0

    @property
    def next_deadline_ms(self) -> int | None:
        """The time from which on a `Tick` may have an effect."""
        wake_ms = self._pauses.next_end_ms
        if self._has_to_end_wait:
            return AT_ONCE
        if not self._has_to_ask:
            return wake_ms
        return self._silent_until_ms if wake_ms is None else min(wake_ms, self._silent_until_ms)

    # Steps

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event; returns the effects that the host must carry out, in order."""
        effects: list[Effect] = []
        match event:
            case Follow():
                self._follow(event)
            case Unfollow():
                self._forget(event.key)
            case Answered(answers=None):
                self._fetch_failed(now_ms)
            case Answered():
                effects = self._answered(event.answers or (), now_ms)
            case Stored():
                self._stored(event)
            case StoreFailed():
                self._store_failed(event, now_ms)
            case LogStartKnown():
                effects = self._log_start_known(event)
            case Tick():
                pass
        self._wake(now_ms)
        is_due = self._has_to_ask and now_ms >= self._silent_until_ms
        if is_due and not isinstance(event, Follow):  # more `Follow` events come at once: a single fetch
            self._hold_back(now_ms)
            if self._has_to_ask:
                effects.append(self._fetch())
        elif self._has_to_end_wait and not isinstance(event, Follow):
            self._may_wait = False
            effects.append(EndWait())
        return effects

    def _follow(self, event: Follow) -> None:
        self._forget(event.key)
        self._followed[event.key] = FollowedPartition(event.leader_epoch, event.position)
        self._changed[event.key] = None
        self._silent_until_ms = self._silences = 0  # a leader that begins a new epoch is alive

    def _forget(self, key: PartitionKey) -> None:
        self._followed.pop(key, None)
        self._interrupt(key)
        self._storing.discard(key)
        self._pauses.end(key)

    def _fetch_failed(self, now_ms: int) -> None:
        self._is_in_flight = False
        self.failed_fetches += 1
        self._silences += 1
        self._silent_until_ms = now_ms + self._backoff(self._silences)

    def _answered(self, answers: Iterable[FetchAnswer], now_ms: int) -> list[Effect]:
        was_asked, self._is_in_flight = self._is_in_flight, False
        self._silences = 0
        effects: list[Effect] = []
        answered: set[PartitionKey] = set()
        for answer in answers if was_asked else ():
            key = answer.key
            if key in self._standing and key not in answered:  # unchanged since the fetch in flight was made
                answered.add(key)
                effect = self._take(self._followed[key], answer, now_ms)
                if effect is not None:
                    effects.append(effect)
            elif key in self._moved:
                self._moved.remove(key)
                self._gone[key] = None
        return effects

    def _take(self, followed: FollowedPartition, answer: FetchAnswer, now_ms: int) -> Effect | None:
        key, leader_epoch = answer.key, followed.leader_epoch
        if answer.error is not ErrorCode.NONE:
            return self._refused(followed, answer, now_ms)
        followed.refusal = None
        if answer.diverging is not None:
            self._leave_ready(key, followed, FollowState.CUTTING)
            return Cut(key=key, leader_epoch=leader_epoch, diverging=answer.diverging)
        followed.failures = 0
        has_news = (
            followed.cannot_be_stored
            or answer.high_watermark != followed.leader_high_watermark
            or answer.log_start_offset != followed.leader_log_start
        )
        if not has_news and not len(answer.records):
            return None
        self._throttle.count(*key, len(answer.records), now_ms)
        followed.leader_high_watermark = answer.high_watermark
        followed.leader_log_start = answer.log_start_offset
        self._leave_ready(key, followed, FollowState.STORING)
        self._storing.add(key)
        return Store(key=key, leader_epoch=leader_epoch, answer=answer)

    def _refused(self, followed: FollowedPartition, answer: FetchAnswer, now_ms: int) -> Effect | None:
        self.failed_answers += 1
        is_out_of_range = answer.error is ErrorCode.OFFSET_OUT_OF_RANGE
        if is_out_of_range:
            effect = _brought_into_range(answer.key, followed, answer.log_start_offset)
            if effect is not None:
                followed.refusal = None
                self._leave_ready(answer.key, followed, FollowState.CUTTING)
                return effect
        self._pause(answer.key, followed, now_ms)
        refusal = followed.refusal
        if refusal is None or refusal.error is not answer.error:
            refusal = followed.refusal = LeaderRefusal(answer.error, now_ms)
        if (for_ms := refusal.report(now_ms)) is None:
            is_asked = is_out_of_range and answer.log_start_offset < 0
            return AskLogStart(key=answer.key, leader_epoch=followed.leader_epoch) if is_asked else None
        return ReportRefusal(key=answer.key, leader_epoch=followed.leader_epoch, error=answer.error, for_ms=for_ms)

    def _log_start_known(self, event: LogStartKnown) -> list[Effect]:
        """Bring a log that was refused as out of range into its leader's range, if the partition still waits for this
        answer."""
        followed, refusal = self._followed.get(event.key), None
        if (
            followed is not None
            and followed.leader_epoch == event.leader_epoch
            and followed.state is FollowState.PAUSED
        ):
            refusal = followed.refusal
        if followed is None or refusal is None or refusal.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
            return []
        effect = _brought_into_range(event.key, followed, event.log_start_offset)
        if effect is None:
            return []
        self._pauses.end(event.key)
        followed.refusal = None
        followed.state = FollowState.CUTTING
        return [effect]

    def _stored(self, event: Stored) -> None:
        followed = self._current(event.key, event.leader_epoch)
        if followed is not None:
            if followed.state is FollowState.STORING:
                # No fetch has left meanwhile. Records, high watermark and log start are those of the answer.
                del self._gone[event.key]
                self._moved.add(event.key)
            followed.position = event.position
            followed.cannot_be_stored = False
            followed.state = FollowState.READY
            self._storing.discard(event.key)
            self._changed[event.key] = None

    def _store_failed(self, event: StoreFailed, now_ms: int) -> None:
        followed = self._current(event.key, event.leader_epoch)
        if followed is not None:
            self._storing.discard(event.key)
            if event.is_final:
                followed.state = FollowState.BROKEN
            else:
                followed.cannot_be_stored = True
                self._pause(event.key, followed, now_ms)

    def _current(self, key: PartitionKey, leader_epoch: int) -> FollowedPartition | None:
        """The partition, if its log is being stored or cut in this epoch; else None."""
        followed = self._followed.get(key)
        if followed is None or followed.leader_epoch != leader_epoch:
            return None
        return followed if followed.state in (FollowState.STORING, FollowState.CUTTING) else None

    def _leave_ready(self, key: PartitionKey, followed: FollowedPartition, state: FollowState) -> None:
        followed.state = state
        self._interrupt(key)

    def _interrupt(self, key: PartitionKey) -> None:
        """Note that the partition is not ready any more."""
        if key in self._standing:
            self._standing.remove(key)
            self._gone[key] = None
        else:
            self._changed.pop(key, None)
            if key in self._moved:
                self._moved.remove(key)
                self._gone[key] = None

    def _hold_back(self, now_ms: int) -> None:
        """Pause the throttled partitions out of sync until the throttle's rate has come down."""
        until_ms = self._throttle.holds_until_ms(now_ms)
        if until_ms is not None:
            for key in sorted(self._throttle.throttled_among((*self._standing, *self._changed))):
                followed = self._followed[key]
                if not followed.is_in_sync:
                    self._pause_until(until_ms, key, followed)

    def _pause(self, key: PartitionKey, followed: FollowedPartition, now_ms: int) -> None:
        followed.failures += 1
        self._pause_until(now_ms + self._backoff(followed.failures), key, followed)

    def _pause_until(self, until_ms: int, key: PartitionKey, followed: FollowedPartition) -> None:
        self._leave_ready(key, followed, FollowState.PAUSED)
        self._pauses.begin(key, until_ms)

    def _backoff(self, failures: int) -> int:
        return min(self._backoff_ms, FIRST_BACKOFF_MS << min(failures - 1, 16))

    def _wake(self, now_ms: int) -> None:
        for key in self._pauses.take_due(now_ms):
            self._followed[key].state = FollowState.READY
            self._changed[key] = None

    @property
    def _has_to_end_wait(self) -> bool:
        return self._is_in_flight and self._may_wait and bool(self._changed)

    @property
    def _has_to_ask(self) -> bool:
        return bool(self._standing or self._changed) and not self._is_in_flight and not self._storing

    def _fetch(self) -> SendFetch:
        forgotten = _take(self._gone, self._max_changes)
        named = _take(self._changed, self._max_changes - len(forgotten))
        self._standing.update(named)
        self._moved.difference_update(named)
        has_more = bool(self._changed or self._gone)
        self._is_in_flight, self._may_wait = True, not has_more
        return SendFetch(
            changed=tuple(self._followed[key].wanted(key) for key in named), forgotten=forgotten, has_more=has_more
        )


def _take(keys: dict[PartitionKey, None], count: int) -> tuple[PartitionKey, ...]:
    """Remove and return the first `count` keys."""
    taken = tuple(islice(keys, count))
    for key in taken:
        del keys[key]
    return taken


def _brought_into_range(key: PartitionKey, followed: FollowedPartition, leader_start: int) -> Cut | Restart | None:
    """The effect that brings a log back into its leader's range; None if no effect can. `leader_start` may be -1."""
    leader_epoch, position = followed.leader_epoch, followed.position
    if position.end_offset < leader_start or (position.last_epoch == NO_EPOCH and leader_start >= 0):
        return Restart(key=key, leader_epoch=leader_epoch, log_start_offset=leader_start)
    if position.last_epoch > leader_epoch:
        # No leader has written such an epoch. The epoch of a batch is in no checksum: it was damaged.
        own_end = OffsetAndEpoch(position.end_offset, LeaderEpoch(leader_epoch))
        return Cut(key=key, leader_epoch=leader_epoch, diverging=own_end)
    return None
