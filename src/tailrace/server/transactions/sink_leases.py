"""Runs of sinks whose tasks have promised signs of life (decision 0083).

A member whose run gives no more signs will be committed by no driver, in all likelihood: it is aborted before its
timeout, so that readers do not wait for it. A sign of any task counts for all of its run: a task that is done waits for
the others. In memory alone: another coordinator begins without any, and goes by the timeouts until the next sign.
"""

from typing import Final, NamedTuple

MOST_RUNS: Final = 10_000
"""Of one coordinator; the members of others have their timeouts alone."""
LONGEST_LEASE_MS: Final = 3_600_000
LONGEST_STEP_MS: Final = 20_000
"""The most time that counts between two looks: a coordinator that slept could receive no signs."""


class SinkRun(NamedTuple):
    """A run of a sink's writer."""

    sink: str
    run: str


class SinkLeases:
    """The runs, and the time that each has left. Times are those of one monotonic clock, in ms."""

    def __init__(self, now_ms: int) -> None:
        self._left_ms: dict[SinkRun, int] = {}
        self._looked_ms = now_ms

    def __len__(self) -> int:
        return len(self._left_ms)

    def renewed(self, run: SinkRun, lease_ms: int) -> None:
        """The run has given a sign, and promises another one within this time."""
        if run in self._left_ms or len(self._left_ms) < MOST_RUNS:
            self._left_ms[run] = min(lease_ms, LONGEST_LEASE_MS) + LONGEST_STEP_MS

    def lapsed(self, now_ms: int) -> list[SinkRun]:
        """The runs whose time is over, which are forgotten."""
        step_ms = min(max(now_ms - self._looked_ms, 0), LONGEST_STEP_MS)
        self._looked_ms = now_ms
        for run in self._left_ms:
            self._left_ms[run] -= step_ms
        over = [run for run, left_ms in self._left_ms.items() if left_ms <= 0]
        for run in over:
            del self._left_ms[run]
        return over
