"""Flushes of a quorum's log: a finished flush is reported, also when the next flush cannot begin."""

from typing import Any, cast

from tailrace.model.errors import KafkaError, StorageError
from tailrace.server.quorum.flushes import QuorumFlushes
from testkit.nodes.ports import DeferredDisk


class EmptyFlush:
    def sync(self) -> None:
        pass


class BreakableLog:
    """A log that can begin every flush until it is broken."""

    def __init__(self) -> None:
        self.is_broken = False

    def begin_flush(self) -> EmptyFlush:
        if self.is_broken:
            raise StorageError("no")
        return EmptyFlush()

    def finish_flush(self, flush: EmptyFlush) -> None:
        pass


class FlushesBench:
    """Flushes, and their reports in order."""

    def __init__(self) -> None:
        self.log = BreakableLog()
        self.disk = DeferredDisk()
        self.outcomes: list[int | KafkaError] = []
        self.flushes = QuorumFlushes(
            cast("Any", self.log),
            carry_out=self.disk.carry_out,
            has_failed=lambda: any(isinstance(outcome, KafkaError) for outcome in self.outcomes),
            on_flushed=self.outcomes.append,
            on_failed=self.outcomes.append,
        )


def test_a_complete_flush_is_reported_although_the_next_cannot_be_begun() -> None:
    bench = FlushesBench()
    bench.flushes.request(1)
    bench.flushes.request(2)
    bench.log.is_broken = True
    bench.disk.run()
    flushed, failed = bench.outcomes
    assert flushed == 1
    assert isinstance(failed, StorageError)


def test_a_flush_requested_while_held_that_cannot_be_begun_is_reported_as_a_failure() -> None:
    bench = FlushesBench()
    bench.flushes.hold()
    bench.flushes.request(1)
    bench.log.is_broken = True
    bench.flushes.resume()
    (failed,) = bench.outcomes
    assert isinstance(failed, StorageError)


def test_requests_during_a_flush_become_the_next_flush() -> None:
    bench = FlushesBench()
    for number in (1, 2, 3):
        bench.flushes.request(number)
    bench.disk.run()
    assert bench.outcomes == [1, 3]
