from typing import cast

from tailrace.replication.in_sync import InSyncReplicas
from tailrace.server.partitions.partition_logs import HeldHighWatermarks
from tailrace.testing.clock import ManualClock


class HeldInSync:
    """As far as it is needed, the `InSyncReplicas` of a partition."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.looks: list[int] = []

    def look_again(self) -> None:
        self.looks.append(self._clock.monotonic_ms())


def held(clock: ManualClock, count: int) -> tuple[HeldHighWatermarks, list[HeldInSync]]:
    return HeldHighWatermarks(clock), [HeldInSync(clock) for _ in range(count)]


def test_each_held_back_partition_looks_again_at_its_time_and_once() -> None:
    clock = ManualClock()
    marks, partitions = held(clock, 3)
    for in_sync, until_ms in zip(partitions, (300, 100, 100), strict=True):
        marks.hold(cast(InSyncReplicas, in_sync), until_ms)
    clock.advance(99)
    assert [in_sync.looks for in_sync in partitions] == [[], [], []]
    clock.advance(1_000)
    assert [in_sync.looks for in_sync in partitions] == [[300], [100], [100]]
    assert clock.calls_pending == 0


def test_a_partition_that_is_held_already_keeps_its_time() -> None:
    clock = ManualClock()
    marks, (in_sync,) = held(clock, 1)
    for until_ms in (100, 200, 300):
        marks.hold(cast(InSyncReplicas, in_sync), until_ms)
    clock.advance(1_000)
    assert in_sync.looks == [100]
    marks.hold(cast(InSyncReplicas, in_sync), 1_200)
    clock.advance(1_000)
    assert in_sync.looks == [100, 1_200]


def test_after_the_close_no_partition_looks_again() -> None:
    clock = ManualClock()
    marks, (in_sync,) = held(clock, 1)
    marks.hold(cast(InSyncReplicas, in_sync), 100)
    marks.close()
    clock.advance(1_000)
    assert in_sync.looks == []
