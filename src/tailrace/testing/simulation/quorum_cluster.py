"""A cluster's metadata in a simulated world: clients that administer it, a nemesis, and what must hold in the end."""

from dataclasses import dataclass, field
from functools import partial

from tailrace.metadata.broker_commands import BrokerHeartbeat, RegisterBroker
from tailrace.metadata.commands import (
    ControllerCommand,
    ControllerResponse,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    TopicCreated,
    TopicReference,
    TopicsCreated,
    TopicsDeleted,
)
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.raft.ports import RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.hosts.quorum_controller import OnDone
from tailrace.testing.simulation.breach import Breach
from tailrace.testing.simulation.network import Network, NetworkFaults
from tailrace.testing.simulation.quorum_laws import QuorumLaws
from tailrace.testing.simulation.quorum_node import QuorumNode
from tailrace.testing.simulation.world import Action, World

SMALL = RaftConfig(
    fetch_max_bytes=2000,
    snapshot_max_bytes=400,
    live_replica_ms=3000,
    served_snapshot_ms=500,
    start_offset_lag_ms=20_000,
    upkeep_interval_ms=250,
)
"""Kafka's times, and sizes so small that logs start at snapshots and these have several parts."""
BROKERS = (BrokerId(101), BrokerId(102))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumPlan:
    """What a run consists of."""

    voters: int = 3
    observers: int = 1
    network: NetworkFaults = field(default_factory=NetworkFaults)
    longest_disk_ms: int = 5
    commands_per_s: float = 25
    snapshot_bytes: int = 6000
    crashes_per_s: float = 0.0
    blackouts_per_s: float = 0.0
    cuts_within_steps_per_s: float = 0.0
    disk_errors_per_s: float = 0.0
    partitions_per_s: float = 0.0
    clock_jumps_per_s: float = 0.0
    silences_per_s: float = 0.1
    lying_sync: bool = False
    chaos_ms: int = 12_000
    converge_ms: int = 30_000

    @classmethod
    def of(cls, seed: int) -> "QuorumPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        world = World(seed)

        def some(name: str, most: float) -> float:
            return most * world.draw("size", name) if world.chance(0.6, "swarm", name) else 0.0

        return cls(
            observers=world.choice((0, 1, 2), "swarm", "observers"),
            network=NetworkFaults(loss=some("loss", 0.2), duplication=some("duplication", 0.1), slow=some("slow", 0.1)),
            longest_disk_ms=world.choice((1, 5, 40), "swarm", "disk"),
            snapshot_bytes=world.choice((1500, 6000, 1 << 20), "swarm", "snapshots"),
            crashes_per_s=0.1 + some("crashes", 0.5),
            blackouts_per_s=some("blackouts", 0.3),
            cuts_within_steps_per_s=some("cuts", 0.5),
            disk_errors_per_s=some("errors", 0.2),
            partitions_per_s=some("partitions", 0.5),
            clock_jumps_per_s=some("clocks", 0.5),
        )


class QuorumCluster:
    """Voters from id 1 on, observers behind them, and two brokers that only send heartbeats."""

    def __init__(self, seed: int, plan: QuorumPlan) -> None:
        self.world = World(seed)
        self.plan = plan
        self.network = Network(self.world, plan.network)
        self.laws = QuorumLaws()
        keys = [ReplicaKey(number, bytes([number]) * 16) for number in range(1, plan.voters + plan.observers + 1)]
        voters = VoterSet.of(Voter(key) for key in keys[: plan.voters])
        self.nodes = {
            key.id: QuorumNode(
                self.world,
                self.network,
                key=key,
                voters=voters,
                config=SMALL,
                trigger=SnapshotTrigger(min_changed_ratio=0.2, min_log_bytes=plan.snapshot_bytes, patience=3),
                longest_disk_ms=plan.longest_disk_ms,
                observer=self.laws,
                find=self._find,
                lying_sync=plan.lying_sync,
            )
            for key in keys
        }
        self.laws.nodes = list(self.nodes.values())
        self.world.after_event += [self.laws.check, self._note_states]
        self.created: dict[str, TopicId] = {}
        """Topics whose creation was acknowledged, and whose deletion was not asked for."""
        self.deleted: set[TopicId] = set()
        """Topics whose deletion was acknowledged."""
        self.acked = 0
        self._names = 0
        self._is_chaos = True
        self._silent: set[BrokerId] = set()

    def _find(self, node_id: int) -> QuorumNode:
        return self.nodes[node_id]

    # The run

    def run(self) -> None:
        """Chaos, then calm; raises Breach if a law is broken, or if the cluster does not come to rest."""
        world, plan = self.world, self.plan
        for node in self.nodes.values():
            world.after(world.between(0, 50, "start", node.key.id), partial(self._revive, node))
        for broker_id in BROKERS:
            self._repeat(f"broker {broker_id}", 2.0, partial(self._beat, broker_id), in_calm=True)
        self._repeat("commands", plan.commands_per_s, self._command, in_calm=True)
        self._repeat("crashes", plan.crashes_per_s, self._crash)
        self._repeat("blackouts", plan.blackouts_per_s, self._black_out)
        self._repeat("cuts", plan.cuts_within_steps_per_s, self._cut_within_a_step)
        self._repeat("errors", plan.disk_errors_per_s, self._fail_disk)
        self._repeat("partitions", plan.partitions_per_s, self._partition)
        self._repeat("clocks", plan.clock_jumps_per_s, self._jump_clock)
        self._repeat("silences", plan.silences_per_s, self._silence)
        self._repeat("repairs", 1.0, self._restart_failed, in_calm=True)
        world.run(until_ms=plan.chaos_ms)
        self._is_chaos = False
        self._silent.clear()
        self.network.calm()
        for node in self.nodes.values():
            node.files.forget_faults()
            if not node.is_up:
                world.after(100, partial(self._revive, node))
        before = self.laws.committed_end
        if not world.run(until_ms=plan.chaos_ms + plan.converge_ms, stop=lambda: self._is_at_rest(before)):
            raise Breach("faults end and everything converges", self.describe())
        self._check_acked()

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

    def _any_node(self, name: str) -> QuorumNode:
        return self.nodes[self.world.choice(sorted(self.nodes), "node", name)]

    def _revive(self, node: QuorumNode) -> None:
        if not node.is_up:
            node.start()
            if not node.is_up:  # the power went again
                self.world.after(200, partial(self._revive, node))

    # Clients

    def active(self) -> QuorumNode | None:
        """The active controller of the highest epoch."""
        active = [node for node in self.nodes.values() if node.is_up and node.controller.is_active]
        return max(active, key=lambda node: node.host.node.epoch, default=None)

    def _ask_all(self, command: ControllerCommand, then: OnDone) -> None:
        """Clients of a deposed controller are clients too."""
        for node in list(self.nodes.values()):
            if node.is_up and node.controller.is_active:
                node.do(partial(node.controller.submit, command, then))

    def _command(self) -> None:
        live = sorted(self.created)
        if live and self.world.chance(0.25, "kind", "command"):
            self._delete(self.world.choice(live, "name", "command"))
            return
        self._names += 1
        name = f"topic-{self._names}"
        self._ask_all(CreateTopics(topics=(NewTopic(name=name),)), partial(self._created, name))

    def _created(self, name: str, answer: ControllerResponse | KafkaError) -> None:
        if isinstance(answer, TopicsCreated):
            self.acked += 1
            result = answer.results[0]
            if isinstance(result, TopicCreated):
                self.created[name] = result.topic_id
                self._expect(name, result.topic_id)

    def _expect(self, name: str, topic_id: TopicId) -> None:
        """An answer is about what is committed."""
        if self.laws.image.topic_names.get(topic_id) != name:
            raise Breach("only what is committed is acknowledged", f"{name} at {self.laws.committed_end}")

    def _delete(self, name: str) -> None:
        topic_id = self.created.pop(name)

        def deleted(answer: ControllerResponse | KafkaError) -> None:
            if isinstance(answer, TopicsDeleted) and answer.results[0].error is None:
                self.acked += 1
                self.deleted.add(topic_id)

        self._ask_all(DeleteTopics(topics=(TopicReference(topic_id=topic_id),)), deleted)

    def _beat(self, broker_id: BrokerId) -> None:
        node = self.active()
        if node is None or broker_id in self._silent:
            return
        broker = node.controller.image.brokers.get(broker_id)
        command: ControllerCommand
        if broker is None:
            command = RegisterBroker(broker_id=broker_id, incarnation_id=bytes([broker_id]) * 16, endpoints=())
        else:
            self.world.sometimes["broker fenced"] += broker.fenced
            command = BrokerHeartbeat(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                metadata_offset=node.controller.applied_end_offset - 1,
            )
        node.do(partial(node.controller.submit, command, _ignore))

    def _silence(self) -> None:
        broker_id = self.world.choice(BROKERS, "broker", "silence")
        self._silent.symmetric_difference_update((broker_id,))

    # Nemesis

    def _crash(self) -> None:
        node = self._any_node("crash")
        if self.world.chance(0.3, "crash", "leader"):
            node = self.active() or node
        if not node.is_up:
            return
        self.world.sometimes["crash"] += 1
        self.world.sometimes["active controller crashed"] += node.controller.is_active
        node.crash()
        longest_ms = self.world.choice((500, 2000, 6000), "down", "longest")
        self.world.after(self.world.between(10, longest_ms, "down", node.key.id), partial(self._revive, node))

    def _black_out(self) -> None:
        """The power goes everywhere at once: only what was synced survives."""
        self.world.sometimes["blackout"] += 1
        for node in self.nodes.values():
            node.crash()
            self.world.after(self.world.between(10, 500, "down", node.key.id), partial(self._revive, node))

    def _cut_within_a_step(self) -> None:
        node = self._any_node("cut")
        ahead = self.world.between(1, 20, "operations", node.key.id)
        after = self.world.chance(0.5, "after", node.key.id)
        node.files.cut_power_at(node.files.operations + ahead, after=after)

    def _fail_disk(self) -> None:
        node = self._any_node("error")
        ahead = self.world.between(1, 20, "failing", node.key.id)
        node.files.fail_at(node.files.operations + ahead)

    def _restart_failed(self) -> None:
        """Somebody sees to nodes that have given up, and to those whose power has gone."""
        for node in self.nodes.values():
            if not node.is_up:
                self.world.after(1000, partial(self._revive, node))
            elif node.host.failure is not None:
                self.world.sometimes["node with a failed log"] += 1
                node.crash()

    def _partition(self) -> None:
        self.network.heal()
        ids = sorted(self.nodes)
        kind = self.world.choice(("heal", "split", "one way", "isolate leader"), "kind", "partition")
        if kind == "split":
            left = [node_id for node_id in ids if self.world.chance(0.5, "side", node_id)]
            self.network.separate(left, [node_id for node_id in ids if node_id not in left])
        elif kind == "one way":
            self.network.block([self.world.choice(ids, "from", "partition")], ids)
        elif kind == "isolate leader" and (leader := self.active()) is not None:
            self.network.separate([leader.key.id], ids)
        self.world.sometimes[f"partition: {kind}"] += 1

    def _jump_clock(self) -> None:
        node = self._any_node("clock")
        if node.is_up:
            node.clock.wall_error_ms = self.world.between(-3_600_000, 3_600_000, "error", node.key.id)
            self.world.sometimes["clock jumped"] += 1

    def _note_states(self) -> None:
        sometimes = self.world.sometimes
        for node in self.nodes.values():
            if node.is_up:
                sometimes["log start raised"] += node.host.log.log_start_offset > 0
                sometimes["snapshot being loaded"] += node.controller.is_loading

    # The end

    def _is_at_rest(self, before: int) -> bool:
        """One active controller, more committed than when calm began (if anybody asks), all of it applied by all."""
        leader = self.active()
        is_asked = self.plan.commands_per_s > 0
        if leader is None or (is_asked and self.laws.committed_end <= before):
            return False
        end_offset = leader.host.log.end_offset
        return end_offset == self.laws.committed_end and all(
            node.is_up
            and node.host.failure is None
            and node.host.node.leader_id == leader.key.id
            and node.host.node.high_watermark == end_offset
            and node.controller.image == self.laws.image
            for node in self.nodes.values()
        )

    def _check_acked(self) -> None:
        image = self.laws.image
        lost = [name for name, topic_id in self.created.items() if image.topic_names.get(topic_id) != name]
        if lost:
            raise Breach("an acknowledged command is never lost", f"created and gone: {lost}")
        back = [topic_id.hex() for topic_id in self.deleted if topic_id in image.topic_names]
        if back:
            raise Breach("an acknowledged command is never lost", f"deleted and there: {back}")

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
            "failed log": sometimes["node with a failed log"],
            "clock": sometimes["clock jumped"],
            "partition": sum(count for state, count in sometimes.items() if state.startswith("partition: ")),
        }
        return {kind for kind, count in kinds.items() if count}

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough to be counted."""
        is_large = self.plan.voters >= 3 and self.world.events >= 2000 and self.acked >= 100
        return is_large and len(self.faults) >= 3 and len(self.laws.leaders) >= 2

    def describe(self) -> str:
        """The state of all nodes, for a failure's message."""
        nodes = "; ".join(node.describe() for node in self.nodes.values())
        return f"at {self.world.now_ms} ms, committed {self.laws.committed_end}; {nodes}"


def _ignore(_: ControllerResponse | KafkaError) -> None:
    pass
