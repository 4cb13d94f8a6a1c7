"""Metadata of any size, and a replica of the metadata on a real disk, whose turns of the event loop are timed."""

import asyncio
import gc
import random
import secrets
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Self

from tailrace.metadata.commands import ControllerCommand
from tailrace.metadata.feature_levels import METADATA_VERSION, METADATA_VERSION_FEATURE
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.brokers import RegisterBrokerRecord
from tailrace.metadata.records.cluster import FeatureLevelRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import PartitionRecord, TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import snapshot_values
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.topic_config import TopicConfig
from tailrace.net.turns import Turns
from tailrace.node.event_loop import LoopClock
from tailrace.node.flush_thread import FlushThread
from tailrace.node.metadata_quorum import Collector
from tailrace.raft.ports import RaftConfig
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.assembly.metadata_replica import (
    MetadataReplica,
    MetadataReplicaConfig,
    MetadataReplicaPorts,
    open_metadata_log,
)
from tailrace.server.quorum.controller import OnImage
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.storage import OsFiles
from tailrace.storage.snapshots.writer import Publication
from testkit.quorum.controllers import controller_machine

REPLICATION_FACTOR = 3
STATE_ID = SnapshotId(1_000_000, 1)
"""The id of the snapshot with which a replica begins."""
VOTER = ReplicaKey(0)


def records(topics: int, partitions: int, brokers: int) -> Iterator[MetadataRecord]:
    """A cluster: `brokers` that are alive, and topics of so many partitions, with random ids and replicas."""
    chance = random.Random(1)
    yield FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
    directories = [chance.randbytes(16) for _ in range(brokers)]
    for broker_id, directory in enumerate(directories):
        yield RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=chance.randbytes(16),
            broker_epoch=broker_id,
            end_points=(),
            features=(),
            rack=None,
            fenced=False,
            log_dirs=(directory,),
        )
    everybody = range(brokers)
    for number in range(topics):
        topic_id = chance.randbytes(16)
        yield TopicRecord(name=f"topic-{number}", topic_id=topic_id)
        for partition in range(partitions):
            replicas = tuple(chance.sample(everybody, REPLICATION_FACTOR))
            yield PartitionRecord(
                partition_id=partition,
                topic_id=topic_id,
                replicas=replicas,
                isr=replicas,
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=tuple(directories[replica] for replica in replicas),
            )


def image_of(topics: int, partitions: int, brokers: int) -> ClusterImage:
    """The image that these records make."""
    return apply_all(EMPTY_IMAGE, records(topics, partitions, brokers))[0]


def opened_log(directory: Path, files: OsFiles | None = None) -> QuorumLog:
    """The metadata log in this directory."""
    return open_metadata_log(
        MetadataDirectory(str(directory), files=files or OsFiles()),
        segment_bytes=TopicConfig().segment_bytes,
        now_ms=time.time_ns() // 1_000_000,
    )


def write_snapshot(log: QuorumLog, image: ClusterImage, *, slice_records: int = 200) -> list[float]:
    """Write the image as the log's newest snapshot; returns the CPU seconds of each slice."""
    writer = log.begin_snapshot(STATE_ID, last_contained_ms=0, voters=None)
    values = snapshot_values(image)
    slices = []
    before = time.process_time()
    while part := list(islice(values, slice_records)):
        writer.append(part)
        now = time.process_time()
        slices.append(now - before)
        before = now
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    log.finish_snapshot(publication)
    return slices


def quiet_collector() -> None:
    """Set the garbage collector as a serving node has it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


class TimedTurns(Turns):
    """Turns that record the CPU time of each turn on this thread, without the noise of other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            call_soon=loop.call_soon, on_broken_invariant=self._broken, on_stall=lambda work, seconds: None
        )
        self.seconds: list[float] = []
        self._depth = 0

    def _broken(self, fault: BaseException) -> None:
        raise fault

    def run(self, work: Callable[[], None]) -> None:
        self._depth += 1
        began = time.thread_time()
        try:
            super().run(work)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds.append(time.thread_time() - began)


class Replica:
    """The only voter of a quorum, in this process: the product's hosts on a real disk and a real event loop."""

    def __init__(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        self.turns = TimedTurns(loop)
        self.clock = LoopClock(loop, self.turns)
        self.files = OsFiles()
        self.directory = directory
        self.disk = FlushThread(
            directory=str(directory), call_soon=loop.call_soon, post=self.clock.post, on_failure=self.turns._broken
        )
        self._log = opened_log(directory)
        self._replica = MetadataReplica(
            MetadataReplicaConfig(
                key=VOTER,
                cluster_id=None,
                voters=VoterSet((Voter(VOTER),)),
                bootstrap_ids=(),
                endpoints=(),
                is_controller=False,
                raft=RaftConfig(),
                snapshot_trigger=SnapshotTrigger(),
            ),
            ports=MetadataReplicaPorts(
                clock=self.clock,
                disk=self.disk,
                peer=_NoPeers(),
                jitter=random.random,
                random_bytes=secrets.token_bytes,
                on_long_work=Collector().long_work,
                on_storage_failed=self.turns._broken,
                on_fatal=self.turns._broken,
            ),
            machine=controller_machine(random_bytes=secrets.token_bytes, broker_session_timeout_ms=3_600_000),
            directory=MetadataDirectory(str(directory), files=self.files),
            log=self._log,
        )
        self.controller = self._replica.controller

    async def __aenter__(self) -> Self:
        self.turns.run(self.controller.start)
        while not self.controller.is_active:  # noqa: ASYNC110 - a turn of its own would be measured too
            await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.disk.stop()
        self.turns.run(self.controller.close)

    def listen(self, listener: OnImage) -> None:
        self.controller.on_image(listener)

    async def ask(self, command: ControllerCommand) -> object:
        """The controller's answer. Raises KafkaError if the controller refuses."""
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.turns.run(lambda: self.controller.submit(command, answered.set_result))
        answer = await answered
        if isinstance(answer, KafkaError):
            raise answer
        return answer


class _NoPeers:
    """The peers of a quorum with a single voter."""

    def send(self, node_id: int, request: object, on_reply: object, **_: object) -> None:
        raise AssertionError(f"there is no node {node_id}")


FENCED = BrokerId(0)
