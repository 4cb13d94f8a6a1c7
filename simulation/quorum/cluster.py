"""A cluster's metadata in a simulated world: clients that administer the cluster, a nemesis, and what must hold in the
end."""

from collections.abc import Collection
from functools import partial
from types import MappingProxyType

from simulation.harness.breach import Breach
from simulation.harness.cluster import SimulatedCluster
from simulation.harness.turns import Turn
from simulation.quorum.laws import QuorumLaws, check_topics
from simulation.quorum.nemesis import QuorumNemesis
from simulation.quorum.node import QuorumNode, active_controller
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
from testkit.quorum.controller_commands import create_topics, delete_topics

__all__ = ["QuorumCluster", "QuorumPlan", "run_seed"]


class QuorumCluster(SimulatedCluster[QuorumNode, QuorumPlan]):
    """Voters from id 1 on, then the observers, and two brokers that only send heartbeats."""

    fault_states = MappingProxyType(
        {
            "crash": ("crash",),
            "blackout": ("blackout",),
            "power cut within a step": ("power cut within a step",),
            "failed log": ("node with a failed log",),
            "full disk": ("the disk of a leader is full", "the disk of a follower is full"),
            "loss of a disk": ("disk lost",),
            "damage": ("damaged snapshot sent",),
            "clock": ("clock jumped",),
        }
    )

    def __init__(self, seed: int, plan: QuorumPlan, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of the nemesis that are taken; None means every turn."""
        super().__init__(seed, plan)
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
        self._silent: set[BrokerId] = set()
        self._before = 0
        """The end of the committed records when calm began."""
        self.nemesis = QuorumNemesis(self, only)

    def _find(self, node_id: int) -> QuorumNode:
        return self.nodes[node_id]

    # The run

    def _begin(self) -> None:
        world, plan, turns = self.world, self.plan, self.nemesis
        for node in self.nodes.values():
            self.revive_in(world.between(0, 50, "start", node.node_id), node)
        for broker_id in BROKERS:
            turns.repeat(f"broker {broker_id}", 2.0, partial(self._beat, broker_id), in_calm=True)
        turns.repeat("commands", plan.commands_per_s, self._command, in_calm=True)
        turns.repeat("silences", plan.silences_per_s, self._silence)
        turns.repeat("repairs", 1.0, self._restart_failed, in_calm=True)
        turns.start()

    def _calm(self) -> None:
        super()._calm()
        self._silent.clear()
        for node in self.nodes.values():
            node.files.forget_faults()
            node.files.free_space = TOTAL_SPACE
            node.damage = 0.0
            if not node.is_up:
                self.revive_in(100, node)
        self._before = self.laws.committed_end

    def revive(self, node: QuorumNode) -> None:
        super().revive(node)
        if not node.is_up:  # the power went again
            self.revive_in(200, node)

    # Clients

    def leader(self) -> QuorumNode | None:
        return active_controller(self.nodes.values())

    def _ask_all(self, command: ControllerCommand, then: OnDone) -> None:
        """Send the command to every node that holds itself for the active controller: a deposed controller has clients,
        too."""
        for node in list(self.nodes.values()):
            if node.is_up and node.controller.is_active:
                node.do(partial(node.controller.submit, command, then))

    def _command(self) -> None:
        live, turns = sorted(self.created), self.nemesis
        if live and turns.chance(0.25, "kind"):
            self._delete(turns.choice(live, "name"))
            return
        name = f"topic-{self.next_number()}"
        self._ask_all(create_topics(TopicSpec(name=name)), partial(self._created, name))

    def _created(self, name: str, answer: ControllerResponse | KafkaError) -> None:
        if isinstance(answer, TopicsCreated):
            self.acked += 1
            result = answer.results[0]
            if isinstance(result, TopicCreated):
                self.created[name] = result.topic_id
                self._expect(name, result.topic_id)

    def _expect(self, name: str, topic_id: TopicId) -> None:
        """Check that an acknowledged topic is in the committed image."""
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
        node = self.leader()
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
        """Restart nodes that have given up, and nodes whose power has gone."""
        for node in self.nodes.values():
            if not node.is_up:
                self.revive_in(1000, node)
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

    def _is_at_rest(self) -> bool:
        """Whether every node has applied more than was committed when calm began (if clients write), under one active
        controller."""
        leader = self.leader()
        is_asked = self.plan.commands_per_s > 0
        if leader is None or (is_asked and self.laws.committed_end <= self._before):
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

    def _check_end(self) -> None:
        check_topics(self.laws.image, created=self.created, deleted=self.deleted)

    @property
    def counts(self) -> bool:
        is_large = self.plan.voters >= 3 and self.acked >= 100
        return is_large and len(self.laws.leaders) >= 2 and super().counts

    @property
    def progress(self) -> str:
        return f"committed {self.laws.committed_end}"


def _ignore(_: ControllerResponse | KafkaError) -> None:
    pass


def run_seed(seed: int) -> QuorumCluster:
    """A whole run. Raises Breach."""
    cluster = QuorumCluster(seed, QuorumPlan.of(seed))
    cluster.run()
    return cluster
