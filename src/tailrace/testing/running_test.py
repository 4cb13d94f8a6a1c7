"""The test that pytest runs now, and the clusters that it uses. Every run of pytest loads this module: it is small.

Without pytest no test runs, and nothing is noted.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakSet

_NO_FAILURES = (KeyboardInterrupt, SystemExit, GeneratorExit)
_OUTCOMES_WITHOUT_REPORT = ("Skipped", "XFailed", "Exit")
"""Exceptions of pytest, by name: this module does not import pytest."""
Section: TypeAlias = tuple[str, str]
"""The title and the text of a section of a report."""


class RunningTest:
    """The time at which the test began, the clusters that it has started, and the ends of those that are closed."""

    def __init__(self) -> None:
        self.since_ms: int | None = None
        """ms since 1970; None without a test."""
        self.started: WeakSet[Any] = WeakSet()
        self._known: WeakSet[Any] = WeakSet()
        """The clusters of all tests."""
        self.last_words: list[Section] = []
        """Sections about clusters that are closed."""
        self._describe: Callable[[Any, int], list[Section]] | None = None

    def begin(self, describe: Callable[[Any, int], list[Section]]) -> None:
        """Note the time. `describe` makes the sections about a cluster, with records from a time on."""
        self._describe = describe
        self.since_ms = int(time.time() * 1000)
        self.started.clear()
        for cluster in self._known:
            cluster.mark_logs()
        self.last_words.clear()

    def note_start(self, cluster: Any) -> None:
        self._known.add(cluster)
        if self.since_ms is not None:
            self.started.add(cluster)

    def note_end(self, cluster: Any, fault: BaseException) -> None:
        """Keep the sections about a cluster whose block ends by this exception."""
        is_failure = not isinstance(fault, _NO_FAILURES) and type(fault).__name__ not in _OUTCOMES_WITHOUT_REPORT
        if self.since_ms is not None and self._describe is not None and is_failure:
            self.last_words += self._describe(cluster, self.since_ms)


RUNNING_TEST = RunningTest()
"""The test of this process."""
