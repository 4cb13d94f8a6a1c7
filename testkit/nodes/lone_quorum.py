"""The metadata quorum of one node on the ports of a test: the product's hosts, a voter alone."""

from collections.abc import Callable

from tailrace.metadata.controller import ControllerMachine
from tailrace.model.topic_config import TopicConfig
from tailrace.raft.ports import RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.assembly.metadata_replica import (
    MetadataReplica,
    MetadataReplicaConfig,
    MetadataReplicaPorts,
    open_metadata_log,
)
from tailrace.server.ports import Clock, Disk, Timer
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.storage import FileSystem
from testkit.nodes.ports import NoPeer

_SOON_MS = 1


class _Never:
    def cancel(self) -> None:
        pass


class Unhurried:
    """A `server.ports.Clock` that makes only the calls that are due at once.

    A lone voter needs no other calls. A test may let years pass: no session of a broker ends, and there is no check
    every second.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now_ms = clock.now_ms
        self.monotonic_ms = clock.monotonic_ms
        self.call_soon = clock.call_soon

    def call_at(self, monotonic_ms: int, callback: Callable[[], None]) -> Timer:
        if monotonic_ms > self.monotonic_ms() + _SOON_MS:
            return _Never()
        return self._clock.call_at(monotonic_ms, callback)


class LoneQuorum:
    """A voter and its controller. `start` makes the voter lead as fast as the disk allows."""

    def __init__(
        self,
        directory: str,
        machine: ControllerMachine,
        *,
        files: FileSystem,
        clock: Clock,
        disk: Disk,
        key: ReplicaKey,
        cluster_id: str,
    ) -> None:
        """Opens the log. Raises CorruptRecords."""
        metadata_directory = MetadataDirectory(directory, files=files)
        self.log = open_metadata_log(
            metadata_directory, segment_bytes=TopicConfig().segment_bytes, now_ms=clock.now_ms()
        )
        self._replica = MetadataReplica(
            MetadataReplicaConfig(
                key=key,
                cluster_id=cluster_id,
                voters=VoterSet.of((Voter(key),)),
                bootstrap_ids=(),
                endpoints=(),
                is_controller=True,
                raft=RaftConfig(),
                snapshot_trigger=SnapshotTrigger(),
            ),
            ports=MetadataReplicaPorts(
                clock=Unhurried(clock),
                disk=disk,
                peer=NoPeer(clock.call_soon),
                jitter=lambda: 0.5,
                random_bytes=bytes,
                on_long_work=lambda _: None,
                on_storage_failed=lambda _: None,
                on_fatal=lambda _: None,
            ),
            machine=machine,
            directory=metadata_directory,
            log=self.log,
        )
        self.host = self._replica.host
        self.controller = self._replica.controller

    def start(self, on_ready: Callable[[], None]) -> None:
        """Take the lead, and call `on_ready` when the whole log is in the image and commands are taken."""
        own_epoch = self.log.end_offset + 1
        self._replica.start()
        self.controller.when_applied(own_epoch, on_ready)
