"""A node of a metadata quorum in a simulated world: the product's hosts on a disk that loses what was not synced.

The node's clock, disk and peers are the ports of `server.ports`; messages go through Kafka's bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from simulation.harness.breach import Breach
from simulation.harness.disks import SlowDisk
from simulation.harness.network import Network
from simulation.harness.node import SimulatedNode
from simulation.harness.world import World
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.proofs import NO_SECRET, id_of_secret
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.schema import decode, encode_bytes
from tailrace.raft.ports import RaftConfig
from tailrace.raft.rpc import FetchSnapshotReply, Response
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, VoterSet
from tailrace.server.assembly.metadata_replica import (
    MetadataReplica,
    MetadataReplicaConfig,
    MetadataReplicaPorts,
    open_metadata_log,
)
from tailrace.server.errors import error_response
from tailrace.server.ports import QuorumRequest, QuorumResponse
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.server.quorum.raft_rpcs import check_sender
from tailrace.server.quorum.raft_wire import request_from_wire, response_to_wire
from tailrace.storage.snapshots.format import SNAPSHOT_SUFFIX
from tailrace.testing.disk import TOTAL_SPACE, SimulatedDisk
from testkit.quorum.controllers import controller_machine, topic_rules

DATA: Final = "/data"
SLICE_PARTITIONS: Final = 2
"""The partitions of a slice: few, so that work in slices is interrupted here, too."""
CLUSTER_ID: Final = "a-simulated-cluster-00"


class NodeObserver(Protocol):
    """Receives the actions of a node that other nodes can see."""

    def started(self, node: "QuorumNode") -> None: ...

    def answers(self, node: "QuorumNode", request: QuorumRequest, response: Response) -> None: ...

    def changed(self, node: "QuorumNode", image: ClusterImage) -> None: ...

    def publishes(self, node: "QuorumNode", part: str, snapshot: str) -> None: ...

    def stops(self, node: "QuorumNode") -> None: ...


class QuorumNode(SimulatedNode):
    """A voter or an observer."""

    def __init__(
        self,
        world: World,
        network: Network,
        *,
        key: ReplicaKey,
        voters: VoterSet,
        config: RaftConfig,
        trigger: SnapshotTrigger,
        longest_disk_ms: int,
        observer: NodeObserver,
        find: Callable[[int], "QuorumNode"],
        damage: float = 0.0,
        lying_sync: bool = False,
        directory_secret: bytes = NO_SECRET,
    ) -> None:
        super().__init__(world, network)
        self.key = key
        self.directory_secret = directory_secret
        self.damage = damage
        """The number of parts of snapshots that this node sends and in which a byte changes on the way."""
        self.wipes = 0
        """The number of disks that this node has lost."""
        self.told_failure: KafkaError | None = None
        """The fault that the host has reported for a log that it gave up, in this life."""
        self.controller: QuorumController
        self.host: QuorumHost
        self._voters = voters
        self._config = config
        self._trigger = trigger
        self._longest_disk_ms = longest_disk_ms
        self._observer = observer
        self._find = find
        self._lying_sync = lying_sync
        self.directory = DATA
        """The directory of its log."""
        self._ids = count(1)
        self.files = self._watched_disk()

    def _watched_disk(self) -> SimulatedDisk:
        files = self._new_disk(DATA, lying_sync=self._lying_sync)
        files.on_operation = self._before_operation
        return files

    def _before_operation(self, number: int, description: str) -> None:
        action, *paths = description.removeprefix(f"{number} ").split(" ")
        if action == "rename" and paths[2].endswith(SNAPSHOT_SUFFIX):
            self._observer.publishes(self, paths[0], paths[2])

    @property
    def node_id(self) -> int:
        return self.key.id

    # Life and death

    def _prepare(self) -> None:
        self.told_failure = None
        self._world.note(f"{self.key.id} starts")

    def _start(self) -> None:
        directory = MetadataDirectory(DATA, files=self.files)
        self.directory = directory.path
        try:
            log = open_metadata_log(directory, segment_bytes=4096, now_ms=self.clock.now_ms())
        except CorruptRecords as fault:
            raise Breach("what a power cut leaves is a log", f"{self.key}: {fault.detail}") from fault
        replica = MetadataReplica(
            MetadataReplicaConfig(
                key=self.key,
                directory_secret=self.directory_secret,
                cluster_id=CLUSTER_ID,
                voters=self._voters,
                bootstrap_ids=(),
                endpoints=(),
                is_controller=True,
                raft=self._config,
                snapshot_trigger=self._trigger,
                slice_partitions=SLICE_PARTITIONS,
            ),
            ports=MetadataReplicaPorts(
                clock=self.clock,
                disk=SlowDisk(self._world, self.do, self.life, key=self.key.id, longest_ms=self._longest_disk_ms),
                peer=self,
                jitter=lambda: self._world.draw("jitter", self.key.id),
                random_bytes=self._random_bytes,
                on_long_work=lambda _: None,
                on_storage_failed=self._storage_failed,
                on_fatal=lambda _: None,
            ),
            machine=controller_machine(random_bytes=self._random_bytes, rules=topic_rules(num_partitions=2)),
            directory=directory,
            log=log,
        )
        self.host, self.controller = replica.host, replica.controller
        self.controller.on_image(lambda image, delta: self._observer.changed(self, image))
        self._observer.started(self)
        replica.start()

    def _random_bytes(self, size: int) -> bytes:
        return ((1 << 120) + (self.key.id << 64) + next(self._ids)).to_bytes(16, "big")[-size:]

    def _storage_failed(self, fault: KafkaError) -> None:
        self.told_failure = fault
        self._world.note(f"the log of {self.key.id} has failed: {fault.detail}")
        if self.files.free_space < TOTAL_SPACE // 2:
            role = "leader" if self.host.node.is_leader else "follower"
            self._world.sometimes[f"the disk of a {role} is full"] += 1

    def crash(self) -> None:
        """Cut the power now."""
        if self.is_up:
            self._world.note(f"{self.key.id} stops: {self.describe()}")
            self._observer.stops(self)
        super().crash()

    def wipe(self) -> None:
        """Lose the disk. The node that comes back under this id is another replica, with another directory."""
        self.crash()
        self.wipes += 1
        if self.directory_secret == NO_SECRET:
            self.key = ReplicaKey(self.key.id, bytes([100 + self.wipes]) + self.key.directory_id[1:])
        else:
            self.directory_secret = bytes([100 + self.wipes]) + self.directory_secret[1:]
            self.key = ReplicaKey(self.key.id, id_of_secret(self.directory_secret))
        vars(self).pop("host", None)
        self.files = self._watched_disk()
        self._world.sometimes["disk lost"] += 1
        self._world.note(f"{self.key.id} loses its disk")

    # server.ports.Peer

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Send the request as Kafka's bytes, and bring back the answer as Kafka's bytes."""
        newest = schema_of(type(request)).versions.last
        version = self._world.between(oldest_version, newest, "version", self.key.id)
        data = encode_bytes(request, version)
        life = self.life
        target = self._find(node_id)

        def reply(message: QuorumResponse | None) -> None:
            if life is self.life:
                self.do(lambda: on_reply(message))

        def deliver() -> None:
            asked = decode(type(request), version, data)
            if not target.is_up:
                self._world.after(0, lambda: reply(None), life)
                return
            target.do(lambda: target.answer(asked, version, self.key.id, reply))

        self._network.send(self.key.id, node_id, deliver)

    def answer(
        self, request: QuorumRequest, version: int, source: int, reply: Callable[[QuorumResponse | None], None]
    ) -> None:
        """Serve a request as a handler does."""

        def answered(response: Response) -> None:
            self._observer.answers(self, request, response)
            if isinstance(response, FetchSnapshotReply):
                self._world.sometimes["bytes of a snapshot served"] += response.error is ErrorCode.NONE
                response = self._damaged(response)
            message = response_to_wire(response, request, leader=None)
            data = encode_bytes(message, version)
            kind: Any = type(message)
            self._network.send(self.key.id, source, lambda: reply(decode(kind, version, data)))

        received = request_from_wire(request)
        try:
            check_sender(self.host.node, received, request.secret)
        except KafkaError as refusal:
            self._world.sometimes["a stranger is refused"] += 1
            self._network.send(self.key.id, source, partial(reply, error_response(request, version, refusal)))
        else:
            self.host.receive(received, answered)

    def _damaged(self, response: FetchSnapshotReply) -> FetchSnapshotReply:
        data = bytes(response.data)
        if not data or not self._world.chance(self.damage, "damage", self.key.id):
            return response
        self._world.sometimes["damaged snapshot sent"] += 1
        place = self._world.between(0, len(data) - 1, "damaged byte", self.key.id)
        return replace(response, data=data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])

    def describe(self) -> str:
        """A line for a failure's message."""
        if not self.is_up or "host" not in vars(self):
            return f"{self.key.id}: down"
        raft, log = self.host.node, self.host.log
        return (
            f"{self.key.id}: {type(raft.role).__name__} of {raft.epoch}, leader {raft.leader_id},"
            f" log {log.log_start_offset} to {log.end_offset} ({log.last_epoch}), committed {raft.high_watermark},"
            f" applied {self.controller.applied_end_offset}, {self._health(self.host.failure)}"
        )

    def _health(self, failure: KafkaError | None) -> str:
        return "active" if self.controller.is_active else "healthy" if failure is None else f"failed ({failure})"


Q = TypeVar("Q", bound=QuorumNode)


def active_controller(nodes: Iterable[Q]) -> Q | None:
    """The active controller of the highest epoch."""
    active = [node for node in nodes if node.is_up and node.controller.is_active]
    return max(active, key=lambda node: node.host.node.epoch, default=None)
