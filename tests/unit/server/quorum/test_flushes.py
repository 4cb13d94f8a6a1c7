"""Flushes of a quorum's log: a finished one is reported, also when the next one cannot be begun."""

from typing import Any, cast

from tailrace.model.errors import KafkaError, StorageError
from tailrace.server.quorum.flushes import QuorumFlushes
from testkit.ports import DeferredDisk


class Flush:
    def sync(self) -> None:
        pass


class Log:
    """A log that can begin every flush until it is broken."""

    def __init__(self) -> None:
        self.is_broken = False

    def begin_flush(self) -> Flush:
        if self.is_broken:
            raise StorageError("no")
        return Flush()

    def finish_flush(self, flush: Flush) -> None:
        pass


class World:
    """Flushes, and their reports in order."""

    def __init__(self) -> None:
        self.log = Log()
        self.disk = DeferredDisk()
        self.told: list[int | KafkaError] = []
        self.flushes = QuorumFlushes(
            cast("Any", self.log),
            carry_out=self.disk.carry_out,
            has_failed=lambda: any(isinstance(one, KafkaError) for one in self.told),
            on_flushed=self.told.append,
            on_failed=self.told.append,
        )


def test_a_flush_is_told_of_though_the_next_cannot_be_begun() -> None:
    world = World()
    world.flushes.want(1)
    world.flushes.want(2)
    world.log.is_broken = True
    world.disk.run()
    flushed, failed = world.told
    assert flushed == 1
    assert isinstance(failed, StorageError)


def test_wishes_of_a_time_without_flushes_that_cannot_be_begun_are_a_failure_that_is_told_of() -> None:
    world = World()
    world.flushes.hold()
    world.flushes.want(1)
    world.log.is_broken = True
    world.flushes.resume()
    (failed,) = world.told
    assert isinstance(failed, StorageError)


def test_the_next_flush_is_begun_for_what_has_come_meanwhile() -> None:
    world = World()
    for number in (1, 2, 3):
        world.flushes.want(number)
    world.disk.run()
    assert world.told == [1, 3]
