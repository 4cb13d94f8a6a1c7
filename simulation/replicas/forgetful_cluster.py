"""Brokers, one of which now and then comes back from a blackout without the end of its logs, and does not know about
the loss.

Such a broker reports that its logs are whole, so it may be elected, and acknowledged records are lost: no law about
committed records holds here. But only that broker has lost records, so one law holds:

- "no leader has a follower cut below its high watermark": what another broker has had below its own high watermark,
  under flushed durability, stays in its log. No election here is unclean. A broker that comes back goes by the high
  watermark of its last checkpoint, which is up to five seconds old.
"""

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.turns import Turn
from simulation.replicas.cluster import TOPIC, ReplicaCluster
from simulation.replicas.laws import PlacedBatch, ReplicaLaws, batches_between
from simulation.replicas.nemesis import ReplicaNemesis
from simulation.replicas.node import DATA, ReplicaNode
from simulation.replicas.plan import LAG_MS, ReplicaPlan
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.replication.partition import Partition
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from tailrace.testing.disk import SimulatedDisk

FORGETFUL: Final = 1
"""The broker that loses records."""


class KeptLaws(ReplicaLaws):
    """The one law that holds here."""

    def __init__(self, *, sometimes: Counter[str]) -> None:
        super().__init__(min_in_sync=1, is_flushed=True, lag_ms=LAG_MS, sometimes=sometimes)
        self._kept: dict[tuple[int, TopicPartition], dict[int, PlacedBatch]] = {}
        self._ends: dict[tuple[int, TopicPartition], int] = {}
        """The ends of the batches that each broker had below its high watermark."""

    def check(self) -> None:
        """Check the law after an event. Raises Breach."""
        for node in self.nodes:
            if node.is_up and node.is_serving and node.node_id != FORGETFUL:
                for partition in node.table:
                    self._look_at_copy(node, partition)

    def _look_at_copy(self, node: ReplicaNode, partition: Partition) -> None:
        name, log = partition.topic_partition, partition.log
        place = (node.node_id, name)
        known = self._kept.setdefault(place, {})
        high_watermark, before = partition.high_watermark, self._seen.get(partition, 0)
        if partition not in self._seen:  # it was opened again, and knows no more than its checkpoint
            self._seen[partition] = 0
            known = {offset: batch for offset, batch in known.items() if batch.end_offset <= high_watermark}
            self._kept[place] = known
            self._ends[place] = _end_of(known)
        if high_watermark > before:
            known.update(batches_between(partition, max(before, log.log_start_offset), high_watermark))
            self._seen[partition] = high_watermark
            self._ends[place] = _end_of(known)
        end_offset = self._ends[place]
        if log.log_end_offset < end_offset:
            raise Breach(
                "no leader has a follower cut below its high watermark",
                f"{name} on {node.node_id} ends at {log.log_end_offset}, and had {end_offset} below its high watermark",
            )

    def fetched(self, leader: ReplicaNode, response: FetchResponse) -> None:
        """Check nothing: a leader may have lost committed records here."""

    def out_of_order(self, name: TopicPartition, code: ErrorCode) -> None:
        """Check nothing: the producer's last batch may be lost here."""

    def acknowledged(self, name: TopicPartition, base_offset: int, crc: int) -> None:
        """Check nothing: acknowledged records may be lost here."""


def _end_of(batches: dict[int, PlacedBatch]) -> int:
    return max((batch.end_offset for batch in batches.values()), default=0)


class ForgetfulCluster(ReplicaCluster):
    """A `ReplicaCluster` whose first broker loses records."""

    def _make_laws(self) -> ReplicaLaws:
        return KeptLaws(sometimes=self.world.sometimes)

    def _make_nemesis(self, only: Collection[Turn] | None) -> ReplicaNemesis:
        return ForgetfulNemesis(self, TOPIC, only)

    def run(self) -> None:
        """Run; raises Breach if the law is broken. In the end brokers that have lost nothing may stand still, so the
        run does not wait for progress."""
        self._begin()
        self._pass_chaos()


class ForgetfulNemesis(ReplicaNemesis):
    """A `ReplicaNemesis` whose blackouts take records from one broker."""

    def _black_out(self) -> None:
        super()._black_out()
        node = self._cluster.nodes[FORGETFUL]
        share = self._world.draw("forgotten", node.node_id)
        node.forgets = partial(self._forget_ends, share=share)

    def _forget_ends(self, files: SimulatedDisk, *, share: float) -> None:
        """Cut the end off each log, and write its checkpoints as if it had never been longer."""
        directory = LogDirectory(DATA, files=files, is_durable=True)
        directory.scan()
        topic = self._cluster.metadata.image.topics.get(TOPIC)
        if topic is None:
            return
        for number, state in topic.partitions.items():
            name = TopicPartition(TOPIC, number)
            if not directory.is_found(name):
                continue
            log = directory.open_log(
                name, topic_id=state.topic_id, config=TopicConfig(), now_ms=self._world.now_ms, leader_epoch=None
            )
            high_watermark = directory.high_watermark_of(name)
            log.truncate_to(max(log.log_start_offset, int(high_watermark * share)))
            self._world.sometimes["committed records forgotten"] += log.log_end_offset < high_watermark
            for checkpoint in (HIGH_WATERMARKS, RECOVERY_POINTS):
                directory.checkpoint(checkpoint).update([(name, log.log_end_offset)])
            log.close(clean=True)
        directory.write_checkpoints()
        files.sync_all("/")


def forgetful_plan(seed: int) -> ReplicaPlan:
    """A few blackouts, and nothing that keeps a broker from being elected after a blackout."""
    return ReplicaPlan(partitions=2, blackouts_per_s=0.25, crashes_per_s=0.1 if seed % 2 else 0.0, chaos_ms=12_000)


def run_seed(seed: int) -> ForgetfulCluster:
    """Run one seed. Raises Breach."""
    cluster = ForgetfulCluster(seed, forgetful_plan(seed))
    cluster.run()
    return cluster
