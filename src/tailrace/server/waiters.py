"""Requests that wait for records or a deadline, as long as their connection is open. The wait needs no task and no
polling.

`Deadlines` gives any number of waiters a deadline with one timer. `LongPolls` keeps requests that wait for changes of
partitions: a turn wakes each poll once, however many partitions have changed.

A fault of a waiter is raised after all other waiters were called. A failed long poll closes its connection: without its
answer, every later answer of the connection would have to wait.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from itertools import takewhile
from typing import Final, Protocol

from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Watcher
from tailrace.server.callbacks import SLICE_MS, Alarm, call_each
from tailrace.server.ports import Clock, ServerConnection


class Expiring(Hashable, Protocol):
    """A waiter with a deadline."""

    def expire(self) -> None:
        """Called at most once, when the time is over."""
        ...


_FEW_QUEUES: Final = 16


class Deadlines:
    """Waiters with their deadlines.

    Waiters with the same timeout are in one queue, in the order of their arrival and so of their deadlines: adding and
    removing cost one dictionary operation each. One timer runs, for the queue that is due first. The timer looks at due
    queues only: clients choose timeouts, and may choose thousands of different timeouts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[int, dict[Expiring, int]] = {}  # timeout -> waiter -> deadline
        self._order: list[tuple[int, int]] = []  # a heap of (the queue's first deadline or an earlier time, timeout)
        self._most_queues = _FEW_QUEUES
        self._alarm = Alarm(clock, self._run)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, waiter: Expiring, timeout_ms: int) -> None:
        """Call `waiter.expire()` when this time has passed, unless the waiter is removed before."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._new_queue(timeout_ms, deadline_ms)
        queue[waiter] = deadline_ms

    def remove(self, waiter: Expiring, timeout_ms: int) -> None:
        """Forget the waiter, if it is known. The timer stays set, and may find no waiter due."""
        queue = self._queues.get(timeout_ms)
        if queue is not None:
            queue.pop(waiter, None)

    def _new_queue(self, timeout_ms: int, deadline_ms: int) -> dict[Expiring, int]:
        if len(self._queues) >= self._most_queues:  # empty queues must not accumulate
            self._queues = {timeout_ms: queue for timeout_ms, queue in self._queues.items() if queue}
            self._order = sorted(entry for entry in self._order if entry[1] in self._queues)
            self._most_queues = max(_FEW_QUEUES, 2 * len(self._queues))
        heappush(self._order, (deadline_ms, timeout_ms))
        self._alarm.set(deadline_ms)
        queue = self._queues[timeout_ms] = {}
        return queue

    def _run(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due: list[Expiring] = []
        order = self._order
        while order and (order[0][0] <= now_ms or not self._queues[order[0][1]]):
            timeout_ms = order[0][1]
            queue = self._queues[timeout_ms]
            due += _take_due(queue, now_ms)
            if queue:
                heapreplace(order, (next(iter(queue.values())), timeout_ms))
            else:
                heappop(order)
                del self._queues[timeout_ms]
        if order:
            self._alarm.set(order[0][0])
        call_each(lambda waiter: waiter.expire(), due)


def _take_due(queue: dict[Expiring, int], now_ms: int) -> list[Expiring]:
    due = [waiter for waiter, _ in takewhile(lambda entry: entry[1] <= now_ms, queue.items())]
    for waiter in due:
        del queue[waiter]
    return due


MAX_POLLS: Final = 5_000
"""The most long polls of clients that may wait at once."""
MAX_REPLICA_POLLS: Final = 1_000
"""The most long polls of followers, which are counted apart: clients must not displace followers."""
MAX_WATCHED: Final = 500_000
"""The most partitions that the polls of one kind may wait for together: some 200 bytes per partition."""
CROWDED_WAIT_MS: Final = 250
"""The wait of a poll beyond these limits. No change wakes the poll, so its client cannot poll more often than that."""


class LongPoll(Hashable, Protocol):
    """A request that can wait."""

    is_from_replica: bool
    """Whether a follower polls."""
    replica_id: int
    """The follower's number; negative for a client."""
    watched: int
    """The number of watches that the poll needs. A try may change the watches, but must not raise their number."""

    def watch(self, watcher: Watcher) -> None:
        """Notify `watcher` of every change of a partition that may end the wait. Called again after each try without an
        answer."""
        ...

    def unwatch(self, watcher: Watcher) -> None:
        """Stop notifying `watcher`."""
        ...

    def retry(self, moved: Mapping[Partition | None, int], *, is_last: bool) -> bool:
        """Try to answer, now that these partitions have changed, with the kinds of their changes; returns whether the
        poll has answered. The key None stands for a partition that was not on this node before.

        `is_last`: the time is over, so the poll must answer.
        """
        ...


class _Capacity:
    """The limits of the waiting polls of one kind and of their partitions, and the present use of both limits."""

    __slots__ = ("_most_polls", "polls", "watched")

    def __init__(self, most_polls: int) -> None:
        self._most_polls = most_polls
        self.polls = 0
        self.watched = 0

    def fits(self, poll: LongPoll) -> bool:
        return self.polls < self._most_polls and self.watched + poll.watched <= MAX_WATCHED

    @property
    def is_half_used(self) -> bool:
        return 2 * self.polls >= self._most_polls or 2 * self.watched >= MAX_WATCHED


class _Parked:
    """A long poll while it waits: the watcher of its partitions."""

    __slots__ = ("capacity", "connection", "moved", "poll", "polls", "timeout_ms", "watched")

    def __init__(
        self,
        polls: "LongPolls",
        poll: LongPoll,
        connection: ServerConnection,
        timeout_ms: int,
        capacity: _Capacity,
    ) -> None:
        self.polls = polls
        self.poll = poll
        self.connection = connection
        self.timeout_ms = timeout_ms
        self.capacity = capacity
        self.watched = poll.watched
        self.moved: dict[Partition | None, int] = {}
        """The partitions that have changed since the last try, mostly few, with the kinds of their changes."""

    def watch(self) -> None:
        self.poll.watch(self)

    def unwatch(self) -> None:
        self.poll.unwatch(self)

    def changed(self, partition: Partition | None, kinds: int) -> None:
        moved = self.moved
        if not moved:
            self.polls.woken(self)
        moved[partition] = moved.get(partition, 0) | kinds

    def expire(self) -> None:
        self.polls.expired(self)


def _try(parked: _Parked, *, is_last: bool) -> bool:
    """Let the poll try to answer. A fault closes the connection of the poll."""
    moved, parked.moved = parked.moved, {}
    try:
        return parked.poll.retry(moved, is_last=is_last)
    except AssertionError:
        raise
    except Exception:
        parked.connection.close("a request that waited failed")
        raise


class LongPolls:
    """The long polls that wait now, with their deadlines.

    Polls take memory, so their number is limited, separately for followers and for clients. Beyond half of the limit a
    connection may have only one waiting poll: the answers of further polls could not leave before the answer of the
    first. A poll beyond the limit waits for a short time, and no change wakes it: if it were answered at once, its
    client would repeat it at once, and the node would do nothing else.
    """

    def __init__(self, *, clock: Clock, deadlines: Deadlines) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._by_connection: dict[ServerConnection, dict[_Parked, None]] = {}
        self._woken: deque[_Parked] = deque()
        self._is_retry_planned = False
        self._of_clients = _Capacity(MAX_POLLS)
        self._of_replicas = _Capacity(MAX_REPLICA_POLLS)
        self._of_surplus = _Capacity(MAX_POLLS)

    def __len__(self) -> int:
        return self._of_clients.polls + self._of_replicas.polls + self._of_surplus.polls

    def park(self, poll: LongPoll, connection: ServerConnection, timeout_ms: int) -> bool:
        """Keep `poll` until its answer, its deadline or the end of its connection.

        False if the poll has to be answered now: half of the limit is used and another poll of its connection waits, or
        too many polls wait beyond the limit.
        """
        capacity = self._of_replicas if poll.is_from_replica else self._of_clients
        is_second = bool(self._by_connection.get(connection))
        if is_second and capacity.is_half_used:
            return False
        is_watching = capacity.fits(poll)
        if not is_watching:
            capacity, timeout_ms = self._of_surplus, min(timeout_ms, CROWDED_WAIT_MS)
            if is_second or not capacity.fits(poll):
                return False
        self._let_wait(_Parked(self, poll, connection, timeout_ms, capacity), is_watching=is_watching)
        return True

    def _let_wait(self, parked: _Parked, *, is_watching: bool) -> None:
        connection = parked.connection
        of_connection = self._by_connection.get(connection)
        if of_connection is None:
            # A callback for each connection as long as it lives, not for each request.
            of_connection = self._by_connection[connection] = {}
            connection.on_close(lambda: self._closed(connection))
        of_connection[parked] = None
        parked.capacity.polls += 1
        parked.capacity.watched += parked.watched
        self._deadlines.add(parked, parked.timeout_ms)
        if is_watching:
            parked.watch()

    def woken(self, parked: _Parked) -> None:
        """Plan a try after this turn, since a partition has changed: the try sees all changes of the turn."""
        self._woken.append(parked)
        self._plan_retry()

    def _plan_retry(self) -> None:
        if not self._is_retry_planned:
            self._is_retry_planned = True
            self._clock.call_soon(self._retry_woken)

    def answer_all(self) -> None:
        """Answer every poll with the present records, as if its time were over: no more records will come."""
        waiting = [parked for of_connection in self._by_connection.values() for parked in of_connection]
        call_each(self.expired, waiting)

    def end_of_replica(self, connection: ServerConnection, replica_id: int) -> None:
        """Answer a poll of this follower that waits on the connection, as if its time were over: a later request of the
        follower has come on the connection, and its answer cannot leave before the poll's answer."""
        for parked in tuple(self._by_connection.get(connection, ())):
            if parked.poll.is_from_replica and parked.poll.replica_id == replica_id:
                self.expired(parked)

    def expired(self, parked: _Parked) -> None:
        """Answer a poll whose time is over."""
        if not self._is_waiting(parked):
            return
        self._drop(parked)
        is_answered = _try(parked, is_last=True)
        assert is_answered, "a long poll must answer when its time is over"

    def _retry_woken(self) -> None:
        self._is_retry_planned = False
        try:
            call_each(self._retry, self._some_woken())
        finally:
            if self._woken:
                self._plan_retry()

    def _some_woken(self) -> Iterator[_Parked]:
        """The woken polls, as many as one turn may try: a poll may read for 50 us, and answers leave only at the end of
        the turn."""
        until_ms = self._clock.monotonic_ms() + SLICE_MS
        for _ in range(len(self._woken)):
            if self._clock.monotonic_ms() >= until_ms:
                return
            yield self._woken.popleft()

    def _retry(self, parked: _Parked) -> None:
        if not self._is_waiting(parked):
            return  # answered, expired or gone since it was woken
        is_answered = _try(parked, is_last=False)
        if not self._is_waiting(parked):
            return  # an answer may close its connection
        if is_answered:
            self._drop(parked)
        else:
            parked.watch()

    def _is_waiting(self, parked: _Parked) -> bool:
        return parked in self._by_connection.get(parked.connection, ())

    def _drop(self, parked: _Parked) -> None:
        self._by_connection[parked.connection].pop(parked, None)
        self._release(parked)

    def _closed(self, connection: ServerConnection) -> None:
        for parked in self._by_connection.pop(connection, {}):
            self._release(parked)

    def _release(self, parked: _Parked) -> None:
        parked.capacity.polls -= 1
        parked.capacity.watched -= parked.watched
        self._deadlines.remove(parked, parked.timeout_ms)
        parked.unwatch()
