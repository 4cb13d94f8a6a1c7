"""Brokers that keep copies of partitions, under one controller: how brokers start, what they have, and when they
agree."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.cluster import CONVERGES, SimulatedCluster
from simulation.replicas.laws import PlacedBatch, ReplicaLaws, batches_between
from simulation.replicas.metadata import ReplicaMetadata
from simulation.replicas.node import ReplicaNode
from simulation.replicas.plan import ReplicaPlan
from tailrace.metadata.commands import TopicsCreated, TopicSpec
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from testkit.quorum.controller_commands import create_topics

_START_MS: Final = 60_000
"""The time in which all brokers register, over a network that loses a part of their requests."""


class ReplicaBrokers(SimulatedCluster[ReplicaNode, ReplicaPlan]):
    """Brokers from id 1 on. A subclass has topics and clients."""

    fault_states = MappingProxyType(
        {state: (state,) for state in ("crash", "blackout", "power cut within a step", "false alarm")}
    )
    _node_type = ReplicaNode

    def __init__(self, seed: int, plan: ReplicaPlan) -> None:
        super().__init__(seed, plan)
        self.metadata = ReplicaMetadata(self.world, self.network, latest_ms=plan.latest_image_ms)
        self.laws = self._make_laws()
        self.laws.image = lambda: self.metadata.image
        defaults = TopicConfig(
            min_insync_replicas=plan.min_in_sync,
            # The page cache may lose the name of a segment before the name of a segment that lasts: that is the log's
            # fault, not ours.
            segment_bytes=900 if plan.is_flushed else 1 << 20,
            index_interval_bytes=200,
            retention_ms=-1,
        )
        self.nodes = {
            number: self._node_type(
                self.world,
                self.network,
                self.metadata,
                node_id=number,
                defaults=defaults,
                longest_disk_ms=plan.longest_disk_ms,
                session_slots=plan.session_slots,
                lag_ms=plan.lag_ms,
                is_flushed=plan.is_flushed,
                lying_sync=plan.lying_sync,
                find=lambda node_id: self.nodes[node_id],
                on_command=lambda node, command: self.laws.submitted(node, command, self.world.now_ms),
                on_fetched=self.laws.fetched,
            )
            for number in range(1, plan.brokers + 1)
        }
        self.laws.nodes = list(self.nodes.values())
        self.world.after_event.append(self.laws.check)
        self.is_working = True
        """Whether clients begin new work."""

    def _make_laws(self) -> ReplicaLaws:
        plan, sometimes = self.plan, self.world.sometimes
        return ReplicaLaws(
            min_in_sync=plan.min_in_sync, is_flushed=plan.is_flushed, lag_ms=plan.lag_ms, sometimes=sometimes
        )

    # The run

    def _begin(self) -> None:
        world, plan = self.world, self.plan
        for node in self.nodes.values():
            world.after(0, node.start)
        world.after(0, self.metadata.watch_sessions)
        is_up = world.run(until_ms=_START_MS, stop=lambda: len(self.metadata.image.alive_brokers()) == plan.brokers)
        assert is_up, f"of {plan.brokers} brokers {self.metadata.image.alive_brokers()} are up after {_START_MS} ms"
        self._start_clients()
        self.nemesis.start()
        self.nemesis.repeat("repairs", 1.0, self._revive_all, in_calm=True)

    def _start_clients(self) -> None:
        """Create topics, and start their clients."""

    def _create_topic(self, name: str, partitions: int) -> None:
        configs = (("min.insync.replicas", str(self.plan.min_in_sync)),)
        answer = self.metadata.decide(
            create_topics(TopicSpec(name=name, num_partitions=partitions, replication_factor=3, configs=configs))
        )
        assert isinstance(answer, TopicsCreated), answer

    def _calm(self) -> None:
        super()._calm()
        for node in self.nodes.values():
            node.files.forget_faults()

    def _converge(self) -> None:
        """Wait until all copies are in sync while clients work, then until the copies are equal. Raises Breach."""
        until_ms = self.world.now_ms + self.plan.converge_ms
        is_well = self.world.run(until_ms=until_ms, stop=self._is_in_sync)
        self.is_working = False
        if not (is_well and self.world.run(until_ms=until_ms, stop=self._is_at_rest)):
            raise Breach(CONVERGES, self.describe())

    def _is_in_sync(self) -> bool:
        """Whether all copies are in sync, and clients have made progress since calm began."""
        return self.has_all_in_sync()

    def _is_at_rest(self) -> bool:
        """Whether all copies are equally long, and every broker knows that they are committed."""
        return all(len(set(self._ends(name))) == 1 for name in self.names())

    # Brokers and copies

    def leader_of(self, name: TopicPartition) -> ReplicaNode | None:
        """The broker that the controller calls the leader."""
        state = self.metadata.image.partition(*name)
        return None if state is None else self.nodes.get(state.leader)

    def _revive_all(self) -> None:
        for node in self.nodes.values():
            if not node.is_up:
                self.revive_in(500, node)

    def has_all_in_sync(self) -> bool:
        """Whether every broker serves, and every replica is in sync."""
        return all(node.is_serving for node in self.nodes.values()) and all(
            set(state.in_sync_replicas) == set(state.replicas) and not state.adding_replicas for state in self._states()
        )

    def _states(self) -> list[PartitionState]:
        return [state for name in self.names() if (state := self.metadata.image.partition(*name)) is not None]

    def names(self) -> list[TopicPartition]:
        """The partitions."""
        topics = self.metadata.image.topics
        return [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]

    def _copies(self, name: TopicPartition) -> Sequence[Partition | None]:
        state = self.metadata.image.partition(*name)
        assert state is not None
        return [self.nodes[replica].table.find(*name) for replica in state.replicas]

    def _ends(self, name: TopicPartition) -> list[object]:
        """The end of each copy; something else for a copy that is absent or not committed whole."""
        ends: list[object] = []
        for index, copy in enumerate(self._copies(name)):
            is_whole = copy is not None and copy.high_watermark == copy.log.log_end_offset
            ends.append(copy.log.log_end_offset if copy is not None and is_whole else f"copy {index}")
        return ends

    def _content(self, name: TopicPartition) -> dict[int, PlacedBatch]:
        """The batches of a partition by base offset, the same in all copies. Raises Breach if copies differ."""
        contents = [
            dict(batches_between(copy, copy.log.log_start_offset, copy.log.log_end_offset))
            for copy in self._copies(name)
            if copy is not None
        ]
        if any(content != contents[0] for content in contents):
            raise Breach("copies are the same in the end", self.describe())
        return contents[0]

    def describe(self) -> str:
        states = [
            f"{name}: leader {state.leader} in {state.leader_epoch}, in sync {state.in_sync_replicas} of"
            f" {state.replicas}, eligible {state.eligible_leader_replicas}, adding {state.adding_replicas}"
            for name, state in zip(self.names(), self._states(), strict=True)
        ]
        return "\n".join([super().describe(), *states])
