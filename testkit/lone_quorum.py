"""The metadata quorum of one node on the ports of a test: the product's hosts, a voter without others."""

from collections.abc import Callable

from tailrace.metadata.controller import ControllerMachine
from tailrace.model.topic_config import TopicConfig
from tailrace.raft.ports import RaftConfig
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.ports import Clock, Disk, Timer
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MAX_BATCH_BYTES, METADATA_PARTITION, MetadataDirectory
from tailrace.storage import FileSystem
from testkit.ports import NoPeer

_SOON_MS = 1


class _Never:
    def cancel(self) -> None:
        pass


class Unhurried:
    """A `server.ports.Clock` by which only what is due at once ever happens.

    For a lone voter that is all that matters. A test may let years go by: no session of a broker ends, and there is no
    check every second.
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
    """One voter and its controller. `start` makes it lead as fast as the disk allows."""

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
        self.log = QuorumLog.open(
            metadata_directory.path,
            METADATA_PARTITION,
            files=files,
            config=TopicConfig(max_message_bytes=MAX_BATCH_BYTES),
            now_ms=clock.now_ms(),
        )
        unhurried = Unhurried(clock)
        self.host = QuorumHost(
            key=key,
            cluster_id=cluster_id,
            log=self.log,
            directory=metadata_directory,
            initial_voters=VoterSet.of((Voter(key),)),
            config=RaftConfig(),
            jitter=lambda: 0.5,
            clock=unhurried,
            disk=disk,
            peer=NoPeer(clock.call_soon),
        )
        self.controller = QuorumController(machine, host=self.host, clock=unhurried)

    def start(self, on_ready: Callable[[], None]) -> None:
        """Take the lead, and call `on_ready` when all of the log is in the image and commands are taken."""
        own_epoch = self.log.end_offset + 1
        self.controller.start()
        self.controller.when_applied(own_epoch, on_ready)
