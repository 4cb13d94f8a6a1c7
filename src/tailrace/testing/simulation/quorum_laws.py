"""What must be true of a metadata quorum of whole nodes after every event, whatever fails.

The keeper has its own log of what was committed, read from whoever said so first, and its own replay of it: any node's
committed records and image must be the same, at every offset, in every life.
"""

from typing import NamedTuple

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records import decode_record
from tailrace.metadata.replay import apply_all
from tailrace.protocol.messages import quorum
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.raft.rpc import Response, VoteResponse
from tailrace.server.ports import QuorumRequest
from tailrace.testing.simulation.breach import Breach
from tailrace.testing.simulation.quorum_node import QuorumNode
from tailrace.testing.simulation.world import Life


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
        self.leaders: dict[int, int] = {}
        """By epoch."""
        self.batches: dict[int, CommittedBatch] = {}
        """By base offset."""
        self.images: dict[int, ClusterImage] = {0: EMPTY_IMAGE}
        """By the end offset of a batch."""
        self.committed_end = 0
        self._votes: dict[tuple[int, int], int] = {}
        self._seen: dict[int, tuple[Life, int]] = {}

    @property
    def image(self) -> ClusterImage:
        """What is committed, by this keeper's own replay."""
        return self.images[self.committed_end]

    # Observer

    def started(self, node: QuorumNode) -> None:
        """What it has promised is on its disk."""
        epoch = node.host.node.quorum_state.epoch
        promised = [voted for voter, voted in self._votes if voter == node.key.id]
        promised += [led for led, leader in self.leaders.items() if leader == node.key.id]
        if epoch < max(promised, default=0):
            raise Breach("a promise is on disk when it leaves", f"{node.key} starts in {epoch} after {max(promised)}")

    def answers(self, node: QuorumNode, request: QuorumRequest, response: Response) -> None:
        """A vote is given once per epoch."""
        if not isinstance(request, quorum.VoteRequest) or not isinstance(response, VoteResponse):
            return
        part = request.topics[0].partitions[0]
        if part.pre_vote or not response.vote_granted:
            return
        vote = self._votes.setdefault((node.key.id, part.replica_epoch), part.replica_id)
        if vote != part.replica_id:
            raise Breach("one vote per epoch", f"{node.key} in {part.replica_epoch}: {vote}, {part.replica_id}")

    def changed(self, node: QuorumNode, image: ClusterImage) -> None:
        """A node shows another image."""
        offset = node.controller.applied_end_offset
        if offset > (node.host.node.high_watermark or 0):
            raise Breach("only what is committed is shown", f"{node.key} at {offset}")
        self._learn(node, offset)
        expected = self.images.get(offset)
        if expected is None:
            raise Breach("images end where batches end", f"{node.key} at {offset}")
        if image != expected:
            raise Breach("images are equal at equal offsets", f"{node.key} at {offset}")

    # After each event

    def check(self) -> None:
        """Look at what has changed on any node."""
        for node in self.nodes:
            if node.is_up:
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
        if high_watermark > before:
            self._learn(node, min(high_watermark, node.host.log.end_offset), before)
        self._seen[node.key.id] = (node.life, high_watermark)

    def _check_leader(self, node: QuorumNode) -> None:
        epoch = node.host.node.epoch
        leader = self.leaders.setdefault(epoch, node.key.id)
        if leader != node.key.id:
            raise Breach("one leader per epoch", f"epoch {epoch}: {leader} and {node.key}")
        if epoch == max(self.leaders) and node.host.log.end_offset < self.committed_end:
            raise Breach("leader completeness", f"{node.key} ends before {self.committed_end}")

    def _learn(self, node: QuorumNode, end_offset: int, from_offset: int | None = None) -> None:
        """Compare what this node holds for committed with what is known, and learn what is new."""
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
