"""The times at which a replica writes snapshots of its own, also when it loads one meanwhile."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.server.quorum.snapshots import MetadataSnapshots
from tailrace.storage.snapshots.writer import Publication
from tailrace.testing.clock import ManualClock

OWN, LOADED = SnapshotId(10, 1), SnapshotId(1000, 7)
TRIGGER = SnapshotTrigger(min_changed_ratio=0.5, min_log_bytes=100, patience=10)
LOADED_BYTES = 100_000


class EmptySnapshotWriter:
    """The writer of a snapshot of an empty image."""

    records_count = 0
    part = SimpleNamespace(size_bytes=50)

    def append(self, values: Iterable[object]) -> None:
        pass

    def seal(self) -> None:
        pass


class LogWithSnapshot:
    """A log with the snapshot that is loaded."""

    snapshots = (SimpleNamespace(id=LOADED, size_bytes=LOADED_BYTES),)

    def begin_snapshot(self, snapshot_id: SnapshotId, **_: object) -> EmptySnapshotWriter:
        return EmptySnapshotWriter()

    def finish_snapshot(self, publication: Publication) -> SimpleNamespace:
        return SimpleNamespace(snapshot_id=OWN)


class PublishingHost:
    """Publishes a snapshot when the test says so."""

    failure = None
    node = SimpleNamespace(snapshot_fault=lambda snapshot_id: None, voters_at=lambda offset: None)

    def __init__(self) -> None:
        self.log = LogWithSnapshot()
        self.publications: list[Callable[[], None]] = []

    def publish(self, publication: Publication, task: Callable[[], None]) -> None:
        self.publications.append(task)

    def step(self, event: object) -> None:
        pass


class SnapshotsBench:
    """A replica that loads a snapshot of 3,000 records while it writes an empty one of its own."""

    def __init__(self) -> None:
        host = PublishingHost()
        self.snapshots = MetadataSnapshots(cast("Any", host), clock=ManualClock(), trigger=TRIGGER)
        assert self.snapshots.begin(EMPTY_IMAGE, OWN, 0)
        self.snapshots.loaded(EMPTY_IMAGE, LOADED, 3_000)
        (written,) = host.publications
        written()


def test_a_snapshot_that_is_loaded_while_another_is_written_keeps_its_number_of_records() -> None:
    """The ratio of changed records is the loaded snapshot's: 0 of 3,000, not 0 of 0."""
    replica = SnapshotsBench()
    replica.snapshots.appended(TRIGGER.min_log_bytes)
    assert not replica.snapshots.is_due


def test_a_snapshot_that_is_loaded_while_another_is_written_keeps_its_size() -> None:
    replica = SnapshotsBench()
    replica.snapshots.appended(TRIGGER.patience * LOADED_BYTES - 1)
    assert not replica.snapshots.is_due
    replica.snapshots.appended(1)
    assert replica.snapshots.is_due
