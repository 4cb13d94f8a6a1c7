"""A cluster's metadata in a simulated world: clients that administer it, a nemesis, and what must hold in the end."""

from collections.abc import Collection
from functools import partial

from simulation.harness.breach import Breach
from simulation.harness.network import Network
from simulation.harness.turns import Turn
from simulation.harness.world import World
from simulation.quorum.laws import QuorumLaws
from simulation.quorum.nemesis import QuorumNemesis
from simulation.quorum.node import QuorumNode
from simulation.quorum.plan import BROKERS, SMALL, QuorumPlan
from tailrace.metadata.broker_commands import BrokerHeartbeat, RegisterBroker
from tailrace.metadata.commands import (
    ControllerCommand,
    ControllerResponse,
    TopicCreated,
    TopicReference,
    TopicsCreated,
    TopicsDeleted,
    TopicSpec,
)
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.proofs import NO_SECRET, id_of_secret
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.quorum.active_controller import OnDone
from tailrace.testing.disk import TOTAL_SPACE
from testkit.controller_commands import create_topics, delete_topics

__all__ = ["QuorumCluster", "QuorumPlan", "run_seed"]


class QuorumCluster:
    """Voters from id 1 on, observers behind them, and two brokers that only send heartbeats."""

    def __init__(self, seed: int, plan: QuorumPlan, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of the nemesis that are taken; None means all."""
        self.world = World(seed)
        self.plan = plan
        self.network = Network(self.world, plan.network)
        self.laws = QuorumLaws()
        secrets = [bytes([number]) * 16 for number in range(1, plan.voters + plan.observers + 1)]
        ids = secrets if plan.has_old_directories else [id_of_secret(secret) for secret in secrets]
        keys = [ReplicaKey(number, directory_id) for number, directory_id in enumerate(ids, 1)]
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
                damage=plan.damage,
                lying_sync=plan.lying_sync,
                directory_secret=NO_SECRET if plan.has_old_directories else secret,
            )
            for key, secret in zip(keys, secrets, strict=True)
        }
        self.laws.nodes = list(self.nodes.values())
        self.world.after_event += [self.laws.check, self._note_states]
        self.created: dict[str, TopicId] = {}
        """Topics whose creation was acknowledged, and whose deletion was not asked for."""
        self.deleted: set[TopicId] = set()
        """Topics whose deletion was acknowledged."""
        self.acked = 0
        self._names = 0
        self._silent: set[BrokerId] = set()
        self.nemesis = QuorumNemesis(self, only)

    def _find(self, node_id: int) -> QuorumNode:
        return self.nodes[node_id]

    # The run

    def run(self) -> None:
        """Chaos, then calm; raises Breach if a law is broken, or if the cluster does not come to rest."""
        world, plan = self.world, self.plan
        for node in self.nodes.values():
            world.after(world.between(0, 50, "start", node.key.id), partial(self.revive, node))
        turns = self.nemesis
        for broker_id in BROKERS:
            turns.repeat(f"broker {broker_id}", 2.0, partial(self._beat, broker_id), in_calm=True)
        turns.repeat("commands", plan.commands_per_s, self._command, in_calm=True)
        turns.repeat("silences", plan.silences_per_s, self._silence)
        turns.repeat("repairs", 1.0, self._restart_failed, in_calm=True)
        turns.start()
        world.run(until_ms=plan.chaos_ms)
        turns.stop()
        self._calm()
        before = self.laws.committed_end
        if not world.run(until_ms=plan.chaos_ms + plan.converge_ms, stop=lambda: self._is_at_rest(before)):
            raise Breach("faults end and everything converges", self.describe())
        self._check_acked()

    def _calm(self) -> None:
        self.world.note("calm begins")
        self._silent.clear()
        self.network.calm()
        for node in self.nodes.values():
            node.files.forget_faults()
            node.files.free_space = TOTAL_SPACE
            node.damage = 0.0
            if not node.is_up:
                self.world.after(100, partial(self.revive, node))

    def revive(self, node: QuorumNode) -> None:
        """Start this node, unless something else has."""
        if not node.is_up:
            node.start()
            if not node.is_up:  # the power went again
                self.world.after(200, partial(self.revive, node))

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
        live, turns = sorted(self.created), self.nemesis
        if live and turns.chance(0.25, "kind"):
            self._delete(turns.choice(live, "name"))
            return
        self._names += 1
        name = f"topic-{self._names}"
        self._ask_all(create_topics(TopicSpec(name=name)), partial(self._created, name))

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

        self._ask_all(delete_topics(TopicReference(topic_id=topic_id)), deleted)

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
        broker_id = self.nemesis.choice(BROKERS, "broker")
        self._silent.symmetric_difference_update((broker_id,))

    def _restart_failed(self) -> None:
        """Restart nodes that have given up, and those whose power has gone."""
        for node in self.nodes.values():
            if not node.is_up:
                self.world.after(1000, partial(self.revive, node))
            elif node.host.failure is not None:
                self.world.sometimes["node with a failed log"] += 1
                node.crash()

    def _note_states(self) -> None:
        sometimes = self.world.sometimes
        for node in self.nodes.values():
            if node.is_up:
                sometimes["log start raised"] += node.host.log.log_start_offset > 0
                sometimes["snapshot being loaded"] += node.controller._loading is not None

    # The end

    def _is_at_rest(self, before: int) -> bool:
        """One active controller, more committed than when calm began (if clients write), applied by all."""
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
            "full disk": sometimes["the disk of a leader is full"] + sometimes["the disk of a follower is full"],
            "loss of a disk": sometimes["disk lost"],
            "damage": sometimes["damaged snapshot sent"],
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


def run_seed(seed: int) -> QuorumCluster:
    """A whole run. Raises Breach."""
    cluster = QuorumCluster(seed, QuorumPlan.of(seed))
    cluster.run()
    return cluster
