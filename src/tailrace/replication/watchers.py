"""Watchers of a partition: told of each change of the kinds that they want, from `watch` until `unwatch`."""

from collections.abc import Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

_Subject = TypeVar("_Subject")


class Change:
    """Kinds of change, combined with `|`. Plain numbers: an enum of flags would cost microseconds per write."""

    LOG_END: Final = 1
    HIGH_WATERMARK: Final = 2
    LAST_STABLE_OFFSET: Final = 4
    """Told with the high watermark or the log start, since nothing else moves it."""
    LOG_START: Final = 8
    ROLE: Final = 16
    """Another leader, or another epoch of the same one."""
    ERROR: Final = 32
    """The log has gone offline."""


class Watcher(Hashable, Protocol):
    """An object that stays registered and compares by identity, so that no callback is made per registration."""

    def changed(self, subject: Any, kinds: int, /) -> None:
        """All of these kinds have changed at once. Called from within the change: only take note of it here."""
        ...


class Watchers(Generic[_Subject]):
    """The watchers of one subject, in the order in which they came."""

    __slots__ = ("_kinds", "_subject", "wanted")

    def __init__(self, subject: _Subject) -> None:
        self._subject = subject
        self._kinds: dict[Watcher, int] = {}
        self.wanted = 0
        """The kinds that a watcher may want: asked before `tell`. It shrinks only when the last watcher goes."""

    def add(self, watcher: Watcher, kinds: int) -> None:
        """Tell the watcher of changes of these kinds from now on; one that is here already, of these alone."""
        self._kinds[watcher] = kinds
        self.wanted |= kinds

    def remove(self, watcher: Watcher) -> None:
        """Do not tell this watcher any more, if it is here."""
        self._kinds.pop(watcher, None)
        if not self._kinds:
            self.wanted = 0

    def tell(self, kinds: int) -> None:
        """Tell the watchers that want one of these kinds."""
        subject = self._subject
        for watcher, wanted in tuple(self._kinds.items()):
            if wanted & kinds:
                watcher.changed(subject, kinds)
