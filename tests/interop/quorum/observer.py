"""An observer of another quorum: the product's replica on a real disk and real sockets, without a node around it.

The observer runs on an event loop of its own, in a thread; whatever is asked of the observer is asked there.
"""

import asyncio
import random
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tailrace.metadata.image import ClusterImage
from tailrace.model.topic_config import TopicConfig
from tailrace.net.connection import Address
from tailrace.node.event_loop import LoopClock
from tailrace.node.flush_thread import FlushThread
from tailrace.node.peers import Peers
from tailrace.raft.ports import RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, VoterSet
from tailrace.server.assembly.metadata_replica import (
    MetadataReplica,
    MetadataReplicaConfig,
    MetadataReplicaPorts,
    open_metadata_log,
)
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.storage import OsFiles
from testkit.nodes.listeners import silent_turns
from testkit.quorum.controllers import controller_machine

_BOOTSTRAP_ID = -2
_PATIENCE_S = 60
_NEVER = SnapshotTrigger(min_log_bytes=1 << 40)

T = TypeVar("T")


class Observer:
    """Follows a quorum of one controller, of which only the address is known."""

    def __init__(self, directory: Path, controller: str, *, node_id: int = 900) -> None:
        host, _, port = controller.rpartition(":")
        self._address = Address(host, int(port))
        self._directory = directory
        self._node_id = node_id
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.faults: list[BaseException] = []
        """The failures that would have ended the process of a node."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._asked(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._asked(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def _asked(self, question: Callable[[], T]) -> T:
        """The result of the function, called on the event loop."""

        async def ask() -> T:
            return question()

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_PATIENCE_S)

    def _start(self) -> None:
        path, files = str(self._directory), OsFiles()
        self._turns = silent_turns(call_soon=self._loop.call_soon, on_broken_invariant=self.faults.append)
        clock = LoopClock(self._loop, self._turns)
        self._disk = FlushThread(
            directory=path, call_soon=self._loop.call_soon, post=clock.post, on_failure=self.faults.append
        )
        self._peers = Peers(
            address_of=lambda _: self._address, turns=self._turns, client_id="observer", timeout_ms=2_000
        )
        files.make_dirs(path)
        directory = MetadataDirectory(path, files=files)
        log = open_metadata_log(directory, segment_bytes=TopicConfig().segment_bytes, now_ms=clock.now_ms())
        replica = MetadataReplica(
            MetadataReplicaConfig(
                key=ReplicaKey(self._node_id, secrets.token_bytes(16)),
                cluster_id=None,
                voters=VoterSet(()),
                bootstrap_ids=(_BOOTSTRAP_ID,),
                endpoints=(),
                is_controller=False,
                raft=RaftConfig(snapshot_max_bytes=2_000),
                snapshot_trigger=_NEVER,
            ),
            ports=MetadataReplicaPorts(
                clock=clock,
                disk=self._disk,
                peer=self._peers,
                jitter=random.random,
                random_bytes=secrets.token_bytes,
                on_long_work=lambda _: None,
                on_storage_failed=self.faults.append,
                on_fatal=self.faults.append,
            ),
            machine=controller_machine(random_bytes=secrets.token_bytes),
            directory=directory,
            log=log,
        )
        self._host, self._controller = replica.host, replica.controller
        self._turns.run(self._controller.start)

    def _stop(self) -> None:
        self._peers.close()
        self._disk.stop()
        self._turns.run(self._controller.close)

    # Answers

    @property
    def image(self) -> ClusterImage:
        return self._asked(lambda: self._controller.image)

    @property
    def applied_end_offset(self) -> int:
        return self._asked(lambda: self._controller.applied_end_offset)

    @property
    def log_start_offset(self) -> int:
        return self._asked(lambda: self._host.log.log_start_offset)

    @property
    def leader_id(self) -> int:
        return self._asked(lambda: self._host.node.leader_id)

    @property
    def voters(self) -> VoterSet:
        return self._asked(lambda: self._host.node.voters)

    @property
    def snapshot_ids(self) -> list[tuple[int, int]]:
        """Ids of the snapshots that stand for records: end offset and epoch."""
        return self._asked(
            lambda: [(snapshot.id.end_offset, snapshot.id.epoch) for snapshot in self._host.log.snapshots]
        )
