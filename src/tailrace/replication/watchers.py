"""Watchers of a partition, notified of each change until their removal, and waiters, called once for an offset.

A fault of a watcher or waiter is logged. The fault does not stop other watchers and waiters, and is not raised: the
caller may be the fetch of a follower, or the end of a flush, which has not caused the fault. A failed assertion is a
broken invariant, and is raised.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from tailrace.model.errors import KafkaError

_Subject = TypeVar("_Subject")

_logger = logging.getLogger("tailrace.replication")


class Change:
    """Kinds of change, combined with `|`. Plain numbers: an enum of flags would cost microseconds per write."""

    LOG_END: Final = 1
    HIGH_WATERMARK: Final = 2
    LAST_STABLE_OFFSET: Final = 4
    """The last stable offset has moved; always together with the high watermark or the log start, which alone move the
    readable end."""
    LOG_START: Final = 8
    ROLE: Final = 16
    """The partition has another leader, or the same leader in another epoch."""
    ERROR: Final = 32
    """The log has gone offline."""
    SETTINGS: Final = 64
    """The settings of the topic have changed."""
    CANDIDATES: Final = 128
    """The followers that a consumer may be sent to have changed, or the offsets up to which followers can serve a
    consumer."""
    IN_SYNC: Final = 256
    """The leader's replicas, the replicas in sync, or the excluded replicas have changed: the fetches of followers have
    to be recorded again."""
    AVAILABLE: Final = 512
    """A read that was pending (`replication.outcomes`) can be made again."""


class Watcher(Hashable, Protocol):
    """An object that is notified of changes. It compares by identity; an object in place of a callback spares one bound
    method for each registration."""

    def changed(self, subject: Any, kinds: int, /) -> None:
        """Called with all kinds that have changed at once, in the middle of the change: an implementation only records
        the kinds."""
        ...


class Watchers(Generic[_Subject]):
    """The watchers of one subject, in the order in which they came."""

    __slots__ = ("_kinds", "_subject", "wanted")

    def __init__(self, subject: _Subject) -> None:
        self._subject = subject
        self._kinds: dict[Watcher, int] = {}
        self.wanted = 0
        """The kinds that any watcher may want, for a check before `notify`. Reset only when the last watcher is
        removed."""

    def add(self, watcher: Watcher, kinds: int) -> None:
        """Notify the watcher of changes of these kinds from now on. For a registered watcher, the kinds replace its
        former kinds."""
        self._kinds[watcher] = kinds
        self.wanted |= kinds

    def remove(self, watcher: Watcher) -> None:
        """Remove this watcher, which may be removed already."""
        self._kinds.pop(watcher, None)
        if not self._kinds:
            self.wanted = 0

    def notify(self, kinds: int) -> None:
        """Notify the watchers that want any of these kinds."""
        subject = self._subject
        for watcher, wanted in tuple(self._kinds.items()):
            if wanted & kinds:
                try:
                    watcher.changed(subject, kinds)
                except AssertionError:
                    raise
                except Exception:
                    _logger.exception("event=watcher-failed watcher=%r", watcher)


Waiter = Callable[[KafkaError | None], None]
"""Called once: with None when the offset has been reached, or with the error that makes this impossible."""


class OffsetWaiters:
    """Waiters by the offset they wait for. Most are added in the order of their offsets, and called in that order."""

    __slots__ = ("_offsets", "_waiters")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, offset: int, waiter: Waiter) -> None:
        """Wait for `offset`, behind every waiter for the same offset."""
        offsets = self._offsets
        if not offsets or offsets[-1] <= offset:
            offsets.append(offset)
            self._waiters.append(waiter)
        else:
            index = bisect_right(offsets, offset)
            offsets.insert(index, offset)
            self._waiters.insert(index, waiter)

    def remove(self, offset: int, waiter: Waiter) -> None:
        """Do not call this waiter for `offset`; it may have been called."""
        offsets, waiters = self._offsets, self._waiters
        index = bisect_left(offsets, offset)
        while index < len(offsets) and offsets[index] == offset:
            if waiters[index] == waiter:
                del offsets[index], waiters[index]
                return
            index += 1

    def reached(self, offset: int) -> None:
        """Call the waiters of this offset and of lower offsets, lowest first."""
        count = bisect_right(self._offsets, offset)
        if count:
            due = self._waiters[:count]
            del self._offsets[:count], self._waiters[:count]
            _call_each(due, None)

    def fail(self, error: KafkaError) -> None:
        """Call every waiter with the error."""
        due, self._offsets, self._waiters = self._waiters, [], []
        _call_each(due, error)


def _call_each(waiters: list[Waiter], error: KafkaError | None) -> None:
    for waiter in waiters:
        try:
            waiter(error)
        except AssertionError:
            raise
        except Exception:
            _logger.exception("event=waiter-failed waiter=%r", waiter)
