"""Brokers that keep copies of partitions: producers that insist, a nemesis, and what must hold in the end."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from simulation.harness.breach import Breach
from simulation.harness.network import Network
from simulation.harness.world import Action, World
from simulation.replicas.consumer import CONSUMER, ReplicaConsumer
from simulation.replicas.laws import ReplicaLaws, StoredBatch, batches_between
from simulation.replicas.metadata import CONTROLLER, ReplicaMetadata, Subscriber
from simulation.replicas.node import DATA, ReplicaNode, rack_of
from simulation.replicas.plan import ReplicaPlan
from simulation.replicas.producer import CLIENT, Producer
from tailrace.metadata.broker_commands import FenceBroker
from tailrace.metadata.commands import (
    AlterPartition,
    AlterReassignments,
    ElectLeaders,
    Reassignment,
    TopicsCreated,
    TopicSpec,
)
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.controller_commands import create_topics

TOPIC: Final = "orders"
CONSUMES_PER_S: Final = 25.0
CONVERGES: Final = "faults end and everything converges"
"""The law that is broken if they do not."""
_START_MS: Final = 60_000
"""The time in which all brokers register, over a network that loses a part of what they say."""


class ReplicaCluster:
    """Brokers from id 1 on, with all partitions of one topic."""

    _node_type = ReplicaNode

    def __init__(self, seed: int, plan: ReplicaPlan) -> None:
        self.world = World(seed)
        self.plan = plan
        self.network = Network(self.world, plan.network)
        self.metadata = ReplicaMetadata(self.world, self.network, latest_ms=plan.latest_image_ms)
        self.laws = self._make_laws()
        self.laws.image = lambda: self.metadata.image
        self.metadata.before_decision = self._refuse_growth
        defaults = TopicConfig(
            min_insync_replicas=plan.min_in_sync,
            # The page cache may lose the name of a segment before one that stays: that is the log's fault, not ours.
            segment_bytes=900 if plan.is_flushed else 1 << 20,
            index_interval_bytes=200,
            retention_ms=-1,
        )
        self.nodes: dict[int, ReplicaNode] = {
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
        self.acked = 0
        self._producers: list[Producer] = []
        self._consumers: list[ReplicaConsumer] = []
        self._is_chaos = self._is_producing = True

    def _make_laws(self) -> ReplicaLaws:
        plan, sometimes = self.plan, self.world.sometimes
        return ReplicaLaws(
            min_in_sync=plan.min_in_sync, is_flushed=plan.is_flushed, lag_ms=plan.lag_ms, sometimes=sometimes
        )

    # The run

    def run(self) -> None:
        """Chaos, then calm; raises Breach if a law is broken, or if the copies do not become the same."""
        self._run_chaos()
        self._converge()

    def _run_chaos(self) -> None:
        world, plan = self.world, self.plan
        for node in self.nodes.values():
            world.after(0, node.start)
        world.after(0, self.metadata.watch_sessions)
        is_up = world.run(until_ms=_START_MS, stop=lambda: len(self.metadata.image.alive_brokers()) == plan.brokers)
        assert is_up, f"of {plan.brokers} brokers {self.metadata.image.alive_brokers()} are up after {_START_MS} ms"
        self._create()
        self._start_all()
        self._pass_chaos()
        self._is_chaos = False

    def _pass_chaos(self) -> None:
        """Let clients work among the faults."""
        self.world.run(until_ms=self.world.now_ms + self.plan.chaos_ms)

    def _start_all(self) -> None:
        """Start the clients and the faults."""
        plan = self.plan
        for producer in self._producers:
            self._repeat(
                f"produce {producer.name}", plan.produces_per_s, partial(self._produce, producer), in_calm=True
            )
        for consumer in self._consumers:
            self._repeat(f"consume {consumer.rack}", CONSUMES_PER_S, consumer.poll, in_calm=True)
        self._repeat("crashes", plan.crashes_per_s, self._crash)
        self._repeat("blackouts", plan.blackouts_per_s, self._black_out)
        self._repeat("cuts", plan.cuts_within_steps_per_s, self._cut_within_a_step)
        self._repeat("partitions", plan.partitions_per_s, self._partition)
        self._repeat("fencings", plan.fencings_per_s, self._fence)
        self._repeat("elections", plan.elections_per_s, self._elect)
        self._repeat("reassignments", plan.reassignments_per_s, self._reassign)
        self._repeat("damages", plan.damages_per_s, self._damage)
        self._repeat("repairs", 1.0, self._revive_all, in_calm=True)

    def _converge(self) -> None:
        world, plan = self.world, self.plan
        self.network.calm()
        for node in self.nodes.values():
            node.files.forget_faults()
        before = self.acked
        until_ms = world.now_ms + plan.converge_ms
        is_well = world.run(until_ms=until_ms, stop=lambda: self._is_in_sync(before))
        self._is_producing = False
        if not (is_well and world.run(until_ms=until_ms, stop=self._is_at_rest)):
            raise Breach(CONVERGES, self.describe())
        self._check_end()

    def _produce(self, producer: Producer) -> None:
        if self._is_producing:
            producer.produce()

    def _create(self) -> None:
        answer = self.metadata.decide(
            create_topics(
                TopicSpec(
                    name=TOPIC,
                    num_partitions=self.plan.partitions,
                    replication_factor=3,
                    configs=(("min.insync.replicas", str(self.plan.min_in_sync)),),
                )
            )
        )
        assert isinstance(answer, TopicsCreated), answer
        self._producers = [Producer(self, TopicPartition(TOPIC, number)) for number in range(self.plan.partitions)]
        self._consumers = [
            ReplicaConsumer(self, TOPIC, partitions=self.plan.partitions, rack=rack_of(number))
            for number in range(1, self.plan.consumers + 1)
        ]

    def _repeat(self, name: str, per_s: float, action: Action, *, in_calm: bool = False) -> None:
        if per_s <= 0:
            return

        def again() -> None:
            if self._is_chaos or in_calm:
                action()
                wait()

        def wait() -> None:
            self.world.after(self.world.between(1, round(2000 / per_s), "pace", name), again)

        wait()

    # Nemesis

    def _any_node(self, name: str) -> ReplicaNode:
        return self.nodes[self.world.choice(sorted(self.nodes), "node", name)]

    def _any_partition(self, name: str) -> int:
        return self.world.between(0, self.plan.partitions - 1, "partition", name)

    def _leader_of(self, number: int) -> ReplicaNode | None:
        state = self.metadata.image.partition(TOPIC, number)
        return None if state is None else self.nodes.get(state.leader)

    def _revive(self, node: ReplicaNode) -> None:
        if not node.is_up:
            node.start()

    def _revive_all(self) -> None:
        for node in self.nodes.values():
            if not node.is_up:
                self.world.after(500, partial(self._revive, node))

    def _crash(self) -> None:
        node = self._any_node("crash")
        if self.world.chance(0.4, "crash", "leader"):
            node = self._leader_of(self._any_partition("crash")) or node
        if node.is_up and (self.plan.is_flushed or self._is_in_sync(-len(self._producers) - 1)):
            self.world.sometimes["crash"] += 1
            self.world.sometimes["crash that loses what is in the page cache"] += not self.plan.is_flushed
            self.world.sometimes["leader crashed"] += any(one.is_leader for one in node.table)
            node.crash()
            longest_ms = self.world.choice((50, 1000, 4000), "down", "longest")
            self.world.after(self.world.between(1, longest_ms, "down", node.node_id), partial(self._revive, node))

    def _black_out(self) -> None:
        """The power goes everywhere at once: only what was synced survives."""
        self.world.sometimes["blackout"] += 1
        for node in self.nodes.values():
            node.crash()
            self.world.after(self.world.between(1, 500, "down", node.node_id), partial(self._revive, node))

    def _damage(self) -> None:
        """A bit of one copy flips, while its broker is down or not, when all are in sync: so another one has it all."""
        up = [node for node in self.nodes.values() if node.is_up]
        is_hurt = any(node.failures.lost_replicas or node.repairs.in_repair for node in up)
        # With one in sync it may be the damaged one: it takes an explicit election then.
        if is_hurt or self.plan.min_in_sync < 2 or not self._is_in_sync(-len(self._producers) - 1):
            return
        node = self._any_node("damage")
        if self.world.chance(0.4, "damage", "found"):
            copy = node.table.find(TOPIC, self._any_partition("found"))
            if copy is not None:
                self.world.sometimes["damage found"] += 1
                self.laws.damaged.add((node.node_id, copy.topic_partition))
                copy.log.condemn("a bit has flipped")
            return
        # As a kill of its process: a power cut may besides take the note of how far the log was flushed.
        try:
            node.files.sync_all("/")
        except PowerCut:  # it was to come within some step
            node.crash()
            return
        if self.world.chance(0.5, "damage", "blackout"):
            self._black_out()
        else:
            node.crash()
            self.world.after(self.world.between(1, 2000, "down", node.node_id), partial(self._revive, node))
        name = TopicPartition(TOPIC, self._any_partition("damage"))
        self.laws.damaged.add((node.node_id, name))
        if flip_some_bit(node.files, f"{DATA}/{name}", lambda most: self.world.between(0, most, "flip", name)):
            self.world.sometimes["bit flipped"] += 1

    def _cut_within_a_step(self) -> None:
        node = self._any_node("cut")
        ahead = self.world.between(1, 20, "operations", node.node_id)
        node.files.cut_power_at(node.files.operations + ahead, after=self.world.chance(0.5, "after", node.node_id))

    def _partition(self) -> None:
        self.network.heal()
        ids = [CONTROLLER, CLIENT, CONSUMER, *self.nodes]
        kinds = ("heal", "split", "one way", "isolate leader", "silence followers")
        kind = self.world.choice(kinds, "kind", "partition")
        if kind == "split":
            left = [node_id for node_id in ids if self.world.chance(0.5, "side", node_id)]
            self.network.separate(left, [node_id for node_id in ids if node_id not in left])
        elif kind == "one way":
            self.network.block([self.world.choice(list(self.nodes), "from", "partition")], ids)
        elif kind == "isolate leader" and (leader := self._leader_of(self._any_partition("cut off"))) is not None:
            self.network.separate([leader.node_id], [one for one in ids if one != CLIENT])
        elif kind == "silence followers" and (leader := self._leader_of(self._any_partition("silent"))) is not None:
            self.network.separate([leader.node_id], self.nodes)  # the controller is heard on both sides
        self.world.sometimes[f"partition: {kind}"] += 1
        self.world.after(self.world.between(100, 2500, "healing", kind), self.network.heal)

    def silence_followers(self) -> None:
        """From now on the leader of the first partition reaches the controller and no other broker."""
        leader = self._leader_of(0)
        assert leader is not None
        self.network.separate([leader.node_id], self.nodes)

    def _refuse_growth(self, leader: Subscriber, command: Any) -> None:
        """The replica that would join is fenced just before, and lags when another copy of the proposal comes."""
        if not (self.plan.refused_growth and self._is_chaos and isinstance(command, AlterPartition)):
            return
        for change in command.changes:
            topic = self.metadata.image.topic_by_id(change.topic_id)
            known = () if topic is None else topic.partitions[change.partition].in_sync_replicas
            for member in change.in_sync_replicas:
                broker = self.metadata.image.brokers.get(member.broker_id)
                is_new = member.broker_id not in (leader.node_id, *known)
                if (
                    is_new
                    and broker
                    and broker.is_alive
                    and self.world.chance(self.plan.refused_growth, "refused", member.broker_id)
                ):
                    self.network.separate([leader.node_id], [member.broker_id])
                    self.metadata.decide(FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))
                    self._repeat_when_alive(broker.broker_id, command)
                    return

    def _repeat_when_alive(self, broker_id: BrokerId, command: AlterPartition) -> None:
        broker = self.metadata.image.brokers.get(broker_id)
        if broker is not None and not broker.is_alive and self._is_chaos:
            self.world.after(10, partial(self._repeat_when_alive, broker_id, command))
            return
        self.world.sometimes["refused proposal again"] += 1
        self.metadata.decide(command)
        self.network.heal()

    def _fence(self) -> None:
        """A broker is taken for dead, and is not."""
        node = self._any_node("fence")
        broker = self.metadata.image.brokers.get(node.node_id)
        if broker is not None and not broker.fenced:
            self.world.sometimes["false alarm"] += 1
            self.metadata.decide(FenceBroker(broker_id=node.node_id, broker_epoch=broker.broker_epoch))

    def _elect(self) -> None:
        name = TopicPartition(TOPIC, self._any_partition("elect"))
        self.world.sometimes["election asked for"] += 1
        self.metadata.decide(ElectLeaders(type=ElectionType.PREFERRED, partitions=(name,)))

    def _reassign(self) -> None:
        name = TopicPartition(TOPIC, self._any_partition("reassign"))
        ids = sorted(self.nodes)
        turn = self.world.between(0, len(ids) - 1, "turn", name)
        replicas = tuple(BrokerId(node_id) for node_id in (ids[turn:] + ids[:turn])[:3])
        self.world.sometimes["reassignment"] += 1
        self.metadata.decide(AlterReassignments(reassignments=(Reassignment(topic_partition=name, replicas=replicas),)))

    # The end

    def _is_in_sync(self, before: int) -> bool:
        """Everything in sync, and more acknowledged than when calm began."""
        return self.acked > before + len(self._producers) and self._has_all_in_sync()

    def _has_all_in_sync(self) -> bool:
        return all(node.is_serving for node in self.nodes.values()) and all(
            set(state.in_sync_replicas) == set(state.replicas) and not state.adding_replicas for state in self._states()
        )

    def _is_at_rest(self) -> bool:
        """All copies are equally long, known to be committed everywhere, and consumed."""
        if any(producer.is_busy for producer in self._producers):
            return False
        ends = [set(self._ends(name)) for name in self._names()]
        return all(
            len(found) == 1 and all(consumer.positions[number] in found for consumer in self._consumers)
            for number, found in enumerate(ends)
        )

    def _states(self) -> list[Any]:
        return [state for name in self._names() if (state := self.metadata.image.partition(*name)) is not None]

    def _names(self) -> list[TopicPartition]:
        """All partitions."""
        topics = self.metadata.image.topics
        return [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]

    def _copies(self, name: TopicPartition) -> Sequence[Partition | None]:
        state = self.metadata.image.partition(*name)
        assert state is not None
        return [self.nodes[replica].table.find(*name) for replica in state.replicas]

    def _ends(self, name: TopicPartition) -> list[object]:
        """The end of each copy; something else for one that is not there or not committed whole."""
        ends: list[object] = []
        for index, copy in enumerate(self._copies(name)):
            is_whole = copy is not None and copy.high_watermark == copy.log.log_end_offset
            ends.append(copy.log.log_end_offset if copy is not None and is_whole else f"copy {index}")
        return ends

    def _check_end(self) -> None:
        for producer in self._producers:
            content = self._content(producer.name)
            lost = [
                offset
                for offset, crc in producer.acknowledged.items()
                if offset not in content or content[offset].crc != crc
            ]
            if lost:
                raise Breach("acknowledged is never lost", f"{producer.name}, offsets {lost}")
            crcs = [batch.crc for batch in content.values()]
            if len(set(crcs)) < len(crcs):
                raise Breach("each batch is there once", str(producer.name))

    def _content(self, name: TopicPartition) -> dict[int, StoredBatch]:
        """The batches of a partition by base offset, the same in all copies. Raises Breach if they are not."""
        contents = [
            dict(batches_between(copy, copy.log.log_start_offset, copy.log.log_end_offset))
            for copy in self._copies(name)
            if copy is not None
        ]
        if any(content != contents[0] for content in contents):
            raise Breach("copies are the same in the end", self.describe())
        return contents[0]

    @property
    def faults(self) -> set[str]:
        """The kinds of fault that this run has had."""
        network, sometimes = self.network.counts, self.world.sometimes
        kinds = {
            "loss": network["lost"],
            "duplication": network["duplicated"],
            "delay": network["delayed"],
            "crash": sometimes["crash"],
            "blackout": sometimes["blackout"],
            "power cut within a step": sometimes["power cut within a step"],
            "false alarm": sometimes["false alarm"],
            "partition": sum(count for state, count in sometimes.items() if state.startswith("partition: ")),
        }
        return {kind for kind, count in kinds.items() if count}

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough to be counted."""
        is_large = self.world.events >= 2000 and self.acked >= 100
        return is_large and len(self.faults) >= 3 and len(self.laws.leaders) > self.plan.partitions

    def describe(self) -> str:
        """The state of all nodes, for a failure's message."""
        nodes = "\n".join(node.describe() for node in self.nodes.values())
        states = "\n".join(
            f"{name}: leader {state.leader} in {state.leader_epoch}, in sync {state.in_sync_replicas} of"
            f" {state.replicas}, eligible {state.eligible_leader_replicas}, adding {state.adding_replicas}"
            for name, state in zip(self._names(), self._states(), strict=True)
        )
        read = ", ".join(f"{one.rack} {one.positions}" for one in self._consumers)
        return f"at {self.world.now_ms} ms, {self.acked} acked\n{nodes}\n{states}\nread: {read}"


def flip_some_bit(files: SimulatedDisk, directory: str, draw: Callable[[int], int]) -> bool:
    """Flip one bit of one file in a directory of a broker that is down; whether there is one. `draw`: 0 to that.

    Not in segments at rest: only a scrubber finds that, and these brokers have none.
    """
    files.reboot()
    try:
        names = files.list_dir(directory) if files.exists(directory) else []
        at_rest = [name for name in names if name.endswith(".log")][:-1]
        paths = [f"{directory}/{name}" for name in names if name not in at_rest]
        paths = [path for path in paths if files.size_of(path)]
        if paths:
            path = paths[draw(len(paths) - 1)]
            files.flip_bit(path, draw(files.size_of(path) - 1), draw(7))
        return bool(paths)
    finally:
        files.has_power = False


def run_seed(seed: int, *, plan_of: Callable[[int], ReplicaPlan] = ReplicaPlan.of) -> ReplicaCluster:
    """One run. Raises Breach."""
    cluster = ReplicaCluster(seed, plan_of(seed))
    cluster.run()
    return cluster


def run_late_copies(seed: int) -> ReplicaCluster:
    """One run of `ReplicaPlan.of_late_copies`. Raises Breach."""
    return run_seed(seed, plan_of=ReplicaPlan.of_late_copies)


def run_silence(seed: int) -> ReplicaCluster:
    """One run in which followers are silent until calm begins, and the high watermark stands still. Raises Breach."""
    cluster = ReplicaCluster(seed, ReplicaPlan(partitions=1, chaos_ms=8_000))
    cluster.world.after(4_000, cluster.silence_followers)
    cluster.run()
    return cluster
