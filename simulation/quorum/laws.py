"""Laws of a metadata quorum of whole nodes, checked after every event, whatever fails.

The keeper has its own log of committed records, read from the first node that reports a record, and its own replay of
this log: the committed records and image of every node must be the same, at every offset, in every life.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simulation.harness.breach import Breach
from simulation.harness.world import Life
from simulation.quorum.node import QuorumNode
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.kinds import decode_record
from tailrace.metadata.replay import apply_all
from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import LeaderEpoch, TopicId
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.messages import quorum
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.raft.ports import SnapshotFile
from tailrace.raft.roles import Candidate, Leader, Prospective
from tailrace.raft.rpc import Response, VoteReply
from tailrace.raft.voters import ReplicaKey
from tailrace.server.ports import QuorumRequest
from tailrace.storage.file_system import join
from tailrace.storage.snapshots.format import SNAPSHOT_SUFFIX, snapshot_name, walk


class CommittedBatch(NamedTuple):
    """A batch that is committed, byte by byte."""

    base_offset: int
    end_offset: int
    epoch: int
    content: bytes


class QuorumLaws:
    """The keeper of the laws. `nodes` are all nodes, up or not."""

    def __init__(self) -> None:
        self.nodes: list[QuorumNode] = []
        self.leaders: dict[int, ReplicaKey] = {}
        """The leaders by epoch."""
        self.batches: dict[int, CommittedBatch] = {}
        """The committed batches by base offset."""
        self.images: dict[int, ClusterImage] = {0: EMPTY_IMAGE}
        """The committed images by the end offset of their last batch."""
        self.committed_end = 0
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._flushed: dict[ReplicaKey, int] = {}
        """The durable end of each log, also of disks that are gone: no node can know of the loss at once."""
        self._seen: dict[int, tuple[Life, int]] = {}
        self._snapshots: dict[int, Sequence[SnapshotFile]] = {}

    @property
    def image(self) -> ClusterImage:
        """The committed image, by this keeper's own replay."""
        return self.images[self.committed_end]

    # Observer

    def started(self, node: QuorumNode) -> None:
        """Check that a node that has started finds its promises on its disk."""
        epoch = node.host.node.quorum_state.epoch
        promised = [voted for voter, voted in self._votes if voter == node.key]
        promised += [led for led, leader in self.leaders.items() if leader == node.key]
        if epoch < max(promised, default=0):
            raise Breach("a promise is on disk when it leaves", f"{node.key} starts in {epoch} after {max(promised)}")

    def answers(self, node: QuorumNode, request: QuorumRequest, response: Response) -> None:
        """Check that a node gives its vote once per epoch."""
        if not isinstance(request, quorum.VoteRequest) or not isinstance(response, VoteReply):
            return
        part = request.topics[0].partitions[0]
        if part.pre_vote or not response.vote_granted:
            return
        candidate = next(voter.key for voter in self.nodes if voter.key.id == part.replica_id)
        vote = self._votes.setdefault((node.key, part.replica_epoch), candidate)
        if vote != candidate:
            raise Breach("one vote per epoch", f"{node.key} in {part.replica_epoch}: {vote}, {candidate}")

    def changed(self, node: QuorumNode, image: ClusterImage) -> None:
        """Check the new image of a node."""
        offset = node.controller.applied_end_offset
        if offset > (node.host.node.high_watermark or 0):
            raise Breach("only what is committed is shown", f"{node.key} at {offset}")
        self._learn(node, offset)
        expected = self.images.get(offset)
        if expected is None:
            raise Breach("images end where batches end", f"{node.key} at {offset}")
        if image != expected:
            raise Breach("images are equal at equal offsets", f"{node.key} at {offset}")

    def publishes(self, node: QuorumNode, part: str, snapshot: str) -> None:
        """Check a file that is about to be called a snapshot: the file must hold that snapshot, to the last byte, and
        be on the disk."""
        epoch = int(snapshot.removesuffix(SNAPSHOT_SUFFIX).rpartition("-")[2])
        content = node.files.read_bytes(part)
        try:
            for _ in walk(
                lambda length, position: content[position : position + length],
                size_bytes=len(content),
                leader_epoch=epoch,
                path=part,
            ):
                pass
        except CorruptRecords as fault:
            raise Breach("only what is whole is called a snapshot", f"{node.key}: {fault.detail}") from fault
        if node.files.unsynced_bytes(part):
            raise Breach("only what is synced is called a snapshot", f"{node.key}: {part}")

    def stops(self, node: QuorumNode) -> None:
        """Note that a node ends: until now its reports about its log to other nodes were true."""
        if "host" in vars(node):
            self._flushed[node.key] = node.host.node.flushed_end_offset

    # After each event

    def check(self) -> None:
        """Look at what has changed on any node."""
        up = [node for node in self.nodes if node.is_up]
        for node in up:
            self._flushed[node.key] = node.host.node.flushed_end_offset
        for node in up:
            self._check_node(node)

    def _check_node(self, node: QuorumNode) -> None:
        raft = node.host.node
        if raft.is_leader:
            self._check_leader(node)
        high_watermark = raft.high_watermark or 0
        life, before = self._seen.get(node.key.id, (None, 0))
        if life is not node.life:
            before = 0
        if high_watermark < before:
            raise Breach("monotonic high watermark", f"{node.key}: {high_watermark} after {before}")
        snapshots = node.host.log.snapshots
        if snapshots is not self._snapshots.get(node.key.id):
            self._snapshots[node.key.id] = snapshots
            self._check_snapshots(node, snapshots)
        if node.host.failure is not None:
            self._check_failed(node)
        if raft.is_leader and high_watermark > self.committed_end:
            self._check_majority(node, high_watermark)
        if high_watermark > before:
            self._learn(node, min(high_watermark, node.host.log.end_offset), before)
        self._seen[node.key.id] = (node.life, high_watermark)

    def _check_leader(self, node: QuorumNode) -> None:
        epoch = node.host.node.epoch
        if epoch not in self.leaders:
            self._check_votes(node, epoch)
        leader = self.leaders.setdefault(epoch, node.key)
        if leader != node.key:
            raise Breach("one leader per epoch", f"epoch {epoch}: {leader} and {node.key}")
        if epoch == max(self.leaders) and node.host.log.end_offset < self.committed_end:
            raise Breach("leader completeness", f"{node.key} ends before {self.committed_end}")

    def _check_votes(self, node: QuorumNode, epoch: int) -> None:
        """Check that a majority of the node's voters, each an id with a directory, has voted for the node."""
        voters = node.host.node.voters
        granting = [key for key in voters.keys if key == node.key or self._votes.get((key, epoch)) == node.key]
        if len(granting) <= len(voters) // 2:
            raise Breach("a leader has a majority's votes", f"{node.key} in {epoch}: only {granting} of {voters.keys}")

    def _check_majority(self, node: QuorumNode, high_watermark: int) -> None:
        voters = node.host.node.voters
        durable = [key for key in voters.keys if self._flushed.get(key, 0) >= high_watermark]
        if len(durable) <= len(voters) // 2:
            detail = f"{node.key} at {high_watermark}: only {durable} of {voters.keys}"
            raise Breach("committed is on a majority's disks", detail)

    def _check_snapshots(self, node: QuorumNode, snapshots: Sequence[SnapshotFile]) -> None:
        for snapshot in snapshots:
            path = join(
                node.directory,
                snapshot_name(OffsetAndEpoch(snapshot.id.end_offset, LeaderEpoch(snapshot.id.epoch))) + SNAPSHOT_SUFFIX,
            )
            if not node.files.is_name_durable(path):
                raise Breach("a snapshot that counts has its name on the disk", f"{node.key}: {path}")

    def _check_failed(self, node: QuorumNode) -> None:
        raft, failure = node.host.node, node.host.failure
        if isinstance(raft.role, Prospective | Candidate | Leader):
            raise Breach(
                "a node that has lost its log neither stands nor leads", f"{node.key} is {raft.role}: {failure}"
            )
        if node.told_failure is not failure:
            raise Breach("a node that loses its log says so", f"{node.key}: {node.told_failure}, not {failure}")

    def _learn(self, node: QuorumNode, end_offset: int, from_offset: int | None = None) -> None:
        """Compare the records that are committed for this node with the known committed records, and learn new
        committed records."""
        log = node.host.log
        offset = max(log.log_start_offset, self.committed_end if from_offset is None else from_offset)
        while offset < end_offset:
            for content in log.read(offset, max_bytes=1 << 16, end_offset=end_offset):
                for position, header in iter_batches(content):
                    batch = CommittedBatch(
                        header.base_offset,
                        header.end_offset,
                        header.partition_leader_epoch,
                        bytes(content[position : position + header.size_bytes]),
                    )
                    self._compare(node, batch, is_control=header.is_control)
                    offset = header.end_offset

    def _compare(self, node: QuorumNode, batch: CommittedBatch, *, is_control: bool) -> None:
        known = self.batches.get(batch.base_offset)
        if known is not None:
            if known != batch:
                raise Breach(
                    "committed is never lost or changed",
                    f"{node.key} at {batch.base_offset}: epoch {batch.epoch}, elsewhere {known.epoch}",
                )
            return
        if batch.base_offset != self.committed_end:
            raise Breach("log matching", f"{node.key} at {batch.base_offset}, known up to {self.committed_end}")
        self.batches[batch.base_offset] = batch
        image = self.image
        if not is_control:
            values = [record.value for record in read_records(batch.content, 0)]
            image, _ = apply_all(image, [decode_record(value) for value in values if value is not None])
        self.committed_end = batch.end_offset
        self.images[self.committed_end] = image


def check_topics(image: ClusterImage, *, created: Mapping[str, TopicId], deleted: Iterable[TopicId]) -> None:
    """Check that topics whose creation was acknowledged are there, and that topics whose deletion was acknowledged are
    not. Raises Breach."""
    lost = [name for name, topic_id in created.items() if image.topic_names.get(topic_id) != name]
    if lost:
        raise Breach("an acknowledged command is never lost", f"created and gone: {lost}")
    back = [topic_id.hex() for topic_id in deleted if topic_id in image.topic_names]
    if back:
        raise Breach("an acknowledged command is never lost", f"deleted and there: {back}")
