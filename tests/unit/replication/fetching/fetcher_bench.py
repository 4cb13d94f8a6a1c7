"""A follower that fetches from a leader by script."""

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.model.machines import Tick
from tailrace.replication.fetcher_events import (
    Answered,
    Effect,
    Event,
    FetchAnswer,
    Follow,
    PartitionKey,
    Position,
    SendFetch,
    Stored,
)
from tailrace.replication.replica_fetcher import ReplicaFetcher
from tailrace.replication.throttle import ReplicationThrottle

A, B = (PartitionKey(TopicId(b"t" * 16), number) for number in (0, 1))
START = Position(0, -1, 0, 0)


class ReplicaFetcherBench:
    """A follower, and the partitions of its last fetch."""

    def __init__(
        self, *keys: PartitionKey, max_changes: int = 1_000, throttle: ReplicationThrottle | None = None
    ) -> None:
        self.machine = ReplicaFetcher(backoff_ms=1000, max_changes=max_changes, throttle=throttle)
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.wanted: dict[PartitionKey, int] = {}  # fetch offsets, as the fetches so far have it
        for key in keys:
            self.follow(key)
        self.step(Tick())

    @classmethod
    def at(cls, position: Position) -> "ReplicaFetcherBench":
        """A follower of A from this position on."""
        bench = cls()
        bench.follow(A, position=position)
        bench.step(Tick())
        return bench

    def step(self, event: Event) -> list[Effect]:
        self.effects = self.machine.step(event, self.now_ms)
        for fetch in self.fetches:
            for key in fetch.forgotten:
                del self.wanted[key]
            for change in fetch.changed:
                self.wanted.pop(change.key, None)
                self.wanted[change.key] = change.position.end_offset
        return self.effects

    def follow(self, key: PartitionKey, *, epoch: int = 3, position: Position = START) -> list[Effect]:
        return self.step(Follow(key=key, leader_epoch=epoch, position=position))

    def answer(self, *answers: FetchAnswer) -> list[Effect]:
        return self.step(Answered(answers=answers))

    def stored(self, key: PartitionKey, end: int, *, epoch: int = 3) -> list[Effect]:
        return self.step(Stored(key=key, leader_epoch=epoch, position=Position(end, 3, 0, 0)))

    @property
    def requested(self) -> list[tuple[PartitionKey, int]]:
        """The partitions and offsets for which the last step has asked the leader."""
        return list(self.wanted.items()) if self.fetches else []

    @property
    def fetches(self) -> list[SendFetch]:
        """The fetch of the last step, if it made a fetch."""
        fetches = [effect for effect in self.effects if isinstance(effect, SendFetch)]
        assert len(fetches) <= 1
        return fetches

    @property
    def changes(self) -> tuple[list[PartitionKey], list[PartitionKey]]:
        """The partitions that the fetch of the last step adds or changes, and the partitions that it forgets."""
        (fetch,) = self.fetches
        return [change.key for change in fetch.changed], list(fetch.forgotten)

    def later(self, milliseconds: int) -> list[Effect]:
        self.now_ms += milliseconds
        return self.step(Tick())


def records(key: PartitionKey, size: int = 1, *, high_watermark: int = 0, log_start: int = 0) -> FetchAnswer:
    return FetchAnswer(key, ErrorCode.NONE, high_watermark, log_start, b"r" * size)


def error(key: PartitionKey, code: ErrorCode, *, log_start: int = -1) -> FetchAnswer:
    return FetchAnswer(key, code, -1, log_start, b"")
