"""The high watermarks that a joining replica holds back, until its time is over (`replication.leadership`, rule 2).

A fetch of that replica, or of another one, advances the high watermark by itself. The timer is for the case that none
comes: the replica has died, and the others have nothing to fetch.
"""

from collections.abc import Iterator

from tailrace.replication.in_sync import InSyncReplicas
from tailrace.replication.pauses import Pauses
from tailrace.server.callbacks import Alarm, run_in_slices
from tailrace.server.ports import Clock


class HeldHighWatermarks:
    """The partitions with such a high watermark, all with one timer. While there is none, no timer runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held = Pauses[InSyncReplicas]()
        self._alarm = Alarm(clock, self._look)

    def hold(self, in_sync: InSyncReplicas, until_ms: int) -> None:
        """Have this one look again then; one that is held already looks again at the earlier time."""
        if in_sync not in self._held:
            self._held.begin(in_sync, until_ms)
            self._alarm.set(until_ms)

    def close(self) -> None:
        """Look no more."""
        self._alarm.cancel()

    def _look(self) -> None:
        due = self._held.take_due(self._clock.monotonic_ms())
        next_ms = self._held.next_end_ms
        if next_ms is not None:
            self._alarm.set(next_ms)
        run_in_slices(_looking(due), self._clock)


def _looking(due: list[InSyncReplicas]) -> Iterator[None]:
    for in_sync in due:
        in_sync.look_again()
        yield
